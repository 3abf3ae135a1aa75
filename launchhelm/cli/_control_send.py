"""A command that may be sent: ask, send it, wait for its outcome, say what became of it."""

from __future__ import annotations

import argparse
import re
import sys
import time
from dataclasses import dataclass, replace
from typing import Any, Final

from launchhelm import _wording, views
from launchhelm._ids import new_run_id
from launchhelm._wording import outcome_text
from launchhelm.cli import documents
from launchhelm.cli._exit import Exit
from launchhelm.cli.output import Output
from launchhelm.records import CANCEL, ORDERS, Command
from launchhelm.store import inbox
from launchhelm.views.around import around_of

_POLL_S: Final = 0.05
_SLOWEST_POLL_S: Final = 2.0
_POLL_SHARE: Final = 4.0
"""Between two looks at least this many times the cost of one, so that watching stays cheap."""

WORD_EVERY_S: Final = 10.0
AGAIN_S: Final = 2.0
_TAKE_BACK_S: Final = 10.0
_AFTER_END_S: Final = 5.0
"""How long an outcome may still arrive after the run has ended."""

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
        said = _wording.json_text(text)
        raise argparse.ArgumentTypeError(f"{said} is no duration such as 90, 30s, 15m or 2h")
    return float(match[1]) * _UNITS[match[2]]


def not_sent(sentence: str, output: Output) -> int:
    """Say why no command was sent."""
    output.say(sentence)
    output.say("Nothing was sent, nothing changed.")
    if output.json:
        output.document({"sent": False, "state": "not_sent", "text": sentence})
    return Exit.NOTHING_CHANGED


def confirmed(output: Output, what: str = "Send") -> bool:
    """Ask the person at the terminal.

    Raises:
        KeyboardInterrupt: That is the answer; it was said that nothing was sent.
    """
    try:
        output.stderr.write(f"{what}? [y/N] ")
        output.stderr.flush()
        return sys.stdin.readline().strip().lower() in ("y", "yes")
    except KeyboardInterrupt:
        output.say("\nInterrupted. Nothing was sent, nothing changed.")
        raise


def deliver(
    run: views.RunView,
    command: Command,
    arguments: argparse.Namespace,
    output: Output,
    about: str = "",
) -> int:
    """Send a command, and wait for its outcome unless that is not wanted.

    Args:
        about: The command that an order is about, which is shown then in the order's place.
    """
    try:
        inbox.send(run.directory, command)
        output.say(f"written {clock_text()}")
        if not arguments.no_wait:
            return wait(run, command, arguments.timeout, output, about)
    except KeyboardInterrupt:
        _leave(run, command, output)
        return Exit.INTERRUPTED
    say_written(command, output)
    return Exit.DONE


def _leave(run: views.RunView, command: Command, output: Output) -> None:
    """Say where a command stands whose giver does not wait for it, or take it back."""
    is_order = command.name in ORDERS
    if is_interrupted_again(output, may_take_back=not is_order):
        _take_back(run, command, output)
        return
    try:
        run.refresh()
        view = run.command(command.id)
    except KeyboardInterrupt:
        view = None
    if view is not None and not view.is_pending:
        say(view, run, output, sent=True)
    elif is_order:
        see = f"launchhelm control {run.run_id} log"
        output.say(f"The order {command.id} stays and is carried out once taken; see: {see}")
    else:
        output.say(
            f"Command {command.id} stays where it is and may still be applied; "
            f"take it back: launchhelm control {run.run_id} cancel {command.id}"
        )


def is_interrupted_again(output: Output, *, may_take_back: bool = True) -> bool:
    """Give a person at a terminal a moment for a second Ctrl-C, which takes the command back."""
    # The terminal has shown ^C on this line.
    if not may_take_back or not sys.stdin.isatty():
        output.say("\nInterrupted.")
        return False
    again = f"Ctrl-C again within {AGAIN_S:g} s takes it back, if it has not begun."
    output.say(f"\nInterrupted. {again}")
    try:
        time.sleep(AGAIN_S)
    except KeyboardInterrupt:
        output.say("")
        return True
    return False


def _take_back(run: views.RunView, command: Command, output: Output) -> None:
    """Cancel a command that has just been sent, and say what became of it."""
    order = replace(command, id=new_run_id(), name=CANCEL, payload={"id": command.id})
    order = replace(order, first_step=None, last_step=None, expected={}, reverts="", replays="")
    try:
        inbox.send(run.directory, order)
        wait(run, order, _TAKE_BACK_S, output, about=command.id)
    except KeyboardInterrupt:
        output.say(f"\nInterrupted. The order to cancel it stays: {order.id}")


def say_written(command: Command, output: Output) -> None:
    """Print the id of a command whose outcome is not waited for."""
    if output.json:
        output.document({"sent": True, "id": command.id, "state": "written"})
    else:
        output.line(command.id)


def wait(
    run: views.RunView,
    command: Command,
    timeout_s: float | None,
    output: Output,
    about: str = "",
) -> int:
    """Wait for the outcome of a command, saying what is waited for, and print it."""
    began = time.monotonic()
    said_at = began
    ended_at: float | None = None
    picked_up, said = False, ""
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
                return _conclude(view, run, output, about)
        if run.state.is_over or run.is_leaderless:
            ended_at = ended_at if ended_at is not None else now
        waited_s = now - began
        over = ended_at is not None and now - ended_at > _AFTER_END_S
        if over or (timeout_s is not None and waited_s >= timeout_s):
            return _still_waiting(view, command, run, waited_s, output, said)
        if now - said_at >= WORD_EVERY_S:
            said_at = now
            word = str(outcome_text(_Sent.of(view, command), around_of(run, waited_s)))
            if word != said:
                said = word
                output.say(said)
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


def _conclude(view: views.CommandView, run: views.RunView, output: Output, about: str) -> int:
    state = view.outcome.state if view.outcome is not None else ""
    if about and view.outcome is not None and state != "applied":
        output.say(_wording.plain(view.outcome.message))
    say(run.command(about) or view, run, output, sent=True)
    return EXITS.get(state, Exit.UNKNOWN)


def say(view: views.CommandView, run: views.RunView, output: Output, **facts: Any) -> None:
    """Print what became of a command, as a sentence or as its document with these facts."""
    around = around_of(run, command=view)
    if output.json:
        output.document({**facts, **documents.command_document(view, around)})
    else:
        output.line(output.sentence(outcome_text(view, around)))


def _still_waiting(
    view: views.CommandView | None,
    command: Command,
    run: views.RunView,
    waited_s: float,
    output: Output,
    said: str,
) -> int:
    """Say what a command waits for; where words and data are one place not what was `said` last."""
    around = around_of(run, waited_s)
    sentence = outcome_text(_Sent.of(view, command), around)
    if output.json:
        document = {"id": command.id, "name": command.name, "state": "written"}
        if view is not None:
            document = documents.command_document(view, around)
        output.document({"sent": True, **document, "text": str(sentence)})
    elif str(sentence) != said or not output.is_one_place():
        output.line(output.sentence(sentence))
    output.say(f"Command {command.id} stays where it is; see: launchhelm control {run.run_id} log")
    return Exit.STILL_WAITING


def clock_text() -> str:
    """Return the time of day as it is shown beside what happens."""
    return time.strftime("%H:%M:%S")
