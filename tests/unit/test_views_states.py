"""States of ranks and runs are judged by what moves, on the observer's own clock."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from launchhelm import snapshot, views
from launchhelm.store.manifest import Attempt, take_attempt
from launchhelm.views.liveness import Observer, age_by_files, process_is_gone
from launchhelm.views.participants import Watch
from tests.support.reading import EPOCH, FakeClock, RunBuilder, WriterBuilder, age_files


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(wall=EPOCH + 30)


def started(run: RunBuilder, ranks: int, step: int = 10) -> list[WriterBuilder]:
    """Start that many ranks; each has beaten once at the same step."""
    writers = [run.writer(rank) for rank in range(ranks)]
    for writer in writers:
        writer.record("ev", {"type": "start"})
        writer.at = EPOCH + 15
        writer.beat(step)
        writer.flush()
    return writers


def look(run: RunBuilder, clock: FakeClock, since_s: float = 1.0) -> views.RunView:
    age_files(run.directory, since_s, clock=clock)
    return views.open_run(run.directory, clock=clock)


def beat(writers: list[WriterBuilder], clock: FakeClock, step: int | None, **more: object) -> None:
    for writer in writers:
        writer.at = clock.wall()
        writer.beat(step, **more)
        writer.flush()


def test_a_run_is_opened_by_a_path_of_either_kind(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path)
    assert views.open_run(str(run.directory)).run_id == views.open_run(run.directory).run_id


# --- the observer ---------------------------------------------------------------------------------


def test_an_age_is_ours_once_the_thing_moved(clock: FakeClock) -> None:
    observer = Observer(clock)
    first = observer.observe("rank", 1, before_s=7.0)
    assert (first.seconds, first.by_host_clock) == (7.0, True)
    clock.pass_s(3)
    assert observer.observe("rank", 1).seconds == 10.0
    assert observer.observe("rank", 2) == views.Age(0.0)
    clock.pass_s(4)
    assert observer.observe("rank", 2) == views.Age(4.0)


def test_an_age_is_ours_after_one_heartbeat_of_watching_and_never_jumps_back(
    clock: FakeClock,
) -> None:
    observer = Observer(clock)
    before = observer.observe("rank", 1, before_s=400.0)
    clock.pass_s(views.BEAT_S)
    after = observer.observe("rank", 1)
    assert before.by_host_clock and not after.by_host_clock
    assert after.seconds >= before.seconds


def test_an_observer_ignores_the_wall_clock(clock: FakeClock) -> None:
    observer = Observer(clock)
    observer.observe("rank", 1)
    observer.observe("rank", 2)
    clock.wall_at -= 7200
    clock.monotonic_at += 5
    assert observer.observe("rank", 2).seconds == 5.0


def test_of_two_times_in_files_the_younger_possible_one_counts(clock: FakeClock) -> None:
    now = clock.wall()
    assert age_by_files(clock, now - 600, now - 5) == 5
    assert age_by_files(clock, now + 600, now - 90) == 90
    assert age_by_files(clock, now + 600, now + 1) == 0
    assert age_by_files(clock, None, None) == 0


# --- ranks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("still_s", "state"),
    [(1, "ok"), (44, "ok"), (46, "late"), (119, "late"), (121, "silent")],
)
def test_a_rank_that_stands_still_is_late_then_silent(
    tmp_path: Path, clock: FakeClock, still_s: float, state: str
) -> None:
    run = RunBuilder(tmp_path, world_size=2)
    moving, _ = started(run, 2)
    view = look(run, clock)
    beat([moving], clock, 10)
    view.refresh()
    clock.pass_s(still_s - 1)
    beat([moving], clock, 11)
    view.refresh()
    assert [row.state for row in view.participants] == ["ok", state]


@pytest.mark.parametrize("phase", ["waiting at step 10", "training"])
@pytest.mark.parametrize(("still_s", "state"), [(19, "ok"), (21, "late"), (121, "silent")])
def test_who_is_not_heard_of_is_late_sooner_when_the_others_get_no_further(
    tmp_path: Path, clock: FakeClock, still_s: float, state: str, phase: str
) -> None:
    run = RunBuilder(tmp_path, world_size=3)
    first, _, third = started(run, 3)
    view = look(run, clock)
    clock.pass_s(still_s - 1)
    beat([first, third], clock, 10, phase=phase)
    view.refresh()
    assert [row.state for row in view.participants] == ["ok", state, "ok"]
    assert [row.awaited for row in view.participants] == [False, state != "ok", False]


def test_who_is_not_heard_of_is_not_late_sooner_while_another_rank_goes_on(
    tmp_path: Path, clock: FakeClock
) -> None:
    run = RunBuilder(tmp_path, world_size=3)
    first, _, third = started(run, 3)
    view = look(run, clock)
    clock.pass_s(30)
    beat([first], clock, 10, phase="waiting at step 10")
    beat([third], clock, 11)
    view.refresh()
    assert [row.state for row in view.participants] == ["ok", "ok", "ok"]


def test_a_rank_that_waits_is_not_behind_whatever_the_step_of_the_one_it_waits_for(
    tmp_path: Path, clock: FakeClock
) -> None:
    run = RunBuilder(tmp_path, world_size=3)
    first, stopped, third = started(run, 3, step=10)
    # The one that was stopped had gone on without the others, and has just said so, twice.
    beat([stopped], clock, 500)
    beat([stopped], clock, 500)
    clock.pass_s(3)
    beat([first, third], clock, 400, phase="waiting at step 400")
    rows = look(run, clock).participants
    assert [row.state for row in rows] == ["ok", "ok", "ok"]


def test_a_rank_that_is_not_heard_of_is_not_said_to_be_behind_a_front_that_stands(
    tmp_path: Path, clock: FakeClock
) -> None:
    """It made 20 steps a second, and may have been where the others are when it was stopped."""
    run = RunBuilder(tmp_path, world_size=2)
    first, stopped = started(run, 2, step=100)
    beat([first, stopped], clock, 400)
    for step in (700, 700):
        clock.pass_s(8)
        beat([first], clock, step)
    rows = look(run, clock).participants
    assert [(row.state, row.lag) for row in rows] == [("ok", 0), ("ok", 0)]


@pytest.mark.parametrize("skew_s", [600.0, -600.0, 3600.0, -3600.0])
def test_a_wrong_host_clock_calls_no_living_rank_silent_and_no_stopped_one_alive(
    tmp_path: Path, clock: FakeClock, skew_s: float
) -> None:
    run = RunBuilder(tmp_path, world_size=2)
    good, skewed = started(run, 2)
    skewed.at = clock.wall() + skew_s
    skewed.beat(10)
    skewed.flush()
    view = look(run, clock)
    assert [row.state for row in view.participants] == ["ok", "ok"]
    for step in range(11, 20):
        clock.pass_s(15)
        for writer, at in ((good, clock.wall()), (skewed, clock.wall() + skew_s - 60 * step)):
            writer.at = at
            writer.beat(step)
            writer.flush()
        view.refresh()
        assert [row.state for row in view.participants] == ["ok", "ok"]
        assert all(row.age.seconds >= 0 for row in view.participants)
    for _ in range(9):
        clock.pass_s(15)
        beat([good], clock, 20)
        view.refresh()
    assert [row.state for row in view.participants] == ["ok", "silent"]


def test_a_fresh_look_says_that_ages_are_by_the_hosts_clock(
    tmp_path: Path, clock: FakeClock
) -> None:
    run = RunBuilder(tmp_path)
    writers = started(run, 1)
    view = look(run, clock, since_s=4)
    assert view.participants[0].age == views.Age(4.0, by_host_clock=True)
    assert view.state.by_host_clock
    clock.pass_s(2)
    beat(writers, clock, 11)
    view.refresh()
    assert view.participants[0].age == views.Age(0.0)


def test_a_rank_without_a_step_is_starting(tmp_path: Path, clock: FakeClock) -> None:
    run = RunBuilder(tmp_path, world_size=2)
    writer = run.writer(0)
    writer.record("ev", {"type": "start"})
    writer.flush()
    view = look(run, clock)
    assert view.participants[0].state == "starting"
    assert view.missing == [1]


@pytest.mark.parametrize("phase", ["in eval", "in checkpoint"])
def test_a_rank_in_a_handler_is_busy(tmp_path: Path, clock: FakeClock, phase: str) -> None:
    run = RunBuilder(tmp_path)
    writers = started(run, 1)
    beat(writers, clock, 10, phase=phase)
    assert look(run, clock).participants[0].state == "busy"


def test_beats_at_different_moments_make_no_rank_behind(tmp_path: Path, clock: FakeClock) -> None:
    run = RunBuilder(tmp_path, world_size=2)
    early, late = started(run, 2, step=1000)
    early.at = EPOCH + 30
    early.beat(4000)
    early.flush()
    # The other beat 10 s earlier, at 200 steps a second: no sign of anything.
    late.at = EPOCH + 20
    late.beat(2000)
    late.flush()
    rows = look(run, clock).participants
    assert [row.state for row in rows] == ["ok", "ok"]
    assert [row.lag for row in rows] == [0, 0]


def test_a_rank_that_falls_back_further_than_a_beat_explains_is_behind(
    tmp_path: Path, clock: FakeClock
) -> None:
    run = RunBuilder(tmp_path, world_size=2)
    front, slow = started(run, 2, step=1000)
    front.at = slow.at = EPOCH + 30
    front.beat(1030)
    slow.beat(900)
    front.flush()
    slow.flush()
    rows = look(run, clock).participants
    assert [row.state for row in rows] == ["ok", "behind"]
    assert rows[1].lag is not None and rows[1].lag >= 2


def test_the_rank_for_which_the_others_wait_is_behind(tmp_path: Path, clock: FakeClock) -> None:
    run = RunBuilder(tmp_path, world_size=3)
    writers = started(run, 3, step=99)
    for at in (30, 45):
        for writer in writers:
            writer.at = EPOCH + at
            if writer.writer.rank == 1:
                writer.beat(99, phase="training", phase_s=float(at))
            else:
                writer.beat(100, phase="waiting at step 100")
            writer.flush()
    clock.pass_s(20)
    rows = look(run, clock).participants
    assert [row.state for row in rows] == ["ok", "behind", "ok"]
    assert [row.lag for row in rows] == [0, 1, 0]


def test_an_end_record_ends_a_rank_whatever_its_age(tmp_path: Path, clock: FakeClock) -> None:
    run = RunBuilder(tmp_path, world_size=2)
    first, second = started(run, 2)
    first.close("finished", step=11)
    first.flush()
    second.close("error", "ValueError: no", step=12)
    second.seal()
    rows = look(run, clock, since_s=5000).participants
    assert [(row.state, row.end, row.step) for row in rows] == [
        ("ended", "finished", 11),
        ("ended", "error", 12),
    ]


def test_a_process_of_this_very_host_that_is_gone_has_ended(
    tmp_path: Path, clock: FakeClock
) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    facts = {
        "pid": child.pid,
        "pidns": os.readlink("/proc/self/ns/pid"),
        "boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "start": Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[19],
    }
    run = RunBuilder(tmp_path)
    writer = run.writer(0, **facts)
    writer.beat(5)
    writer.flush()
    view = look(run, clock)
    try:
        assert view.participants[0].state == "ok"
    finally:
        child.kill()
        child.wait()
        child.stdin.close()  # type: ignore[union-attr]
    view.refresh()
    assert (view.participants[0].state, view.participants[0].end) == ("ended", "gone")
    assert view.state.word == "failed"
    assert "left no end record" in view.state.text


def test_a_process_of_another_boot_or_container_is_not_called_gone() -> None:
    here = {
        "pid": 1 << 22,
        "pidns": os.readlink("/proc/self/ns/pid"),
        "boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "start": 1,
    }
    assert process_is_gone(here)
    assert not process_is_gone({**here, "boot": "another"})
    assert not process_is_gone({**here, "pidns": "pid:[1]"})
    assert not process_is_gone({**here, "pidns": ""})
    assert not process_is_gone({**here, "pid": os.getpid(), "start": _start_of_this_process()})
    assert not process_is_gone({})


def _start_of_this_process() -> str:
    return Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]


# --- runs -----------------------------------------------------------------------------------------


def test_a_run_without_all_its_ranks_is_starting(tmp_path: Path, clock: FakeClock) -> None:
    run = RunBuilder(tmp_path, world_size=4)
    started(run, 3)
    state = look(run, clock).state
    assert (state.word, state.text) == ("starting", "starting: 3 of 4 ranks seen, 30 s")


def test_a_run_directory_without_any_writer_is_starting_and_then_no_news(
    tmp_path: Path, clock: FakeClock
) -> None:
    run = RunBuilder(tmp_path, world_size=2)
    view = look(run, clock)
    assert view.state.word == "starting"
    clock.pass_s(200)
    view.refresh()
    assert view.state.word == "no news"


def test_a_running_run_names_its_exceptions(tmp_path: Path, clock: FakeClock) -> None:
    run = RunBuilder(tmp_path, world_size=3)
    writers = started(run, 3)
    view = look(run, clock)
    assert view.state.text == "running"
    for _ in range(9):
        clock.pass_s(15)
        beat(writers[:2], clock, None)
        view.refresh()
    assert view.state.word == "running"
    assert view.state.text == "running, 1 rank silent, no step for 135 s"


def test_beats_without_progress_are_said(tmp_path: Path, clock: FakeClock) -> None:
    run = RunBuilder(tmp_path)
    writers = started(run, 1)
    view = look(run, clock)
    for _ in range(7):
        clock.pass_s(15)
        beat(writers, clock, 10)
        view.refresh()
    assert view.state.text == "running, no step for 105 s"


def test_when_all_ranks_are_silent_there_is_no_news_until_one_moves(
    tmp_path: Path, clock: FakeClock
) -> None:
    run = RunBuilder(tmp_path, world_size=2)
    writers = started(run, 2)
    view = look(run, clock)
    clock.pass_s(14 * 60)
    view.refresh()
    assert view.state.word == "no news"
    assert view.state.text.startswith("no news for 14 min; last written ")
    assert "by host-0's clock" in view.state.text
    beat(writers[:1], clock, 11)
    view.refresh()
    assert view.state.word == "running"


def test_an_old_copy_says_no_news_at_the_first_look(tmp_path: Path, clock: FakeClock) -> None:
    run = RunBuilder(tmp_path)
    started(run, 1)
    clock.pass_s(86_400)
    assert look(run, clock, since_s=80_000).state.word == "no news"


def test_a_run_that_finished_says_after_what_time(tmp_path: Path, clock: FakeClock) -> None:
    run = RunBuilder(tmp_path, world_size=2)
    for writer in started(run, 2):
        writer.at = EPOCH + 3 * 3600 + 12 * 60
        writer.close("finished", step=100)
        writer.seal()
    state = look(run, clock).state
    assert (state.word, state.text) == ("finished", "finished after 3 h 12 min")
    assert state.is_over


def test_a_run_that_was_told_to_end_says_so(tmp_path: Path, clock: FakeClock) -> None:
    run = RunBuilder(tmp_path, world_size=2)
    for writer in started(run, 2):
        writer.close("finished", "a stop command", step=100)
        writer.flush()
    state = look(run, clock).state
    assert (state.word, state.text) == ("stopped", "stopped by a stop command at step 100")
    assert state.is_over


def test_an_error_on_any_rank_fails_the_run_and_the_rank_is_named(
    tmp_path: Path, clock: FakeClock
) -> None:
    run = RunBuilder(tmp_path, world_size=3)
    writers = started(run, 3)
    writers[2].close("error", "RuntimeError: out of memory", step=12480)
    writers[0].close("error", "RuntimeError: Connection closed by peer", step=12481)
    for writer in writers:
        writer.flush()
    state = look(run, clock).state
    assert state.word == "failed"
    assert state.text == "failed on rank 2 at step 12,480: RuntimeError: out of memory"


def dead_process() -> dict[str, object]:
    """Return what a process of this host and boot writes at its opening that is no more."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return {
        "pid": child.pid,
        "pidns": os.readlink("/proc/self/ns/pid"),
        "boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "start": "1",
    }


