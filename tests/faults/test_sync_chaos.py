"""Syncers killed at random behind a bad network: in the end every point is there once.

Small counts; tests/stress/test_sync_stress.py has the full ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.chaos import EVERYTHING, Chaos
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
