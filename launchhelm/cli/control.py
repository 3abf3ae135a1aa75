"""`launchhelm control`: change a running training; list what may be changed; read the ledger."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Final

from launchhelm import views
from launchhelm._wording import json_text
from launchhelm.cli import (
    _control_give,
    _control_orders,
    _control_replay,
    _control_revert,
    _control_send,
    _server,
    documents,
    selection,
)
from launchhelm.cli._control_give import SEND
from launchhelm.cli._exit import Exit, UsageError
from launchhelm.cli._sections import print_controls, print_freeze, print_log, print_off
from launchhelm.cli.output import Output
from launchhelm.env import load_env
from launchhelm.views.around import around_of
from launchhelm.views.plan import refusal_of, values_of
from launchhelm.views.replay import replay_documents

DESCRIPTION = """Send one command to a running training and say what became of it.
`control RUN list` shows what may be changed, `control RUN log` every command so far. The words
after the name of a control are its fields: `control latest lr scale=0.5`. `cancel ID` takes back a
command that has not begun, `revert ID` undoes one that was applied, `replay OTHER` repeats those of
another run at the same steps, `freeze` lets none act until `unfreeze`. `send NAME` is a control
whatever it is called, such as a script's own `log`. With --server the command goes to a run on that
server, by way of whoever syncs it; `cancel ID` works there too, and `approve ID` releases one that
needs it. Ctrl-C leaves a command where it is and says so; a second one within 2 s takes it back."""

SUBVERBS: Final = ("list", "log")
"""A control that is called like that is reached by `send`. `control list RUN` is understood too."""

ORDERS: Final = ("cancel", "revert", "replay", "freeze", "unfreeze")
"""Unless the script has a control of that name; the first three are about one thing."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare what `control` takes."""
    parser.usage = f"{parser.prog} RUN NAME [key=value ...] [options]"
    parser.add_argument(
        "words",
        nargs="+",
        metavar="RUN NAME",
        help=f"the run ({selection.RUN_HELP.removesuffix(' (the default)')}), then a control with "
        "its fields, or list, or log",
    )
    parser.add_argument("--reason", default="", metavar="TEXT", help="why; kept in the ledger")
    parser.add_argument(
        "--at-step",
        type=int,
        metavar="N",
        help="at this step where it can be agreed in time, else soon after it; never before",
    )
    parser.add_argument("--last-step", type=int, metavar="N", help="expires after this step")
    parser.add_argument(
        "--expect",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="only if this value has not changed; repeatable",
    )
    parser.add_argument(
        "--valid-for",
        type=_control_send.seconds_of,
        metavar="T",
        help="expires after 30m, 2h, 3d; default 1h, with --at-step 30d",
    )
    for name, kind, what in _control_replay.OPTIONS:
        parser.add_argument(f"--{name}", type=kind, metavar=what[0], help=f"replay: {what[1]}")
    parser.add_argument("--check", action="store_true", help="say what would change, send nothing")
    parser.add_argument("--yes", action="store_true", help="do not ask; only a terminal is asked")
    waiting = parser.add_mutually_exclusive_group()
    waiting.add_argument("--wait", action="store_true", help="wait for the outcome; the default")
    waiting.add_argument("--no-wait", action="store_true", help="send, print the id, do not wait")
    parser.add_argument(
        "--timeout",
        type=_control_send.seconds_of,
        metavar="T",
        help="wait no longer than 30s, 15m, 2h; default until decided",
    )
    _server.configure(
        parser,
        server="the run is one of this server, not a run directory",
        project="with --server: of the run; default LAUNCHHELM_PROJECT, else any",
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Send a command, or print controls or commands."""
    selector, name, fields = arranged(arguments.words)
    is_sent = name == SEND and bool(fields) and "=" not in fields[0]
    if is_sent:
        name, *fields = fields
    verb = "" if is_sent else name
    if verb in SUBVERBS and fields:
        raise UsageError(
            f"control {name} takes a run and nothing else, got {json_text(fields[0])}.",
            remedy=f"A control that is called {name}: control RUN send {name} key=value",
        )
    _require_sensible(arguments)
    if arguments.server is not None:
        return _remote(selector, name, verb, fields, arguments, output)
    for each in _server.BESIDE:
        if getattr(arguments, each):
            raise UsageError(f"--{each.replace('_', '-')} goes with --server.")
    view = selection.select(arguments, selector)
    if verb == SEND and SEND not in view.capabilities:
        _control_give.refuse_send(view.capabilities)
    if verb in SUBVERBS:
        if verb in view.capabilities:
            output.say(f"This run has a control {verb} too: control RUN send {verb}")
        return _list(view, output) if verb == "list" else _log(view, output)
    if view.state.word == "copy":
        return _control_send.not_sent(refusal_of(view), output)
    if verb == "approve" and name not in view.capabilities:
        raise UsageError("control approve goes with --server.")
    is_order = verb in ORDERS and name not in view.capabilities
    if not (is_order and name == "replay"):
        _control_replay.refuse_options(arguments)
    if is_order:
        return _order(view, name, fields, arguments, output)
    return _control_give.give(view, name, fields, arguments, output)


def _require_sensible(arguments: argparse.Namespace) -> None:
    """Refuse a step that no run has, and a validity that is over at once.

    Raises:
        UsageError: Such an option was given.
    """
    for option in ("at_step", "last_step"):
        step = getattr(arguments, option)
        if step is not None and step < 0:
            said = option.replace("_", "-")
            raise UsageError(f"--{said} takes a step from 0 on, got {step}.")
    if arguments.valid_for == 0:
        raise UsageError(
            "--valid-for takes a time above 0, got 0.", remedy="For example --valid-for 30m."
        )


def _order(
    view: views.RunView,
    name: str,
    words: list[str],
    arguments: argparse.Namespace,
    output: Output,
) -> int:
    if len(words) != (0 if name.endswith("freeze") else 1):
        what = {"replay": "a run or a file of `log --json`", "freeze": "", "unfreeze": ""}
        takes = what.get(name, "the id of a command")
        raise UsageError(f"control {name} takes {takes or 'a run and nothing else'}.")
    if name == "cancel":
        return _control_orders.cancel(view, words[0], arguments, output)
    if name == "revert":
        return _control_revert.revert(view, words[0], arguments, output)
    if name == "replay":
        return _control_replay.replay(view, words[0], arguments, output)
    return _control_orders.freeze(view, name, arguments, output)


def _remote(
    selector: str,
    name: str,
    verb: str,
    fields: list[str],
    arguments: argparse.Namespace,
    output: Output,
) -> int:
    """Do the same by way of a server. Nothing of a network is imported before this."""
    load_env()
    target = _server.target_of(arguments)
    _server.require_http("Control by way of a server")
    from launchhelm.cli import _control_remote

    _server.warn_of_trust(arguments, output)
    return _control_remote.run(selector, name, verb, fields, target, arguments, output)


def arranged(words: Sequence[str]) -> tuple[str, str, list[str]]:
    """Return run, control or subverb, and the rest.

    `list RUN` is turned round when RUN is no subverb itself; `control list` alone means the latest
    run. A run that is called `list` is reached by its id.

    Raises:
        UsageError: The name of a control is missing.
    """
    first, *rest = words
    if first in SUBVERBS and (not rest or rest[0] not in SUBVERBS):
        return (rest[0] if rest else "latest"), first, list(rest[1:])
    if not rest:
        raise UsageError(
            f"control {first}: the name of a control is missing.",
            remedy=f"See what there is: launchhelm control {first} list",
        )
    return first, rest[0], list(rest[1:])


def _list(view: views.RunView, output: Output) -> int:
    if output.json:
        values, frozen = values_of(view), documents.freeze_document(view)
        for capability in view.capabilities.values():
            output.document(documents.control_document(capability, values, frozen))
        return Exit.DONE
    is_off = print_off(view, output)
    held = print_freeze(view, output)
    print_controls(view, output)
    refusal = refusal_of(view)
    if held and held in refusal:
        output.say("`control RUN unfreeze` ends that.")
    elif refusal and (view.state.is_over or not is_off):
        output.say(refusal)
    return Exit.DONE


def _log(view: views.RunView, output: Output) -> int:
    if output.json:
        replays = replay_documents(view)
        for command in view.commands:
            around = around_of(view, command=command)
            document = documents.command_document(command, around)
            output.document({**document, "replay": replays.get(command.id)})
    else:
        print_log(view, output)
    if not view.commands:
        output.say("No command has been given to this run.")
    return Exit.DONE