def test_a_snapshot_is_judged_by_its_records_and_never_by_the_processes_of_this_host(
    tmp_path: Path, clock: FakeClock
) -> None:
    run = RunBuilder(tmp_path / "runs", world_size=2)
    alive = {**dead_process(), "pid": os.getpid(), "start": _start_of_this_process()}
    for rank, facts in enumerate((alive, dead_process())):
        writer = run.writer(rank, **facts)
        writer.beat(164)
        writer.flush()
    copy = tmp_path / "copies" / "copy"
    snapshot.take(run.directory, copy, sleep=lambda _: None)
    (summary,) = views.runs(copy.parent, clock=clock)
    view = views.open_run(copy, clock=clock)
    for state in (view.state, summary.state):
        assert (state.word, state.text) == ("copy", "a copy, as of step 164")
    assert [row.end for row in view.participants] == ["", ""]
    # Launched on the copy, it is a run of its own.
    assert take_attempt(copy, Attempt(0, 0, {}, EPOCH, 1, "host-0")).number == 2
    run.directory = copy
    later = run.writer(attempt=2, world_size=1, **alive)
    later.beat(165)
    later.flush()
    assert views.open_run(copy, clock=clock).state.word == "running"


def test_a_snapshot_of_a_run_that_ended_says_how(tmp_path: Path, clock: FakeClock) -> None:
    run = RunBuilder(tmp_path)
    (writer,) = started(run, 1)
    writer.close("finished", step=12)
    writer.seal()
    snapshot.take(run.directory, tmp_path / "copy")
    assert views.open_run(tmp_path / "copy", clock=clock).state.text == "finished after 15 s"


