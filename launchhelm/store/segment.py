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
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, TypeAlias

from launchhelm._clock import SYSTEM_CLOCK, Clock
from launchhelm.errors import StorageError
from launchhelm.records import MetricValue, Record, WriterId
from launchhelm.store import layout
from launchhelm.store.body import METRIC_KINDS
from launchhelm.store.connection import memory, open_sealed
from launchhelm.store.line import dumps, open_line, special, untag
from launchhelm.store.schema import BLOCK_POINTS, MAX_RECORDS, SCRIPT, SEQ_BITS

_ROWS_PER_STATEMENT: Final = 200
"""Times at most four columns this stays below 999, the lowest limit of variables of any SQLite."""

_SLICE_S: Final = 0.01
_REST_S: Final = 0.001
_WRITE_BYTES: Final = 1 << 20
_INT64: Final = 1 << 63

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
    content = _Content.read(journal, pause)
    image = _image(content, pause, sealed_at=clock.wall())
    sealed = journal.parent / str(layout.SegmentName(name.writer, name.number, sealed=True))
    hidden = journal.parent / layout.hidden_name(sealed.name)
    try:
        _write(hidden, image, pause)
        del image
        _verify(hidden, content, pause)
        os.rename(hidden, sealed)
    except BaseException:
        try:
            os.unlink(hidden)
        except OSError:
            pass
        raise
    _sync_directory(journal.parent)
    os.unlink(journal)
    return sealed


def sealed_records(
    path: Path, *, from_seq: int = 0, kinds: Collection[str] | None = None
) -> Iterator[Record]:
    """Yield the records of a segment in order, from a number on, of all kinds or some.

    Raises:
        FileNotFoundError, StorageError: As `open_sealed`; StorageError also for a damaged page.
    """
    name = layout.parse_segment(path.name)
    if name is None:
        raise StorageError(f"{path.name} is not the name of a segment.")
    connection = open_sealed(path)
    try:
        yield from _records(connection, name.writer, from_seq, kinds)
    except sqlite3.Error as error:
        raise _damaged(path, error) from error
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
        raise _damaged(path, error) from error
    finally:
        connection.close()


def _damaged(path: Path, error: sqlite3.Error) -> StorageError:
    return StorageError(
        f"The sealed segment {path.name} is damaged: {error}.",
        kept="Other segments are not affected, and nothing in this one was changed.",
        remedy="If the run directory was copied, copy it again.",
    )


# --- from a journal to rows -----------------------------------------------------------------------


@dataclass
class _Column:
    """The values of one metric and class, with the numbers of their records."""

    series: int
    name: str
    kind: str
    seqs: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] | list[Any] = field(default_factory=list)


@dataclass
class _Content:
    """Everything a journal says, in the columns of a segment. Numbers count from the first."""

    opening: Mapping[str, Any]
    first_seq: int = 0
    first_ms: int = 0
    seqs: array[int] = field(default_factory=lambda: array("q"))
    steps: list[Any] = field(default_factory=list)
    ms: array[int] = field(default_factory=lambda: array("q"))
    axes: list[str | None] = field(default_factory=list)
    columns: dict[str, dict[str, _Column]] = field(default_factory=dict)
    entries: list[tuple[int, str, str | None]] = field(default_factory=list)
    series_count: int = 0

    @classmethod
    def read(cls, journal: Path, pause: Callable[[], None]) -> _Content:
        """Read a whole journal; any bad line means that it is not ready for sealing."""
        content: _Content | None = None
        with open(journal, "rb") as file:
            for number, line in enumerate(file):
                value = open_line(line[:-1]) if line.endswith(b"\n") else None
                if value is None:
                    raise StorageError(f"Line {number + 1} of {journal.name} is damaged.")
                if number == 0:
                    content = cls(value)
                elif content is not None:
                    content.add(value)
                if not number & 63:
                    pause()
        if content is None or not content.seqs:
            raise StorageError(f"{journal.name} holds no record.")
        return content

    def add(self, value: Mapping[str, Any]) -> None:
        """Add one record."""
        at, step, kind, body = value["t"], value["s"], value["k"], value["v"]
        ms = round(at * 1000)
        if not self.seqs:
            self.first_seq, self.first_ms = value["q"], ms
        seq = value["q"] - self.first_seq
        if not 0 <= seq <= MAX_RECORDS or ms / 1000 != at:
            raise StorageError(f"Record {value['q']} does not fit a segment of this format.")
        if type(step) is int and not -_INT64 <= step < _INT64:
            step = str(step)
        axes = value.get("a")
        self.seqs.append(seq)
        self.steps.append(step)
        self.ms.append(ms - self.first_ms)
        self.axes.append(dumps(axes) if axes else None)
        if kind not in METRIC_KINDS:
            self.entries.append((seq, kind, dumps(body)))
            return
        # "m" is understood; the other metric kinds keep their word, without a body.
        if kind != "m":
            self.entries.append((seq, kind, None))
        elif not body:
            self.entries.append((seq, kind, "{}"))
        columns = self.columns
        for name, item in body.items():
            if type(item) is float:
                label = "float"
            else:
                label, item = classify(item)
            column = columns.get(name, _NONE).get(label) or self._new_column(name, label)
            column.seqs.append(seq)
            column.values.append(item)

    def _new_column(self, name: str, label: str) -> _Column:
        self.series_count += 1
        values: array[float] | list[Any] = array("d") if label == "float" else []
        column = _Column(self.series_count, name, label, values=values)
        self.columns.setdefault(name, {})[label] = column
        return column

    def all_columns(self) -> Iterator[_Column]:
        """Yield the columns in the order of their series numbers."""
        every = (column for classes in self.columns.values() for column in classes.values())
        yield from sorted(every, key=lambda column: column.series)

    def tables(self) -> Iterator[_Table]:
        """Yield the rows of all tables but the derived ones, table by table in key order."""
        yield _Table(
            "record", ("seq", "step", "ms", "axes"), (self.seqs, self.steps, self.ms, self.axes)
        )
        yield _Table.of_rows("entry", ("seq", "kind", "body"), self.entries)
        series = [(column.series, column.name, column.kind) for column in self.all_columns()]
        yield _Table.of_rows("series", ("id", "name", "class"), series)
        for column in self.all_columns():
            base = column.series << SEQ_BITS
            ids = array("q", [base + seq for seq in column.seqs])
            yield _Table("point", ("id", "value"), (ids, column.values))


