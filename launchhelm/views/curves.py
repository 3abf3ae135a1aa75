"""What a chart shows of a metric: as few points as its width takes, in a few milliseconds.

Sealed segments never change, so their sums are kept, up to a limit. A journal is read on from where
the last look ended. Points themselves are read where a range is so short that sums would be coarse,
and around the extremes, which so stand at their exact steps. Nothing is written anywhere.
"""

from __future__ import annotations

import json
import math
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from launchhelm.errors import StorageError
from launchhelm.records import WriterId
from launchhelm.store.curve import Sums, Values, is_finite, sealed_sums, sealed_values
from launchhelm.store.journal import opened, whole_lines
from launchhelm.store.layout import DATA, SegmentName
from launchhelm.store.line import is_intact, untag
from launchhelm.store.reader import has_vanished, list_segments
from launchhelm.views.thin import PER_BUCKET, Block, Buckets, Thin

X: Final = ("step", "time", "wall")
Axis = Literal["step", "time", "wall"]

MAX_SUMS: Final = 200_000
"""Rows of sums that are kept, of about 400 bytes each."""

_EXTREMES: Final = 4
_LISTINGS: Final = 4
_METRIC_HEADS: Final = (b'"k":"m"', b'"k":"sys"')
_EVERYWHERE: Final = ((-math.inf, math.inf),)

Ranges = Sequence[tuple[float, float]]


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


@dataclass(slots=True)
class _Tail:
    """What a growing journal holds, in columns; positions of a metric are records."""

    end: int = 0
    steps: array[float] = field(default_factory=lambda: array("d"))
    ats: array[float] = field(default_factory=lambda: array("d"))
    where: dict[str, array[int]] = field(default_factory=dict)
    values: dict[str, array[float]] = field(default_factory=dict)
    odd: dict[str, list[tuple[int, float]]] = field(default_factory=dict)

    def read(self, path: Path) -> None:
        """Take in the lines that are new; bad ones and those without a step are passed over."""
        with opened(path) as (descriptor, size):
            for _, after, line in whole_lines(descriptor, self.end, size):
                self.end = after
                head = line[:48]
                if not any(mark in head for mark in _METRIC_HEADS) or not is_intact(line):
                    continue
                try:
                    record = json.loads(line)
                    step, at, body = record["s"], record["t"], record["v"]
                except (ValueError, KeyError, TypeError):
                    continue
                if isinstance(step, int) and isinstance(body, dict):
                    self._take(step, at, body)

    def _take(self, step: int, at: float, body: dict[str, object]) -> None:
        place = len(self.steps)
        self.steps.append(float(step))
        self.ats.append(at)
        for name, value in body.items():
            if is_finite(value):
                column = self.values.get(name)
                if column is None:
                    column = self.values[name] = array("d")
                    self.where[name] = array("q")
                column.append(float(value))  # type: ignore[arg-type]
                self.where[name].append(place)
            else:
                known = untag(value)
                if isinstance(known, float):
                    self.odd.setdefault(name, []).append((place, known))

    def column(self, name: str) -> Values:
        """Return the points of a metric."""
        where = self.where.get(name, ())
        steps, ats = self.steps, self.ats
        return Values(
            array("d", map(steps.__getitem__, where)),
            array("d", map(ats.__getitem__, where)),
            self.values.get(name, array("d")),
            [(steps[place], ats[place], value) for place, value in self.odd.get(name, ())],
        )


@dataclass(slots=True)
class _Source:
    """A file of one metric: the sums of a sealed segment, or the points of a journal."""

    path: Path
    sums: list[Sums] = field(default_factory=list)
    values: Values | None = None

    def steps(self) -> tuple[float, float]:
        """Return the lowest and the highest step in it."""
        if self.values is not None:
            known: list[float] = [*self.values.steps, *(each[0] for each in self.values.odd)]
        else:
            known = [float(s) for row in self.sums for s in (row.step0, row.step1) if s is not None]
        return (min(known), max(known)) if known else (math.inf, -math.inf)


