"""Which record numbers of a stream a server has: a short list of closed intervals.

Nearly always it is one interval from 0, because a stream is sent in order. A pass that left older
records out begins a second one, and a later full pass joins them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator


class Coverage:
    """Record numbers that are dealt with: on the server, or set aside for good."""

    __slots__ = ("_bounds",)

    def __init__(self, intervals: Iterable[tuple[int, int]] = ()) -> None:
        self._bounds: list[int] = []  # first, last + 1, first, last + 1 ... rising.
        for first, last in intervals:
            self.add(first, last)

    def __contains__(self, number: int) -> bool:
        return bisect_right(self._bounds, number) % 2 == 1

    def __iter__(self) -> Iterator[tuple[int, int]]:
        bounds = self._bounds
        return ((bounds[i], bounds[i + 1] - 1) for i in range(0, len(bounds), 2))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Coverage) and other._bounds == self._bounds

    def __repr__(self) -> str:
        return f"Coverage({list(self)})"

    __hash__ = None  # type: ignore[assignment]  # It changes.

    @property
    def last(self) -> int:
        """The highest number dealt with, -1 when there is none."""
        return self._bounds[-1] - 1 if self._bounds else -1

    def add(self, first: int, last: int) -> None:
        """Take in the numbers from `first` to `last`, both included."""
        if last < first:
            return
        bounds = self._bounds
        # Intervals that touch become one.
        left = bisect_right(bounds, first - 1)
        right = bisect_right(bounds, last + 1)
        new = []
        if left % 2 == 0:
            new.append(first)
        if right % 2 == 0:
            new.append(last + 1)
        bounds[left:right] = new
