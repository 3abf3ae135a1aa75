"""A commanded learning rate survives every scheduler, exactly."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import SGD, Optimizer
from torch.optim import lr_scheduler as torch_schedulers
from torch.optim.swa_utils import SWALR

from launchhelm.torch._schedulers import Rates, unsound

STEPS = 30

MakeScheduler = Callable[[Optimizer], Any]


def warm_up_then_cosine(optimizer: Optimizer) -> Any:
    return torch_schedulers.SequentialLR(
        optimizer,
        [
            torch_schedulers.LinearLR(optimizer, start_factor=0.1, total_iters=5),
            torch_schedulers.CosineAnnealingLR(optimizer, T_max=20, eta_min=0.01),
        ],
        milestones=[5],
    )


def warm_up_then_one_cycle(optimizer: Optimizer) -> Any:
    return torch_schedulers.SequentialLR(
        optimizer,
        [
            torch_schedulers.ConstantLR(optimizer, factor=0.5, total_iters=4),
            torch_schedulers.OneCycleLR(optimizer, max_lr=[0.4, 0.2], total_steps=60),
        ],
        milestones=[4],
    )


def chained(optimizer: Optimizer) -> Any:
    return torch_schedulers.ChainedScheduler(
        [
            torch_schedulers.ConstantLR(optimizer, factor=0.5, total_iters=4),
            torch_schedulers.ExponentialLR(optimizer, gamma=0.9),
        ]
    )


SCHEDULERS: dict[str, MakeScheduler] = {
    "StepLR": lambda o: torch_schedulers.StepLR(o, step_size=4, gamma=0.5),
    "MultiStepLR": lambda o: torch_schedulers.MultiStepLR(o, milestones=[3, 9, 12]),
    "ExponentialLR": lambda o: torch_schedulers.ExponentialLR(o, gamma=0.93),
    "MultiplicativeLR": lambda o: torch_schedulers.MultiplicativeLR(o, lambda step: 0.97),
    "PolynomialLR": lambda o: torch_schedulers.PolynomialLR(o, total_iters=40, power=2.0),
    "ConstantLR": lambda o: torch_schedulers.ConstantLR(o, factor=0.3, total_iters=8),
    "LinearLR": lambda o: torch_schedulers.LinearLR(o, start_factor=0.2, total_iters=12),
    "LambdaLR": lambda o: torch_schedulers.LambdaLR(o, lambda step: 1.0 / (1 + step)),
    "warm-up from 0": lambda o: torch_schedulers.LambdaLR(o, lambda step: min(1.0, step / 10)),
    "CyclicLR": lambda o: torch_schedulers.CyclicLR(
        o, base_lr=[0.01, 0.02], max_lr=[0.1, 0.3], step_size_up=6, cycle_momentum=False
    ),
    "OneCycleLR": lambda o: torch_schedulers.OneCycleLR(o, max_lr=[0.3, 0.1], total_steps=60),
    "CosineAnnealingLR": lambda o: torch_schedulers.CosineAnnealingLR(o, T_max=17, eta_min=0.02),
    "CosineAnnealingWarmRestarts": lambda o: torch_schedulers.CosineAnnealingWarmRestarts(
        o, T_0=7, eta_min=0.015
    ),
    "SWALR": lambda o: SWALR(o, swa_lr=[0.05, 0.01], anneal_epochs=9),
    "SequentialLR": warm_up_then_cosine,
    "SequentialLR of OneCycleLR": warm_up_then_one_cycle,
    "ChainedScheduler": chained,
}


class HomeMade:
    """A scheduler that torch knows nothing of."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.calls = 0

    def step(self) -> None:
        self.calls += 1
        for group in self.optimizer.param_groups:
            group["lr"] = 0.1 / self.calls


def make_optimizer(rates: tuple[float, ...] = (0.1, 0.04), **options: Any) -> SGD:
    groups = [{"params": [torch.nn.Parameter(torch.zeros(2))], "lr": rate} for rate in rates]
    return SGD(groups, momentum=0.9, **options)


def run(
    make: MakeScheduler,
    act: Callable[[Rates], None] = lambda rates: None,
    *,
    at: int = 10,
    optimizer: Optimizer | None = None,
) -> list[list[float]]:
    """Return the rates after each scheduler step; `act` runs before the step `at`."""
    optimizer = optimizer or make_optimizer()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Torch warns of its own deprecated nesting calls.
        scheduler = make(optimizer)
        rates = Rates(optimizer, scheduler)
        seen = []
        for index in range(STEPS):
            if index == at:
                act(rates)
            optimizer.step()
            scheduler.step()
            seen.append(rates.now())
        return seen


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("at", [0, 2, 6, 10])
def test_a_scaled_schedule_is_the_schedule_times_the_factor(name: str, at: int) -> None:
    """From the command on, each group's rate is the factor times what it would have been."""
    plain = run(SCHEDULERS[name])
    scaled = run(
        SCHEDULERS[name],
        lambda rates: rates.apply(rates.scaled([0], 0.5) + rates.scaled([1], 3.0)),
        at=at,
    )
    assert scaled[:at] == plain[:at]
    for ours, torchs in zip(scaled[at:], plain[at:], strict=True):
        # Bit for bit: torch computed in its own space.
        assert ours == [torchs[0] * 0.5, torchs[1] * 3.0]