class Curves:
    """Reads curves of one run; belongs to one thread at a time."""

    def __init__(self, run_directory: Path) -> None:
        self.problems: dict[str, str] = {}
        self._directory = run_directory
        self._sums: OrderedDict[tuple[Path, str], list[Sums]] = OrderedDict()
        self._kept = 0
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
        sources = self._sources(name, rank, attempt)
        if not sources:
            return None
        place = _place_of(x, origin)
        spans = [_span(source, ranges, place) for source, ranges in sources]
        least = min((span[0] for span in spans), default=math.inf)
        most = max((span[1] for span in spans), default=-math.inf)
        if least > most:
            return None
        low = least if low is None else low
        high = most if high is None else high
        picks = [_Pick(source, ranges, place, low, high) for source, ranges in sources]
        total = sum(pick.count for pick in picks)
        buckets = Buckets(low, high, px)
        exact = total <= PER_BUCKET * px
        whole = Values()
        # Sums serve while a bucket is not much narrower than a block.
        use_sums = not exact and sum(len(pick.inside) for pick in picks) >= px
        seen = 0
        for pick in picks:
            for found, is_raw in self._parts(name, pick, use_sums=use_sums):
                if isinstance(found, Block):
                    buckets.block(found)
                    seen += found.n
                    continue
                xs, ys = pick.select(found)
                seen += len(xs)
                if exact:
                    whole.steps.extend(xs)
                    whole.values.extend(ys)
                elif is_raw and xs:
                    buckets.points(xs, ys)
                for step, at, value in found.odd:
                    if pick.shows(step, at):
                        seen += 1
                        buckets.odd(place(step, at), value)
        thin = buckets.thin()
        if exact:
            order = sorted(range(len(whole.steps)), key=whole.steps.__getitem__)
            xs_, ys_ = [whole.steps[i] for i in order], [whole.values[i] for i in order]
            thin = Thin(xs_, ys_, xs_, ys_, thin.odd)
        return Curve(low, high, seen, exact, 0.0 if exact else buckets.width, thin)

    # --- files --------------------------------------------------------------------------------

    def _sources(self, name: str, rank: int, attempt: int | None) -> list[tuple[_Source, Ranges]]:
        """Return what holds a metric, each with the steps that it shows."""
        for _ in range(_LISTINGS):
            try:
                return self._sources_once(name, rank, attempt)
            except OSError as error:
                if not has_vanished(error):
                    self.problems[name] = str(error)
                    return []
                # Sealed just now: the same points have another name.
        return []

    def _sources_once(
        self, name: str, rank: int, attempt: int | None
    ) -> list[tuple[_Source, Ranges]]:
        listing = list_segments(self._directory)
        there = {
            self._directory / DATA / str(SegmentName(writer, number, False))
            for writer, files in listing.items()
            for number in files
            if False in files[number]
        }
        self._tails = {path: tail for path, tail in self._tails.items() if path in there}
        by_attempt: dict[int, list[_Source]] = {}
        for writer in sorted(listing, key=lambda each: (each.attempt, each.token)):
            if writer.rank == rank and attempt in (None, writer.attempt):
                for number in sorted(listing[writer]):
                    source = self._source(writer, number, listing[writer][number], name)
                    if source is not None:
                        by_attempt.setdefault(writer.attempt, []).append(source)
        found: list[tuple[_Source, Ranges]] = []
        shown: Ranges = _EVERYWHERE
        for number in sorted(by_attempt, reverse=True):
            found += [(source, shown) for source in by_attempt[number]]
            bounds = [source.steps() for source in by_attempt[number]]
            lowest = min(bound[0] for bound in bounds)
            highest = max(bound[1] for bound in bounds)
            shown = _without(shown, lowest, highest)
        return found[::-1]

    def _source(self, writer: WriterId, number: int, forms: set[bool], name: str) -> _Source | None:
        sealed = True in forms
        path = self._directory / DATA / str(SegmentName(writer, number, sealed))
        if not sealed:
            tail = self._tails.setdefault(path, _Tail())
            tail.read(path)
            column = tail.column(name)
            return _Source(path, values=column) if column.steps or column.odd else None
        try:
            sums = self._sums_of(path, name)
        except StorageError as error:
            self.problems[path.name] = error.message
            return None
        return _Source(path, sums) if sums else None

    def _sums_of(self, path: Path, name: str) -> list[Sums]:
        key = (path, name)
        known = self._sums.get(key)
        if known is None:
            known = self._sums[key] = sealed_sums(path, name)
            self._kept += len(known)
            while self._kept > MAX_SUMS and len(self._sums) > 1:
                self._kept -= len(self._sums.popitem(last=False)[1])
        else:
            self._sums.move_to_end(key)
        return known

    def _parts(
        self, name: str, pick: _Pick, *, use_sums: bool
    ) -> Iterator[tuple[Block | Values, bool]]:
        """Yield what a source shows: blocks, or points."""
        if pick.source.values is not None:
            yield pick.source.values, True
            return
        raw = list(pick.edges)
        if use_sums:
            exact = _extremes(pick.inside)
            for row in pick.inside:
                if row in exact or row.odd:
                    raw.append(row)
                elif row.total is not None:
                    yield pick.block(row), False
        else:
            raw += pick.inside
        if raw:
            raw.sort()
            yield sealed_values(pick.source.path, name, _joined(raw)), True


