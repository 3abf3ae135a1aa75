"""Every scheduler class of torch, made alike, and what the rates do while one is followed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch.optim import SGD, Optimizer
from torch.optim import lr_scheduler as torch_schedulers
from torch.optim.swa_utils import SWALR

from launchhelm.torch._schedulers import Rates

STEPS = 30


class MakeScheduler(Protocol):
    """Makes a scheduler with every rate among its hyper-parameters, but no other, times `by`."""

    def __call__(self, optimizer: Optimizer, by: float = 1.0) -> Any: ...


def per_group(optimizer: Optimizer, *rates: float, by: float) -> list[float]:
    return [rate * by for rate in rates][: len(optimizer.param_groups)]


def warm_up_then_cosine(optimizer: Optimizer, by: float = 1.0) -> Any:
    return torch_schedulers.SequentialLR(
        optimizer,
        [
            torch_schedulers.LinearLR(optimizer, start_factor=0.1, total_iters=5),
            torch_schedulers.CosineAnnealingLR(optimizer, T_max=20, eta_min=0.01 * by),
        ],
        milestones=[5],
    )


def warm_up_then_one_cycle(optimizer: Optimizer, by: float = 1.0) -> Any:
    return torch_schedulers.SequentialLR(
        optimizer,
        [
            torch_schedulers.ConstantLR(optimizer, factor=0.5, total_iters=4),
            torch_schedulers.OneCycleLR(
                optimizer, max_lr=per_group(optimizer, 0.4, 0.2, by=by), total_steps=60
            ),
        ],
        milestones=[4],
    )


def chained(optimizer: Optimizer, by: float = 1.0) -> Any:
    return torch_schedulers.ChainedScheduler(
        [
            torch_schedulers.ConstantLR(optimizer, factor=0.5, total_iters=4),
            torch_schedulers.ExponentialLR(optimizer, gamma=0.9),
        ]
    )


def nested(optimizer: Optimizer, by: float = 1.0) -> Any:
    """A sequence in a chain in a chain, with a floor at the bottom."""
    return torch_schedulers.ChainedScheduler(
        [
            torch_schedulers.ChainedScheduler([warm_up_then_cosine(optimizer, by)]),
            torch_schedulers.StepLR(optimizer, step_size=8),
        ]
    )


def chain_then_step(optimizer: Optimizer, by: float = 1.0) -> Any:
    return torch_schedulers.SequentialLR(
        optimizer,
        [chained(optimizer), torch_schedulers.StepLR(optimizer, step_size=4)],
        milestones=[7],
    )


def cyclic(**options: Any) -> MakeScheduler:
    def make(optimizer: Optimizer, by: float = 1.0) -> Any:
        return torch_schedulers.CyclicLR(
            optimizer,
            base_lr=per_group(optimizer, 0.01, 0.02, by=by),
            max_lr=per_group(optimizer, 0.1, 0.3, by=by),
            step_size_up=6,
            **options,
        )

    return make


def one_cycle(**options: Any) -> MakeScheduler:
    def make(optimizer: Optimizer, by: float = 1.0) -> Any:
        peaks = per_group(optimizer, 0.3, 0.1, by=by)
        return torch_schedulers.OneCycleLR(optimizer, max_lr=peaks, total_steps=60, **options)

    return make


def swa(strategy: Any) -> MakeScheduler:
    def make(optimizer: Optimizer, by: float = 1.0) -> Any:
        ends = per_group(optimizer, 0.05, 0.01, by=by)
        return SWALR(optimizer, ends, anneal_epochs=9, anneal_strategy=strategy)  # type: ignore[arg-type]

    return make


SCHEDULERS: dict[str, MakeScheduler] = {
    "StepLR": lambda o, by=1.0: torch_schedulers.StepLR(o, step_size=4, gamma=0.5),
    "MultiStepLR": lambda o, by=1.0: torch_schedulers.MultiStepLR(o, milestones=[3, 9, 12]),
    "ExponentialLR": lambda o, by=1.0: torch_schedulers.ExponentialLR(o, gamma=0.93),
    "MultiplicativeLR": lambda o, by=1.0: torch_schedulers.MultiplicativeLR(o, lambda step: 0.97),
    "PolynomialLR": lambda o, by=1.0: torch_schedulers.PolynomialLR(o, total_iters=40, power=2.0),
    "ConstantLR": lambda o, by=1.0: torch_schedulers.ConstantLR(o, factor=0.3, total_iters=8),
    "LinearLR": lambda o, by=1.0: torch_schedulers.LinearLR(o, start_factor=0.2, total_iters=12),
    "LambdaLR": lambda o, by=1.0: torch_schedulers.LambdaLR(o, lambda step: 1.0 / (1 + step)),
    "warm-up from 0": lambda o, by=1.0: torch_schedulers.LambdaLR(o, lambda t: min(1.0, t / 10)),
    "CyclicLR": cyclic(),
    "CyclicLR, halved each cycle": cyclic(mode="triangular2", cycle_momentum=False),
    "CyclicLR, ever lower": cyclic(mode="exp_range", gamma=0.9, step_size_down=3),
    "OneCycleLR": one_cycle(),
    "OneCycleLR in three phases": one_cycle(three_phase=True, anneal_strategy="linear"),
    "CosineAnnealingLR": lambda o, by=1.0: torch_schedulers.CosineAnnealingLR(
        o, T_max=17, eta_min=0.02 * by
    ),
    "CosineAnnealingWarmRestarts": lambda o, by=1.0: torch_schedulers.CosineAnnealingWarmRestarts(
        o, T_0=4, T_mult=2, eta_min=0.015 * by
    ),
    "SWALR": swa("cos"),
    "SWALR, linear": swa("linear"),
    "SequentialLR": warm_up_then_cosine,
    "SequentialLR of OneCycleLR": warm_up_then_one_cycle,
    "SequentialLR of ChainedScheduler": chain_then_step,
    "ChainedScheduler": chained,
    "ChainedScheduler of ChainedScheduler of SequentialLR": nested,
}


def make_optimizer(rates: tuple[float, ...] = (0.1, 0.04), **options: Any) -> SGD:
    groups = [{"params": [torch.nn.Parameter(torch.zeros(2))], "lr": rate} for rate in rates]
    return SGD(groups, momentum=0.9, **options)


def tensor_optimizer() -> Optimizer:
    return torch.optim.Adam(
        [
            {"params": [torch.nn.Parameter(torch.zeros(2))], "lr": torch.tensor(rate).double()}
            for rate in (0.1, 0.04)
        ]
    )


def step(scheduler: Any, index: int) -> None:
    scheduler.step()


def step_by_epoch(scheduler: Any, index: int) -> None:
    """Go on by the number of the epoch, over some of them, and in between without."""
    if index % 3 == 2:
        scheduler.step()
    else:
        scheduler.step(index + index // 6)


def run(
    make: MakeScheduler,
    act: Callable[[Rates], None] = lambda rates: None,
    *,
    at: int = 10,
    optimizer: Optimizer | None = None,
    by: float = 1.0,
    step: Callable[[Any, int], None] = step,
) -> list[list[float]]:
    """Return the rates after each scheduler step; `act` runs before the step `at`."""
    return follow(make, {at: act}, optimizer=optimizer or make_optimizer(), by=by, step=step)


def follow(
    make: MakeScheduler,
    acts: Mapping[int, Callable[[Rates], None]],
    *,
    optimizer: Any,
    by: float = 1.0,
    step: Callable[[Any, int], None] = step,
) -> list[list[float]]:
    """Return the rates after each scheduler step; each act runs before the step of its number."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Torch warns of its own deprecated nesting calls.
        scheduler = make(optimizer, by)
        rates = Rates(optimizer, scheduler)
        seen = []
        for index in range(STEPS):
            if index in acts:
                acts[index](rates)
            optimizer.step()
            step(scheduler, index)
            seen.append(rates.now())
        return seen


def scale(groups: list[int], factors: list[float]) -> Callable[[Rates], None]:
    def act(rates: Rates) -> None:
        for factor in factors:
            rates.apply(rates.scaled(groups, factor))

    return act
