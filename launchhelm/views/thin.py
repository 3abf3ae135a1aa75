"""Many points as few: per bucket of the axis the first, lowest, highest and last. Pure.

Buckets are a power of two wide and begin at multiples of their width, so that they do not move when
points arrive. Extremes survive whatever the zoom, and what is no finite number is counted where it
stands. A block is what a sealed segment says of some consecutive points; blocks and points give the
same buckets, but for the place of an extreme within its block.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

PER_BUCKET: Final = 4
"""At most so many points stand for a bucket."""


class Block(NamedTuple):
    """Some consecutive finite points, as their sums.

    Args:
        x0, x1: Where the first and the last of them stand.
        n: How many there are.
    """

    x0: float
    x1: float
    n: int
    total: float
    low: float
    high: float
    first: float
    last: float


@dataclass(slots=True)
class _Bucket:
    n: int
    total: float
    first: tuple[float, float]
    low: tuple[float, float]
    high: tuple[float, float]
    last: tuple[float, float]

    def merge(self, other: _Bucket) -> None:
        self.n += other.n
        self.total += other.total
        if other.first[0] < self.first[0]:
            self.first = other.first
        if other.last[0] >= self.last[0]:
            self.last = other.last
        if other.low[1] < self.low[1]:
            self.low = other.low
        if other.high[1] > self.high[1]:
            self.high = other.high


@dataclass(frozen=True, slots=True)
class Thin:
    """What is left: columns of equal length, in order of x.

    Args:
        mean_x, mean_y: One point per bucket, the mean of all its points; for smoothing.
        odd: Per bucket that has any: x, and how many are NaN, +inf and -inf.
    """

    x: list[float]
    y: list[float]
    mean_x: list[float]
    mean_y: list[float]
    odd: list[tuple[float, int, int, int]] = field(default_factory=list)


class Buckets:
    """Takes points and blocks in any order of x.

    Args:
        low, high: The range that is shown.
        px: At most so many buckets cover it.
    """

    def __init__(self, low: float, high: float, px: int) -> None:
        self.width = width_for(low, high, px)
        self._buckets: dict[int, _Bucket] = {}
        self._odd: dict[int, list[float]] = defaultdict(lambda: [math.inf, 0, 0, 0])

    def points(self, xs: Sequence[float], ys: Sequence[float]) -> None:
        """Take finite points."""
        if any(map(float.__gt__, xs[:-1], xs[1:])):
            order = sorted(range(len(xs)), key=xs.__getitem__)
            xs, ys = [xs[i] for i in order], [ys[i] for i in order]
        start, count = 0, len(xs)
        while start < count:
            index = math.floor(xs[start] / self.width)
            end = max(start + 1, bisect_left(xs, (index + 1) * self.width, start))
            part = ys[start:end]
            low, high = min(part), max(part)
            self._merge(
                index,
                _Bucket(
                    end - start,
                    math.fsum(part),
                    (xs[start], ys[start]),
                    (xs[start + part.index(low)], low),
                    (xs[start + part.index(high)], high),
                    (xs[end - 1], ys[end - 1]),
                ),
            )
            start = end

    def block(self, block: Block) -> None:
        """Take a block; it counts where its middle stands."""
        middle = (block.x0 + block.x1) / 2
        if block.x0.is_integer() and block.x1.is_integer():
            middle = math.floor(middle)
        self._merge(
            math.floor(middle / self.width),
            _Bucket(
                block.n,
                block.total,
                (block.x0, block.first),
                (middle, block.low),
                (middle, block.high),
                (block.x1, block.last),
            ),
        )

    def odd(self, x: float, value: float) -> None:
        """Count a value that is no finite number."""
        entry = self._odd[math.floor(x / self.width)]
        entry[0] = min(entry[0], x)
        entry[1 if math.isnan(value) else 2 if value > 0 else 3] += 1

    def _merge(self, index: int, new: _Bucket) -> None:
        known = self._buckets.get(index)
        if known is None:
            self._buckets[index] = new
        else:
            known.merge(new)

    def thin(self) -> Thin:
        """Return what is left."""
        points: list[tuple[float, float]] = []
        mean_x, mean_y = [], []
        for _, bucket in sorted(self._buckets.items()):
            points += {bucket.first, bucket.low, bucket.high, bucket.last}
            mean_x.append((bucket.first[0] + bucket.last[0]) / 2)
            mean_y.append(bucket.total / bucket.n)
        points.sort(key=lambda point: point[0])
        return Thin(
            [x for x, _ in points],
            [y for _, y in points],
            mean_x,
            mean_y,
            [(e[0], int(e[1]), int(e[2]), int(e[3])) for _, e in sorted(self._odd.items())],
        )


@dataclass(frozen=True, slots=True)
class Spread:
    """Several lines as one: columns of equal length, one entry per bucket, in order of x.

    Args:
        mean: Of the lines' means, so that a line with more points counts no more than another.
        low, high: The lowest and the highest point of any line.
        lines: How many of them have a point there.
        odd: As of Thin, of all lines together.
    """

    x: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]
    lines: list[int]
    odd: list[tuple[float, int, int, int]]


def spread(lines: Iterable[Buckets]) -> Spread:
    """Return lines as one; their buckets are of the same width."""
    together: dict[int, list[_Bucket]] = defaultdict(list)
    odd: dict[int, list[list[float]]] = defaultdict(list)
    for line in lines:
        for index, bucket in line._buckets.items():
            together[index].append(bucket)
        for index, entry in line._odd.items():
            odd[index].append(entry)
    made = Spread([], [], [], [], [], [])
    for _, buckets in sorted(together.items()):
        first = min(bucket.first[0] for bucket in buckets)
        last = max(bucket.last[0] for bucket in buckets)
        made.x.append((first + last) / 2)
        made.mean.append(math.fsum(each.total / each.n for each in buckets) / len(buckets))
        made.low.append(min(bucket.low[1] for bucket in buckets))
        made.high.append(max(bucket.high[1] for bucket in buckets))
        made.lines.append(len(buckets))
    for _, entries in sorted(odd.items()):
        x, *counts = zip(*entries, strict=True)
        nan, inf, minus = (int(sum(each)) for each in counts)
        made.odd.append((min(x), nan, inf, minus))
    return made


def width_for(low: float, high: float, px: int) -> float:
    """Return the width of buckets of which at most `px` cover a range: a power of two."""
    span = high - low
    if not span > 0 or not math.isfinite(span):
        return 1.0
    width = 2.0 ** math.ceil(math.log2(span / px))
    while math.floor(high / width) - math.floor(low / width) >= px > 1:
        width *= 2
    return width


def smooth(values: Iterable[float], weight: float) -> list[float]:
    """Return the running mean with a memory: 0 none, towards 1 longer; without the pull to 0.

    Args:
        weight: 0 up to, and without, 1.
    """
    smoothed: list[float] = []
    mean = bias = 0.0
    for value in values:
        mean = mean * weight + value * (1 - weight)
        bias = bias * weight + (1 - weight)
        smoothed.append(mean / bias)
    return smoothed
