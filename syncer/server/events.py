"""The organisation's event log: what a person should be able to find later.

`GET events` pages through it from a cursor. The cursor of the last page is given back, so that a
poller goes on from there; it repeats itself when nothing is new.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from typing import Any, Final  # Any: JSON values.

from starlette.requests import Request
from starlette.routing import Route

from launchhelm._clock import SYSTEM_CLOCK
from syncer.api import routes as paths
from syncer.api.limits import MAX_PAGE, PAGE
from syncer.api.telemetry import timestamp
from syncer.server.caller import Caller
from syncer.server.endpoint import endpoint
from syncer.server.errors import validation
from syncer.server.state import Server

SCHEMA: Final = """
CREATE TABLE events (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    organization_id TEXT NOT NULL,
    kind TEXT NOT NULL,
    at REAL NOT NULL,
    facts TEXT NOT NULL
);
CREATE INDEX events_of_organization ON events(organization_id, number);
"""


def routes() -> list[Route]:
    """Return the endpoints of this module."""
    return [Route(paths.EVENTS, endpoint(_list), methods=["GET"])]


def note(connection: sqlite3.Connection, kind: str, facts: Mapping[str, Any]) -> None:
    """Write an event down, in the transaction of what caused it.

    Args:
        kind: A word for programs.
        facts: JSON values; organization_id says whose log it is.
    """
    connection.execute(
        "INSERT INTO events (organization_id, kind, at, facts) VALUES (?, ?, ?, ?)",
        (
            str(facts.get("organization_id", "")),
            kind,
            SYSTEM_CLOCK.wall(),
            json.dumps(dict(facts), ensure_ascii=False, separators=(",", ":")),
        ),
    )


def page(
    connection: sqlite3.Connection, organization_id: str, *, after: int = 0, limit: int = PAGE
) -> list[dict[str, Any]]:
    """Return events of an organisation in order: id, kind, created_at, and their facts."""
    found = connection.execute(
        "SELECT number, kind, at, facts FROM events WHERE organization_id = ? AND number > ?"
        " ORDER BY number LIMIT ?",
        (organization_id, after, limit),
    )
    return [
        {
            "id": str(row["number"]),
            "kind": row["kind"],
            "created_at": timestamp(row["at"]),
            "facts": json.loads(row["facts"]),
        }
        for row in found
    ]


def _list(server: Server, caller: Caller, request: Request, body: object) -> dict[str, Any]:
    caller.require("document.read", {"organization_id": caller.organization})
    cursor = request.query_params.get("cursor") or "0"
    limit = request.query_params.get("limit") or str(PAGE)
    # 18 digits fit a column.
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) <= 18):
        raise validation("cursor must be one that an earlier answer gave.")
    if not (limit.isascii() and limit.isdigit() and len(limit) <= 6 and int(limit) > 0):
        raise validation("limit must be a positive integer.")
    with server.database.read() as connection:
        items = page(
            connection, caller.organization, after=int(cursor), limit=min(int(limit), MAX_PAGE)
        )
    return {"items": items, "next_cursor": items[-1]["id"] if items else cursor}
