"""Many points as few: extremes survive, buckets stand still, sums and points agree."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

from launchhelm.store import schema
from launchhelm.views.curves import Curves
from launchhelm.views.thin import Buckets, smooth, width_for
from tests.support.reading import RunBuilder

NAME = "train/loss"


def noisy(count: int, seed: int = 1) -> list[float]:
    chance = random.Random(seed)
    return [chance.uniform(1.0, 2.0) for _ in range(count)]


def sealed_run(tmp_path: Path, values: list[float], *, per_segment: int = 3000) -> Path:
    """Log values at rising steps; every segment but the last is sealed."""
    run = RunBuilder(tmp_path)
    writer = run.writer(0)
    for step, value in enumerate(values):
        writer.metrics(step, **{NAME: value, "other": step})
        if step % per_segment == per_segment - 1:
            writer.seal()
    writer.flush()
    return run.directory


@pytest.mark.parametrize("px", [16, 100, 900])
def test_a_single_spike_survives_every_zoom(tmp_path: Path, px: int) -> None:
    values = noisy(10_000)
    values[4567], values[7001] = 99.0, -99.0
    curves = Curves(sealed_run(tmp_path, values))
    for low, high in ((0, 9999), (4000, 8000), (4500, 7100), (4567, 7001)):
        curve = curves.curve(NAME, low=low, high=high, px=px)
        assert curve is not None
        points = dict(zip(curve.thin.x, curve.thin.y, strict=True))
        assert points[4567] == 99.0 and points[7001] == -99.0, (low, high)
        assert curve.points == high - low + 1


def test_nan_is_marked_not_dropped(tmp_path: Path) -> None:
    values = noisy(8000)
    values[100] = math.nan
    values[2000] = math.inf
    values[7900] = -math.inf  # In the journal.
    curve = Curves(sealed_run(tmp_path, values)).curve(NAME, px=50)
    assert curve is not None and not curve.exact
    assert [each[1:] for each in curve.thin.odd] == [(1, 0, 0), (0, 1, 0), (0, 0, 1)]
    assert [each[0] for each in curve.thin.odd] == [100, 2000, 7900]
    assert all(map(math.isfinite, curve.thin.y))
    assert curve.points == 8000


def test_a_metric_that_is_only_nan_is_there(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path)
    writer = run.writer(0)
    for step in range(20):
        writer.metrics(step, **{NAME: math.nan})
    writer.flush()
    curve = Curves(run.directory).curve(NAME, px=50)
    assert curve is not None and curve.thin.x == []
    assert sum(each[1] for each in curve.thin.odd) == 20


def test_buckets_do_not_move_when_points_arrive(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path)
    writer = run.writer(0)
    curves = Curves(run.directory)
    values = noisy(4000)
    seen: dict[float, dict[float, float]] = {}
    for step, value in enumerate(values):
        writer.metrics(step, **{NAME: value})
        if step % 500 == 499:
            writer.flush()
            curve = curves.curve(NAME, px=32)
            if curve is None or curve.exact:
                continue
            done = step - step % curve.width
            now = {x: y for x, y in zip(curve.thin.x, curve.thin.y, strict=True) if x < done}
            before = seen.get(curve.width, {})
            assert before.items() <= now.items(), f"at step {step} something has moved"
            seen[curve.width] = now
    assert max(map(len, seen.values())) > 60, "several buckets were compared"


def test_blocks_and_raw_points_agree(tmp_path: Path) -> None:
    """Bucket by bucket: first, lowest, highest, last and mean, from sums and from points."""
    values = noisy(9000)
    px = 16
    curve = Curves(sealed_run(tmp_path, values, per_segment=4096)).curve(NAME, px=px)
    assert curve is not None and curve.width >= 2 * schema.BLOCK_POINTS
    plain = Buckets(0, len(values) - 1, px)
    plain.points([float(step) for step in range(len(values))], values)
    expected = plain.thin()
    assert curve.thin.mean_y == pytest.approx(expected.mean_y)
    assert sorted(curve.thin.y) == sorted(expected.y)
    assert [x // curve.width for x in curve.thin.x] == [x // curve.width for x in expected.x]


def test_few_points_are_all_there_and_said_to_be(tmp_path: Path) -> None:
    values = noisy(300)
    curve = Curves(sealed_run(tmp_path, values, per_segment=200)).curve(NAME, px=100)
    assert curve is not None and curve.exact
    assert curve.thin.x == list(range(300)) and curve.thin.y == values


def test_a_torn_last_line_is_read_later(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path)
    writer = run.writer(0)
    writer.metrics(0, **{NAME: 1.0})
    writer.flush()
    whole = writer.journal.read_bytes()
    writer.metrics(1, **{NAME: 2.0})
    writer.flush()
    both = writer.journal.read_bytes()
    curves = Curves(run.directory)
    writer.journal.write_bytes(both[:-5])
    first = curves.curve(NAME)
    assert first is not None and first.thin.y == [1.0]
    writer.journal.write_bytes(both)
    second = curves.curve(NAME)
    assert second is not None and second.thin.y == [1.0, 2.0]
    assert len(whole) < len(both)


def test_a_journal_that_was_sealed_meanwhile_is_read_once(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path)
    writer = run.writer(0)
    curves = Curves(run.directory)
    for step in range(600):
        writer.metrics(step, **{NAME: float(step)})
    writer.flush()
    assert (before := curves.curve(NAME)) is not None and before.points == 600
    writer.seal()
    for step in range(600, 700):
        writer.metrics(step, **{NAME: float(step)})
    writer.flush()
    after = curves.curve(NAME)
    assert after is not None and after.thin.y == [float(step) for step in range(700)]


def test_repeated_steps_are_those_of_the_newest_attempt(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path)
    first = run.writer(0)
    for step in range(2000):
        first.metrics(step, **{NAME: 1.0})
    first.seal()
    run.attempt(1)
    second = run.writer(0, attempt=2)
    for step in range(1500, 1800):
        second.metrics(step, **{NAME: 2.0})
    second.flush()
    for px in (900, 50):
        curve = Curves(run.directory).curve(NAME, px=px)
        assert curve is not None and curve.points == 2000, px
        for x, y in zip(curve.thin.x, curve.thin.y, strict=True):
            assert y == (2.0 if 1500 <= x < 1800 else 1.0), (px, x)
    old = Curves(run.directory).curve(NAME, attempt=1)
    assert old is not None and set(old.thin.y) == {1.0} and old.points == 2000


def test_another_rank_and_the_time_can_be_the_axis(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path)
    for rank in (0, 1):
        writer = run.writer(rank)
        start = writer.at
        for step in range(10):
            writer.at = start + 2.0 * step
            writer.metrics(step, **{NAME: float(10 * rank + step)})
        writer.flush()
    curve = Curves(run.directory).curve(NAME, x="time", origin=start, rank=1)
    assert curve is not None
    assert curve.thin.x == [2.0 * step for step in range(10)]
    assert curve.thin.y == [10.0 + step for step in range(10)]


def test_steps_that_go_back_are_drawn_in_order(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path)
    writer = run.writer(0)
    for step in [*range(500, 1000), *range(500)]:
        writer.metrics(step, **{NAME: float(step)})
    writer.seal()
    for px in (900, 20):
        curve = Curves(run.directory).curve(NAME, px=px)
        assert curve is not None and curve.points == 1000
        assert curve.thin.x == sorted(curve.thin.x) and curve.thin.x == curve.thin.y


@pytest.mark.parametrize("px", [1, 7, 900])
@pytest.mark.parametrize("ends", [(0, 1), (3, 1_000_000), (-5.5, 7.25), (1e9, 1e9 + 1)])
def test_buckets_are_never_more_than_pixels(px: int, ends: tuple[float, float]) -> None:
    width = width_for(*ends, px)
    count = math.floor(ends[1] / width) - math.floor(ends[0] / width) + 1
    assert count <= max(px, 2) and math.log2(width).is_integer()


def test_smoothing_begins_at_the_first_value() -> None:
    assert smooth([5.0, 5.0, 5.0], 0.9) == pytest.approx([5.0, 5.0, 5.0])
    assert smooth([1.0, 2.0], 0.0) == [1.0, 2.0]
