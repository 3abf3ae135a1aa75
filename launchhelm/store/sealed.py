"""Questions to a sealed segment that need not read it whole.

`segment.sealed_records` and `sealed_points` give everything; these give what a view needs of a
large segment in a few milliseconds. The errors are those of `open_sealed`; StorageError also for
a damaged page.
"""

from __future__ import annotations

import heapq
import json
import sqlite3
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from launchhelm.records import MetricValue, Record
from launchhelm.store import layout
from launchhelm.store.columns import DECODE
from launchhelm.store.connection import damaged, open_sealed
from launchhelm.store.schema import MAX_RECORDS, SEQ_BITS
from launchhelm.store.segment import Point, sealed_records

METRIC_KINDS: Final = frozenset({"m", "sys"})


@dataclass(frozen=True, slots=True)
class SealedMeta:
    """What a segment says about itself.

    Args:
        opening: The `open` line of its journal.
        first, last: Numbers of its first and last record.
        records: How many it holds.
    """

    opening: Mapping[str, Any]
    first: int
    last: int
    records: int


@contextmanager
def _open(path: Path) -> Iterator[sqlite3.Connection]:
    connection = open_sealed(path)
    try:
        yield connection
    except sqlite3.Error as error:
        raise damaged(path, error) from error
    finally:
        connection.close()


def sealed_meta(path: Path) -> SealedMeta:
    """Return what a segment says about itself."""
    with _open(path) as connection:
        return _meta(connection)


def sealed_entries(path: Path, kinds: Collection[str], *, from_seq: int = 0) -> Iterator[Record]:
    """Yield the records of some kinds in order; cheap where metric records are not among them."""
    if not METRIC_KINDS.isdisjoint(kinds):
        yield from sealed_records(path, from_seq=from_seq, kinds=kinds)
        return
    with _open(path) as connection:
        yield from _entries(connection, path, kinds, from_seq)


@dataclass(frozen=True, slots=True)
class Glance:
    """A segment at one look: itself, its records of some kinds, the newest value per metric."""

    meta: SealedMeta
    records: list[Record]
    newest: dict[str, MetricValue]


def sealed_glance(path: Path, kinds: Collection[str], *, with_newest: bool) -> Glance:
    """Return what a list of runs or processes needs of a segment, opening it once."""
    with _open(path) as connection:
        records = list(_entries(connection, path, kinds, 0))
        newest = _newest(connection) if with_newest else {}
        return Glance(_meta(connection), records, newest)


def sealed_names(path: Path) -> dict[str, str]:
    """Return the metric names of a segment, each with the class of its first values."""
    with _open(path) as connection:
        rows = connection.execute("SELECT name, class FROM series ORDER BY id DESC")
        return dict(rows.fetchall())


def sealed_step_range(path: Path) -> tuple[int, int] | None:
    """Return the lowest and the highest step of any record; None when no record has a step."""
    with _open(path) as connection:
        low, high = connection.execute("SELECT min(step), max(step) FROM record").fetchone()
    return None if low is None else (int(low), int(high))


def sealed_first_logged(path: Path) -> int | None:
    """Return the step of the first metrics that have one; None when there are none."""
    # Metric records alone have no entry.
    wanted = "SELECT step FROM record WHERE step IS NOT NULL AND seq NOT IN (SELECT seq FROM entry)"
    with _open(path) as connection:
        row = connection.execute(f"{wanted} ORDER BY seq LIMIT 1").fetchone()
    return None if row is None else int(row[0])


def sealed_ends(
    path: Path,
    name: str,
    limit: int,
    *,
    newest: bool,
    step_from: int | None = None,
    step_to: int | None = None,
) -> list[Point]:
    """Return the points of one metric with the highest (or lowest) steps, at most `limit`.

    Points without a step count as lowest, and are left out where bounds are given.
    """
    order = "DESC" if newest else "ASC"
    where = ""
    bounds: list[int] = []
    for sign, bound in ((">=", step_from), ("<=", step_to)):
        if bound is not None:
            where += f" AND r.step {sign} ?"
            bounds.append(bound)
    tail = f"{where} ORDER BY r.step {order}, p.id {order} LIMIT ?"
    return _points(path, name, tail, bounds, limit)


