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
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

from launchhelm.errors import StorageError
from launchhelm.records import MetricValue, Record, WriterId
from launchhelm.store import segment
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

_LISTINGS: Final = 4
_STEP = re.compile(rb',"s":(-?\d+|null),')
_HEAD_BYTES: Final = 160
_LATEST_TRIES: Final = 64
_NAMED_KINDS: Final = METRIC_KINDS | {"rich", "con"}
_KIND_OF_CLASS: Final = {"bool": "boolean", "str": "string", "json": "object"}

Axes: TypeAlias = Mapping[str, str]
_NO_AXES: Final[Axes] = {}
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Point:
    """One value of a metric, with its class and sign as logged; NaN and infinities are floats.

    Args:
        at: Wall clock of the writer; shown only.
        axes: Coordinates beside step, as decimal text.
    """

    step: int | None
    value: MetricValue
    at: float
    axes: Axes
    writer: WriterId
    seq: int

    @property
    def rank(self) -> int:
        """The rank that logged it."""
        return self.writer.rank

    @property
    def attempt(self) -> int:
        """The attempt in which it was logged."""
        return self.writer.attempt

    @property
    def coordinates(self) -> dict[str, str]:
        """All coordinates as text, step first."""
        step = {} if self.step is None else {"step": str(self.step)}
        return {**step, **self.axes}

    @property
    def order(self) -> tuple[float, int, int, int]:
        """The key by which points are sorted; no step comes first."""
        step = -math.inf if self.step is None else self.step
        return (step, self.attempt, self.rank, self.seq)


@dataclass(frozen=True, slots=True)
class Selection:
    """Which points of a metric are meant.

    Args:
        axes: Coordinates that must be equal, as canonical decimal text.
        ranks: None means all.
        step_from, step_to: Inclusive bounds.
    """

    name: str
    axes: Axes = field(default_factory=dict)
    ranks: frozenset[int] | None = None
    step_from: int | None = None
    step_to: int | None = None

    def admits(self, point: Point) -> bool:
        """Whether a point of this metric is within the bounds and on the axes."""
        if self.step_from is not None and (point.step is None or point.step < self.step_from):
            return False
        if self.step_to is not None and (point.step is None or point.step > self.step_to):
            return False
        return all(_is_same(point.axes.get(axis), text) for axis, text in self.axes.items())

    @property
    def has_window(self) -> bool:
        """Whether a step bound was given."""
        return self.step_from is not None or self.step_to is not None


