"""One command from the words typed to its outcome: check, preview, ask, send, wait."""

from __future__ import annotations

import argparse
import os
import pwd
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from launchhelm import _wording, views
from launchhelm._clock import SYSTEM_CLOCK
from launchhelm._ids import new_run_id
from launchhelm._wording import outcome_text
from launchhelm.cli import _control_check as check
from launchhelm.cli import _fields, documents
from launchhelm.cli._around import around_of
from launchhelm.cli._exit import Exit, UsageError
from launchhelm.cli._sections import values_of
from launchhelm.cli.output import Output
from launchhelm.records import Command
from launchhelm.store import inbox

_POLL_S: Final = 0.05
_SLOWEST_POLL_S: Final = 2.0
_POLL_SHARE: Final = 4.0
"""Between two looks at least this many times the cost of one, so that watching stays cheap."""

WORD_EVERY_S: Final = 10.0
_AFTER_END_S: Final = 5.0
"""How long an outcome may still arrive after the run has ended."""

_INBOX_POLL_S: Final = 0.5
_UNITS: Final = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}

EXITS: Final = {
    "applied": Exit.DONE,
    "rejected": Exit.NOTHING_CHANGED,
    "expired": Exit.NOTHING_CHANGED,
    "cancelled": Exit.NOTHING_CHANGED,
    "outcome_unknown": Exit.UNKNOWN,
}
"""Exit code by final state; any other word means that nobody knows."""


