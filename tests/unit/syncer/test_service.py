"""The loop over runs, with pushes that do as a test says and a clock that it turns."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest

from launchhelm.errors import ConfigError, LaunchHelmError, StorageError
from syncer import retry
from syncer.api.answers import ApiError
from syncer.discover import Discovery, Place
from syncer.lease import Lease
from syncer.pulse import RUNS_A_THREAD
from syncer.service import BUSY_S, HEARTBEAT_S, HELD_LIMIT_S, MAX_OPEN, UNREACHABLE_S, Service
from syncer.state import State
from syncer.work import Push, Work
from tests.support.cli_runs import MadeRun
from tests.support.runs import TurnedClock, until


@dataclass
class Slice:
    """What one step reports."""

    points: int = 0
    bytes: int = 0
    batches: int = 0
    refused: int = 0
    pending_hint: int = 0
    done: bool = True
    stopped: str = ""
    error: ApiError | None = None
    advice: retry.Advice | None = None


Step = Slice | Exception


@dataclass
class Script:
    """What becomes of one run: its steps one by one, then `Slice()` for ever."""

    clock: TurnedClock
    steps: list[Step] = field(default_factory=list)
    ended: bool = False
    held: bool = False
    place: Path | None = None
    state: State | None = None
    problems: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    stepped_at: list[float] = field(default_factory=list)
    voice: object = None
    silence: str = ""
    has_news: bool = False

    def acquire(self) -> bool:
        return not self.held

    def step(self, limit_s: float = 1.0) -> Slice:
        del limit_s
        self.log.append("step")
        self.stepped_at.append(self.clock.at)
        step = self.steps.pop(0) if self.steps else Slice()
        if isinstance(step, ApiError):
            # As a push does; only opening and connecting raise.
            step = Slice(done=False, stopped="no", error=step, advice=retry.decide(step))
        if isinstance(step, Exception):
            raise step
        return step

    def heartbeat(self, *, commands: bool = False) -> None:
        self.log.append("beat")

    def finish_if_ended(self) -> bool:
        return self.ended

    def close(self) -> None:
        self.log.append("close")


@dataclass
class Asking:
    """What asks for the commands of one run, as far as a service sees it."""

    is_running: bool = False
    asked_at: float | None = None
    settled: list[bool] = field(default_factory=list)
    log: list[str] = field(default_factory=list)

    def start(self) -> None:
        self.is_running = True
        self.log.append("start")

    def settle(self) -> bool:
        self.log.append("settle")
        return self.settled.pop(0) if self.settled else True

    def stop(self) -> None:
        self.is_running = False
        self.log.append("stop")


def sent(points: int, *, done: bool = True) -> Slice:
    return Slice(points=points, bytes=points * 100, batches=1, done=done)


class Rig:
    """A service over made runs, whose time passes only while it waits."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = TurnedClock()
        self.scripts: dict[Path, Script] = {}
        self.order: list[Path] = []
        self.opened: list[tuple[float, Path]] = []
        self.asking: Asking | None = None
        self.keys = 0
        self.refusals: list[LaunchHelmError] = []
        self.notes: list[tuple[Path, str]] = []

    def run(self, *steps: Step, ended: bool = False, held: bool = False) -> Path:
        path = MadeRun(self.root).path
        self.scripts[path] = Script(self.clock, list(steps), ended, held)
        return path

    def open(self, place: Place) -> Script:
        self.opened.append((self.clock.at, place.directory))
        return self.scripts[place.directory]

    def open_pull(self, place: Place, push: Push) -> Asking:
        assert push is self.scripts[place.directory] and self.asking is not None
        return self.asking

    def connect(self) -> None:
        self.keys += 1
        if self.refusals:
            raise self.refusals.pop(0)

    def service(self, *, watch: bool = False, until: float = 3600.0) -> Service:
        end = self.clock.at + until

        def wait(seconds: float) -> None:
            self.clock.turn(seconds)
            if self.clock.at >= end:
                service.stop()

        def note(work: Work) -> None:
            self.order.append(work.place.directory)
            self.clock.turn(0.01)

        service = Service(
            Discovery([self.root], clock=self.clock),
            self.open,
            connect=self.connect,
            open_pull=self.open_pull if self.asking is not None else None,
            watch=watch,
            note=lambda place, why: self.notes.append((place.directory, why)),
            on_slice=note,
            clock=self.clock,
            wait=wait,
        )
        return service


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    root = tmp_path / "runs"
    root.mkdir()
    return Rig(root)


