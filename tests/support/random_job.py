"""A rank that trains, notes what plain torch says it holds, and fails where it is told to.

The job is a sequence of episodes: each has a new `Trainer`, and ends when a command diverged or the
driver says so. Files in `notes` steer it: `fault.<rank>` holds the phase at which that rank fails,
`leave.<episode>` the rank that leaves the control of this episode and trains on, `end.<episode>`
ends it; with "job" in it, everything.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

PHASES = ("validate", "apply", "read-back", "odd", "rollback")
"""Where a rank may fail: refuses, raises half way, cannot read, reads otherwise, cannot undo."""


def inject(notes: Path, rank: int) -> None:
    """Make this rank's controls fail where its fault file says."""
    from launchhelm.torch._plant import Plant

    path = notes / f"fault.{rank}"
    check, apply, read_back, restore = Plant.check, Plant.apply, Plant.read_back, Plant.restore

    def fails_at(*phases: str) -> bool:
        return path.exists() and path.read_text() in phases

    def checking(self: Plant, name: str, payload: Mapping[str, Any], step: int) -> str | None:
        return "this rank will not" if fails_at("validate") else check(self, name, payload, step)

    def applying(
        self: Plant, name: str, payload: Mapping[str, Any], step: int
    ) -> Mapping[str, Any]:
        result = apply(self, name, payload, step)
        if fails_at("apply", "rollback"):
            raise RuntimeError("bad luck")
        return result

    def reading(self: Plant, name: str, payload: Mapping[str, Any]) -> str:
        if fails_at("read-back"):
            raise RuntimeError("bad luck")
        return read_back(self, name, payload) + ("!" if fails_at("odd") else "")

    def restoring(self: Plant, snapshot: object) -> None:
        if fails_at("rollback"):
            raise RuntimeError("cannot be undone")
        restore(self, snapshot)

    Plant.check, Plant.apply = checking, applying  # type: ignore[method-assign]
    Plant.read_back, Plant.restore = reading, restoring  # type: ignore[method-assign]


def train(
    rank: int, size: int, tell: Callable[[str], None], root: str, notes: str, seed: int
) -> None:
    """Train episode after episode until told to end."""
    import torch

    from launchhelm import run

    run.LOCAL_POLL_S = 0.05  # type: ignore[misc]
    inject(Path(notes), rank)
    for number in itertools.count():
        torch.manual_seed(seed + number)
        episode = _Episode(rank, number, Path(notes))
        with open(f"{notes}/{number}.{rank}", "w", encoding="utf-8", buffering=1) as out:
            if episode.train(f"{root}/{number}", tell, out) == "job":
                return


class _Episode:
    """One trainer of this rank, from `init` to its end."""

    def __init__(self, rank: int, number: int, notes: Path) -> None:
        import torch
        from torch.nn.parallel import DistributedDataParallel

        self.rank, self.number, self.notes = rank, number, notes
        self.linear, self.dropout = torch.nn.Linear(4, 2), torch.nn.Dropout(0.25)
        self.model = DistributedDataParallel(torch.nn.Sequential(self.linear, self.dropout))
        self.optimizer = torch.optim.SGD(
            [
                {"params": [self.linear.weight], "lr": 0.01, "weight_decay": 0.1},
                {"params": [self.linear.bias], "lr": 0.02, "weight_decay": 0.2},
            ]
        )
        self.evals = 0
        self.note = ""
        self.tunables: dict[str, Any] = {}
        self.limit: float | None = None

    def evaluate(self) -> dict[str, float]:
        """Count how often this was called."""
        self.evals += 1
        return {"loss": self.evals / 2}

    def held(self) -> dict[str, Any]:
        """Return what this rank holds, from the objects that training uses."""
        weights = b"".join(each.detach().numpy().tobytes() for each in self.linear.parameters())
        groups = self.optimizer.param_groups
        return {
            "weights": hashlib.sha256(weights).hexdigest()[:16],
            "lr": [group["lr"] for group in groups],
            "weight_decay": [group["weight_decay"] for group in groups],
            "grad_clip": self.limit,
            "dropout": self.dropout.p,
            "eval": self.evals,
            "write": self.note,
            **{f"set_{name}": each.value for name, each in self.tunables.items()},
        }

    def train(self, root: str, tell: Callable[[str], None], out: Any) -> str:
        """Train until this episode ends, and return why."""
        import torch

        import launchhelm.torch as lht
        from launchhelm.torch._built_in import KNOWN_CONTROLS

        tr = lht.init("random", name=f"episode {self.number}", state_dir=root)
        tr.watch(self.model, self.optimizer, controls=KNOWN_CONTROLS, eval_fn=self.evaluate)
        self.tunables = {
            "gain": tr.tunable("gain", 0.5, minimum=0.0, maximum=1.0),
            "depth": tr.tunable("depth", 3, minimum=1, maximum=9),
            "mode": tr.tunable("mode", "plain", choices=["plain", "noisy"]),
            "mixed": tr.tunable("mixed", False),
            "label": tr.tunable("label", "a"),
        }

        @tr.run.command("after_step")
        def write(text: str, times: int) -> dict[str, int]:
            if times < 0:
                raise ValueError("nothing can be written so often")
            self.note = text * times
            return {"length": len(self.note)}

        dice = random.Random(self.rank)
        is_gone, why = False, ""
        while not why:
            inputs = torch.randn(3, 4)
            loss = (self.model(inputs) * self.tunables["gain"].value).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            raw = _norm(self.linear)
            tr.clip_grad_norm_()
            clipped = _norm(self.linear)
            self.optimizer.step()
            if not is_gone:
                try:
                    tr.step(loss=loss)
                except lht.DivergedStateError as error:
                    told = {"failures": error.failures, "consistent": error.state_consistent}
                    self.limit = tr.grad_clip
                    print(json.dumps({"diverged": told, "held": self.held()}), file=out)
                    break
                tr.run.sync("after_step", step=tr.global_step)
            self.limit = tr.grad_clip
            print(json.dumps({**self.held(), "norms": [raw, clipped]}), file=out)
            if tr.global_step == 3:
                tell(f"training.{self.number}")
            leaver = self.notes / f"leave.{self.number}"
            if not is_gone and leaver.exists() and leaver.read_text() == str(self.rank):
                tr.finish()
                is_gone = True
            why = self._end()
            time.sleep(dice.random() * 0.002)
        tr.finish()
        return why

    def _end(self) -> str:
        """Let all ranks see at the same step what rank 0 sees."""
        import torch
        import torch.distributed as dist

        words = ("", "episode", "job")
        path = self.notes / f"end.{self.number}"
        word = path.read_text() if self.rank == 0 and path.exists() else ""
        flag = torch.tensor([words.index(word)])
        dist.broadcast(flag, 0)
        return words[int(flag)]


def _norm(module: Any) -> float:
    import torch

    grads = [each.grad.flatten() for each in module.parameters()]
    return float(torch.cat(grads).norm())