def test_a_snapshot_of_a_failed_run_names_the_ranks_of_which_it_has_no_end(
    tmp_path: Path, clock: FakeClock
) -> None:
    run = RunBuilder(tmp_path / "runs", world_size=2)
    (victim,) = started(run, 1)
    gone = run.writer(1, **dead_process())
    gone.beat(10)
    gone.flush()
    victim.close("error", "RuntimeError: gloo", step=11)
    victim.flush()
    snapshot.take(run.directory, tmp_path / "copies" / "copy", sleep=lambda _: None)
    text = (
        "failed on rank 0 at step 11: RuntimeError: gloo; rank 1 without an end record in this copy"
    )
    view = views.open_run(tmp_path / "copies" / "copy", clock=clock)
    assert view.state.text == text
    assert views.runs(tmp_path / "copies", clock=clock)[0].state.text == text


def test_a_finished_run_names_the_rank_that_died(tmp_path: Path, clock: FakeClock) -> None:
    run = RunBuilder(tmp_path, world_size=4)
    first, second, _ = started(run, 3)
    gone = run.writer(3, **dead_process())
    gone.beat(8)
    gone.flush()
    for writer in (first, second):
        writer.at = EPOCH + 51
        writer.close("finished", step=100)
        writer.seal()
    text = "finished after 51 s; rank 3 ended without an end record"
    state = look(run, clock).state
    assert (state.word, state.text) == ("finished", text)
    assert views.runs(tmp_path, clock=clock)[0].state.text == text
    clock.pass_s(300)
    state = look(run, clock, since_s=300).state
    assert state.text == (
        "finished after 51 s; rank 2 is silent without an end record; "
        "rank 3 ended without an end record"
    )


