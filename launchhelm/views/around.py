"""What a run shows around one command: pace, exchange, silence, a running handler."""

from __future__ import annotations

import re
import time
from statistics import median
from typing import Any, Final

from launchhelm._wording import Around, Quiet
from launchhelm.records import CANCEL
from launchhelm.views.commands import CommandView
from launchhelm.views.findings import STUCK_PACES
from launchhelm.views.lineage import returns_of, undone_by
from launchhelm.views.participants import is_waiting
from launchhelm.views.run import RunView
from launchhelm.views.state import PAUSED

_HELD_S: Final = 5.0
"""A wait for other ranks that has taken so long is not part of a usual step."""

_IN_HANDLER: Final = re.compile(r"in (.+)")


def around_of(
    view: RunView,
    waited_s: float | None = None,
    *,
    command: CommandView | None = None,
) -> Around:
    """Gather what sentences about commands say of the run.

    Args:
        waited_s: How long we have waited for the command ourselves, when we have.
        command: Else its own times tell, by the clock of whoever wrote them.
    """
    coordinator = view.coordinator
    pace_s = pace_of(view)
    calls = view.controls.get("calls_per_exchange")
    exchange_s = calls * pace_s if isinstance(calls, int) and pace_s is not None else None
    handler, handler_s = "", None
    if coordinator is not None:
        match = _IN_HANDLER.fullmatch(coordinator.phase)
        if match is not None and coordinator.state == "busy":
            handler, handler_s = match[1], coordinator.phase_s
    if waited_s is None and command is not None and command.is_pending:
        since = command.states[-1].at if command.states else command.issued_at
        waited_s = max(0.0, time.time() - since) if since else None
    cancelled_by = ""
    if command is not None and command.state == "cancelled":
        orders = (each for each in view.commands if each.name == CANCEL)
        cancelled_by = next(
            (each.issued_by for each in orders if each.payload.get("id") == command.id), ""
        )
    held, controls = is_held(view), view.controls
    off = controls.get("control") == "off"
    return Around(
        waited_s=waited_s,
        exchange_s=exchange_s,
        step=view.step,
        pace_s=None if held else pace_s,
        world_size=view.world_size,
        handler=handler,
        handler_s=handler_s,
        quiet=[
            Quiet(each.rank, each.state, each.age.seconds)
            for each in view.participants
            if each.state in ("late", "silent")
        ],
        held=held,
        paused=coordinator is not None and coordinator.phase == PAUSED,
        cancelled_by=cancelled_by,
        reverted_by=_reverted_by(command),
        not_effective=_not_effective(command),
        returned_by=_returned_by(view, command),
        control_off=str(controls.get("why") or "no reason reported") if off else "",
        leaderless=view.is_leaderless,
        run_over=_over_text(view),
        run_closed=view.state.is_closed,
    )


def _over_text(view: RunView) -> str:
    """Say why nothing is done here any more, "" when something may be."""
    if view.state.word == "copy":
        return f"this is {view.state.text}"
    return f"the run has ended ({view.state.text})" if view.state.is_over else ""


def _reverted_by(command: CommandView | None) -> str:
    """Say what took the effect of a command away later, "" when nothing did."""
    effect = (command.effect if command is not None else None) or {}
    if not effect.get("reverted"):
        return ""
    return f"{effect['reverted']}, step {effect.get('step')} of attempt {effect.get('attempt')}"


def _not_effective(command: CommandView | None) -> str:
    """Say why a command had no effect at the next step, "" when it had, or was undone later."""
    effect = (command.effect if command is not None else None) or {}
    return "" if effect.get("reverted") else str(effect.get("not_effective") or "")


def _returned_by(view: RunView, command: CommandView | None) -> str:
    """Return the command by which the run has brought this one back, "" while it is lost."""
    if command is None or not undone_by(command):
        return ""
    last = returns_of(view.commands, command)[-1]
    return "" if last is command or undone_by(last) else last.id


def is_held(view: RunView) -> bool:
    """Whether nobody knows when the next step ends: it is paused, or waits for a rank."""
    coordinator = view.coordinator
    if coordinator is not None and coordinator.phase == PAUSED:
        return True
    usual_s = max(_HELD_S, STUCK_PACES * (pace_of(view) or 0.0))
    return any(
        row.state in ("late", "silent")
        or (row.state == "ok" and is_waiting(row.phase) and (row.phase_s or 0.0) >= usual_s)
        for row in view.participants
    )


def pace_of(view: RunView) -> float | None:
    """Return seconds per step, the median over ranks that report it."""
    times = [each.step_time_ms for each in view.participants if each.step_time_ms]
    return median(times) / 1000 if times else None


def diverged_of(view: RunView) -> dict[str, dict[str, Any]]:
    """Return {control: {rank: value}} of values that differed between ranks when last compared."""
    found = view.controls.get("diverged")
    return {
        str(name): by_rank
        for name, by_rank in (found.items() if isinstance(found, dict) else ())
        if isinstance(by_rank, dict)
    }
