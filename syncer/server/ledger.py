"""The table of commands and what became of them; one row per command, one per thing that happened.

The functions run inside the caller's transaction. A command is kept as long as its participant: a
result may arrive weeks after the epoch it belongs to.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from syncer.server import lifecycle
from syncer.server.lifecycle import Life

SCHEMA: Final = """
CREATE TABLE commands (
    number INTEGER PRIMARY KEY,              -- The order of submission, which is that of delivery.
    id TEXT NOT NULL UNIQUE,
    organization_id TEXT NOT NULL,
    participant_id TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    idempotency_key TEXT NOT NULL,
    submitted TEXT NOT NULL,                 -- Fingerprint of the body as it was submitted.
    fingerprint TEXT NOT NULL,               -- Fingerprint of the request as it is delivered.
    request TEXT NOT NULL,                   -- JSON
    execution TEXT NOT NULL,                 -- The word of `life`, for the index.
    life TEXT NOT NULL,                      -- JSON
    resulting_state_revision TEXT NOT NULL,  -- "" until applied.
    created_at REAL NOT NULL,
    updated_at REAL NOT NULL,
    UNIQUE (organization_id, idempotency_key)
);
CREATE INDEX commands_of_participant ON commands (participant_id, epoch, execution, number);
CREATE TABLE command_history (
    number INTEGER PRIMARY KEY,
    command_id TEXT NOT NULL,
    at REAL NOT NULL,
    event TEXT NOT NULL,
    execution TEXT NOT NULL,
    note TEXT NOT NULL
);
CREATE INDEX history_of_command ON command_history (command_id, number);
"""

PEOPLE: Final = """
ALTER TABLE commands ADD COLUMN submitted_by TEXT NOT NULL DEFAULT '';
ALTER TABLE command_history ADD COLUMN done_by TEXT NOT NULL DEFAULT '';  -- '' but for people.
"""

JSONObject = dict[str, Any]  # Any: JSON of the API.


@dataclass(frozen=True)
class Entry:
    """One command as stored.

    Args:
        request: The request object, exactly as it is delivered.
        life: Where it stands, before time acted; see `lifecycle.settle`.
        submitted_by: The key, as `Caller.name` says it.
    """

    id: str
    organization_id: str
    participant_id: str
    epoch: int
    submitted: str
    fingerprint: str
    request: JSONObject
    life: Life
    resulting_state_revision: str
    created_at: float
    updated_at: float
    submitted_by: str = ""


def add(connection: sqlite3.Connection, entry: Entry, *, idempotency_key: str) -> None:
    """Store a new command.

    Raises:
        sqlite3.IntegrityError: The organisation has a command with this key.
    """
    connection.execute(
        "INSERT INTO commands (id, organization_id, participant_id, epoch, idempotency_key,"
        " submitted, fingerprint, request, execution, life, resulting_state_revision,"
        " created_at, updated_at, submitted_by)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            entry.id,
            entry.organization_id,
            entry.participant_id,
            entry.epoch,
            idempotency_key,
            entry.submitted,
            entry.fingerprint,
            json.dumps(entry.request),
            entry.life.execution,
            _dump(entry.life),
            entry.resulting_state_revision,
            entry.created_at,
            entry.updated_at,
            entry.submitted_by,
        ),
    )
    _remember(connection, entry, "submitted", "", entry.submitted_by)


def find(connection: sqlite3.Connection, command_id: str) -> Entry | None:
    """Return a command by its id."""
    row = connection.execute("SELECT * FROM commands WHERE id = ?", (command_id,)).fetchone()
    return None if row is None else _entry(row)


def find_by_key(
    connection: sqlite3.Connection, organization_id: str, idempotency_key: str
) -> Entry | None:
    """Return the command that was submitted with this key."""
    row = connection.execute(
        "SELECT * FROM commands WHERE organization_id = ? AND idempotency_key = ?",
        (organization_id, idempotency_key),
    ).fetchone()
    return None if row is None else _entry(row)


def of_run(
    connection: sqlite3.Connection, run_id: str, *, after: int = 0
) -> Iterator[tuple[int, Entry]]:
    """Yield the commands of a run's participants with their numbers, in the order of submission."""
    rows = connection.execute(
        "SELECT commands.* FROM commands JOIN documents ON documents.id = commands.participant_id"
        " WHERE documents.run_id = ? AND documents.kind = 'participant' AND commands.number > ?"
        " ORDER BY commands.number",
        (run_id, after),
    )
    for row in rows:
        yield row["number"], _entry(row)


def unfinished(
    connection: sqlite3.Connection, participant_id: str, epoch: int | None = None
) -> Iterator[Entry]:
    """Yield the commands of a participant that have not ended, in the order of submission."""
    words = ", ".join(f"'{word}'" for word in lifecycle.OPEN)
    rows = connection.execute(
        f"SELECT * FROM commands WHERE participant_id = ? AND execution IN ({words})"
        " AND (? IS NULL OR epoch = ?) ORDER BY number",
        (participant_id, epoch, epoch),
    )
    return map(_entry, rows.fetchall())


def advance(
    connection: sqlite3.Connection,
    entry: Entry,
    life: Life,
    event: str,
    now: float,
    *,
    note: str = "",
    by: str = "",
    resulting_state_revision: str = "",
) -> Entry:
    """Store the new state of a command, and in its history what led there, and who did that.

    A lease that was only prolonged leaves no line: that happens every few seconds.
    """
    moved = replace(
        entry,
        life=life,
        updated_at=now,
        resulting_state_revision=resulting_state_revision or entry.resulting_state_revision,
    )
    connection.execute(
        "UPDATE commands SET execution = ?, life = ?, resulting_state_revision = ?, updated_at = ?"
        " WHERE id = ?",
        (life.execution, _dump(life), moved.resulting_state_revision, now, entry.id),
    )
    if note or replace(life, lease_until=entry.life.lease_until) != entry.life:
        _remember(connection, moved, event, note, by)
    return moved


def settled(connection: sqlite3.Connection, entry: Entry, now: float) -> Entry:
    """Store what time has done to a command since it was last touched."""
    life = lifecycle.settle(entry.life, now)
    return entry if life == entry.life else advance(connection, entry, life, "settled", now)


def history(connection: sqlite3.Connection, command_id: str) -> list[JSONObject]:
    """Return what happened to a command, oldest first: event, execution, at (seconds), note, by."""
    rows = connection.execute(
        'SELECT event, execution, at, note, done_by AS "by" FROM command_history'
        " WHERE command_id = ? ORDER BY number",
        (command_id,),
    )
    return [dict(row) for row in rows]


def _remember(connection: sqlite3.Connection, entry: Entry, event: str, note: str, by: str) -> None:
    connection.execute(
        "INSERT INTO command_history (command_id, at, event, execution, note, done_by)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        (
            entry.id,
            entry.updated_at,
            event,
            entry.life.execution,
            note or entry.life.failure_code,
            by,
        ),
    )


def _dump(life: Life) -> str:
    return json.dumps(asdict(life))


def _entry(row: sqlite3.Row) -> Entry:
    life = json.loads(row["life"])
    for name in ("leases", "applied_at", "applied_on"):
        life[name] = None if life[name] is None else tuple(life[name])
    return Entry(
        id=row["id"],
        organization_id=row["organization_id"],
        participant_id=row["participant_id"],
        epoch=row["epoch"],
        submitted=row["submitted"],
        fingerprint=row["fingerprint"],
        request=json.loads(row["request"]),
        life=Life(**life),
        resulting_state_revision=row["resulting_state_revision"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        submitted_by=row["submitted_by"],
    )
