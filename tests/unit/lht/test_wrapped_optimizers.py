"""Optimizers inside others: a command reaches the one that changes the parameters, or says not."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR

import launchhelm.torch as lht
from launchhelm.torch._groups import chain
from launchhelm.torch._schedulers import Rates
from tests.support.one_rank import commanded, effects


class Sharing:
    """A wrapper with the very groups of the optimizer inside."""

    def __init__(self, inner: SGD) -> None:
        self.inner = inner
        self.again = inner

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.inner.param_groups

    def step(self) -> None:
        self.inner.step()


class Copying:
    """A wrapper that copied the groups once, and shows its own."""

    def __init__(self, inner: SGD) -> None:
        self._optimizer = inner
        self.param_groups = [dict(group) for group in inner.param_groups]

    def step(self) -> None:
        self._optimizer.step()


class Pushing(Copying):
    """A wrapper that copies its own values over those inside, at each step."""

    def step(self) -> None:
        for outer, inner in zip(self.param_groups, self._optimizer.param_groups, strict=True):
            inner.update(lr=outer["lr"], weight_decay=outer["weight_decay"])
        super().step()


class Replacing(Copying):
    """A wrapper that gives the optimizer inside the values it began with, at each step."""

    def __init__(self, inner: SGD) -> None:
        super().__init__(inner)
        self.first = copy.deepcopy([{**group, "params": []} for group in inner.param_groups])

    def step(self) -> None:
        for first, inner in zip(self.first, self._optimizer.param_groups, strict=True):
            inner.update(lr=first["lr"], weight_decay=first["weight_decay"])
        super().step()


class Engine(Sharing):
    """A wrapper around a wrapper."""

    def __init__(self, inner: SGD) -> None:
        self.optimizer = Pushing(inner)
        self.param_groups_seen = 0

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.optimizer.param_groups

    def step(self) -> None:
        self.optimizer.step()


class LikeAccelerate(torch.optim.Optimizer):
    """As `AcceleratedOptimizer`: an optimizer of torch by class, and a proxy by what it does."""

    def __init__(self, inner: SGD) -> None:
        self.optimizer = inner
        self.scaler = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return self.optimizer.param_groups

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.optimizer.step()


class LikeApex:
    """As `FP16_Optimizer`: the optimizer inside changes master copies of the parameters."""

    def __init__(self, inner: SGD) -> None:
        self.optimizer = inner
        (self.model_parameter,) = inner.param_groups[0]["params"]
        self.master = torch.nn.Parameter(self.model_parameter.detach().clone())
        inner.param_groups[0]["params"] = [self.master]
        self.fp32_from_fp16_groups = [[self.master]]

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.optimizer.param_groups

    def step(self) -> None:
        self.optimizer.step()
        self.model_parameter.data.copy_(self.master.data)


class LikeLarc:
    """As `LARC`: the same list, and a decay that is 0 while the optimizer inside steps."""

    def __init__(self, inner: SGD) -> None:
        self.optim = inner
        self.param_groups = inner.param_groups

    def step(self) -> None:
        (group,) = self.param_groups
        decay, group["weight_decay"] = group["weight_decay"], 0
        for each in group["params"]:
            each.grad += decay * each.data
        self.optim.step()
        group["weight_decay"] = decay


WRAPPERS = [Sharing, Copying, Pushing, Replacing, Engine, LikeAccelerate, LikeApex, LikeLarc]


def inner_optimizer() -> SGD:
    return SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1, weight_decay=0.2)


def update(wrapper: Any, inner: SGD) -> float:
    """Take one step and return by how much it changed a parameter, per unit of gradient."""
    (parameter,) = inner.param_groups[0]["params"]
    parameter.data.fill_(1.0)
    parameter.grad = torch.zeros(2)
    wrapper.step()
    return 1.0 - float(parameter.detach()[0])  # lr times weight decay.


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[lht.Trainer]:
    with lht.init("wrapped", state_dir=tmp_path) as made:
        yield made


def test_the_chain_ends_at_the_optimizer_that_changes_parameters() -> None:
    for kind in WRAPPERS:
        inner = inner_optimizer()
        assert chain(kind(inner))[-1] is inner, kind
    assert chain(inner_optimizer().__class__([torch.nn.Parameter(torch.ones(1))], lr=1))[1:] == []


@pytest.mark.parametrize("kind", WRAPPERS)
@pytest.mark.parametrize(
    ("name", "payload", "expected"),
    [
        ("lr", {"scale": 0.5}, 0.05 * 0.2),
        ("lr", {"lr": 0.3}, 0.3 * 0.2),
        ("weight_decay", {"value": 0.4}, 0.1 * 0.4),
    ],
)
def test_a_command_is_in_effect_in_the_real_update_or_that_is_told(
    kind: Any, name: str, payload: dict[str, Any], expected: float, trainer: lht.Trainer
) -> None:
    inner = inner_optimizer()
    wrapper = kind(inner)
    trainer.watch(torch.nn.Linear(1, 1), wrapper)
    outcome = commanded(trainer, name, payload, train=lambda: update(wrapper, inner))
    assert outcome.state == "applied", outcome
    real = update(wrapper, inner)
    trainer.step()
    (effect,) = effects(trainer)
    assert effect["values"][name] == [inner.param_groups[0][name]]
    if kind is Replacing:
        assert real == pytest.approx(0.1 * 0.2)
        assert f"{name} is" in effect["not_effective"]
    else:
        assert real == pytest.approx(expected)
        assert "not_effective" not in effect


@pytest.mark.parametrize("kind", [Sharing, Pushing, Engine, LikeAccelerate, LikeApex, LikeLarc])
@pytest.mark.parametrize("on_wrapper", [True, False])
def test_a_schedule_is_scaled_on_whichever_optimizer_it_works(kind: Any, on_wrapper: bool) -> None:
    inner = inner_optimizer()
    wrapper = kind(inner)
    schedule = LambdaLR(inner, lambda step: 1 / (1 + step))
    inner.step()
    schedule.step()
    if on_wrapper:
        # Torch itself takes only its own optimizers, and warns where another comes later.
        schedule.optimizer = wrapper
    rates = Rates(wrapper, schedule)
    rates.apply(rates.scaled([0], 0.5))
    for step in range(2, 5):
        inner.step()
        schedule.step()
        used = wrapper if on_wrapper else inner
        assert used.param_groups[0]["lr"] == pytest.approx(0.1 / (1 + step) * 0.5)


def test_a_wrapped_schedule_that_steps_several_times_at_once_is_scaled() -> None:
    """As `AcceleratedScheduler`: one step of its own for every process, and none of torch's."""

    class Accelerated:
        def __init__(self, scheduler: Any, processes: int) -> None:
            self.scheduler = scheduler
            self.processes = processes

        def step(self) -> None:
            for _ in range(self.processes):
                self.scheduler.step()

        def get_last_lr(self) -> list[float]:
            return self.scheduler.get_last_lr()  # type: ignore[no-any-return]

    inner = inner_optimizer()
    schedule = Accelerated(LambdaLR(inner, lambda step: 1 / (1 + step)), processes=2)
    rates = Rates(LikeAccelerate(inner), schedule)
    rates.apply(rates.scaled([0], 0.5))
    for step in range(2, 8, 2):
        inner.step()
        schedule.step()
        assert rates.now() == schedule.get_last_lr() == [0.1 * (1 / (1 + step)) * 0.5]