_NONE: Final[dict[str, _Column]] = {}


def classify(value: Any) -> tuple[str, Any]:
    """Return the class of a metric value as JSON gave it, and what its column holds."""
    if isinstance(value, bool):
        return "bool", int(value)
    if isinstance(value, float):
        return "float", value
    if isinstance(value, int):
        return ("int", value) if -_INT64 <= value < _INT64 else ("bigint", str(value))
    if isinstance(value, str):
        return "str", value
    if isinstance(value, dict) and isinstance(untag(value), float):
        return "special", value["$number"]
    return "json", dumps(value)


_DECODE: Final[Mapping[str, Callable[[Any], Any]]] = {
    "bool": bool,
    "special": lambda text: untag({"$number": text}),
    "bigint": int,
    "json": json.loads,
}


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


@dataclass(frozen=True)
class _Table:
    """Some rows of one table, as columns of equal length."""

    name: str
    names: Sequence[str]
    columns: Sequence[Sequence[Any]]

    @classmethod
    def of_rows(cls, name: str, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> _Table:
        return cls(name, names, list(zip(*rows, strict=True)) or [()] * len(names))

    def insert(self, connection: sqlite3.Connection, pause: Callable[[], None]) -> None:
        """Insert all rows."""
        for count, flat in self._batches():
            connection.execute(f"INSERT INTO {self.name} VALUES {self._marks(count)}", flat)
            pause()

    def matches(self, connection: sqlite3.Connection, pause: Callable[[], None]) -> bool:
        """Whether every row stands in the database with the same values and classes."""
        same = " AND ".join(
            f"t.{name} IS v.{name} AND typeof(t.{name}) = typeof(v.{name})"
            for name in self.names[1:]
        )
        key = self.names[0]
        for count, flat in self._batches():
            (found,) = connection.execute(
                f"WITH v({', '.join(self.names)}) AS (VALUES {self._marks(count)}) "
                f"SELECT count(*) FROM v CROSS JOIN {self.name} t ON t.{key} = v.{key} "
                f"WHERE {same}",
                flat,
            ).fetchone()
            if found != count:
                return False
            pause()
        return True

    def _marks(self, count: int) -> str:
        row = "(" + ",".join("?" * len(self.names)) + ")"
        return ",".join([row] * count)

    def _batches(self) -> Iterator[tuple[int, list[Any]]]:
        """Yield the rows of each statement as one flat list of parameters."""
        width, total = len(self.columns), len(self.columns[0])
        for start in range(0, total, _ROWS_PER_STATEMENT):
            count = min(_ROWS_PER_STATEMENT, total - start)
            flat: list[Any] = [None] * (count * width)
            for index, column in enumerate(self.columns):
                flat[index::width] = column[start : start + count]
            yield count, flat


def _image(content: _Content, pause: Callable[[], None], *, sealed_at: float) -> bytes:
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
            "points": sum(len(column.seqs) for column in content.all_columns()),
            "sealed_at": sealed_at,
        }
        _Table.of_rows("meta", ("key", "value"), list(meta.items())).insert(connection, pause)
        for table in content.tables():
            table.insert(connection, pause)
        for classes in content.columns.values():
            rows = _blocks(content, list(classes.values()), pause)
            connection.executemany(f"INSERT INTO block VALUES ({','.join('?' * 12)})", rows)
        connection.execute("COMMIT")
        return connection.serialize()
    finally:
        connection.close()


