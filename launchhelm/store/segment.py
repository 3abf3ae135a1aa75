"""Sealed segments: a complete journal as an immutable SQLite file, and the way back to records.

A segment is built in memory, written under a hidden name, compared with its journal row by row, and
only then takes the journal's place. Whatever fails, the journal stays and is complete without it.

Statements carry many rows each. SQLite lets go of the interpreter lock once per step, and a thread
that has to win it back for every row would need minutes beside a busy training loop.
"""

from __future__ import annotations

import heapq
import json
import os
import sqlite3
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, TypeAlias

from launchhelm._clock import SYSTEM_CLOCK, Clock
from launchhelm.errors import StorageError
from launchhelm.records import MetricValue, Record, WriterId
from launchhelm.store import layout
from launchhelm.store.body import METRIC_KINDS
from launchhelm.store.columns import DECODE, Content, Table
from launchhelm.store.connection import damaged, memory, open_sealed
from launchhelm.store.line import dumps
from launchhelm.store.schema import MAX_RECORDS, SCRIPT, SEQ_BITS

_SLICE_S: Final = 0.01
_REST_S: Final = 0.001
_WRITE_BYTES: Final = 1 << 20
_INT64: Final = 1 << 63
_RECORDS_AT_ONCE: Final = 2048
_VALUES_AT_ONCE: Final = 16_384
"""Of metrics, about: what is read at a time."""

Point: TypeAlias = tuple[int, int | None, float, MetricValue, str | None]
"""seq, step, time, value, axes as JSON text."""


def seal(journal: Path, *, clock: Clock = SYSTEM_CLOCK) -> Path:
    """Turn a complete journal of this process into a sealed segment; return the segment's path.

    Works in slices of about 10 ms, resting between them, so that other threads run. Takes memory
    of about six times the journal's size at its peak.

    Raises:
        OSError, StorageError, sqlite3.Error, MemoryError: The journal is untouched.
    """
    name = layout.parse_segment(journal.name)
    if name is None or name.sealed:
        raise StorageError(f"{journal.name} is not a journal.")
    pause = _Pacer().pause
    content = Content.read(journal, pause)
    image = _image(content, pause, sealed_at=clock.wall())
    sealed = journal.parent / str(layout.SegmentName(name.writer, name.number, sealed=True))
    hidden = journal.parent / layout.hidden_name(sealed.name)
    try:
        _write(hidden, image, pause)
        del image
        _verify(hidden, content, pause)
        os.rename(hidden, sealed)
    except BaseException:
        with suppress(OSError):
            os.unlink(hidden)
        raise
    _sync_directory(journal.parent)
    os.unlink(journal)
    return sealed


def sealed_records(
    path: Path,
    *,
    from_seq: int = 0,
    kinds: Collection[str] | None = None,
    limit: int | None = None,
) -> Iterator[Record]:
    """Yield the records of a segment in order, from a number on, of all kinds or some.

    Args:
        limit: How many are looked at, at most.

    Raises:
        FileNotFoundError, StorageError: As `open_sealed`; StorageError also for a damaged page.
    """
    name = layout.parse_segment(path.name)
    if name is None:
        raise StorageError(f"{path.name} is not the name of a segment.")
    connection = open_sealed(path)
    try:
        yield from _records(connection, name.writer, from_seq, kinds, limit)
    except sqlite3.Error as error:
        raise damaged(path, error) from error
    finally:
        connection.close()


def sealed_points(
    path: Path, name: str, *, step_from: int | None = None, step_to: int | None = None
) -> Iterator[Point]:
    """Yield the points of one metric in order of their records, within inclusive step bounds.

    Raises:
        FileNotFoundError, StorageError: As `sealed_records`.
    """
    connection = open_sealed(path)
    try:
        sources = connection.execute("SELECT id, class FROM series WHERE name = ?", (name,))
        streams = [
            _points(connection, series, kind, step_from, step_to)
            for series, kind in sources.fetchall()
        ]
        yield from streams[0] if len(streams) == 1 else heapq.merge(*streams, key=itemgetter(0))
    except sqlite3.Error as error:
        raise damaged(path, error) from error
    finally:
        connection.close()


