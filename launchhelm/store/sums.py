"""Whether the values in a sealed segment are still those of which it keeps sums.

A segment has no checksum of its rows. It holds what `block` says of each 256 consecutive points,
and that is made again here from the points. A change that alters neither their number, sum,
extremes nor ends goes unseen: of a text, of a step within, of digits that vanish in the sum.
"""

from __future__ import annotations

import math
import operator
import sqlite3
from collections.abc import Iterator, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, Final  # Any: cells of a table.

from launchhelm.store.columns import BLOCK_COLUMNS
from launchhelm.store.connection import damaged, open_sealed
from launchhelm.store.schema import BLOCK_POINTS, MAX_RECORDS, SEQ_BITS

_SUMMED: Final = ("float", "int", "bool")


def altered(path: Path) -> list[str]:
    """Name the metrics of a segment whose points are not those that its sums were made of.

    Raises:
        FileNotFoundError, StorageError: As `open_sealed`; and a damaged page.
    """
    connection = open_sealed(path)
    try:
        (said,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if said != "ok":
            raise sqlite3.DatabaseError(said)
        return list(_altered(connection))
    except (sqlite3.Error, OverflowError) as error:
        raise damaged(path, sqlite3.DatabaseError(str(error))) from error
    finally:
        connection.close()


def _altered(connection: sqlite3.Connection) -> Iterator[str]:
    steps: dict[int, Any] = dict(connection.execute("SELECT seq, step FROM record"))
    series: dict[str, list[tuple[int, str]]] = {}
    for number, name, label in connection.execute("SELECT id, name, class FROM series ORDER BY id"):
        series.setdefault(name, []).append((number, label))
    known = {own[0][0] for own in series.values()}
    for name, own in series.items():
        rows = connection.execute(
            f"SELECT {', '.join(BLOCK_COLUMNS)} FROM block WHERE series = ? ORDER BY first_seq",
            (own[0][0],),
        ).fetchall()
        points = _points(connection, own)
        parts = [points[at : at + BLOCK_POINTS] for at in range(0, len(points), BLOCK_POINTS)]
        if len(rows) != len(parts) or not all(map(_fits, rows, parts, [steps] * len(rows))):
            yield name
    for (number,) in connection.execute("SELECT DISTINCT series FROM block").fetchall():
        if number not in known:
            yield f"series {number}"
    # Points of a series that is not there any more belong to no name.
    (count,) = connection.execute("SELECT count(*) FROM point").fetchone()
    (summed,) = connection.execute("SELECT total(n) FROM block").fetchone()
    if count != summed:
        yield f"{count:,} points, and sums of {int(summed):,}"


def _points(
    connection: sqlite3.Connection, series: Sequence[tuple[int, str]]
) -> list[tuple[int, Any]]:
    """Return number and value of the points of a name; None for a value that is in no sum."""
    found: list[tuple[int, Any]] = []
    for number, label in series:
        base = number << SEQ_BITS
        rows = connection.execute(
            "SELECT id - ?, value FROM point WHERE id BETWEEN ? AND ? ORDER BY id",
            (base, base, base + MAX_RECORDS),
        )
        found += rows if label in _SUMMED else ((seq, None) for seq, _ in rows)
    return sorted(found, key=operator.itemgetter(0))


def _fits(row: Sequence[Any], part: Sequence[tuple[int, Any]], steps: dict[int, Any]) -> bool:
    (first_seq, _), (last_seq, _) = part[0], part[-1]
    numbers = [value for _, value in part if value is not None]
    if not all(isinstance(value, int | float) for value in numbers):
        return False
    where = (first_seq, last_seq, steps.get(first_seq), steps.get(last_seq), len(part))
    ends = (min(numbers), max(numbers), numbers[0], numbers[-1]) if numbers else (None,) * 4
    total, odd = row[6], row[11]
    return (
        (tuple(row[1:6]), tuple(row[7:11]), odd) == (where, ends, len(part) - len(numbers))
        and (total is None) is not bool(numbers)
        and (not numbers or _is_sum(total, numbers))
    )


def _is_sum(total: Any, numbers: Sequence[float]) -> bool:
    """Whether a total is what some Python makes of the numbers; from 3.12 on it compensates."""
    if total is None or isinstance(total, str | bytes):
        return False
    ours = float(sum(numbers))
    if total == ours:
        return True
    if all(isinstance(value, int) for value in numbers):
        return False
    if total in (float(reduce(operator.add, numbers, 0)), _compensated(numbers)):
        return True
    # Integers among floats are added in ways of their own.
    mixed = any(isinstance(value, int) for value in numbers)
    scale = max(map(abs, numbers)) * len(numbers)
    return not math.isfinite(ours) or (mixed and math.isclose(total, ours, abs_tol=scale * 1e-15))


def _compensated(numbers: Sequence[float]) -> float:
    total, lost = 0.0, 0.0
    for value in numbers:
        new = total + value
        lost += (total - new) + value if abs(total) >= abs(value) else (value - new) + total
        total = new
    return total + lost if lost and math.isfinite(lost) else total
