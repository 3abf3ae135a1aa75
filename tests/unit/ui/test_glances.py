"""What the list of runs says beyond summaries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from launchhelm.records import Command, Outcome
from launchhelm.ui.scan import Scanner
from launchhelm.views.trend import trend
from tests.support.cli_runs import MadeRun
from tests.support.dashboard import Dashboard
from tests.support.reading import FakeClock


@pytest.fixture
def root(tmp_path: Path) -> Path:
    found = tmp_path / "runs"
    found.mkdir()
    return found


def unknown(run: MadeRun, id_: str) -> None:
    run.conclude(Command(id_, "lr", {"scale": 0.5}), Outcome("", "outcome_unknown", of=2))


def rows(ui: Dashboard) -> dict[str, Any]:
    return {row["name"]: row for row in ui.get("runs")["runs"]}


def test_rows_have_a_trend_and_the_count_of_unknown_outcomes_also_of_runs_nobody_opened(
    root: Path,
) -> None:
    done, live = MadeRun(root, "done").train(100), MadeRun(root, "live").train(100)
    for run in (done, live):
        for step in range(101, 180):
            run.journals[0].add("m", {"train/loss": 180.0 - step}, step=step)
    unknown(done, "command-1")
    unknown(done, "command-2")
    done.end()
    ui = Dashboard(root)
    found = ui.get("runs")
    assert found["unknown"] == 2
    by_name = {row["name"]: row for row in found["runs"]}
    assert (by_name["done"]["unknown"], by_name["live"]["unknown"]) == (2, 0)
    course = by_name["live"]["trend"]
    assert len(course) == 8 and course[1:] == sorted(course[1:], reverse=True)


def test_ranks_that_are_not_well_are_counted_in_the_row(root: Path) -> None:
    clock = FakeClock()
    run = MadeRun(root, "live", ranks=3, created_at=clock.wall()).train()
    ui = Dashboard(root, clock=clock)
    assert rows(ui)["live"]["ranks_bad"] == 0
    for turn in range(2, 12):
        clock.pass_s(15)
        for journal in run.journals[:2]:
            journal.beat(400 + turn, turn)
        row = rows(ui)["live"]
    assert (row["ranks"], row["ranks_bad"]) == (3, 1)


def test_an_ended_run_is_looked_at_once_and_a_live_one_only_for_what_is_new(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []

    def noting(directory: Path, name: str) -> Any:
        looked.append(directory.name)
        return trend(directory, name)

    monkeypatch.setattr("launchhelm.ui.glances.trend", noting)
    clock = FakeClock()
    done, live = MadeRun(root, "done").train().end(), MadeRun(root, "live").train()
    ui = Dashboard(root, clock=clock)
    rows(ui)
    assert sorted(looked) == sorted([done.path.name, live.path.name])
    looked.clear()
    clock.pass_s(1)
    rows(ui)
    assert looked == []
    clock.pass_s(60)
    unknown(live, "command-1")
    assert rows(ui)["live"]["unknown"] == 1
    assert looked == [live.path.name]


def test_a_run_whose_files_are_not_here_yet_is_looked_at_again(root: Path) -> None:
    clock = FakeClock()
    run = MadeRun(root, "done").train()
    unknown(run, "command-1")
    run.end()
    ui = Dashboard(root, clock=clock)
    found, _ = ui.board.look()
    data = run.path / "data"
    data.rename(root / "elsewhere")
    assert not ui.board.glances.look(found, 1.0)
    (root / "elsewhere").rename(data)
    assert not ui.board.glances.look(found, 1.0)
    clock.pass_s(20)
    assert ui.board.glances.look(found, 1.0)
    assert ui.board.glances.of(found[0]).unknown == 1


def test_the_list_is_news_when_a_glance_or_the_syncing_changes(root: Path) -> None:
    run = MadeRun(root, "live").train()
    said = {"id": run.run_id, "state": "never synced", "server": "", "problem": ""}
    ui = Dashboard(root, clock=FakeClock())
    scanner = Scanner(ui.board, sync=lambda: {"runs": [dict(said)]})
    cursor = (scanner.changes([], "") or {})["cursor"]
    assert rows(ui)["live"]["sync"]["text"] == "off"
    assert scanner.changes([], cursor) is None
    said.update(state="pending", server="https://lh.example", problem="403: the key may only read")
    ui.board.clock.pass_s(60)  # type: ignore[attr-defined]
    found = scanner.changes([], cursor)
    assert found is not None and found["changes"][0]["what"] == ["runs"]
    sync = rows(ui)["live"]["sync"]
    assert (sync["text"], sync["problem"]) == ("pending", "403: the key may only read")
