"""While a large request is on its way the points of the next ones are read, and nothing is lost."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from syncer import delivery, intake
from syncer.api.client import Client
from syncer.intake import Intake
from syncer.push import SAVE_S
from tests.support.pushing import WrittenRun, assert_same, push_all, pushing, server_points
from tests.support.runs import TurnedClock
from tests.support.v1_server import V1Server, v1_server

DEADLINE_S = 20.0
NAMES = tuple(f"metric/{number}" for number in range(20))


class Between(httpx.HTTPTransport):
    """Passes requests on.

    Attributes:
        before: Called with each request for points.
        answers: Taken one by one in place of the server's, where they are not None.
    """

    def __init__(self) -> None:
        super().__init__()
        self.before: Callable[[int], object] = lambda size: None
        self.answers: list[httpx.Response | Exception | None] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith("/telemetry/batches"):
            return super().handle_request(request)
        self.before(len(request.read()))
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer or super().handle_request(request)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[V1Server]:
    with v1_server(tmp_path_factory.mktemp("srv")) as server:
        yield server


@pytest.fixture
def between() -> Between:
    return Between()


@pytest.fixture
def client(server: V1Server, between: Between) -> Iterator[Client]:
    with Client(server.url, server.organization, server.key, transport=between) as client:
        yield client


@pytest.fixture
def run(tmp_path: Path) -> WrittenRun:
    run = WrittenRun(tmp_path)
    run.log(range(1200), *NAMES)
    return run


def test_the_next_points_are_read_while_a_request_is_on_its_way(
    run: WrittenRun,
    server: V1Server,
    client: Client,
    between: Between,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_read = threading.Event()
    read = Intake.read
    waited: list[bool] = []

    def read_and_tell(self: Intake) -> bool:
        has_more = read(self)
        is_read.set()
        return has_more

    def wait_for_that(size: int) -> None:
        if size >= delivery._LONG_BYTES and not waited:
            is_read.clear()
            waited.append(is_read.wait(DEADLINE_S))

    monkeypatch.setattr(Intake, "read", read_and_tell)
    between.before = wait_for_that
    with pushing(run.directory, client) as push:
        assert push_all(push)[-1].done
    assert waited == [True]
    assert_same(run.points(), server_points(client, run.run_id))


@pytest.mark.parametrize(
    "answer",
    [
        httpx.ReadError("cut"),
        httpx.Response(200, json={"receipts": []}),
        httpx.Response(
            413, json={"error": {"code": "too_large", "message": "no", "retryable": False}}
        ),
        httpx.Response(
            400, json={"error": {"code": "validation", "message": "no", "retryable": False}}
        ),
    ],
    ids=["cut", "no receipts", "too large", "rejected"],
)
def test_trouble_with_a_request_costs_nothing_of_what_was_read_meanwhile(
    run: WrittenRun,
    server: V1Server,
    client: Client,
    between: Between,
    monkeypatch: pytest.MonkeyPatch,
    answer: httpx.Response | Exception,
) -> None:
    monkeypatch.setattr(delivery, "_LONG_BYTES", 0)
    clock = TurnedClock()
    between.answers = [None, answer, None, answer]
    with pushing(run.directory, client, clock=clock) as push:
        for _ in range(20):
            if push_all(push)[-1].done:
                break
            clock.turn(100.0)
        else:
            raise AssertionError("the push does not end")
    with server.client() as mine:
        assert_same(run.points(), server_points(mine, run.run_id))


def test_how_far_all_is_sent_is_written_down_while_reading_runs_ahead(
    run: WrittenRun, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "_LONG_BYTES", 0)
    monkeypatch.setattr(intake, "POINTS", 2000)
    clock = TurnedClock()
    seen: set[str] = set()
    with pushing(run.directory, client, clock=clock) as push:
        assert push.acquire()
        for _ in range(100):
            if push.step(0.0).done:
                break
            assert push.state is not None
            seen |= {json.dumps(push.state.cursors)} - {"{}"}
            clock.turn(SAVE_S + 1.0)
            assert push.acquire()
        else:
            raise AssertionError("the push does not end")
    assert len(seen) >= 2