@pytest.mark.parametrize("name", SCHEDULERS)
def test_one_group_changes_alone(name: str) -> None:
    plain = run(SCHEDULERS[name])
    scaled = run(SCHEDULERS[name], lambda rates: rates.apply(rates.scaled([1], 0.25)))
    assert [row[0] for row in scaled] == [row[0] for row in plain]
    assert [row[1] for row in scaled[10:]] == [row[1] * 0.25 for row in plain[10:]]


@pytest.mark.parametrize("name", SCHEDULERS)
def test_an_absolute_rate_holds_now_and_scales_the_schedule(name: str) -> None:
    """After the command both groups are at the target; the schedule goes on in proportion."""
    at_once: list[float] = []

    def act(rates: Rates) -> None:
        rates.apply(rates.absolute([0, 1], 0.033))
        at_once.extend(rates.now())

    plain = run(SCHEDULERS[name])
    set_ = run(SCHEDULERS[name], act)
    assert at_once == [0.033, 0.033]
    for group in (0, 1):
        factor = 0.033 / plain[9][group]
        for ours, torchs in zip(set_[10:], plain[10:], strict=True):
            assert ours[group] == pytest.approx(torchs[group] * factor, rel=1e-12)


def test_two_commands_multiply() -> None:
    def act(rates: Rates) -> None:
        rates.apply(rates.scaled([0, 1], 0.5))
        rates.apply(rates.scaled([0, 1], 0.5))

    plain = run(SCHEDULERS["OneCycleLR"])
    scaled = run(SCHEDULERS["OneCycleLR"], act)
    assert scaled[10:] == [[rate * 0.25 for rate in row] for row in plain[10:]]


def test_a_plateau_scheduler_is_lowered_and_keeps_its_absolute_floor() -> None:
    optimizer = make_optimizer((0.1,))
    scheduler = torch_schedulers.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, min_lr=0.04)
    rates = Rates(optimizer, scheduler)
    rates.apply(rates.scaled([0], 0.9))
    scheduler.step(1.0)
    assert rates.now() == [0.1 * 0.9]
    seen = []
    for _ in range(3):
        scheduler.step(1.0)
        seen += rates.now()
    assert seen == [pytest.approx(0.045), 0.04, 0.04]


def test_without_a_scheduler_the_rate_is_simply_set() -> None:
    optimizer = make_optimizer()
    rates = Rates(optimizer)
    rates.apply(rates.scaled([0, 1], 0.5))
    assert rates.now() == [0.05, 0.02]
    rates.apply(rates.absolute([1], 0.7))
    assert rates.now() == [0.05, 0.7]


def test_an_unknown_scheduler_class_works_the_same_way() -> None:
    optimizer = make_optimizer()
    scheduler = HomeMade(optimizer)
    rates = Rates(optimizer, scheduler)
    scheduler.step()
    rates.apply(rates.scaled([0, 1], 0.5))
    scheduler.step()
    assert rates.now() == [0.025, 0.025]
    assert type(scheduler).__name__ == "HomeMade"


def test_a_step_that_is_an_attribute_of_the_instance_is_hooked_too() -> None:
    optimizer = make_optimizer()
    scheduler = HomeMade(optimizer)
    inner = scheduler.step
    scheduler.step = lambda: inner()  # type: ignore[method-assign]
    mine = scheduler.step
    rates = Rates(optimizer, scheduler)
    rates.apply(rates.scaled([0], 0.5))
    scheduler.step()
    assert rates.now() == [0.05, 0.1]
    rates.unhook()
    assert scheduler.step is mine


def test_scaling_works_where_the_rate_is_zero() -> None:
    """Warm-up starts at 0: the factor shows as soon as the schedule rises."""
    plain = run(SCHEDULERS["warm-up from 0"])
    scaled = run(
        SCHEDULERS["warm-up from 0"], lambda rates: rates.apply(rates.scaled([0, 1], 0.5)), at=0
    )
    assert scaled == [[rate * 0.5 for rate in row] for row in plain]


