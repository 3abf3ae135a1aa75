"""A complete journal as the columns of a segment's tables. Pure but for reading the journal."""

from __future__ import annotations

import json
import sqlite3
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from launchhelm.errors import StorageError
from launchhelm.store.body import METRIC_KINDS
from launchhelm.store.line import dumps, open_line, untag
from launchhelm.store.schema import BLOCK_POINTS, MAX_RECORDS, SEQ_BITS

_ROWS_PER_STATEMENT: Final = 200
"""Times at most four columns this stays below 999, the lowest limit of variables of any SQLite."""

_MAX_GROUPS: Final = 256
_FLOATS: Final = {float}
_INT64: Final = 1 << 63
_NUMERIC: Final = ("float", "int", "bool")

Pause = Callable[[], None]
"""Called between pieces of work of well under a millisecond."""


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


DECODE: Final[Mapping[str, Callable[[Any], Any]]] = {
    "bool": bool,
    "special": lambda text: untag({"$number": text}),
    "bigint": int,
    "json": json.loads,
}
"""Classes whose stored value is not the value itself."""


@dataclass(frozen=True)
class Table:
    """Some rows of one table, as columns of equal length; the first column is the key."""

    name: str
    names: Sequence[str]
    columns: Sequence[Sequence[Any]]

    @classmethod
    def of_rows(cls, name: str, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
        """Turn rows into columns."""
        return cls(name, names, list(zip(*rows, strict=True)) or [()] * len(names))

    def __len__(self) -> int:
        return len(self.columns[0])

    def insert(self, connection: sqlite3.Connection, pause: Pause) -> None:
        """Insert all rows."""
        for count, flat in self._batches():
            connection.execute(f"INSERT INTO {self.name} VALUES {self._marks(count)}", flat)
            pause()

    def matches(self, connection: sqlite3.Connection, pause: Pause) -> bool:
        """Whether every row stands in the database with the same values and classes."""
        key = self.names[0]
        same = " AND ".join(
            f"t.{name} IS v.{name} AND typeof(t.{name}) = typeof(v.{name})"
            for name in self.names[1:]
        )
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
        width, total = len(self.columns), len(self)
        for start in range(0, total, _ROWS_PER_STATEMENT):
            count = min(_ROWS_PER_STATEMENT, total - start)
            flat: list[Any] = [None] * (count * width)
            for index, column in enumerate(self.columns):
                flat[index::width] = column[start : start + count]
            yield count, flat


@dataclass
class _Group:
    """Records that name the same metrics, all with plain floats: the common case, kept flat."""

    width: int
    seqs: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))


@dataclass
class _Column:
    """Values of one metric and class that came any other way."""

    seqs: array[int] = field(default_factory=lambda: array("q"))
    values: list[Any] = field(default_factory=list)


