"""Values that come to differ between ranks without a command are found, named and shown."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launchhelm import views
from launchhelm.records import Command
from launchhelm.store import inbox
from launchhelm.views.around import diverged_of
from launchhelm.views.plan import plan_of
from tests.distributed.test_exchange import Loop, diverged
from tests.support.journals import final_outcomes, only_run, records, wait_until
from tests.support.ranks import Ranks, run_ranks

LIMIT_S = 40.0


def plateau(rank: int, size: int, tell: Callable[[str], None], root: str, reaction: str) -> Any:
    """Feed each rank's ReduceLROnPlateau its own loss, until the ranks are told of it."""
    import torch

    import launchhelm.torch as lht
    from launchhelm.torch import _comparison

    _comparison.INTERVAL_S = 0.6  # type: ignore[misc]
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=2, factor=0.5)
    tr = lht.init("plateau", state_dir=root, on_divergence=reaction)
    tr.watch(model, optimizer, scheduler)
    tr.tunable("gain", 1.0)
    deadline = time.monotonic() + LIMIT_S
    found = None
    try:
        while found is None and time.monotonic() < deadline:
            optimizer.step()
            if tr.global_step < 40:
                # Rank 1 alone comes to a plateau, and only once: the rate then stays.
                scheduler.step(1.0 if rank == 1 and tr.global_step < 5 else -tr.global_step)
            tr.step()
            found = dict(tr._exchange.status.diverged) or None  # type: ignore[union-attr]
            time.sleep(0.002)
    except lht.DivergedStateError as error:
        found = diverged(error, at=tr.global_step, text=str(error))
        with pytest.raises(lht.DivergedStateError):
            tr.step()
    tr.finish()
    return found


@pytest.mark.parametrize("reaction", ["warn", "raise"])
def test_a_rate_that_schedulers_drove_apart_is_told_with_the_value_of_each_rank(
    reaction: str, tmp_path: Path
) -> None:
    first, second = (
        one.value for one in run_ranks(plateau, 2, root=str(tmp_path), reaction=reaction)
    )
    assert first == second, "all ranks hear the same at the same step"
    if reaction == "raise":
        assert first["capability"] == "lr"
        assert first["failures"] == [[1, "Drift: lr is [0.05], [0.1] on rank 0"]]
        assert (first["applied_on"], first["consistent"]) == (None, False)
    else:
        assert first == {"lr": {"0": [0.1], "1": [0.05]}}
        (shown, *_) = (
            each.body for each in records(only_run(tmp_path), "ctl") if "diverged" in each.body
        )
        assert shown["diverged"] == first
    for rank in (0, 1):
        (text,) = (
            each.body["text"]
            for each in records(only_run(tmp_path), "ev", rank=rank)
            if "different values" in str(each.body.get("text"))
        )
        assert "lr is [0.1] on rank 0" in text and "[0.05] on rank 1" in text


def commanded(rank: int, size: int, tell: Any, root: str) -> Any:
    """Drift apart by hand, and go on until told to stop."""
    import torch

    import launchhelm.torch as lht
    from launchhelm.torch import _comparison

    _comparison.INTERVAL_S = 0.6  # type: ignore[misc]
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.1)
    tr = lht.init("commanded", state_dir=root)
    tr.watch(None, optimizer, controls=("lr", "stop"))  # type: ignore[arg-type]
    deadline = time.monotonic() + LIMIT_S
    while not tr.stop_requested and time.monotonic() < deadline:
        if rank == 1 and tr.global_step == 5:
            optimizer.param_groups[0]["lr"] = 0.033
        tr.step()
        time.sleep(0.002)
    tr.finish()
    return optimizer.param_groups[0]["lr"]


def test_a_command_never_ends_a_training_whose_ranks_have_drifted_apart(tmp_path: Path) -> None:
    """What would leave them apart is refused before it changes anything; what sets all heals."""

    def outcome(id_: str) -> Any:
        return wait_until(lambda: final_outcomes(run).get(id_), id_)[0]

    with Ranks(commanded, 2, root=str(tmp_path)) as ranks:
        run = wait_until(lambda: next(iter(tmp_path.glob("*/run.json")), None), "a run").parent
        view = wait_until(lambda: diverged_of(views.open_run(run)) and views.open_run(run), "drift")
        half = Command("half", "lr", {"scale": 0.5})
        assert "diverged: lr is 0.1 on rank 0, 0.033 on rank 1" in "".join(
            plan_of(view, half).preview()
        )
        inbox.send(run, half)
        assert (outcome("half").state, outcome("half").code) == ("rejected", "diverged")
        assert "lr is 0.1 on rank 0, 0.033 on rank 1" in outcome("half").message
        inbox.send(run, Command("same", "lr", {"lr": 0.02}))
        assert (outcome("same").state, outcome("same").applied_on) == ("applied", 2)
        inbox.send(run, Command("again", "lr", {"scale": 0.5}))
        assert outcome("again").state == "applied"
        wait_until(lambda: not diverged_of(views.open_run(run)), "equal again")
        inbox.send(run, Command("stop", "stop", {}))
        assert outcome("stop").state == "applied"
        ended = ranks.wait()
    assert [one.value for one in ended] == [0.01, 0.01]


def comes_back(rank: int, size: int, tell: Any) -> Any:
    from launchhelm.torch import _comparison

    _comparison.INTERVAL_S = 1.0  # type: ignore[misc]
    loop = Loop()
    loop.exchange._pace.target_s = 0.01
    step = loop.until(lambda: loop.exchange.status.serial > 3, 1)
    assert not loop.exchange.status.diverged
    if rank in (1, 3):
        loop.plant.held["x"] = 7.0 + rank
    step = loop.until(lambda: bool(loop.exchange.status.diverged), step)
    seen = {name: dict(held) for name, held in loop.exchange.status.diverged.items()}
    loop.plant.held["x"] = 1.0
    if rank == 0:
        step = loop.until(lambda: not loop.exchange.status.diverged, step)
        tell("equal")
    else:
        loop.until(lambda: tell.told("equal", 1), step)
    loop.exchange.finish()
    return loop.report(diverged=seen)


def test_only_what_differs_is_told_once_and_that_it_is_equal_again() -> None:
    ended = run_ranks(comes_back, 4)
    for one in ended:
        assert one.value["diverged"] == {"x": {"0": 1.0, "1": 8.0, "3": 10.0}}
    # Ranks that still train may be told that others have left.
    told = [
        [text for text in one.value["notices"] if "Control is off" not in text] for one in ended
    ]
    assert len(told[1]) == len(told[3]) == 1 and not told[2]
    assert "2 of 4 ranks differ from rank 0" in told[0][0]
    assert told[0][1] == "All ranks hold equal values again."


def apart_by_design(rank: int, size: int, tell: Any) -> Any:
    loop = Loop(on_divergence="ignore")
    loop.plant.held["x"] = float(rank)
    loop.exchange._pace.target_s = 0.01
    loop.until(lambda: loop.exchange.status.serial > 6, 1)
    loop.exchange.finish()
    return loop.report()


def test_ranks_that_differ_by_design_are_not_compared_when_told_so() -> None:
    assert not any(one.value["notices"] for one in run_ranks(apart_by_design, 2))
