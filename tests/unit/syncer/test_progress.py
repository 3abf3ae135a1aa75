"""The one line that says how far a sync is."""

from __future__ import annotations

from pathlib import Path

from syncer.discover import Discovery, Place
from syncer.progress import PLAIN_S, Progress
from syncer.service import Service
from syncer.work import Work
from tests.support.runs import TurnedClock


def service_of(tmp_path: Path, clock: TurnedClock) -> Service:
    def open_push(place: Place) -> object:
        raise AssertionError(place)

    return Service(Discovery([tmp_path], clock=clock), open_push, clock=clock)  # type: ignore[arg-type]


def held(tmp_path: Path) -> Work:
    why = "another syncer is at work on it: host node7, process 31"
    return Work(Place(tmp_path, "id", "baseline", "lab"), state="held", why=why)


def test_a_run_that_another_syncer_holds_is_said_at_once_and_again_later(tmp_path: Path) -> None:
    clock = TurnedClock()
    service = service_of(tmp_path, clock)
    progress = Progress(service, terminal=False, clock=clock)
    assert progress.line() is None
    service.work[tmp_path] = held(tmp_path)

    said = progress.line()
    assert said is not None and "waiting" in said and "host node7, process 31" in said
    assert progress.line() is None
    clock.turn(PLAIN_S)
    assert progress.line() == said


def test_a_service_does_not_repeat_that_another_one_is_at_work(tmp_path: Path) -> None:
    clock = TurnedClock()
    service = service_of(tmp_path, clock)
    service.work[tmp_path] = held(tmp_path)
    progress = Progress(service, terminal=False, watch=True, clock=clock)
    clock.turn(PLAIN_S)
    assert progress.line() is None


def test_a_server_that_takes_its_time_is_said(tmp_path: Path) -> None:
    clock = TurnedClock()
    service = service_of(tmp_path, clock)
    service.asking_since = clock.monotonic()
    progress = Progress(service, terminal=False, clock=clock)
    clock.turn(PLAIN_S)
    assert progress.line() == "waiting for an answer of the server, for 10 s"
