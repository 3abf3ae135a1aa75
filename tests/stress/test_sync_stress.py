"""A hundred kills of syncers, and every fault of a network alone: each point there once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.chaos import EVERYTHING, PASSING, Chaos
from tests.support.sync_storm import Storm, storming
from tests.support.v1_server import V1Server, kill, start, v1_process

KILLS = 100
FINISH_S = 900.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[V1Server]:
    with v1_process(tmp_path / "far") as server:
        yield server


@pytest.mark.stress
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("deletes", [False, True], ids=["memory kept", "memory lost"])
def test_a_hundred_kills_leave_every_point_once(
    tmp_path: Path, server: V1Server, deletes: bool
) -> None:
    # Who has lost its memory asks a lot before it sends; a worse network would let it do no more.
    rate, requests = (0.02, 40) if deletes else (0.25, 100)
    # After a made-up last word of the server a syncer forgets what it knew of the run: that is
    # memory lost, and is in the other storm.
    faults = EVERYTHING if deletes else PASSING
    with Chaos(server.url, seed=17, rate=rate, budget=100_000, faults=faults) as chaos:
        storm = Storm(
            tmp_path,
            server,
            chaos,
            seed=17,
            deletes=deletes,
            work_s=15.0,
            requests=requests,
            finish_s=FINISH_S,
        )
        while storm.counts["killed"] < KILLS:
            storm.round()
        counts = storming(storm, 0)
    print(counts)
    assert counts["points in the storm"] > 50 * KILLS
    assert deletes or counts["taken under two ids"] == 0


@pytest.mark.stress
@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", EVERYTHING)
def test_each_fault_alone_costs_nothing(tmp_path: Path, server: V1Server, fault: str) -> None:
    with Chaos(server.url, seed=3, rate=0.4, budget=30, faults=(fault,)) as chaos:
        counts = storming(Storm(tmp_path, server, chaos, seed=3, deletes=False), 3)
    print(fault, counts)
    assert counts["faults"] >= 1
    assert counts["taken under two ids"] == 0


@pytest.mark.stress
@pytest.mark.timeout(1800)
def test_a_server_killed_between_the_syncers_still_has_every_point_once(
    tmp_path: Path, server: V1Server
) -> None:
    with Chaos(server.url, seed=5, rate=0.02, budget=1000) as chaos:
        storm = Storm(tmp_path, server, chaos, seed=5, work_s=15.0, finish_s=FINISH_S)
        for _ in range(20):
            storm.round()
            kill(server)
            start(server)
        counts = storming(storm, 0)
    print(counts)
