"""A run as tables for other programs: its metrics, console lines, events, commands, itself.

Rows come as they were recorded, process by process and in order of number within each; nothing is
rounded, thinned or merged, and a step that a later attempt repeats stands there once per attempt.
A table is what was readable when it was begun, however long it takes and whatever the run writes
meanwhile. Memory does not grow with the run.
"""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple  # Any: a cell, or the JSON of a record.

from launchhelm import _wording
from launchhelm.errors import StorageError
from launchhelm.records import MetricValue, Record, WriterId
from launchhelm.store import journal
from launchhelm.store.layout import DATA, SegmentName
from launchhelm.store.line import untag
from launchhelm.store.reader import LOST, PATIENCE_S, Reader, has_vanished, list_segments
from launchhelm.store.sealed import METRIC_KINDS, sealed_meta
from launchhelm.views import RunView, whole
from launchhelm.views.fold import whole_body

Row = tuple[Any, ...]

METRICS: Final = "metrics"
_NAMED_METRICS: Final = 12
_VALUES_AT_ONCE: Final = 50_000
_RECORDS_AT_ONCE: Final = 4096
_POLL_S: Final = 0.2
_LISTINGS: Final = 4
_INT64: Final = 1 << 63
_KINDS: Final = {"float": "float", "int": "int", "bool": "bool", "str": "text"}


class Column(NamedTuple):
    """A column: its name, and what stands in it.

    Args:
        kind: `int`, `float`, `bool` or `text`; `json`: any JSON value; `value`: a MetricValue.
    """

    name: str
    kind: str


_BODIES: Final[Mapping[str, tuple[Collection[str], tuple[Column, ...]]]] = {
    "console": (
        ("con",),
        (Column("line", "int"), Column("stream", "json"), Column("text", "text")),
    ),
    "events": (("ev", "close", "gap"), (Column("type", "text"), Column("body", "json"))),
    "rich": (
        ("rich",),
        (Column("name", "text"), Column("renderer", "text"), Column("value", "json")),
    ),
    "artifacts": (
        ("art",),
        (
            *(Column(name, "text") for name in ("id", "name", "media_type", "sha256", "purpose")),
            Column("size", "int"),
        ),
    ),
}
_WHERE: Final = (
    Column("step", "int"),
    Column("rank", "int"),
    Column("attempt", "int"),
    Column("at", "float"),
    Column("writer", "text"),
    Column("seq", "int"),
    Column("axes", "json"),
)
"""Where a row comes from; `at` is the writer's clock, seconds since the epoch."""

_LONG: Final = (Column("metric", "text"), Column("value", "value"), Column("type", "text"))
_WIDE: Final = tuple(column for column in _WHERE if column.name not in ("writer", "seq"))
_COMMANDS: Final = (
    *(Column(name, "text") for name in ("id", "name", "state", "code", "message")),
    *(Column(name, "text") for name in ("issued_by", "owner", "reason")),
    *(Column(name, "int") for name in ("first_step", "last_step", "applied_on", "of")),
    *(Column(name, "json") for name in ("payload", "result", "applied_at", "changes", "failures")),
)
_ABOUT: Final = (Column("section", "text"), Column("name", "text"), Column("value", "json"))

TABLES: Final = (METRICS, *_BODIES, "commands", "run")


@dataclass(slots=True)
class Table:
    """One table. Its rows are read as they are asked for, once."""

    name: str
    columns: tuple[Column, ...]
    rows: Iterator[Row]


