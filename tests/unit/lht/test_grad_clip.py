"""grad_clip: the limit acts on true gradients, scaled ones too, and says where it cannot act."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import SGD

import launchhelm.torch as lht
from launchhelm.torch._clipping import Clipping, GradClip, clip, obstacle
from tests.support.journals import series
from tests.support.one_rank import commanded, effects, on_disk


def parameter(*gradient: float) -> torch.nn.Parameter:
    made = torch.nn.Parameter(torch.zeros(len(gradient)))
    made.grad = torch.tensor(gradient)
    return made


def norm_of(*parameters: torch.nn.Parameter) -> float:
    return float(torch.linalg.vector_norm(torch.cat([p.grad for p in parameters])))  # type: ignore[misc]


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[lht.Trainer]:
    with lht.init("clip", state_dir=tmp_path) as made:
        yield made


# The control.


@pytest.mark.parametrize(
    "limit", [0, -1.0, math.nan, math.inf, 10**400, "1", True, [1], {"value": 1}]
)
def test_a_limit_that_is_no_finite_number_above_0_is_refused(limit: Any) -> None:
    control = GradClip(Clipping(0.5, 1))
    assert "above 0, or null for off" in control.problem({"max_norm": limit})
    assert control.problem({"norm": 1})
    assert control.values() == {"grad_clip": 0.5}


@pytest.mark.parametrize("limit", [1e-60, 1e39])
def test_a_limit_that_float32_cannot_hold_is_refused(limit: float) -> None:
    """The norm is a float32, in which such a limit would be 0 or infinite."""
    assert "float32 can hold" in GradClip(Clipping(0.5, 1)).problem({"max_norm": limit})


def test_the_limit_is_set_switched_off_and_taken_back() -> None:
    control = GradClip(Clipping(None, 1))
    snapshot = control.snapshot()
    assert control.apply({"max_norm": 2}) == {"max_norm": 2.0}
    assert control.values() == {"grad_clip": 2.0} and control.state() == 2.0
    assert control.apply({}) == control.apply({"max_norm": None}) == {"max_norm": None}
    control.apply({"max_norm": 1})
    control.restore(snapshot)
    assert control.values() == control.values_of(snapshot) == {"grad_clip": None}


def test_a_commanded_limit_clips_the_next_gradients(trainer: lht.Trainer) -> None:
    one, two = parameter(3.0), parameter(4.0)
    trainer.watch(torch.nn.Linear(1, 1), SGD([one, two], lr=0.1))
    assert trainer.clip_grad_norm_() == pytest.approx(5.0) and norm_of(one, two) == 5.0
    outcome = commanded(trainer, "grad_clip", {"max_norm": 0.5}, train=trainer.clip_grad_norm_)
    assert outcome.changes == {"grad_clip": {"old": None, "new": 0.5}}
    assert trainer.grad_clip == 0.5
    trainer.clip_grad_norm_()
    assert norm_of(one, two) == pytest.approx(0.5, rel=1e-5)
    trainer.step()
    assert "not_effective" not in effects(trainer)[0]
    off = commanded(trainer, "grad_clip", train=trainer.clip_grad_norm_)
    assert off.result == {"max_norm": None}
    one.grad = torch.tensor([3.0])
    trainer.clip_grad_norm_()
    assert float(one.grad) == 3.0


@pytest.mark.parametrize(
    "train", [lambda trainer: None, lambda trainer: trainer.clip_grad_norm_(1)]
)
def test_a_limit_that_nothing_uses_is_told(train: Any, trainer: lht.Trainer) -> None:
    """Not called at all, or with a limit of its own each time."""
    trainer.watch(torch.nn.Linear(1, 1), SGD([parameter(3.0)], lr=0.1))
    commanded(trainer, "grad_clip", {"max_norm": 0.5}, train=lambda: train(trainer))
    train(trainer)
    trainer.step()
    assert "without an argument" in effects(trainer)[0]["not_effective"]


# Clipping.


def test_gradients_are_clipped_as_torch_clips_them_to_the_last_bit() -> None:
    torch.manual_seed(0)
    for limit in (1e-3, 0.7, 1.0, 1e9):
        ours = [torch.nn.Parameter(torch.zeros(n)) for n in (1, 7, 64)]
        theirs = [torch.nn.Parameter(torch.zeros(n)) for n in (1, 7, 64)]
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn(one.shape)
            other.grad = one.grad.clone()
        norm = torch.nn.utils.clip_grad_norm_(theirs, limit)
        assert clip(None, SGD(ours, lr=0.1), limit) == float(norm)
        for one, other in zip(ours, theirs, strict=True):
            assert one.grad is not None and other.grad is not None
            assert torch.equal(one.grad, other.grad)


def test_measuring_leaves_gradients_alone_infinite_ones_too() -> None:
    one = parameter(math.inf, 1.0)
    assert clip(None, SGD([one], lr=0.1), None) == math.inf
    assert one.grad is not None and one.grad.tolist() == [math.inf, 1.0]


@pytest.mark.parametrize("limit", [-1.0, math.nan])
def test_a_limit_without_sense_raises_at_once(limit: float, trainer: lht.Trainer) -> None:
    one = parameter(3.0)
    trainer.watch(torch.nn.Linear(1, 1), SGD([one], lr=0.1))
    with pytest.raises(ValueError, match="at least 0"):
        trainer.clip_grad_norm_(limit)
    assert float(one.grad) == 3.0  # type: ignore[arg-type]


def test_clipping_twice_to_one_limit_changes_nothing_the_second_time(
    trainer: lht.Trainer,
) -> None:
    """Also where the script, or its framework, clips as well."""
    one = parameter(30.0, 40.0)
    trainer.watch(torch.nn.Linear(1, 1), SGD([one], lr=0.1))
    torch.nn.utils.clip_grad_norm_([one], 1.0)
    assert one.grad is not None
    once = one.grad.clone()
    assert trainer.clip_grad_norm_(1.0) == pytest.approx(1.0)
    assert torch.allclose(one.grad, once, rtol=1e-5)


# With a scaler.


class Scaled:
    """A loop whose true gradient norm is 10, scaled by 65,536."""

    def __init__(self, trainer: lht.Trainer) -> None:
        self.parameter = torch.nn.Parameter(torch.ones(2))
        self.optimizer = SGD([self.parameter], lr=0.1)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
        trainer.watch(torch.nn.Linear(1, 1), self.optimizer, scaler=self.scaler)

    def backward(self, gradient: tuple[float, float] = (6.0, 8.0)) -> None:
        self.optimizer.zero_grad()
        loss = (self.parameter * torch.tensor(gradient)).sum()
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def step(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()


@pytest.mark.parametrize("unscales_first", [False, True])
def test_scaled_gradients_are_unscaled_exactly_once(
    unscales_first: bool, trainer: lht.Trainer
) -> None:
    loop = Scaled(trainer)
    for _ in range(2):
        loop.backward()
        if unscales_first:
            loop.scaler.unscale_(loop.optimizer)
        assert trainer.clip_grad_norm_(1.0) == pytest.approx(10.0)
        assert norm_of(loop.parameter) == pytest.approx(1.0, rel=1e-5)
        before = loop.parameter.detach().clone()
        loop.step()
        moved = float(torch.linalg.vector_norm(before - loop.parameter.detach()))
        assert moved == pytest.approx(0.1, rel=1e-4)


def test_unscaling_once_more_by_hand_is_the_clear_error_of_torch(trainer: lht.Trainer) -> None:
    loop = Scaled(trainer)
    loop.backward()
    trainer.clip_grad_norm_(1.0)
    with pytest.raises(RuntimeError, match="already been called"):
        loop.scaler.unscale_(loop.optimizer)


def test_clipping_after_the_step_is_an_error(trainer: lht.Trainer) -> None:
    loop = Scaled(trainer)
    loop.backward()
    loop.scaler.step(loop.optimizer)
    with pytest.raises(RuntimeError, match="after step"):
        trainer.clip_grad_norm_(1.0)


def test_a_step_that_the_scaler_skips_is_counted_and_shown_as_no_norm(trainer: lht.Trainer) -> None:
    loop = Scaled(trainer)
    for gradient in ((6.0, 8.0), (math.inf, 1.0), (6.0, 8.0)):
        before = loop.parameter.detach().clone()
        loop.backward(gradient)
        trainer.clip_grad_norm_(1.0)
        loop.step()
        assert torch.equal(before, loop.parameter.detach()) == math.isinf(gradient[0])
        trainer.step()
    run = on_disk(trainer)
    norms = series(run, "optim/grad_norm")
    assert norms == [(1, pytest.approx(10.0)), (3, pytest.approx(10.0))]
    assert series(run, "optim/skipped_steps") == [(1, 0), (2, 1), (3, 1)]


def test_a_scaler_behind_a_wrapper_is_asked_about_the_optimizer_inside(
    trainer: lht.Trainer,
) -> None:
    """As accelerate does it: the wrapper holds the scaler and steps what it wraps."""
    loop = Scaled(trainer)

    class Wrapper:
        def __init__(self) -> None:
            self.optimizer, self.scaler = loop.optimizer, loop.scaler
            self.param_groups = loop.optimizer.param_groups

        def step(self) -> None:
            loop.step()

    wrapper = Wrapper()
    trainer.watch(torch.nn.Linear(1, 1), wrapper, scaler=loop.scaler)
    loop.backward()
    assert trainer.clip_grad_norm_(1.0) == pytest.approx(10.0)
    before = loop.parameter.detach().clone()
    wrapper.step()
    moved = float(torch.linalg.vector_norm(before - loop.parameter.detach()))
    assert moved == pytest.approx(0.1, rel=1e-4)


def test_a_scaler_that_is_off_or_unused_changes_nothing(trainer: lht.Trainer) -> None:
    for scaler in (torch.amp.GradScaler("cpu", enabled=False), torch.amp.GradScaler("cpu")):
        one = parameter(6.0, 8.0)
        trainer.watch(torch.nn.Linear(1, 1), SGD([one], lr=0.1), scaler=scaler)
        assert trainer.clip_grad_norm_(1.0) == pytest.approx(10.0)


# What cannot be clipped rightly.


class Inner(torch.nn.Linear):
    def __init__(self) -> None:
        super().__init__(1, 1)


class UnknownWrapper(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.module = Inner()


class DeepSpeedEngine(UnknownWrapper):
    __module__ = "deepspeed.runtime.engine"


class FullyShardedDataParallel(UnknownWrapper):
    pass


class Part(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sharded = FullyShardedDataParallel()


class FlatParameter(torch.nn.Parameter):
    pass


@pytest.mark.parametrize(
    ("model", "parameter", "said"),
    [
        (UnknownWrapper(), parameter(1.0), "UnknownWrapper is a wrapper that is not known"),
        (DeepSpeedEngine(), parameter(1.0), "use its own setting for clipping"),
        (Part(), parameter(1.0), "wrap the whole model"),
        (None, FlatParameter(torch.zeros(1)), "one shard of many"),
    ],
)
def test_what_may_be_clipped_per_shard_is_refused(
    model: Any, parameter: torch.nn.Parameter, said: str
) -> None:
    optimizer = SGD([parameter], lr=0.1)
    assert said in obstacle(model, optimizer, world_size=2)
    clipping = Clipping(None, world_size=2)
    clipping.watch(model, optimizer, None)
    control = GradClip(clipping)
    assert said in control.problem({"max_norm": 1.0})
    assert control.problem({"max_norm": None}) == ""
    with pytest.raises(RuntimeError, match="would be wrong here"):
        clipping.clip(1.0)


def test_whole_gradients_are_never_refused() -> None:
    linear = torch.nn.Linear(1, 1)
    optimizer = SGD(linear.parameters(), lr=0.1)
    for model in (None, linear, torch.nn.Sequential(linear), torch.nn.DataParallel(linear)):
        assert obstacle(model, optimizer, world_size=8) == ""
    assert obstacle(UnknownWrapper(), optimizer, world_size=1) == ""
    assert obstacle(FullyShardedDataParallel(), optimizer, world_size=8) == ""
