"""Undo a command by another one: the values before it, if nothing has changed them since."""

from __future__ import annotations

import argparse

from launchhelm import views
from launchhelm.cli._control_give import command_of, send
from launchhelm.cli._control_orders import find
from launchhelm.cli._control_send import not_sent
from launchhelm.cli._exit import Exit
from launchhelm.cli._fields import expectation
from launchhelm.cli.output import Output
from launchhelm.controls import preview
from launchhelm.views.plan import plan_of, refusal_of, values_of
from launchhelm.views.revert import CannotUndo, undoing


def revert(run: views.RunView, id_: str, arguments: argparse.Namespace, output: Output) -> int:
    """Send the command that undoes another one."""
    refusal = refusal_of(run)
    if refusal:
        return not_sent(refusal, output)
    command = find(run, id_)
    try:
        step = undoing(run, command)
    except CannotUndo as why:
        return not_sent(f"{command.name} cannot be undone: {why}.", output)
    if step is None:
        output.line(f"{command.name} is as it was before already.")
        return Exit.DONE
    payload, seen = step
    values = values_of(run)
    problem = preview.problem_with(run.capabilities[command.name], payload, values)
    if problem:
        return not_sent(f"{problem}.", output)
    expected, changed = expectation(arguments.expect, values)
    if changed:
        return not_sent(f"Changed meanwhile: {'; '.join(changed)}.", output)
    made = command_of(
        command.name, payload, arguments, expected={**expected, **seen}, reverts=command.id
    )
    output.say("Weights and the state of the optimizer stay as they are.")
    return send([plan_of(run, made)], run, arguments, output)
