"""The control exchange at full counts: `make stress` runs these."""

from __future__ import annotations

import random
import signal
import time
from typing import Any

import pytest

from launchhelm.torch._errors import DivergedStateError
from tests.distributed.test_exchange import Loop, check_many, check_teardown, diverged, fields
from tests.support.ranks import Ranks
from tests.support.scripted import command
from tests.unit.lht import test_exchange_model, test_meeting_model

pytestmark = pytest.mark.stress
worlds = test_meeting_model.worlds


@pytest.mark.parametrize("name", test_exchange_model.LARGE_WORLDS)
def test_larger_worlds_neither_dead_lock_nor_hide_a_disagreement(name: str) -> None:
    test_exchange_model.explore_aloud(name, test_exchange_model.LARGE_WORLDS[name])


@pytest.mark.usefixtures("worlds")
@pytest.mark.parametrize("name", test_meeting_model.LARGE_CASES)
def test_more_orders_in_which_ranks_meet_end_alike(name: str) -> None:
    test_meeting_model.explore_aloud(name, test_meeting_model.LARGE_CASES[name])


@pytest.mark.parametrize("seed", range(5))
def test_a_hundred_commands_leave_four_ranks_alike_at_every_step(seed: int) -> None:
    check_many(100, 8000, seed)


@pytest.mark.parametrize("round_", range(10))
@pytest.mark.parametrize("order", ["finish first", "destroy first", "never destroyed"])
@pytest.mark.parametrize("stays", [True, False])
def test_teardown_in_any_order_many_times(order: str, stays: bool, round_: int) -> None:
    check_teardown(order, stays=stays)


def _killed_any_time(rank: int, size: int, tell: Any, seed: int, victim: int) -> Any:
    chance = random.Random(seed)
    commands = [command("lr", 10 * index, value=chance.random()) for index in range(1, 40)]
    loop = Loop([fields(one) for one in commands])
    loop.exchange._pace.target_s = 0.01
    began = 0.0
    step = 0
    try:
        while loop.exchange.status.on:
            step += 1
            loop.step(step)
            if step == 60:
                tell("ready")
            if step == 60 and rank == victim:
                loop.until(lambda: False, 61, limit_s=60.0)
            began = time.monotonic()
    except DivergedStateError as error:
        loop.exchange.finish()
        took_s = time.monotonic() - began
        return loop.report(error=diverged(error), took_s=took_s, values=loop.plant.held)
    took_s = time.monotonic() - began
    loop.exchange.finish()
    return loop.report(took_s=took_s, values=loop.plant.held)


@pytest.mark.parametrize("seed", range(50))
def test_a_rank_killed_at_a_random_moment_is_named_and_nothing_disagrees_silently(
    seed: int,
) -> None:
    chance = random.Random(1000 + seed)
    victim = chance.randrange(4)
    with Ranks(_killed_any_time, 4, seed=seed, victim=victim) as ranks:
        for rank in range(4):
            ranks.wait_for(rank, "ready")
        time.sleep(chance.random() * 0.2)
        ranks.kill(victim)
        survivors = [rank for rank in range(4) if rank != victim]
        ended = ranks.wait(*survivors)
    for one in ended:
        assert one.code == 0, one.stderr
        assert one.value["took_s"] < 10
        told = "error" in one.value or any(
            f"rank {victim}" in notice for notice in one.value["notices"]
        )
        assert told, f"seed {seed}: rank {one.rank}: {one.value['notices']}"
    calm = [one for one in ended if "error" not in one.value]
    for step in set.intersection(*(set(one.value["seen"]) for one in calm)) if calm else ():
        assert len({tuple(one.value["seen"][step]) for one in calm}) == 1, f"seed {seed}"
    if victim != 0:
        taken = [outcome["cmd"] for outcome in ended[0].value["outcomes"]]
        assert len(taken) == len(set(taken))


def _stopped_too_long(rank: int, size: int, tell: Any, seed: int) -> Any:
    """Train under commands, with a timeout of five seconds, until control is lost."""
    chance = random.Random(seed)
    commands = [command("lr", 10 * index, value=chance.random()) for index in range(1, 400)]
    loop = Loop([fields(one) for one in commands], timeout_s=5.0)
    loop.exchange._pace.target_s = 0.01
    error = None
    step = 0
    deadline = time.monotonic() + 60.0
    try:
        while loop.exchange.status.on and time.monotonic() < deadline:
            step += 1
            loop.step(step)
            if step == 60:
                tell("ready")
    except DivergedStateError as diverging:
        error = diverged(diverging, at=step)
    values = dict(loop.plant.held)
    loop.exchange.finish()
    return loop.report(error=error, values=values)


@pytest.mark.parametrize("seed", range(10))
def test_a_rank_stopped_for_longer_than_the_timeout_leaves_no_silent_disagreement(
    seed: int,
) -> None:
    chance = random.Random(seed)
    # A stopped rank 0 also stops the store that the others would look at, until it goes on.
    victim = chance.randrange(1, 3)
    with Ranks(_stopped_too_long, 3, seed=seed) as ranks:
        for rank in range(3):
            ranks.wait_for(rank, "ready")
        time.sleep(chance.random() * 0.2)
        ranks.kill(victim, signal.SIGSTOP)
        ranks.wait(*({0, 1, 2} - {victim}))
        ranks.kill(victim, signal.SIGCONT)
        ended = ranks.wait()
    for one in ended:
        assert one.code == 0, one.stderr
        told = one.value["error"] or one.value["notices"]
        assert told, f"seed {seed}: rank {one.rank} heard of nothing"
        if one.rank != victim:
            assert f"rank {victim}" in str(told), f"seed {seed}: rank {one.rank}: {told}"
    # Who raised nothing holds what all others that raised nothing hold.
    calm = [one for one in ended if not one.value["error"]]
    for step in set.intersection(*(set(one.value["seen"]) for one in calm)) if calm else ():
        assert len({tuple(one.value["seen"][step]) for one in calm}) == 1, f"seed {seed}"