@pytest.mark.parametrize("ends", [("terminated", 50), ("terminated", 51), ("preempted", 12)])
def test_a_failed_run_names_the_rank_that_ended_first_with_its_own_reason(
    tmp_path: Path, clock: FakeClock, ends: tuple[str, int]
) -> None:
    run = RunBuilder(tmp_path, world_size=2)
    victim, cause = started(run, 2)
    cause.at, victim.at = EPOCH + 20, EPOCH + 21
    cause.close(ends[0], "SIGTERM", step=ends[1])
    victim.close("error", "RuntimeError: gloo: closed by peer", step=51)
    for writer in (victim, cause):
        writer.flush()
    text = f"failed on rank 1 at step {ends[1]}: SIGTERM"
    assert look(run, clock).state.text == text
    assert views.runs(tmp_path, clock=clock)[0].state.text == text


@pytest.mark.parametrize("victim_step", [8, 9, 12])
def test_a_rank_that_is_gone_is_the_cause_of_errors_of_the_others(
    tmp_path: Path, clock: FakeClock, victim_step: int
) -> None:
    run = RunBuilder(tmp_path, world_size=2)
    (victim,) = started(run, 1, step=8)
    gone = run.writer(1, **dead_process())
    gone.beat(9)
    gone.flush()
    reason = "RuntimeError: [/b/gloo/tcp/pair.cc:537] Read error: Connection reset by peer. " * 3
    victim.close("error", reason, step=victim_step)
    victim.flush()
    text = look(run, clock).state.text
    assert views.runs(tmp_path, clock=clock)[0].state.text == text
    cause, _, consequence = text.partition("; then ")
    assert cause.startswith("failed on rank 1, last heard of at step 9: process ")
    assert cause.endswith("is gone and left no end record")
    assert consequence.startswith("rank 0: RuntimeError: Read error: Connection reset by peer.")
    assert consequence.endswith("…") and len(consequence) < 100