class Content:
    """Everything that a journal says. Record numbers count from its first record.

    Args:
        opening: The journal's `open` line.
    """

    def __init__(self, opening: Mapping[str, Any]) -> None:
        self.opening = opening
        self.first_seq = 0
        self.first_ms = 0
        self.seqs = array("q")
        self._steps: list[Any] = []
        self._ms = array("q")
        self._axes: list[str | None] = []
        self._entries: list[tuple[int, str, str | None]] = []
        self._series: dict[tuple[str, str], int] = {}
        self._groups: dict[tuple[str, ...], _Group] = {}
        self._columns: dict[tuple[str, str], _Column] = {}

    @classmethod
    def read(cls, journal: Path, pause: Pause) -> Content:
        """Read a whole journal.

        Raises:
            OSError: It cannot be read.
            StorageError: It has a damaged line or no record.
        """
        content: Content | None = None
        with open(journal, "rb") as file:
            for index, line in enumerate(file):
                value = open_line(line[:-1]) if line.endswith(b"\n") else None
                if value is None:
                    raise StorageError(f"Line {index + 1} of {journal.name} is damaged.")
                if content is None:
                    content = cls(value)
                else:
                    content.add(value)
                if not index & 15:
                    pause()
        if content is None or not content.seqs:
            raise StorageError(f"{journal.name} holds no record.")
        return content

    def add(self, value: Mapping[str, Any]) -> None:
        """Add one record, as its line says it."""
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
        self._steps.append(step)
        self._ms.append(ms - self.first_ms)
        self._axes.append(dumps(axes) if axes else None)
        if kind not in METRIC_KINDS:
            self._entries.append((seq, kind, dumps(body)))
            return
        # "m" is understood; other metric kinds keep their word, without a body.
        if kind != "m":
            self._entries.append((seq, kind, None))
        elif not body:
            self._entries.append((seq, kind, "{}"))
        self._add_values(seq, body)

    def _add_values(self, seq: int, body: Mapping[str, Any]) -> None:
        if set(map(type, body.values())) == _FLOATS:
            names = tuple(body)
            group = self._groups.get(names)
            if group is None and len(self._groups) < _MAX_GROUPS:
                group = self._groups[names] = _Group(len(names))
                for name in names:
                    self._number(name, "float")
            if group is not None:
                group.seqs.append(seq)
                group.values.extend(body.values())
                return
        for name, item in body.items():
            label, stored = classify(item)
            column = self._columns.get((name, label))
            if column is None:
                self._number(name, label)
                column = self._columns[name, label] = _Column()
            column.seqs.append(seq)
            column.values.append(stored)

    def _number(self, name: str, label: str) -> None:
        self._series.setdefault((name, label), len(self._series) + 1)

    def tables(self) -> Iterator[Table]:
        """Yield the rows of all tables but the derived ones, in key order within a table."""
        yield Table(
            "record", ("seq", "step", "ms", "axes"), (self.seqs, self._steps, self._ms, self._axes)
        )
        yield Table.of_rows("entry", ("seq", "kind", "body"), self._entries)
        series = [(number, *key) for key, number in self._series.items()]
        yield Table.of_rows("series", ("id", "name", "class"), series)
        pieces = self._pieces()
        for (name, label), number in self._series.items():
            seqs, values = self._assemble(name, label, pieces)
            base = number << SEQ_BITS
            yield Table("point", ("id", "value"), (array("q", [base + s for s in seqs]), values))

    def blocks(self) -> Iterator[Table]:
        """Yield the sums of each 256 consecutive points, name by name."""
        labels: dict[str, list[str]] = {}
        for name, label in self._series:
            labels.setdefault(name, []).append(label)
        pieces = self._pieces()
        for name, own in labels.items():
            columns = [(label, *self._assemble(name, label, pieces)) for label in own]
            number = self._series[name, own[0]]
            if len(columns) == 1 and own[0] in _NUMERIC:
                _, seqs, values = columns[0]
            else:
                pairs = sorted(
                    (seq, value if label in _NUMERIC else None)
                    for label, seqs, values in columns
                    for seq, value in zip(seqs, values, strict=True)
                )
                seqs, values = [seq for seq, _ in pairs], [value for _, value in pairs]
            yield self._block_rows(number, seqs, values)

    def _block_rows(self, series: int, seqs: Sequence[int], values: Sequence[Any]) -> Table:
        rows = []
        for start in range(0, len(seqs), BLOCK_POINTS):
            part = values[start : start + BLOCK_POINTS]
            first, last = seqs[start], seqs[start + len(part) - 1]
            numbers = part if isinstance(part, array) else [v for v in part if v is not None]
            sums: tuple[Any, ...] = (None,) * 5
            if numbers:
                total = float(sum(numbers))
                sums = total, min(numbers), max(numbers), numbers[0], numbers[-1]
            steps = self._step_of(first), self._step_of(last)
            rows.append((series, first, last, *steps, len(part), *sums, len(part) - len(numbers)))
        return Table.of_rows("block", BLOCK_COLUMNS, rows)

    def _step_of(self, seq: int) -> Any:
        """Return the step of a record; numbers may have gaps."""
        if seq < len(self.seqs) and self.seqs[seq] == seq:
            return self._steps[seq]
        return self._steps[self.seqs.index(seq)]

    def _pieces(self) -> dict[str, list[tuple[_Group, int]]]:
        """Say for each name in which groups it stands, and at which place."""
        pieces: dict[str, list[tuple[_Group, int]]] = {}
        for names, group in self._groups.items():
            for place, name in enumerate(names):
                pieces.setdefault(name, []).append((group, place))
        return pieces

    def _assemble(
        self, name: str, label: str, pieces: Mapping[str, Sequence[tuple[_Group, int]]]
    ) -> tuple[Sequence[int], Sequence[Any]]:
        """Return the numbers and values of one series, in order of the numbers."""
        own = pieces.get(name, ()) if label == "float" else ()
        parts = [(group.seqs, group.values[place :: group.width]) for group, place in own]
        column = self._columns.get((name, label))
        if not parts and column is not None:
            return column.seqs, column.values
        if len(parts) == 1 and column is None:
            return parts[0]
        seqs, values = array("q"), array("d")
        for more_seqs, more_values in parts:
            seqs.extend(more_seqs)
            values.extend(more_values)
        if column is not None:
            seqs.extend(column.seqs)
            values.extend(array("d", column.values))
        order = sorted(range(len(seqs)), key=seqs.__getitem__)
        return array("q", [seqs[i] for i in order]), array("d", [values[i] for i in order])


BLOCK_COLUMNS: Final = (
    *("series", "first_seq", "last_seq", "first_step", "last_step", "n"),
    *("sum", "min", "max", "first", "last", "odd"),
)
