"""A training of one process with the official PyTorch adapter, driven by lines of JSON on stdin.

It trains, saves to a path, loads from a path, and says what it has after each; two parameter groups
under a cosine schedule with a floor, and dropout, so that random states, rates and the schedule
decide the numbers.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from spoken import say

import launchhelm.torch as lht

torch.set_num_threads(1)
sys.path.insert(0, str(Path(__file__).resolve().parent))
from checkpoint_parts import losses, parts  # noqa: E402  (next to this file, and knows no SDK)

trainer = lht.init("contract", name="official-checkpoints")
model, optimizer, scheduler = parts(sys.argv[1])
trainer.watch(model, optimizer, scheduler)
level = trainer.tunable("level", 1)
say("ready", run_id=trainer.run.run_id)


def rates() -> list[float]:
    return [group["lr"] for group in optimizer.param_groups]


def train(steps: int) -> list[float]:
    return losses(model, optimizer, scheduler, steps, lambda loss: trainer.step(loss=loss))


def until_changed() -> list[float]:
    """Train until a command has landed: then a group's rate is no more what the schedule gave."""
    deadline = time.monotonic() + 60
    before = rates()
    while rates() == before:
        trainer.step()
        time.sleep(0.01)
        if time.monotonic() > deadline:
            raise SystemExit("no command came")
    return rates()


def obey(order: dict[str, Any]) -> dict[str, Any]:
    match order["do"]:
        case "train":
            return {"losses": train(order["steps"]), "rates": rates()}
        case "command":
            return {"rates": until_changed()}
        case "save":
            trainer.save_checkpoint(order["path"], extra={"note": "official"})
            return {"step": trainer.global_step}
        case "fetch":
            trainer.run.flush()
            digest = hashlib.sha256(trainer.run.fetch("checkpoint", run=order["run"]))
            return {"sha256": digest.hexdigest()}
        case "load":
            extra = trainer.load_checkpoint(order["path"])
            return {
                "step": trainer.global_step,
                "extra": extra,
                "rates": rates(),
                "grad_clip": trainer.grad_clip,
                "level": level.value,
            }
    raise SystemExit(f"unknown order {order}")


for line in sys.stdin:
    say("done", **obey(json.loads(line)))
