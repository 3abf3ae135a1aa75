"""Jumps of a learning rate: from one logged point to the next, not as part of a slope. Pure.

A warm-up that begins at 0 doubles its value in one step too; a jump is larger than that *and* much
larger than the changes beside it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

LEAST: Final = 0.2
"""Of the larger of the two values."""

MOST_LOOKS: Final = 16
"""So many places of a thinned curve are looked at closely, those of the largest changes."""

_STEEPER: Final = 4.0
_IS_LR: Final = re.compile(r"(?:^|[/_.\-])(?:lr|learning_rate)(?:$|[/_.\-])", re.ASCII | re.I)

Columns = tuple[Sequence[float], Sequence[float]]


class Jump(NamedTuple):
    """A value that changed at once.

    Args:
        x: The first step with the new value.
        since: The last step with the old one.
    """

    x: float
    since: float
    old: float
    new: float


def is_lr(name: str) -> bool:
    """Whether a metric is a learning rate, by its name."""
    return _IS_LR.search(name) is not None


def jumps(xs: Sequence[float], ys: Sequence[float]) -> list[Jump]:
    """Return the jumps among all points of a curve."""
    changes = [abs(after - before) for before, after in pairwise(ys)]
    found = []
    for at, change in enumerate(changes):
        beside = changes[max(0, at - 1) : at] + changes[at + 1 : at + 2]
        if _is_large(ys[at], ys[at + 1]) and all(change > _STEEPER * each for each in beside):
            found.append(Jump(xs[at + 1], xs[at], ys[at], ys[at + 1]))
    return found


def jumps_of_thinned(
    xs: Sequence[float], ys: Sequence[float], closer: Callable[[float, float], Columns]
) -> list[Jump]:
    """Return the jumps of a curve of which only some points are known.

    Args:
        closer: Returns all points from one x to another.
    """
    large = [at for at in range(len(xs) - 1) if _is_large(ys[at], ys[at + 1])]
    large.sort(key=lambda at: abs(ys[at + 1] - ys[at]), reverse=True)
    found = set()
    for at in large[:MOST_LOOKS]:
        # The points beside a change tell whether it is one of many.
        low, high = xs[max(0, at - 2)], xs[min(len(xs) - 1, at + 3)]
        found.update(jumps(*closer(low, high)))
    return sorted(found)


def _is_large(before: float, after: float) -> bool:
    return abs(after - before) > LEAST * max(abs(before), abs(after))
