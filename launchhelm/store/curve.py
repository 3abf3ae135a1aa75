"""What a chart needs of a sealed segment: the sums of its points, or the points of some records.

The errors are those of `open_sealed`; StorageError also for a damaged page.
"""

from __future__ import annotations

import math
import sqlite3
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from launchhelm.store.columns import DECODE
from launchhelm.store.connection import damaged, open_sealed
from launchhelm.store.schema import MAX_RECORDS, SEQ_BITS

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


def sealed_values(path: Path, name: str, spans: list[tuple[int, int]]) -> Values:
    """Return the points of a metric in some spans of records, both ends included, in order."""
    found = Values()
    connection = open_sealed(path)
    try:
        (first_ms,) = connection.execute("SELECT value FROM meta WHERE key='first_ms'").fetchone()
        series = connection.execute("SELECT id, class FROM series WHERE name = ?", (name,))
        classes = [each for each in series.fetchall() if each[1] in _NUMERIC]
        for first, last in spans:
            _read(connection, classes, first, last, first_ms, found)
        return found
    except sqlite3.Error as error:
        raise damaged(path, error) from error
    finally:
        connection.close()


def _read(
    connection: sqlite3.Connection,
    classes: list[tuple[int, str]],
    first: int,
    last: int,
    first_ms: int,
    found: Values,
) -> None:
    for number, kind in classes:
        base = number << SEQ_BITS
        rows = connection.execute(
            "SELECT r.step, (r.ms + ?) / 1000.0, p.value FROM point p JOIN record r "
            f"ON r.seq = p.id & {MAX_RECORDS} WHERE p.id BETWEEN ? AND ? AND r.step IS NOT NULL "
            "ORDER BY p.id",
            (first_ms, base + first, base + min(last, MAX_RECORDS)),
        ).fetchall()
        if not rows:
            continue
        if kind == "special":
            decode = DECODE[kind]
            found.odd += [(float(step), at, decode(value)) for step, at, value in rows]
            continue
        steps, ats, values = zip(*rows, strict=True)
        found.steps.extend(map(float, steps))
        found.ats.extend(ats)
        found.values.extend(map(float, values) if kind == "bigint" else values)


def _integer(step: object) -> int | None:
    """Return a step as a number; one beyond 64 bits is text, and none here."""
    return step if isinstance(step, int) else None


def is_finite(value: object) -> bool:
    """Whether a value of a metric is a finite number; a boolean is one."""
    return isinstance(value, int | float) and math.isfinite(value)
