"""A state from before a live change is loaded on two ranks: at a restart, then in mid-training."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from launchhelm import views
from launchhelm.records import Command
from launchhelm.store import inbox
from launchhelm.views.lineage import places
from tests.support.journals import final_outcomes, only_run, records
from tests.support.ranks import Ranks, run_ranks

Tell = Callable[[str], None]

DEADLINE_S = 150.0

pytestmark = pytest.mark.timeout(2 * DEADLINE_S)


def train(rank: int, size: int, tell: Tell, root: str, resume: str) -> list[list[float]]:
    """Save a state at step 50; an attempt that resumes goes on from it, and loads it twice."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    import launchhelm.torch as lht

    torch.manual_seed(1)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    saved = Path(root, f"{rank}.pt")
    tr = lht.init("restored", state_dir=root, resume=resume, reapply=True)
    tr.watch(model, optimizer, schedule)
    step = 0
    held: list[list[float]] = []

    def load() -> None:
        states = torch.load(saved)
        optimizer.load_state_dict(states["optimizer"])
        schedule.load_state_dict(states["schedule"])

    def move() -> float:
        nonlocal step
        step += 1
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        schedule.step()
        used = optimizer.param_groups[0]["lr"]
        tr.step(step, loss=1.0)
        held.append([step, used, optimizer.param_groups[0]["lr"]])
        time.sleep(0.002)
        return float(optimizer.param_groups[0]["lr"])

    if not resume:
        while step < 50:
            move()
        both = {"optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}
        torch.save(both, saved)
        tr.run.flush(delivered=False)
        tell("saved")
        while move() != 1e-4:
            pass
        for _ in range(20):
            move()
        tr.run.flush(delivered=False)
        tell("to be killed")
        while True:
            move()
    load()
    step = 50
    while move() != pytest.approx(1e-4):
        pass
    for _ in range(5):
        move()
    load()  # The script rolls back while it trains.
    while move() != pytest.approx(1e-4):
        pass
    move()
    tr.finish()
    return held


def test_a_state_from_before_a_command_is_told_and_the_command_given_again_on_all_ranks(
    tmp_path: Path,
) -> None:
    with Ranks(train, 2, deadline_s=DEADLINE_S, root=str(tmp_path), resume="") as ranks:
        ranks.wait_for(0, "saved")
        run = only_run(tmp_path)
        inbox.send(run, Command("one", "lr", {"lr": 1e-4}))
        for rank in range(2):
            ranks.wait_for(rank, "to be killed")
        for rank in range(2):
            ranks.kill(rank)
        ranks.wait()
    ours, theirs = (
        one.value
        for one in run_ranks(train, 2, deadline_s=DEADLINE_S, root=str(tmp_path), resume=run.name)
    )
    assert ours == theirs

    # What was used at each step, and the series that says so: 1e-3 after each load, until 1e-4.
    logged = [
        (record.step, record.body["optim/lr/group0"])
        for record in records(run, "m")
        if record.writer.attempt == 2
    ]
    assert logged == [(step, used) for step, used, _ in ours]
    lost = [
        (it.body["step"], it.body["reverted"])
        for it in records(run, "effect")
        if "reverted" in it.body
    ]
    second = 1 + next(
        index for index, row in enumerate(ours) if index and row[1] > 5 * ours[index - 1][2]
    )
    assert lost == [(51, "restore or restart"), (50 + second, "restore")]
    said = [it.body["text"] for it in records(run, "ev", rank=0) if it.body["type"] == "notice"]
    assert sum("reverted by restore" in text for text in said) == 2

    # Given again, through the exchange: at one step on both ranks, with outcomes of their own.
    again = [
        each
        for ended in final_outcomes(run).values()
        for each in ended
        if each.issued_by == "reapply=True"
    ]
    again.sort(key=lambda each: each.applied_at["step"])
    landed = [row[0] for row in ours if row[2] < 5e-4 < row[1]]
    assert [each.applied_at["step"] for each in again] == landed and len(landed) == 2
    for each in again:
        assert (each.name, each.state, each.applied_on, each.of) == ("lr", "applied", 2, 2)
        change = {"old": [1e-3], "new": [pytest.approx(1e-4)], "factors": [pytest.approx(0.1)]}
        assert each.changes["lr"] == change

    # On another run it is given once, where it was in effect again on the way to the last state.
    found = places(views.open_run(run))
    assert {id_: each.step for id_, each in found.items() if not each.why} == {"one": landed[0]}