# --- from rows to a file --------------------------------------------------------------------------


class _Pacer:
    """Rests a little after each slice of work."""

    def __init__(self) -> None:
        self._slice_end = time.monotonic() + _SLICE_S

    def pause(self) -> None:
        """Rest if the slice is over; called after every few hundred microseconds of work."""
        if time.monotonic() > self._slice_end:
            time.sleep(_REST_S)
            self._slice_end = time.monotonic() + _SLICE_S


def _image(content: Content, pause: Callable[[], None], *, sealed_at: float) -> bytes:
    """Build the segment in memory and return its bytes."""
    connection = memory()
    try:
        connection.executescript(SCRIPT)
        connection.execute("BEGIN")
        meta = {
            "open": dumps(content.opening),
            "first_seq": content.first_seq,
            "last_seq": content.first_seq + content.seqs[-1],
            "first_ms": content.first_ms,
            "records": len(content.seqs),
            "sealed_at": sealed_at,
        }
        Table.of_rows("meta", ("key", "value"), list(meta.items())).insert(connection, pause)
        for table in content.tables():
            table.insert(connection, pause)
        for table in content.blocks():
            table.insert(connection, pause)
        connection.execute("COMMIT")
        return connection.serialize()
    finally:
        connection.close()


def _write(path: Path, data: bytes, pause: Callable[[], None]) -> None:
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest[:_WRITE_BYTES]) :]
            pause()
        os.fchmod(descriptor, 0o440)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _verify(path: Path, content: Content, pause: Callable[[], None]) -> None:
    """Compare a written segment with the journal's content, row by row."""
    connection = open_sealed(path)
    try:
        counts = {"record": 0, "entry": 0, "series": 0, "point": 0}
        for table in content.tables():
            counts[table.name] += len(table)
            if not table.matches(connection, pause):
                raise StorageError(f"The segment {path.name} differs from its journal.")
        for name, expected in counts.items():
            (found,) = connection.execute(f"SELECT count(*) FROM {name}").fetchone()
            if found != expected:
                raise StorageError(f"The segment {path.name} has {found} rows in {name}.")
    finally:
        connection.close()


def _sync_directory(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)


# --- from a file back to records ------------------------------------------------------------------


def _records(
    connection: sqlite3.Connection,
    writer: WriterId,
    from_seq: int,
    kinds: Collection[str] | None,
    limit: int | None,
) -> Iterator[Record]:
    first_seq, first_ms = _origin(connection)
    wanted = max(0, from_seq - first_seq)
    bodies = _bodies(connection, wanted, limit) if _wants_metrics(kinds) else iter(())
    head = next(bodies, None)
    rows = connection.execute(
        "SELECT r.seq, r.step, r.ms, r.axes, e.kind, e.body FROM record r "
        "LEFT JOIN entry e ON e.seq = r.seq WHERE r.seq >= ? ORDER BY r.seq LIMIT ?",
        (wanted, -1 if limit is None else limit),
    )
    for seq, step, ms, axes, kind, text in rows:
        body: dict[str, Any] = {}
        while head is not None and head[0] <= seq:
            if head[0] == seq:
                body = head[1]
            head = next(bodies, None)
        kind = "m" if kind is None else kind
        if kinds is not None and kind not in kinds:
            continue
        yield Record(
            writer=writer,
            seq=first_seq + seq,
            kind=kind,
            at=(first_ms + ms) / 1000,
            step=int(step) if isinstance(step, str) else step,
            body=body if text is None else json.loads(text),
            axes=json.loads(axes) if axes else {},
        )


