"""A commanded learning rate survives every scheduler, exactly."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import SGD, Optimizer, swa_utils
from torch.optim import lr_scheduler as torch_schedulers

from launchhelm.torch._schedulers import Rates, unsound
from tests.support.schedules import (
    SCHEDULERS,
    STEPS,
    MakeScheduler,
    cyclic,
    follow,
    make_optimizer,
    one_cycle,
    run,
    scale,
    step,
    step_by_epoch,
    tensor_optimizer,
    warm_up_then_one_cycle,
)


class HomeMade:
    """A scheduler that torch knows nothing of."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.calls = 0

    def step(self) -> None:
        self.calls += 1
        for group in self.optimizer.param_groups:
            group["lr"] = 0.1 / self.calls


def classes_of_torch() -> set[type]:
    """Return every scheduler class of the installed torch, but for the two bases."""
    return {
        each
        for module in (torch_schedulers, swa_utils)
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, torch_schedulers.LRScheduler)
    } - {torch_schedulers.LRScheduler, torch_schedulers._LRScheduler}


def test_every_scheduler_class_of_the_installed_torch_is_in_the_table() -> None:
    """A class that torch adds fails here until it has a row, or a test of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = {type(make(make_optimizer())) for make in SCHEDULERS.values()}
    assert made | {torch_schedulers.ReduceLROnPlateau} == classes_of_torch()


# The factor at a time, in powers of 2: these are exact in floats, so that a schedule with scaled
# hyper-parameters gives the same bits. Twice in a row at 4, undone at 17, again at 22.
COMMANDS: dict[int, list[float]] = {2: [0.5], 4: [0.5, 8.0], 11: [0.25], 17: [2.0], 22: [0.125]}


def factor_at(index: int) -> float:
    return math.prod(factor for at, all_ in COMMANDS.items() if at <= index for factor in all_)


def takes_epochs(make: MakeScheduler) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return "epoch" in inspect.signature(make(make_optimizer()).step).parameters


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("rates", [(0.1,), (0.1, 0.04)], ids=["one group", "two groups"])
def test_a_scaled_schedule_is_the_one_with_scaled_hyper_parameters(
    name: str, rates: tuple[float, ...]
) -> None:
    """Bit for bit, step by step, against torch's own schedule made with the factor from the start.

    The last group is commanded, so that of two groups the first shows that it is left alone.
    """
    assert factor_at(17) == 1.0, "undone"
    make, last = SCHEDULERS[name], len(rates) - 1
    for way in [step, step_by_epoch] if takes_epochs(make) else [step]:
        alike: dict[float, list[list[float]]] = {}
        for factor in {factor_at(index) for index in range(STEPS)}:
            scaled = make_optimizer(tuple(rate * factor for rate in rates))
            alike[factor] = run(make, optimizer=scaled, by=factor, step=way)
        acts = {at: scale([last], factors) for at, factors in COMMANDS.items()}
        seen = follow(make, acts, optimizer=make_optimizer(rates), step=way)
        for index, row in enumerate(seen):
            assert row[last] == alike[factor_at(index)][index][last], (index, way)
            assert row[:last] == alike[1.0][index][:last], (index, way)


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


@pytest.mark.parametrize("floors", [[0.0], [0.01, 0.004]], ids=["one group", "two groups"])
def test_a_plateau_scheduler_goes_on_from_the_commanded_rate_and_keeps_its_absolute_floor(
    floors: list[float],
) -> None:
    """Against a simulation, float by float; the last group is commanded."""
    optimizer = make_optimizer((0.1, 0.04)[: len(floors)])
    scheduler = torch_schedulers.ReduceLROnPlateau(
        optimizer, factor=0.5, patience=1, cooldown=1, min_lr=floors
    )
    rates = Rates(optimizer, scheduler)
    expected, best = rates.now(), math.inf
    bad = cooling = 0
    for index in range(STEPS):
        for factor in COMMANDS.get(index, []):
            rates.apply(rates.scaled([len(floors) - 1], factor))
            expected[-1] *= factor
        metric = 1.0 if index % 5 else 1.0 - index / 100
        scheduler.step(metric)
        best, bad = (metric, 0) if metric < best * (1 - 1e-4) else (best, bad + 1)
        if cooling:
            cooling, bad = cooling - 1, 0
        if bad > 1:
            cooling, bad = 1, 0
            for group, floor in enumerate(floors):
                lower = max(expected[group] * 0.5, floor)
                if expected[group] - lower > 1e-8:
                    expected[group] = lower
        assert rates.now() == expected, index
    assert rates.multipliers() == [1.0] * len(floors)


class WarmUpThenPlateau:
    """What torch's own compositions refuse: a ReduceLROnPlateau inside another scheduler."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.warm_up = torch_schedulers.LinearLR(optimizer, start_factor=0.1, total_iters=5)
        self.plateau = torch_schedulers.ReduceLROnPlateau(
            optimizer, factor=0.5, patience=0, min_lr=0.01
        )
        self.steps = 0

    def step(self) -> None:
        self.steps += 1
        if self.steps <= 5:
            self.warm_up.step()
        else:
            self.plateau.step(1.0)