def test_a_rank_that_was_killed_after_another_failed_is_not_the_cause(
    tmp_path: Path, clock: FakeClock
) -> None:
    run = RunBuilder(tmp_path, world_size=2)
    (cause,) = started(run, 1, step=8)
    cause.close("error", "ValueError: no", step=8)
    cause.flush()
    gone = run.writer(1, **dead_process())
    gone.at = EPOCH + 25
    gone.beat(8)
    gone.flush()
    assert look(run, clock).state.text == "failed on rank 0 at step 8: ValueError: no"


@pytest.mark.parametrize("end", ["error", "interrupted"])
@pytest.mark.parametrize("lost", [0, 1])
def test_ranks_that_train_on_without_one_that_ended_badly_are_a_running_run(
    tmp_path: Path, clock: FakeClock, end: str, lost: int
) -> None:
    run = RunBuilder(tmp_path, world_size=2)
    writers = started(run, 2, step=8)
    writers[lost].close(end, "ValueError: no", step=8)
    writers[lost].flush()
    beat([writers[1 - lost]], clock, 9)
    if end == "error":
        assert look(run, clock).state.word == "failed", "the other may wait for it"
    beat([writers[1 - lost]], clock, 10)
    view = look(run, clock)
    word = "failed" if end == "error" else "ended"
    assert view.state.text == f"running, 1 rank {word}" and not view.state.is_over
    assert views.runs(tmp_path, clock=clock)[0].state.text == view.state.text
    assert view.is_leaderless == (lost == 0)


