"""Give the commands of another run's ledger to this one, at the same steps."""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path
from typing import Final

from launchhelm import _wording, views
from launchhelm.cli import selection
from launchhelm.cli._control_give import command_of, is_wanted
from launchhelm.cli._control_send import not_sent, say_written, wait
from launchhelm.cli._exit import Exit, UsageError
from launchhelm.cli.output import Output
from launchhelm.records import Command
from launchhelm.store import inbox
from launchhelm.views.lineage import step_of
from launchhelm.views.plan import refusal_of
from launchhelm.views.replay import (
    Choice,
    Entry,
    NotALedger,
    Told,
    UnknownControls,
    replay_of,
    told_by,
    told_in,
)

OPTIONS: Final = (
    ("offset", int, ("N", "act so many steps later, or earlier when negative")),
    ("scale-steps", float, ("X", "multiply every step, before --offset")),
    ("only", str, ("A,B", "only these controls")),
    ("except", str, ("A,B", "not these controls")),
)


def refuse_options(arguments: argparse.Namespace) -> None:
    """Refuse what only replay takes.

    Raises:
        UsageError: Such an option was given.
    """
    for name, _, _ in OPTIONS:
        if getattr(arguments, name.replace("-", "_")) is not None:
            raise UsageError(f"--{name} goes with replay.")


def replay(run: views.RunView, other: str, arguments: argparse.Namespace, output: Output) -> int:
    """Print the plan, ask, send it, and say how much of it was applied, and where."""
    for option in ("at_step", "last_step", "expect"):
        if getattr(arguments, option):
            raise UsageError(f"replay takes no --{option.replace('_', '-')}; see --offset.")
    if arguments.scale_steps is not None and not 0 < arguments.scale_steps < math.inf:
        raise UsageError(
            f"--scale-steps takes a number above 0, got {arguments.scale_steps:g}.",
            remedy="Write 2 where this run makes two steps for one of the other.",
        )
    refusal = refusal_of(run)
    if refusal:
        return not_sent(refusal, output)
    plan = _plan(run, other, arguments)
    _print(plan, output, checked=arguments.check)
    wanted = [each for each in plan if not each.why]
    if not wanted:
        return not_sent("There is no command to replay.", output)
    if arguments.check:
        output.say("Checked only, nothing was sent.")
        return Exit.DONE
    commands = [
        command_of(
            each.name,
            each.payload,
            arguments,
            first_step=each.step,
            reason=arguments.reason or each.reason,
            replays=each.source,
        )
        for each in wanted
    ]
    if not is_wanted(arguments, output):
        return Exit.NOTHING_CHANGED
    try:
        for command in commands:
            inbox.send(run.directory, command)
        output.say(f"{len(commands)} written")
        if arguments.no_wait:
            for command in commands:
                say_written(command, output)
            return Exit.DONE
        codes = [_follow(run, command, arguments, output) for command in commands]
    except KeyboardInterrupt:
        output.say(
            "\nInterrupted. What was written stays and acts at its step; see: "
            f"launchhelm control {run.run_id} log"
        )
        return Exit.INTERRUPTED
    output.say(_summary(run, commands))
    worst = (Exit.UNKNOWN, Exit.STILL_WAITING, Exit.NOTHING_CHANGED)
    return next((code for code in worst if code in codes), Exit.DONE)


def _follow(
    run: views.RunView, command: Command, arguments: argparse.Namespace, output: Output
) -> int:
    payload = _wording.payload_text(command.payload)
    output.say(f"{command.name} {payload} at step {command.first_step:,}")
    return wait(run, command, arguments.timeout, output)


def _plan(run: views.RunView, other: str, arguments: argparse.Namespace) -> list[Entry]:
    only, but = (
        frozenset(filter(None, (getattr(arguments, name) or "").split(",")))
        for name in ("only", "except")
    )
    scale = 1.0 if arguments.scale_steps is None else arguments.scale_steps
    ledger = _ledger(other, arguments)
    try:
        return replay_of(run, ledger, Choice(arguments.offset or 0, scale, only, but))
    except UnknownControls as error:
        raise UsageError(f"--{error.option}: {error}.", remedy=error.known) from None


def _ledger(other: str, arguments: argparse.Namespace) -> list[Told]:
    """Return the commands of a run, or of a file.

    Raises:
        UsageError: The file is no ledger.
    """
    if not os.path.isfile(other):
        return told_by(selection.select(arguments, other))
    try:
        # A byte that is no text makes its line no command.
        return told_in(Path(other).read_text("utf-8", "surrogateescape"))
    except NotALedger as error:
        raise UsageError(
            f"{_wording.plain(other)}: {error}.",
            remedy="Make the file with: launchhelm control OTHER log --json",
        ) from None


def _print(plan: list[Entry], output: Output, *, checked: bool) -> None:
    if output.json:
        for each in plan if checked else ():
            state = "left_out" if each.why else "checked"
            output.document(
                {
                    "sent": False,
                    "state": state,
                    "name": each.name,
                    "payload": each.payload,
                    "step": each.step,
                    "replays": each.source,
                    "text": each.why,
                }
            )
        return
    rows = [
        [
            _wording.step_text(each.step),
            _wording.plain(each.name),
            _wording.payload_text(each.payload),
            _wording.plain(f"left out: {each.why}" if each.why else ""),
        ]
        for each in plan
    ]
    if rows:
        output.table(("STEP", "CONTROL", "INPUT", ""), rows)


def _summary(run: views.RunView, commands: list[Command]) -> str:
    late = []
    for command in commands:
        view = run.command(command.id)
        if view is not None and view.outcome is not None and view.outcome.state == "applied":
            step = step_of(view.outcome.applied_at)
            late.append((step or 0) - (command.first_step or 0))
    said = f"{len(late)} of {len(commands)} applied, {late.count(0)} at the planned step"
    return said + (f", the others up to {max(late):,} steps later" if any(late) else "")
