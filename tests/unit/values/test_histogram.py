"""What samples become in bins, whatever they come as."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from launchhelm import Histogram
from launchhelm.rich import bin_values

BEYOND = 2.0**53
FLOATS = st.floats() | st.integers(-(10**400), 10**400) | st.sampled_from([5e-324, -0.0, BEYOND])


@given(st.lists(FLOATS, min_size=1, max_size=50), st.integers(1, 512))
def test_every_sample_is_counted_once_in_bins_that_rise(values: list[Any], bins: int) -> None:
    histogram = Histogram(values, bins=bins)
    value = histogram.value()
    edges, counts = value["edges"], value["counts"]
    assert len(edges) == len(counts) + 1 and 2 <= len(edges) <= 513
    assert all(left < right for left, right in pairwise(edges))
    assert all(abs(edge) < BEYOND for edge in edges)
    inside = [it for it in values if abs(it) < BEYOND]
    assert sum(counts) == len(inside)
    assert histogram.left_out == len(values) - len(inside)
    if inside:
        assert (edges[0] <= min(inside)) and (edges[-1] >= max(inside))
    if histogram.left_out:
        assert value["total"] == len(values)
        assert value["underflow"] == sum(it <= -BEYOND for it in values)
        assert value["overflow"] == sum(it >= BEYOND for it in values)
    else:
        assert set(value) == {"edges", "counts"}


@given(st.lists(st.floats(width=32), min_size=1, max_size=40), st.integers(1, 64))
def test_lists_arrays_and_tensors_make_the_same_bins(values: list[float], bins: int) -> None:
    expected = Histogram(values, bins=bins).value()
    array = numpy.array(values, dtype=numpy.float32)
    tensor = torch.tensor(values, dtype=torch.float32).requires_grad_()
    for other in (array, tensor, array.astype(numpy.float64).reshape(1, -1), iter(values)):
        assert Histogram(other, bins=bins).value() == expected


@pytest.mark.parametrize(
    "values",
    [
        torch.ones(2, 3, dtype=torch.bfloat16),
        numpy.ones(6, dtype=numpy.int8),
        torch.ones(6, dtype=torch.bool),
        [numpy.float16(1), torch.tensor(1), 1, 1.0, numpy.int64(1), torch.tensor(1.0)],
    ],
    ids=str,
)
def test_equal_samples_make_one_bin_with_a_width(values: Any) -> None:
    assert Histogram(values).value() == {"edges": [0.5, 1.0], "counts": [6]}


def test_samples_that_are_no_numbers_on_an_axis_are_counted_beside_the_bins() -> None:
    """What gradients look like when they explode."""
    nan = Histogram(torch.tensor([math.nan, math.nan]))
    assert nan.value() == {
        "edges": [0.0, 1.0],
        "counts": [0],
        "underflow": 0,
        "overflow": 0,
        "total": 2,
    }
    mixed = Histogram([1.0, 3.0, math.nan, math.inf, 1e300, -math.inf], bins=2)
    assert mixed.value() == {
        "edges": [1.0, 2.0, 3.0],
        "counts": [1, 1],
        "underflow": 1,
        "overflow": 2,
        "total": 6,
    }
    assert mixed.left_out == 4


@pytest.mark.parametrize("bins", [0, 513, 2.0, True, "8"])
def test_a_bad_number_of_bins_is_refused(bins: Any) -> None:
    with pytest.raises(ValueError, match="1 to 512"):
        Histogram([1, 2], bins=bins)


@pytest.mark.parametrize(
    "values", ["text", b"bytes", 3, None, [None], ["1"], [True], [[1]], torch.tensor([1j])], ids=str
)
def test_what_is_no_number_is_a_type_error(values: Any) -> None:
    with pytest.raises(TypeError):
        Histogram(values)


@pytest.mark.parametrize("values", [[], numpy.array([]), torch.tensor([])], ids=str)
def test_no_sample_is_a_value_error(values: Any) -> None:
    with pytest.raises(ValueError, match="at least one"):
        Histogram(values)


def test_counted_bins_come_as_numpy_makes_them() -> None:
    counts, edges = numpy.histogram([1.0, 2.0, 2.5, 4.0], bins=3)
    value = Histogram.from_counts(edges, counts, total=4, mean=numpy.float32(2.375)).value()
    assert value["counts"] == [1, 2, 1] and value["edges"] == edges.tolist()
    assert (value["total"], value["mean"]) == (4, 2.375)
    assert Histogram.from_counts(torch.tensor([0, 1]), torch.tensor([3])).value() == {
        "edges": [0, 1],
        "counts": [3],
    }


def test_a_statistic_that_is_not_finite_is_left_out() -> None:
    histogram = Histogram.from_counts([0, 1], [2], mean=math.nan, max=math.inf, min=0)
    assert histogram.value() == {"edges": [0, 1], "counts": [2], "min": 0}
    assert histogram.left_out == 2


@pytest.mark.parametrize(
    ("edges", "counts", "statistics"),
    [
        ([0], [], {}),
        ([0, 0], [1], {}),
        ([1, 0], [1], {}),
        ([0, math.inf], [1], {}),
        ([0, BEYOND], [1], {}),
        (range(515), range(514), {}),
        ([1, 2], [0, 1, 2], {}),
        ([0, 1], [-1], {}),
        ([0, 1], [math.nan], {}),
        ([0, 1], [1], {"total": -1}),
    ],
)
def test_bins_that_are_none_are_refused(edges: Any, counts: Any, statistics: Any) -> None:
    with pytest.raises(ValueError):
        Histogram.from_counts(edges, counts, **statistics)


def test_bins_are_those_of_the_hosted_sdk() -> None:
    assert bin_values([1.0, 2.0, 3.0], bins=2) == ([1.0, 2.0, 3.0], [1, 2])
    assert bin_values([0.0, 0.5, 0.5, 1.0], bins=4) == ([0.0, 0.25, 0.5, 0.75, 1.0], [1, 0, 2, 1])


def test_samples_too_close_for_floats_between_them_share_a_bin() -> None:
    low = 1e15
    assert bin_values([low, low + 0.125], bins=64) == ([low, low + 0.125], [2])
