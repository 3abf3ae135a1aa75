"""Curves of several ranks and attempts, as the dashboard answers them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from launchhelm.records import Command, Outcome
from tests.support.cli_runs import MadeRun
from tests.support.dashboard import Dashboard
from tests.support.reading import RunBuilder

NAME = "train/loss"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    found = tmp_path / "runs"
    found.mkdir()
    return found


def series(root: Path, **query: Any) -> list[Any]:
    ui = Dashboard(root)
    id_ = ui.get("runs")["runs"][0]["id"]
    found: list[Any] = ui.get(f"runs/{id_}/series", **query)["series"]
    return found


def test_the_mean_of_ranks_has_a_band_and_says_how_many_it_holds(root: Path) -> None:
    made = RunBuilder(root, world_size=4)
    for rank in range(4):
        writer = made.writer(rank)
        for step in range(20 if rank < 3 else 10):
            writer.metrics(
                step, **{NAME: rank + step, "only": rank} if not rank else {NAME: rank + step}
            )
        writer.flush()
    both = series(root, name=[NAME, "only"], rank="mean")
    assert (both[0]["ranks"], both[0]["of"]) == (4, 4)
    assert both[1]["rank"] == 0 and "band" not in both[1]
    loss = both[0]
    assert loss["rank"] == "mean" and loss["x"] == list(range(20))
    assert (loss["y"][5], loss["y"][15]) == (6.5, 16.0)
    band = loss["band"]
    assert (band["low"][5], band["high"][5], band["high"][15]) == (5, 8, 17)
    assert band["ranks"] == [4] * 10 + [3] * 10


@pytest.mark.parametrize("read", [0, 512])
def test_the_mean_of_long_curves_is_that_of_their_points(
    root: Path, read: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From sums, and from the points themselves."""
    monkeypatch.setattr("launchhelm.views.curves._MOST_BLOCKS_READ", read)
    steps = 20_000
    made = RunBuilder(root, world_size=2)
    for rank in range(2):
        writer = made.writer(rank)
        for step in range(steps):
            spike = 50.0 if (rank, step) == (1, 1234) else math.nan if step == 77 + rank else 0.0
            writer.metrics(step, **{NAME: rank + step % 2 + spike})
            if step % 2000 == 1999:
                writer.seal()
        writer.flush()
    (line,) = series(root, name=NAME, rank="mean", px=300)
    assert line["band"]["ranks"] == [2] * len(line["x"])
    assert (len(line["x"]) < 100) == (not read)
    assert max(line["band"]["high"]) == 51.0 + 1234 % 2
    assert min(line["band"]["low"]) == 0.0
    calm = [y for x, y in zip(line["x"], line["y"], strict=True) if abs(x - 1234) > steps / 20]
    assert calm == pytest.approx([1.0] * len(calm), abs=0.05)
    assert sum(each["nan"] for each in line["odd"]) == 2


def test_of_very_many_ranks_some_make_the_mean_and_that_is_said(root: Path) -> None:
    made = RunBuilder(root, world_size=130)
    for rank in range(130):
        writer = made.writer(rank)
        writer.metrics(1, **{NAME: float(rank)})
        writer.flush()
    (line,) = series(root, name=NAME, rank="mean")
    assert (line["ranks"], line["of"]) == (44, 130)
    assert line["band"]["low"] == [0] and line["band"]["high"] == [129]


def test_steps_that_were_logged_again_are_shown_of_older_attempts_too(root: Path) -> None:
    made = RunBuilder(root, attempts=3)
    for attempt, first, last in ((1, 0, 100), (2, 60, 120), (3, 110, 150)):
        writer = made.writer(0, attempt=attempt)
        for step in range(first, last):
            writer.metrics(step, **{NAME: attempt * 1000 + step})
        writer.flush()
    found = series(root, name=NAME, attempt="all")
    assert [one["attempt"] for one in found] == ["newest", 1, 2]
    newest, first, second = found
    assert newest["x"] == list(range(150)) and newest["y"][59:61] == [1059, 2060]
    assert first["x"] == list(range(60, 100)) and first["y"][0] == 1060
    assert second["x"] == list(range(110, 120))
    assert [one["attempt"] for one in series(root, name=NAME)] == ["newest"]
    zoomed = series(root, name=NAME, attempt="all", from_=105, to=140)
    assert [one["attempt"] for one in zoomed] == ["newest", 2]
    by_time = series(root, name=NAME, attempt="all", x="wall")
    assert [len(one["x"]) for one in by_time] == [150, 100, 60]


def test_only_a_jump_that_nothing_explains_is_marked(root: Path) -> None:
    run = MadeRun(root)
    values = {0: 1e-3, 100: 5e-4, 200: 1e-4, 300: 1e-5}
    rate = 0.0
    for step in range(400):
        rate = values.get(step, rate)
        run.journals[0].add("m", {"optim/lr/group0": rate, NAME: rate}, step=step)
    for id_, state, step in (("c-100", "applied", 100), ("c-200", "outcome_unknown", 199)):
        outcome = Outcome("", state, applied_at={"step": step}, applied_on=1, of=1)
        run.conclude(Command(id_, "lr", {"scale": 0.5}), outcome)
    lr, loss = series(root, name=["optim/lr/group0", NAME])
    assert lr["jumps"] == [{"x": 300, "old": 1e-4, "new": 1e-5}]
    assert "jumps" not in loss
    (coarse,) = series(root, name="optim/lr/group0", px=16)
    assert not coarse["exact"] and coarse["jumps"] == lr["jumps"]


@pytest.mark.parametrize("sealed", [False, True], ids=["journal", "sealed"])
def test_a_metric_of_words_is_answered_in_words(root: Path, sealed: bool) -> None:
    made = RunBuilder(root)
    writer = made.writer(0)
    for step in range(4):
        writer.metrics(step, phase="warm" if step < 2 else "main")
    writer.flush()
    if sealed:
        writer.seal()
    words = series(root, name="phase")[0]
    assert (words["kind"], words["x"]) == ("string", [0, 1, 2, 3])
    assert words["y"] == ["warm", "warm", "main", "main"]