def states(service: Service) -> dict[Path, str]:
    return {path: work.state for path, work in service.work.items()}


def transport() -> ApiError:
    return ApiError("transport", "No connection.")


def refused(status: int = 401) -> ApiError:
    return ApiError("unauthorized", "The key is not valid.", status=status)


def busy(after_s: float | None) -> ApiError:
    return ApiError("rate_limited", "Later.", status=429, retryable=True, retry_after_s=after_s)


# --- a pass -------------------------------------------------------------------------------------


def test_a_pass_gives_every_run_slices_in_turn_and_ends(rig: Rig) -> None:
    long = rig.run(*[sent(10, done=False)] * 3, sent(10))
    short = rig.run(sent(5))

    service = rig.service()
    service.run()

    assert rig.order[:2] == [short, long], "the newest first, then the other"
    assert rig.order.count(long) == 4 and rig.order.count(short) == 1
    assert states(service) == {long: "sent", short: "sent"}
    assert service.work[long].points == 40
    assert all(script.log[-1] == "close" for script in rig.scripts.values())


def test_a_live_run_goes_before_newer_ones_that_are_over(rig: Rig) -> None:
    live = MadeRun(rig.root)
    live.journals[0].beat(1)
    rig.scripts[live.path] = Script(rig.clock, [sent(1)])
    over = rig.run(sent(1))
    for journal in (over / "data").glob("*.jsonl"):
        journal.rename(journal.with_suffix(".db"))

    rig.service().run()

    assert rig.order == [live.path, over]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (StorageError("A file is damaged."), "damaged"),
        (PermissionError(13, "Permission denied", "/x/data"), "Permission denied"),
        (RuntimeError("a mistake of ours"), "our failure"),
        (ApiError("invalid", "No.", status=400), "refused"),
    ],
)
def test_one_bad_run_stops_no_other(rig: Rig, error: Exception, said: str) -> None:
    good = [rig.run(sent(1)), rig.run(sent(1))]
    bad = rig.run(error)

    service = rig.service()
    service.run()

    assert states(service) == {**dict.fromkeys(good, "sent"), bad: "failed"}
    assert said in service.work[bad].why
    assert rig.scripts[bad].log[-1] == "close"