def seconds_of(text: str) -> float:
    """Read `90`, `30s`, `15m` or `2h` for argparse."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|min|h|d|)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration such as 90, 30s, 15m or 2h")
    return float(match[1]) * _UNITS[match[2]]


@dataclass(frozen=True)
class _Plan:
    """A command that has passed the check, and what is foreseen."""

    command: Command
    change: check.Change | None
    when: check.When
    warnings: tuple[str, ...]
    trouble: str

    def preview(self) -> list[str]:
        """Say what would change, when, where, and what may be wrong with it."""
        what = f"{self.command.name} {_wording.payload_text(self.command.payload)}".rstrip()
        if self.change is not None:
            what = str(self.change)
            if self.command.name == "lr":
                what += "; a schedule goes on from there"
        where = " ".join(part for part in (f"{self.when}.", self.trouble) if part)
        return [what, *(f"note: {warning}" for warning in self.warnings), where]


def send(
    run: views.RunView, name: str, words: list[str], arguments: argparse.Namespace, output: Output
) -> int:
    """Carry one command through; every way out says what happened to it.

    Raises:
        UsageError: The command does not fit what the run published; nothing was written.
    """
    refusal = refusal_of(run)
    if refusal:
        return not_sent(refusal, output)
    capability = run.capabilities.get(name)
    if capability is None:
        known = _wording.listed(run.capabilities)
        raise UsageError(f"This run has no control {name!r}.", remedy=f"It has {known}.")
    values = values_of(run)
    payload = _fields.payload_of(words, capability)
    problem = check.problem_with(capability, payload, values)
    if problem:
        raise UsageError(f"{problem}.", remedy=f"{name} takes {_fields.fields_text(capability)}.")
    if arguments.last_step is not None and arguments.last_step < (arguments.at_step or 0):
        raise UsageError("--last-step is before --at-step.")
    expected, changed = check.expectation(arguments.expect, values)
    if changed:
        return not_sent(f"Changed meanwhile: {'; '.join(changed)}.", output)
    plan = _plan(run, capability, payload, expected, arguments)
    _require_room(plan.command)
    if arguments.check:
        return _say_check(plan, output)
    for line in plan.preview():
        output.say(line)
    if sys.stdin.isatty() and not arguments.yes and not confirmed(output):
        output.say("Not sent, nothing changed.")
        return Exit.NOTHING_CHANGED
    return _send_and_wait(run, plan.command, arguments, output)


def _require_room(command: Command) -> None:
    """Refuse what the inbox would: text that is not UTF-8, and more bytes than it takes.

    Raises:
        UsageError: The command cannot be written.
    """
    try:
        size = len(inbox.encode(command))
    except UnicodeEncodeError:
        raise UsageError("--reason and fields are text in UTF-8.") from None
    if size > inbox.MAX_COMMAND_BYTES:
        raise UsageError(
            f"The command has {size:,} bytes; {inbox.MAX_COMMAND_BYTES:,} are allowed.",
            remedy="Shorten --reason or the fields.",
        )


def refusal_of(run: views.RunView) -> str:
    """Say why no command can have an effect, "" when one may."""
    name = _wording.plain(run.name)
    if run.state.is_over:
        return f"{name} has ended ({run.state.text}); a command would have no effect."
    controls = run.controls
    if controls.get("control") == "off":
        why = _wording.plain(str(controls.get("why") or "no reason reported"))
        return f"Control is off in {name}: {why}."
    if not run.capabilities:
        if run.state.word == "starting":
            return f"{name} has not said yet what may be changed; try again in a moment."
        return f"{name} declares no controls; `Trainer.watch` or `Trainer.tunable` declares some."
    return ""


def not_sent(sentence: str, output: Output) -> int:
    """Say why no command was sent."""
    output.say(sentence)
    output.say("Nothing was sent, nothing changed.")
    if output.json:
        output.document({"sent": False, "state": "not_sent", "text": sentence})
    return Exit.NOTHING_CHANGED


def _plan(
    run: views.RunView,
    capability: _fields.Capability,
    payload: dict[str, Any],
    expected: Mapping[str, Any],
    arguments: argparse.Namespace,
) -> _Plan:
    name = str(capability["name"])
    around = around_of(run)
    change = check.change_of(name, payload, values_of(run))
    calls = run.controls.get("calls_per_exchange")
    estimate = check.when(
        step=run.step,
        pace_s=around.pace_s,
        calls_per_exchange=calls if isinstance(calls, int) else None,
        poll_s=_INBOX_POLL_S,
        first_step=arguments.at_step,
        world_size=around.world_size,
    )
    states = {each.rank: each.state for each in run.participants}
    states |= dict.fromkeys(run.missing, "missing")
    warnings = check.warnings_for(change, capability)
    if run.state.word == "no news":
        warnings.append(f"{run.state.text}; the command may wait, and expire after 1 h")
    command = Command(
        id=new_run_id(),
        name=name,
        payload=payload,
        issued_by=_user(),
        issued_at=SYSTEM_CLOCK.wall(),
        reason=arguments.reason,
        first_step=arguments.at_step,
        last_step=arguments.last_step,
        expected=expected,
    )
    return _Plan(command, change, estimate, tuple(warnings), check.trouble_text(states))


def _say_check(plan: _Plan, output: Output) -> int:
    if output.json:
        output.document(
            documents.check_document(plan.command, plan.change, plan.when, plan.warnings)
        )
        return Exit.DONE
    for line in plan.preview():
        output.line(line)
    output.say("Checked only, nothing was sent.")
    return Exit.DONE


def confirmed(output: Output, what: str = "Send") -> bool:
    """Ask the person at the terminal."""
    output.stderr.write(f"{what}? [y/N] ")
    output.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _send_and_wait(
    run: views.RunView, command: Command, arguments: argparse.Namespace, output: Output
) -> int:
    try:
        inbox.send(run.directory, command)
        output.say(f"written {clock_text()}")
        if not arguments.no_wait:
            return _wait(run, command, arguments.timeout, output)
    except KeyboardInterrupt:
        output.say(
            f"\nInterrupted. Command {command.id} stays where it is and may still be applied; "
            f"see: launchhelm control {run.run_id} log"
        )
        return Exit.INTERRUPTED
    if output.json:
        output.document({"sent": True, "id": command.id, "state": "written"})
    else:
        output.line(command.id)
    return Exit.DONE


def _wait(run: views.RunView, command: Command, timeout_s: float | None, output: Output) -> int:
    began = time.monotonic()
    said_at = began
    ended_at: float | None = None
    picked_up = False
    while True:
        now = time.monotonic()
        run.refresh()
        cost_s = time.monotonic() - now
        view = run.command(command.id)
        if view is not None and view.outcome is not None:
            if not picked_up:
                picked_up = True
                said_at = now
                at = f" at step {run.step:,}" if run.step is not None else ""
                output.say(f"picked up {clock_text()}{at}")
            if view.outcome.is_final:
                return _conclude(view, run, output)
        if run.state.is_over:
            ended_at = ended_at if ended_at is not None else now
        waited_s = now - began
        over = ended_at is not None and now - ended_at > _AFTER_END_S
        if over or (timeout_s is not None and waited_s >= timeout_s):
            return _still_waiting(view, command, run, waited_s, output)
        if now - said_at >= WORD_EVERY_S:
            said_at = now
            output.say(str(outcome_text(_Sent.of(view, command), around_of(run, waited_s))))
        pause_s = min(_SLOWEST_POLL_S, max(_POLL_S, _POLL_SHARE * cost_s))
        if timeout_s is not None:
            pause_s = max(0.0, min(pause_s, began + timeout_s - time.monotonic()))
        time.sleep(pause_s)


@dataclass(frozen=True)
class _Sent:
    """A command of ours that no listing shows yet."""

    first_step: int | None
    outcome: None = None

    @classmethod
    def of(cls, view: views.CommandView | None, command: Command) -> _wording.CommandLike:
        """Prefer what the run directory shows."""
        return view if view is not None else cls(command.first_step)


def _conclude(view: views.CommandView, run: views.RunView, output: Output) -> int:
    around = around_of(run)
    if output.json:
        output.document({"sent": True, **documents.command_document(view, around)})
    else:
        output.line(output.sentence(outcome_text(view, around)))
    state = view.outcome.state if view.outcome is not None else ""
    return EXITS.get(state, Exit.UNKNOWN)


def _still_waiting(
    view: views.CommandView | None,
    command: Command,
    run: views.RunView,
    waited_s: float,
    output: Output,
) -> int:
    around = around_of(run, waited_s)
    sentence = outcome_text(_Sent.of(view, command), around)
    if output.json:
        document = {"id": command.id, "name": command.name, "state": "written"}
        if view is not None:
            document = documents.command_document(view, around)
        output.document({"sent": True, **document, "text": str(sentence)})
    else:
        output.line(output.sentence(sentence))
    output.say(f"Command {command.id} stays in the inbox; see: launchhelm control {run.run_id} log")
    return Exit.STILL_WAITING


def clock_text() -> str:
    """Return the time of day as it is shown beside what happens."""
    return time.strftime("%H:%M:%S")


def _user() -> str:
    """Name the user for the ledger; who may control is decided by the owner of the file."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"
