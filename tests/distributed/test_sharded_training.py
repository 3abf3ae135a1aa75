"""Live control and clipping of sharded models."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launchhelm.records import Command
from launchhelm.store import inbox
from tests.support.journals import final_outcomes, only_run, series
from tests.support.ranks import SHARDING, run_ranks

DEADLINE_S = 120.0
Tell = Callable[[str], None]

KINDS = {"fsdp1": 0.25, "fsdp2": 0.5}
"""What each is commanded to have everywhere. fsdp1 has flat parameters, fsdp2 is compiled."""


def build(seed: int) -> Any:
    import torch

    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 5), torch.nn.Dropout(0.1), torch.nn.Tanh(), torch.nn.Linear(5, 3)
    )


def wrapped(kind: str, model: Any) -> Any:
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    if kind == "fsdp1":
        return FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    fully_shard(model[0])
    fully_shard(model)
    return torch.compile(model, backend="eager")


def commands(value: float) -> dict[str, dict[str, Any]]:
    return {
        "lr": {"lr": value},
        "weight_decay": {"value": value},
        "dropout": {"p": value},
        "grad_clip": {"max_norm": value},
        "set_temperature": {"value": value},
        "eval": {},
    }


def commanded(rank: int, size: int, tell: Tell, root: str) -> dict[str, Any]:
    """Land every control on both kinds; each loop ends at the same step on all ranks."""
    import torch

    import launchhelm.torch as lht

    tr = lht.init("sharded", state_dir=root)
    temperature = tr.tunable("temperature", 1.0)
    found: dict[str, Any] = {}
    for kind, value in KINDS.items():
        model = wrapped(kind, build(seed=rank))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.0)
        (dropout,) = (each for each in model.modules() if isinstance(each, torch.nn.Dropout))
        group, modes = optimizer.param_groups[0], list[bool]()

        def evaluate(model: Any = model, modes: list[bool] = modes) -> dict[str, float]:
            modes.append(model.training)
            model.eval()
            with torch.no_grad():
                return {"sum": float(model(torch.ones(2, 6)).sum())}

        tr.watch(model, optimizer, eval_fn=evaluate)
        if rank == 0:
            for name, payload in commands(value).items():
                inbox.send(tr.run.directory, Command(f"{kind}-{name}", name, payload))
        values: list[Any] = []
        for _ in range(2000):  # Far more than are needed.
            if values == [value] * 5 and modes:
                break
            optimizer.zero_grad()
            loss = model(torch.randn(8, 6)).square().sum()
            loss.backward()
            tr.clip_grad_norm_()
            optimizer.step()
            tr.step(loss=loss)
            values = [group["lr"], group["weight_decay"], dropout.p, tr.grad_clip]
            values.append(temperature.value)
        found[kind] = {"step": tr.global_step, "values": values, "modes": modes}
        found[kind]["training"] = model.training
    tr.finish()
    return found


def test_every_control_lands_on_a_sharded_model(tmp_path: Path) -> None:
    one, other = (
        it.value
        for it in run_ranks(
            commanded, 2, deadline_s=DEADLINE_S, imports=SHARDING, root=str(tmp_path)
        )
    )
    outcomes = final_outcomes(only_run(tmp_path))
    assert all(
        outcomes[f"{kind}-dropout"][0].result["names"] == ["1"] for kind in KINDS
    )  # As the bare model calls it.
    assert {id_: [it.state for it in each] for id_, each in outcomes.items()} == {
        f"{kind}-{name}": ["applied"] for kind in KINDS for name in commands(0)
    }
    assert one == other
    assert all(it["modes"] == [True] and it["training"] for it in one.values())
    assert {kind: it["values"] for kind, it in one.items()} == {
        kind: [value] * 5 for kind, value in KINDS.items()
    }


def scaled(rank: int, size: int, tell: Tell, root: str) -> dict[str, Any]:
    """Clip scaled gradients to 1, when they are finite and when one shard has an infinite one."""
    import torch
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    import launchhelm.torch as lht

    tr = lht.init("scaled", state_dir=root)
    torch.manual_seed(5)
    inputs = torch.randn(8, 6)

    def loss_of(model: Any) -> Any:
        return model(inputs).square().sum() * 10

    whole = build(seed=0).eval()
    loss_of(whole).backward()
    found: dict[str, Any] = {
        "whole": float(torch.nn.utils.get_total_norm([it.grad for it in whole.parameters()]))
    }
    for kind in KINDS:
        model = wrapped(kind, build(seed=0)).eval()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = ShardedGradScaler("cpu") if kind == "fsdp1" else torch.amp.GradScaler("cpu")
        tr.watch(model, optimizer, scaler=scaler)
        norms, moved = [], []
        for finite in (True, False, True):
            optimizer.zero_grad()
            scaler.scale(loss_of(model)).backward()
            gradient: Any = next(it.grad for it in model.parameters() if it.grad is not None)
            local = gradient.to_local() if hasattr(gradient, "to_local") else gradient
            if rank == 1 and not finite:
                local.view(-1)[0] = math.inf
            norms.append(tr.clip_grad_norm_(1.0))
            if finite:
                norms.append(tr.clip_grad_norm_())
            before = [it.detach().clone() for it in model.parameters()]
            scaler.step(optimizer)
            scaler.update()
            pairs = zip(before, model.parameters(), strict=True)
            moved.append(any(not torch.equal(*map(shard_of, pair)) for pair in pairs))
            tr.step()
        found[kind] = {"norms": norms, "moved": moved, "skipped": tr._clipping.skipped}
    tr.finish()
    return found


def shard_of(tensor: Any) -> Any:
    return (tensor.to_local() if hasattr(tensor, "to_local") else tensor).detach()


def test_scaled_gradients_of_shards_are_clipped_and_skipped_alike(tmp_path: Path) -> None:
    one, other = (
        it.value
        for it in run_ranks(scaled, 2, deadline_s=DEADLINE_S, imports=SHARDING, root=str(tmp_path))
    )
    assert one == other
    for number, kind in enumerate(KINDS, 1):
        first, clipped, infinite, _, clipped_again = one[kind]["norms"]
        assert first == pytest.approx(one["whole"], rel=1e-5), kind
        assert [clipped, clipped_again] == pytest.approx([1.0, 1.0], rel=1e-5)
        assert not math.isfinite(infinite)
        assert one[kind]["moved"] == [True, False, True]
        assert one[kind]["skipped"] == number
    shown = [math.isfinite(value) for _, value in series(only_run(tmp_path), "optim/grad_norm")]
    assert shown == [True] * 4