def test_a_place_for_states_that_cannot_be_written_is_named_by_its_setting(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAUNCHHELM_STATE_DIR", str(tmp_path / "state"))
    where = str(tmp_path / "state" / "id")
    path = rig.run(PermissionError(13, "Permission denied", where))
    service = rig.service()
    service.run()
    why = service.work[path].why
    assert f"{where}: Permission denied" in why and "LAUNCHHELM_STATE_DIR" in why


def test_a_run_that_is_gone_on_the_server_is_asked_for_once(rig: Rig) -> None:
    gone = rig.run(ApiError("gone", "Deleted.", status=410))
    other = rig.run(sent(1))

    service = rig.service(watch=True, until=600.0)
    service.run()

    assert states(service) == {gone: "skipped", other: "sent"}
    assert "deleted on the server" in service.work[gone].why
    assert rig.scripts[gone].log.count("step") == 1


def test_a_slice_that_stops_says_why_and_keeps_what_it_sent(rig: Rig) -> None:
    path = rig.run(Slice(points=3, batches=1, done=False, stopped="'loss' is not sent"))
    service = rig.service()
    service.run()
    work = service.work[path]
    assert (work.state, work.why, work.points) == ("failed", "'loss' is not sent", 3)


def test_a_run_that_another_syncer_holds_is_waited_for_until_its_lease_would_lapse(
    rig: Rig,
) -> None:
    held, free = rig.run(held=True), rig.run(sent(1))
    started = rig.clock.at

    service = rig.service()
    service.run()

    assert states(service) == {held: "skipped", free: "sent"}
    assert "another syncer" in service.work[held].why
    assert HELD_LIMIT_S <= rig.clock.at - started < HELD_LIMIT_S + 10


def test_a_pass_does_not_wait_for_a_syncer_that_is_seen_to_live(rig: Rig, tmp_path: Path) -> None:
    held = rig.run(held=True)
    rig.scripts[held].place = tmp_path
    lease = Lease(tmp_path, rig.clock)
    lease.try_acquire()
    service = rig.service()
    wait = service._wait

    def waiting(seconds: float) -> None:
        lease.renew()
        wait(seconds)

    service._wait = waiting
    started = rig.clock.at
    service.run()

    assert states(service) == {held: "skipped"}
    assert rig.clock.at - started < 30
    assert "process" in service.work[held].why


def test_what_cannot_be_read_is_said_and_the_rest_is_sent(rig: Rig) -> None:
    path = rig.run(sent(9))
    rig.scripts[path].problems = ["a segment is damaged"]
    service = rig.service()
    service.run()
    work = service.work[path]
    assert (work.state, work.why, work.points) == ("failed", "a segment is damaged", 9)


def test_a_run_that_was_settled_earlier_is_not_opened(rig: Rig) -> None:
    gone, whole = rig.run(), rig.run()
    service = Service(
        Discovery([rig.root], clock=rig.clock),
        rig.open,
        settled=lambda place: "gone" if place.directory == gone else "",
        clock=rig.clock,
        wait=rig.clock.turn,
    )
    service.run()
    assert rig.opened == [] and states(service) == {gone: "skipped", whole: "sent"}


# --- the server -----------------------------------------------------------------------------------


def test_a_busy_server_is_left_alone_for_all_runs_as_long_as_it_asks(rig: Rig) -> None:
    rig.run(busy(20.0), sent(1)), rig.run(sent(1))
    service = rig.service()
    first = rig.clock.at

    service.run()

    assert set(states(service).values()) == {"sent"}
    asked = [at - first for script in rig.scripts.values() for at in script.stepped_at]
    assert [at for at in asked if 0.05 < at < 20.0] == []


def test_a_pass_gives_up_when_the_server_cannot_be_reached(rig: Rig) -> None:
    path = rig.run(*[transport()] * 50)
    started = rig.clock.at

    service = rig.service()
    service.run()

    assert service.gave_up is not None and service.gave_up.kind == "unreachable"
    assert states(service) == {path: "waiting"}
    assert rig.clock.at - started <= UNREACHABLE_S
    assert rig.scripts[path].log.count("step") >= 4


def test_a_pass_gives_up_on_a_server_that_is_busy_for_a_minute(rig: Rig) -> None:
    rig.run(*[ApiError("http_error", "No.", status=503, retryable=True)] * 90)
    started = rig.clock.at
    service = rig.service()
    service.run()
    assert service.gave_up is not None and service.gave_up.kind == "busy"
    assert rig.clock.at - started <= BUSY_S


def test_a_pass_waits_longer_for_a_server_that_says_how_long(rig: Rig) -> None:
    path = rig.run(busy(2 * BUSY_S), sent(1))
    service = rig.service()
    service.run()
    assert service.gave_up is None and states(service) == {path: "sent"}


def test_a_service_goes_on_until_the_server_is_back(rig: Rig) -> None:
    path = rig.run(*[transport()] * 12, sent(7))

    service = rig.service(watch=True, until=1800.0)
    service.run()

    assert service.work[path].points == 7
    assert service.hold is None


def test_a_refused_key_ends_a_pass_at_once(rig: Rig) -> None:
    rig.run(refused())
    service = rig.service()
    service.run()
    assert service.gave_up is not None and service.gave_up.kind == "key"


def test_a_refused_key_is_tried_once_a_minute_and_read_anew_each_time(rig: Rig) -> None:
    """Nothing is lost while the key is replaced, and the server is not hammered."""
    path = rig.run(sent(100), *[refused()] * 3, sent(50))

    service = rig.service(watch=True, until=600.0)
    service.run()

    tried = rig.scripts[path].stepped_at
    first = tried[1]
    assert len([at for at in tried[1:] if at - first < 60.0]) == 1
    assert rig.keys == 1 + 3
    assert service.work[path].points == 150


def test_a_pass_ends_where_the_settings_do_not_tell_where_to(rig: Rig) -> None:
    rig.run(sent(1))
    rig.refusals = [ConfigError("The key sees several organisations.")]
    service = rig.service()
    service.run()
    assert service.gave_up is not None and service.gave_up.kind == "config"
    assert rig.opened == []


def test_connecting_is_tried_again_like_sending(rig: Rig) -> None:
    path = rig.run(sent(1))
    rig.refusals = [transport(), busy(5.0)]
    service = rig.service()
    service.run()
    assert service.work[path].points == 1 and rig.keys == 3


def test_what_keeps_a_run_from_being_opened_is_noted_once_and_taken_back(rig: Rig) -> None:
    path = rig.run(sent(1))
    rig.refusals = [refused(), refused(), refused()]
    service = rig.service(watch=True, until=600.0)
    service.run()
    assert [it for it, _ in rig.notes] == [path, path]
    assert "refuses the key" in rig.notes[0][1] and rig.notes[1][1] == ""


def test_a_key_that_may_not_send_one_run_sends_the_others(rig: Rig) -> None:
    others = [rig.run(sent(1)), rig.run(sent(1))]
    forbidden = rig.run(*[refused(403)] * 9)

    service = rig.service()
    service.run()

    assert states(service) == {**dict.fromkeys(others, "sent"), forbidden: "failed"}
    assert service.gave_up is None


def test_a_key_that_may_not_send_anything_ends_a_pass(rig: Rig) -> None:
    for _ in range(20):
        rig.run(*[refused(403)] * 9)
    service = rig.service()
    service.run()
    assert service.gave_up is not None and service.gave_up.kind == "key"
    assert len(rig.order) == 3


def test_a_key_that_may_not_send_the_only_run_is_a_refused_key(rig: Rig) -> None:
    path = rig.run(*[refused(403)] * 9)
    service = rig.service()
    service.run()
    assert service.gave_up is not None and service.gave_up.kind == "key"
    assert states(service) == {path: "failed"}


# --- for good -------------------------------------------------------------------------------------


def test_a_service_finds_runs_that_come_later(rig: Rig) -> None:
    rig.run(sent(1))
    service = rig.service(watch=True, until=60.0)
    later: list[Path] = []
    wait = service._wait

    def waiting(seconds: float) -> None:
        if not later:
            later.append(rig.run(sent(3)))
        wait(seconds)

    service._wait = waiting
    service.run()
    assert service.work[later[0]].points == 3


def test_heartbeats_are_passed_on_every_15_seconds_while_a_run_is_live(rig: Rig) -> None:
    path = rig.run(*[sent(1)] * 200)
    rig.service(watch=True, until=300.0).run()
    beats = rig.scripts[path].log.count("beat")
    assert 300 / (HEARTBEAT_S + 3) <= beats <= 300 / HEARTBEAT_S + 1


def test_a_run_that_took_long_to_open_is_looked_at_again_soon(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = rig.run(*[sent(1)] * 100)
    step = Script.step

    def slow(script: Script, limit_s: float = 1.0) -> Slice:
        rig.clock.turn(1.0)
        return step(script, limit_s)

    monkeypatch.setattr(Script, "step", slow)
    rig.service(watch=True, until=60.0).run()
    first, second, third = rig.scripts[path].stepped_at[:3]
    assert second - first < 5.0
    assert third - second > 15.0, "what is slow to look at is looked at rarely"


def test_a_silent_run_is_looked_at_less_and_less(rig: Rig) -> None:
    path = rig.run(sent(1))
    rig.service(watch=True, until=3600.0).run()
    assert 3600 / 120 < rig.scripts[path].log.count("step") < 120


def test_a_finished_run_is_closed_and_opened_again_only_for_new_files(rig: Rig) -> None:
    path = rig.run(sent(1), sent(2), ended=True)
    service = rig.service(watch=True, until=600.0)
    changed: list[float] = []
    wait = service._wait

    def waiting(seconds: float) -> None:
        if rig.clock.at > 1300 and not changed:
            changed.append(rig.clock.at)
            (path / "data" / "r00000-a002-00000002.00001.jsonl").touch()
        wait(seconds)

    service._wait = waiting
    service.run()

    assert len(rig.opened) == 2 and rig.opened[1][0] >= changed[0]
    assert service.work[path].points == 3


def test_a_failed_run_is_tried_again_later(rig: Rig) -> None:
    path = rig.run(StorageError("Not now."), sent(4))
    service = rig.service(watch=True, until=120.0)
    service.run()
    assert service.work[path].points == 4 and service.work[path].state == "sent"


@pytest.mark.parametrize("is_moving", [False, True])
def test_no_more_runs_that_stand_still_are_kept_open_than_a_limit(
    rig: Rig, is_moving: bool
) -> None:
    for _ in range(MAX_OPEN + 10):
        path = rig.run(*([sent(1)] * 3 if is_moving else [sent(1)]))
        for each in (path / "data").iterdir():
            os.utime(each, (0, 0))
    service = rig.service(watch=True, until=20.0)
    most = 0
    wait = service._wait

    def waiting(seconds: float) -> None:
        nonlocal most
        most = max(most, sum(work.push is not None for work in service.work.values()))
        wait(seconds)

    service._wait = waiting
    service.run()
    if is_moving:
        assert most == MAX_OPEN + 10
        assert len(rig.opened) <= 2 * most, "closed and opened again and again"
    else:
        assert 0 < most <= MAX_OPEN


def test_waking_brings_a_look_forward(rig: Rig) -> None:
    path = rig.run(sent(1))
    service = rig.service(watch=True, until=1000.0)
    woken: list[float] = []
    seen: list[float] = []
    wait = service._wait

    def waiting(seconds: float) -> None:
        if not woken and rig.clock.at > 1600:
            woken.append(rig.clock.at)
            service.wake(path, at_once=True)
            return
        wait(seconds)

    service._wait = waiting
    on_slice = service._on_slice

    def note(work: Work) -> None:
        seen.append(rig.clock.at)
        on_slice(work)

    service._on_slice = note
    service.run()
    assert woken[0] in seen


def test_stopping_leaves_nothing_open(rig: Rig) -> None:
    paths = [rig.run(*[sent(1, done=False)] * 1000) for _ in range(3)]
    service = rig.service(watch=True)
    on_slice = service._on_slice

    def note(work: Work) -> None:
        on_slice(work)
        if len(rig.order) == 7:
            service.stop()

    service._on_slice = note
    service.run()
    assert len(rig.order) == 7
    assert all(rig.scripts[path].log[-1] == "close" for path in paths)


def test_commands_are_asked_for_while_somebody_can_take_them_and_the_lease_is_ours(
    rig: Rig,
) -> None:
    rig.asking = Asking()
    script = rig.scripts[rig.run()]
    script.has_news = True
    beats: list[float] = []

    def heartbeat(*, commands: bool = False) -> None:
        assert commands
        beats.append(rig.clock.at)
        if len(beats) == 3:
            script.voice, script.has_news = object(), False

    script.heartbeat = heartbeat  # type: ignore[method-assign]
    service = rig.service(watch=True, until=600)
    note = service._on_slice

    def lose(work: Work) -> None:
        note(work)
        script.held = len(beats) > 10

    service._on_slice = lose
    service.run()
    assert rig.asking.log == ["settle", "settle", "start", "stop"]
    assert beats[2] - beats[0] < 10, "a coordinator is noticed soon"
    gaps = [after - before for before, after in pairwise(beats)]
    assert gaps and max(gaps) <= HEARTBEAT_S + 2, "a silent run is heard of all the same"


def test_a_run_is_closed_only_when_the_outcomes_of_its_commands_are_reported(rig: Rig) -> None:
    rig.asking = Asking(settled=[False, False, True])
    script = rig.scripts[rig.run(ended=True)]
    rig.service(watch=True, until=30).run()
    assert script.log.count("step") == 3
    assert rig.asking.log == ["settle", "settle", "settle", "stop"]


def test_a_pass_reports_outcomes_and_asks_for_no_command(rig: Rig) -> None:
    rig.asking = Asking()
    script = rig.scripts[rig.run()]
    script.voice = object()
    rig.service().run()
    assert rig.asking.log == ["settle", "stop"]


def test_an_outcome_that_cannot_be_told_is_trouble_like_any_other(rig: Rig) -> None:
    rig.asking = Asking()

    def settle() -> bool:
        raise transport()

    rig.asking.settle = settle  # type: ignore[method-assign]
    rig.run(ended=True)
    service = rig.service()
    service.run()
    assert service.gave_up is not None and service.gave_up.kind == "unreachable"


def test_a_long_run_that_is_over_takes_no_more_time_than_all_live_runs_together(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(30):
        run = MadeRun(rig.root)
        run.journals[0].beat(1)
        rig.scripts[run.path] = Script(rig.clock)
    over = rig.run(*[sent(1, done=False)] * 100)
    for journal in (over / "data").glob("*.jsonl"):
        journal.rename(journal.with_suffix(".db"))
    step = Script.step

    def slow(script: Script, limit_s: float = 1.0) -> Slice:
        rig.clock.turn(1.0 if script is rig.scripts[over] else 0.1)
        return step(script, limit_s)

    monkeypatch.setattr(Script, "step", slow)
    rig.service(watch=True, until=30.0).run()

    everyone = next(n for n in range(len(rig.order)) if len(set(rig.order[:n])) == 31)
    assert 2 <= rig.order[:everyone].count(over) <= 4
    assert rig.order.count(over) >= 15, "half of the time, and what live runs leave"


def test_a_slice_that_takes_long_makes_no_heartbeat_of_another_run_late(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts = [rig.scripts[rig.run()] for _ in range(2 * RUNS_A_THREAD)]
    rig.asking = Asking()
    slow, others = scripts[0], scripts[1:]
    is_blocked, go_on = threading.Event(), threading.Event()

    def blocked(limit_s: float = 1.0) -> Slice:
        if slow.stepped_at:
            is_blocked.set()
            assert go_on.wait(60)
        return Script.step(slow, limit_s)

    for script in scripts:
        script.voice = object()
    monkeypatch.setattr(slow, "step", blocked)
    service = rig.service(watch=True)
    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        assert is_blocked.wait(60)
        before = [script.log.count("beat") for script in others]
        rig.clock.turn(HEARTBEAT_S)
        until(
            lambda: all(
                script.log.count("beat") > count
                for script, count in zip(others, before, strict=True)
            )
        )
        assert slow.log.count("beat") == 1, "two used one push at a time"
    finally:
        go_on.set()
        service.stop()
        thread.join(60)
    assert not thread.is_alive()
