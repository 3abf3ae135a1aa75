"""What a chart shows of a metric: as few points as its width takes, in a few milliseconds.

Sealed segments never change, so their sums are kept, up to a limit. A journal is read on from where
the last look ended. Points themselves are read where a range is so short that sums would be coarse,
and around the extremes, which so stand at their exact steps. Nothing is written anywhere.
"""

from __future__ import annotations

import heapq
import json
import math
import operator
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from launchhelm.errors import StorageError
from launchhelm.records import WriterId
from launchhelm.store.curve import (
    Places,
    Span,
    Sums,
    Values,
    sealed_places,
    sealed_sums,
    sealed_values,
)
from launchhelm.store.journal import opened, whole_lines
from launchhelm.store.layout import DATA, SegmentName
from launchhelm.store.line import is_intact, untag
from launchhelm.store.reader import has_vanished, list_segments
from launchhelm.views.thin import PER_BUCKET, Block, Buckets, Spread, Thin, spread

X: Final = ("step", "time", "wall")
Axis = Literal["step", "time", "wall"]

MAX_SUMS: Final = 200_000
"""Rows of sums that are kept, of about 400 bytes each."""

MAX_PLACES: Final = 2_000_000
"""Records whose steps and times are kept, of 16 bytes each."""

_EXTREMES: Final = 4
_NARROW: Final = 0.9
"""Sums serve while a bucket is not narrower than about one of them."""

_FEW_BLOCKS: Final = 12
_MOST_BLOCKS_READ: Final = 512
"""The points of several ranks are read where they have so few sums, each or together."""

_LISTINGS: Final = 4
_METRIC_HEADS: Final = (b'"k":"m"', b'"k":"sys"')

