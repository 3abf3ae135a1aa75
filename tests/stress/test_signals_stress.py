"""A signal to a random rank at a random moment: all save one checkpoint and stop at one step."""

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
from tests.support.ranks import Ranks

CASES = 100
MOMENTS = ("init", "step", "exchange", "eval", "save", "finish")
STEPS = 400


def trains(
    rank: int, size: int, tell: Callable[[str], None], root: str, moment: str
) -> dict[str, Any]:
    import time

    import torch
    import torch.distributed as dist

    import launchhelm.torch as lht

    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)

    def evaluate() -> dict[str, float]:
        tell("eval")
        time.sleep(0.2)
        return {"accuracy": 0.5}

    if moment == "init":
        tell("init")
    every = 1 if moment == "exchange" else 20
    tr = lht.init("signals", state_dir=root, handle_signals="checkpoint", control_every=every)
    tr.watch(model, optimizer, eval_fn=evaluate, controls=("lr", "eval"))
    while tr.global_step < STEPS and not tr.stop_requested:
        dist.all_reduce(torch.ones(1))  # A rank that stopped alone would leave the others here.
        model(torch.ones(64)).sum().backward()
        optimizer.step()
        time.sleep(0.001)
        tr.step()
        if tr.global_step == 20:
            tell("step")
            tell("exchange")
            if moment == "save":
                tell("save")
                for _ in range(5):
                    tr.save_checkpoint()
    if moment == "finish":
        tell("finish")
    tr.finish()
    return {"step": tr.global_step, "weights": float(model.weight.sum()).hex()}


@pytest.mark.stress
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(CASES))
def test_a_signal_at_any_moment_ends_all_ranks_alike(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    size, moment = dice.choice((2, 3, 4)), MOMENTS[seed % len(MOMENTS)]
    number = dice.choice((signal.SIGTERM, signal.SIGUSR1))
    victim = dice.randrange(size)
    print(f"seed {seed}: {number.name} to rank {victim} of {size} during {moment}")
    with Ranks(trains, size, deadline_s=240.0, root=str(tmp_path), moment=moment) as ranks:
        if moment == "eval":
            _command_eval(tmp_path, ranks)
        ranks.wait_for(victim, moment)
        time.sleep(dice.uniform(0.0, 0.05 if moment == "init" else 0.3))
        ranks.kill(victim, number)
        ended = ranks.wait()

    codes = [one.code for one in ended]
    if moment == "init" and codes[victim] == -number:
        return  # It came before `init` had begun: nobody of us had a say yet.
    if moment == "finish" and codes[victim] == -number:
        codes[victim] = 0  # It came after everything was on record.
    assert codes == [0] * size, ended
    run = only_run(tmp_path)
    view = views.open_run(run)
    steps = {one.value["step"] for one in ended if one.value is not None}
    assert len(steps) == 1, ended
    closes = {it.writer.rank: it.body for it in records(run, "close")}
    assert len(closes) == size  # Every rank left its end record.

    stops = [each for (each,) in final_outcomes(run).values() if each.name == "stop"]
    if not stops:  # The signal came too late to stop anything.
        assert steps == {STEPS}
        return
    (step,) = steps
    (stop,) = stops
    heard = f"{number.name} on rank {victim}"
    assert (stop.state, stop.applied_on, stop.issued_by) == ("applied", size, heard)
    assert stop.applied_at == {"step": step}
    assert view.state.text == f"stopped by {heard} at step {step}"
    assert not view.state.is_closed
    assert {close["state"] for close in closes.values()} == {"terminated"}

    import torch

    saved = records(run, "art", rank=0)[-1]
    assert saved.step == step
    payload = torch.load(run / "media" / saved.body["sha256"], weights_only=True)
    assert payload["step"] == step
    assert {float(payload["model"]["weight"].sum()).hex()} == {it.value["weights"] for it in ended}


def _command_eval(root: Path, ranks: Ranks) -> None:
    from launchhelm.records import Command
    from launchhelm.store import inbox

    ranks.wait_for(0, "step")
    inbox.send(only_run(root), Command("evaluate", "eval", {}))
