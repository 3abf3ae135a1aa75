"""Runs are found by listing, each once, and what is not visible yet is given time."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from launchhelm._ids import new_run_id
from syncer import discover
from syncer.discover import PATIENCE_S, Discovery, data_mark, stretched
from tests.support.cli_runs import MadeRun
from tests.support.runs import TurnedClock, until


@pytest.fixture
def clock() -> TurnedClock:
    return TurnedClock()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "runs"
    path.mkdir()
    return path


def found(discovery: Discovery) -> list[Path]:
    return [place.directory for place in discovery.look()]


def test_runs_are_found_newest_first(root: Path, clock: TurnedClock) -> None:
    runs = [MadeRun(root, f"run-{number}").path for number in range(3)]

    places = Discovery([root], clock=clock).look()

    assert [place.directory for place in places] == sorted(runs, reverse=True)
    assert {place.name for place in places} == {"run-0", "run-1", "run-2"}


def test_a_root_may_be_a_run_or_hold_folders_of_runs(root: Path, clock: TurnedClock) -> None:
    group = root / "team"
    group.mkdir()
    run = MadeRun(group).path

    for given in (root, group, run):
        assert found(Discovery([given], clock=clock)) == [run]
    assert found(Discovery([root, group, run, root], clock=clock)) == [run]


def test_a_root_that_lies_too_deep_in_another_is_looked_into(
    root: Path, clock: TurnedClock
) -> None:
    deep = root / "a" / "b"
    deep.mkdir(parents=True)
    run = MadeRun(deep).path

    assert found(Discovery([root], clock=clock)) == []
    assert found(Discovery([root, deep], clock=clock)) == [run]


def test_links_lead_to_no_second_listing_of_a_run(root: Path, clock: TurnedClock) -> None:
    run = MadeRun(root).path
    (root / "latest").symlink_to(run)
    (root / "loop").symlink_to(root)
    (root.parent / "linked").symlink_to(root)

    assert found(Discovery([root, root.parent / "linked"], clock=clock)) == [run]


def test_names_of_unknown_things_are_ignored(root: Path, clock: TurnedClock) -> None:
    (root / "notes.txt").write_text("mine", "utf-8")
    (root / ".cache" / "run.json").mkdir(parents=True)
    (root / "data").mkdir()

    discovery = Discovery([root], clock=clock)

    assert found(discovery) == []
    clock.turn(PATIENCE_S)
    discovery.look()
    assert discovery.problems == {}


def test_a_run_that_comes_later_is_found_at_the_next_look(root: Path, clock: TurnedClock) -> None:
    group = root / "team"
    group.mkdir()
    discovery = Discovery([root], clock=clock)
    for _ in range(3):
        assert found(discovery) == []

    runs = {MadeRun(root).path, MadeRun(group).path}

    assert set(found(discovery)) == runs


def test_a_run_that_was_taken_away_is_forgotten(root: Path, clock: TurnedClock) -> None:
    gone, stays = MadeRun(root).path, MadeRun(root).path
    discovery = Discovery([root], clock=clock)
    discovery.look()

    shutil.rmtree(gone)

    assert found(discovery) == [stays]


@pytest.mark.parametrize("content", [None, b"", b'{"format": 1, "run_id"'])
def test_a_missing_or_short_manifest_is_waited_for(
    content: bytes | None, root: Path, clock: TurnedClock
) -> None:
    """Another host's file may be visible late; for a minute that is no problem."""
    run = MadeRun(root).path
    manifest = run / "run.json"
    whole = manifest.read_bytes()
    manifest.unlink()
    if content is not None:
        manifest.write_bytes(content)
    discovery = Discovery([root], clock=clock)

    assert found(discovery) == []
    clock.turn(PATIENCE_S - 1)
    assert found(discovery) == []
    assert list(discovery.waiting) == [run] and discovery.problems == {}
    clock.turn(1)
    assert found(discovery) == []
    assert list(discovery.problems) == [run]

    manifest.write_bytes(whole)
    assert found(discovery) == [run]
    assert discovery.problems == {}