def test_of_several_ranks_that_were_killed_none_is_blamed(tmp_path: Path, clock: FakeClock) -> None:
    run = RunBuilder(tmp_path, world_size=3)
    for rank in range(3):
        gone = run.writer(rank, **dead_process())
        gone.beat(9 + rank)
        gone.flush()
    text = "failed: ranks 0-2 are gone without an end record, last heard of at step 11"
    view = look(run, clock)
    assert view.state.text == text
    assert {row.lag for row in view.participants} == {None}
    assert views.runs(tmp_path, clock=clock)[0].state.text == text


@pytest.mark.parametrize(
    ("end", "reason", "text"),
    [
        ("terminated", "SIGTERM", "stopped by SIGTERM at step 12"),
        ("interrupted", "KeyboardInterrupt", "stopped by KeyboardInterrupt at step 12"),
        ("preempted", "", "stopped by preemption at step 12"),
    ],
)
def test_a_signal_stops_a_run(
    tmp_path: Path, clock: FakeClock, end: str, reason: str, text: str
) -> None:
    run = RunBuilder(tmp_path)
    (writer,) = started(run, 1)
    writer.close(end, reason, step=12)
    writer.flush()
    state = look(run, clock).state
    assert (state.word, state.text) == ("stopped", text)


def test_who_was_told_to_end_and_is_heard_of_no_more_was_stopped(
    tmp_path: Path, clock: FakeClock
) -> None:
    run = RunBuilder(tmp_path)
    (writer,) = started(run, 1)
    writer.beat(12, ending="SIGTERM on rank 0")
    writer.flush()
    view = look(run, clock)
    assert (view.state.word, view.participants[0].end) == ("running", "")
    clock.pass_s(120)
    view.refresh()
    assert view.state.text == "stopped by SIGTERM on rank 0, last heard of at step 12"


