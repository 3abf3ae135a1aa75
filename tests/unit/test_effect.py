"""Before and after a command: silent about noise and bends, not about a step. Seeds are fixed."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from launchhelm.views.effect import FEWEST, LEFT_OUT, SIDE, effect

Shape = Callable[[float], float]
SHAPES: dict[str, Shape] = {
    "flat": lambda step: 2.0,
    "exponential": lambda step: 0.3 + 3 * math.exp(-step / 400),
    "power law": lambda step: 5 * (step + 1) ** -0.3,
}
NOISE = 0.02
CORRELATIONS = (0.0, 0.3, 0.6)
CURVES = 90


def _curves(
    shape: Shape, *, first: int, step: float = 0.0
) -> list[tuple[list[float], list[float]]]:
    """Return both sides of many curves, with noise that is correlated from point to point."""
    made = []
    for seed in range(CURVES):
        rng = random.Random(seed)
        start, rho = rng.randrange(first, 2000), CORRELATIONS[seed % len(CORRELATIONS)]
        drift = rng.gauss(0, NOISE)
        sides: tuple[list[float], list[float]] = ([], [])
        for place in range(2 * SIDE + LEFT_OUT):
            drift = rho * drift + rng.gauss(0, NOISE * math.sqrt(1 - rho * rho))
            is_after = place >= SIDE
            sides[is_after].append(shape(start + place) + drift + step * is_after)
        made.append(sides)
    return made


@pytest.mark.parametrize("shape", SHAPES)
def test_a_bending_curve_is_not_an_effect(shape: str) -> None:
    """Also where it is steepest: silent in at least 97 % of curves without a change."""
    found = [effect(*sides) for sides in _curves(SHAPES[shape], first=1)]
    spoken = sum(each is not None and each.is_clear for each in found)
    assert spoken <= 0.03 * CURVES, f"{spoken} of {CURVES}"


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("sign", [-1, 1])
def test_a_step_of_ten_times_the_noise_is_said(shape: str, sign: int) -> None:
    sides = _curves(SHAPES[shape], first=300, step=sign * 10 * NOISE)
    found = [effect(*each) for each in sides]
    spoken = [each for each in found if each is not None and each.is_clear]
    assert len(spoken) >= 0.75 * CURVES, f"{len(spoken)} of {CURVES}"
    word = "lower" if sign < 0 else "higher"
    assert all(str(each).startswith(f"{word} than its trend by ") for each in spoken)


def test_a_curve_without_noise_shows_what_it_did() -> None:
    assert str(effect([1.0] * SIDE, [1.0] * LEFT_OUT + [0.69] * SIDE)) == (
        "lower than its trend by 0.31"
    )
    assert str(effect([1.0] * SIDE, [1.0] * SIDE)) == "no clear change"
    assert str(effect([float(i) for i in range(SIDE)], [float(SIDE + i) for i in range(SIDE)])) == (
        "no clear change"
    )


def test_with_few_points_it_says_how_many_more_it_takes() -> None:
    assert effect([1.0] * (FEWEST - 1), [1.0] * SIDE) is None
    said = effect([1.0] * FEWEST, [1.0] * (LEFT_OUT + FEWEST - 6))
    assert str(said) == "too early to say, 6 more points"
    assert str(effect([1.0] * FEWEST, [1.0] * (LEFT_OUT + FEWEST - 1))).endswith("1 more point")
    assert str(effect([1.0] * FEWEST, [1.0] * (LEFT_OUT + FEWEST))) == "no clear change"
