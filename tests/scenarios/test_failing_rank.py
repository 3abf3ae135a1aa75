"""One rank of a spawned job fails: the job ends with its error, soon, and nothing of ours waits."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from tests.support.jobs import run_job
from tests.support.journals import only_run, records

SCRIPT = """
import os
import socket
import sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import launchhelm.torch as lht


def train(rank, port):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="4",
                      MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo")
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    trainer = lht.init("failing")
    trainer.watch(model, optimizer)
    for step in range(400):
        if rank == 1 and step == 10:
            print("failing now", flush=True)
            {failure}
        trainer.step(step=step, loss=1.0)
        dist.barrier()
    trainer.finish()


if __name__ == "__main__":
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(train, args=(port,), nprocs=4)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("failure", "said", "state", "reason"),
    [
        ("raise KeyError('lost shard')", "KeyError: 'lost shard'", "error", "KeyError"),
        ("sys.exit(3)", "exit code 3", "error", "SystemExit: 3"),
    ],
)
def test_a_rank_that_fails_ends_the_job_with_its_own_error(
    tmp_path: Path, failure: str, said: str, state: str, reason: str
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.format(failure=failure))
    started = time.monotonic()
    job = run_job([sys.executable, "train.py"], tmp_path, {"LAUNCHHELM_DIR": "runs"})
    assert job.code != 0
    assert said in job.said, job.said
    assert "failing now" in job.said
    # The limit is a hang's, not a speed's: a rank that waited for us would wait for minutes.
    assert time.monotonic() - started < 60
    ends = [record.body for record in records(only_run(tmp_path / "runs"), "close", rank=1)]
    assert [(end["state"], end["reason"][: len(reason)]) for end in ends] == [(state, reason)]