def test_a_newer_attempt_is_judged_alone(tmp_path: Path, clock: FakeClock) -> None:
    run = RunBuilder(tmp_path, world_size=1)
    (old,) = started(run, 1)
    old.close("error", "RuntimeError: lost a rank", step=9)
    old.flush()
    assert look(run, clock).state.word == "failed"
    run.attempt(1)
    new = run.writer(0, attempt=2)
    new.at = clock.wall()
    new.beat(4)
    new.flush()
    view = look(run, clock)
    assert view.state.text == "running"
    assert view.attempt == 2
    assert [(each.number, each.end) for each in view.attempts] == [(1, "error"), (2, "")]
    assert [row.attempt for row in view.participants] == [2]


def test_a_resumed_run_that_finished_says_how_long_the_whole_took_wherever_it_is_shown(
    tmp_path: Path, clock: FakeClock
) -> None:
    run = RunBuilder(tmp_path)
    (old,) = started(run, 1)
    old.close("preempted", "SIGTERM", step=10)
    old.seal()
    take_attempt(run.directory, Attempt(0, 0, {}, EPOCH + 600, 1, "host-0"))
    new = run.writer(attempt=2, t=EPOCH + 601)
    new.at = EPOCH + 720
    new.close("finished", step=20)
    new.seal()
    assert look(run, clock).state.text == "finished after 12 min"
    assert views.runs(tmp_path, clock=clock)[0].state.text == "finished after 12 min"


def test_a_process_that_has_ended_is_in_no_phase(tmp_path: Path, clock: FakeClock) -> None:
    run = RunBuilder(tmp_path, world_size=3)
    first, _ = started(run, 2)
    first.beat(12, phase="saving a checkpoint", phase_s=1.0)
    first.close("finished", step=12)
    first.flush()
    gone = run.writer(2, **dead_process())
    gone.beat(12, phase="training", phase_s=51.0)
    gone.flush()
    rows = look(run, clock).participants
    assert [(row.phase, row.phase_s) for row in rows] == [("", None), ("training", 0.0), ("", None)]


def test_a_resume_with_another_world_size_counts_by_its_own(
    tmp_path: Path, clock: FakeClock
) -> None:
    run = RunBuilder(tmp_path, world_size=4)
    started(run, 4)
    run.attempt(2)
    for rank in range(2):
        writer = run.writer(rank, attempt=2, world_size=2)
        writer.beat(3)
        writer.flush()
    view = look(run, clock)
    assert (view.world_size, view.missing, len(view.participants)) == (2, [], 2)
    assert view.state.word == "running"


# --- the table ------------------------------------------------------------------------------------


def test_the_processes_table_shows_what_each_process_said(tmp_path: Path, clock: FakeClock) -> None:
    run = RunBuilder(tmp_path, world_size=10)
    writers = started(run, 10, step=12_480)
    beat(
        writers[9:],
        clock,
        12_481,
        phase="waiting at step 12,481",
        phase_s=9.5,
        exchange_wait_ms=0.9,
        step_time_ms=1910.0,
        lost=3,
        errors=2,
    )
    row = look(run, clock).participants[9]
    assert (row.rank, row.host, row.local_rank, row.pid) == (9, "host-1", 1, 1009)
    assert (row.world_size, row.attempt, row.step) == (10, 1, 12_481)
    assert (row.phase, row.phase_s) == ("waiting at step 12,481", 9.5)
    assert (row.exchange_wait_ms, row.step_time_ms) == (0.9, 1910.0)
    assert (row.lost, row.storage_errors, row.counter) == (3, 2, 2)