def test_an_absolute_rate_at_zero_holds_now_and_scales_by_the_base() -> None:
    def act(rates: Rates) -> None:
        assert rates.now() == [0.0, 0.0]
        rates.apply(rates.absolute([0, 1], 0.2))
        assert rates.now() == [0.2, 0.2]

    plain = run(SCHEDULERS["warm-up from 0"])
    scaled = run(SCHEDULERS["warm-up from 0"], act, at=0)
    assert scaled == [[row[0] * (0.2 / 0.1), row[1] * (0.2 / 0.04)] for row in plain]


def test_an_absolute_rate_where_rate_and_base_are_zero_holds_until_the_schedule_moves() -> None:
    optimizer = make_optimizer((0.0,))

    class Jump(HomeMade):
        def step(self) -> None:
            self.calls += 1
            if self.calls == 3:
                optimizer.param_groups[0]["lr"] = 0.5

    scheduler = Jump(optimizer)
    rates = Rates(optimizer, scheduler)
    plan = rates.absolute([0], 0.2)
    assert plan[0].held
    rates.apply(plan)
    seen = []
    for _ in range(4):
        scheduler.step()
        seen += rates.now()
    assert seen == [0.2, 0.2, 0.5, 0.5]


def test_a_rate_that_the_script_sets_itself_is_respected() -> None:
    optimizer = make_optimizer((0.1,))
    scheduler = torch_schedulers.ExponentialLR(optimizer, gamma=0.5)
    rates = Rates(optimizer, scheduler)
    rates.apply(rates.scaled([0], 0.5))
    optimizer.param_groups[0]["lr"] = 0.8
    optimizer.step()
    scheduler.step()
    assert rates.now() == [0.4]


def test_get_last_lr_says_what_is_in_effect_while_torchs_fields_stay() -> None:
    optimizer = make_optimizer()
    scheduler = torch_schedulers.StepLR(optimizer, step_size=2)
    rates = Rates(optimizer, scheduler)
    optimizer.step()
    scheduler.step()
    rates.apply(rates.scaled([0, 1], 0.5))
    optimizer.step()
    scheduler.step()
    assert scheduler.get_last_lr() == rates.now()
    assert scheduler.base_lrs == [0.1, 0.04]
    assert scheduler._last_lr == [0.1 * 0.1, 0.04 * 0.1]


def test_a_snapshot_restores_rates_and_schedule_exactly() -> None:
    def act(rates: Rates) -> None:
        rates.apply(rates.scaled([0], 0.7))
        snapshot = rates.snapshot()
        rates.apply(rates.absolute([0, 1], 0.5))
        rates.restore(snapshot)

    plain = run(SCHEDULERS["CosineAnnealingLR"])
    back = run(SCHEDULERS["CosineAnnealingLR"], act)
    assert back[10:] == [[row[0] * 0.7, row[1]] for row in plain[10:]]


def test_state_dicts_have_no_additional_keys_and_torchs_values() -> None:
    optimizer, bare = make_optimizer(), make_optimizer()
    scheduler = torch_schedulers.OneCycleLR(optimizer, max_lr=0.3, total_steps=60)
    unwatched = torch_schedulers.OneCycleLR(bare, max_lr=0.3, total_steps=60)
    rates = Rates(optimizer, scheduler)
    rates.apply(rates.scaled([0, 1], 0.5))
    for each, its in ((optimizer, scheduler), (bare, unwatched)):
        each.step()
        its.step()
    assert scheduler.state_dict() == unwatched.state_dict()
    assert optimizer.state_dict().keys() == bare.state_dict().keys()
    assert optimizer.param_groups[0].keys() == bare.param_groups[0].keys()


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
def test_a_copy_of_a_watched_scheduler_is_of_the_users_class_and_unwatched(
    duplicate: Callable[[Any], Any],
) -> None:
    optimizer = make_optimizer()
    scheduler = torch_schedulers.ExponentialLR(optimizer, gamma=0.5)
    rates = Rates(optimizer, scheduler)
    twin = duplicate({"optimizer": optimizer, "scheduler": scheduler})
    assert type(twin["scheduler"]) is torch_schedulers.ExponentialLR
    rates.apply(rates.scaled([0, 1], 0.5))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Torch's own remark on a copied optimizer.
        twin["scheduler"].step()
    assert [group["lr"] for group in twin["optimizer"].param_groups] == [0.05, 0.02]
    assert rates.now() == [0.05, 0.02]


