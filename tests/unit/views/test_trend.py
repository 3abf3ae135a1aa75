"""The course of a metric as eight numbers."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from launchhelm.views.trend import trend
from tests.support.reading import RunBuilder


def run_of(root: Path, values: list[float], *, seal_every: int) -> Path:
    made = RunBuilder(root)
    writer = made.writer(0)
    for step, value in enumerate(values):
        writer.metrics(step, loss=value, other="x" * 40)
        if step % seal_every == seal_every - 1:
            writer.seal()
    writer.flush()
    return made.directory


@pytest.mark.parametrize("seal_every", [400, 3000, 10**9])
def test_a_trend_is_the_mean_of_each_eighth(tmp_path: Path, seal_every: int) -> None:
    steps = 16_000
    found = trend(
        run_of(tmp_path, [float(step) for step in range(steps)], seal_every=seal_every), "loss"
    )
    assert found is not None and None not in found
    middles = [steps / 16 * (2 * at + 1) for at in range(8)]
    assert found == pytest.approx(middles, abs=steps / 16)


def test_what_is_no_finite_number_is_left_out(tmp_path: Path) -> None:
    values = [math.nan if step % 2 else 1.0 for step in range(64)]
    assert trend(run_of(tmp_path, values, seal_every=10**9), "loss") == [1.0] * 8


def test_one_point_or_none_is_no_trend(tmp_path: Path) -> None:
    directory = run_of(tmp_path, [1.0], seal_every=10**9)
    assert trend(directory, "loss") is None
    assert trend(directory, "nothing") is None


def test_few_points_leave_gaps(tmp_path: Path) -> None:
    found = trend(run_of(tmp_path, [1.0, 2.0], seal_every=10**9), "loss")
    assert found == [1.0, *[None] * 6, 2.0]
