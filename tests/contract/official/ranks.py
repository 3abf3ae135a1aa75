"""Two ranks with the official PyTorch adapter: RANK, and a file for the rendezvous.

The learning rate is changed from outside, an evaluation fails on one rank, a checkpoint is saved
and loaded by a second trainer of the same run.
"""

from __future__ import annotations

import os
import sys
import time
import warnings

import torch
import torch.distributed as dist
from spoken import say, wait

import launchhelm.torch as lht

RANK = int(os.environ["RANK"])
DEADLINE = time.monotonic() + 60

torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=RANK, world_size=2)


def parts() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def evaluate() -> dict[str, float]:
    global evaluated
    evaluated = True
    if RANK == 1:
        raise ValueError("rank 1 cannot evaluate")
    return {"loss": 1.0}


def train(done: object) -> int:
    """Step until something has changed; it changes on both ranks at the same step."""
    while time.monotonic() < DEADLINE:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).pow(2).mean()
        loss.backward()
        optimizer.step()
        trainer.step(loss=loss)
        if done():
            return trainer.global_step
        time.sleep(0.005)
    raise SystemExit("nothing happened")


evaluated = False
model, optimizer = parts()
trainer = lht.init("contract", name="ranks", on_partial_failure="continue", log_ranks="all")
trainer.watch(model, optimizer, eval_fn=evaluate)
say("ready", run_id=trainer.run.run_id)

step = train(lambda: optimizer.param_groups[0]["lr"] != 0.1)
say("changed", step=step, lr=optimizer.param_groups[0]["lr"])

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    train(lambda: evaluated)
say("diverged", warned=any("rank" in str(each.message).lower() for each in caught))
wait()  # The SDK reports from a thread, and a resume by then would leave the outcome to the server.

artifact = trainer.save_checkpoint(extra={"note": "kept"})
weights = [each.detach().clone() for each in model.parameters()]
saved_at = trainer.global_step
trainer.run.flush()
trainer.finish(close_run=False)
say("saved", artifact=artifact)

model, optimizer = parts()
torch.nn.init.constant_(model.module.weight, 9.0)
trainer = lht.init("contract", resume=trainer.run.run_id)
trainer.watch(model, optimizer)
extra = trainer.load_checkpoint("latest")
same = all(torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True))
say(
    "loaded",
    extra=extra,
    same=same,
    step=trainer.global_step == saved_at,
    lr=optimizer.param_groups[0]["lr"],
)
trainer.finish()
dist.destroy_process_group()
