"""Whether ranks, run directory and server tell the same of the commands given to `noting_job`.

check(run, notes, [Given(order, told), ...])        # the last one is PARTIAL_FAILURE
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.journals import final_outcomes
from tests.support.orders import Held, Order


@dataclass(frozen=True)
class Given:
    """An order that was given, and the command as the server tells it now that it has ended."""

    order: Order
    told: dict[str, Any]


@dataclass(frozen=True)
class Rank:
    """What a rank wrote down: what it held after each step, and its last words."""

    held: dict[int, Held]
    last: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> Rank:
        """Read the notes of one rank that ended by itself."""
        *lines, last = map(json.loads, path.read_text("utf-8").splitlines())
        return cls({line["step"]: line for line in lines}, last)


def check(run: Path, notes: Path, given: Sequence[Given]) -> int:
    """Assert that all agree, and return how many steps were made."""
    ranks = [Rank.read(notes / str(rank)) for rank in range(len(list(notes.iterdir())))]
    *obeyed, failed = given
    check_ledger(run, given, len(ranks))
    check_steps(ranks)
    check_effects(ranks[0].held, obeyed)
    check_partial_failure(ranks, failed)
    return len(ranks[0].held)


def check_ledger(run: Path, given: Sequence[Given], size: int) -> None:
    """The run directory has one outcome of each command, which the server tells unchanged."""
    recorded = final_outcomes(run)
    assert set(recorded) == {it.told["id"] for it in given}
    for it in given:
        (outcome,) = recorded[it.told["id"]]
        assert (outcome.state, outcome.code) == (it.told["execution"], it.told["failure_code"])
        assert it.told["decided_by"] == "participant"
        count = None
        if outcome.of is not None:
            count = {"count": outcome.applied_on or 0, "of": outcome.of}
        assert it.told.get("applied_on") == count, it
        if outcome.state != "applied":
            assert (it.told["result"], it.told["applied_at"]) == (None, []), it
            continue
        # The handler of a script's own command runs on one process, which is all that it knows of.
        assert count == ({"count": 1, "of": 1} if it.order.local else {"count": size, "of": size})
        sides = {
            side: {name: change[side] for name, change in outcome.changes.items()}
            for side in ("old", "new")
            if outcome.changes
        }
        assert it.told["result"] == {**outcome.result, **sides}, it
        assert step_of(it) == outcome.applied_at["step"]


def check_steps(ranks: Sequence[Rank]) -> None:
    """All ranks made the same steps and held the same after each of them, to the last bit."""
    first = ranks[0].held
    for number, rank in enumerate(ranks):
        assert list(rank.held) == list(first), f"rank {number} made other steps"
        for step, held in rank.held.items():
            # Rank 0 alone runs what the script itself offers.
            expected = first[step] if number == 0 else {**first[step], "write": ""}
            assert held == expected, f"rank {number} differs after step {step}"


def check_effects(held: dict[int, Held], given: Sequence[Given]) -> None:
    """Values change at the steps that the server names, to what it says, and nowhere else."""
    applied: dict[int, list[Given]] = {}
    for it in given:
        if it.told["execution"] == "applied":
            applied.setdefault(step_of(it), []).append(it)
    expected = values(held[min(held)])
    for step, now in held.items():
        for it in applied.pop(step, []):
            old, new = (it.told["result"].get(side, {}) for side in ("old", "new"))
            assert old == {name: expected[name] for name in old}, it
            expected.update(it.order.effect(expected))
            for name, value in new.items():
                assert value == pytest.approx(expected[name]), it
            expected.update(new)
        assert values(now) == expected, f"after step {step}"
    assert not applied, "applied at steps that nobody made"


def check_partial_failure(ranks: Sequence[Rank], failed: Given) -> None:
    """The server says on how many; every rank raises the error and holds what it held before."""
    size = len(ranks)
    assert failed.told["applied_on"] == {"count": size - 1, "of": size}
    failures = [[size - 1, "RuntimeError: this rank had bad luck"]]
    for number, rank in enumerate(ranks):
        diverged = {"applied_on": size - 1, "of": size, "failures": failures}
        assert rank.last["diverged"] == diverged, f"rank {number}"
        assert values(rank.last["held"]) == values(rank.held[max(rank.held)]), f"rank {number}"


def step_of(given: Given) -> int:
    """Return the step at which the server says that a command was applied."""
    ((axis, value),) = [(place["axis"], place["value"]) for place in given.told["applied_at"]]
    assert axis == "step"
    return int(value)


def values(held: Held) -> dict[str, Any]:
    """Return what only commands change."""
    return {name: value for name, value in held.items() if name not in ("step", "weights")}
