"""The strip: ranks by parts of the step range, the worst of each cell. Pure but for the points.

One byte per cell: 0 is missing, 1 to 250 is from best to worst, 255 is silent. A cell holds the
worst of all that fall into it, so that one bad rank of thousands stays visible at any height.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

MISSING: Final = 0
SILENT: Final = 255
_LEVELS: Final = 250

MEASURES: Final = ("late", "step", "behind", "gap")
"""Median wait minus own wait; step time over the median; steps behind; time between beats."""

_LEAST_SCALE: Final[Mapping[str, float]] = {"late": 10.0, "step": 10.0}
"""In ms: what the strongest colour means at least, so that microseconds are no alarm."""

UNITS: Final[Mapping[str, str]] = {"late": "ms", "step": "ms", "behind": "steps", "gap": "s"}


@dataclass(frozen=True, slots=True)
class Beat:
    """One heartbeat, as far as the strip needs it; None for what was not reported."""

    step: int
    mono: float | None = None
    wait_ms: float | None = None
    step_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Strip:
    """A picture of all ranks.

    Args:
        cells: Row by row, one byte each.
        order: The ranks of each row.
        scale: The value of the highest level, of a time 10 ms at least.
        worst: The worst cells: rank, first and last step of the cell, value.
    """

    low: int
    high: int
    columns: int
    rows: int
    order: list[list[int]]
    cells: bytes
    scale: float
    worst: list[tuple[int, int, int, float]]

    def text(self) -> str:
        """Return the cells as base64."""
        return base64.b64encode(self.cells).decode()


def strip(
    beats: Mapping[int, Sequence[Beat]],
    measure: str,
    *,
    columns: int,
    rows: int,
    low: int | None = None,
    high: int | None = None,
    silent: Sequence[int] = (),
    ranks: Sequence[int] = (),
    worst: int = 20,
) -> Strip:
    """Return the strip of one measure.

    Args:
        beats: By rank, in order of step.
        columns, rows: At most so many.
        silent: Ranks of which nothing is heard; crossed where their beats end.
        ranks: All that there should be, in order; default those with beats.
    """
    every = list(ranks) or sorted(beats)
    steps = [beat.step for row in beats.values() for beat in row]
    low = min(steps, default=0) if low is None else low
    high = max(steps, default=0) if high is None else high
    columns = max(1, min(columns, high - low + 1))
    rows = max(1, min(rows, len(every)))
    width = (high - low + 1) / columns
    values: dict[int, dict[int, float]] = {}
    for rank, column, value in _values(beats, measure, low, high, width):
        row = values.setdefault(rank, {})
        row[column] = max(value, row.get(column, value))
    scale = max((value for row in values.values() for value in row.values()), default=0.0)
    scale = max(scale, _LEAST_SCALE.get(measure, 0.0))
    order: list[list[int]] = [[] for _ in range(rows)]
    for place, rank in enumerate(every):
        order[place * rows // len(every)].append(rank)
    cells = bytearray(rows * columns)
    quiet = set(silent)
    for number, those in enumerate(order):
        for rank in those:
            known = values.get(rank, {})
            for column, value in known.items():
                at = number * columns + column
                cells[at] = max(cells[at], _level(value, scale))
            if rank in quiet:
                end = max(known, default=-1) + 1
                for column in range(end, columns):
                    cells[number * columns + column] = SILENT
    named = [
        (rank, int(low + column * width), int(low + (column + 1) * width) - 1, value)
        for rank, row in values.items()
        for column, value in row.items()
        if value > 0
    ]
    named.sort(key=lambda cell: cell[3], reverse=True)
    return Strip(low, high, columns, rows, order, bytes(cells), scale, named[:worst])


def _level(value: float, scale: float) -> int:
    if scale <= 0 or value <= 0:
        return 1
    return 1 + min(_LEVELS - 1, round((_LEVELS - 1) * value / scale))


def _values(
    beats: Mapping[int, Sequence[Beat]], measure: str, low: int, high: int, width: float
) -> list[tuple[int, int, float]]:
    """Return (rank, column, value) of every beat in the range; higher is worse."""
    found: list[tuple[int, int, float]] = []
    by_column: dict[int, list[float]] = {}
    front: dict[int, int] = {}
    for rank, row in beats.items():
        before: Beat | None = None
        for number, beat in enumerate(row):
            value = _measured(measure, beat, before)
            before = beat
            front[number] = max(beat.step, front.get(number, beat.step))
            if value is None or not low <= beat.step <= high:
                continue
            column = int((beat.step - low) / width)
            found.append((rank, column, value))
            by_column.setdefault(column, []).append(value)
    if measure == "behind":
        return [
            (rank, int((beat.step - low) / width), float(front[number] - beat.step))
            for rank, row in beats.items()
            for number, beat in enumerate(row)
            if low <= beat.step <= high
        ]
    if measure == "gap":
        return found
    middle = {column: median(values) for column, values in by_column.items()}
    sign = -1.0 if measure == "late" else 1.0
    return [
        (rank, column, max(0.0, sign * (value - middle[column]))) for rank, column, value in found
    ]


def _measured(measure: str, beat: Beat, before: Beat | None) -> float | None:
    if measure == "late":
        return beat.wait_ms
    if measure == "step":
        return beat.step_ms
    if measure == "gap" and before is not None and None not in (beat.mono, before.mono):
        return (beat.mono or 0.0) - (before.mono or 0.0)
    return 0.0 if measure == "behind" else None
