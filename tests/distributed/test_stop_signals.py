"""A termination signal on any rank is a stop on all, at one step, with a checkpoint if wanted."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launchhelm import views
from tests.support.journals import final_outcomes, only_run, records
from tests.support.ranks import Ended, Ranks

RANKS = 4


def trains(
    rank: int, size: int, tell: Callable[[str], None], root: str, mode: str = "stop"
) -> dict[str, Any]:
    import os

    import torch
    import torch.distributed as dist

    import launchhelm.torch as lht

    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    tr = lht.init("signals", state_dir=root, handle_signals=mode)
    tr.watch(model, optimizer)
    while not tr.stop_requested:
        dist.all_reduce(torch.ones(1))  # A rank that stopped alone would leave the others here.
        time.sleep(0.002)
        model(torch.ones(1)).sum().backward()
        optimizer.step()
        tr.step()
        if tr.global_step == 3:
            tell("training")
    tr.finish()
    # Those of a volley that come late find a rank that has ended well.
    os.kill(os.getpid(), signal.SIGUSR1)
    os.kill(os.getpid(), signal.SIGTERM)
    return {"step": tr.global_step, "weight": model.weight.item()}


def signalled(
    root: Path, which: list[int], number: int, seed: int, mode: str, spread_s: float = 0.05
) -> list[Ended]:
    """Train on all ranks, send the signal to some at a random moment, return how all ended."""
    dice = random.Random(seed)
    with Ranks(trains, RANKS, deadline_s=200.0, root=str(root), mode=mode) as ranks:
        for rank in range(RANKS):
            ranks.wait_for(rank, "training")
        time.sleep(dice.uniform(0.0, 0.3))  # At some point of a step.
        for rank in which:
            ranks.kill(rank, number)
            time.sleep(dice.uniform(0.0, spread_s))
        return ranks.wait()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("which", "number", "seed"),
    [
        ([2], signal.SIGTERM, 1),
        *(
            pytest.param(which, signal.SIGTERM, seed, marks=pytest.mark.stress)
            for which in ([2], range(RANKS))
            for seed in range(3, 53)
        ),
    ],
)
def test_a_signal_on_any_rank_stops_all_ranks_at_one_step(
    which: list[int], number: int, seed: int, tmp_path: Path
) -> None:
    ended = signalled(tmp_path, which, number, seed, "stop")
    assert [one.code for one in ended] == [0] * RANKS, ended
    assert len({one.value["step"] for one in ended}) == 1

    run = only_run(tmp_path)
    ((outcome,),) = final_outcomes(run).values()
    assert (outcome.name, outcome.state) == ("stop", "applied")
    assert (outcome.applied_on, outcome.of) == (RANKS, RANKS)
    assert outcome.applied_at == {"step": ended[0].value["step"]}
    name = signal.Signals(number).name
    assert outcome.issued_by in {f"{name} on rank {rank}" for rank in which}
    # The run stays open for the attempt that a scheduler may start.
    (close,) = (it.body for it in records(run, "close", rank=0))
    assert (close["state"], close["reason"]) == ("terminated", outcome.issued_by)


@pytest.mark.timeout(300)
def test_signals_two_seconds_apart_are_one_stop_with_one_checkpoint(tmp_path: Path) -> None:
    ended = signalled(tmp_path, list(range(RANKS)), signal.SIGUSR1, 2, "checkpoint", 0.7)
    assert [one.code for one in ended] == [0] * RANKS, ended
    (step,) = {one.value["step"] for one in ended}

    run = only_run(tmp_path)
    ((outcome,),) = final_outcomes(run).values()
    assert (outcome.name, outcome.state, outcome.applied_on) == ("stop", "applied", RANKS)
    closes = [it.body for rank in range(RANKS) for it in records(run, "close", rank=rank)]
    assert {(close["state"], close["close_run"]) for close in closes} == {("terminated", False)}
    (saved,) = records(run, "art", rank=0)
    assert (saved.step, saved.body["format"][:11]) == (step, "launchhelm.")
    view = views.open_run(run)
    assert (view.state.word, view.state.is_closed) == ("stopped", False)
    assert outcome.issued_by in view.state.text

    import torch

    payload = torch.load(run / "media" / saved.body["sha256"], weights_only=True)
    assert payload["step"] == step
    assert payload["model"]["weight"].item() == ended[0].value["weight"]
