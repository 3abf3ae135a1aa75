"""Parts of a page that several verbs print: controls with their values, lines of the ledger."""

from __future__ import annotations

import time

from launchhelm import _wording, views
from launchhelm._clock import SYSTEM_CLOCK
from launchhelm._wording import outcome_text
from launchhelm.cli.output import Output
from launchhelm.controls import fields
from launchhelm.views.around import around_of
from launchhelm.views.plan import values_of


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


def print_freeze(view: views.RunView, output: Output) -> str:
    """Print since when no command acts, by whose order and why; return that, "" when they act."""
    held = views.freeze_of(view.commands)
    if held is None:
        return ""
    said = _wording.plain(held.text)
    today = time.localtime()[:3]
    at = time.localtime(held.since)
    clock = time.strftime("%H:%M:%S" if at[:3] == today else "%Y-%m-%d %H:%M:%S", at)
    ago = _wording.duration(max(0.0, SYSTEM_CLOCK.wall() - held.since))
    output.line(output.paint(f"{said} (since {clock}, {ago} ago)", "bad"))
    return said


def print_command(command: views.CommandView, view: views.RunView, output: Output) -> None:
    """Print one line of the ledger."""
    sentence = outcome_text(command, around_of(view, command=command))
    payload = _wording.payload_text(command.payload)
    who = _wording.plain(command.issued_by or command.owner)
    parts = [
        f"  {sentence.mark}",
        f"{_wording.plain(command.name)} {payload}".strip(),
        output.sentence(sentence),
        f"by {who}" if who else "",
        f'"{_wording.plain(command.reason)}"' if command.reason else "",
        f"undoes {_wording.plain(command.reverts)}" if command.reverts else "",
        command.id,
    ]
    output.line("  ".join(part for part in parts if part))