def test_torch_save_of_a_watched_scheduler_works() -> None:
    optimizer = make_optimizer()
    scheduler = torch_schedulers.ExponentialLR(optimizer, gamma=0.5)
    Rates(optimizer, scheduler)
    buffer = io.BytesIO()
    torch.save({"scheduler": scheduler}, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    assert type(loaded["scheduler"]) is torch_schedulers.ExponentialLR


def test_unhooking_gives_the_class_back_and_keeps_the_rates() -> None:
    optimizer = make_optimizer()
    scheduler = torch_schedulers.StepLR(optimizer, step_size=100)
    rates = Rates(optimizer, scheduler)
    assert isinstance(scheduler, torch_schedulers.StepLR)
    rates.apply(rates.scaled([0], 0.5))
    rates.unhook()
    assert type(scheduler) is torch_schedulers.StepLR
    assert rates.now() == [0.05, 0.04]


@pytest.mark.parametrize("name", ["ExponentialLR", "LambdaLR", "CosineAnnealingLR"])
def test_a_tensor_rate_is_changed_in_place(name: str) -> None:
    """Same object, dtype and device, so that a compiled or captured step sees the change."""
    plain = run(SCHEDULERS[name], optimizer=tensor_optimizer())
    optimizer = tensor_optimizer()
    before = [group["lr"] for group in optimizer.param_groups]

    def act(rates: Rates) -> None:
        snapshot = rates.snapshot()
        rates.apply(rates.absolute([0], 7.0))
        rates.restore(snapshot)
        rates.apply(rates.scaled([0, 1], 0.5))

    scaled = run(SCHEDULERS[name], act, optimizer=optimizer)
    for group, tensor in zip(optimizer.param_groups, before, strict=True):
        assert group["lr"] is tensor
        assert tensor.dtype == torch.float64
    for ours, torchs in zip(scaled[10:], plain[10:], strict=True):
        assert ours == pytest.approx([rate * 0.5 for rate in torchs], rel=1e-12)


def tensor_optimizer() -> Optimizer:
    return torch.optim.Adam(
        [
            {"params": [torch.nn.Parameter(torch.zeros(2))], "lr": torch.tensor(rate).double()}
            for rate in (0.1, 0.04)
        ]
    )


def test_a_factor_that_overflows_is_not_sound() -> None:
    rates = Rates(make_optimizer())
    assert unsound(rates.scaled([0], 0.5)[0]) == ""
    for factor in (float("inf"), 1e300, 1e-300):
        assert "rate" in unsound(rates.scaled([0], factor)[0])
    assert "rate" in unsound(rates.absolute([0], float("nan"))[0])


FROM_CURRENT: list[tuple[Callable[[SGD], Any], bool]] = [
    (lambda given: torch_schedulers.ExponentialLR(given, 0.9), True),
    (lambda given: torch_schedulers.StepLR(given, 2, gamma=0.5), True),
    (lambda given: torch_schedulers.MultiStepLR(given, [2, 6], gamma=0.5), True),
    (lambda given: torch_schedulers.LinearLR(given, 0.1, total_iters=9), True),
    (lambda given: torch_schedulers.ConstantLR(given, 0.5, total_iters=4), True),
    (lambda given: torch_schedulers.PolynomialLR(given, 9), True),
    (lambda given: torch_schedulers.CosineAnnealingLR(given, 9), True),
    (lambda given: torch_schedulers.LambdaLR(given, lambda step: 1 / (1 + step)), False),
    (lambda given: torch_schedulers.OneCycleLR(given, 0.3, total_steps=20), False),
    (
        lambda given: torch_schedulers.SequentialLR(
            given,
            [
                torch_schedulers.LinearLR(given, 0.1, total_iters=2),
                torch_schedulers.CosineAnnealingLR(given, 9),
            ],
            [2],
        ),
        True,
    ),
    (
        lambda given: torch_schedulers.SequentialLR(
            given,
            [
                torch_schedulers.LinearLR(given, 0.1, total_iters=6),
                torch_schedulers.CosineAnnealingLR(given, 9),
            ],
            [6],
        ),
        False,
    ),
]


@pytest.mark.parametrize(("make", "carries_on"), FROM_CURRENT)
def test_a_schedule_is_unscaled_where_loaded_states_do_not_carry_a_factor_on(
    make: Callable[[SGD], Any], carries_on: bool
) -> None:
    def started() -> tuple[SGD, Any]:
        given = SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        return given, make(given)

    def move(given: SGD, schedule: Any, steps: int) -> list[float]:
        rates = []
        for _ in range(steps):
            given.step()
            schedule.step()
            rates.append(float(given.param_groups[0]["lr"]))
        return rates

    plain, plain_schedule = started()
    move(plain, plain_schedule, 4)
    assert Rates(plain, plain_schedule).is_unscaled(0)

    first, first_schedule = started()
    rates = Rates(first, first_schedule)
    rates.apply(rates.scaled([0], 0.5))
    move(first, first_schedule, 4)
    assert not rates.is_unscaled(0)

    second, second_schedule = started()
    second.load_state_dict(first.state_dict())
    second_schedule.load_state_dict(first_schedule.state_dict())
    assert Rates(second, second_schedule).is_unscaled(0) is not carries_on
    if carries_on:
        wanted = move(plain, plain_schedule, 3)
        assert move(second, second_schedule, 3) == pytest.approx([0.5 * rate for rate in wanted])
