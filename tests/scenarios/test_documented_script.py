"""The documented script, unchanged, under every launcher, without a network and without an account.

Python's own sockets are guarded in every child: a connection to anything but this machine fails
and is written down. Torch's connections between ranks are made in C++ and stay on loopback.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from tests.support.jobs import ROOT, run_job
from tests.support.journals import only_run, records, series

STEPS = 20

SCRIPT = """
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

import launchhelm.torch as lht

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DDP(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

tr = lht.init("quickstart", name="ddp-run", system_metrics=True)
tr.watch(model, optimizer)

for step in range(20):
    inputs = torch.randn(8, 4)
    loss = ((model(inputs) - inputs.sum(dim=1, keepdim=True)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tr.step(step=step, loss=loss)

tr.finish()
dist.destroy_process_group()
"""

SPAWN = """
import os
import runpy
import sys

import torch.multiprocessing as mp


def start(rank, script, port):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2",
                      MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    mp.spawn(start, args=(sys.argv[1], sys.argv[2]), nprocs=2)
"""

GUARD = """
import os
import sys


def guard(event, arguments):
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        address = arguments[1]
        host = address[0] if isinstance(address, tuple) else ""
        if host and not host.startswith("127.") and host not in ("::1", "localhost"):
            with open(os.environ["GUARD_LOG"], "a") as log:
                print(event, address, file=log)
            raise PermissionError(f"no network here: {event} {address}")


sys.addaudithook(guard)
"""

DUMMIES = {
    "LAUNCHHELM_API_KEY": "dummy-key-that-must-not-be-stored",
    "LAUNCHHELM_URL": "https://launchhelm.example.com",
    "LAUNCHHELM_ORGANIZATION": "11111111-1111-4111-8111-111111111111",
    "LAUNCHHELM_PROJECT": "22222222-2222-4222-8222-222222222222",
}


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def command(launcher: str, script: Path) -> tuple[list[str], dict[str, str], int]:
    """Return command line, environment and world size of one way to start the script."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2"]
    if launcher == "torchrun --master_addr":
        address = ["--master_addr=127.0.0.1", f"--master_port={free_port()}"]
        return [*torchrun, *address, str(script)], {}, 2
    if launcher == "torchrun --standalone":
        return [*torchrun, "--standalone", str(script)], {}, 2
    if launcher == "mp.spawn":
        spawn = script.with_name("spawn.py")
        spawn.write_text(SPAWN)
        return [sys.executable, str(spawn), str(script), free_port()], {}, 2
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    return [sys.executable, str(script)], {**alone, "MASTER_PORT": free_port()}, 1


@pytest.mark.slow
@pytest.mark.parametrize("variables", [{}, DUMMIES], ids=["no variables", "dummy variables"])
@pytest.mark.parametrize(
    "launcher", ["torchrun --master_addr", "torchrun --standalone", "mp.spawn", "single process"]
)
def test_the_documented_script_runs_unchanged_and_offline(
    launcher: str, variables: dict[str, str], tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    guard = tmp_path / "guard"
    guard.mkdir()
    (guard / "sitecustomize.py").write_text(GUARD)
    log = tmp_path / "connections"
    line, extra, world_size = command(launcher, script)
    job = run_job(
        line,
        tmp_path,
        {
            **variables,
            **extra,
            "PYTHONPATH": f"{guard}{os.pathsep}{ROOT}",
            "GUARD_LOG": str(log),
        },
    )
    said = job.said
    assert job.code == 0, said
    assert not log.exists(), log.read_text()

    run = only_run(tmp_path / "runs")
    assert len(series(run, "train/loss", rank=0)) == STEPS
    assert len(series(run, "optim/lr/group0", rank=0)) == STEPS
    assert len(series(run, "perf/step_time_s", rank=0)) == STEPS - 1
    assert [value for _, value in series(run, "system/collector")] == ["ok"]
    for rank in range(world_size):
        (close,) = records(run, "close", rank=rank)
        assert close.body["state"] == "finished"
    assert series(run, "train/loss", rank=1) == []
    assert {record.writer.rank for record in records(run)} == set(range(world_size))

    lines_about_the_run = [line for line in said.splitlines() if run.name in line]
    assert len(lines_about_the_run) == 1, said
    for path in run.rglob("*"):
        if path.is_file():
            assert b"dummy-key" not in path.read_bytes(), path
