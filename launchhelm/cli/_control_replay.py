"""Give the commands of another run's ledger to this one, at the same steps."""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from launchhelm import _wording, views
from launchhelm.cli import selection
from launchhelm.cli._control_give import command_of, is_wanted
from launchhelm.cli._control_send import not_sent, say_written, wait
from launchhelm.cli._exit import Exit, UsageError
from launchhelm.cli.output import Output
from launchhelm.controls import preview
from launchhelm.records import ORDERS, Command
from launchhelm.store import inbox
from launchhelm.views.plan import refusal_of, values_of

OPTIONS: Final = (
    ("offset", int, ("N", "act so many steps later, or earlier when negative")),
    ("scale-steps", float, ("X", "multiply every step, before --offset")),
    ("only", str, ("A,B", "only these controls")),
    ("except", str, ("A,B", "not these controls")),
)

Json = dict[str, Any]


@dataclass(frozen=True)
class _Entry:
    """One command of the other ledger, and what becomes of it here.

    Args:
        source: `<run>/<id>`, or the id alone where a file does not tell the run.
        step: At which it is to act here, None when that is not known.
        why: It is left out, "" when it is not.
    """

    source: str
    name: str
    payload: Json
    reason: str
    step: int | None
    why: str


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
    plan = sorted(_plan(run, other, arguments), key=lambda each: each.step or 0)
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


def _plan(run: views.RunView, other: str, arguments: argparse.Namespace) -> Iterator[_Entry]:
    only, but = (set(filter(None, (each or "").split(","))) for each in _names(arguments))
    scale = 1.0 if arguments.scale_steps is None else arguments.scale_steps
    ledger = list(_ledger(other, arguments))
    known = dict.fromkeys(str(said["name"]) for _, said in ledger if said["name"] not in ORDERS)
    for option, names in (("only", only), ("except", but)):
        unknown = names - known.keys() - run.capabilities.keys()
        if unknown:
            raise UsageError(
                f"--{option}: there is no command of {_wording.listed(sorted(unknown))} to replay.",
                remedy=f"There are commands of {_wording.listed(known)}.",
            )
    done = {
        _id_of(each.replays) for each in run.commands if each.is_pending or each.state == "applied"
    }
    for source, said in ledger:
        name = str(said["name"])
        if name in ORDERS or (only and name not in only) or name in but:
            continue
        step = _step_of(said)
        planned = None if step is None else round(step * scale) + (arguments.offset or 0)
        payload = dict(said["payload"])
        why = _objection(run, name, payload, planned, said["state"])
        if not why and _id_of(source) in done:
            why = "it was replayed already"
        yield _Entry(source, name, payload, str(said.get("reason") or ""), planned, why)


def _names(arguments: argparse.Namespace) -> tuple[str | None, str | None]:
    return arguments.only, getattr(arguments, "except")


def _objection(run: views.RunView, name: str, payload: Json, step: int | None, state: str) -> str:
    """Say why a command is left out, "" when it is not."""
    if state != "applied":
        return f"it was {state}" if state != "outcome_unknown" else "its outcome is unknown"
    if step is None:
        return "it was applied at no step"
    capability = run.capabilities.get(name)
    if capability is None:
        return "this run has no such control"
    if run.step is not None and step <= run.step:
        return f"this run is at step {run.step:,}"
    return preview.problem_with(capability, payload, values_of(run))


def _ledger(other: str, arguments: argparse.Namespace) -> Iterator[tuple[str, Json]]:
    """Return the commands of a run, or of a file of `control RUN log --json`, with their source.

    Raises:
        UsageError: The file is none of these.
    """
    if not os.path.isfile(other):
        view = selection.select(arguments, other)
        for command in view.commands:
            at = command.outcome.applied_at if command.outcome is not None else {}
            facts = {"name": command.name, "payload": command.payload, "reason": command.reason}
            yield f"{view.run_id}/{command.id}", {**facts, "state": command.state, "applied_at": at}
        return
    for number, line in enumerate(Path(other).read_text("utf-8").splitlines(), 1):
        try:
            said = json.loads(line)
            said = {**said, "payload": dict(said["payload"]), "state": str(said["state"])}
            yield str(said["id"]), said
        except (ValueError, TypeError, KeyError):
            raise UsageError(
                f"{_wording.plain(other)}: line {number} is no command.",
                remedy="Make the file with: launchhelm control OTHER log --json",
            ) from None


def _id_of(source: str) -> str:
    return source.rpartition("/")[2]


def _step_of(said: Json) -> int | None:
    at = said.get("applied_at")
    step = at.get("step") if isinstance(at, dict) else None
    try:
        return None if step is None else int(step)
    except ValueError:
        return None


def _print(plan: list[_Entry], output: Output, *, checked: bool) -> None:
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
            step = _step_of({"applied_at": view.outcome.applied_at})
            late.append((step or 0) - (command.first_step or 0))
    said = f"{len(late)} of {len(commands)} applied, {late.count(0)} at the planned step"
    return said + (f", the others up to {max(late):,} steps later" if any(late) else "")
