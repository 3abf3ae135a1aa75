"""What this server holds of a run, for whoever shows it: read, in bounded portions, never changed.

Whoever asks has been admitted already; nothing here looks at a key.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple  # Any: JSON values.

from syncer.server import documents, ledger, lifecycle, sessions
from syncer.server.blobs import Blobs
from syncer.server.documents import Document
from syncer.server.sessions import Session
from syncer.server.state import Server

Place = tuple[int, int]
"""Epoch and sequence of a point; `BEFORE` is before all, `LAST` after."""

BEFORE: Place = (-1, -1)
_PLAIN: Final = re.compile(
    r'\{"coordinates":\[\{"axis":"([a-z_]+)","value":"(\d{1,18})"\}\],"value":'
    r"(-?(?:0|[1-9]\d*))((?:\.\d+)?(?:e[+-]?\d+)?)\}",
    re.ASCII,
)
"""Nearly every point, read without a parser; what deviates is parsed."""

LAST: Place = (1 << 63, 0)


class Point(NamedTuple):
    """One point as it was sent.

    Args:
        at: Seconds since 1970 by the sender's clock, to the millisecond.
        coordinates: Axis and decimal text, in order.
    """

    place: Place
    at: float
    coordinates: list[tuple[str, str]]
    value: Any


@dataclass(frozen=True)
class Given:
    """One command with what has become of it, time included.

    Args:
        history: Event, execution, at, note, by; oldest first.
    """

    number: int
    entry: ledger.Entry
    history: list[dict[str, Any]]


def points(
    connection: sqlite3.Connection, series: int, after: Place = BEFORE, *, limit: int
) -> list[Point]:
    """Return the points of a stream after a place, in order of epoch and sequence."""
    rows = connection.execute(
        "SELECT time, epoch, sequence, body FROM points WHERE series = ?"
        " AND (epoch, sequence) > (?, ?) ORDER BY epoch, sequence LIMIT ?",
        (series, *after, limit),
    )
    return [_point(row) for row in rows]


def newest_points(connection: sqlite3.Connection, series: int, limit: int = 1) -> list[Point]:
    """Return the last points of a stream, the last one first."""
    rows = connection.execute(
        "SELECT time, epoch, sequence, body FROM points WHERE series = ?"
        " ORDER BY epoch DESC, sequence DESC LIMIT ?",
        (series, limit),
    )
    return [_point(row) for row in rows]


def newest_sessions(connection: sqlite3.Connection, run_id: str) -> dict[str, Session]:
    """Return the newest session of each participant of a run, by its id."""
    found = {}
    for participant in documents.of_run(connection, run_id, "participant"):
        session = sessions.newest(connection, participant["id"])
        if session is not None:
            found[str(participant["id"])] = session
    return found


def commands(connection: sqlite3.Connection, run_id: str, now: float) -> Iterator[Given]:
    """Yield the commands of a run as they stand now, in the order of submission."""
    for number, entry in ledger.of_run(connection, run_id):
        life = lifecycle.settle(entry.life, now)
        yield Given(number, replace(entry, life=life), ledger.history(connection, entry.id))


def files(server: Server, connection: sqlite3.Connection, artifact: Document) -> list[str]:
    """Return the paths of the parts of a ready artifact, in order; none while it is not ready."""
    row = connection.execute(
        "SELECT ready FROM artifacts WHERE id = ?", (artifact["id"],)
    ).fetchone()
    if row is None or not row["ready"]:
        return []
    parts = connection.execute(
        "SELECT sha256 FROM artifact_parts WHERE artifact_id = ? ORDER BY number",
        (artifact["id"],),
    )
    blobs = Blobs(server.artifacts)
    return [str(blobs.path(part["sha256"])) for part in parts]


def _point(row: sqlite3.Row) -> Point:
    time, epoch, sequence, text = row
    # The last three digits hold no time where our syncer made the point.
    at = time // 1000 / 1000
    plain = _PLAIN.fullmatch(text)
    if plain is not None:
        axis, step, number, fraction = plain.groups()
        value = float(number + fraction) if fraction else int(number)
        return Point((epoch, sequence), at, [(axis, step)], value)
    body = json.loads(text)
    coordinates = [each for each in body["coordinates"] if isinstance(each, dict)]
    places = [(str(each.get("axis")), str(each.get("value"))) for each in coordinates]
    return Point((epoch, sequence), at, places, body["value"])
