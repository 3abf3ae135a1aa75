"""A server commands a torchrun job that has no network, through a syncer beside it."""

from __future__ import annotations

import os
import socket
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from syncer.api.answers import ApiError
from tests.support.agreement import Given, check
from tests.support.commanding import Desk, wait_for_run
from tests.support.jobs import NOTING_JOB, end_of_job, started_job, torchrun
from tests.support.journals import records
from tests.support.off_network import leave, off_network, why_not
from tests.support.orders import PARTIAL_FAILURE, Order, orders
from tests.support.reading import as_nobody
from tests.support.sync_command import SyncCommand
from tests.support.v1_server import PROJECT, v1_process

RANKS = 4
LIMIT_S = 180.0


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "count", [25, pytest.param(100, marks=[pytest.mark.stress, pytest.mark.timeout(1800)])]
)
def test_every_rank_the_run_and_the_server_tell_the_same_of_each_command(
    tmp_path: Path, count: int
) -> None:
    """The last command fails on the last rank: 3 of 4, an error on every rank, the end."""
    if why := why_not():
        pytest.skip(f"a job cannot be kept off the network here: {why}")
    root, notes = tmp_path / "runs", tmp_path / "notes"
    root.mkdir()
    notes.mkdir()
    given: list[Given] = []
    took: list[float] = []
    with v1_process(tmp_path / "far") as server:
        sync = SyncCommand(tmp_path, server.url, server.key, {"LAUNCHHELM_PROJECT": PROJECT})
        command = torchrun(RANKS, NOTING_JOB, root, notes, server.url)
        with started_job(off_network(command), tmp_path) as job, sync.watching(root):
            run = wait_for_run(root, LIMIT_S)
            desk = Desk(server, run.name)
            try:
                desk.capability("erase")  # The last one that the job offers.
                offered = capabilities(desk)
                plan = [*orders(sorted(offered), count - 1, seed=5), PARTIAL_FAILURE]
                for order in plan:
                    began = time.monotonic()
                    given += give(desk, order, offered[order.name])
                    took.append(time.monotonic() - began)
                ended = end_of_job(job)
                assert sync.once(root).code == 0
                assert [desk.get(it.told) for it in given] == [it.told for it in given]
                assert desk.run()["spec"]["state"] == "closed"
            finally:
                desk.close()
    assert ended.code == 0, ended.said
    assert set(offered) == {str(it.body["name"]) for it in records(run, "cap")}
    steps = check(run, notes, given)

    ends = Counter(it.told["execution"] for it in given)
    took.sort()
    print(
        f"{len(plan)} commands to {len(offered)} controls of {RANKS} ranks in {steps} steps: "
        f"{dict(ends)}, {len(plan) - len(given)} refused by the server; "
        f"median {statistics.median(took):.2f} s, maximum {took[-1]:.2f} s"
    )


def capabilities(desk: Desk) -> dict[str, str]:
    """Return what the coordinator offers on the server: name to safe point."""
    run, leader = desk.run(), desk.leader()
    found = desk.client.list_documents("capability", run["scope"]["project_id"], run["id"])
    specs = [it["spec"] for it in found if it["spec"]["participant_id"] == leader]
    return {str(it["name"]): str(it["safe_points"][0]) for it in specs}


def give(desk: Desk, order: Order, safe_point: str) -> list[Given]:
    """Give an order and wait for its end; nothing came of it when the server refuses it."""
    try:
        command = desk.submit(order.name, dict(order.given), safe_point=safe_point)
    except ApiError as error:
        assert (order.end, error.status) == ("refused", 400), (order, error)
        return []
    if command["execution"] == "pending_approval":
        desk.client.approve(command["id"], command["fingerprint"])
    told = desk.ended(command, LIMIT_S)
    assert (told["execution"], told["failure_code"]) == (order.end, order.code), (order, told)
    return [Given(order, told)]


def way(*address: str | int) -> str:
    """Say what becomes of a connection."""
    try:
        socket.create_connection(address, 5.0).close()  # type: ignore[arg-type]
    except OSError as error:
        return str(error.strerror)
    return "open"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_without_privileges_too_a_job_off_the_network_reaches_itself_alone() -> None:
    if why := why_not():
        pytest.skip(f"a job cannot be kept off the network here: {why}")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def ways() -> dict[str, Any]:
            leave()
            with socket.create_server(("127.0.0.1", 0)) as inside:
                return {
                    "a server of this machine": way(*server.getsockname()),
                    "a network": way("192.0.2.1", 80),
                    "itself": way(*inside.getsockname()),
                }

        assert as_nobody(ways) == {
            "a server of this machine": "Connection refused",
            "a network": "Network is unreachable",
            "itself": "open",
        }