def _wants_metrics(kinds: Collection[str] | None) -> bool:
    return kinds is None or any(kind in kinds for kind in METRIC_KINDS)


def _bodies(
    connection: sqlite3.Connection, wanted: int, limit: int | None
) -> Iterator[tuple[int, dict[str, MetricValue]]]:
    """Yield (seq, body) of the metric records in order, fetched some records at a time."""
    most = _RECORDS_AT_ONCE if limit is None else min(_RECORDS_AT_ONCE, limit)
    series = connection.execute("SELECT id, name, class FROM series ORDER BY id").fetchall()
    (end,) = connection.execute("SELECT max(seq) FROM record").fetchone()
    width = max(1, min(most, _VALUES_AT_ONCE // max(1, len(series))))
    while series and wanted <= end:
        last = min(wanted + width - 1, MAX_RECORDS)
        bodies = _window(connection, series, wanted, last)
        if bodies is None:
            width = max(1, width // 4)
            continue
        yield from sorted(bodies.items())
        wanted = last + 1
        density = max(1, sum(map(len, bodies.values())))
        width = max(1, min(most, width * _VALUES_AT_ONCE // density))


def _window(
    connection: sqlite3.Connection, series: Sequence[tuple[int, str, str]], first: int, last: int
) -> dict[int, dict[str, MetricValue]] | None:
    """Return the bodies of records from one to another; None for several that fill the memory."""
    bodies: dict[int, dict[str, MetricValue]] = {}
    found = 0
    for number, name, kind in series:
        base = number << SEQ_BITS
        rows = connection.execute(
            "SELECT id & ?, value FROM point WHERE id BETWEEN ? AND ?",
            (MAX_RECORDS, base + first, base + last),
        ).fetchall()
        found += len(rows)
        if found > 2 * _VALUES_AT_ONCE and first < last:
            return None
        decode = DECODE.get(kind)
        for seq, value in rows:
            body = bodies.get(seq)
            if body is None:
                body = bodies[seq] = {}
            body[name] = decode(value) if decode else value
    return bodies


def _points(
    connection: sqlite3.Connection,
    series: int,
    kind: str,
    step_from: int | None,
    step_to: int | None,
) -> Iterator[Point]:
    first_seq, first_ms = _origin(connection)
    base = series << SEQ_BITS
    bounds, values = "", [first_seq - base, first_ms, base, base + MAX_RECORDS]
    # A step beyond 64 bits is text, which SQLite sorts after every number; such bounds are checked
    # below instead.
    limits = [(">=", step_from), ("<=", step_to)]
    plain = all(limit is None or -_INT64 <= limit < _INT64 for _, limit in limits)
    for sign, limit in limits if plain else ():
        if limit is not None:
            bounds += f" AND r.step {sign} ?"
            values.append(limit)
    rows = connection.execute(
        "SELECT p.id + ?, r.step, (r.ms + ?) / 1000.0, p.value, r.axes FROM point p "
        f"JOIN record r ON r.seq = p.id & {MAX_RECORDS} WHERE p.id BETWEEN ? AND ?{bounds} "
        "ORDER BY p.id",
        values,
    )
    decode = DECODE.get(kind)
    if decode is None and plain:
        # The common case, at the speed of SQLite. Only here may a step be text.
        for row in rows:
            yield row if not isinstance(row[1], str) else (row[0], int(row[1]), *row[2:])
        return
    for seq, step, at, value, axes in rows:
        step = int(step) if isinstance(step, str) else step
        if step is None and (step_from is not None or step_to is not None):
            continue
        if step_from is not None and step < step_from:
            continue
        if step_to is not None and step > step_to:
            continue
        yield seq, step, at, decode(value) if decode else value, axes


def _origin(connection: sqlite3.Connection) -> tuple[int, int]:
    rows = dict(connection.execute("SELECT key, value FROM meta WHERE key LIKE 'first_%'"))
    return rows["first_seq"], rows["first_ms"]
