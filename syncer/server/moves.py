"""One move of one command: find it, let time and an event act, show what came out."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

from starlette.requests import Request

from syncer.api import wire
from syncer.server import ledger, lifecycle
from syncer.server.caller import Caller, canonical_id
from syncer.server.errors import conflict, not_found
from syncer.server.ledger import Entry
from syncer.server.lifecycle import Life, Refused

JSONObject = dict[str, Any]  # Any: JSON of the API.


def find(connection: sqlite3.Connection, caller: Caller, request: Request) -> Entry:
    """Return the command that the path names.

    Raises:
        ServerError: 404: the caller's organisation has none of that id.
    """
    entry = ledger.find(connection, canonical_id(request.path_params["id"]))
    if entry is None or entry.organization_id != caller.organization:
        raise not_found("There is no such command.")
    return entry


def move(
    connection: sqlite3.Connection,
    entry: Entry,
    event: str,
    now: float,
    change: Callable[[Life], Life],
    *,
    by: str = "",
) -> Entry:
    """Let time act, then the event, and store what changed and who did it.

    Raises:
        ServerError: 409: the event does not fit the state. The transaction must not go on.
    """
    settled = ledger.settled(connection, entry, now)
    try:
        life = change(settled.life)
    except Refused as refusal:
        raise conflict(str(refusal)) from None
    if life == settled.life:
        return settled
    return ledger.advance(connection, settled, life, event, now, by=by)


def shown(entry: Entry, now: float) -> JSONObject:
    """Build the command object; what does not apply yet is left out."""
    life = lifecycle.settle(entry.life, now)
    answer: JSONObject = {
        "id": entry.id,
        "fingerprint": entry.fingerprint,
        "execution": life.execution,
        "request": entry.request,
        "created_at": wire.timestamp(entry.created_at),
        "updated_at": wire.timestamp(entry.updated_at),
    }
    if entry.submitted_by:
        answer["submitted_by"] = entry.submitted_by
    if life.lease_id:
        answer["lease_id"] = life.lease_id
    if life.decided_by:
        answer["decided_by"] = life.decided_by
        answer["failure_code"] = life.failure_code
        answer["result"] = life.result
        answer["applied_at"] = list(life.applied_at)
    if life.applied_on is not None:
        answer["applied_on"] = {"count": life.applied_on[0], "of": life.applied_on[1]}
    if entry.resulting_state_revision:
        answer["resulting_state_revision"] = entry.resulting_state_revision
    return answer
