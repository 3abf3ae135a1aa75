"""One command from the words typed to the inbox: check, preview, ask, hand on."""

from __future__ import annotations

import argparse
import os
import pwd
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from launchhelm import _wording, views
from launchhelm._clock import SYSTEM_CLOCK
from launchhelm._ids import new_run_id
from launchhelm.cli import _control_check as check
from launchhelm.cli import _fields, documents
from launchhelm.cli._around import around_of
from launchhelm.cli._control_send import confirmed, deliver, not_sent
from launchhelm.cli._exit import Exit, UsageError
from launchhelm.cli._sections import values_of
from launchhelm.cli.output import Output
from launchhelm.records import Command
from launchhelm.store import inbox

_INBOX_POLL_S: Final = 0.5
_VALID_S: Final = 3600.0
_SCHEDULED_VALID_S: Final = 30 * 86400.0
"""A command for a step is bound by that step, however long the run takes to come there."""


@dataclass(frozen=True)
class Plan:
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
                what += "; if there is a schedule, it goes on from there"
        where = " ".join(part for part in (f"{self.when}.", self.trouble) if part)
        return [what, *(f"note: {warning}" for warning in self.warnings), where]


def give(
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
    command = command_of(name, payload, arguments, expected=expected)
    return send([plan_of(run, command)], run, arguments, output)


def send(
    plans: Sequence[Plan], run: views.RunView, arguments: argparse.Namespace, output: Output
) -> int:
    """Show what commands would do, ask, and send them one after the other until one fails."""
    for plan in plans:
        if arguments.check and output.json:
            output.document(
                documents.check_document(plan.command, plan.change, plan.when, plan.warnings)
            )
            continue
        for line in plan.preview():
            (output.line if arguments.check else output.say)(line)
    if arguments.check:
        output.say("Checked only, nothing was sent.")
        return Exit.DONE
    if not is_wanted(arguments, output):
        return Exit.NOTHING_CHANGED
    for plan in plans:
        code = deliver(run, plan.command, arguments, output)
        if code != Exit.DONE:
            return code
    return Exit.DONE


def is_wanted(arguments: argparse.Namespace, output: Output) -> bool:
    """Ask the person, if one sits at a terminal."""
    if not sys.stdin.isatty() or arguments.yes or confirmed(output):
        return True
    output.say("Not sent, nothing changed.")
    return False


def refusal_of(run: views.RunView) -> str:
    """Say why no command can have an effect, "" when one may."""
    name = _wording.plain(run.name)
    if run.state.is_over:
        return f"{name} has ended ({run.state.text}); a command would have no effect."
    controls = run.controls
    if controls.get("control") == "off":
        why = _wording.plain(str(controls.get("why") or "no reason reported"))
        return f"Control is off in {name}: {why}."
    frozen = views.frozen(run.commands)
    if frozen:
        return f"In {name} {_wording.plain(frozen)}; `control RUN unfreeze` ends that."
    if not run.capabilities:
        if run.state.word == "starting":
            return f"{name} has not said yet what may be changed; try again in a moment."
        return f"{name} declares no controls; `Trainer.watch` or `Trainer.tunable` declares some."
    return ""


def command_of(
    name: str, payload: Mapping[str, Any], arguments: argparse.Namespace, **more: Any
) -> Command:
    """Make a command of what was typed.

    Args:
        more: Fields that something else says.

    Raises:
        UsageError: The inbox would refuse it: text that is no UTF-8, or too many bytes.
    """
    valid_s = arguments.valid_for
    if valid_s is None:
        is_scheduled = more.get("first_step", arguments.at_step) is not None
        valid_s = _SCHEDULED_VALID_S if is_scheduled else _VALID_S
    said = {
        "reason": arguments.reason,
        "first_step": arguments.at_step,
        "last_step": arguments.last_step,
        "valid_s": valid_s,
    }
    command = Command(
        id=new_run_id(),
        name=name,
        payload=payload,
        issued_by=_user(),
        issued_at=SYSTEM_CLOCK.wall(),
        **{**said, **more},
    )
    try:
        size = len(inbox.encode(command))
    except UnicodeEncodeError:
        raise UsageError("--reason and fields are text in UTF-8.") from None
    if size > inbox.MAX_COMMAND_BYTES:
        raise UsageError(
            f"The command has {size:,} bytes; {inbox.MAX_COMMAND_BYTES:,} are allowed.",
            remedy="Shorten --reason or the fields.",
        )
    return command


def plan_of(run: views.RunView, command: Command) -> Plan:
    """Foresee what a command would do, when and where."""
    around = around_of(run)
    change = check.change_of(command.name, command.payload, values_of(run))
    calls = run.controls.get("calls_per_exchange")
    is_paused = run.coordinator is not None and run.coordinator.phase == views.PAUSED
    estimate = check.when(
        step=None if is_paused else run.step,
        pace_s=around.pace_s,
        calls_per_exchange=calls if isinstance(calls, int) else None,
        poll_s=_INBOX_POLL_S,
        first_step=command.first_step,
        world_size=around.world_size,
    )
    states = {each.rank: each.state for each in run.participants}
    states |= dict.fromkeys(run.missing, "missing")
    warnings = [
        *check.warnings_for(change, run.capabilities.get(command.name, {}), command.payload),
        *check.step_warnings(command, run.step, estimate),
    ]
    if run.state.word == "no news":
        valid = _wording.duration(command.valid_s)
        warnings.append(f"{run.state.text}; the command may wait, and expire after {valid}")
    return Plan(command, change, estimate, tuple(warnings), check.trouble_text(states))


def _user() -> str:
    """Name the user for the ledger; who may control is decided by the owner of the file."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"