class Series:
    """Reads points of one run. Keeps what sealed segments, which never change, have said."""

    def __init__(self, run_directory: Path) -> None:
        self._data = run_directory / DATA
        self._steps: dict[str, tuple[int, int] | None] = {}
        self._kinds: dict[str, tuple[int, dict[str, str]]] = {}

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
        for _ in range(_LISTINGS):
            try:
                return read(name)
            except StorageError:
                # A copy that was cut short; its journal may have come along.
                wanted = False
            except OSError as error:
                if not has_vanished(error):
                    return None
                wanted = True
            forms = self._list().get(name.writer, {}).get(name.number, set())
            if wanted not in forms or (not wanted and not name.sealed):
                return None
            name = SegmentName(name.writer, name.number, wanted)
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
        self,
        name: SegmentName,
        selection: Selection,
        ends: _Ends,
        hidden: frozenset[int | None],
    ) -> None:
        """Add what a segment has to the ends, reading no more of it than they need."""
        if name.sealed:
            steps = self._read(name, self._steps_of)
            if steps is not None and not ends.may_take(steps[1] if ends.newest else steps[0]):
                return
        ask = ends.limit
        while True:
            look = functools.partial(self._ends_in, selection=selection, ask=ask, ends=ends)
            found = self._read(name, look)
            if found is None:
                return
            points, worst_step, is_all = found
            points = [
                point
                for point in points
                if selection.admits(point) and (point.step is None or point.step not in hidden)
            ]
            ends.add(points)
            if is_all or len(points) >= ends.limit or not ends.may_take(worst_step):
                return
            ask *= 4

    def _steps_of(self, name: SegmentName) -> tuple[int, int] | None:
        key = str(name)
        if key not in self._steps:
            self._steps[key] = sealed_step_range(self._path(name))
        return self._steps[key]

    def _ends_in(
        self, name: SegmentName, selection: Selection, ask: int, ends: _Ends
    ) -> tuple[list[Point], float, bool]:
        """Return up to `ask` points, the innermost step among them, and whether that was all."""
        newest = ends.newest
        if not name.sealed:
            return self._ends_in_journal(name, selection, ask, newest)
        rows = sealed_ends(
            self._path(name),
            selection.name,
            ask,
            newest=newest,
            step_from=selection.step_from,
            step_to=selection.step_to,
        )
        points = [_point(name.writer, row) for row in rows]
        steps = [point.order[0] for point in points]
        worst = (min(steps) if newest else max(steps)) if steps else 0.0
        return points, worst, len(points) < ask

    def _ends_in_journal(
        self, name: SegmentName, selection: Selection, ask: int, newest: bool
    ) -> tuple[list[Point], float, bool]:
        needle = _needle(selection.name)
        low = -math.inf if selection.step_from is None else selection.step_from
        high = math.inf if selection.step_to is None else selection.step_to
        found: list[tuple[float, int, bytes]] = []
        with opened(self._path(name)) as (descriptor, size):
            for start, _, line in whole_lines(descriptor, 0, size):
                if needle in line:
                    match = _STEP.search(line, 0, _HEAD_BYTES)
                    step = float("-inf") if match is None or match[1] == b"null" else int(match[1])
                    if low <= step <= high:
                        found.append((step, start, line))
        pick = heapq.nlargest if newest else heapq.nsmallest
        best = pick(ask, found)
        points = [_point_of(record_of(name.writer, line), selection.name) for _, _, line in best]
        worst = best[-1][0] if best else 0.0
        return [point for point in points if point is not None], worst, len(best) == len(found)

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
        offset, kinds = self._kinds.get(key, (0, {}))
        if name.sealed:
            if key not in self._kinds:
                classes = sealed_names(self._path(name))
                kinds = {
                    metric: _KIND_OF_CLASS.get(word, "number") for metric, word in classes.items()
                }
                for rich in sealed_entries(self._path(name), {"rich"}):
                    kinds.update(_kinds_of(rich))
                for text in itertools.islice(sealed_entries(self._path(name), {"con"}), 1):
                    kinds.update(_kinds_of(text))
                self._kinds[key] = (0, kinds)
            return kinds
        with opened(self._path(name)) as (descriptor, size):
            for _, end, line in whole_lines(descriptor, offset, size):
                known = number_and_kind(line)
                if known is not None and known[1] in _NAMED_KINDS:
                    record = record_of(name.writer, line)
                    if record is not None:
                        kinds.update(_kinds_of(record))
                if known is not None:
                    offset = end
        self._kinds[key] = (offset, kinds)
        return kinds

    def _path(self, name: SegmentName) -> Path:
        return self._data / str(name)


class _Ends:
    """The `limit` outermost points seen so far."""

    def __init__(self, limit: int, *, newest: bool) -> None:
        self.limit = limit
        self.newest = newest
        self._points: dict[tuple[WriterId, int], Point] = {}

    def add(self, points: Iterable[Point]) -> None:
        """Take in points; each counts once, however often it is found."""
        self._points.update(((point.writer, point.seq), point) for point in points)
        if len(self._points) > self.limit:
            self._points = {(point.writer, point.seq): point for point in self.best()}

    def may_take(self, step: float) -> bool:
        """Whether a point of that step, or one further in, could still be among the ends."""
        if len(self._points) < self.limit:
            return True
        steps = [point.order[0] for point in self._points.values()]
        return step >= min(steps) if self.newest else step <= max(steps)

    def steps(self) -> frozenset[int | None]:
        """The steps that points of older attempts do not show at."""
        return frozenset(point.step for point in self._points.values())

    def best(self) -> list[Point]:
        """Return the outermost points in order."""
        points = sorted(self._points.values(), key=lambda point: point.order)
        return points[-self.limit :] if self.newest else points[: self.limit]


def _is_same(given: str | None, wanted: str) -> bool:
    """Compare two coordinates as exact decimals: 1.50 is 1.5."""
    if given is None or given == wanted:
        return given is not None
    try:
        return Decimal(given) == Decimal(wanted)
    except InvalidOperation:
        return False


def _needle(name: str) -> bytes:
    """What every line with this metric contains."""
    return dumps(name).encode(errors="replace") + b":"


def _point(writer: WriterId, row: segment.Point) -> Point:
    seq, step, at, value, axes = row
    return Point(step, value, at, json.loads(axes) if axes else _NO_AXES, writer, seq)


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


def kind_of(value: object) -> str:
    """Return the kind of a metric by one of its values."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "string"
    return "number" if isinstance(value, int | float) else "object"
