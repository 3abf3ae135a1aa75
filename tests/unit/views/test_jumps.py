"""Which changes of a learning rate are jumps."""

from __future__ import annotations

import math

import pytest

from launchhelm.views.jumps import is_lr, jumps, jumps_of_thinned
from launchhelm.views.thin import Buckets


def warm_up_and_cosine(steps: int) -> list[float]:
    warm = steps // 10
    return [
        3e-4 * step / warm
        if step < warm
        else 1.5e-4 * (1 + math.cos(math.pi * (step - warm) / (steps - warm)))
        for step in range(steps)
    ]


@pytest.mark.parametrize("name", ["lr", "optim/lr/group0", "train/learning_rate", "lr-Adam"])
def test_a_learning_rate_is_known_by_its_name(name: str) -> None:
    assert is_lr(name)


@pytest.mark.parametrize("name", ["train/loss", "color", "slr/x", "lrx"])
def test_other_names_are_no_learning_rate(name: str) -> None:
    assert not is_lr(name)


def test_a_slope_has_no_jump_however_steep_it_begins() -> None:
    assert jumps(range(1000), warm_up_and_cosine(1000)) == []
    assert jumps(range(3), [0.0, 1e-4, 2e-4]) == []


def test_a_jump_stands_at_the_first_step_with_the_new_value() -> None:
    values = warm_up_and_cosine(1000)
    values[600:] = [value / 2 for value in values[600:]]
    (found,) = jumps(range(1000), values)
    assert (found.x, found.since) == (600, 599) and found.new < found.old / 1.9


def test_a_fifth_is_no_jump_yet() -> None:
    assert jumps(range(4), [1.0, 1.0, 0.81, 0.81]) == []
    assert [each.x for each in jumps(range(4), [1.0, 1.0, 0.79, 0.79])] == [2]


def test_a_jump_is_found_in_a_thinned_curve_and_a_warm_up_is_none() -> None:
    count = 100_000
    values = warm_up_and_cosine(count)
    values[41_234:] = [value * 0.5 for value in values[41_234:]]
    buckets = Buckets(0, count - 1, 100)
    buckets.points([float(step) for step in range(count)], values)
    thin = buckets.thin()
    assert len(thin.x) < 500

    def closer(low: float, high: float) -> tuple[list[float], list[float]]:
        places = range(int(low), int(high) + 1)
        return [float(step) for step in places], [values[step] for step in places]

    assert [each.x for each in jumps_of_thinned(thin.x, thin.y, closer)] == [41_234]
