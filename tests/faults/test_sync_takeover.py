"""Syncers on different hosts that stop, are killed, and wake up again: one works at a time."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.reading import RunBuilder, WriterBuilder, wait_for
from tests.support.scripted_server import ScriptedServer
from tests.support.sync_command import (
    QUICK,
    SyncCommand,
    assert_single,
    lease_of,
    points,
    steps,
)
from tests.support.v1_server import PROJECT, V1Server, v1_server

LEASE_S = 1.5
STEPS = 20


@pytest.fixture
def server(tmp_path: Path) -> Iterator[V1Server]:
    with v1_server(tmp_path / "srv") as it:
        yield it


@pytest.fixture
def far(server: V1Server) -> Iterator[ScriptedServer]:
    with ScriptedServer(server.url) as it:
        yield it


@pytest.fixture
def sync(tmp_path: Path, server: V1Server, far: ScriptedServer) -> SyncCommand:
    environment = {"LAUNCHHELM_PROJECT": PROJECT}
    return SyncCommand(tmp_path, far.url, server.key, environment, QUICK + lease_of(LEASE_S))


def host(name: str) -> str:
    """Return a change that gives a process another host's name, and process numbers of it."""
    return f"import os, socket\nsocket.gethostname = lambda: {name!r}\nos.getpid = lambda: 7\n"


def log(writer: WriterBuilder, first: int) -> None:
    for step in range(first, first + STEPS):
        writer.metrics(step, loss=1.0)
    writer.flush()


def is_stopped(pid: int) -> bool:
    """Whether every thread of a process has come to a stop; one alone may run on for a while."""
    threads = Path(f"/proc/{pid}/task").glob("*/stat")
    return all(stat.read_text().rpartition(")")[2].split()[0] == "T" for stat in threads)


def test_the_work_of_a_stopped_and_of_a_killed_syncer_goes_on_on_another_host(
    tmp_path: Path, server: V1Server, far: ScriptedServer, sync: SyncCommand
) -> None:
    """Host A is stopped, B takes over; A wakes up and waits; B is killed, A takes over."""
    run = RunBuilder(tmp_path / "runs")
    writer = run.writer()

    def arrived(count: int) -> None:
        wait_for(lambda: len(points(server, "loss")) == count, timeout_s=LEASE_S + 10.0)

    def holder() -> str:
        (lease,) = (run.directory / "sync").glob("*/lease.*")
        return "a" if b'"host-a"' in lease.read_bytes() else "b"

    root = tmp_path / "runs"
    log(writer, 0)
    with sync.watching(root, change=host("host-a")) as a:
        arrived(STEPS)
        a.send_signal(signal.SIGSTOP)
        wait_for(lambda: is_stopped(a.pid))
        log(writer, STEPS)
        with sync.watching(root, change=host("host-b")) as b:
            arrived(2 * STEPS)
            assert holder() == "b"
            a.send_signal(signal.SIGCONT)
            log(writer, 2 * STEPS)
            arrived(3 * STEPS)
            assert holder() == "b" and a.poll() is None
            b.kill()
            b.wait()
        log(writer, 3 * STEPS)
        arrived(4 * STEPS)
        assert holder() == "a"
    batches = [
        (batch["batch_id"], batch["points"][0]["sequence"])
        for asked in far.telemetry
        for batch in asked.json["batches"]
        if len(batch["points"]) == STEPS
    ]
    assert len(set(batches)) == 4, "the same points went under two ids"
    # What the one before may have sent is sent again as it was, once a takeover.
    assert len(batches) <= 4 + 2
    found = points(server, "loss")
    assert_single(found)
    assert steps(found) == list(range(4 * STEPS))
