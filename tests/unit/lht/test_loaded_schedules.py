"""A scaled schedule is saved, loaded and copied as torch does it, and its factor stays known."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import SGD
from torch.optim import lr_scheduler as torch_schedulers

from launchhelm.torch._schedulers import Rates
from tests.support.schedules import SCHEDULERS, make_optimizer, run


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("how", ["states", "states into the watched", "deepcopy"])
def test_a_schedule_that_was_saved_and_loaded_goes_on_and_is_scaled_exactly(
    name: str, how: str
) -> None:
    """Saved after 12 steps without a command, or in place with one; then commanded."""
    make, plain = SCHEDULERS[name], run(SCHEDULERS[name])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimizer: Any = make_optimizer()
        scheduler = make(optimizer)
        rates = Rates(optimizer, scheduler)
        factor = 0.5 if how == "states into the watched" else 1.0

        def go_on(steps: int) -> list[list[float]]:
            seen = []
            for _ in range(steps):
                optimizer.step()
                scheduler.step()
                seen.append([group["lr"] for group in optimizer.param_groups])
            return seen

        go_on(5)
        if factor != 1.0:
            rates.apply(rates.scaled([0, 1], factor))
        go_on(7)
        states = copy.deepcopy((optimizer.state_dict(), scheduler.state_dict()))
        go_on(7)
        if how == "deepcopy":
            optimizer, scheduler = make_optimizer(), None
            scheduler = make(optimizer)
            go_on(12)
            optimizer, scheduler = copy.deepcopy((optimizer, scheduler))
        else:
            if how == "states":
                optimizer = make_optimizer()
                scheduler = make(optimizer)
            optimizer.load_state_dict(states[0])
            scheduler.load_state_dict(states[1])
        if factor == 1.0:
            rates = Rates(optimizer, scheduler)
        assert go_on(4) == [[rate * factor for rate in row] for row in plain[12:16]]
        rates.apply(rates.scaled([0, 1], 0.25))
        assert go_on(8) == [[rate * factor * 0.25 for rate in row] for row in plain[16:24]]


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("optimizer_first", [True, False])
def test_a_state_loaded_in_mid_training_brings_the_factor_back_that_it_was_saved_under(
    name: str, optimizer_first: bool
) -> None:
    plain = run(SCHEDULERS[name])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimizer = make_optimizer()
        scheduler = SCHEDULERS[name](optimizer)
        rates = Rates(optimizer, scheduler)

        def go_on(steps: int) -> list[list[float]]:
            seen = []
            for _ in range(steps):
                optimizer.step()
                scheduler.step()
                seen.append(rates.now())
            return seen

        def states() -> Any:
            return copy.deepcopy((optimizer.state_dict(), scheduler.state_dict()))

        def load(saved: Any) -> None:
            for is_optimizer in (optimizer_first, not optimizer_first):
                if is_optimizer:
                    optimizer.load_state_dict(copy.deepcopy(saved[0]))
                else:
                    scheduler.load_state_dict(copy.deepcopy(saved[1]))

        go_on(12)
        before = states()
        rates.apply(rates.scaled([0, 1], 0.5))
        go_on(3)
        between = states()
        rates.apply(rates.scaled([1], 0.25))
        go_on(3)
        load(between)
        assert go_on(3) == [[rate * 0.5 for rate in row] for row in plain[15:18]]
        assert rates.multipliers() == [0.5, 0.5]
        load(before)
        assert go_on(9) == plain[12:21]
        load(between)
        rates.apply(rates.scaled([1], 2.0))  # Commanded before the schedule has moved again.
        assert go_on(2) == [[row[0] * 0.5, row[1]] for row in plain[15:17]]


def test_a_rate_that_no_command_has_made_leaves_the_factor_alone() -> None:
    """Of an optimizer alone whose schedule went on: nobody knows what its rate was a part of."""
    optimizer = make_optimizer()
    scheduler = torch_schedulers.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    rates = Rates(optimizer, scheduler)
    optimizer.step()
    scheduler.step()
    saved = copy.deepcopy(optimizer.state_dict())
    rates.apply(rates.scaled([0, 1], 0.3))
    scheduler.step()
    optimizer.load_state_dict(saved)
    scheduler.step()
    assert rates.now() == pytest.approx([0.1 / 4 * 0.3, 0.04 / 4 * 0.3])


def test_multipliers_that_a_checkpoint_holds_beside_the_states_are_adopted() -> None:
    optimizer = make_optimizer()
    scheduler = torch_schedulers.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    rates = Rates(optimizer, scheduler)
    rates.apply(rates.scaled([0], 0.25))
    states, saved = (optimizer.state_dict(), scheduler.state_dict()), rates.saved()
    optimizer = make_optimizer()
    scheduler = torch_schedulers.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    again = Rates(optimizer, scheduler)
    optimizer.load_state_dict(states[0])
    scheduler.load_state_dict(states[1])
    again.resume(saved)
    assert again.now() == [0.025, 0.04] and again.factor(0) == 0.25
    optimizer.step()
    scheduler.step()
    assert again.now() == [0.0125, 0.02]


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
def test_the_factor_of_a_schedule_is_known_whether_or_not_loaded_states_carry_it_on(
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
    assert Rates(plain, plain_schedule).factor(0) == pytest.approx(1.0)

    first, first_schedule = started()
    rates = Rates(first, first_schedule)
    rates.apply(rates.scaled([0], 0.5))
    move(first, first_schedule, 4)
    assert rates.factor(0) == pytest.approx(0.5)

    second, second_schedule = started()
    second.load_state_dict(first.state_dict())
    second_schedule.load_state_dict(first_schedule.state_dict())
    found = Rates(second, second_schedule).factor(0)
    assert found == pytest.approx(0.5 if carries_on else 1.0)
    if carries_on:
        wanted = move(plain, plain_schedule, 3)
        assert move(second, second_schedule, 3) == pytest.approx([0.5 * rate for rate in wanted])
