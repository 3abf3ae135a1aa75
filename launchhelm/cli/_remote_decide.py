"""Cancel a command that waits on a server, or approve one that needs it."""

from __future__ import annotations

import argparse
import sys
import uuid
from collections.abc import Callable
from typing import Any, Final  # Any: JSON of the API.

from launchhelm import _wording
from launchhelm._wording.values import and_more
from launchhelm.cli import _control_send as local
from launchhelm.cli import _remote_words as words
from launchhelm.cli._exit import Exit, UsageError
from launchhelm.cli._remote_follow import Following
from launchhelm.cli._remote_run import RunOnServer
from launchhelm.cli.output import Output
from launchhelm.errors import Conflict, NotFound
from syncer.api.answers import ApiError

Json = dict[str, Any]

_SHOWN: Final = 5


def cancel(there: RunOnServer, id_: str, arguments: argparse.Namespace, output: Output) -> int:
    """Take a command back that nobody has picked up; one that is cancelled already stays so."""
    is_cancelled, command = _decided(there, _find(there, id_), there.client.cancel, output)
    _print(there, command, output)
    return Exit.DONE if is_cancelled else Exit.NOTHING_CHANGED


def approve(there: RunOnServer, id_: str, arguments: argparse.Namespace, output: Output) -> int:
    """Release a command that waits for approval, and say what becomes of it."""
    command = _find(there, id_)
    names = there.names()
    if command.get("execution") == "pending_approval":
        output.say("  ".join([words.what_of(command, names), *words.why_of(command)]))
        if sys.stdin.isatty() and not arguments.yes and not local.confirmed(output, "Approve"):
            output.say("Not approved; it goes on waiting.")
            return Exit.NOTHING_CHANGED
    is_approved, command = _decided(there, command, there.client.approve, output)
    if not is_approved:
        _print(there, command, output)
        return Exit.NOTHING_CHANGED
    output.say(f"approved {local.clock_text()}")
    return Following(there, arguments, output, words.name_of(command, names)).follow(command)


def _decided(
    there: RunOnServer, command: Json, decide: Callable[[str, str], Json], output: Output
) -> tuple[bool, Json]:
    """Decide, and return whether it was not too late for that, with the command as it is then."""
    id_ = str(command["id"])
    is_decided = True
    try:
        decide(id_, str(command["fingerprint"]))
    except ApiError as error:
        if error.status != 409:
            raise
        is_decided = False
        output.say(_wording.plain(error.message))
    return is_decided, there.client.get_command(id_)


def _print(there: RunOnServer, command: Json, output: Output) -> None:
    sentence = words.sentence_of(command)
    if output.json:
        name = words.name_of(command, there.names())
        output.document(words.document_of(command, name, sentence))
    else:
        output.line(output.sentence(sentence))


def _find(there: RunOnServer, id_: str) -> Json:
    """Return the command of that id, or with the only id that begins so.

    Raises:
        NotFound: The run has none.
        Conflict: Several begin so.
        UsageError: It is no beginning of an id.
    """
    wanted = id_.lower()
    if not wanted:
        raise UsageError("The id of a command is empty.")
    if _is_whole(wanted):
        found = [_get(there, wanted)]
    else:
        every = there.client.run_commands(there.found.id)
        found = [it for it in every if str(it.get("id", "")).startswith(wanted)]
    mine = [it for it in found if it is not None]
    if len(mine) == 1:
        return mine[0]
    title = there.found.title
    if not mine:
        raise NotFound(
            f"{title} has no command {_wording.json_text(id_)} on this server.",
            remedy="See its commands: control RUN log",
        )
    shown = ", ".join(str(it["id"]) for it in mine[:_SHOWN]) + and_more(len(mine) - _SHOWN)
    raise Conflict(f"{len(mine)} commands of {title} begin so: {shown}.", remedy="Give the id.")


def _get(there: RunOnServer, id_: str) -> Json | None:
    try:
        command = there.client.get_command(id_)
    except ApiError as error:
        if error.status != 404:
            raise
        return None
    scope = (command.get("request") or {}).get("scope") or {}
    return command if scope.get("run_id") == there.found.id else None


def _is_whole(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False