Ranges = Sequence[tuple[float, float]]
EVERYWHERE: Final[Ranges] = ((-math.inf, math.inf),)


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a chart.

    Args:
        low, high: The range that it covers.
        points: How many points there are in it.
        exact: They are all here.
        width: Of a bucket; 0 when exact.
    """

    low: float
    high: float
    points: int
    exact: bool
    width: float
    thin: Thin


class _Tail:
    """What a growing journal holds, in columns; places of a metric are records."""

    def __init__(self) -> None:
        self._end = 0
        self._steps = array("d")
        self._ats = array("d")
        self._where: dict[str, array[int]] = {}
        self._values: dict[str, array[float]] = {}
        self._odd: dict[str, list[tuple[int, float]]] = {}

    def read(self, path: Path) -> None:
        """Take in the lines that are new; bad ones and those without a step are passed over."""
        with opened(path) as (descriptor, size):
            for _, after, line in whole_lines(descriptor, self._end, size):
                self._end = after
                head = line[:48]
                if not any(mark in head for mark in _METRIC_HEADS) or not is_intact(line):
                    continue
                try:
                    record = json.loads(str(line, "utf-8"))
                    step, at, body = record["s"], record["t"], record["v"]
                    if isinstance(step, int) and isinstance(body, dict):
                        self._take(float(step), at, body)
                except (ValueError, KeyError, TypeError, OverflowError):
                    continue  # Also an integer that no number of a chart can be.

    def _take(self, step: float, at: float, body: dict[str, Any]) -> None:
        place = len(self._steps)
        self._steps.append(step)
        self._ats.append(at)
        for name, value in body.items():
            if isinstance(value, float | int):
                column = self._values.get(name)
                if column is None:
                    column = self._values[name] = array("d")
                    self._where[name] = array("q")
                column.append(value)
                self._where[name].append(place)
            elif isinstance(odd := untag(value), float):
                self._odd.setdefault(name, []).append((place, odd))

    def column(self, name: str) -> Values:
        """Return the points of a metric."""
        where = self._where.get(name, ())
        steps, ats = self._steps, self._ats
        if len(where) < len(steps):
            steps = array("d", map(steps.__getitem__, where))
            ats = array("d", map(ats.__getitem__, where))
        odd = self._odd.get(name, ())
        return Values(
            steps,
            ats,
            self._values.get(name, array("d")),
            [(self._steps[place], self._ats[place], value) for place, value in odd],
        )


@dataclass(frozen=True, slots=True)
class _Known:
    """The sums of a metric in one segment.

    Args:
        is_plain: Steps rise through all of them.
        first, last: Bounds of its steps.
    """

    rows: list[Sums]
    is_plain: bool
    first: float
    last: float

    @classmethod
    def of(cls, rows: list[Sums]) -> _Known:
        bounds = [(row.step0, row.step1) for row in rows]
        known = [float(step) for pair in bounds for step in pair if step is not None]
        is_plain = len(known) == 2 * len(rows) and all(map(operator.le, known, known[1:]))
        return cls(rows, is_plain, min(known, default=math.inf), max(known, default=-math.inf))


@dataclass(slots=True)
class _Source:
    """A file of one metric: the sums of a sealed segment, or the points of a journal.

    Args:
        ranges: The steps that are shown of it; at others a newer attempt has points.
    """

    path: Path
    known: _Known | None = None
    values: Values | None = None
    ranges: Ranges = EVERYWHERE
    inside: list[Sums] = field(default_factory=list)
    raw: list[Sums] = field(default_factory=list)

    def steps(self) -> tuple[float, float]:
        """Return the lowest and the highest step in it."""
        if self.known is not None:
            return self.known.first, self.known.last
        assert self.values is not None
        steps = [*self.values.steps, *(each[0] for each in self.values.odd)]
        return (min(steps), max(steps)) if steps else (math.inf, -math.inf)


@dataclass(frozen=True, slots=True)
class _Filled:
    """What a window shows: buckets with the sums, and points that are in none of them yet.

    Args:
        summed, odd: How many points are in sums, and how many are no finite number.
    """

    buckets: Buckets
    xs: array[float]
    ys: array[float]
    summed: int
    odd: int


@dataclass(frozen=True, slots=True)
class _Window:
    """A part of the axis."""

    x: Axis
    origin: float
    low: float = -math.inf
    high: float = math.inf

    def place(self, step: float, at: float) -> float:
        """Return where a point stands on the axis."""
        return step if self.x == "step" else at - self.origin

    def shows(self, source: _Source, step: float, at: float) -> bool:
        """Whether a point of a source is within, and no newer attempt has one in its place."""
        if not self.low <= self.place(step, at) <= self.high:
            return False
        return source.ranges is EVERYWHERE or any(a <= step <= b for a, b in source.ranges)

    def columns(self, source: _Source, values: Values) -> tuple[Sequence[float], Sequence[float]]:
        """Return the points of a source that are shown, in order."""
        xs, ys = values.steps, values.values
        if self.x != "step":
            xs = array("d", [at - self.origin for at in values.ats])
        if source.ranges is not EVERYWHERE:
            steps = values.steps
            kept = [i for i, at in enumerate(values.ats) if self.shows(source, steps[i], at)]
            xs, ys = array("d", [xs[i] for i in kept]), array("d", [ys[i] for i in kept])
        if not all(map(operator.le, xs, xs[1:])):
            order = sorted(range(len(xs)), key=xs.__getitem__)
            xs, ys = array("d", [xs[i] for i in order]), array("d", [ys[i] for i in order])
        first, end = bisect_left(xs, self.low), bisect_right(xs, self.high)
        return (xs, ys) if end - first == len(xs) else (xs[first:end], ys[first:end])

    def block(self, row: Sums) -> Block:
        """Return sums as a block of the axis."""
        assert row.step0 is not None and row.step1 is not None and row.total is not None
        assert None not in (row.low, row.high, row.first, row.last)
        x0, x1 = self.place(row.step0, row.at0), self.place(row.step1, row.at1)
        sums: Any = (row.total, row.low, row.high, row.first, row.last)
        return Block(float(x0), float(x1), row.n, *map(float, sums))

    def split(self, sources: Sequence[_Source]) -> int:
        """Put the sums of segments that are shown whole, and those to be read, into them.

        Returns:
            How many are shown whole.
        """
        for source in sources:
            if source.known is not None:
                self._split(source, source.known)
        return sum(len(source.inside) for source in sources)

    def _split(self, source: _Source, known: _Known) -> None:
        rows = known.rows
        ends = (rows[0], rows[-1])
        whole = all(
            row.step0 is not None
            and row.step1 is not None
            and self.shows(source, row.step0, row.at0)
            and self.shows(source, row.step1, row.at1)
            for row in ends
        )
        if whole and (self.x == "step" or _rises(rows)):
            source.inside = list(rows)
            return
        for row in rows:
            assert row.step0 is not None and row.step1 is not None
            if self.shows(source, row.step0, row.at0) and self.shows(source, row.step1, row.at1):
                source.inside.append(row)
            elif self._touches(source, row, row.step0, row.step1):
                source.raw.append(row)

    def _touches(self, source: _Source, row: Sums, step0: int, step1: int) -> bool:
        places = self.place(step0, row.at0), self.place(step1, row.at1)
        if max(places) < self.low or min(places) > self.high:
            return False
        return any(low <= step1 and step0 <= high for low, high in source.ranges)


def _rises(rows: Sequence[Sums]) -> bool:
    ats = [at for row in rows for at in (row.at0, row.at1)]
    return all(map(operator.le, ats, ats[1:]))


class Curves:
    """Reads curves of one run; belongs to one thread at a time."""

    def __init__(self, run_directory: Path) -> None:
        self.problems: dict[str, str] = {}
        self._directory = run_directory
        self._sums: OrderedDict[tuple[Path, str], _Known] = OrderedDict()
        self._places: OrderedDict[tuple[Path, Span], Places] = OrderedDict()
        self._sums_kept = self._places_kept = 0
        self._tails: dict[Path, _Tail] = {}

    def curve(
        self,
        name: str,
        *,
        x: Axis = "step",
        low: float | None = None,
        high: float | None = None,
        px: int = 900,
        attempt: int | None = None,
        rank: int = 0,
        origin: float = 0.0,
    ) -> Curve | None:
        """Return one metric of one rank as a line; None when it has no numbers.

        Args:
            x: What stands on the axis: the step, seconds since `origin`, or the wall clock.
            low, high: Of the axis, both included; None for all there is.
            px: How many buckets at most.
            attempt: Of this one alone; None takes each step from the newest attempt that has it.
        """
        sources = self._sources(name, {rank}, attempt)[rank]
        every = _Window(x, origin if x == "time" else 0.0)
        ends = [end for source in sources for end in _ends(every, source)]
        if not ends:
            return None
        low = min(ends) if low is None else low
        high = max(ends) if high is None else high
        window = _Window(x, every.origin, low, high)
        window.split(sources)
        return self._drawn(name, sources, window, px)

    def spread(
        self,
        name: str,
        ranks: Collection[int],
        *,
        low: float | None = None,
        high: float | None = None,
        px: int = 900,
        attempt: int | None = None,
    ) -> tuple[Spread, int, float, float] | None:
        """Return one metric of several ranks along the steps as one line; None without numbers.

        Args:
            low, high, px, attempt: As of `curve`.

        Returns:
            The line, how many ranks have a part in it, and the range that it covers.
        """
        known = [each for each in self._sources(name, ranks, attempt).values() if each]
        every = _Window("step", 0.0)
        ends = [end for sources in known for source in sources for end in _ends(every, source)]
        if not ends:
            return None
        window = _Window(
            "step", 0.0, min(ends) if low is None else low, max(ends) if high is None else high
        )
        blocks = max(window.split(sources) for sources in known)
        # A bucket narrower than a block would hold one rank here and another there.
        if blocks > max(_FEW_BLOCKS, _MOST_BLOCKS_READ // len(known)):
            px = min(px, blocks)
        lines = []
        for sources in known:
            filled = self._filled(name, sources, window, px)
            filled.buckets.points(filled.xs, filled.ys)
            if filled.summed or filled.xs or filled.odd:
                lines.append(filled.buckets)
        return spread(lines), len(lines), window.low, window.high

    def _drawn(self, name: str, sources: Sequence[_Source], window: _Window, px: int) -> Curve:
        filled = self._filled(name, sources, window, px)
        buckets, xs, ys = filled.buckets, filled.xs, filled.ys
        exact = not filled.summed and len(xs) <= PER_BUCKET * px
        if not exact:
            buckets.points(xs, ys)
        thin = buckets.thin()
        if exact:
            order = sorted(range(len(xs)), key=xs.__getitem__)
            all_xs, all_ys = [xs[i] for i in order], [ys[i] for i in order]
            thin = Thin(all_xs, all_ys, all_xs, all_ys, thin.odd)
        width = 0.0 if exact else buckets.width
        points = filled.summed + len(xs) + filled.odd
        return Curve(window.low, window.high, points, exact, width, thin)

    def _filled(self, name: str, sources: Sequence[_Source], window: _Window, px: int) -> _Filled:
        """Take what a window shows: sums into buckets at once, points beside them."""
        xs, ys, odd = array("d"), array("d"), 0
        buckets = Buckets(window.low, window.high, px)
        count = sum(row.n for each in sources for row in (*each.inside, *each.raw))
        blocks = sum(len(source.inside) for source in sources)
        use_sums = blocks * buckets.width >= _NARROW * (window.high - window.low)
        if use_sums and count > PER_BUCKET * px:
            self._take_sums(sources, window, buckets)
        else:
            for source in sources:
                source.raw = sorted((*source.raw, *source.inside))
                source.inside = []
        for source in sources:
            for values in self._values(name, source):
                more_xs, more_ys = window.columns(source, values)
                xs.extend(more_xs)
                ys.extend(more_ys)
                for step, at, value in values.odd:
                    if window.shows(source, step, at):
                        odd += 1
                        buckets.odd(window.place(step, at), value)
        summed = sum(row.n - row.odd for source in sources for row in source.inside)
        return _Filled(buckets, xs, ys, summed, odd)

    def _take_sums(self, sources: Sequence[_Source], window: _Window, buckets: Buckets) -> None:
        """Take sums in the place of points, but for those whose points have to be seen."""
        every = [row for source in sources for row in source.inside if row.total is not None]
        seen = set(heapq.nsmallest(_EXTREMES, every, key=lambda row: row.low or 0.0))
        seen |= set(heapq.nlargest(_EXTREMES, every, key=lambda row: row.high or 0.0))
        for source in sources:
            near = [row for row in source.inside if row.odd or row.total is None or row in seen]
            if near:
                source.raw = sorted((*source.raw, *near))
                apart = set(near)
                source.inside = [row for row in source.inside if row not in apart]
            for row in source.inside:
                buckets.block(window.block(row))

    def _values(self, name: str, source: _Source) -> Iterable[Values]:
        if source.values is not None:
            yield source.values
        elif source.raw:
            spans = {span: self._places_of(source.path, span) for span in _joined(source.raw)}
            yield sealed_values(source.path, name, spans)

    # --- files --------------------------------------------------------------------------------

    def _sources(
        self, name: str, ranks: Collection[int], attempt: int | None
    ) -> dict[int, list[_Source]]:
        """Return what holds a metric, by rank, each with the steps that it shows."""
        for _ in range(_LISTINGS):
            try:
                return self._sources_once(name, ranks, attempt)
            except OSError as error:
                if not has_vanished(error):
                    self.problems[name] = str(error)
                    break
                # Sealed just now: the same points have another name.
        return {rank: [] for rank in ranks}

    def _sources_once(
        self, name: str, ranks: Collection[int], attempt: int | None
    ) -> dict[int, list[_Source]]:
        listing = list_segments(self._directory)
        found: dict[int, dict[int, list[_Source]]] = {rank: {} for rank in ranks}
        tails: dict[Path, _Tail] = {}
        for writer in sorted(listing, key=lambda each: (each.attempt, each.token)):
            for number, forms in sorted(listing[writer].items()):
                path = self._path(writer, number, sealed=True in forms)
                if path in self._tails:
                    tails[path] = self._tails[path]
                if writer.rank in found and attempt in (None, writer.attempt):
                    source = self._source(path, name, tails, is_sealed=True in forms)
                    if source is not None:
                        found[writer.rank].setdefault(writer.attempt, []).append(source)
        self._tails = tails
        return {rank: _in_order(by_attempt) for rank, by_attempt in found.items()}

    def _source(
        self, path: Path, name: str, tails: dict[Path, _Tail], *, is_sealed: bool
    ) -> _Source | None:
        if not is_sealed:
            tail = tails.setdefault(path, _Tail())
            tail.read(path)
            column = tail.column(name)
            return _Source(path, values=column) if column.values or column.odd else None
        try:
            known = self._sums_of(path, name)
        except StorageError as error:
            self.problems[path.name] = error.message
            return None
        if known.rows and not known.is_plain:
            # Steps go back and forth: the bounds of a block say nothing of what is in it.
            spans = {span: self._places_of(path, span) for span in _joined(known.rows)}
            return _Source(path, values=sealed_values(path, name, spans))
        return _Source(path, known) if known.rows else None

    def _path(self, writer: WriterId, number: int, *, sealed: bool) -> Path:
        return self._directory / DATA / str(SegmentName(writer, number, sealed))

    def _sums_of(self, path: Path, name: str) -> _Known:
        known = self._sums.pop((path, name), None)
        if known is None:
            known = _Known.of(sealed_sums(path, name))
            self._sums_kept += len(known.rows)
        self._sums[path, name] = known
        while self._sums_kept > MAX_SUMS and len(self._sums) > 1:
            self._sums_kept -= len(self._sums.popitem(last=False)[1].rows)
        return known

    def _places_of(self, path: Path, span: Span) -> Places:
        places = self._places.pop((path, span), None)
        if places is None:
            places = sealed_places(path, *span)
            self._places_kept += len(places.steps)
        self._places[path, span] = places
        while self._places_kept > MAX_PLACES and len(self._places) > 1:
            self._places_kept -= len(self._places.popitem(last=False)[1].steps)
        return places


def _in_order(by_attempt: dict[int, list[_Source]]) -> list[_Source]:
    """Return the sources of one rank, oldest first; a step is shown by the newest that has it."""
    shown = EVERYWHERE
    for each in sorted(by_attempt, reverse=True):
        for source in by_attempt[each]:
            source.ranges = shown
        bounds = [source.steps() for source in by_attempt[each]]
        shown = _without(shown, min(b[0] for b in bounds), max(b[1] for b in bounds))
    return [source for each in sorted(by_attempt) for source in by_attempt[each]]


def _ends(window: _Window, source: _Source) -> list[float]:
    """Return the ends of a source on the axis."""
    if source.values is not None:
        xs, _ = window.columns(source, source.values)
        odd = [each for each in source.values.odd if window.shows(source, *each[:2])]
        return [*xs[:1], *xs[-1:], *(window.place(*each[:2]) for each in odd)]
    assert source.known is not None
    if source.ranges is EVERYWHERE and window.x == "step":
        return [source.known.first, source.known.last]
    return [
        window.place(min(max(step, low), high), at)
        for row in source.known.rows
        if row.step0 is not None and row.step1 is not None
        for step, at in ((row.step0, row.at0), (row.step1, row.at1))
        for low, high in source.ranges
        if row.step0 <= high and row.step1 >= low
    ]


def _without(ranges: Ranges, low: float, high: float) -> Ranges:
    """Take the steps of a newer attempt out of what older ones show."""
    if low > high:
        return ranges
    left = [(start, min(end, low - 1)) for start, end in ranges]
    right = [(max(start, high + 1), end) for start, end in ranges]
    return [each for each in (*left, *right) if each[0] <= each[1]]


def _joined(rows: Sequence[Sums]) -> list[Span]:
    """Return the spans of records of some blocks, neighbours as one."""
    spans: list[Span] = []
    for row in rows:
        if spans and row.first_seq <= spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], max(spans[-1][1], row.last_seq))
        else:
            spans.append((row.first_seq, row.last_seq))
    return spans
