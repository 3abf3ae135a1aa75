"""Commands as whoever gives them sees them: submit, approve, cancel, get, list.

`lifecycle` decides what becomes of a command, `ledger` keeps it, `submission` checks what comes in,
`claims` is the side of the participant that carries it out.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from typing import Any, Final

from starlette.requests import Request
from starlette.routing import Route

from launchhelm._ids import new_id
from syncer.api import routes as paths
from syncer.api import wire
from syncer.server import claims, documents, ledger, lifecycle, moves, sessions, submission
from syncer.server.caller import Caller, canonical_id
from syncer.server.endpoint import endpoint
from syncer.server.errors import conflict, not_found, validation
from syncer.server.ledger import Entry
from syncer.server.lifecycle import Life
from syncer.server.state import Server

SCHEMA: Final = ledger.SCHEMA

MAX_KEY: Final = 256
"""Characters of an Idempotency-Key."""

_PAGE_BYTES: Final = wire.MAX_ANSWER_BYTES * 3 // 4

JSONObject = dict[str, Any]  # Any: JSON of the API.


def routes() -> list[Route]:
    """Return the endpoints of commands, those of the participant too."""
    return [
        *claims.routes(),
        Route(paths.COMMANDS, endpoint(submit), methods=["POST"]),
        Route(paths.COMMAND, endpoint(get), methods=["GET"]),
        Route(paths.RUN_COMMANDS, endpoint(of_run), methods=["GET"]),
        Route(paths.COMMAND_APPROVE, endpoint(approve), methods=["POST"]),
        Route(paths.COMMAND_CANCEL, endpoint(cancel), methods=["POST"]),
    ]


def submit(server: Server, caller: Caller, request: Request, body: JSONObject) -> JSONObject:
    """Take a command, or return the one that was submitted with the same Idempotency-Key."""
    return give(server, caller, request.headers.get("idempotency-key", ""), body)


def give(server: Server, caller: Caller, key: str, body: JSONObject) -> JSONObject:
    """Take a command under its Idempotency-Key, as `submit` does.

    Raises:
        ServerError: It is not taken.
    """
    if not 0 < len(key) <= MAX_KEY:
        raise validation(f"A command needs an Idempotency-Key of 1 to {MAX_KEY} characters.")
    wanted = submission.read(body)
    caller.require("command.submit", wanted["scope"])
    expires_at = submission.instant(wanted["expires_at"])
    submitted = _fingerprint(wanted)
    now = server.clock.wall()
    with server.database.write() as connection:
        earlier = ledger.find_by_key(connection, caller.organization, key)
        if earlier is not None:
            if earlier.submitted != submitted:
                raise conflict("Another command was submitted with this Idempotency-Key.")
            return moves.shown(earlier, now)
        capability = documents.get(connection, canonical_id(wanted["capability"]["id"]))
        wanted = submission.bind(wanted, capability)
        participant_id = canonical_id(wanted["participant_id"])
        session = sessions.current(connection, participant_id)
        submission.fit(wanted, session, expires_at, now)
        needs_approval = bool(capability and capability["spec"].get("requires_approval"))
        entry = Entry(
            id=new_id(),
            organization_id=caller.organization,
            participant_id=participant_id,
            epoch=int(wanted["epoch"]),
            submitted=submitted,
            fingerprint=_fingerprint(wanted),
            request=wanted,
            life=lifecycle.submitted(expires_at=expires_at, requires_approval=needs_approval),
            resulting_state_revision="",
            created_at=now,
            updated_at=now,
            submitted_by=caller.name,
        )
        ledger.add(connection, entry, idempotency_key=key)
        answer = moves.shown(entry, now)
    server.wake.notify(participant_id)
    return answer


def get(server: Server, caller: Caller, request: Request, body: JSONObject) -> JSONObject:
    """Return a command as it stands now, with its history."""
    with server.database.read() as connection:
        entry = moves.find(connection, caller, request)
        caller.require("document.read", entry.request["scope"])
        return _with_history(connection, entry, server.clock.wall())


def of_run(server: Server, caller: Caller, request: Request, body: JSONObject) -> JSONObject:
    """List the commands of a run as they stand now, with their histories, oldest first."""
    after = _number(request, "cursor", 0)
    limit = min(_number(request, "limit", wire.PAGE), wire.MAX_PAGE)
    if limit < 1:
        raise validation("limit must be at least 1.")
    now = server.clock.wall()
    items: list[JSONObject] = []
    cursor, size = "", 0
    with server.database.read() as connection:
        run = documents.find(connection, caller, request.path_params["id"], "run")
        for number, entry in ledger.of_run(connection, run["id"], after=after):
            item = _with_history(connection, entry, now)
            size += len(json.dumps(item))
            if items and (len(items) == limit or size > _PAGE_BYTES):
                cursor = str(after)
                break
            after = number
            items.append(item)
    return {"items": items, "next_cursor": cursor}


def approve(server: Server, caller: Caller, request: Request, body: JSONObject) -> JSONObject:
    """Release a command that waits for approval."""
    return _decide(server, caller, request, body, "approved", lifecycle.approve)


def take_back(server: Server, caller: Caller, command_id: str) -> None:
    """Take back a command that nobody has claimed.

    Raises:
        ServerError: There is none, it is too late, or the key may not.
    """
    now = server.clock.wall()
    with server.database.write() as connection:
        entry = ledger.find(connection, canonical_id(command_id))
        if entry is None or entry.organization_id != caller.organization:
            raise not_found("There is no such command.")
        caller.require("command.approve", entry.request["scope"])
        moves.move(connection, entry, "cancelled", now, lifecycle.cancel, by=caller.name)
    server.wake.notify(entry.participant_id)


def cancel(server: Server, caller: Caller, request: Request, body: JSONObject) -> JSONObject:
    """Take back a command that nobody has claimed."""
    return _decide(server, caller, request, body, "cancelled", lifecycle.cancel)


def supersede(connection: sqlite3.Connection, participant_id: str, epoch: int, now: float) -> None:
    """Settle the commands of every epoch before the new one. Called inside connect."""
    for entry in ledger.unfinished(connection, participant_id):
        if entry.epoch < epoch:
            _end(connection, entry, lifecycle.supersede, "superseded", now)


def session_ended(
    connection: sqlite3.Connection, participant_id: str, epoch: int, now: float
) -> None:
    """Settle the commands of a session that ended. Called where the end is stored."""
    for entry in ledger.unfinished(connection, participant_id, epoch):
        _end(connection, entry, lifecycle.end_session, "session ended", now)


def _decide(
    server: Server,
    caller: Caller,
    request: Request,
    body: JSONObject,
    event: str,
    decide: Callable[[Life], Life],
) -> JSONObject:
    now = server.clock.wall()
    with server.database.write() as connection:
        entry = moves.find(connection, caller, request)
        caller.require("command.approve", entry.request["scope"])
        if body.get("fingerprint") != entry.fingerprint:
            raise conflict("The fingerprint is not that of this command.")
        entry = moves.move(connection, entry, event, now, decide, by=caller.name)
        answer = moves.shown(entry, now)
    server.wake.notify(entry.participant_id)
    return answer


def _with_history(connection: sqlite3.Connection, entry: Entry, now: float) -> JSONObject:
    """Return a command as `moves.shown` does, with what happened to it."""
    history = ledger.history(connection, entry.id)
    lines = [{**line, "at": wire.timestamp(line["at"])} for line in history]
    return {**moves.shown(entry, now), "history": lines}


def _number(request: Request, name: str, missing: int) -> int:
    text = request.query_params.get(name) or str(missing)
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise validation(f"{name} must be a whole number.")
    return int(text)


def _end(
    connection: sqlite3.Connection,
    entry: Entry,
    change: Callable[[Life], Life],
    event: str,
    now: float,
) -> None:
    settled = ledger.settled(connection, entry, now)
    life = change(settled.life)
    if life != settled.life:
        ledger.advance(connection, settled, life, event, now)


def _fingerprint(request: JSONObject) -> str:
    try:
        return wire.fingerprint(request)
    except wire.WireError as error:
        raise validation(f"The command has no canonical form: {error}.") from None
