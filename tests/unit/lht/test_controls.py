"""Payloads and schemas of all controls; lr: judged before anything changes, restored exactly."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR, StepLR

from launchhelm.controls import schema
from launchhelm.torch._built_in import KNOWN_CONTROLS, BuiltIn
from launchhelm.torch._controls import Control, canonical, capability
from launchhelm.torch._learning_rate import LearningRate
from launchhelm.torch._plant import Plant
from launchhelm.torch._schedulers import Rates
from launchhelm.torch._tunables import Tunable, TunableControl

VECTORS = json.loads(
    (Path(__file__).parents[2] / "contract/vectors/torch.json").read_text(encoding="utf-8")
)["cases"]


def optimizer(*rates: float) -> SGD:
    return SGD([{"params": [torch.nn.Parameter(torch.zeros(2))], "lr": rate} for rate in rates])


def lr_control(*rates: float) -> LearningRate:
    return LearningRate(Rates(optimizer(*rates)))


def scheduled_control(*rates: float) -> LearningRate:
    given = optimizer(*rates)
    return LearningRate(Rates(given, StepLR(given, 5)))


def vectors(function: str, **wanted: Any) -> list[Any]:
    return [
        pytest.param(case, id=case["id"])
        for case in VECTORS
        if case["function"] == function
        and all(case["input"].get(key) == value for key, value in wanted.items())
    ]


def made(name: str, group_count: int) -> Control:
    """Make a built-in control for a small model."""
    given = optimizer(*[0.1] * group_count)
    offered: dict[str, Control] = {}
    built_in = BuiltIn(
        offer=lambda control: offered.update({control.name: control}),
        withdraw=lambda name: None,
        limit=None,
        world_size=1,
        log=lambda values: None,
        notice=lambda text: None,
        save=lambda: None,
    )
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.1))
    built_in.watch(model, given, None, KNOWN_CONTROLS, dict)
    return offered[name]


def of_controls(function: str) -> list[Any]:
    """Vectors of one function, without those of the control that is to come."""
    return [it for it in vectors(function) if it.values[0]["input"]["control"] != "checkpoint"]


@pytest.mark.parametrize("case", of_controls("torch_control_payload"))
def test_payloads_are_judged_as_hosted_launchhelm_judges_them(case: Any) -> None:
    given = case["input"]
    control = made(given["control"], given["param_groups"])
    problem = control.problem(json.loads(given["payload_json_text"]))
    assert ("rejected" if problem else "accepted") == case["expected"], problem


OURS = {
    "lr": {"keep_ratios", "scales", "lrs"},
    "weight_decay": {"scale", "skip_zero", "values"},
    "dropout": {"skip_zero"},
}
"""Fields that the hosted controls do not have."""


@pytest.mark.parametrize("case", of_controls("torch_control_schema"))
def test_schemas_are_the_hosted_ones_and_our_optional_fields(case: Any) -> None:
    name = case["input"]["control"]
    ours = json.loads(json.dumps(made(name, 1).input_schema))
    fields = ours["root"]["fields"]
    added = [each for each in fields if each["name"] in OURS.get(name, ())]
    assert {each["name"] for each in added} == OURS.get(name, set())
    assert all(each["optional"] for each in added)
    ours["root"]["fields"] = [each for each in fields if each not in added]
    if name == "weight_decay":
        # Where scale stands, value does not.
        assert ours["root"]["fields"][0].pop("optional") is True
    assert ours == case["expected"]


@pytest.mark.parametrize("case", vectors("tunable_schema"))
def test_schemas_of_tunables_are_the_hosted_ones(case: Any) -> None:
    given = case["input"]
    tunable = Tunable(
        "x",
        given["default"],
        minimum=given["minimum"],
        maximum=given["maximum"],
        choices=given["choices"],
    )
    expected = case["expected"]
    if type(given["default"]) is int and given["maximum"] is not None:
        # Ours tells an integer's maximum too, so that whoever asks before sending learns it.
        node = expected["root"]["fields"][0]["type"]
        node.setdefault("bounds", {})["max"] = str(given["maximum"])
    assert TunableControl(tunable).input_schema == expected


@pytest.mark.parametrize(
    "payload",
    [
        {"scale": math.nan},
        {"scale": math.inf},
        {"lr": math.inf},
        {"lr": math.nan},
        {"lr": -1e-3},
        {"lr": 0},
        {"lr": "1e-3"},
        {"scale": True},
        {"lr": True},
        {"lr": None},
        {"lr": 10**400},
        {"scale": 1e308, "lr": 1.0},
        {"scale": 0.5, "group": -1},
        {"scale": 0.5, "group": 2},
        {"scale": 0.5, "group": 0.0},
        {"scale": 0.5, "group": True},
        {"scale": 0.5, "unknown": 1},
        {"lr": 0.5, "group": 1, "keep_ratios": True},
        [],
        None,
    ],
)
def test_a_bad_payload_is_refused_and_changes_nothing(payload: Any) -> None:
    given = optimizer(0.1, 0.2)
    control = LearningRate(Rates(given))
    before = canonical(control.state())
    assert control.problem(payload)
    assert canonical(control.state()) == before


def test_a_factor_that_would_overflow_or_vanish_is_refused() -> None:
    for control in (lr_control(0.1, 0.2), scheduled_control(0.1, 0.2)):
        before = canonical(control.state())
        payloads: list[dict[str, float]] = [{"scale": 1e300}, {"lr": 1e39}, {"scale": 1e-300}]
        for payload in payloads:
            assert "float32 cannot hold" in control.problem(payload)
        assert canonical(control.state()) == before
        assert control.problem({"lr": 1e30}) == ""


def test_a_multiplier_that_float32_cannot_hold_is_refused_although_the_rate_fits() -> None:
    control = scheduled_control(1e-30)
    assert "the multiplier 9.99" in control.problem({"lr": 1e10})
    assert lr_control(1e-30).problem({"lr": 1e10}) == ""


@pytest.mark.parametrize("payload", [{"scale": 0}, {"lr": 0.0}, {"lr": -1}])
def test_a_value_that_is_not_above_0_is_refused_in_these_words(payload: Any) -> None:
    assert "above 0" in lr_control(0.1).problem(payload)


def test_without_a_group_every_group_changes_as_hosted() -> None:
    control = lr_control(0.1, 0.2)
    assert control.apply({"scale": 0.5}) == {"lr": [0.05, 0.1]}
    assert control.apply({"lr": 0.3}) == {"lr": [0.3, 0.3]}
    assert control.apply({"lr": 0.7, "group": 1}) == {"lr": [0.3, 0.7]}


def test_keep_ratios_sets_the_first_group_and_scales_the_others() -> None:
    control = lr_control(1e-3, 1e-3, 1e-4)
    assert control.problem({"lr": 5e-4, "keep_ratios": True}) == ""
    result = control.apply({"lr": 5e-4, "keep_ratios": True})
    assert result["lr"] == pytest.approx([5e-4, 5e-4, 5e-5])


def test_keep_ratios_goes_by_the_base_rates_while_all_rates_are_zero() -> None:
    given = optimizer(0.1, 0.01)
    scheduler = LambdaLR(given, lambda step: step / 10)
    control = LearningRate(Rates(given, scheduler))
    assert control.apply({"lr": 0.2, "keep_ratios": True})["lr"] == pytest.approx([0.2, 0.02])
    given.step()
    scheduler.step()
    assert [group["lr"] for group in given.param_groups] == pytest.approx([0.02, 0.002])


def test_keep_ratios_without_any_rate_to_compare_is_refused() -> None:
    assert "keep_ratios" in lr_control(0.0, 0.1).problem({"lr": 0.1, "keep_ratios": True})


def test_the_result_says_which_groups_hold_until_the_schedule_moves() -> None:
    given = optimizer(0.0, 0.1)
    control = LearningRate(Rates(given, LambdaLR(given, lambda step: 1.0)))
    assert control.apply({"lr": 0.3}) == {"lr": [0.3, 0.3], "held_until_the_schedule_moves": [0]}


def test_a_plant_rolls_back_to_the_last_bit_and_tells_old_and_new() -> None:
    given = optimizer(0.1, 1 / 3)
    scheduler = StepLR(given, 2, gamma=0.7)
    plant = Plant()
    plant.add(LearningRate(Rates(given, scheduler)))
    tunable = Tunable("depth", 3, minimum=1, maximum=9)
    plant.add(TunableControl(tunable))
    for name, payload in (("lr", {"scale": 1 / 7}), ("set_depth", {"value": 4})):
        assert plant.check(name, payload, 1) is None
        before = plant.read_back(name, payload)
        snapshot = plant.snapshot(name, payload)
        plant.apply(name, payload, 1)
        after = plant.read_back(name, payload)
        changes = plant.changes(name, snapshot)
        word = "lr" if name == "lr" else name
        assert changes[word]["new"] == plant.values()[word]
        assert changes[word]["old"] != changes[word]["new"]
        plant.restore(snapshot)
        assert plant.read_back(name, payload) == before != after
        assert plant.changes(name, snapshot)[word]["old"] == plant.values()[word]


def test_a_plant_refuses_a_control_it_does_not_have() -> None:
    assert "no control" in (Plant().check("lr", {"scale": 1}, 1) or "")


def test_capabilities_are_semantic_schemas_at_the_training_safe_point() -> None:
    described = capability(lr_control(0.1))
    schema.require(described.input_schema)
    assert (described.name, described.provider, described.version) == (
        "lr",
        "launchhelm.torch",
        "1.0.0",
    )
    assert described.safe_points == ("lht",)
