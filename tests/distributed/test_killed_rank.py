"""A rank is killed in the middle of an apply, or while idle: told, named, counted, and whole."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launchhelm import views
from launchhelm._wording import outcome_text
from launchhelm.records import Command
from launchhelm.store import inbox
from launchhelm.store.reader import Reader
from launchhelm.views.around import around_of
from launchhelm.views.plan import refusal_of
from tests.support.journals import final_outcomes, only_run, wait_until
from tests.support.ranks import Ended, Ranks

SIZE = 3
PLACES = ("before", "changed", "read", "after")
"""Where in its apply a rank kills itself."""


def train(
    rank: int,
    size: int,
    tell: Callable[[str], None],
    root: str,
    victim: int,
    place: str,
) -> dict[str, Any]:
    """Train until control is lost; the victim dies in its first apply at that place, or idles."""
    import torch

    import launchhelm.torch as lht
    from launchhelm.torch._plant import Plant

    applied: list[bool] = []
    apply, read_back = Plant.apply, Plant.read_back

    def die_at(here: str) -> None:
        if rank == victim and place == here:
            tell("dies")
            os.kill(os.getpid(), signal.SIGKILL)

    def applying(self: Plant, *arguments: Any) -> Any:
        die_at("before")
        result = apply(self, *arguments)
        die_at("changed")
        applied.append(True)
        return result

    def reading(self: Plant, *arguments: Any) -> str:
        die_at("read")
        text = read_back(self, *arguments)
        die_at("after")
        return text

    Plant.apply = applying  # type: ignore[method-assign, assignment]
    Plant.read_back = reading  # type: ignore[method-assign, assignment]
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    tr = lht.init("killed", state_dir=root)
    tr.watch(None, optimizer)  # type: ignore[arg-type]
    told: dict[str, Any] = {}
    assert tr._exchange is not None
    try:
        while tr._exchange.status.on:
            tr.step(loss=1.0)
            if tr.global_step == 5:
                tr.run.flush(delivered=False)
                tell("training")
            time.sleep(0.002)
    except lht.DivergedStateError as error:
        told = {"failures": error.failures, "applied_on": error.applied_on, "of": error.of}
    off_at = time.time()  # By the clock of the file that the victim leaves behind.
    tell("off")
    lr = optimizer.param_groups[0]["lr"]
    until = time.monotonic() + 60
    while place == "idle" and not os.path.exists(f"{root}.seen") and time.monotonic() < until:
        tr.step(loss=1.0)  # Training goes on without control.
        time.sleep(0.002)
    tr.finish()
    why = tr._exchange.status.why
    return {"off_at": off_at, "told": told, "lr": lr, "applied": len(applied), "why": why}


def killed(root: Path, victim: int, place: str) -> tuple[list[Ended], Path]:
    """Run one job in which that rank is killed; return how the others ended."""
    with Ranks(train, SIZE, root=str(root), victim=victim, place=place, deadline_s=120.0) as ranks:
        for rank in range(SIZE):
            ranks.wait_for(rank, "training")
        run = only_run(root)
        died = ranks.directory / f"{victim}.told.dies"
        if place == "idle":
            inbox.send(run, Command("soon", "lr", {"scale": 0.5}, first_step=20_000))
            wait_until(lambda: is_picked_up(run, "soon"), "picked up")
            time.sleep(3)  # Then the pace is known, and what is far away is left in the inbox.
            inbox.send(run, Command("late", "lr", {"scale": 0.5}, first_step=10**9))
            time.sleep(2)
            assert views.open_run(run).command("late").outcome is None, "left in the inbox"
            died.touch()
            ranks.kill(victim)
            must_show_that_control_is_off(run, victim, died.stat().st_mtime)
            for rank in set(range(SIZE)) - {victim}:
                ranks.wait_for(rank, "off")  # The store is gone with rank 0.
            Path(f"{root}.seen").touch()
        else:
            inbox.send(run, Command("halve", "lr", {"scale": 0.5}))
        ended = ranks.wait(*(set(range(SIZE)) - {victim}))
        (gone,) = ranks.wait(victim)
        died_at = died.stat().st_mtime
    assert gone.code == -signal.SIGKILL
    for one in ended:
        assert one.code == 0, one.stderr
        assert one.value["off_at"] - died_at < 10, one.value
        assert f"rank {victim}" in one.value["why"], one.value
    return ended, run


def is_picked_up(run: Path, id_: str) -> bool:
    """Whether rank 0 has taken a command in."""
    command = views.open_run(run).command(id_)
    return command is not None and command.outcome is not None


def must_show_that_control_is_off(run: Path, victim: int, died_at: float) -> None:
    """While the others train on, whoever looks is told within 10 s, also of what was waiting."""
    view = views.open_run(run)

    def off() -> bool:
        view.refresh()
        return f"rank {victim}" in str(view.controls.get("why"))

    wait_until(off, "control is off in the view", timeout_s=10 - (time.time() - died_at))
    assert view.controls["control"] == "off"
    assert "Control is off" in refusal_of(view) and f"rank {victim}" in refusal_of(view)

    def told(id_: str) -> bool:
        view.refresh()
        command = view.command(id_)
        if command is None:
            return False  # It has just been taken, and the record of that is under way.
        text = str(outcome_text(command, around_of(view, command=command)))
        word = "Waiting: control is off: " if victim == 0 else "Rejected"
        return text.startswith(word) and f"rank {victim}" in text

    wait_until(lambda: told("soon") and told("late"), "the end of what waited")


def must_be_whole(run: Path) -> None:
    """Every record of every rank is there, and the run reads without a complaint."""
    reader = Reader(run)
    reader.poll()
    assert not reader.gaps and not reader.problems
    assert len(views.open_run(run).participants) == SIZE


def check_kill_in_apply(root: Path, seed: int) -> None:
    """Kill a random rank at one of the places of its apply, and judge all that is left."""
    victim, place = random.Random(seed).randrange(SIZE), PLACES[seed % len(PLACES)]
    ended, run = killed(root, victim, place)
    for one in ended:
        assert one.value["told"]["failures"][0][0] == victim, f"seed {seed}: {one.value}"
        assert one.value["lr"] == 0.1, "what was applied is taken back"
    must_be_whole(run)
    if victim == 0:
        # Nobody is left who may record an outcome; that it was begun is on record, and the next
        # attempt makes of it that the outcome is unknown.
        assert not final_outcomes(run)
        (command,) = views.open_run(run).commands
        assert command.state == "applying"
        return
    (outcome,) = final_outcomes(run)["halve"]
    reported = sum(one.value["applied"] for one in ended)
    assert outcome.state == "outcome_unknown", outcome
    assert (outcome.applied_on, outcome.of) == (reported, SIZE), f"{place}: {outcome}"
    assert outcome.failures[0][0] == victim


def check_kill_while_idle(root: Path, victim: int) -> None:
    """Kill a rank while nothing is commanded: the others go on without control, and say why."""
    ended, run = killed(root, victim, "idle")
    for one in ended:
        assert not one.value["told"], one.value
        # People hear of it once, from the lowest rank that is left.
        is_first = one.rank == (1 if victim == 0 else 0)
        assert ("Control is off" in one.stderr) == is_first, one.stderr
    must_be_whole(run)


def test_a_rank_killed_in_an_apply_is_named_with_the_true_count_and_the_run_is_whole(
    tmp_path: Path,
) -> None:
    check_kill_in_apply(tmp_path, seed=5)


@pytest.mark.parametrize("victim", [0, 2])
def test_a_rank_killed_while_idle_turns_control_off_on_the_others_within_seconds(
    tmp_path: Path, victim: int
) -> None:
    check_kill_while_idle(tmp_path, victim)