def _blocks(
    content: _Content, columns: Sequence[_Column], pause: Callable[[], None]
) -> Iterator[tuple[Any, ...]]:
    """Sum up each 256 consecutive points of one name; `odd` counts those that are no numbers."""
    series = columns[0].series
    seqs: Sequence[int] = columns[0].seqs
    values: Sequence[Any] = columns[0].values
    mixed = len(columns) > 1 or columns[0].kind not in ("float", "int", "bool")
    if mixed:
        pairs = sorted(
            (seq, value if column.kind in ("float", "int", "bool") else None)
            for column in columns
            for seq, value in zip(column.seqs, column.values, strict=True)
        )
        seqs = [seq for seq, _ in pairs]
        values = [value for _, value in pairs]
    steps = _StepOf(content)
    for start in range(0, len(seqs), BLOCK_POINTS):
        part = values[start : start + BLOCK_POINTS]
        first, last = seqs[start], seqs[start + len(part) - 1]
        numbers = [value for value in part if value is not None] if mixed else part
        if numbers:
            total, low, high = float(sum(numbers)), min(numbers), max(numbers)
            ends = numbers[0], numbers[-1]
        else:
            total, low, high, ends = None, None, None, (None, None)
        yield (
            *(series, first, last, steps[first], steps[last], len(part)),
            *(total, low, high, *ends, len(part) - len(numbers)),
        )
        pause()


class _StepOf:
    """The step of a record by its number, where numbers may have gaps."""

    def __init__(self, content: _Content) -> None:
        self._steps = content.steps
        dense = content.seqs[-1] == len(content.seqs) - 1
        self._index = None if dense else {seq: at for at, seq in enumerate(content.seqs)}

    def __getitem__(self, seq: int) -> Any:
        return self._steps[seq if self._index is None else self._index[seq]]


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


def _verify(path: Path, content: _Content, pause: Callable[[], None]) -> None:
    """Compare a written segment with the journal's content, row by row."""
    connection = open_sealed(path)
    try:
        counts = {"record": 0, "entry": 0, "series": 0, "point": 0}
        for table in content.tables():
            counts[table.name] += len(table.columns[0])
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
    connection: sqlite3.Connection, writer: WriterId, from_seq: int, kinds: Collection[str] | None
) -> Iterator[Record]:
    first_seq, first_ms = _origin(connection)
    wanted = max(0, from_seq - first_seq)
    bodies = _bodies(connection, wanted) if _wants_metrics(kinds) else iter(())
    head = next(bodies, None)
    rows = connection.execute(
        "SELECT r.seq, r.step, r.ms, r.axes, e.kind, e.body FROM record r "
        "LEFT JOIN entry e ON e.seq = r.seq WHERE r.seq >= ? ORDER BY r.seq",
        (wanted,),
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
    connection: sqlite3.Connection, wanted: int
) -> Iterator[tuple[int, dict[str, MetricValue]]]:
    """Yield (seq, body) of the metric records, merged from the series without a sort."""
    series = connection.execute("SELECT id, name, class FROM series ORDER BY id").fetchall()

    def values(number: int, name: str, kind: str) -> Iterator[tuple[int, int, str, Any]]:
        base = number << SEQ_BITS
        decode = _DECODE.get(kind)
        for key, value in connection.execute(
            "SELECT id, value FROM point WHERE id BETWEEN ? AND ?",
            (base + wanted, base + MAX_RECORDS),
        ):
            yield key - base, number, name, decode(value) if decode else value

    current, body = -1, {}
    for seq, _, name, value in heapq.merge(*(values(*row) for row in series)):
        if seq != current:
            if body:
                yield current, body
            current, body = seq, {}
        body[name] = value
    if body:
        yield current, body


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
    decode = _DECODE.get(kind)
    if decode is None and plain:
        # The common case, at the speed of SQLite. Only here may a step be text.
        for row in rows:
            yield row if not isinstance(row[1], str) else (row[0], int(row[1]), *row[2:])
        return
    for seq, step, at, value, axes in rows:
        step = int(step) if isinstance(step, str) else step
        if step is None and (step_from is not None or step_to is not None):
            continue
        if step_from is not None and step < step_from or step_to is not None and step > step_to:
            continue
        yield seq, step, at, decode(value) if decode else value, axes


def _origin(connection: sqlite3.Connection) -> tuple[int, int]:
    rows = dict(connection.execute("SELECT key, value FROM meta WHERE key LIKE 'first_%'"))
    return rows["first_seq"], rows["first_ms"]
