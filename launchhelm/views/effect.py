"""Whether a curve left its trend when a command acted: a comparison in time, not a proof. Pure.

A straight line through the points before is carried on, and the points after are compared with it.
Two allowances keep that honest: noise that is correlated from point to point moves a line more than
its size tells, and a curve that was bending anyway leaves its line without anybody's doing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import Final

SIDE: Final = 50
"""So many logged points on each side are compared."""

LEFT_OUT: Final = 5
"""The first points after, which still show the change itself."""

FEWEST: Final = 10
STANDARD_ERRORS: Final = 3.0
_MAD: Final = 1.4826
"""From the median of absolute residuals to the standard deviation of normal noise."""

_MOST_CORRELATED: Final = 0.95
_ROUNDING: Final = 1e-9
"""Of the values: what less noise than this tells is not the curve."""


@dataclass(frozen=True, slots=True)
class Effect:
    """What two sides of a curve tell.

    Args:
        by: Median distance of the points after from the line through those before.
        error: Standard error of `by`.
        bend: How far the curve may have left the line by its own bending.
        missing: So many more points are needed before anything can be said.
    """

    by: float = 0.0
    error: float = 0.0
    bend: float = 0.0
    missing: int = 0

    @property
    def is_clear(self) -> bool:
        """Whether it is too large for noise and for a bend."""
        size = abs(self.by)
        return not self.missing and size > STANDARD_ERRORS * self.error and size > self.bend

    def __str__(self) -> str:
        if self.missing:
            return f"too early to say, {self.missing} more point{'s' * (self.missing > 1)}"
        if not self.is_clear:
            return "no clear change"
        return f"{'lower' if self.by < 0 else 'higher'} than its trend by {abs(self.by):.2g}"


def effect(before: Sequence[float], after: Sequence[float]) -> Effect | None:
    """Compare the points after a command with the trend of those before.

    Args:
        before: Finite values in order of steps; the last `SIDE` count.
        after: Those from the command's step on; `SIDE` behind the first `LEFT_OUT` count.

    Returns:
        None where there are too few points before, which no waiting will change.
    """
    old, new = list(before[-SIDE:]), list(after[LEFT_OUT : LEFT_OUT + SIDE])
    if len(old) < FEWEST:
        return None
    if len(new) < FEWEST:
        return Effect(missing=FEWEST + LEFT_OUT - len(after))
    count = len(old)
    line = _Line.through(old)
    # From the middle of the points before, in which the line and its bend are centred.
    start = (count + 1) / 2 + LEFT_OUT
    by = median(value - line.at(start + place) for place, value in enumerate(new))
    middle = start + (len(new) - 1) / 2

    residuals = line.residuals(old), _Line.through(new).residuals(new)
    noise = _MAD * median(abs(each) for side in residuals for each in side)
    noise = max(noise, _ROUNDING * max(map(abs, (*old, *new))))
    repeated = fmean(_repeats(side) for side in residuals) + 4 / min(count, len(new))
    repeated = min(max(repeated, 0.0), _MOST_CORRELATED)
    wider = math.sqrt((1 + repeated) / (1 - repeated))
    spread = 1 / count + 1 / len(new) + 12 * middle**2 / (count * (count**2 - 1))
    return Effect(by, noise * math.sqrt(spread) * wider, _bend(residuals[0], middle, noise))


@dataclass(frozen=True, slots=True)
class _Line:
    """A straight line; places are counted from its middle."""

    level: float
    slope: float

    @classmethod
    def through(cls, values: Sequence[float]) -> _Line:
        count = len(values)
        places = _places(count)
        weight = count * (count**2 - 1) / 12  # The sum of the squares of places.
        slope = sum(place * value for place, value in zip(places, values, strict=True)) / weight
        return cls(fmean(values), slope)

    def at(self, place: float) -> float:
        return self.level + self.slope * place

    def residuals(self, values: Sequence[float]) -> list[float]:
        places = _places(len(values))
        return [value - self.at(place) for place, value in zip(places, values, strict=True)]


def _places(count: int) -> list[float]:
    return [place - (count - 1) / 2 for place in range(count)]


def _repeats(residuals: Sequence[float]) -> float:
    """Return how much of a residual is found in the next one: 0 to 1, below 0 where they swing."""
    whole = sum(each * each for each in residuals)
    if not whole:
        return 0.0
    return sum(a * b for a, b in pairwise(residuals)) / whole


def _bend(residuals: Sequence[float], middle: float, noise: float) -> float:
    """Return how far a parabola through the points before leaves their line at a later place."""
    count = len(residuals)
    mean = (count**2 - 1) / 12
    squares = [place * place - mean for place in _places(count)]
    weight = sum(square * square for square in squares)
    curved = sum(a * b for a, b in zip(squares, residuals, strict=True)) / weight
    return (abs(curved) + 2 * noise / math.sqrt(weight)) * (middle * middle - mean)
