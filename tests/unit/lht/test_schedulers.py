"""A commanded learning rate survives every scheduler, exactly."""

from __future__ import annotations

import copy
import inspect
import io
import math
import pickle
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import pytest
import torch
from torch.optim import SGD, Optimizer, swa_utils
from torch.optim import lr_scheduler as torch_schedulers
from torch.optim.swa_utils import SWALR

from launchhelm.torch._learning_rate import LearningRate
from launchhelm.torch._schedulers import Rates, unsound

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


def scale(groups: list[int], factors: list[float]) -> Callable[[Rates], None]:
    def act(rates: Rates) -> None:
        for factor in factors:
            rates.apply(rates.scaled(groups, factor))

    return act


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


@pytest.mark.parametrize("name", SCHEDULERS)
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


@pytest.mark.parametrize("name", ["ExponentialLR", "LambdaLR", "CosineAnnealingLR"])
def test_groups_that_share_one_tensor_are_scaled_once_and_only_alike(name: str) -> None:
    """As with `Adam(groups, lr=torch.tensor(0.1))`: torch gives all groups the same object."""

    def shared() -> Any:
        groups = [{"params": [torch.nn.Parameter(torch.zeros(2))]} for _ in range(2)]
        return torch.optim.Adam(groups, lr=torch.tensor(0.1))

    optimizer, plain = shared(), run(SCHEDULERS[name], optimizer=shared())
    rates = Rates(optimizer)
    assert rates.torn(rates.scaled([1], 0.5)) == "groups 0 and 1"
    assert "one tensor" in LearningRate(rates).problem({"scale": 0.5, "group": 1})
    assert LearningRate(rates).problem({"scale": 0.5}) == ""
    seen = follow(
        SCHEDULERS[name], {4: scale([0, 1], [0.5, 0.5]), 9: scale([0, 1], [2])}, optimizer=optimizer
    )
    assert optimizer.param_groups[0]["lr"] is optimizer.param_groups[1]["lr"]
    for index, row in enumerate(seen):
        assert row == [rate * (1, 0.25, 0.5)[(index >= 4) + (index >= 9)] for rate in plain[index]]


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"fused": True}], ids=str)
@pytest.mark.parametrize("rate", [0.25, torch.tensor(0.25)], ids=["float", "tensor"])
def test_the_real_update_follows_whichever_way_the_optimizer_takes_its_step(
    rate: Any, options: dict[str, bool]
) -> None:
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = SGD([parameter], lr=copy.deepcopy(rate), **options)
    assert updates(optimizer, parameter) == [0.25, 0.125, 0.03125, 0.0625]


def updates(optimizer: Any, parameter: Any, made: Callable[[Any], Any] = copy.copy) -> list[float]:
    """Return by how much a parameter moves per step: at first, scheduled, commanded, undone."""
    scheduler = torch_schedulers.StepLR(optimizer, step_size=1, gamma=0.5)
    optimizer_step = made(optimizer.step)
    rates = Rates(optimizer, scheduler)
    seen = []
    for factor in (None, None, 0.5, 4.0):
        if factor:
            rates.apply(rates.scaled([0], factor))
        before = float(parameter.detach()[0])
        parameter.grad = torch.ones(2)
        optimizer_step()
        seen.append(before - float(parameter.detach()[0]))
        scheduler.step()
    return seen


@pytest.mark.parametrize("rate", [0.25, torch.tensor(0.25)], ids=["float", "tensor"])
def test_a_compiled_step_follows_and_is_compiled_again_at_most_once_per_change(rate: Any) -> None:
    """Never for a tensor; for a float at most once for each of its three changes."""
    from torch._dynamo.testing import CompileCounter  # Slow to import.

    counter = CompileCounter()
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = SGD([parameter], lr=copy.deepcopy(rate))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Dynamo's own.
        seen = updates(optimizer, parameter, lambda step: torch.compile(step, backend=counter))
    assert seen == [0.25, 0.125, 0.03125, 0.0625]
    assert counter.frame_count <= (1 if isinstance(rate, torch.Tensor) else 4)


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
