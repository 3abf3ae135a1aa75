"""Runs under a root, the way from a name to a run, and what one run says about itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from launchhelm import views
from launchhelm.errors import Conflict, NotFound, StorageError
from launchhelm.records import Outcome
from tests.support.reading import EPOCH, FakeClock, RunBuilder, age_files


def beating(run: RunBuilder, step: int = 5, rank: int = 0) -> None:
    writer = run.writer(rank)
    writer.metrics(step, loss=0.5)
    writer.beat(step)
    writer.flush()


# --- the list -------------------------------------------------------------------------------------


def test_each_run_is_summarised_newest_first(tmp_path: Path) -> None:
    clock = FakeClock(wall=EPOCH + 40)
    old = RunBuilder(tmp_path, name="old", run_id="01900000-0000-7000-8000-000000000001")
    new = RunBuilder(
        tmp_path,
        name="new",
        run_id="01900000-0000-7000-8000-000000000002",
        world_size=2,
        group="sweep",
        tags=["a"],
    )
    beating(old)
    writer = new.writer(0)
    writer.metrics(11, loss=0.25, acc=0.5)
    writer.close("finished", step=12)
    writer.seal()
    new.command("c1")
    old.command("c2", lr=1)
    age_files(tmp_path, 2, clock=clock)
    first, second = views.runs(tmp_path, clock=clock)
    assert (first.name, first.state.word, first.step, first.world_size) == (
        "new",
        "finished",
        12,
        2,
    )
    assert (first.group, first.tags, first.waiting) == ("sweep", ("a",), 0)
    assert first.metrics == {"loss": 0.25, "acc": 0.5}
    assert (second.name, second.state.word, second.step, second.waiting) == ("old", "running", 5, 1)
    assert second.age == views.Age(2.0, by_host_clock=True)
    assert second.config == {"lr": 0.1}


def test_a_summary_names_the_rank_that_failed(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, world_size=2)
    first, second = run.writer(0), run.writer(1)
    first.close("terminated", "SIGTERM", step=7)
    second.close("error", "ValueError: no", step=7)
    first.flush()
    second.flush()
    (summary,) = views.runs(tmp_path)
    assert summary.state.text == "failed on rank 1 at step 7: ValueError: no"


def test_the_list_says_of_a_run_what_its_own_page_says(tmp_path: Path) -> None:
    clock = FakeClock(wall=EPOCH + 40)
    late, ended, well = (RunBuilder(tmp_path, world_size=3) for _ in range(3))
    for run in (late, ended, well):
        for rank in range(2):
            beating(run, rank=rank)
        writer = run.writer(2)
        writer.beat(5)
        if run is ended:
            writer.close("terminated", "SIGTERM", step=5)
        writer.flush()
        age_files(run.directory, 2, clock=clock)
        if run is late:
            os.utime(writer.journal, (EPOCH, EPOCH))
    clock.pass_s(10)
    said = {run.run_id: run.state.text for run in views.runs(tmp_path, clock=clock)}
    for run in (late, ended, well):
        assert said[run.run_id] == views.open_run(run.directory, clock=clock).state.text
    assert said[late.run_id] == "running, 1 rank late"
    assert said[ended.run_id] == "running, 1 rank ended"
    assert said[well.run_id] == "running"


def test_a_run_that_hangs_still_shows_its_newest_metrics(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path)
    writer = run.writer(0)
    writer.metrics(5, loss=0.5)
    for _ in range(40):
        writer.beat(5)
    writer.flush()
    (summary,) = views.runs(tmp_path, clock=FakeClock(wall=EPOCH + 5))
    assert summary.metrics == {"loss": 0.5}


def test_links_hidden_names_files_and_other_directories_are_no_runs(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path)
    (tmp_path / "latest").symlink_to(run.directory)
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    run.directory.joinpath("run.json").stat()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "run.json").write_text("{}")
    assert [summary.run_id for summary in views.runs(tmp_path)] == [run.run_id]
    assert views.find_run(tmp_path, "latest") == run.directory


def test_a_run_that_cannot_be_read_is_listed_with_the_reason(tmp_path: Path) -> None:
    good, bad, newer = (RunBuilder(tmp_path, name=name) for name in ("good", "bad", "newer"))
    (bad.directory / "run.json").write_text("{")
    (newer.directory / "run.json").write_text('{"format": 2}')
    problems: list[str] = []
    summaries = views.runs(tmp_path, problems=problems, clock=FakeClock(wall=EPOCH + 5))
    states = {summary.run_id: summary.state for summary in summaries}
    assert states[good.run_id].word == "starting"
    assert states[bad.run_id].word == states[newer.run_id].word == "unreadable"
    assert "format 2" in states[newer.run_id].text
    assert len(problems) == 2
    with pytest.raises(StorageError, match="newer"):
        views.open_run(newer.directory)


def test_a_directory_without_a_manifest_yet_is_no_run_yet(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path)
    os.rename(run.directory / "run.json", run.directory / ".run.json.1a2b")
    assert views.runs(tmp_path) == []
    with pytest.raises(NotFound):
        views.open_run(run.directory)


def test_a_missing_root_says_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="LAUNCHHELM_DIR"):
        views.runs(tmp_path / "none")


def test_an_observer_makes_ages_in_the_list_its_own(tmp_path: Path) -> None:
    clock = FakeClock(wall=EPOCH + 40)
    run = RunBuilder(tmp_path)
    beating(run)
    observer = views.Observer(clock)
    views.runs(tmp_path, observer=observer)
    clock.pass_s(views.SILENT_S + 60)
    (summary,) = views.runs(tmp_path, observer=observer)
    assert summary.state.word == "no news"
    assert summary.age is not None
    assert not summary.age.by_host_clock


def test_listing_runs_loads_no_third_party_package() -> None:
    code = (
        "import sys; before = set(sys.modules); import launchhelm.views;"
        "names = {n.partition('.')[0] for n in set(sys.modules) - before};"
        "print(sorted(n for n in names if n not in sys.stdlib_module_names and n != 'launchhelm'))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


# --- from a name to a run -------------------------------------------------------------------------


@pytest.fixture
def three(tmp_path: Path) -> list[RunBuilder]:
    return [
        RunBuilder(tmp_path, name=name, run_id=f"0190000{index}-0000-7000-8000-00000000000{index}")
        for index, name in enumerate(("alpha", "beta", "beta"))
    ]


def test_a_run_is_found_by_path_id_prefix_title_and_latest(
    tmp_path: Path, three: list[RunBuilder], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = (run.directory for run in three)
    assert views.find_run(tmp_path, str(first)) == first
    assert views.find_run(tmp_path, three[1].run_id) == second
    assert views.find_run(tmp_path, "01900000") == first
    assert views.find_run(tmp_path, "alpha") == first
    assert views.find_run(tmp_path, "latest") == third
    monkeypatch.chdir(tmp_path)
    assert views.find_run(tmp_path / "none", f"./{first.name}") == first
    assert views.find_run([tmp_path], first.name) == first


def test_an_ambiguous_name_lists_the_candidates(tmp_path: Path, three: list[RunBuilder]) -> None:
    with pytest.raises(Conflict) as raised:
        views.find_run(tmp_path, "beta")
    assert three[1].run_id in str(raised.value)
    assert three[2].run_id in str(raised.value)
    assert raised.value.remedy
    with pytest.raises(Conflict, match="fits 3 runs"):
        views.find_run(tmp_path, "019")


def test_copies_of_one_run_are_told_apart_by_their_paths(
    tmp_path: Path, three: list[RunBuilder]
) -> None:
    first = three[0].directory
    shutil.copytree(first, tmp_path / "backup")
    for selector in (three[0].run_id[:8], "alpha"):
        with pytest.raises(Conflict) as raised:
            views.find_run(tmp_path, selector)
        assert f"2 copies of run {three[0].run_id}" in raised.value.message
        assert str(first) in raised.value.message
        assert str(tmp_path / "backup") in raised.value.message
        assert raised.value.remedy == "Their id is the same: give the path."
    assert views.find_run(tmp_path, "backup") == tmp_path / "backup"


def test_an_unknown_name_says_where_was_looked_and_what_there_is(
    tmp_path: Path, three: list[RunBuilder]
) -> None:
    with pytest.raises(NotFound) as raised:
        views.find_run(tmp_path, "gamma")
    assert str(tmp_path) in raised.value.message
    assert "alpha" in raised.value.message
    with pytest.raises(NotFound, match="no run directory"):
        views.find_run(tmp_path, "./gamma")
    with pytest.raises(NotFound):
        views.find_run(tmp_path / "nowhere", "latest")


def test_a_renamed_directory_is_found_under_its_own_id(
    tmp_path: Path, three: list[RunBuilder]
) -> None:
    moved = tmp_path / "my-best-run"
    three[0].directory.rename(moved)
    assert views.find_run(tmp_path, three[0].run_id) == moved
    assert views.find_run(tmp_path, "my-best-run") == moved
    assert views.open_run(moved).run_id == three[0].run_id


def test_a_run_is_found_by_the_title_that_it_was_given_later(
    tmp_path: Path, three: list[RunBuilder]
) -> None:
    writer = three[1].writer()
    writer.record("desc", {"name": "the good one"})
    writer.flush()
    assert views.find_run(tmp_path, "the good one") == three[1].directory


def test_a_title_wins_over_the_beginning_of_an_id(tmp_path: Path, three: list[RunBuilder]) -> None:
    titled = RunBuilder(tmp_path, name="019", run_id="0f000000-0000-7000-8000-000000000009")
    assert views.find_run(tmp_path, "019") == titled.directory


# --- one run --------------------------------------------------------------------------------------


def test_a_run_says_what_it_is_as_described_last(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, name="first", group="g", tags=["a"], notes="n", attempts=2)
    writer = run.writer(attempt=2)
    writer.record("desc", {"name": "second", "tags": ["b", "c"]})
    writer.record("desc", {"notes": ""})
    writer.record("sum", {"best": 0.5, "gone": 1})
    writer.record("sum", {"gone": None})
    writer.record("keep", {"step": 7, "state": {"epoch": 2}})
    writer.flush()
    view = views.open_run(run.directory)
    assert (view.name, view.group, view.tags, view.notes) == ("second", "g", ("b", "c"), "")
    assert (view.project, view.config) == ("tests", {"lr": 0.1})
    assert view.summary == {"best": 0.5}
    assert view.kept == {"step": 7, "state": {"epoch": 2}}
    # A record of an older attempt that becomes visible late changes none of it.
    late = run.writer(attempt=1)
    late.record("desc", {"name": "zero"})
    late.record("keep", {"step": 1})
    late.record("sum", {"best": 9, "only": 1})
    late.flush()
    view.refresh()
    assert (view.name, view.kept, view.summary) == (
        "second",
        {"step": 7, "state": {"epoch": 2}},
        {"best": 0.5, "only": 1},
    )


def test_capabilities_are_those_of_the_newest_attempt_that_has_some(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, attempts=3)
    for attempt, names in ((1, ("lr", "old")), (2, ("lr", "new"))):
        writer = run.writer(attempt=attempt)
        for name in names:
            writer.record("cap", {"name": name, "attempt": attempt})
        writer.record("ctl", {"values": {"lr": [attempt]}, "control": "on"})
        writer.flush()
    view = views.open_run(run.directory)
    assert view.capabilities == {
        "lr": {"name": "lr", "attempt": 2},
        "new": {"name": "new", "attempt": 2},
    }
    assert view.controls["values"] == {"lr": [2]}


def test_a_body_in_a_file_of_its_own_is_read_from_there(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path)
    (run.directory / "media").mkdir()
    (run.directory / "media" / "ab12").write_text('{"state": {"big": 1}}')
    writer = run.writer()
    writer.record("keep", {"$file": "media/ab12", "size": 21})
    writer.flush()
    assert views.open_run(run.directory).kept == {"state": {"big": 1}}


@pytest.mark.parametrize("name", ["/etc/passwd", "../secret", "media/../../x", "media/none", ""])
def test_a_record_cannot_make_a_reader_open_other_files(tmp_path: Path, name: str) -> None:
    run = RunBuilder(tmp_path)
    (tmp_path / "secret").write_text('{"secret": 1}')
    writer = run.writer()
    writer.record("keep", {"$file": name})
    writer.flush()
    assert views.open_run(run.directory).kept == {"$file": name}


# --- the ledger -----------------------------------------------------------------------------------


def test_a_command_is_followed_from_the_inbox_to_its_outcome(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path)
    path = run.command("c1", lr=0.5)
    view = views.open_run(run.directory)
    (command,) = view.commands
    assert (command.id, command.name, command.state) == ("c1", "lr", "waiting")
    assert (command.payload, command.issued_by) == ({"lr": 0.5}, "me")
    assert command.outcome is None
    assert command.is_pending

    writer = run.writer()
    claimed = Outcome(
        "c1", "claimed", name="lr", payload={"lr": 0.5}, issued_by="me", owner="alice", reason="why"
    )
    writer.record("oc", claimed.body(), step=3)
    writer.flush()
    path.unlink()
    view.refresh()
    assert [each.state for each in view.commands] == ["claimed"]

    writer.record("oc", Outcome("c1", "applying", of=2).body(), step=4)
    final = Outcome(
        "c1",
        "applied",
        applied_at={"step": 5},
        applied_on=2,
        of=2,
        changes={"lr": {"old": [0.1], "new": [0.5]}},
    )
    writer.record("oc", final.body(), step=5)
    writer.record("effect", {"cmd": "c1", "step": 6, "values": {"lr": [0.5]}}, step=6)
    writer.seal()
    view.refresh()
    command = view.command("c1")  # type: ignore[assignment]
    assert [state.state for state in command.states] == ["claimed", "applying", "applied"]
    assert [state.step for state in command.states] == [3, 4, 5]
    assert (command.state, command.owner, command.reason) == ("applied", "alice", "why")
    assert command.outcome is not None
    assert (command.outcome.applied_on, command.outcome.of) == (2, 2)
    assert command.outcome.payload == {"lr": 0.5}
    assert command.effect == {"cmd": "c1", "step": 6, "values": {"lr": [0.5]}}
    assert not command.is_pending


def test_the_first_final_state_counts(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, attempts=2)
    first, second = run.writer(attempt=1), run.writer(attempt=2)
    first.record("oc", Outcome("c", "applied", of=1, applied_on=1).body())
    second.record("oc", Outcome("c", "outcome_unknown", code="runtime_restart").body())
    first.flush()
    second.flush()
    (command,) = views.open_run(run.directory).commands
    assert command.state == "applied"


def test_a_command_file_that_cannot_be_read_is_shown_as_waiting(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path)
    path = run.command("c1")
    path.write_text("{")
    (command,) = views.open_run(run.directory).commands
    assert (command.state, command.name, command.command) == ("waiting", "", None)


def test_an_inbox_that_is_not_there_or_closed_to_us_leaves_the_rest_readable(
    tmp_path: Path,
) -> None:
    run = RunBuilder(tmp_path)
    beating(run)
    os.rmdir(run.directory / "control")
    view = views.open_run(run.directory)
    assert view.commands == []
    assert view.step == 5
    assert view.problems == []


def test_a_hole_in_a_copy_is_named(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path)
    writer = run.writer()
    writer.metrics(0, loss=1.0)
    lost = writer.rotate()
    writer.metrics(1, loss=2.0)
    writer.flush()
    lost.unlink()
    view = views.open_run(run.directory)
    assert any("record 0 is not here" in problem for problem in view.problems)
    assert [point.step for point in view.history("loss")] == [1]


def test_following_goes_on_across_segments_and_attempts(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, attempts=2)
    writer = run.writer(attempt=1)
    slept: list[float] = []
    followed = views.open_run(run.directory).follow(kinds={"m"}, sleep=slept.append)
    assert next(followed) == []
    writer.metrics(0, loss=1.0)
    writer.beat(0)
    writer.seal()
    writer.metrics(1, loss=1.0)
    writer.flush()
    assert [record.step for record in next(followed)] == [0, 1]
    later = run.writer(attempt=2)
    later.metrics(2, loss=1.0)
    later.flush()
    assert [record.step for record in next(followed)] == [2]
    assert next(followed) == []
    assert len(slept) == 3


@pytest.mark.parametrize("left", [0, 100])
def test_an_ended_run_whose_files_are_damaged_is_not_starting(tmp_path: Path, left: int) -> None:
    run = RunBuilder(tmp_path)
    writer = run.writer(0)
    writer.beat(3)
    writer.close("finished", "", step=3)
    writer.flush()
    writer.seal()
    (sealed,) = (run.directory / "data").glob("*.db")
    os.truncate(sealed, left)
    (summary,) = views.runs(tmp_path)
    assert summary.state.word == "unreadable" and "segment" in summary.state.text
    assert summary.problem and views.open_run(run.directory).state == summary.state
