"""weight_decay: set or multiplied per group, read back where it acts, looked at again."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import SGD, Adam, Optimizer, Rprop

import launchhelm.torch as lht
from launchhelm.torch._controls import NotEffective, canonical
from launchhelm.torch._groups import Groups
from launchhelm.torch._weight_decay import WeightDecay
from tests.support.one_rank import commanded, effects


def optimizer(*decays: float, kind: type[Any] = SGD) -> Any:
    return kind(
        [{"params": [torch.nn.Parameter(torch.ones(2))], "weight_decay": each} for each in decays],
        lr=0.1,
    )


def control(*decays: float) -> WeightDecay:
    return WeightDecay(Groups(optimizer(*decays)))


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[lht.Trainer]:
    with lht.init("decay", state_dir=tmp_path) as made:
        yield made


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        ({"value": 0.05}, [0.05, 0.05, 0.05]),
        ({"value": 0.05, "group": 1}, [0.1, 0.05, 0.2]),
        ({"value": 0.05, "skip_zero": True}, [0.05, 0.0, 0.05]),
        ({"value": 0}, [0.0, 0.0, 0.0]),
        ({"scale": 0.5}, [0.05, 0.0, 0.1]),
        ({"scale": 2, "group": 2}, [0.1, 0.0, 0.4]),
    ],
)
def test_the_decay_of_every_group_or_of_one_is_set_or_multiplied(
    payload: dict[str, Any], expected: list[float]
) -> None:
    given = control(0.1, 0.0, 0.2)
    assert given.problem(payload) == ""
    before = canonical(given.state())
    snapshot = given.snapshot()
    assert given.apply(payload) == given.values() == {"weight_decay": expected}
    assert given.values_of(snapshot) == {"weight_decay": [0.1, 0.0, 0.2]}
    given.restore(snapshot)
    assert canonical(given.state()) == before


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"value": 0.1, "scale": 0.5},
        {"value": -0.1},
        {"value": math.nan},
        {"value": math.inf},
        {"value": 1e39},
        {"value": 10**400},
        {"value": 1e-60},
        {"values": [0.1, 1e-60, 0.2]},
        {"scale": 1e-60},
        {"value": "0.1"},
        {"value": True},
        {"scale": -1},
        {"scale": 3e38},
        {"value": 0.1, "group": 3},
        {"value": 0.1, "group": -1},
        {"value": 0.1, "group": 1, "skip_zero": True},
        {"value": 0.1, "keep_ratios": True},
        None,
    ],
)
def test_a_bad_payload_is_refused_and_changes_nothing(payload: Any) -> None:
    given = control(0.1, 0.0, 20.0)
    before = canonical(given.state())
    assert given.problem(payload)
    assert canonical(given.state()) == before


def test_an_optimizer_without_weight_decay_is_named() -> None:
    given = WeightDecay(Groups(Rprop([torch.nn.Parameter(torch.ones(2))])))
    assert "Rprop has no weight decay" in given.problem({"value": 0.1})
    assert given.values() == {} and given.values_of(given.snapshot()) == {}


def test_a_tensor_is_changed_in_place_and_keeps_its_type() -> None:
    held = torch.tensor(0.5)
    made = optimizer(0.1)
    made.param_groups[0]["weight_decay"] = held
    given = WeightDecay(Groups(made))
    snapshot = given.snapshot()
    given.apply({"value": 0.3})
    assert made.param_groups[0]["weight_decay"] is held and held.item() == pytest.approx(0.3)
    given.restore(snapshot)
    assert made.param_groups[0]["weight_decay"] is held and held.item() == 0.5


class Stubborn(dict[str, Any]):
    """A group that takes no weight decay."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name != "weight_decay":
            super().__setitem__(name, value)


def test_a_value_that_is_not_read_back_is_an_error_and_can_be_taken_back() -> None:
    made = optimizer(0.1, 0.2)
    made.param_groups[1] = Stubborn(made.param_groups[1])
    given = WeightDecay(Groups(made))
    snapshot = given.snapshot()
    with pytest.raises(NotEffective, match=r"group 1 was set to 0\.3, and is 0\.2"):
        given.apply({"value": 0.3})
    given.restore(snapshot)
    assert given.values() == {"weight_decay": [0.1, 0.2]}


@pytest.mark.parametrize("kind", [SGD, Adam])
def test_the_next_update_decays_by_the_commanded_value(
    kind: type[Optimizer], trainer: lht.Trainer
) -> None:
    made, twin = optimizer(0.0, kind=kind), optimizer(0.3, kind=kind)
    trainer.watch(torch.nn.Linear(1, 1), made)
    keys = made.state_dict()["param_groups"][0].keys()
    outcome = commanded(trainer, "weight_decay", {"value": 0.3})
    assert outcome.changes == {"weight_decay": {"old": [0.0], "new": [0.3]}}
    assert outcome.result == {"weight_decay": [0.3]}
    for each in (made, twin):
        each.param_groups[0]["params"][0].grad = torch.ones(2)
        each.step()
    assert torch.equal(made.param_groups[0]["params"][0], twin.param_groups[0]["params"][0])
    assert made.state_dict()["param_groups"][0].keys() == keys
    trainer.step()
    (effect,) = effects(trainer)
    assert effect["values"] == {"weight_decay": [0.3]} and "not_effective" not in effect


def test_a_schedule_of_the_script_that_overwrites_it_is_noticed_and_told(
    trainer: lht.Trainer, caplog: pytest.LogCaptureFixture
) -> None:
    made = optimizer(0.1, 0.2)
    trainer.watch(torch.nn.Linear(1, 1), made)

    def train() -> None:
        made.param_groups[1]["weight_decay"] = 0.2  # As a cosine of the script would.

    assert commanded(trainer, "weight_decay", {"value": 0.5}, train=train).state == "applied"
    train()
    trainer.step()
    (effect,) = effects(trainer)
    assert effect["values"] == {"weight_decay": [0.5, 0.2]}
    assert "0.2 in group 1" in effect["not_effective"]
    assert [each.message for each in caplog.records if "0.2 in group 1" in each.message]