def test_a_plateau_inside_another_scheduler_is_scaled_with_its_floor() -> None:
    def make(optimizer: Optimizer, by: float = 1.0) -> Any:
        return WarmUpThenPlateau(optimizer)

    plain = run(make)
    for at in (2, 7, 20):
        scaled = run(make, scale([0, 1], [0.5]), at=at)
        assert scaled[:at] == plain[:at]
        assert scaled[at:] == [[rate * 0.5 for rate in row] for row in plain[at:]]
    plateau = WarmUpThenPlateau(make_optimizer()).plateau
    for refuses in (
        lambda: torch_schedulers.ChainedScheduler([plateau]),
        lambda: torch_schedulers.SequentialLR(plateau.optimizer, [plateau], []),
    ):
        with pytest.raises(ValueError, match="does not support `ReduceLROnPlateau`"):
            refuses()


@pytest.mark.parametrize(
    "make", [cyclic(), one_cycle(), warm_up_then_one_cycle], ids=["cyclic", "one", "nested"]
)
@pytest.mark.parametrize("kind", [SGD, torch.optim.Adam])
def test_a_momentum_that_the_schedule_moves_is_not_scaled(make: MakeScheduler, kind: Any) -> None:
    moved = "momentum" if kind is SGD else "betas"
    momenta: list[list[Any]] = []
    for factor in (1.0, 0.5):
        optimizer = kind(
            make_optimizer().param_groups, **({"momentum": 0.9} if kind is SGD else {})
        )
        seen: list[Any] = []

        def look(scheduler: Any, index: int, seen: Any = seen, optimizer: Any = optimizer) -> None:
            scheduler.step()
            seen.append([group[moved] for group in optimizer.param_groups])

        run(make, scale([0, 1], [factor]), at=3, optimizer=optimizer, step=look)
        momenta.append(seen)
    assert momenta[0] == momenta[1]
    assert len({str(each) for each in momenta[0]}) > 5, "it does move"


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


ENDS_AT_ZERO: dict[str, Callable[[Optimizer], Any]] = {
    "polynomial": lambda o: torch_schedulers.PolynomialLR(o, total_iters=6),
    "linear": lambda o: torch_schedulers.LinearLR(o, 1.0, 0.0, total_iters=6),
    "linear, but for rounding": lambda o: torch_schedulers.LinearLR(o, 0.3, 0.0, total_iters=6),
    "exponential": lambda o: torch_schedulers.ExponentialLR(o, gamma=0.0),
    "step": lambda o: torch_schedulers.StepLR(o, step_size=3, gamma=0.0),
    "multi step": lambda o: torch_schedulers.MultiStepLR(o, [4], gamma=0.0),
    "multiplicative": lambda o: torch_schedulers.MultiplicativeLR(o, lambda step: float(step < 5)),
    "lambda": lambda o: torch_schedulers.LambdaLR(o, lambda step: max(0.0, 1 - step / 6)),
    "tensor": lambda o: torch_schedulers.LambdaLR(o, lambda step: max(0.0, 1 - step / 6)),
}


