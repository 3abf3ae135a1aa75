"""Parts of a page that several verbs print: processes, controls, lines of the ledger."""

from __future__ import annotations

import math
import time
from typing import Any, Final

from launchhelm import _wording, views
from launchhelm._clock import SYSTEM_CLOCK
from launchhelm._wording import outcome_text
from launchhelm.cli.output import Output
from launchhelm.controls import fields
from launchhelm.views.around import around_of
from launchhelm.views.plan import values_of

NOTHING: Final = "-"
PROCESS_HEAD: Final = (
    *("RANK", "HOST", "LOCAL", "PID", "WORLD", "STATE", "STEP", "PHASE"),
    *("BEAT", "LAG", "STEP TIME", "WAIT"),
)
PROCESS_RIGHT: Final = ("RANK", "LOCAL", "PID", "WORLD", "STEP", "BEAT", "LAG", "STEP TIME", "WAIT")
RANK_TONES: Final = {"silent": "bad", "missing": "bad", "late": "unknown", "behind": "unknown"}
RUN_TONES: Final = {"running": "good", "failed": "bad", "unreadable": "bad", "no news": "unknown"}


def process_cells(process: views.ParticipantView) -> list[str]:
    """Return one process's row under `PROCESS_HEAD`."""
    mark = _wording.RANK_MARKS.get(process.state, "")
    phase = _wording.plain(process.phase)
    if phase and process.phase_s is not None:
        phase = f"{phase} {_wording.duration(process.phase_s)}"
    state = f"{mark} {process.state}".strip()
    if process.state == "ended" and process.end not in ("", "finished"):
        state = f"{state}: {_wording.plain(process.end)}"
    cells: list[Any] = [
        process.rank,
        _wording.plain(process.host),
        process.local_rank,
        process.pid,
        process.world_size,
        state,
        None if process.step is None else f"{process.step:,}",
        phase,
        None if process.state == "missing" else _wording.duration(process.age.seconds),
        process.lag,
        _milliseconds(process.step_time_ms),
        _milliseconds(process.exchange_wait_ms),
    ]
    return [NOTHING if cell is None or cell == "" else str(cell) for cell in cells]


def _milliseconds(value: float | None) -> str | None:
    if value is None:
        return None
    return f"{value:.3g} ms" if value < 1000 else f"{value / 1000:.3g} s"


def print_controls(view: views.RunView, output: Output) -> None:
    """Print every control with its value and what it takes."""
    values = values_of(view)
    rows = []
    for name, capability in view.capabilities.items():
        value = _wording.values_text(values[name]) if name in values else "-"
        first, *rest = map(_wording.plain, fields.field_texts(capability))
        rows += [[_wording.plain(name), value, first], *(["", "", each] for each in rest)]
    if rows:
        output.table(("CONTROL", "NOW", "TAKES"), rows)
    else:
        output.line("this run declares no controls")


def off_text(view: views.RunView) -> str:
    """Say that control is off and why, "" while it is on."""
    controls = view.controls
    if controls.get("control") != "off":
        return ""
    return f"control is off: {_wording.plain(str(controls.get('why') or 'no reason reported'))}"


def print_off(view: views.RunView, output: Output) -> bool:
    """Print that control is off, and why; return whether it is."""
    said = off_text(view)
    if said:
        output.line(output.paint(said, "bad"))
    return bool(said)


def print_freeze(view: views.RunView, output: Output) -> str:
    """Print since when no command acts, by whose order and why; return that, "" when they act."""
    held = views.freeze_of(view.commands)
    if held is None:
        return ""
    said = _wording.plain(held.text)
    ago = _wording.duration(max(0.0, SYSTEM_CLOCK.wall() - held.since))
    output.line(output.paint(f"{said} (since {_when_text(held.since)}, {ago} ago)", "bad"))
    return said


def _when_text(at: float | None) -> str:
    """Return the time of day, with the date where that is not today; "-" for none."""
    try:
        when = time.localtime(math.nan if at is None else at)
    except (ValueError, OverflowError, OSError):
        return NOTHING  # A sender may have written any number.
    is_today = when[:3] == time.localtime(SYSTEM_CLOCK.wall())[:3]
    return time.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M:%S", when)


def print_log(view: views.RunView, output: Output) -> None:
    """Print the whole ledger, each command after the time of its newest state."""
    commands = view.commands
    times = [each.states[-1].at if each.states else each.issued_at for each in commands]
    whens = [_when_text(at) for at in times]
    wide = max(map(len, whens), default=0)
    for when, command in zip(whens, commands, strict=True):
        output.line(f"{when:>{wide}}  {command_line(command, view, output)}")


def print_command(command: views.CommandView, view: views.RunView, output: Output) -> None:
    """Print one line of the ledger."""
    output.line(f"  {command_line(command, view, output)}")


def command_line(
    command: views.CommandView, view: views.RunView, output: Output | None = None
) -> str:
    """Return one line of the ledger, its outcome painted where there is an output for it."""
    sentence = outcome_text(command, around_of(view, command=command))
    payload = _wording.payload_text(command.payload)
    who = _wording.plain(command.issued_by or command.owner)
    parts = [
        sentence.mark,
        f"{_wording.plain(command.name)} {payload}".strip(),
        str(sentence) if output is None else output.sentence(sentence),
        f"by {who}" if who else "",
        f'"{_wording.plain(command.reason)}"' if command.reason else "",
        f"undoes {_wording.plain(command.reverts)}" if command.reverts else "",
        command.id,
    ]
    return "  ".join(part for part in parts if part)
