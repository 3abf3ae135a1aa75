"""Histograms: of samples, which are counted here, or of bins that somebody else counted.

A value that stands for no number on an axis is never a reason to fail, because gradients are looked
at when they explode. Samples beyond 2^53, infinite ones included, are `underflow` and `overflow`;
`total` counts all, so what is missing from the sum of the others is NaN.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, ClassVar, Final, NamedTuple

from launchhelm.values.base import MAX_NUMBER, RichValue
from launchhelm.values.coerce import Lazy, coerce

MAX_BINS: Final = 512
COUNTS: Final = ("underflow", "overflow", "total")
STATISTICS: Final = (*COUNTS, "min", "max", "mean", "std")


class Histogram(RichValue):
    """How samples are distributed, in bins of equal width from the least to the greatest.

    A tensor on a device is fetched, so this waits for it.

    Args:
        values: Numbers: a sequence, an array or a tensor of any shape; at least one.
        bins: 1 to 512. Equal samples make one bin.

    Raises:
        TypeError: Something among them is no number.
        ValueError: No sample, or a bad number of bins.
    """

    renderer: ClassVar[str] = "histogram"

    def __init__(self, values: Any, *, bins: int = 64) -> None:  # Any: arrays of any library.
        counted = _counted(values, bins)
        self.left_out = counted.left_out
        self._edges: list[int | float] = [*counted.edges]
        self._counts: list[int | float] = [*counted.counts]
        self._statistics: dict[str, Any] = {}
        if self.left_out:
            self._statistics = {
                "underflow": counted.underflow,
                "overflow": counted.overflow,
                "total": counted.left_out + sum(counted.counts),
            }

    @classmethod
    def from_counts(
        cls,
        edges: Any,  # Any: sequences and arrays of any library; also counts.
        counts: Any,
        *,
        underflow: float | None = None,
        overflow: float | None = None,
        total: float | None = None,
        min: float | None = None,
        max: float | None = None,
        mean: float | None = None,
        std: float | None = None,
    ) -> Histogram:
        """Make one of bins that are counted already, for example by `numpy.histogram`.

        Args:
            edges: 2 to 513 finite numbers, strictly rising.
            counts: One for each bin, none negative.
            underflow, overflow, total: Never negative. A statistic that is not finite is left out.

        Raises:
            TypeError: Something is no number.
            ValueError: What these rules forbid.
        """
        made = cls.__new__(cls)
        made._edges, made._counts = _checked_bins(_numbers(edges), _numbers(counts))
        given = dict(
            zip(STATISTICS, (underflow, overflow, total, min, max, mean, std), strict=True)
        )
        known = {name: _number(value) for name, value in given.items() if value is not None}
        for name in COUNTS:
            if known.get(name, 0) < 0:
                raise ValueError(f"The statistic {name} is never negative, got {known[name]!r}.")
        made._statistics = {name: it for name, it in known.items() if _is_inside(it)}
        made.left_out = len(known) - len(made._statistics)
        return made

    def value(self) -> dict[str, Any]:
        """Return `{"edges", "counts"}` and the statistics that are known."""
        return {"edges": list(self._edges), "counts": list(self._counts), **self._statistics}


def bin_values(values: Any, *, bins: int = 64) -> tuple[list[float], list[int]]:
    """Count samples in bins of equal width; the greatest falls into the last bin.

    Returns:
        Edges, strictly rising, and a count for each bin.

    Raises:
        TypeError, ValueError: As `Histogram`.
    """
    counted = _counted(values, bins)
    return counted.edges, counted.counts


class _Counted(NamedTuple):
    """Samples in bins, and those that are in none."""

    edges: list[float]
    counts: list[int]
    underflow: int = 0
    overflow: int = 0
    left_out: int = 0


def _counted(values: Any, bins: int) -> _Counted:
    if isinstance(bins, bool) or not isinstance(bins, int) or not 1 <= bins <= MAX_BINS:
        raise ValueError(f"bins must be an integer from 1 to {MAX_BINS}, got {bins!r}.")
    if isinstance(values, str | bytes) or not (_is_array(values) or isinstance(values, Iterable)):
        raise TypeError(f"A histogram is made of numbers, got {type(values).__name__}.")
    return (_counted_array if _is_array(values) else _counted_numbers)(values, bins)


def _counted_numbers(values: Iterable[object], bins: int) -> _Counted:
    samples = [_number(value) for value in values]
    inside = [sample for sample in samples if _is_inside(sample)]
    below = sum(sample < -MAX_NUMBER for sample in samples)
    above = sum(sample > MAX_NUMBER for sample in samples)
    edges = _edges(len(samples), min(inside, default=None), max(inside, default=None), bins)
    counts = [0] * (len(edges) - 1)
    low, width, last = edges[0], _width(edges), len(counts) - 1
    for sample in inside:
        counts[min(int((sample - low) / width), last)] += 1
    return _Counted(edges, counts, below, above, len(samples) - len(inside))


def _counted_array(array: Any, bins: int) -> _Counted:
    """Do the same with the array's own library, which is loaded where its arrays are."""
    if "complex" in str(array.dtype):
        raise TypeError("A complex number has no place on an axis; use .real, .imag or abs().")
    is_tensor = hasattr(array, "detach")
    if is_tensor:
        samples = array.detach().cpu().double().flatten()
    else:
        samples = array.__array__().astype("float64").ravel()
    library = sys.modules[type(samples).__module__.partition(".")[0]]
    inside = samples[(samples >= -MAX_NUMBER) & (samples <= MAX_NUMBER)]
    below, above = int((samples < -MAX_NUMBER).sum()), int((samples > MAX_NUMBER).sum())
    least, greatest = (float(inside.min()), float(inside.max())) if len(inside) else (None, None)
    edges = _edges(len(samples), least, greatest, bins)
    last = len(edges) - 2
    places = (inside - edges[0]) / _width(edges)
    indices = (places.long() if is_tensor else places.astype("int64")).clip(0, last)
    counts = library.bincount(indices, minlength=last + 1).tolist()
    return _Counted(edges, counts, below, above, len(samples) - len(inside))


