"""Which record numbers are dealt with."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from syncer.coverage import Coverage

intervals = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 8)), max_size=12)


@given(intervals)
def test_it_is_the_set_of_all_numbers_that_were_added(added: list[tuple[int, int]]) -> None:
    coverage = Coverage()
    expected: set[int] = set()
    for first, length in added:
        coverage.add(first, first + length - 1)
        expected.update(range(first, first + length))
    assert {number for number in range(60) if number in coverage} == expected
    assert coverage.last == max(expected, default=-1)


@given(intervals)
def test_it_is_written_as_few_intervals_apart_from_each_other(added: list[tuple[int, int]]) -> None:
    coverage = Coverage((first, first + length) for first, length in added)
    written = list(coverage)
    assert all(a[1] + 1 < b[0] for a, b in itertools.pairwise(written))
    assert Coverage(written) == coverage


def test_a_stream_that_is_sent_in_order_is_one_interval() -> None:
    coverage = Coverage()
    for last in range(0, 100_000, 1000):
        coverage.add(0, last)
    assert list(coverage) == [(0, 99_000)]
