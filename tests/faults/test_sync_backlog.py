"""A long history: in bounded requests, from flat memory, and with a training that has to end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launchhelm.cli import Exit
from tests.support.reading import RunBuilder, wait_for
from tests.support.scripted_server import ScriptedServer
from tests.support.sync_command import (
    QUICK,
    REPOSITORY,
    SyncCommand,
    lease_of,
    points,
)
from tests.support.v1_server import PROJECT, V1Server, v1_process

RECORDS = 40_000
METRICS = 3
MIB = 1 << 20
PROGRESS_S = 0.1
BUDGET_S = 10.0
PENDING = 100_000
STEP_S = 1e-3


@pytest.fixture
def server(tmp_path: Path) -> Iterator[V1Server]:
    with v1_process(tmp_path / "srv") as it:
        yield it


@pytest.mark.slow
def test_a_long_history_goes_up_in_bounded_requests_from_flat_memory_and_goes_on_after_a_kill(
    tmp_path: Path, server: V1Server
) -> None:
    quick = f"from syncer import progress\nprogress.PLAIN_S = service.SLICE_S = {PROGRESS_S}\n"
    change = QUICK + lease_of(0.5) + quick
    writer = RunBuilder(tmp_path / "runs").writer()
    for step in range(RECORDS):
        writer.metrics(step, loss=step / 4, accuracy=0.5, lr=1e-3)
    writer.flush()
    total = RECORDS * METRICS
    with ScriptedServer(server.url) as far:
        environment = {"LAUNCHHELM_PROJECT": PROJECT}
        sync = SyncCommand(tmp_path, far.url, server.key, environment, change)

        def brought() -> int:
            return sum(asked.body.count(b'"sequence"') for asked in far.telemetry)

        first = sync.start(tmp_path / "runs")
        wait_for(lambda: brought() > 0.4 * total, timeout_s=60.0)
        first.kill()
        _, said = first.communicate()

        second = sync.start(tmp_path / "runs")
        wait_for(lambda: brought() > 0.6 * total, timeout_s=60.0)
        before = resident(second.pid)
        wait_for(lambda: brought() > 0.95 * total, timeout_s=60.0)
        grown = resident(second.pid) - before
        said += second.communicate(timeout=60)[1]

        assert " points, " in said and "/s" in said, "no word of progress"
        assert second.returncode == Exit.DONE
        assert grown < 10 * MIB, f"{grown / MIB:.1f} MiB more"
        largest = max(far.telemetry, key=lambda asked: len(asked.body))
        assert len(largest.body) <= MIB and len(largest.identities) <= 5_000
        identities = [it for asked in far.telemetry for it in asked.identities]
        assert len(set(identities)) == total
        assert len(identities) - total <= len(largest.identities), "more than one request again"
    assert len(points(server, "loss")) == RECORDS


def resident(pid: int) -> int:
    """Return how much memory a process has, in bytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


TRAIN = f"""
import statistics, sys, time, launchhelm

def train(steps, **options):
    run = launchhelm.init("quickstart", name="full", state_dir=sys.argv[1], **options)
    took = []
    for step in range(steps):
        began = time.perf_counter()
        run.log({{"loss": 1.0}}, step=step)
        took.append(time.perf_counter() - began)
    run.flush(delivered=False)
    return run, statistics.median(took)

alone, without = train({PENDING} // 2)
alone.finish()
run, beside = train({PENDING}, sync=True)
print(beside - without, time.monotonic(), flush=True)
run.finish()
sys.exit(3)
"""
"""Logs without and with the sync thread, and ends with a status of its own."""


@pytest.mark.slow
def test_a_large_backlog_and_a_silent_server_delay_no_step_and_the_end_only_by_the_budget(
    tmp_path: Path,
) -> None:
    with ScriptedServer() as hole:
        hole.is_silent = True
        environment = {
            "LAUNCHHELM_URL": hole.url,
            "LAUNCHHELM_API_KEY": "k",
            "PYTHONPATH": str(REPOSITORY),
        }
        done = subprocess.run(
            [sys.executable, "-c", TRAIN, str(tmp_path / "runs")],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=60,
        )
        more_s, finish_at = map(float, done.stdout.split())
        took_s = time.monotonic() - finish_at
    assert more_s < 0.05 * STEP_S, f"{more_s * 1e6:.1f} us a step more"
    assert took_s < BUDGET_S + 2.0
    assert done.returncode == 3, "the script's own status"
    (said,) = [line for line in done.stderr.splitlines() if " records of 'full'" in line]
    pending = int(said.replace(",", "").split(" records")[0].split()[-1])
    assert PENDING <= pending < PENDING + 20, said
