"""What a command would do to a run as it stands, and why none could do anything.

What every sender shows before it sends: the command line and the dashboard say the same.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from launchhelm import _wording
from launchhelm._clock import SYSTEM_CLOCK
from launchhelm._ids import new_run_id
from launchhelm.controls import preview
from launchhelm.records import Command
from launchhelm.store import inbox, layout
from launchhelm.views.around import around_of, diverged_of, is_held
from launchhelm.views.commands import frozen
from launchhelm.views.run import RunView
from launchhelm.views.state import PAUSED

VALID_S: Final = 3600.0
SCHEDULED_VALID_S: Final = 30 * 86400.0
"""A command for a step is bound by that step, however long the run takes to come there."""

_INBOX_POLL_S: Final = 0.5


@dataclass(frozen=True)
class Plan:
    """A command that has passed the check, and what is foreseen.

    Args:
        is_in_time: It is not past its last step then, as far as that is foreseen.
    """

    command: Command
    change: preview.Change | None
    when: preview.When
    warnings: tuple[str, ...]
    trouble: str
    is_in_time: bool = True

    def preview(self) -> list[str]:
        """Say what would change, when, where, and what may be wrong with it."""
        what = f"{self.command.name} {_wording.payload_text(self.command.payload)}".rstrip()
        if self.change is not None:
            what = str(self.change)
            if self.command.name == "lr" and self.change.old != self.change.new:
                what += "; if there is a schedule, it goes on from there"
        when = f"{self.when}." if self.is_in_time else ""
        where = " ".join(part for part in (when, self.trouble) if part)
        notes = [f"note: {warning}" for warning in self.warnings]
        return [what, *notes, *([where] if where else [])]


def refusal_of(run: RunView) -> str:
    """Say why no command can have an effect, "" when one may."""
    name = _wording.plain(run.name)
    if run.state.word == "copy":
        return f"{name} here is {run.state.text}; nobody takes commands from it, only from the run."
    if run.state.is_over:
        return f"{name} has ended ({run.state.text}); a command would have no effect."
    controls = run.controls
    if controls.get("control") == "off":
        why = _wording.plain(str(controls.get("why") or "no reason reported"))
        return f"Control is off in {name}: {why}."
    held = frozen(run.commands)
    if held:
        thaw = f"`launchhelm control {run.run_id} unfreeze` ends that"
        return f"In {name} {_wording.plain(held)}; {thaw}."
    if not run.capabilities:
        if run.state.word == "starting":
            return f"{name} has not said yet what may be changed; try again in a moment."
        return f"{name} declares no controls; `Trainer.watch` or `Trainer.tunable` declares some."
    return ""


def may_send(run_directory: Path) -> str:
    """Say why this user may not control a run, "" when it may, as far as files tell.

    The ranks look at the owner of each command again.
    """
    folder = run_directory / layout.CONTROL
    try:
        facts = os.stat(folder)
    except OSError as error:
        return f"{_wording.plain(str(folder))}: {error.strerror}"
    if os.access(folder, os.W_OK | os.X_OK):
        return ""
    return _wording.inbox_text(str(folder), inbox.user_name(facts.st_uid), facts.st_mode & 0o7777)


def command_for(
    name: str,
    payload: Mapping[str, Any],
    *,
    first_step: int | None = None,
    valid_s: float | None = None,
    **more: Any,
) -> Command:
    """Make a command of this user's, valid for an hour, or a month when it is for a step.

    Args:
        more: Other fields of a Command; `id` is made unless it is given.

    Raises:
        ValueError: The inbox would refuse it: text that is no UTF-8, fields that are nested too
            deep, or too many bytes.
    """
    if valid_s is None:
        valid_s = VALID_S if first_step is None else SCHEDULED_VALID_S
    known = {"id": new_run_id(), "issued_by": user_name(), "issued_at": SYSTEM_CLOCK.wall()}
    command = Command(
        name=name,
        payload=payload,
        first_step=first_step,
        valid_s=valid_s,
        **{**known, **more},
    )
    try:
        size = len(inbox.encode(command))
    except UnicodeEncodeError:
        raise ValueError("Reason and fields are text in UTF-8") from None
    if size > inbox.MAX_COMMAND_BYTES:
        allowed = inbox.MAX_COMMAND_BYTES
        raise ValueError(f"The command has {size:,} bytes; {allowed:,} are allowed")
    return command


def plan_of(run: RunView, command: Command) -> Plan:
    """Foresee what a command would do, when and where."""
    around = around_of(run)
    change = preview.change_of(command.name, command.payload, values_of(run))
    calls = run.controls.get("calls_per_exchange")
    is_paused = run.coordinator is not None and run.coordinator.phase == PAUSED
    first = command.first_step
    if is_paused and first is not None and run.step is not None and first <= run.step:
        first = None  # It acts at once, in the step of the pause.
    estimate = preview.when(
        step=None if is_held(run) else run.step,
        pace_s=around.pace_s,
        calls_per_exchange=calls if isinstance(calls, int) else None,
        poll_s=_INBOX_POLL_S,
        first_step=first,
        world_size=around.world_size,
    )
    states = {each.rank: each.state for each in run.participants}
    states |= dict.fromkeys(run.missing, "missing")
    warnings = [
        *preview.warnings_for(change, run.capabilities.get(command.name, {}), command.payload),
        *preview.step_warnings(command, run.step, estimate, is_paused=is_paused),
    ]
    apart = diverged_of(run).get(command.name)
    if apart:
        warnings.append(_wording.diverged_text(command.name, apart))
    if run.state.word == "no news":
        valid = _wording.duration(command.valid_s)
        warnings.append(f"{run.state.text}; the command may wait, and expire after {valid}")
    trouble = preview.trouble_text(states)
    is_late = preview.lateness(command, run.step, estimate, is_paused=is_paused) != ""
    return Plan(command, change, estimate, tuple(warnings), trouble, not is_late)


def values_of(view: RunView) -> Mapping[str, Any]:
    """Return the values that controls have now, as last reported."""
    values = view.controls.get("values")
    return values if isinstance(values, Mapping) else {}


def user_name() -> str:
    """Name the user for the ledger; who may control is decided by the owner of the file."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"