def sealed_latest(path: Path, name: str, limit: int) -> list[Point]:
    """Return the points of one metric with the highest record numbers, newest first."""
    points = _points(path, name, " ORDER BY p.id DESC LIMIT ?", [], limit)
    return sorted(points, key=lambda point: point[0], reverse=True)[:limit]


def _points(path: Path, name: str, tail: str, bounds: list[int], limit: int) -> list[Point]:
    with _open(path) as connection:
        first_seq, first_ms = _origin(connection)
        streams: list[list[Point]] = []
        series = connection.execute("SELECT id, class FROM series WHERE name = ?", (name,))
        for number, kind in series.fetchall():
            base = number << SEQ_BITS
            decode = DECODE.get(kind)
            rows = connection.execute(
                "SELECT p.id + ?, r.step, (r.ms + ?) / 1000.0, p.value, r.axes FROM point p "
                f"JOIN record r ON r.seq = p.id & {MAX_RECORDS} "
                f"WHERE p.id BETWEEN ? AND ?{tail}",
                (first_seq - base, first_ms, base, base + MAX_RECORDS, *bounds, limit),
            )
            streams.append(
                [
                    (
                        seq,
                        int(step) if isinstance(step, str) else step,
                        at,
                        decode(value) if decode else value,
                        axes,
                    )
                    for seq, step, at, value, axes in rows
                ]
            )
    return streams[0] if len(streams) == 1 else list(heapq.merge(*streams, key=lambda p: p[0]))


def _meta(connection: sqlite3.Connection) -> SealedMeta:
    meta = dict(connection.execute("SELECT key, value FROM meta"))
    opening = json.loads(meta["open"])
    return SealedMeta(opening, meta["first_seq"], meta["last_seq"], meta["records"])


def _entries(
    connection: sqlite3.Connection, path: Path, kinds: Collection[str], from_seq: int
) -> Iterator[Record]:
    name = layout.parse_segment(path.name)
    if name is None:
        return
    first_seq, first_ms = _origin(connection)
    marks = ",".join("?" * len(kinds))
    rows = connection.execute(
        "SELECT e.seq, r.step, r.ms, r.axes, e.kind, e.body FROM entry e "
        f"JOIN record r ON r.seq = e.seq WHERE e.seq >= ? AND e.kind IN ({marks}) "
        "ORDER BY e.seq",
        (max(0, from_seq - first_seq), *kinds),
    )
    for seq, step, ms, axes, kind, body in rows:
        yield Record(
            writer=name.writer,
            seq=first_seq + seq,
            kind=kind,
            at=(first_ms + ms) / 1000,
            step=int(step) if isinstance(step, str) else step,
            body=json.loads(body) if body else {},
            axes=json.loads(axes) if axes else {},
        )


def _newest(connection: sqlite3.Connection) -> dict[str, MetricValue]:
    newest: dict[str, tuple[int, MetricValue]] = {}
    for number, name, kind in connection.execute("SELECT id, name, class FROM series").fetchall():
        base = number << SEQ_BITS
        row = connection.execute(
            "SELECT id, value FROM point WHERE id BETWEEN ? AND ? ORDER BY id DESC LIMIT 1",
            (base, base + MAX_RECORDS),
        ).fetchone()
        if row is not None and row[0] - base >= newest.get(name, (-1, 0))[0]:
            decode = DECODE.get(kind)
            newest[name] = (row[0] - base, decode(row[1]) if decode else row[1])
    return {name: value for name, (_, value) in newest.items()}


def _origin(connection: sqlite3.Connection) -> tuple[int, int]:
    rows = dict(
        connection.execute("SELECT key, value FROM meta WHERE key IN ('first_seq', 'first_ms')")
    )
    return rows["first_seq"], rows["first_ms"]
