"""Undo a command by another one: the values before it, if nothing has changed them since."""

from __future__ import annotations

import argparse

from launchhelm import views
from launchhelm.cli._control_give import command_of, send
from launchhelm.cli._control_orders import find
from launchhelm.cli._control_send import not_sent
from launchhelm.cli._exit import Exit, UsageError
from launchhelm.cli.output import Output
from launchhelm.controls import preview
from launchhelm.views.plan import plan_of, refusal_of, values_of
from launchhelm.views.revert import CannotUndo, undoing


def revert(run: views.RunView, id_: str, arguments: argparse.Namespace, output: Output) -> int:
    """Send the command that undoes another one, or the several that it takes."""
    if arguments.expect:
        raise UsageError("revert says itself what it expects; leave out --expect.")
    refusal = refusal_of(run)
    if refusal:
        return not_sent(refusal, output)
    command = find(run, id_)
    try:
        steps = undoing(run, command)
    except CannotUndo as why:
        return not_sent(f"{command.name} cannot be undone: {why}.", output)
    if not steps:
        output.line(f"{command.name} is as it was before already.")
        return Exit.DONE
    plans = []
    for payload, expected in steps:
        problem = preview.problem_with(run.capabilities[command.name], payload, values_of(run))
        if problem:
            return not_sent(f"{problem}.", output)
        made = command_of(command.name, payload, arguments, expected=expected, reverts=command.id)
        plans.append(plan_of(run, made))
    output.say("Weights and the state of the optimizer stay as they are.")
    return send(plans, run, arguments, output)
