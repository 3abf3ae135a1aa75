"""Points of metrics: the newest, a window, or all of them, of any rank and attempt.

Steps that a newer attempt repeats are taken from that attempt; the older points stay available.
Order is by step, then attempt, rank and number. Time orders nothing: hosts' clocks differ.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, TypeVar

from launchhelm.errors import StorageError
from launchhelm.records import Record, WriterId
from launchhelm.store import segment
from launchhelm.store.blocks import Block, NameIndex, StepIndex
from launchhelm.store.journal import (
    lines_backwards,
    number_and_kind,
    opened,
    record_of,
    whole_lines,
)
from launchhelm.store.layout import DATA, SegmentName
from launchhelm.store.line import dumps
from launchhelm.store.reader import Listing, has_vanished, list_segments
from launchhelm.store.sealed import (
    METRIC_KINDS,
    sealed_ends,
    sealed_entries,
    sealed_latest,
    sealed_names,
    sealed_step_range,
)
from launchhelm.views.points import NO_AXES, Point, Selection

_LISTINGS: Final = 4
_LATEST_TRIES: Final = 64
_HEAD_BYTES: Final = 160
_STEP = re.compile(rb',"s":(-?\d+|null),')
_NAMED_KINDS: Final = METRIC_KINDS | {"rich", "con"}
_KIND_OF_CLASS: Final = {"bool": "boolean", "str": "string", "json": "object"}
_UNBOUNDED: Final = (-math.inf, math.inf)
_T = TypeVar("_T")


class Series:
    """Reads points of one run. Keeps what sealed segments, which never change, have said."""

    def __init__(self, run_directory: Path) -> None:
        self._data = run_directory / DATA
        self._problems: dict[str, str] = {}
        self._steps: dict[str, tuple[int, int] | None] = {}
        self._kinds: dict[str, dict[str, str]] = {}
        self._indexes: dict[str, StepIndex] = {}
        self._name_indexes: dict[str, NameIndex] = {}

    @property
    def problems(self) -> list[str]:
        """What could not be read when it was last asked for, one sentence each."""
        return list(self._problems.values())

    # --- questions ----------------------------------------------------------------------------

    def points(self, selection: Selection, *, all_attempts: bool = False) -> Iterator[Point]:
        """Yield all selected points, attempt by attempt, in order of number within a rank."""
        attempts = self._by_attempt(selection)
        if len(attempts) <= 1 or all_attempts:
            for writers in attempts:
                yield from self._of_attempt(writers, selection)
            return
        kept: list[list[Point]] = []
        taken: set[int | None] = set()
        for writers in reversed(attempts):
            new = [p for p in self._of_attempt(writers, selection) if _is_visible(p, taken)]
            taken.update(point.step for point in new)
            kept.append(new)
        for points in reversed(kept):
            yield from points

    def history(
        self, selection: Selection, limit: int, *, all_attempts: bool = False
    ) -> list[Point]:
        """Return the last `limit` points in order or, with a window, the first ones inside it."""
        ends = _Ends(limit, newest=not selection.has_window)
        for writers in reversed(self._by_attempt(selection)):
            # What a newer attempt has at a step within the ends is among them already.
            hidden = frozenset() if all_attempts else ends.steps()
            for names in writers:
                for name in reversed(names) if ends.newest else names:
                    self._gather(name, selection, ends, hidden)
        return ends.best()

    def latest(self, selection: Selection) -> Point | None:
        """Return the newest point of the newest attempt that has one.

        Within a rank the number decides; between ranks, where only their clocks could, the time.
        """
        for writers in reversed(self._by_attempt(selection)):
            points = [self._latest_of(names, selection) for names in writers]
            found = [point for point in points if point is not None]
            if found:
                return max(found, key=lambda point: (point.at, -point.rank, point.seq))
        return None

    def names(self, ranks: frozenset[int] | None = None) -> dict[str, str]:
        """Return every name with the kind of its values: number, boolean, string or object."""
        found: dict[str, str] = {}
        for writers in self._by_attempt(Selection("", ranks=ranks)):
            for names in writers:
                for name in names:
                    found.update(self._read(name, self._kinds_in) or {})
        return found

    def names_by_writer(self) -> dict[WriterId, dict[str, str]]:
        """Return the same for each process start."""
        found: dict[WriterId, dict[str, str]] = {}
        for writers in self._by_attempt(Selection("")):
            for name in itertools.chain.from_iterable(writers):
                found.setdefault(name.writer, {}).update(self._read(name, self._kinds_in) or {})
        return found

    # --- files --------------------------------------------------------------------------------

    def _by_attempt(self, selection: Selection) -> list[list[list[SegmentName]]]:
        """List the segments of the writers that are meant: per attempt, per writer, in order."""
        attempts: dict[int, list[list[SegmentName]]] = {}
        listing = self._list()
        for writer in sorted(listing, key=lambda writer: (writer.attempt, writer.rank)):
            if selection.ranks is None or writer.rank in selection.ranks:
                files = listing[writer]
                names = [SegmentName(writer, number, True in files[number]) for number in files]
                names.sort(key=lambda name: name.number)
                attempts.setdefault(writer.attempt, []).append(names)
        return list(attempts.values())

    def _list(self) -> Listing:
        try:
            return list_segments(self._data.parent)
        except OSError:
            return {}  # Nothing is visible yet; RunView.problems says what cannot be read.

    def _read(self, name: SegmentName, read: Callable[[SegmentName], _T]) -> _T | None:
        """Read one segment in the form that it has now; None when it cannot be read."""
        said = "it vanishes again and again"
        for _ in range(_LISTINGS):
            try:
                found = read(name)
            except StorageError as error:
                # A copy that was cut short; its journal may have come along.
                said = error.message
                form = False if name.sealed else None
            except OSError as error:
                said = f"{name} cannot be read: {error.strerror}"
                form = has_vanished(error) or None
            else:
                self._problems.pop(str(name), None)
                return found
            forms = self._list().get(name.writer, {}).get(name.number, set())
            if form and form not in forms:
                form = False
            if form not in forms:
                break
            name = SegmentName(name.writer, name.number, bool(form))
        self._problems[str(name)] = said
        return None

    # --- all points of a segment --------------------------------------------------------------

    def _of_attempt(
        self, writers: Iterable[Iterable[SegmentName]], selection: Selection
    ) -> Iterator[Point]:
        for names in writers:
            wanted = 0
            for name in names:
                for point in self._read(name, lambda name: self._all_in(name, selection)) or ():
                    # After a lost file handle a record may stand in two segments.
                    if point.seq >= wanted:
                        wanted = point.seq + 1
                        if selection.admits(point):
                            yield point

    def _all_in(self, name: SegmentName, selection: Selection) -> Iterator[Point]:
        """Yield the points of a segment; opens it before it returns."""
        if name.sealed:
            rows = segment.sealed_points(
                self._path(name),
                selection.name,
                step_from=selection.step_from,
                step_to=selection.step_to,
            )
            return _started(_point(name.writer, row) for row in rows)
        return _started(self._in_journal(name, selection))

    def _in_journal(self, name: SegmentName, selection: Selection) -> Iterator[Point]:
        needle = _needle(selection.name)
        with opened(self._path(name)) as (descriptor, size):
            for _, _, line in whole_lines(descriptor, 0, size):
                if needle in line:
                    point = _point_of(record_of(name.writer, line), selection.name)
                    if point is not None:
                        yield point

    # --- the ends of a segment ----------------------------------------------------------------

    def _gather(
        self, name: SegmentName, selection: Selection, ends: _Ends, hidden: frozenset[int | None]
    ) -> None:
        """Add what a segment has to the ends, reading no more of it than they need."""

        def read(name: SegmentName) -> None:
            if name.sealed:
                self._gather_sealed(name, selection, ends, hidden)
            else:
                self._gather_journal(name, selection, ends, hidden)

        self._read(name, read)

    def _gather_sealed(
        self, name: SegmentName, selection: Selection, ends: _Ends, hidden: frozenset[int | None]
    ) -> None:
        if str(name) not in self._steps:
            self._steps[str(name)] = sealed_step_range(self._path(name))
        low, high = self._steps[str(name)] or (-math.inf, -math.inf)

        def take(ask: int) -> tuple[list[Point], bool]:
            rows = sealed_ends(
                self._path(name),
                selection.name,
                ask,
                newest=ends.newest,
                step_from=selection.step_from,
                step_to=selection.step_to,
            )
            return [_point(name.writer, row) for row in rows], len(rows) < ask

        ends.gather(take, low, high, selection, hidden)

    def _gather_journal(
        self, name: SegmentName, selection: Selection, ends: _Ends, hidden: frozenset[int | None]
    ) -> None:
        index = self._indexes.setdefault(str(name), StepIndex())
        with opened(self._path(name)) as (descriptor, size):
            blocks = index.blocks(descriptor, size)
            for block in reversed(blocks) if ends.newest else blocks:
                take = functools.partial(
                    _ends_of_block, descriptor, block, name.writer, selection, ends.newest
                )
                ends.gather(take, block.low, block.high, selection, hidden)

    # --- the newest point of a writer ---------------------------------------------------------

    def _latest_of(self, names: list[SegmentName], selection: Selection) -> Point | None:
        for name in reversed(names):
            point = self._read(name, lambda name: self._latest_in(name, selection))
            if point is not None:
                return point
        return None

    def _latest_in(self, name: SegmentName, selection: Selection) -> Point | None:
        if name.sealed:
            rows = sealed_latest(self._path(name), selection.name, _LATEST_TRIES)
            recent = [_point(name.writer, row) for row in rows]
            for near in recent:
                if selection.admits(near):
                    return near
            if len(rows) < _LATEST_TRIES:
                return None
            every = [point for point in self._all_in(name, selection) if selection.admits(point)]
            return every[-1] if every else None
        needle = _needle(selection.name)
        with opened(self._path(name)) as (descriptor, size):
            for line in lines_backwards(descriptor, size):
                if needle in line:
                    point = _point_of(record_of(name.writer, line), selection.name)
                    if point is not None and selection.admits(point):
                        return point
        return None

    # --- names --------------------------------------------------------------------------------

    def _kinds_in(self, name: SegmentName) -> dict[str, str]:
        key = str(name)
        if not name.sealed:
            index = self._name_indexes.get(key)
            if index is None:
                index = NameIndex(functools.partial(_kinds_of_line, name.writer))
                self._name_indexes[key] = index
            with opened(self._path(name)) as (descriptor, size):
                return index.names(descriptor, size)
        if key not in self._kinds:
            path = self._path(name)
            classes = sealed_names(path).items()
            kinds = {metric: _KIND_OF_CLASS.get(word, "number") for metric, word in classes}
            lines = itertools.islice(sealed_entries(path, {"con"}), 1)
            for record in itertools.chain(sealed_entries(path, {"rich"}), lines):
                kinds.update(_kinds_of(record))
            self._kinds[key] = kinds
        return self._kinds[key]

    def _path(self, name: SegmentName) -> Path:
        return self._data / str(name)


class _Ends:
    """The `limit` outermost points seen so far, by step."""

    def __init__(self, limit: int, *, newest: bool) -> None:
        self.limit = limit
        self.newest = newest
        self._points: dict[tuple[WriterId, int], Point] = {}
        self._edge: float | None = None

    def gather(
        self,
        take: Callable[[int], tuple[list[Point], bool]],
        low: float,
        high: float,
        selection: Selection,
        hidden: frozenset[int | None],
    ) -> None:
        """Take what is needed from a part of a run.

        Args:
            take: Returns so many points of the part, outermost first, and whether that was all.
            low, high: Bounds of its steps.
            hidden: Steps that a newer attempt shows.
        """
        first, last = selection.step_from, selection.step_to
        if (first is not None and high < first) or (last is not None and low > last):
            return
        ask = self.limit
        inner: float = high if self.newest else low
        while self.may_take(inner):
            points, is_all = take(ask)
            visible = [
                point
                for point in points
                if selection.admits(point) and (point.step is None or point.step not in hidden)
            ]
            self._add(visible)
            if is_all or len(visible) >= self.limit:
                return
            if points:
                inner = points[-1].order[0]
            ask *= 4

    def may_take(self, step: float) -> bool:
        """Whether a point at that step could be among the ends."""
        if self._edge is None:
            return True
        return step >= self._edge if self.newest else step <= self._edge

    def steps(self) -> frozenset[int | None]:
        """The steps at which points of older attempts are not shown."""
        return frozenset(point.step for point in self._points.values())

    def best(self) -> list[Point]:
        """Return the outermost points in order."""
        points = sorted(self._points.values(), key=lambda point: point.order)
        return points[-self.limit :] if self.newest else points[: self.limit]

    def _add(self, points: Iterable[Point]) -> None:
        # Each counts once, however often it is found.
        self._points.update(((point.writer, point.seq), point) for point in points)
        if len(self._points) >= self.limit:
            best = self.best()
            self._points = {(point.writer, point.seq): point for point in best}
            self._edge = best[0 if self.newest else -1].order[0]


def _ends_of_block(
    descriptor: int, block: Block, writer: WriterId, selection: Selection, newest: bool, ask: int
) -> tuple[list[Point], bool]:
    """Return the points of a block with the outermost steps, and whether these are all."""
    needle = _needle(selection.name)
    low, high = _UNBOUNDED
    if selection.has_window:
        low = low if selection.step_from is None else selection.step_from
        high = high if selection.step_to is None else selection.step_to
    found: list[tuple[float, int, bytes]] = []
    for start, _, line in whole_lines(descriptor, block.start, block.end):
        if needle in line:
            match = _STEP.search(line, 0, _HEAD_BYTES)
            step = -math.inf if match is None or match[1] == b"null" else int(match[1])
            if low <= step <= high:
                found.append((step, start, line))
    if ask < len(found):
        best = (heapq.nlargest if newest else heapq.nsmallest)(ask, found)
    else:
        best = sorted(found, reverse=newest)
    points = [_point_of(record_of(writer, line), selection.name) for _, _, line in best]
    return [point for point in points if point is not None], len(best) == len(found)


def _needle(name: str) -> bytes:
    """What every line with this metric contains."""
    return dumps(name).encode(errors="replace") + b":"


def _point(writer: WriterId, row: segment.Point) -> Point:
    seq, step, at, value, axes = row
    return Point(step, value, at, json.loads(axes) if axes else NO_AXES, writer, seq)


def _point_of(record: Record | None, name: str) -> Point | None:
    if record is None or record.kind not in METRIC_KINDS or name not in record.body:
        return None
    return Point(record.step, record.body[name], record.at, record.axes, record.writer, record.seq)


def _is_visible(point: Point, taken: set[int | None]) -> bool:
    return point.step is None or point.step not in taken


def _started(points: Iterator[Point]) -> Iterator[Point]:
    """Open the file now, so that its errors come where they are expected."""
    first = next(points, None)
    return itertools.chain(() if first is None else (first,), points)


def _kinds_of(record: Record) -> dict[str, str]:
    if record.kind == "con":
        return {"console": "string"}
    if record.kind == "rich":
        name = record.body.get("name")
        return {name: "object"} if isinstance(name, str) else {}
    return {name: kind_of(value) for name, value in record.body.items()}


def _kinds_of_line(writer: WriterId, line: bytes) -> dict[str, str] | None:
    """Return the names of a line and their kinds; None for a bad one."""
    known = number_and_kind(line)
    if known is None:
        return None
    record = record_of(writer, line) if known[1] in _NAMED_KINDS else None
    return {} if record is None else _kinds_of(record)


def kind_of(value: object) -> str:
    """Return the kind of a metric by one of its values."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "string"
    return "number" if isinstance(value, int | float) else "object"