class Export:
    """Tables of one run.

    Args:
        view: The run, just opened.
        pattern: Metrics whose name fits, as in the shell.
        ranks: Processes of these ranks; None means all.

    Attributes:
        problems: What was missing in the tables read so far, one sentence each.
    """

    def __init__(
        self, view: RunView, *, pattern: str = "*", ranks: Collection[int] | None = None
    ) -> None:
        self.problems: dict[str, None] = dict.fromkeys(whole.absent_texts(view, ranks))
        self._view = view
        self._pattern = pattern
        self._ranks = ranks
        # A running process may still repair what looks torn; of an ended one nothing is waited for.
        self._patience_s = 0.0 if view.state.is_over else PATIENCE_S

    def table(self, name: str, *, wide: bool = False) -> Table:
        """Return a table of TABLES.

        Args:
            wide: Metrics with a column for each name and a row for each step of a process. What
                one process logs in turn at one step and one place is one row, unless a name
                repeats; then another row begins.
        """
        if name == METRICS:
            return self._wide() if wide else self._long()
        if name == "commands":
            return Table(name, _COMMANDS, self._commands())
        if name == "run":
            return Table(name, _ABOUT, _about(self._view))
        kinds, columns = _BODIES[name]
        return Table(name, (*columns, *_WHERE), self._of_bodies(kinds, columns))

    # --- metrics ------------------------------------------------------------------------------

    def _long(self) -> Table:
        def rows() -> Iterator[Row]:
            for record, body in self._metric_records(self._ends()):
                where = _where(record)
                for name, value in body.items():
                    yield (name, value, type(value).__name__, *where)

        return Table(METRICS, (*_LONG, *_WHERE), rows())

    def _wide(self) -> Table:
        ends = self._ends()
        kinds: dict[str, set[str]] = {}
        for _, body in self._metric_records(ends):
            for name, value in body.items():
                kinds.setdefault(name, set()).add(_class(value))
        taken = {column.name for column in _WIDE}
        named = [
            Column(f"{name} (metric)" if name in taken else name, _column_kind(kinds[name]))
            for name in sorted(kinds)
        ]
        return Table(METRICS, (*_WIDE, *named), self._wide_rows(ends, sorted(kinds)))

    def _wide_rows(self, ends: Mapping[WriterId, int], names: list[str]) -> Iterator[Row]:
        held: dict[str, MetricValue] = {}
        first: Record | None = None
        for record, body in self._metric_records(ends):
            if first is not None and _same_place(first, record) and held.keys().isdisjoint(body):
                held.update(body)
                continue
            if first is not None:
                yield _wide_row(first, held, names)
            first, held = record, dict(body)
        if first is not None:
            yield _wide_row(first, held, names)

    def _metric_records(
        self, ends: Mapping[WriterId, int]
    ) -> Iterator[tuple[Record, Mapping[str, MetricValue]]]:
        chosen: dict[str, bool] = {}
        for record in self._records(METRIC_KINDS, ends):
            body = whole_body(self._view.directory, record.body)
            if body is not record.body:
                body = {name: untag(value) for name, value in body.items()}
            if self._pattern != "*":
                for name in body.keys() - chosen.keys():
                    chosen[name] = fnmatch.fnmatchcase(name, self._pattern)
                body = {name: value for name, value in body.items() if chosen[name]}
            if body:
                yield record, body

    # --- other tables -------------------------------------------------------------------------

    def _of_bodies(self, kinds: Collection[str], columns: tuple[Column, ...]) -> Iterator[Row]:
        for record in self._records(kinds, self._ends()):
            body = whole_body(self._view.directory, record.body)
            known = {"type": record.kind, **body, "body": body}
            yield (*(known.get(column.name) for column in columns), *_where(record))

    def _commands(self) -> Iterator[Row]:
        for command in self._view.commands:
            outcome = command.outcome.body() if command.outcome is not None else {}
            # What was sent is known before, and without, an outcome.
            known = {**outcome, **{name: getattr(command, name) for name in _OF_COMMAND}}
            yield tuple(known.get(column.name) for column in _COMMANDS)

    # --- records ------------------------------------------------------------------------------

    def _ends(self) -> dict[WriterId, int]:
        """Return the number of each process's newest record now; where a table ends."""
        ends: dict[WriterId, int] = {}
        data = self._view.directory / DATA
        for _ in range(_LISTINGS):
            vanished = False
            for writer, files in self._list().items():
                for number in sorted(files, reverse=True):
                    name = SegmentName(writer, number, True in files[number])
                    try:
                        last = _last_record(data / str(name), name.sealed)
                    except OSError as error:
                        vanished |= has_vanished(error)
                        continue  # Else the reader says what cannot be read.
                    except StorageError:
                        last = None
                    if last is not None:
                        ends[writer] = max(last, ends.get(writer, -1))
                        break
            if not vanished:
                break
        return ends

    def _list(self) -> Mapping[WriterId, Mapping[int, set[bool]]]:
        try:
            return list_segments(self._view.directory)
        except OSError:
            return {}

    def _records(self, kinds: Collection[str], ends: Mapping[WriterId, int]) -> Iterator[Record]:
        """Yield records up to the ends; in the end, note what was missing among them."""
        reader = Reader(
            self._view.directory, kinds=kinds, ranks=self._ranks, patience_s=self._patience_s
        )
        limit, quiet = _RECORDS_AT_ONCE, 0
        until = time.monotonic() + self._patience_s
        while quiet < _LISTINGS or (reader.holes and time.monotonic() < until):
            batch = reader.poll(limit=limit)
            for record in batch:
                if record.seq <= ends.get(record.writer, -1):
                    yield record
            if batch:
                quiet, values = 0, sum(len(record.body) for record in batch)
                limit = min(_RECORDS_AT_ONCE, 1 + _VALUES_AT_ONCE * len(batch) // (1 + values))
                if all(reader.cursor.of(writer).wanted > last for writer, last in ends.items()):
                    break
            elif not reader.holes:
                break
            else:
                quiet += 1
                time.sleep(_POLL_S if self._patience_s else 0)
        lost = [
            f"{gap.writer}: records {gap.first} to {gap.last}: {gap.why}"
            for gap in reader.gaps
            if gap.why in LOST
        ]
        self.problems.update(dict.fromkeys([*reader.problems, *lost]))


def unmatched(view: RunView, ranks: Collection[int] | None, pattern: str) -> list[str]:
    """Name the ranks and metrics there are, where those asked for are not among them."""
    said = []
    seen = {writer.rank for writer in list_segments(view.directory)}
    if unseen := sorted(set(ranks or ()) - seen) if seen else []:
        there = _wording.ranks_text(sorted(seen))
        said.append(f"{_wording.ranks_text(unseen)}: not seen in this run; there is {there}")
    elif pattern != "*":
        own = (
            names
            for writer, names in view.kinds_by_writer().items()
            if ranks is None or writer.rank in ranks
        )
        names = sorted(set().union(*own))
        if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
            more = len(names) - _NAMED_METRICS
            there = _wording.listed(names[:_NAMED_METRICS]) + (
                f" and {more:,} more" if more > 0 else ""
            )
            whose = f" of {_wording.ranks_text(sorted(ranks))}" if ranks else ""
            said.append(f"no metric{whose} fits {pattern!r}; there is {there}")
    return said


_OF_COMMAND: Final = (
    *("id", "name", "state", "issued_by", "owner", "reason", "first_step", "last_step", "payload"),
)


def _last_record(path: Path, sealed: bool) -> int | None:
    """Return the number of the last record of a segment; None when it has none that is good."""
    if sealed:
        return sealed_meta(path).last
    with journal.opened(path) as (descriptor, size):
        for line in journal.lines_backwards(descriptor, size):
            known = journal.number_and_kind(line)
            if known is not None:
                return known[0]
    return None


def _where(record: Record) -> Row:
    writer = record.writer
    return (
        record.step,
        writer.rank,
        writer.attempt,
        record.at,
        str(writer),
        record.seq,
        record.axes or None,
    )


def _same_place(one: Record, other: Record) -> bool:
    return (one.writer, one.step, one.axes) == (other.writer, other.step, other.axes)


def _wide_row(first: Record, values: Mapping[str, MetricValue], names: Iterable[str]) -> Row:
    step, rank, attempt, at, _, _, axes = _where(first)
    return (step, rank, attempt, at, axes, *map(values.get, names))


def _class(value: MetricValue) -> str:
    is_large = type(value) is int and not -_INT64 <= value < _INT64
    return "bigint" if is_large else type(value).__name__


def _column_kind(classes: set[str]) -> str:
    """Return the narrowest kind that holds values of these classes exactly."""
    (first, *others) = classes
    return "value" if others else _KINDS.get(first, "value")


def _about(view: RunView) -> Iterator[Row]:
    manifest = view.manifest
    said = {
        "id": manifest.run_id,
        "name": view.name,
        "project": manifest.project,
        "state": view.state.word,
        "step": view.step,
        "attempt": view.attempt,
        "world_size": view.world_size,
        "created_at": manifest.created_at,
        "created_by": manifest.created_by,
        "host": manifest.host,
        "group": view.group,
        "tags": list(view.tags),
        "notes": view.notes,
    }
    for section, values in (("run", said), ("config", view.config), ("summary", view.summary)):
        for name, value in values.items():
            yield section, name, value