def test_an_empty_directory_and_a_file_named_like_a_run_are_problems_after_a_minute(
    root: Path, clock: TurnedClock
) -> None:
    (root / new_run_id()).mkdir()
    (root / new_run_id()).write_text("", "utf-8")
    discovery = Discovery([root], clock=clock)
    discovery.look()

    clock.turn(PATIENCE_S)
    discovery.look()

    assert len(discovery.problems) == 2


def test_a_root_that_cannot_be_listed_for_a_while_loses_no_run(
    root: Path, clock: TurnedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = MadeRun(root).path
    discovery = Discovery([root], clock=clock)
    discovery.look()

    def stale(path: object) -> object:
        raise OSError(116, "Stale file handle", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", stale)
        assert found(discovery) == [run]
        assert list(discovery.waiting) == [discovery.roots[0]]
    assert found(discovery) == [run] and not discovery.waiting


def test_known_runs_cost_nothing_and_unchanged_folders_one_stat(
    root: Path, clock: TurnedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = root / "team"
    group.mkdir()
    for _ in range(5):
        MadeRun(group)
    discovery = Discovery([root], clock=clock)
    discovery.look()
    discovery.look()
    listed: list[object] = []
    real = os.scandir

    def counting(path: str) -> object:
        listed.append(path)
        return real(path)

    monkeypatch.setattr(os, "scandir", counting)
    monkeypatch.setattr(discover, "load_manifest", None)

    assert len(found(discovery)) == 5
    assert listed == [root]


def test_the_mark_of_a_run_moves_with_every_new_file_of_data(root: Path) -> None:
    run = MadeRun(root).path
    os.utime(run / "data", ns=(1, 1))
    assert data_mark(run) == 1

    (run / "data" / "r00001-a001-00000001.00001.jsonl").touch()

    assert data_mark(run) > 1
    assert data_mark(root / "nowhere") == 0


def test_intervals_are_stretched_where_listing_is_slow() -> None:
    assert stretched(2.0, 0.01) == 2.0
    assert stretched(2.0, 0.3) == pytest.approx(6.0)
    assert stretched(2.0, 100.0) == 60.0


def test_events_name_the_run_and_our_own_files_wake_nobody(root: Path) -> None:
    pytest.importorskip("watchdog")
    run = MadeRun(root)
    sync = run.path / "sync"
    woken: list[Path] = []
    wakeup = discover.Wakeup([root], woken.append)
    try:
        if not wakeup.is_on:
            pytest.skip("this host gives no file events")
        (sync / "acked.json").write_text("{}", "utf-8")
        run.journals[0].beat(1)
        until(lambda: woken)
        assert set(woken) == {run.path}
    finally:
        wakeup.close()


def test_reading_runs_makes_no_events_that_a_watch_would_have_to_take(root: Path) -> None:
    pytest.importorskip("watchdog")
    run = MadeRun(root)
    met: list[Any] = []
    dispatch = discover._Events.dispatch

    def met_and_dispatched(self: Any, event: Any) -> None:
        met.append(event)
        dispatch(self, event)

    woken: list[Path] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(discover._Events, "dispatch", met_and_dispatched)
        wakeup = discover.Wakeup([root], woken.append)
        try:
            if not wakeup.is_on:
                pytest.skip("this host gives no file events")
            for path in (run.path / "data").iterdir():
                path.read_bytes()
            run.journals[0].beat(1)  # Events come in order: those of reading would be there.
            until(lambda: woken)
        finally:
            wakeup.close()
    assert {event.event_type for event in met} <= {"created", "modified", "moved"}


def test_so_many_events_that_polling_is_cheaper_end_the_watch(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = MadeRun(root)
    monkeypatch.setattr(discover, "MAX_EVENTS", 20)
    woken: list[Path] = []
    wakeup = discover.Wakeup([root], woken.append)
    try:
        if not wakeup.is_on:
            pytest.skip("this host gives no file events")
        for number in range(40):
            (run.path / "data" / f"{number}").touch()  # Events of one file may be taken together.
        until(lambda: not wakeup.is_on)
        assert 0 < len(woken) <= 20
    finally:
        wakeup.close()
