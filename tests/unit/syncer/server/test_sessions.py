"""Sessions: epochs only rise, silence ends nothing, and an end closes the run when all are gone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from syncer.server import commands, sessions
from syncer.server.state import LIVE_S
from tests.support.v1_server import HandClock, V1Server, v1_server

ONE = "cccccccc-cccc-4ccc-8ccc-cccccccccccc"
TWO = "dddddddd-dddd-4ddd-8ddd-dddddddddddd"


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def server(tmp_path: Path, clock: HandClock) -> Iterator[V1Server]:
    with v1_server(tmp_path, clock=clock) as running:
        yield running


@pytest.fixture
def run(server: V1Server) -> dict[str, Any]:
    return server.run()


@pytest.fixture
def rank(server: V1Server, run: dict[str, Any]) -> str:
    return str(server.participant(run)["id"])


def connect(server: V1Server, rank: str, instance: str = ONE, **rest: Any) -> Any:
    body = {"instance_id": instance, "safe_points": [], **rest}
    return server.post(f"participants/{rank}/sessions", body)


def beat(server: V1Server, rank: str, epoch: str, **rest: Any) -> Any:
    return server.call("POST", f"participants/{rank}/heartbeat", {"epoch": epoch, **rest})


def end(server: V1Server, rank: str, epoch: str, close_run: str = "when_idle") -> Any:
    body = {"epoch": epoch, "close_run": close_run}
    return server.call("POST", f"participants/{rank}/session/end", body)


def code(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def state_of(server: V1Server, run: dict[str, Any]) -> tuple[str, str]:
    document = server.get(f"documents/{run['id']}")
    return document["spec"]["state"], document["revision"]


def test_a_session_says_what_a_client_needs(server: V1Server, rank: str) -> None:
    assert connect(server, rank) == {
        "epoch": "1",
        "state_revision": "0",
        "expires_at": "2027-01-15T08:01:00.000000Z",
        "safe_points": [],
        "extensions": ["heartbeat.step", "result.applied_on"],
    }
    assert LIVE_S == 60


def test_the_same_process_gets_the_same_session_and_its_safe_points_grow(
    server: V1Server, rank: str
) -> None:
    assert connect(server, rank, safe_points=["b"])["epoch"] == "1"
    again = connect(server, rank, safe_points=["a"])
    assert (again["epoch"], again["safe_points"]) == ("1", ["a", "b"])
    assert connect(server, rank, attempt_id="t2")["epoch"] == "2"
    assert connect(server, rank, attempt_id="t2")["epoch"] == "2"


def test_another_process_fences_the_earlier_one(server: V1Server, rank: str) -> None:
    connect(server, rank)
    assert connect(server, rank, TWO)["epoch"] == "2"
    assert code(beat(server, rank, "1")) == (409, "conflict")
    assert beat(server, rank, "2").json()["epoch"] == "2"
    assert connect(server, rank, ONE)["epoch"] == "3"


def test_a_new_epoch_settles_the_commands_of_earlier_ones_inside_connect(
    server: V1Server, rank: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[object, ...]] = []
    monkeypatch.setattr(commands, "supersede", lambda _, *rest: told.append(rest))
    monkeypatch.setattr(commands, "session_ended", lambda _, *rest: told.append(("end", *rest)))
    assert server.state is not None
    now = server.state.clock.wall()
    connect(server, rank)
    connect(server, rank)
    connect(server, rank, TWO)
    end(server, rank, "2")
    end(server, rank, "2")
    assert told == [(rank, 1, now), (rank, 2, now), ("end", rank, 2, now)]


def test_epochs_go_on_after_a_restart_of_the_server(tmp_path: Path) -> None:
    with v1_server(tmp_path) as server:
        rank = server.participant(server.run())["id"]
        connect(server, rank)
    with v1_server(tmp_path) as server:
        assert beat(server, rank, "1").json()["epoch"] == "1"
        assert connect(server, rank)["epoch"] == "1"
        assert connect(server, rank, TWO)["epoch"] == "2"


def test_a_session_that_was_silent_for_a_week_goes_on(
    server: V1Server, rank: str, clock: HandClock
) -> None:
    connect(server, rank)
    clock.now += 7 * 86_400
    answer = beat(server, rank, "1")
    assert answer.status_code == 200
    assert answer.json()["expires_at"] == "2027-01-22T08:01:00.000000Z"


def test_an_epoch_that_was_never_opened_makes_a_client_wait_and_not_die(
    server: V1Server, rank: str
) -> None:
    assert code(beat(server, rank, "1")) == (404, "not_found")
    connect(server, rank)
    assert code(beat(server, rank, "9")) == (404, "not_found")


def test_safe_points_are_a_union_and_ring_the_bell(server: V1Server, rank: str) -> None:
    connect(server, rank)
    assert server.state is not None
    bell = server.state.wake
    before = bell.count(rank)
    assert beat(server, rank, "1", safe_points=["lht"]).json()["safe_points"] == ["lht"]
    assert bell.count(rank) == before + 1
    assert beat(server, rank, "1").json()["safe_points"] == ["lht"]
    assert beat(server, rank, "1", safe_points=["lht"]).json()["safe_points"] == ["lht"]
    assert bell.count(rank) == before + 1
    grown = beat(server, rank, "1", safe_points=["after_step"]).json()
    assert grown["safe_points"] == ["after_step", "lht"]


def test_safe_points_have_names_and_at_most_64(server: V1Server, rank: str) -> None:
    connect(server, rank, safe_points=[f"p{index}" for index in range(64)])
    assert code(beat(server, rank, "1", safe_points=["more"])) == (400, "validation")
    assert code(beat(server, rank, "1", safe_points=["No"])) == (400, "validation")
    assert beat(server, rank, "1").status_code == 200


@pytest.mark.parametrize("step", ["0", "-5", "12345678901234567890"])
def test_a_step_is_kept_on_the_session_with_its_time(
    server: V1Server, rank: str, step: str, clock: HandClock
) -> None:
    connect(server, rank)
    told = beat(server, rank, "1", step=step).json()
    assert (told["step"], told["step_at"]) == (step, "2027-01-15T08:00:00.000000Z")
    clock.now += 15
    assert beat(server, rank, "1").json()["step_at"] == told["step_at"]
    assert server.get(f"documents/{rank}")["revision"] == "1"


@pytest.mark.parametrize("step", [12, "012", "1.5", "x", "", None, "9" * 129])
def test_a_malformed_step_is_ignored(server: V1Server, rank: str, step: object) -> None:
    connect(server, rank)
    answer = beat(server, rank, "1", step=step, unknown={"field": 1})
    assert answer.status_code == 200
    assert "step" not in answer.json()


def test_an_end_says_so_again_and_fences_its_epoch(server: V1Server, rank: str) -> None:
    connect(server, rank)
    first = end(server, rank, "1", "never").json()
    assert first["session"]["epoch"] == "1"
    assert first["session"]["end_reason"] == "finished"
    assert first["run_closed"] is False
    assert end(server, rank, "1", "never").json() == first
    assert code(beat(server, rank, "1")) == (409, "conflict")
    assert code(end(server, rank, "2")) == (409, "conflict")
    assert connect(server, rank)["epoch"] == "2"
    assert end(server, rank, "1", "never").status_code == 200
    assert beat(server, rank, "2").status_code == 200


def test_a_superseded_epoch_cannot_end_the_session_of_another(server: V1Server, rank: str) -> None:
    connect(server, rank)
    connect(server, rank, TWO)
    assert code(end(server, rank, "1")) == (409, "conflict")
    assert beat(server, rank, "2").status_code == 200


def test_the_last_rank_closes_the_run(server: V1Server, run: dict[str, Any], rank: str) -> None:
    other = server.participant(run, "rank-1")["id"]
    connect(server, rank)
    connect(server, other)
    assert end(server, rank, "1").json()["run_closed"] is False
    assert state_of(server, run) == ("open", "1")
    assert end(server, other, "1").json()["run_closed"] is True
    assert state_of(server, run) == ("closed", "2")
    assert server.get(f"documents/{run['id']}", revision=1)["spec"]["state"] == "open"
    # A lost answer, asked again.
    assert end(server, other, "1").json()["run_closed"] is True
    assert state_of(server, run) == ("closed", "2")


def test_never_leaves_the_run_open(server: V1Server, run: dict[str, Any], rank: str) -> None:
    connect(server, rank)
    assert end(server, rank, "1", "never").json()["run_closed"] is False
    assert state_of(server, run) == ("open", "1")
    assert code(end(server, rank, "1", "later")) == (400, "validation")


def test_a_lost_session_does_not_keep_the_run_open(
    server: V1Server, run: dict[str, Any], rank: str, clock: HandClock
) -> None:
    lost = server.participant(run, "rank-1")["id"]
    connect(server, rank)
    connect(server, lost)
    clock.now += LIVE_S - 1
    beat(server, rank, "1")
    assert end(server, rank, "1").json()["run_closed"] is False
    clock.now += 2
    assert end(server, rank, "1").json()["run_closed"] is True
    # It is late, not dead: it goes on, and its own end is no error.
    assert beat(server, lost, "1").status_code == 200
    assert end(server, lost, "1").json()["run_closed"] is True


def test_a_server_that_was_away_does_not_take_the_others_for_lost(
    tmp_path: Path, clock: HandClock
) -> None:
    with v1_server(tmp_path, clock=clock) as server:
        run = server.run()
        ranks = [server.participant(run, f"rank-{rank}")["id"] for rank in range(2)]
        for rank in ranks:
            connect(server, rank)
    clock.now += 3600
    with v1_server(tmp_path, clock=clock) as server:
        clock.now += 1
        assert end(server, ranks[0], "1").json()["run_closed"] is False
        clock.now += LIVE_S
        assert end(server, ranks[0], "1").json()["run_closed"] is True


def test_a_closed_run_takes_a_session_and_stays_closed(
    server: V1Server, run: dict[str, Any], rank: str
) -> None:
    connect(server, rank)
    end(server, rank, "1")
    assert connect(server, rank)["epoch"] == "2"
    assert state_of(server, run) == ("closed", "2")


@pytest.mark.parametrize("body", [{}, {"epoch": 1}, {"epoch": "x"}, {"epoch": "-1"}])
def test_a_request_without_an_epoch_is_refused(server: V1Server, rank: str, body: Any) -> None:
    for path in ("heartbeat", "session/end"):
        answer = server.call("POST", f"participants/{rank}/{path}", body)
        assert code(answer) == (400, "validation")


def test_only_a_participant_has_sessions(server: V1Server, run: dict[str, Any]) -> None:
    body = {"instance_id": ONE, "safe_points": []}
    answer = server.call("POST", f"participants/{run['id']}/sessions", body)
    assert code(answer) == (404, "not_found")


def test_what_others_read_of_sessions(server: V1Server, rank: str) -> None:
    assert server.state is not None
    connect(server, rank)
    connect(server, rank, TWO)
    with server.state.database.write() as connection:
        assert [sessions.issued(connection, rank, epoch) for epoch in (0, 1, 2, 3)] == [
            False,
            True,
            True,
            False,
        ]
        assert sessions.advance_state(connection, rank, 2) == 1
        current = sessions.current(connection, rank)
    assert current is not None
    assert (current["epoch"], current["state_revision"]) == (2, 1)
    assert beat(server, rank, "2").json()["state_revision"] == "1"
    end(server, rank, "2")
    with server.state.database.read() as connection:
        assert sessions.current(connection, rank) is None
        newest = sessions.newest(connection, rank)
    assert newest is not None and newest["end_reason"] == "finished"


def test_a_heartbeat_is_made_durable_for_what_it_will_not_say_again(
    server: V1Server, rank: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert server.state is not None
    database, asked = server.state.database, []
    write = database.write

    def noted(*, durable: bool = True) -> Any:
        asked.append(durable)
        return write(durable=durable)

    epoch = connect(server, rank)["epoch"]
    monkeypatch.setattr(database, "write", noted)
    for more in ({}, {"step": "7"}, {"safe_points": ["lht"]}):
        assert beat(server, rank, epoch, **more).status_code == 200
    assert asked == [False, False, True]
