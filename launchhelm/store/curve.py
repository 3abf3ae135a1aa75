"""What a chart needs of a sealed segment: the sums of its points, or the points of some records.

The errors are those of `open_sealed`; StorageError also for a damaged page.
"""

from __future__ import annotations

import math
import sqlite3
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from launchhelm.store.columns import DECODE
from launchhelm.store.connection import damaged, open_sealed
from launchhelm.store.schema import SEQ_BITS

_NUMERIC: Final = ("float", "int", "bool", "bigint", "special")


class Sums(NamedTuple):
    """One row of `block`: consecutive points of a metric, and where and when they begin and end.

    Args:
        first_seq, last_seq: Numbers of the records, counted from the segment's first.
        step0, step1: Steps of these; None where one has none that 64 bits hold.
        at0, at1: Their times.
        odd: How many of the n stand in no sum.
    """

    first_seq: int
    last_seq: int
    step0: int | None
    step1: int | None
    at0: float
    at1: float
    n: int
    total: float | None
    low: float | None
    high: float | None
    first: float | None
    last: float | None
    odd: int


@dataclass(slots=True)
class Values:
    """Points of a metric in columns, those without a step left out.

    Args:
        odd: Step, time and value of each that is no finite number.
    """

    steps: array[float] = field(default_factory=lambda: array("d"))
    ats: array[float] = field(default_factory=lambda: array("d"))
    values: array[float] = field(default_factory=lambda: array("d"))
    odd: list[tuple[float, float, float]] = field(default_factory=list)


def sealed_sums(path: Path, name: str) -> list[Sums]:
    """Return the blocks of a metric in order of their records; none where it is not there."""
    connection = open_sealed(path)
    try:
        (first_ms,) = connection.execute("SELECT value FROM meta WHERE key='first_ms'").fetchone()
        rows = connection.execute(
            "SELECT b.first_seq, b.last_seq, b.first_step, b.last_step, (f.ms + ?) / 1000.0, "
            "(l.ms + ?) / 1000.0, b.n, b.sum, b.min, b.max, b.first, b.last, b.odd FROM block b "
            "JOIN record f ON f.seq = b.first_seq JOIN record l ON l.seq = b.last_seq "
            "WHERE b.series IN (SELECT id FROM series WHERE name = ?) ORDER BY b.first_seq",
            (first_ms, first_ms, name),
        )
        return [
            Sums._make((*row[:2], _integer(row[2]), _integer(row[3]), *row[4:]))
            for row in rows.fetchall()
        ]
    except sqlite3.Error as error:
        raise damaged(path, error) from error
    finally:
        connection.close()


@dataclass(slots=True)
class Places:
    """Where and when the records from one number to another stand; NaN for one without a step."""

    steps: array[float]
    ats: array[float]


def sealed_places(path: Path, first: int, last: int) -> Places:
    """Return the steps and times of the records of a segment in a span, both ends included."""
    connection = open_sealed(path)
    try:
        (first_ms,) = connection.execute("SELECT value FROM meta WHERE key='first_ms'").fetchone()
        rows = connection.execute(
            "SELECT seq, step, ms FROM record WHERE seq BETWEEN ? AND ? ORDER BY seq", (first, last)
        ).fetchall()
    except sqlite3.Error as error:
        raise damaged(path, error) from error
    finally:
        connection.close()
    places = Places(array("d", [math.nan]), array("d", [0.0]))
    places.steps *= last - first + 1
    places.ats *= last - first + 1
    for seq, step, ms in rows:
        if step is not None:
            places.steps[seq - first] = float(step)
        places.ats[seq - first] = (first_ms + ms) / 1000
    return places


Span = tuple[int, int]
"""Numbers of the first and the last record, counted from the segment's first."""


def sealed_values(path: Path, name: str, spans: Mapping[Span, Places]) -> Values:
    """Return the points of a metric in some spans of records, in order.

    Args:
        spans: Each with where its records stand.
    """
    found = Values()
    connection = open_sealed(path)
    try:
        series = connection.execute("SELECT id, class FROM series WHERE name = ?", (name,))
        for number, kind in series.fetchall():
            for (first, last), places in spans.items() if kind in _NUMERIC else ():
                _read(connection, number << SEQ_BITS, kind, first, last, places, found)
        return found
    except sqlite3.Error as error:
        raise damaged(path, error) from error
    finally:
        connection.close()


def _read(
    connection: sqlite3.Connection,
    base: int,
    kind: str,
    first: int,
    last: int,
    places: Places,
    found: Values,
) -> None:
    rows = connection.execute(
        "SELECT id, value FROM point WHERE id BETWEEN ? AND ? ORDER BY id",
        (base + first, base + last),
    ).fetchall()
    steps, ats, values = places.steps, places.ats, [row[1] for row in rows]
    if len(rows) < len(steps):
        wanted = [row[0] - base - first for row in rows]
        steps = array("d", map(steps.__getitem__, wanted))
        ats = array("d", map(ats.__getitem__, wanted))
    if any(map(math.isnan, steps)):
        kept = [at for at, step in enumerate(steps) if not math.isnan(step)]
        steps, ats = array("d", (steps[at] for at in kept)), array("d", (ats[at] for at in kept))
        values = [values[at] for at in kept]
    if kind == "special":
        found.odd += zip(steps, ats, map(DECODE[kind], values), strict=True)
        return
    found.steps.extend(steps)
    found.ats.extend(ats)
    found.values.extend(map(float, values) if kind == "bigint" else values)


def _integer(step: object) -> int | None:
    """Return a step as a number; one beyond 64 bits is text, and none here."""
    return step if isinstance(step, int) else None
