"""Participant sessions: connect, heartbeat, end. A newer epoch fences every earlier one."""

from __future__ import annotations

import json
import sqlite3
from typing import Any, Final

from starlette.routing import Route

SCHEMA: Final = """
CREATE TABLE sessions (
    participant_id TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    run_id TEXT NOT NULL,
    instance_id TEXT NOT NULL,
    attempt_id TEXT NOT NULL,
    safe_points TEXT NOT NULL,     -- a JSON array, sorted
    state_revision INTEGER NOT NULL,
    connected_at REAL NOT NULL,
    last_seen_at REAL NOT NULL,
    step TEXT,
    step_at REAL,
    ended_at REAL,
    end_reason TEXT,
    PRIMARY KEY (participant_id, epoch)
) WITHOUT ROWID;
CREATE INDEX open_sessions ON sessions(run_id) WHERE ended_at IS NULL;
"""

Session = dict[str, Any]
"""The columns of the table, safe_points as a list of names."""


def routes() -> list[Route]:
    """Return the endpoints of this module."""
    return []


def newest(connection: sqlite3.Connection, participant_id: str) -> Session | None:
    """Return the session with the largest epoch, ended or not."""
    row = connection.execute(
        "SELECT * FROM sessions WHERE participant_id = ? ORDER BY epoch DESC LIMIT 1",
        (participant_id,),
    ).fetchone()
    return _session(row) if row else None


def current(connection: sqlite3.Connection, participant_id: str) -> Session | None:
    """Return the newest session unless it has ended."""
    session = newest(connection, participant_id)
    return session if session and session["ended_at"] is None else None


def issued(connection: sqlite3.Connection, participant_id: str, epoch: int) -> bool:
    """Say whether the participant ever had this epoch."""
    return (
        connection.execute(
            "SELECT 1 FROM sessions WHERE participant_id = ? AND epoch = ?",
            (participant_id, epoch),
        ).fetchone()
        is not None
    )


def advance_state(connection: sqlite3.Connection, participant_id: str, epoch: int) -> int:
    """Raise the state revision of a session by one and return it: a command was applied."""
    connection.execute(
        "UPDATE sessions SET state_revision = state_revision + 1"
        " WHERE participant_id = ? AND epoch = ?",
        (participant_id, epoch),
    )
    row = connection.execute(
        "SELECT state_revision FROM sessions WHERE participant_id = ? AND epoch = ?",
        (participant_id, epoch),
    ).fetchone()
    return int(row[0]) if row else 0


def _session(row: sqlite3.Row) -> Session:
    session = dict(row)
    session["safe_points"] = json.loads(row["safe_points"])
    return session
