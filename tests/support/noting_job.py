"""A training job for torchrun that writes down by itself what it holds after every step.

    started_job(off_network(torchrun(4, NOTING_JOB, root, notes, server.url)), tmp_path)

Each rank first proves that it cannot connect to that URL. It notes a line of JSON per step, read
from the optimizer, the modules and the tunables themselves, and at last what made training end:
`{"diverged": ..., "held": ...}`. The last rank cannot set the learning rate UNLUCKY, and finds out
only when it tries.
"""

from __future__ import annotations

import hashlib
import json
import socket
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import launchhelm
import launchhelm.torch as lht
from launchhelm.controls import schema
from launchhelm.models import opaque_schema
from launchhelm.torch._built_in import KNOWN_CONTROLS
from tests.support.orders import UNLUCKY


class Group(dict[str, Any]):
    """A parameter group, as an optimizer of a user may have one, that fails now and then."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name == "lr" and value == UNLUCKY:
            raise RuntimeError("this rank had bad luck")
        super().__setitem__(name, value)


def must_be_out_of_reach(url: str) -> None:
    """Fail when there is a way to the server."""
    parts = urlsplit(url)
    try:
        socket.create_connection((str(parts.hostname), parts.port or 80), 5.0).close()
    except OSError:
        return
    raise SystemExit(f"{url} can be reached from the job")


def train(root: str, notes: Path) -> None:
    """Train until commands end it."""
    torch.manual_seed(0)
    linear, dropout = torch.nn.Linear(4, 2), torch.nn.Dropout(0.25)
    model = DistributedDataParallel(torch.nn.Sequential(linear, dropout))
    optimizer = torch.optim.SGD(
        [
            {"params": [linear.weight], "lr": 0.01, "weight_decay": 0.1},
            {"params": [linear.bias], "lr": 0.02, "weight_decay": 0.2},
        ]
    )
    evals = 0

    def evaluate() -> dict[str, float]:
        nonlocal evals
        evals += 1
        return {"loss": evals / 2}

    tr = lht.init("quickstart", name="controlled", state_dir=root)
    if dist.get_rank() == dist.get_world_size() - 1:
        optimizer.param_groups[0] = Group(optimizer.param_groups[0])
    tr.watch(model, optimizer, controls=KNOWN_CONTROLS, eval_fn=evaluate)
    gain = tr.tunable("gain", 0.5, minimum=0.0, maximum=1.0)
    depth = tr.tunable("depth", 3, minimum=1, maximum=9)
    mode = tr.tunable("mode", "plain", choices=["plain", "noisy"])
    mixed = tr.tunable("mixed", False)
    label = tr.tunable("label", "a")
    note = ""

    @tr.run.command("after_step")
    def write(text: str, times: int) -> dict[str, int]:
        """Hold a text, on the process that offers the command: rank 0."""
        nonlocal note
        if times < 0:
            raise ValueError("nothing can be written so often")
        note = text * times
        return {"length": len(note)}

    def held() -> dict[str, Any]:
        weights = b"".join(each.detach().numpy().tobytes() for each in linear.parameters())
        return {
            "step": tr.global_step,
            "weights": hashlib.sha256(weights).hexdigest()[:16],
            "lr": [group["lr"] for group in optimizer.param_groups],
            "weight_decay": [group["weight_decay"] for group in optimizer.param_groups],
            "grad_clip": tr.grad_clip,
            "dropout": dropout.p,
            "eval": evals,
            "stop_requested": tr.stop_requested,
            "paused": False,  # Else it would not come here.
            "set_gain": gain.value,
            "set_depth": depth.value,
            "set_mode": mode.value,
            "set_mixed": mixed.value,
            "set_label": label.value,
            "write": note,
        }

    def erase(payload: object, context: object) -> None:
        nonlocal note
        note = ""

    tr.run.register(
        launchhelm.Capability(
            name="erase",
            provider="script",
            version="1.0.0",
            input_schema=schema.record([]),
            output_schema=opaque_schema(),
            safe_points=("after_step",),
            requires_approval=True,
        ),
        erase,
    )

    torch.manual_seed(dist.get_rank())
    with notes.open("w", encoding="utf-8", buffering=1) as out:
        try:
            while True:
                inputs = torch.randn(8, 4)
                loss = (model(inputs) * gain.value - inputs[:, :2]).square().mean()
                optimizer.zero_grad()
                loss.backward()
                tr.clip_grad_norm_()
                optimizer.step()
                tr.step(loss=loss)
                tr.run.sync("after_step", step=tr.global_step)
                print(json.dumps(held()), file=out)
                time.sleep(0.005)
        except lht.DivergedStateError as error:
            told = {"applied_on": error.applied_on, "of": error.of, "failures": error.failures}
            print(json.dumps({"diverged": told, "held": held()}), file=out)
    tr.finish()
    dist.destroy_process_group()


if __name__ == "__main__":
    given_root, given_notes, unreachable = sys.argv[1:]
    must_be_out_of_reach(unreachable)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(given_root, Path(given_notes) / str(dist.get_rank()))
