"""`launchhelm control --server`: the same verb, words and exit codes by way of a server."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from launchhelm import _wording
from launchhelm.cli import _control_replay, _remote_decide, _remote_run, documents
from launchhelm.cli import _remote_words as words
from launchhelm.cli._exit import Exit, UsageError
from launchhelm.cli._remote_run import RunOnServer, refusal_of
from launchhelm.cli._remote_send import WITHOUT_SERVER, Sending
from launchhelm.cli.output import Output
from launchhelm.controls.fields import field_texts
from syncer.api.answers import ApiError
from syncer.connection import open_client
from syncer.settings import Target

_DECISIONS: Final = {"cancel": _remote_decide.cancel, "approve": _remote_decide.approve}


def run(
    selector: str,
    name: str,
    verb: str,
    fields: list[str],
    target: Target,
    arguments: argparse.Namespace,
    output: Output,
) -> int:
    """List controls or commands of a run on a server, decide on one, or carry one through.

    Args:
        verb: The name where it may be more than that of a control, else "".
    """
    _require_known(arguments)
    _control_replay.refuse_options(arguments)
    if verb in _DECISIONS and len(fields) != 1:
        raise UsageError(
            f"control {name} takes a run and the id of one command.",
            remedy=f"Write: launchhelm control --server URL RUN {name} ID",
        )
    try:
        return _do(selector, name, verb, fields, target, arguments, output)
    except ApiError as error:
        # An answer that is lost after a command was submitted is the business of `Sending`.
        if error.status or not error.retryable:
            raise
        output.say(f"launchhelm: {_wording.plain(error.message)}")
        output.say("  Check --server, and that the server is up; then try again.")
        return Exit.STILL_WAITING


def _do(
    selector: str,
    name: str,
    verb: str,
    fields: list[str],
    target: Target,
    arguments: argparse.Namespace,
    output: Output,
) -> int:
    with _rights(), open_client(target)[0] as client:
        there = RunOnServer(client, _remote_run.find(client, target.project, selector))
        if verb == "list":
            return _list(there, output)
        if verb == "log":
            return _log(there, output)
        if verb in _DECISIONS:
            return _DECISIONS[verb](there, fields[0], arguments, output)
        return Sending(there, arguments, output).send(name, fields)


def _require_known(arguments: argparse.Namespace) -> None:
    """Refuse what only the inbox of a run directory knows.

    Raises:
        UsageError: Such an option was given.
    """
    given = {
        "--at-step": arguments.at_step is not None,
        "--last-step": arguments.last_step is not None,
        "--expect": bool(arguments.expect),
        "--valid-for": arguments.valid_for is not None,
    }
    for option, is_given in given.items():
        if is_given:
            raise UsageError(
                f"{option} does not go by way of a server.",
                remedy=WITHOUT_SERVER,
            )


@contextmanager
def _rights() -> Iterator[None]:
    """Make the refusal of a key what the refusal of a file is."""
    try:
        yield
    except ApiError as error:
        if error.status in (401, 403):
            raise error from PermissionError(error.message)
        raise


def _list(there: RunOnServer, output: Output) -> int:
    offers = there.offers()
    rows = []
    for name, offer in offers.items():
        if output.json:
            output.document(documents.control_document(offer.spec, {}))
        first, *rest = map(_wording.plain, field_texts(offer.spec))
        rows += [[_wording.plain(name), first], *(["", each] for each in rest)]
    if not output.json:
        if rows:
            output.table(("CONTROL", "TAKES"), rows)
        else:
            output.line("this run declares no controls")
    refusal = refusal_of(there, offers)
    if refusal and rows:
        output.say(refusal)
    return Exit.DONE


def _log(there: RunOnServer, output: Output) -> int:
    names = there.names()
    count = 0
    for count, command in enumerate(there.client.run_commands(there.found.id), 1):  # noqa: B007
        sentence = words.sentence_of(command)
        if output.json:
            name = words.name_of(command, names)
            output.document(words.document_of(command, name, sentence))
            continue
        said = [words.what_of(command, names), output.sentence(sentence), *words.why_of(command)]
        output.line("  ".join([f"  {sentence.mark}", *filter(None, said), str(command.get("id"))]))
    if not count:
        output.say("No command has been given to this run by way of this server.")
    return Exit.DONE
