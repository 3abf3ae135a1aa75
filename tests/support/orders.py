"""What may be commanded of `noting_job`, rightly and wrongly, and what must become of it. Pure.

orders(["lr", "set_gain"], 25, seed=1)
order.effect(held)                          # what each rank must hold afterwards
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

UNLUCKY = 0.7
"""A learning rate that the last rank accepts and cannot set."""

Held = Mapping[str, Any]
"""What a rank holds, as the job notes it: the value of each control by its name."""

Effect = Callable[[Held], dict[str, Any]]


@dataclass(frozen=True)
class Order:
    """One command and its end.

    Args:
        name: Of the control.
        given: Its input.
        end: "refused" by the server at once; "applied", "rejected" or "outcome_unknown" by the run.
        code: Why, where it is not applied.
        effect: What of the held values is another one afterwards, and which.
        local: Whether one process acts alone.
        then: What must be ordered next.
    """

    name: str
    given: Mapping[str, Any]
    end: str = "applied"
    code: str = ""
    effect: Effect = lambda held: {}
    local: bool = False
    then: tuple[Order, ...] = ()


PARTIAL_FAILURE = Order("lr", {"lr": UNLUCKY, "group": 0}, "outcome_unknown", "DivergedStateError")

Dice = random.Random
Kind = Callable[[Dice], Order]
"""Makes an order of one kind."""


def orders(names: Sequence[str], count: int, *, seed: int) -> list[Order]:
    """Return orders for these controls, in a random sequence.

    Each control is rightly ordered once at least; as far as the count reaches, every kind of order
    there is comes once, and then any again.

    Raises:
        KeyError: Nothing here knows what the control does.
    """
    dice = random.Random(seed)
    chosen = [KINDS[name][0] for name in names]
    others = [kind for name in names for kind in KINDS[name][1:]]
    dice.shuffle(others)
    chosen += others[: max(0, count - len(chosen))]
    chosen += dice.choices(chosen, k=max(0, count - len(chosen)))
    dice.shuffle(chosen)
    # A loop that was told to stop can be told everything but to pause.
    made = sorted((kind(dice) for kind in chosen), key=lambda order: order.name == "stop")
    return [each for order in made for each in (order, *order.then)]


def _refused(name: str, *inputs: Mapping[str, Any]) -> Kind:
    """Inputs that do not fit the schema: the server can tell, and the run never sees them."""
    return lambda dice: Order(name, dice.choice(inputs), "refused")


def _rejected(name: str, *inputs: Mapping[str, Any]) -> Kind:
    """Inputs that fit the schema, which cannot say all that is to be said."""
    return lambda dice: Order(name, dice.choice(inputs), "rejected", "local_validation")


def _value(name: str, *values: Any) -> Kind:
    """Another value of a tunable."""

    def kind(dice: Dice) -> Order:
        value = dice.choice(values)
        return Order(name, {"value": value}, effect=lambda held: {name: value})

    return kind


def _rates_scaled(dice: Dice) -> Order:
    scale = dice.choice([0.5, 0.9, 1.1, 2.0])
    return Order(
        "lr", {"scale": scale}, effect=lambda held: {"lr": [scale * r for r in held["lr"]]}
    )


def _rate_of_one_group(dice: Dice) -> Order:
    rate, group = round(dice.uniform(1e-3, 3e-2), 5), dice.randrange(2)
    return Order(
        "lr", {"lr": rate, "group": group}, effect=lambda held: _at(held, "lr", group, rate)
    )


def _rate_of_all(dice: Dice) -> Order:
    rate = round(dice.uniform(1e-3, 3e-2), 5)
    return Order("lr", {"lr": rate}, effect=lambda held: {"lr": [rate, rate]})


def _rates_in_proportion(dice: Dice) -> Order:
    rate = round(dice.uniform(1e-3, 3e-2), 5)

    def effect(held: Held) -> dict[str, Any]:
        return {"lr": [rate, rate * held["lr"][1] / held["lr"][0]]}

    return Order("lr", {"lr": rate, "keep_ratios": True}, effect=effect)


def _decay_of_one_group(dice: Dice) -> Order:
    value, group = round(dice.uniform(0.0, 0.3), 3), dice.randrange(2)
    return Order(
        "weight_decay",
        {"value": value, "group": group},
        effect=lambda held: _at(held, "weight_decay", group, value),
    )


def _clip(dice: Dice) -> Order:
    norm = dice.choice([0.5, 1.0, 2.5, None])
    return Order("grad_clip", {"max_norm": norm}, effect=lambda held: {"grad_clip": norm})


def _dropout(dice: Dice) -> Order:
    p = dice.choice([0.0, 0.1, 0.5])
    return Order("dropout", {"p": p}, effect=lambda held: {"dropout": p})


def _ping(dice: Dice) -> Order:
    return Order("ping", dice.choice([{}, {"echo": "ö"}]))


def _pause(dice: Dice) -> Order:
    return Order("pause", {}, effect=lambda held: {"paused": True}, then=(_resume(dice),))


def _resume(dice: Dice) -> Order:
    return Order("resume", {}, effect=lambda held: {"paused": False})


def _stop(dice: Dice) -> Order:
    return Order("stop", {}, effect=lambda held: {"stop_requested": True})


def _checkpoint(dice: Dice) -> Order:
    return Order("checkpoint", {})


def _eval(dice: Dice) -> Order:
    return Order("eval", {}, effect=lambda held: {"eval": held["eval"] + 1})


def _write(dice: Dice) -> Order:
    text, times = dice.choice(["ä", "\u2028", "x" * 500, ""]), dice.randrange(3)
    return Order(
        "write",
        {"text": text, "times": times},
        effect=lambda held: {"write": text * times},
        local=True,
    )


def _fail(dice: Dice) -> Order:
    given = {"text": "x", "times": -1}
    return Order("write", given, "outcome_unknown", "ValueError", local=True)


def _erase(dice: Dice) -> Order:
    return Order("erase", {}, effect=lambda held: {"write": ""}, local=True)


def _at(held: Held, name: str, index: int, value: float) -> dict[str, Any]:
    values = list(held[name])
    values[index] = value
    return {name: values}


KINDS: Mapping[str, Sequence[Kind]] = {
    # The first kind of each is one that is applied.
    "lr": (
        _rates_scaled,
        _rate_of_one_group,
        _rate_of_all,
        _rates_in_proportion,
        _rejected(
            "lr",
            {"scale": 0},
            {},
            {"scale": 0.5, "lr": 0.1},
            {"lr": 1e-60},
            {"scale": 2, "group": 2},
        ),
        _refused("lr", {"scale": -1}, {"lr": "0.1"}, {"lr": 0.1, "group": 0.5}, {"speed": 2}),
    ),
    "weight_decay": (
        _decay_of_one_group,
        _rejected("weight_decay", {"value": 0.1, "group": 2}, {}, {"value": 0.1, "scale": 2}),
        _refused("weight_decay", {"value": -0.1}),
    ),
    "grad_clip": (_clip, _rejected("grad_clip", {"max_norm": 0}, {"max_norm": -1.0})),
    "dropout": (
        _dropout,
        _rejected("dropout", {"p": 1}),
        _refused("dropout", {"p": 1.5}, {"p": True}),
    ),
    "ping": (_ping, _refused("ping", {"text": "x"})),
    "pause": (_pause, _refused("pause", {"for_s": 1})),
    "resume": (_resume,),
    "stop": (_stop,),
    "checkpoint": (_checkpoint, _refused("checkpoint", {"path": "x"})),
    "eval": (_eval, _refused("eval", {"p": 1})),
    "set_gain": (
        _value("set_gain", 0, 0.25, 1.0),
        _refused("set_gain", {"value": 1.5}, {"value": None}),
    ),
    "set_depth": (
        _value("set_depth", 1, 5, 9),
        _refused("set_depth", {"value": 10}, {"value": 2**40}, {"value": 2.5}, {"value": 0}),
    ),
    "set_mode": (_value("set_mode", "plain", "noisy"), _refused("set_mode", {"value": "loud"})),
    "set_mixed": (_value("set_mixed", True, False), _refused("set_mixed", {"value": 1})),
    "set_label": (_value("set_label", "", "ö\n", "b" * 300), _refused("set_label", {"value": 1})),
    "write": (_write, _fail, _refused("write", {"text": "x"}, {"text": 1, "times": 1})),
    "erase": (_erase, _refused("erase", {"text": "x"})),
}
