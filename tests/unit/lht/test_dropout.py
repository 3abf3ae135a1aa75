"""dropout: every dropout that can be reached, counted and named; none is no success."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import launchhelm.torch as lht
from launchhelm.torch._controls import NotEffective
from launchhelm.torch._dropout import Dropout, Sites
from tests.support.one_rank import commanded, effects

KINDS = [
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
]


class Drops(nn.Module):
    """A module of the script's own, with a probability under another name."""

    def __init__(self) -> None:
        super().__init__()
        self.rate = 0.3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x, self.rate, self.training)


def control(model: Any) -> Dropout:
    sites = Sites()
    sites.watch(model)
    return Dropout(sites)


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[lht.Trainer]:
    with lht.init("dropout", state_dir=tmp_path) as made:
        yield made


def test_every_standard_class_is_reached_counted_and_named() -> None:
    model = nn.Sequential(*(kind(0.1) for kind in KINDS), nn.Dropout(0.0))
    given = control(model)
    assert given.problem({"p": 0.25}) == ""
    assert given.apply({"p": 0.25}) == {
        "modules": 7,
        "p": 0.25,
        "kinds": {kind.__name__: 1 + (kind is nn.Dropout) for kind in KINDS},
        "names": [str(index) for index in range(7)],
    }
    assert [each.p for each in model] == [0.25] * 7
    assert given.values() == {"dropout": 0.25}


def test_a_module_that_came_later_is_reached_too() -> None:
    model = nn.Sequential(nn.Dropout(0.1))
    given = control(model)
    model.append(nn.Dropout(0.2))
    assert given.problem({"p": 0.5}) == ""
    assert given.apply({"p": 0.5})["modules"] == 2


def test_modules_inside_wrappers_and_layers_are_reached() -> None:
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1)
    given = control(nn.DataParallel(torch.compile(layer, backend="eager")))
    result = given.apply({"p": 0.5})
    assert result["modules"] == 3
    # Attention calls torch.nn.functional.dropout with a number of its own.
    assert (layer.dropout.p, layer.dropout1.p, layer.self_attn.dropout) == (0.5, 0.5, 0.1)


def test_with_skip_zero_what_does_not_drop_by_design_is_left_alone() -> None:
    model = nn.Sequential(nn.Dropout(0.1), nn.Dropout(0.0))
    given = control(model)
    snapshot = given.snapshot()
    assert given.apply({"p": 0.4, "skip_zero": True})["modules"] == 1
    assert given.values() == {"dropout": "0.0, 0.4"}
    assert given.values_of(snapshot) == {"dropout": "0.0, 0.1"}
    given.restore(snapshot)
    assert [each.p for each in model] == [0.1, 0.0]


def test_modes_are_kept_and_the_next_batch_drops_at_the_new_rate() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Dropout(0.0), nn.Dropout(0.0))
    model[1].eval()
    control(model).apply({"p": 0.75})
    assert [each.training for each in model] == [True, False]
    dropped = float((model(torch.ones(100_000)) == 0).float().mean())
    assert dropped == pytest.approx(0.75, abs=0.01)


@pytest.mark.parametrize("p", [1, 1.0, -0.1, 1.5, "0.1", True, None, float("nan")])
def test_what_is_no_probability_below_1_is_refused(p: Any) -> None:
    given = control(nn.Dropout(0.1))
    assert given.problem({"p": p})
    assert given.problem({})
    assert given.values() == {"dropout": 0.1}


@pytest.mark.parametrize(
    ("model", "payload"),
    [
        (Drops(), {"p": 0.1}),
        (nn.Linear(1, 1), {"p": 0.1}),
        (nn.Dropout(0.0), {"p": 0.1, "skip_zero": True}),
        (None, {"p": 0.1}),
    ],
)
def test_a_model_with_nothing_to_reach_is_no_target(model: Any, payload: dict[str, Any]) -> None:
    given = control(model)
    assert "No target: " in given.problem(payload)
    assert "register_dropout" in given.problem(payload)


def test_no_target_is_a_code_of_its_own(trainer: lht.Trainer) -> None:
    trainer.watch(Drops(), torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1))
    outcome = commanded(trainer, "dropout", {"p": 0.1})
    assert (outcome.state, outcome.code) == ("rejected", "no_target")
    wrong = commanded(trainer, "dropout", {"p": 1})
    assert (wrong.state, wrong.code) == ("rejected", "local_validation")


def test_what_the_script_registers_is_reached(trainer: lht.Trainer) -> None:
    drops = Drops()
    trainer.watch(drops, torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1))
    trainer.register_dropout(
        "block", get=lambda: drops.rate, set=lambda p: setattr(drops, "rate", p)
    )
    outcome = commanded(trainer, "dropout", {"p": 0.5})
    assert outcome.changes == {"dropout": {"old": 0.3, "new": 0.5}}
    assert outcome.result is not None
    assert outcome.result["kinds"] == {"registered": 1} and outcome.result["names"] == ["block"]
    assert drops.rate == 0.5


@pytest.mark.parametrize(
    "wrong", [{"name": 1}, {"get": 0.1}, {"set": None}], ids=["name", "get", "set"]
)
def test_wrong_arguments_of_register_dropout_raise_at_once(
    wrong: dict[str, Any], trainer: lht.Trainer
) -> None:
    arguments: dict[str, Any] = {"name": "x", "get": float, "set": float, **wrong}
    with pytest.raises(TypeError):
        trainer.register_dropout(arguments.pop("name"), **arguments)


def test_a_setter_that_does_not_take_is_an_error_and_all_is_taken_back() -> None:
    module = nn.Dropout(0.1)
    sites = Sites()
    sites.watch(module)
    sites.register("deaf", lambda: 0.2, lambda p: None)
    given = Dropout(sites)
    snapshot = given.snapshot()
    with pytest.raises(NotEffective, match="p of deaf"):
        given.apply({"p": 0.5})
    given.restore(snapshot)
    assert module.p == 0.1


def test_a_script_that_sets_p_itself_is_noticed(trainer: lht.Trainer) -> None:
    module = nn.Dropout(0.1)
    trainer.watch(module, torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1))

    def train() -> None:
        module.p = 0.1

    commanded(trainer, "dropout", {"p": 0.5}, train=train)
    train()
    trainer.step()
    assert "the script writes it as well" in effects(trainer)[0]["not_effective"]
