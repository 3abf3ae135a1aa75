"""Be preempted: a signal saves a checkpoint, and the next start goes on from it as if undisturbed.

    python examples/preemption.py

It starts itself twice, as SLURM would start a job that is requeued, and sends the first start a
SIGTERM. Look at the two attempts of the one run, and at the step at which they join:

    launchhelm show latest --attempts

`handle_signals="checkpoint"` and `load_checkpoint` are all that a job needs; see docs/elastic.md.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

import torch

import launchhelm.torch as lht
from launchhelm.errors import NotFound

STEPS = 400


def train() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 32), torch.nn.Dropout(0.1), torch.nn.Linear(32, 1)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    tr = lht.init("quickstart", name="preempted", handle_signals="checkpoint")
    tr.watch(model, optimizer)
    with contextlib.suppress(NotFound):  # The first start has none.
        tr.load_checkpoint("latest")  # The random state too, so that the batches go on.
    while tr.global_step < STEPS and not tr.stop_requested:
        inputs = torch.randn(32, 8)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        tr.step(loss=loss)
        if tr.global_step == STEPS // 2 and tr.run.attempt.number == 1:
            os.kill(os.getpid(), signal.SIGTERM)  # What a scheduler does to make room.
    print(f"attempt {tr.run.attempt.number} ends at step {tr.global_step}", flush=True)
    tr.finish()


def main() -> None:
    if "A_START" in os.environ:
        train()
        return
    for restarts in ("0", "1"):
        job = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_RESTART_COUNT": restarts}
        environment = {**os.environ, **job, "A_START": "1"}
        subprocess.run([sys.executable, __file__], env=environment, check=True)


if __name__ == "__main__":
    main()
