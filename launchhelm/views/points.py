"""One value of a metric, and which of them are meant."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Final, NamedTuple, TypeAlias

from launchhelm.records import MetricValue, WriterId

Axes: TypeAlias = Mapping[str, str]
NO_AXES: Final[Axes] = {}


class Point(NamedTuple):
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


def _is_same(given: str | None, wanted: str) -> bool:
    """Compare two coordinates as exact decimals: 1.50 is 1.5."""
    if given is None or given == wanted:
        return given is not None
    try:
        return Decimal(given) == Decimal(wanted)
    except InvalidOperation:
        return False