class _Pick:
    """What of a source lies in the range."""

    def __init__(
        self,
        source: _Source,
        ranges: Ranges,
        place: Callable[[float, float], float],
        low: float,
        high: float,
    ) -> None:
        self.source = source
        self.inside: list[Sums] = []
        self.edges: list[Sums] = []
        self._ranges = ranges
        self._place = place
        self._low, self._high = low, high
        self._is_all = tuple(ranges) == _EVERYWHERE
        self.count = 0
        if source.values is not None:
            self.count = len(self.select(source.values)[0])
            return
        before = -math.inf
        for row in source.sums:
            if row.step0 is None or row.step1 is None or row.step0 > row.step1:
                self.edges.append(row)  # Its bounds say nothing; its points do.
            elif row.step0 < before:
                self.edges.append(row)
            elif self.shows(row.step0, row.at0) and self.shows(row.step1, row.at1):
                self.inside.append(row)
            elif self._touches(row):
                self.edges.append(row)
            before = row.step1 if row.step1 is not None else before
        self.count = sum(row.n for row in (*self.inside, *self.edges))

    def shows(self, step: float, at: float) -> bool:
        """Whether a point stands in the range, and no newer attempt in its place."""
        if not self._low <= self._place(step, at) <= self._high:
            return False
        return self._is_all or any(low <= step <= high for low, high in self._ranges)

    def _touches(self, row: Sums) -> bool:
        assert row.step0 is not None and row.step1 is not None
        x0, x1 = self._place(row.step0, row.at0), self._place(row.step1, row.at1)
        if x1 < self._low or x0 > self._high:
            return False
        return any(low <= row.step1 and row.step0 <= high for low, high in self._ranges)

    def block(self, row: Sums) -> Block:
        """Return sums as a block of the axis."""
        assert row.step0 is not None and row.step1 is not None
        return Block(
            float(self._place(row.step0, row.at0)),
            float(self._place(row.step1, row.at1)),
            row.n,
            float(row.total or 0.0),
            float(row.low or 0.0),
            float(row.high or 0.0),
            float(row.first or 0.0),
            float(row.last or 0.0),
        )

    def select(self, values: Values) -> tuple[Sequence[float], Sequence[float]]:
        """Return the points in the range."""
        xs: Sequence[float] = array("d", map(self._place, values.steps, values.ats))
        is_inside = self._is_all and (not xs or (min(xs) >= self._low and max(xs) <= self._high))
        if is_inside:
            return xs, values.values
        chosen = [
            place
            for place, (step, at) in enumerate(zip(values.steps, values.ats, strict=True))
            if self.shows(step, at)
        ]
        return (
            array("d", map(xs.__getitem__, chosen)),
            array("d", map(values.values.__getitem__, chosen)),
        )


def _place_of(x: Axis, origin: float) -> Callable[[float, float], float]:
    if x == "step":
        return lambda step, at: step
    if x == "time":
        return lambda step, at: at - origin
    return lambda step, at: at


def _span(
    source: _Source, ranges: Ranges, place: Callable[[float, float], float]
) -> tuple[float, float]:
    """Return the ends of a source on the axis."""
    if source.values is not None:
        points = zip(source.values.steps, source.values.ats, strict=True)
        places = [place(step, at) for step, at in points if _is_shown(step, ranges)]
        places += [place(*each[:2]) for each in source.values.odd if _is_shown(each[0], ranges)]
    else:
        places = [
            place(min(max(step, low), high), at)
            for row in source.sums
            for step, at in ((row.step0, row.at0), (row.step1, row.at1))
            if step is not None
            for low, high in ranges
            if (row.step0 or 0) <= high and (row.step1 or 0) >= low
        ]
    return (min(places), max(places)) if places else (math.inf, -math.inf)


def _is_shown(step: float, ranges: Ranges) -> bool:
    return any(low <= step <= high for low, high in ranges)


def _without(ranges: Ranges, low: float, high: float) -> Ranges:
    """Take the steps of a newer attempt out of what older ones show."""
    if low > high:
        return ranges
    left = [(start, min(end, low - 1)) for start, end in ranges]
    right = [(max(start, high + 1), end) for start, end in ranges]
    return [each for each in (*left, *right) if each[0] <= each[1]]


def _extremes(rows: Sequence[Sums]) -> set[Sums]:
    """Return the blocks that hold the lowest and the highest points."""
    known = [row for row in rows if row.low is not None and row.high is not None]
    by_low = sorted(known, key=lambda row: row.low or 0.0)[:_EXTREMES]
    by_high = sorted(known, key=lambda row: row.high or 0.0)[-_EXTREMES:]
    return {*by_low, *by_high}


def _joined(rows: Sequence[Sums]) -> list[tuple[int, int]]:
    """Return the spans of records of some blocks, neighbours as one."""
    spans: list[tuple[int, int]] = []
    for row in rows:
        if spans and row.first_seq <= spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], max(spans[-1][1], row.last_seq))
        else:
            spans.append((row.first_seq, row.last_seq))
    return spans