def test_without_exchanges_two_heartbeats_tell_what_a_step_takes(
    tmp_path: Path, clock: FakeClock
) -> None:
    run = RunBuilder(tmp_path)
    writers = started(run, 1, step=100)
    clock.pass_s(15)
    beat(writers, clock, 400, control_off="rank 1 left")
    (row,) = look(run, clock).participants
    assert row.step_time_ms == pytest.approx(100, rel=0.1)


def test_what_a_process_did_not_report_is_none_and_not_zero(
    tmp_path: Path, clock: FakeClock
) -> None:
    run = RunBuilder(tmp_path)
    started(run, 1)
    row = look(run, clock).participants[0]
    assert row.exchange_wait_ms is None
    assert row.step_time_ms is None


def test_the_last_heartbeat_is_found_before_a_new_segment_and_behind_many_metrics(
    tmp_path: Path, clock: FakeClock
) -> None:
    run = RunBuilder(tmp_path, world_size=2)
    rotated, busy = started(run, 2, step=7)
    rotated.seal()
    rotated.metrics(8, loss=1.0)
    rotated.flush()
    for step in range(8, 3000):
        busy.metrics(step, loss=1.0, accuracy=0.5, other=1.5)
    busy.flush()
    rows = look(run, clock).participants
    assert [row.counter for row in rows] == [1, 1]
    assert [row.phase for row in rows] == ["training", "training"]
    assert [row.step for row in rows] == [8, 2999]


def test_a_journal_that_is_sealed_between_listing_and_look_is_found_again(
    tmp_path: Path, clock: FakeClock
) -> None:
    run = RunBuilder(tmp_path)
    (writer,) = started(run, 1)
    files = {1: {False}}
    writer.seal()
    watch = Watch(writer.writer)
    watch.look(run.directory, files, Observer(clock))
    assert watch.problem == ""
    assert watch.step == 10


def test_faults_and_losses_are_added_up(tmp_path: Path, clock: FakeClock) -> None:
    run = RunBuilder(tmp_path, world_size=2)
    first, second = started(run, 2)
    first.seq += 5
    first.record("gap", {"first": 2, "last": 6, "why": "buffer full"})
    first.beat(10, lost=5)
    second.record("ev", {"type": "fault", "component": "sampler", "error": "x", "count": 2})
    second.beat(10, errors=1)
    first.flush()
    second.flush()
    losses = look(run, clock).losses
    assert losses
    assert (losses.records, losses.storage_errors, losses.faults) == (5, 1, {"sampler": 2})
    assert [(gap.first, gap.last) for gap in losses.gaps] == [(2, 6)]


def test_a_half_written_beat_is_read_when_it_is_whole(tmp_path: Path, clock: FakeClock) -> None:
    run = RunBuilder(tmp_path)
    (writer,) = started(run, 1)
    view = look(run, clock)
    before = writer.journal.read_bytes()
    beat([writer], clock, 99)
    after = writer.journal.read_bytes()
    writer.journal.write_bytes(after[:-10])
    view.refresh()
    assert view.step == 10
    # The size is already the final one, its last page not yet visible.
    writer.journal.write_bytes(before + bytes(len(after) - len(before)))
    view.refresh()
    writer.journal.write_bytes(after)
    view.refresh()
    assert view.step == 99


def test_a_run_whose_ranks_are_all_paused_says_so_and_at_which_step(
    tmp_path: Path, clock: FakeClock
) -> None:
    run = RunBuilder(tmp_path, world_size=2)
    writers = started(run, 2)
    beat(writers[:1], clock, 10, phase="paused")
    assert look(run, clock).state.text == "running"
    beat(writers[1:], clock, 10, phase="paused")
    state = look(run, clock).state
    assert (state.word, state.text) == ("running", "paused at step 10")