def _edges(count: int, low: float | None, high: float | None, bins: int) -> list[float]:
    """Return the edges for samples between two numbers; None: none has a place."""
    if not count:
        raise ValueError("A histogram needs at least one sample.")
    if low is None or high is None:
        return [0.0, 1.0]
    if low == high:
        # As wide as half the value, and closed where the value is.
        return sorted((low, low / 2)) if low else [0.0, 1.0]
    width = (high - low) / bins
    edges = [*(low + width * index for index in range(bins)), high]
    # Floats that are nearly neighbours leave no room between them.
    return edges if _is_rising(edges) else [low, high]


def _width(edges: Sequence[float]) -> float:
    return (edges[-1] - edges[0]) / (len(edges) - 1)


def _is_rising(edges: Sequence[float]) -> bool:
    return all(left < right for left, right in pairwise(edges))


def _is_inside(number: float) -> bool:
    return -MAX_NUMBER <= number <= MAX_NUMBER


def _is_array(values: object) -> bool:
    return hasattr(values, "dtype") and (hasattr(values, "detach") or hasattr(values, "__array__"))


def _numbers(values: Any) -> list[int | float]:
    if _is_array(values):
        values = values.tolist()
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise TypeError(f"Edges and counts are sequences of numbers, got {type(values).__name__}.")
    return [_number(value) for value in values]


def _number(value: object) -> int | float:
    """Return a number as int or float; an integer beyond every float is infinite."""
    if type(value) is float:
        return value
    exact = coerce(value)
    if isinstance(exact, Lazy):
        exact = exact.resolve()
    if isinstance(exact, bool | str):
        raise TypeError(f"A histogram is made of numbers, got {value!r}.")
    return exact


def _checked_bins(
    edges: list[int | float], counts: list[int | float]
) -> tuple[list[int | float], list[int | float]]:
    if not 2 <= len(edges) <= MAX_BINS + 1:
        raise ValueError(f"A histogram has 2 to {MAX_BINS + 1} edges, got {len(edges)}.")
    if not all(map(_is_inside, edges)) or not _is_rising(edges):
        raise ValueError("The edges of a histogram must be finite, below 2^53, and rise strictly.")
    if len(counts) != len(edges) - 1:
        raise ValueError(
            f"A histogram has one count for each bin: {len(edges)} edges, {len(counts)} counts. "
            "The edges come first."
        )
    if not all(map(math.isfinite, counts)) or min(counts) < 0 or max(counts) > MAX_NUMBER:
        raise ValueError("A count is finite, not negative and below 2^53.")
    return edges, counts
