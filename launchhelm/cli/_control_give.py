"""One command from the words typed to the inbox: check, preview, ask, hand on."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from launchhelm import _wording, views
from launchhelm.cli import _fields, documents
from launchhelm.cli._control_send import confirmed, deliver, not_sent
from launchhelm.cli._exit import Exit, UsageError
from launchhelm.cli.output import Output
from launchhelm.controls import fields, preview
from launchhelm.records import Command
from launchhelm.views import plan
from launchhelm.views.plan import Plan, plan_of, refusal_of, values_of

SEND: Final = "send"
"""The word before the name of a control that is called like another word."""


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
        said = _wording.json_text(name)
        raise UsageError(f"This run has no control {said}.", remedy=f"It has {known}.")
    values = values_of(run)
    payload = _fields.payload_of(words, capability)
    problem = preview.problem_with(capability, payload, values)
    if problem:
        raise UsageError(f"{problem}.", remedy=f"It takes {fields.fields_text(capability)}.")
    if arguments.last_step is not None and arguments.last_step < (arguments.at_step or 0):
        raise UsageError("--last-step is before --at-step.")
    expected, changed = _fields.expectation(arguments.expect, values)
    if changed:
        return not_sent(f"Changed meanwhile: {'; '.join(changed)}.", output)
    command = command_of(name, payload, arguments, expected=expected)
    return send([plan_of(run, command)], run, arguments, output)


def refuse_send(known: Iterable[str]) -> None:
    """Say that the name of a control is missing after `send`.

    Raises:
        UsageError: Always.
    """
    raise UsageError(
        "control RUN send takes the name of a control, then its fields.",
        remedy=f"This run has {_wording.listed(known)}.",
    )


def send(
    plans: Sequence[Plan], run: views.RunView, arguments: argparse.Namespace, output: Output
) -> int:
    """Show what commands would do, ask, and send them one after the other until one fails."""
    for planned in plans:
        if arguments.check and output.json:
            output.document(
                documents.check_document(
                    planned.command, planned.change, planned.when, planned.warnings
                )
            )
            continue
        for line in planned.preview():
            (output.line if arguments.check else output.say)(line)
    if arguments.check:
        output.say("Checked only, nothing was sent.")
        return Exit.DONE
    if not is_wanted(arguments, output):
        return Exit.NOTHING_CHANGED
    for planned in plans:
        code = deliver(run, planned.command, arguments, output)
        if code != Exit.DONE:
            return code
    return Exit.DONE


def is_wanted(arguments: argparse.Namespace, output: Output) -> bool:
    """Ask the person, if one sits at a terminal."""
    if not sys.stdin.isatty() or arguments.yes or confirmed(output):
        return True
    output.say("Not sent, nothing changed.")
    return False


def command_of(
    name: str, payload: Mapping[str, Any], arguments: argparse.Namespace, **more: Any
) -> Command:
    """Make a command of what was typed.

    Args:
        more: Fields that something else says.

    Raises:
        UsageError: The inbox would refuse it: text that is no UTF-8, fields that are nested too
            deep, or too many bytes.
    """
    said = {
        "reason": arguments.reason,
        "first_step": arguments.at_step,
        "last_step": arguments.last_step,
        "valid_s": arguments.valid_for,
    }
    try:
        return plan.command_for(name, payload, **{**said, **more})
    except ValueError as error:
        raise UsageError(f"{error}.", remedy="Shorten the fields or --reason.") from None
