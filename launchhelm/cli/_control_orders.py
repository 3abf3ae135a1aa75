"""Take a command back, and freeze or unfreeze all of them."""

from __future__ import annotations

import argparse
from typing import Any, Final

from launchhelm import _wording, views
from launchhelm._wording.values import and_more
from launchhelm.cli._control_give import command_of, is_wanted
from launchhelm.cli._control_send import deliver, not_sent, say
from launchhelm.cli._exit import Exit, UsageError
from launchhelm.cli.output import Output
from launchhelm.errors import Conflict, NotFound
from launchhelm.records import CANCEL, FREEZE, UNFREEZE
from launchhelm.views.plan import VALID_S, refusal_of

_SHOWN: Final = 5


def cancel(run: views.RunView, id_: str, arguments: argparse.Namespace, output: Output) -> int:
    """Take a command back that has not begun; one that is cancelled already stays so.

    A run that has ended but may be resumed takes the order for its next attempt.
    """
    command = find(run, id_)
    if command.name == CANCEL:
        return not_sent(f"{command.id} is itself a cancel, which cannot be cancelled.", output)
    if command.state == "applying" or not command.is_pending:
        say(command, run, output)
        return Exit.DONE if command.state == "cancelled" else Exit.NOTHING_CHANGED
    if run.state.is_closed:
        return not_sent(refusal_of(run), output)
    output.say(f"{_wording.plain(command.name)} {_wording.payload_text(command.payload)}".rstrip())
    if run.state.is_over or run.is_leaderless:
        output.say(
            "No process of this run takes commands now. The order waits for its next attempt, "
            "which takes the command back before it acts; without one, nothing acts."
        )
    # The order must not expire before what it is about.
    sent = command.command
    valid_s = max(VALID_S, sent.valid_s if sent is not None else 0.0)
    return _order(run, CANCEL, {"id": command.id}, arguments, output, command.id, valid_s=valid_s)


def freeze(run: views.RunView, name: str, arguments: argparse.Namespace, output: Output) -> int:
    """Let no command act from now on, or again."""
    frozen = views.frozen(run.commands)
    if bool(frozen) == (name == "freeze"):
        output.line(_wording.plain(frozen) or "the controls are not frozen")
        return Exit.DONE
    refusal = "" if frozen else refusal_of(run)
    if refusal:
        return not_sent(refusal, output)
    output.say(
        "No command will act until `unfreeze`." if name == "freeze" else "Commands act again."
    )
    return _order(run, FREEZE if name == "freeze" else UNFREEZE, {}, arguments, output)


def _order(
    run: views.RunView,
    name: str,
    payload: dict[str, str],
    arguments: argparse.Namespace,
    output: Output,
    about: str = "",
    **more: Any,
) -> int:
    for option in ("at_step", "last_step", "expect", "check"):
        if getattr(arguments, option):
            word = name.partition(":")[2]
            raise UsageError(f"{word} acts at once; it takes no --{option.replace('_', '-')}.")
    if arguments.valid_for is not None:
        more.pop("valid_s", None)
    order = command_of(name, payload, arguments, **more)
    if not is_wanted(arguments, output):
        return Exit.NOTHING_CHANGED
    return deliver(run, order, arguments, output, about)


def find(run: views.RunView, id_: str) -> views.CommandView:
    """Return the command of that id, or the only one whose id begins so.

    Raises:
        NotFound: The run has none.
        Conflict: Several begin so.
        UsageError: The id is empty.
    """
    if not id_:
        raise UsageError("The id of a command is empty.")
    found = run.command(id_)
    mine = [found] if found else [each for each in run.commands if each.id.startswith(id_)]
    if len(mine) == 1:
        return mine[0]
    title = _wording.plain(run.name)
    if not mine:
        raise NotFound(
            f"{title} has no command {_wording.json_text(id_)}.",
            remedy=f"See its commands: launchhelm control {run.run_id} log",
        )
    shown = ", ".join(each.id for each in mine[:_SHOWN]) + and_more(len(mine) - _SHOWN)
    raise Conflict(f"{len(mine)} commands of {title} begin so: {shown}.", remedy="Give the id.")
