"""One run to one server: what arrives, what is remembered, what is said when it does not go on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from syncer.api.client import Client
from tests.support.pushing import (
    WrittenRun,
    assert_same,
    push_all,
    pushing,
    runs_on,
    server_points,
)
from tests.support.v1_server import V1Server, v1_server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[V1Server]:
    with v1_server(tmp_path / "srv") as server:
        yield server


@pytest.fixture
def client(server: V1Server) -> Iterator[Client]:
    with server.client() as client:
        yield client


def test_every_point_of_a_run_arrives_once(tmp_path: Path, client: Client) -> None:
    run = WrittenRun(tmp_path, ranks=2)
    run.log(range(1500), "loss", "lr")
    run.log(range(1500), "loss", rank=1)
    with pushing(run.directory, client) as push:
        reports = push_all(push)
    assert reports[-1].done
    assert sum(report.points for report in reports) == sum(run.points().values())
    assert_same(run.points(), server_points(client, run.run_id))
    assert len(runs_on(client, run.run_id)) == 1
