"""Syncers killed at random behind a bad network: in the end every point is there once.

Small counts; tests/stress/test_sync_stress.py has the full ones.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from syncer.api.client import Client
from tests.support.chaos import EVERYTHING, Chaos
from tests.support.pushing import WrittenRun, assert_same, push_all, pushing, server_points
from tests.support.runs import TurnedClock
from tests.support.sync_storm import Storm, storming
from tests.support.v1_server import V1Server, v1_process

ROUNDS = 4


@pytest.fixture
def server(tmp_path: Path) -> Iterator[V1Server]:
    with v1_process(tmp_path / "far") as server:
        yield server


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_syncers_that_keep_their_memory_need_a_server_only_to_know_batches(
    tmp_path: Path, server: V1Server
) -> None:
    """No point is ever accepted under two ids, so a server that knows only ids has it once."""
    with Chaos(server.url, seed=1, rate=0.3, budget=60) as chaos:
        counts = storming(Storm(tmp_path, server, chaos, seed=1, deletes=False), ROUNDS)
    print(counts)
    assert counts["killed"] >= 2
    assert counts["faults"] >= ROUNDS
    assert counts["taken under two ids"] == 0


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_syncers_whose_memory_is_deleted_or_replaced_leave_every_point_once(
    tmp_path: Path, server: V1Server
) -> None:
    with Chaos(server.url, seed=2, rate=0.3, budget=60, faults=EVERYTHING) as chaos:
        counts = storming(Storm(tmp_path, server, chaos, seed=2, deletes=True), ROUNDS)
    print(counts)
    assert counts["killed"] >= 2
    assert counts["memory lost"] >= 1


class Twice(httpx.HTTPTransport):
    """Does what some gateways do: sends each create again, and gives the second answer."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.read()
        if request.method == "POST" and request.url.path.endswith(("/documents", "-batches")):
            super().handle_request(request).read()
        return super().handle_request(request)


def test_documents_that_a_gateway_made_twice_confuse_no_later_syncer(
    tmp_path: Path, server: V1Server
) -> None:
    """The older of two participants is not the one that the streams and their points are of."""
    run = WrittenRun(tmp_path, ranks=2)
    with Client(server.url, server.organization, server.key, transport=Twice()) as client:
        for has_memory in (True, True, False):
            if not has_memory:
                shutil.rmtree(run.directory / "sync")
            for rank in range(2):
                run.log(range(10), "loss", rank=rank)
                run.log(range(10), f"new with memory {has_memory}", rank=rank)
            with pushing(run.directory, client) as push:
                report = push_all(push)[-1]
                assert report.done, report.stopped
                assert not report.refused
    with server.client() as client:
        assert_same(run.points(), server_points(client, run.run_id))


class EveryThirdFails(httpx.HTTPTransport):
    """Answers every third request for points with 503."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/points"):
            self.asked += 1
            if self.asked % 3 == 0:
                return httpx.Response(503, text="<html>later</html>")
        return super().handle_request(request)


def test_a_server_that_is_asked_for_all_it_has_may_fail_in_between(
    tmp_path: Path, server: V1Server
) -> None:
    """What was read goes on from there; from the start, it would hardly ever come to an end."""
    run = WrittenRun(tmp_path)
    run.log(range(5), *(f"metric {number}" for number in range(30)))
    with server.client() as client, pushing(run.directory, client) as push:
        assert push_all(push)[-1].done
    shutil.rmtree(run.directory / "sync")
    run.log(range(5, 10), "metric 0")
    failing, clock = EveryThirdFails(), TurnedClock()
    with (
        Client(server.url, server.organization, server.key, transport=failing) as client,
        pushing(run.directory, client, clock=clock) as push,
    ):
        for _ in range(60):
            assert push.acquire()
            if push.step().done:
                break
            clock.turn(100.0)
        assert push.step().done
    assert failing.asked < 60
    with server.client() as client:
        assert_same(run.points(), server_points(client, run.run_id))