def test_a_zero_redundancy_optimizer_is_scaled_where_it_changes_parameters() -> None:
    """It has groups of its own, which it copies into those of its shard at each step."""
    store = torch.distributed.HashStore()  # type: ignore[attr-defined]
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # It warns of torch.jit, which torch uses there.
            from torch.distributed.optim import ZeroRedundancyOptimizer

        parameter = torch.nn.Parameter(torch.zeros(2))
        optimizer = ZeroRedundancyOptimizer([parameter], SGD, lr=0.5)
        schedule = LambdaLR(optimizer, lambda step: 1 / (1 + step))
        rates = Rates(optimizer, schedule)
        assert rates.groups.chain == [optimizer, optimizer.optim]
        moved = []
        for step in range(3):
            if step == 1:
                rates.apply(rates.scaled([0], 0.5))
                assert rates.now() == [0.125]
            parameter.grad = torch.ones(2)
            before = float(parameter.detach()[0])
            optimizer.step()
            moved.append(before - float(parameter.detach()[0]))
            schedule.step()
        assert moved == pytest.approx([0.5, 0.25 * 0.5, 0.5 / 3 * 0.5])
    finally:
        torch.distributed.destroy_process_group()


def test_rates_behind_a_wrapper_are_restored_in_both() -> None:
    inner = inner_optimizer()
    wrapper = Copying(inner)
    wrapper.param_groups[0]["lr"] = 0.7
    rates = Rates(wrapper)
    snapshot = rates.snapshot()
    rates.apply(rates.absolute([0], 0.3))
    assert wrapper.param_groups[0]["lr"] == inner.param_groups[0]["lr"] == 0.3
    rates.restore(snapshot)
    assert (wrapper.param_groups[0]["lr"], inner.param_groups[0]["lr"]) == (0.7, 0.1)


def test_a_scheduler_that_was_not_watched_takes_the_rate_back_and_that_is_told(
    trainer: lht.Trainer,
) -> None:
    optimizer = inner_optimizer()
    schedule = LambdaLR(optimizer, lambda step: 1.0)
    trainer.watch(torch.nn.Linear(1, 1), optimizer)

    def train() -> None:
        optimizer.step()
        schedule.step()

    outcome = commanded(trainer, "lr", {"lr": 0.05}, train=train)
    assert outcome.state == "applied"
    train()
    trainer.step()
    (effect,) = effects(trainer)
    assert effect["values"] == {"lr": [0.1]}
    assert "a scheduler that watch() was not given" in effect["not_effective"]


def test_a_plateau_that_reduces_the_rate_right_after_a_command_is_no_alarm() -> None:
    optimizer = inner_optimizer()
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    rates = Rates(optimizer, plateau)
    plateau.step(1.0)
    rates.apply(rates.absolute([0], 0.05))
    plateau.step(2.0)
    assert rates.now() == [pytest.approx(0.005)]
    assert not rates.is_lost(0, 0.1, 0.05)
    optimizer.param_groups[0]["lr"] = 0.1
    assert rates.is_lost(0, 0.1, 0.05)


@pytest.mark.parametrize("who", ["the script", "a wrapper", "nobody"])
def test_whoever_writes_a_scheduled_rate_after_a_command_is_noticed(who: str) -> None:
    inner = inner_optimizer()
    wrapper = Replacing(inner) if who == "a wrapper" else Sharing(inner)
    schedule = LambdaLR(inner, lambda step: 1 / (1 + step))
    rates = Rates(wrapper, schedule)
    rates.apply(rates.scaled([0], 0.5))
    wrapper.step()
    schedule.step()
    if who == "the script":
        inner.param_groups[0]["lr"] = 0.05
    assert rates.is_lost(0, 0.1, 0.05) == (who != "nobody")
