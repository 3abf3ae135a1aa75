"""eval: the script's evaluation runs, its values are logged, and the training notices nothing."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn

import launchhelm.torch as lht
from launchhelm.torch._evaluation import Evaluation, undisturbed
from tests.support.journals import records, series
from tests.support.one_rank import commanded, effects, on_disk


class Net(nn.Module):
    """Some modules are frozen in eval mode, as in fine-tuning."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.frozen = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5))
        self.drop = nn.Dropout(0.5)
        self.frozen.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.drop(self.frozen(self.norm(self.first(x))))
        return made


def evaluation(found: Any, model: Any = None) -> tuple[Evaluation, dict[str, Any], list[str]]:
    logged: dict[str, Any] = {}
    told: list[str] = []
    return Evaluation(lambda: found, model, logged.update, told.append), logged, told


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[lht.Trainer]:
    with lht.init("eval", state_dir=tmp_path) as made:
        yield made


def losses(trainer: lht.Trainer, count: int, *, evaluates_at: int | None) -> list[float]:
    """Train with every source of randomness; evaluate wildly on the way, if at all."""
    torch.manual_seed(0)
    random.seed(0)
    numpy.random.seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def evaluate() -> Mapping[str, Any]:
        net.eval()
        torch.manual_seed(7)
        random.seed(7)
        numpy.random.seed(7)
        loss = net(torch.randn(8, 4)).square().mean()
        loss.backward()  # Nobody should, but it must not reach the training.
        torch.set_grad_enabled(False)
        return {"loss": float(loss)}

    trainer.watch(net, optimizer, eval_fn=evaluate)
    found = []
    for step in range(count):
        x = torch.randn(8, 4) + random.random() + float(numpy.random.rand())
        loss = net(x).square().mean()
        loss.backward()  # Gradients are gathered over two steps.
        if step % 2:
            optimizer.step()
            optimizer.zero_grad()
        found.append(loss.item())
        trainer.step(loss=loss)
        if step == evaluates_at:
            buffers = [each.clone() for each in net.buffers()]
            flags = [module.training for module in net.modules()]
            assert trainer._plant.apply("eval", {}, step) == {"eval/loss": pytest.approx(0, abs=9)}
            assert [module.training for module in net.modules()] == flags
            assert torch.is_grad_enabled()
            for before, after in zip(buffers, net.buffers(), strict=True):
                assert torch.equal(before, after)
    return found


def test_the_next_losses_are_those_of_a_training_that_was_not_evaluated(
    trainer: lht.Trainer,
) -> None:
    assert losses(trainer, 14, evaluates_at=2) == losses(trainer, 14, evaluates_at=None)


def test_flags_gradients_and_random_states_are_put_back_after_an_error_too() -> None:
    net = Net()
    gradients = [torch.ones_like(each) for each in net.parameters()]
    for parameter, gradient in zip(net.parameters(), gradients, strict=True):
        parameter.grad = gradient
    flags = [module.training for module in net.modules()]
    state = torch.get_rng_state()
    with pytest.raises(ValueError, match="no data"), undisturbed(net):
        net.eval()
        assert all(each.grad is None for each in net.parameters())
        torch.randn(3)
        raise ValueError("no data")
    assert [module.training for module in net.modules()] == flags
    assert all(one.grad is other for one, other in zip(net.parameters(), gradients, strict=True))
    assert torch.equal(torch.get_rng_state(), state)


def test_values_are_logged_and_returned_under_their_names(trainer: lht.Trainer) -> None:
    trainer.watch(
        nn.Linear(1, 1),
        torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1),
        eval_fn=lambda: {"acc": 0.5, "good": True, "note": "fine", "n": 3},
    )
    outcome = commanded(trainer, "eval")
    assert outcome.state == "applied" and (outcome.applied_on, outcome.of) == (1, 1)
    assert outcome.result == {
        "eval/acc": 0.5,
        "eval/good": True,
        "eval/note": "fine",
        "eval/n": 3,
    }
    at = outcome.applied_at["step"]
    run = on_disk(trainer)
    assert series(run, "eval/acc") == [(at, 0.5)] and series(run, "eval/n") == [(at, 3)]
    trainer.step()
    assert effects(trainer) == []


@pytest.mark.parametrize(
    ("value", "logged", "returned"),
    [
        (torch.tensor(0.5), 0.5, 0.5),
        (torch.tensor([1.0, 2.0]), 1.5, 1.5),
        (torch.tensor(True), 1.0, 1.0),
        (numpy.float32(0.5), 0.5, 0.5),
        (numpy.int64(3), 3.0, 3.0),
        (Decimal("0.5"), 0.5, 0.5),
        (Fraction(1, 2), 0.5, 0.5),
        (math.inf, math.inf, {"$number": "nonfinite", "value": "inf"}),
    ],
)
def test_numbers_of_all_kinds_are_taken(value: Any, logged: Any, returned: Any) -> None:
    given, into, told = evaluation({"x": value})
    assert given.apply({}) == {"eval/x": returned}
    assert into == {"eval/x": logged} and told == []


def test_not_a_number_is_a_value_and_no_failure() -> None:
    given, into, _ = evaluation({"x": math.nan})
    assert given.apply({}) == {"eval/x": {"$number": "nonfinite", "value": "nan"}}
    assert math.isnan(into["eval/x"])


@pytest.mark.parametrize("found", [3, [1], "x", {"x": [1]}, {"x": None}, {"x": torch.tensor(1j)}])
def test_odd_results_are_left_out_and_told(found: Any) -> None:
    given, into, told = evaluation(found)
    assert given.apply({}) == {} and into == {}
    assert len(told) == 1 and "eval_fn" in told[0]


def test_none_is_an_evaluation_without_values() -> None:
    given, _, told = evaluation(None)
    assert given.apply({}) == {} and told == []
    assert given.problem({"x": 1})


def test_an_evaluation_that_raises_is_told_truthfully(trainer: lht.Trainer) -> None:
    def evaluate() -> None:
        raise OSError("the disk with the data is gone")

    net = Net()
    trainer.watch(net, torch.optim.SGD(net.parameters(), lr=0.1), eval_fn=evaluate)
    with pytest.raises(lht.DivergedStateError, match="the data is gone") as raised:
        commanded(trainer, "eval")
    assert raised.value.failures == [(0, "OSError: the disk with the data is gone")]
    trainer.finish()
    (outcome,) = [
        record.body
        for record in records(trainer.run.directory, "oc")
        if record.body["state"] == "outcome_unknown"
    ]
    assert outcome["applied_on"] == 0 and outcome["of"] == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_random_states_of_devices_are_put_back() -> None:
    torch.zeros(1, device="cuda")
    before = torch.cuda.get_rng_state()
    with undisturbed(None):
        torch.rand(3, device="cuda")
        assert not torch.equal(torch.cuda.get_rng_state(), before)
    assert torch.equal(torch.cuda.get_rng_state(), before)
