"""A job on host A, controlled from a server by way of a syncer on host B, which sees it late."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.commanding import LIMIT_S, training
from tests.support.far_control import drive
from tests.support.two_hosts import TwoHosts


@pytest.mark.parametrize("count", [5, pytest.param(25, marks=pytest.mark.stress)])
def test_commands_of_a_server_reach_a_job_on_another_host_and_every_point_arrives_once(
    hosts: TwoHosts, tmp_path: Path, count: int
) -> None:
    (hosts.a / "runs").mkdir()
    with training(hosts.a / "runs", tmp_path / "said", step_s=0.02) as job:
        run = job.directory.name
        driven = drive(tmp_path, hosts.b / "runs", run, job.said, count, LIMIT_S)
        assert job.process.wait(LIMIT_S) == 0
    driven.check(job.applied, median_s=5.0)
    assert [len(each) for each in job.outcomes().values()] == [1] * count
