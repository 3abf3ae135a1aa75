"""A termination signal on any rank is a stop on all ranks, at one step."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.journals import final_outcomes, only_run, records
from tests.support.ranks import Ranks

RANKS = 4


def trains(rank: int, size: int, tell: Callable[[str], None], root: str) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    import launchhelm.torch as lht

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    tr = lht.init("signals", state_dir=root, handle_signals="stop")
    tr.watch(torch.nn.Linear(1, 1), optimizer)
    while not tr.stop_requested:
        dist.all_reduce(torch.ones(1))  # A rank that stopped alone would leave the others here.
        time.sleep(0.002)
        tr.step()
        if tr.global_step == 3:
            tell("training")
    tr.finish()
    return {"step": tr.global_step, "handler": signal.getsignal(signal.SIGTERM).value}  # type: ignore[union-attr]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("which", "number", "seed"),
    [
        ([2], signal.SIGTERM, 1),
        (range(RANKS), signal.SIGUSR1, 2),
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
    dice = random.Random(seed)
    with Ranks(trains, RANKS, deadline_s=200.0, root=str(tmp_path)) as ranks:
        for rank in range(RANKS):
            ranks.wait_for(rank, "training")
        time.sleep(dice.uniform(0.0, 0.3))  # At some point of a step.
        for rank in which:
            ranks.kill(rank, number)
            time.sleep(dice.uniform(0.0, 0.05))
        ended = ranks.wait()
    assert [one.code for one in ended] == [0] * RANKS, ended
    assert len({one.value["step"] for one in ended}) == 1
    assert {one.value["handler"] for one in ended} == {signal.SIG_DFL.value}

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
