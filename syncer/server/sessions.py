"""Participant sessions: connect, heartbeat, end. A newer epoch fences every earlier one.

A heartbeat is refused with `conflict` only where a newer epoch exists or the session was ended on
purpose, because that answer stops the client for good. Silence ends nothing: a session that was
not heard of for a while is lost only until its next heartbeat.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterable
from typing import Any, Final

from starlette.requests import Request
from starlette.routing import Route

from syncer.api import routes as paths
from syncer.api import wire
from syncer.server import commands, documents, ledger, lifecycle
from syncer.server.caller import Caller, canonical_id
from syncer.server.documents import Document
from syncer.server.endpoint import endpoint
from syncer.server.errors import conflict, not_found, validation
from syncer.server.state import LIVE_S, Server

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

EXTENSIONS: Final = ("heartbeat.step", "result.applied_on")
"""What we understand beyond the API; clients that do not know the field ignore it."""

_STEP: Final = re.compile(r"-?(0|[1-9][0-9]*)")
_NAME: Final = re.compile(r"[a-z][a-z0-9_.:-]{0,127}")
_MAX_ID: Final = 200
_AWAY_S: Final = 86_400.0
"""How long we may have been away without taking the sessions of then for lost when we return."""

_CLOSE: Final = ("never", "when_idle")

Session = dict[str, Any]
"""The columns of the table, safe_points as a list of names."""


def routes() -> list[Route]:
    """Return the endpoints of this module."""
    return [
        Route(paths.HEARTBEAT, endpoint(_heartbeat), methods=["POST"]),
        Route(paths.SESSION, endpoint(_show), methods=["GET"]),
        Route(paths.SESSIONS, endpoint(_connect), methods=["POST"]),
        Route(paths.SESSION_END, endpoint(_end), methods=["POST"]),
    ]


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


def _show(server: Server, caller: Caller, request: Request, body: object) -> dict[str, Any]:
    """Return the newest session, ended or not, as whoever wants to command it needs it."""
    now = server.clock.wall()
    with server.database.read() as connection:
        participant = documents.find(connection, caller, request.path_params["id"], "participant")
        session = newest(connection, participant["id"])
        open_count = (
            sum(
                lifecycle.settle(it.life, now).execution in lifecycle.OPEN
                for it in ledger.unfinished(connection, participant["id"], session["epoch"])
            )
            if session is not None
            else 0
        )
    if session is None:
        raise not_found("The participant has not had a session.")
    shown = {
        **_told(session),
        "participant_id": session["participant_id"],
        "run_id": session["run_id"],
        "connected_at": wire.timestamp(session["connected_at"]),
        "last_seen_at": wire.timestamp(session["last_seen_at"]),
        # Whoever asks has another clock.
        "silent_s": round(max(0.0, now - session["last_seen_at"]), 3),
        "open_commands": open_count,
    }
    if session["ended_at"] is not None:
        shown |= {
            "ended_at": wire.timestamp(session["ended_at"]),
            "end_reason": session["end_reason"],
        }
    return shown


def _connect(
    server: Server, caller: Caller, request: Request, body: dict[str, Any]
) -> dict[str, Any]:
    """Open a session, or return the one that this very process has."""
    instance_id = _text_of(body, "instance_id")
    attempt_id = _text_of(body, "attempt_id", missing="")
    wanted = _safe_points(body.get("safe_points"))
    now = server.clock.wall()
    with server.database.write() as connection:
        participant = _participant(connection, caller, request)
        before = newest(connection, participant["id"])
        if (
            before is not None
            and before["ended_at"] is None
            and (before["instance_id"], before["attempt_id"]) == (instance_id, attempt_id)
        ):
            session = _seen(connection, before, now, safe_points=wanted)
        else:
            epoch = before["epoch"] + 1 if before else 1
            connection.execute(
                "UPDATE sessions SET ended_at = ?, end_reason = 'superseded'"
                " WHERE participant_id = ? AND ended_at IS NULL",
                (now, participant["id"]),
            )
            connection.execute(
                "INSERT INTO sessions (participant_id, epoch, run_id, instance_id, attempt_id,"
                " safe_points, state_revision, connected_at, last_seen_at)"
                " VALUES (?, ?, ?, ?, ?, ?, 0, ?, ?)",
                (
                    participant["id"],
                    epoch,
                    participant["run_id"],
                    instance_id,
                    attempt_id,
                    json.dumps(_union((), wanted)),
                    now,
                    now,
                ),
            )
            # Inside connect: the restarted client asks for its commands right after it.
            commands.supersede(connection, participant["id"], epoch, now)
            opened = newest(connection, participant["id"])
            assert opened is not None
            session = opened
    server.wake.notify(participant["id"])
    return _told(session)


def _heartbeat(
    server: Server, caller: Caller, request: Request, body: dict[str, Any]
) -> dict[str, Any]:
    epoch = _epoch(body)
    wanted = _safe_points(body.get("safe_points"))
    # That somebody lives is said again soon; a safe point is not.
    with server.database.write(durable=bool(wanted)) as connection:
        participant = _participant(connection, caller, request)
        session = newest(connection, participant["id"])
        if session is None or epoch > session["epoch"]:
            # Not conflict: after a restored backup the client must wait, not die.
            raise not_found(f"Epoch {epoch} was never opened here.")
        if epoch < session["epoch"]:
            raise conflict(f"Epoch {session['epoch']} took over from epoch {epoch}.")
        if session["ended_at"] is not None:
            raise conflict(f"The session of epoch {epoch} has ended.")
        known = session["safe_points"]
        session = _seen(
            connection,
            session,
            server.clock.wall(),
            safe_points=wanted,
            step=_step(body.get("step")),
        )
    if session["safe_points"] != known:
        # A parked claim must see what it may deliver now.
        server.wake.notify(participant["id"])
    return _told(session)


def _end(server: Server, caller: Caller, request: Request, body: dict[str, Any]) -> dict[str, Any]:
    epoch = _epoch(body)
    close_run = body.get("close_run", "never")
    if close_run not in _CLOSE:
        raise validation(f"close_run must be one of {', '.join(_CLOSE)}.")
    now = server.clock.wall()
    with server.database.write() as connection:
        participant = _participant(connection, caller, request)
        session = _at(connection, participant["id"], epoch)
        if session is None or session["end_reason"] == "superseded":
            raise conflict(f"The session of epoch {epoch} is not the participant's.")
        if session["ended_at"] is None:
            connection.execute(
                "UPDATE sessions SET ended_at = ?, end_reason = 'finished', last_seen_at = ?"
                " WHERE participant_id = ? AND epoch = ?",
                (now, now, participant["id"], epoch),
            )
            commands.session_ended(connection, participant["id"], epoch, now)
        closed = close_run == "when_idle" and _close_if_idle(
            connection, participant, now, live_since=_live_since(server, now)
        )
        session = _at(connection, participant["id"], epoch)
        assert session is not None
    server.wake.notify(participant["id"])
    told = {**_told(session), "end_reason": session["end_reason"]}
    return {"session": told, "run_closed": closed}


def _participant(connection: sqlite3.Connection, caller: Caller, request: Request) -> Document:
    participant = documents.find(connection, caller, request.path_params["id"], "participant")
    caller.require(
        "participant.connect", documents.reach(participant), participant_id=participant["id"]
    )
    return participant


def _live_since(server: Server, now: float) -> float:
    """Return when a session must have been heard of, at the latest, to count as live."""
    if now - server.started_at >= LIVE_S:
        return now - LIVE_S
    # Whoever lives could not say so while no server was there, and has not had the time since.
    return server.started_at - _AWAY_S


def _close_if_idle(
    connection: sqlite3.Connection, participant: Document, now: float, *, live_since: float
) -> bool:
    """Close the run of a participant unless a session of it is live; say whether it is closed."""
    run = documents.get(connection, participant["run_id"])
    if run is None:
        return False
    if run["spec"].get("state") == "closed":
        return True
    live = connection.execute(
        "SELECT 1 FROM sessions WHERE run_id = ? AND ended_at IS NULL AND last_seen_at >= ?",
        (run["id"], live_since),
    ).fetchone()
    if live is None:
        documents.replace(connection, run, {**run["spec"], "state": "closed"}, now)
    return live is None


def _seen(
    connection: sqlite3.Connection,
    session: Session,
    now: float,
    *,
    safe_points: Iterable[str],
    step: str | None = None,
) -> Session:
    """Note that a session was heard of, with what it said."""
    seen = {
        **session,
        "safe_points": _union(session["safe_points"], safe_points),
        "last_seen_at": now,
    }
    if step is not None:
        seen.update(step=step, step_at=now)
    connection.execute(
        "UPDATE sessions SET safe_points = ?, last_seen_at = ?, step = ?, step_at = ?"
        " WHERE participant_id = ? AND epoch = ?",
        (
            json.dumps(seen["safe_points"]),
            now,
            seen["step"],
            seen["step_at"],
            seen["participant_id"],
            seen["epoch"],
        ),
    )
    return seen


def _union(known: Iterable[str], more: Iterable[str]) -> list[str]:
    union = sorted({*known, *more})
    if len(union) > wire.MAX_SAFE_POINTS:
        raise validation(f"A session has at most {wire.MAX_SAFE_POINTS} safe points.")
    return union


def _told(session: Session) -> dict[str, Any]:
    """Return a session as its participant is told. Its epoch must never be missing."""
    told = {
        "epoch": str(session["epoch"]),
        "state_revision": str(session["state_revision"]),
        "expires_at": wire.timestamp(session["last_seen_at"] + LIVE_S),
        "safe_points": session["safe_points"],
        "extensions": list(EXTENSIONS),
    }
    if session["step"] is not None:
        told |= {"step": session["step"], "step_at": wire.timestamp(session["step_at"])}
    return told


def _at(connection: sqlite3.Connection, participant_id: str, epoch: int) -> Session | None:
    row = connection.execute(
        "SELECT * FROM sessions WHERE participant_id = ? AND epoch = ?", (participant_id, epoch)
    ).fetchone()
    return _session(row) if row else None


def _epoch(body: dict[str, Any]) -> int:
    text = body.get("epoch")
    if not isinstance(text, str) or not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise validation("epoch must be a decimal text.")
    return int(text)


def _text_of(body: dict[str, Any], name: str, *, missing: str | None = None) -> str:
    value = body.get(name)
    if value is None and missing is not None:
        return missing
    if not isinstance(value, str) or not value or len(value) > _MAX_ID:
        raise validation(f"{name} must be a text of 1 to {_MAX_ID} characters.")
    return canonical_id(value)


def _safe_points(value: Any) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(
        isinstance(name, str) and _NAME.fullmatch(name) for name in value
    ):
        raise validation("safe_points must be a list of names.")
    return value


def _step(value: Any) -> str | None:
    """Return a step, or None where it is missing or malformed, which is never an error."""
    if isinstance(value, str) and len(value) <= wire.MAX_COORDINATE and _STEP.fullmatch(value):
        return value
    return None


def _session(row: sqlite3.Row) -> Session:
    session = dict(row)
    session["safe_points"] = json.loads(row["safe_points"])
    return session