@pytest.mark.parametrize("name", ENDS_AT_ZERO)
def test_a_rate_commanded_at_the_end_of_a_schedule_stays_and_is_scaled_as_it_is(name: str) -> None:
    optimizer = tensor_optimizer() if name == "tensor" else make_optimizer()
    scheduler = ENDS_AT_ZERO[name](optimizer)
    rates = Rates(optimizer, scheduler)

    def go_on(steps: int) -> list[float]:
        for _ in range(steps):
            optimizer.step()
            scheduler.step()
        return rates.now()

    assert go_on(6) == pytest.approx([0.0, 0.0], abs=1e-15)
    rates.apply(rates.absolute([0, 1], 0.2))
    assert go_on(3) == [0.2, 0.2]
    rates.apply(rates.scaled([1], 0.5))
    assert rates.now() == go_on(3) == [0.2, 0.1]
    rates.apply(rates.scaled([1], 0.5))
    rates.apply(rates.scaled([1], 4.0))
    assert rates.now() == go_on(3) == [0.2, 0.2]


def test_a_cosine_that_rises_again_is_scaled_by_what_was_commanded_at_its_end() -> None:
    def make(optimizer: Optimizer, by: float = 1.0) -> Any:
        return torch_schedulers.CosineAnnealingLR(optimizer, T_max=8)

    plain = run(make)
    assert plain[7] == [0.0, 0.0]
    risen = run(make, lambda rates: rates.apply(rates.absolute([0, 1], 0.05)), at=8)
    for ours, torchs in zip(risen[8:], plain[8:], strict=True):
        assert ours == [torchs[0] * (0.05 / 0.1), torchs[1] * (0.05 / 0.04)]


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


def test_a_schedule_that_raises_leaves_the_rate_as_it_was() -> None:
    optimizer = make_optimizer()
    scheduler = torch_schedulers.OneCycleLR(optimizer, max_lr=0.3, total_steps=2)
    rates = Rates(optimizer, scheduler)
    optimizer.step()
    scheduler.step()
    rates.apply(rates.scaled([0, 1], 0.5))
    scheduler.step()
    before = rates.now()
    with pytest.raises(ValueError, match="Tried to step 3 times"):
        scheduler.step()
    assert rates.now() == before


def test_a_schedule_made_after_a_command_starts_from_the_commanded_rate() -> None:
    optimizer = make_optimizer()
    unscheduled = Rates(optimizer)
    unscheduled.apply(unscheduled.absolute([1], 0.4))
    seen = run(SCHEDULERS["LambdaLR"], scale([0, 1], [0.5]), optimizer=optimizer)
    plain = run(SCHEDULERS["LambdaLR"], optimizer=make_optimizer((0.1, 0.4)))
    assert seen[:10] == plain[:10]
    assert seen[10:] == [[rate * 0.5 for rate in row] for row in plain[10:]]


def test_a_snapshot_restores_rates_and_schedule_exactly() -> None:
    def act(rates: Rates) -> None:
        rates.apply(rates.scaled([0], 0.7))
        snapshot = rates.snapshot()
        rates.apply(rates.absolute([0, 1], 0.5))
        rates.restore(snapshot)

    plain = run(SCHEDULERS["CosineAnnealingLR"])
    back = run(SCHEDULERS["CosineAnnealingLR"], act)
    assert back[10:] == [[row[0] * 0.7, row[1]] for row in plain[10:]]


def test_unhooking_gives_the_class_back_and_keeps_the_rates() -> None:
    optimizer = make_optimizer()
    scheduler = torch_schedulers.StepLR(optimizer, step_size=100)
    rates = Rates(optimizer, scheduler)
    assert isinstance(scheduler, torch_schedulers.StepLR)
    rates.apply(rates.scaled([0], 0.5))
    rates.unhook()
    assert type(scheduler) is torch_schedulers.StepLR
    assert rates.now() == [0.05, 0.04]


def test_a_factor_that_overflows_is_not_sound() -> None:
    rates = Rates(make_optimizer())
    assert unsound(rates.scaled([0], 0.5)[0]) == ""
    for factor in (float("inf"), 1e300, 1e-300):
        assert "rate" in unsound(rates.scaled([0], factor)[0])
    assert "rate" in unsound(rates.absolute([0], float("nan"))[0])
