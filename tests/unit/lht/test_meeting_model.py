"""Ranks that meet in every order, late, or not at all, decide alike whether control is on."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from launchhelm.torch import _board, _collective, _doubt, _gloo, _peers
from launchhelm.torch._collective import Links
from tests.support.interleaved import Keys, Moments, Stopped, World, interleavings

Body = Callable[[World], Any]


def use(world: World) -> None:
    """Let the modules of the exchange see the store and the time of this world."""
    moments = Moments(lambda: world)
    for module in (_board, _collective, _peers, _doubt):
        module.time = moments  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def worlds(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (_board, _collective, _peers, _doubt):
        monkeypatch.setattr(module, "time", time)
    for module in (_board, _collective, _gloo):
        monkeypatch.setattr(module, "prefixed", lambda prefix, store: store.under(prefix))


def connecting(rank: int, size: int, *, fails: bool = False) -> Body:
    """Return what one rank does in `init`; it may be unable to make its group."""

    def connect(world: World) -> tuple[bool, str]:
        links = Links(rank, size, Keys(world), "trainer", 30.0)
        links._make_groups = lambda agree_s: "no interface" if fails else ""  # type: ignore[method-assign]
        links.connect(60.0)
        return links.on, links.why

    return connect


def explore(
    size: int, *, switches: int, ends: int = 0, kills: int = 0, fails: int = -1, stale: bool = False
) -> int:
    """Let ranks meet in every order; return how many there were."""

    def prepare(world: World) -> None:
        use(world)
        if stale:
            # What an earlier incarnation left in the store: it had met, and control was on.
            keys = Keys(world).under("trainer")
            keys.set("challenge", "old")
            keys.set("end/old", "go")
            answers = ", ".join(['{"host": "h", "token": "t"}'] * size)
            keys.set("go/old", f'{{"word": "go", "answers": [{answers}]}}')

    bodies = [connecting(rank, size, fails=rank == fails) for rank in range(size)]
    count = 0
    for turns in interleavings(bodies, prepare, switches=switches, ends=ends, kills=kills):
        count += 1
        lost = [turn.error for turn in turns if not isinstance(turn.error, Stopped | None)]
        assert not lost, lost
        alive = [turn.result for turn in turns if turn.error is None]
        assert len({on for on, _ in alive}) <= 1, f"they decided differently: {alive}"
        assert all(on or why for on, why in alive), alive
        if not (ends or kills or fails >= 0):
            assert all(on for on, _ in alive), f"control is off for nothing: {alive}"
        if fails >= 0 and not (ends or kills):
            assert not any(on for on, _ in alive)
            assert all(f"rank {fails}: no interface" in why for _, why in alive), alive
    return count


CASES = {
    "in any order": {"size": 2, "switches": 2},
    "in a store that remembers": {"size": 2, "switches": 1, "stale": True},
    "one cannot make its group": {"size": 2, "switches": 1, "fails": 1},
    "one comes late": {"size": 2, "switches": 1, "ends": 1},
    "one is killed": {"size": 2, "switches": 0, "kills": 1, "ends": 1},
}

LARGE_CASES = {
    "one comes very late": {"size": 2, "switches": 2, "ends": 2},
    "in a store that remembers, and one comes late": {
        "size": 2, "switches": 1, "ends": 2, "stale": True,
    },
    "three in any order": {"size": 3, "switches": 1},
    "three, one comes late": {"size": 3, "switches": 0, "ends": 1},
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_ranks_that_meet_in_any_order_decide_alike(name: str) -> None:
    explore_aloud(name, CASES[name])


def explore_aloud(name: str, case: dict[str, Any]) -> None:
    """Explore a case, and print how many orders it has."""
    began = time.monotonic()
    count = explore(**case)
    print(f"{name}: {count:,} orders, {time.monotonic() - began:.1f} s")
    assert count > 1


def decides_by_itself(store: Any, key: str, value: str) -> str:
    """Write a key whatever it holds: the last writer's word counts, for the last."""
    store.set(key, value)
    return value


def test_ranks_that_do_not_take_the_first_word_are_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_board, "_decide", decides_by_itself)
    with pytest.raises(AssertionError, match="differently"):
        explore(2, switches=1, ends=2)
