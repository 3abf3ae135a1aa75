"""A rate that is a tensor, or that a compiled step has read, is changed where it is used."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import SGD
from torch.optim import lr_scheduler as torch_schedulers

from launchhelm.torch._learning_rate import LearningRate
from launchhelm.torch._schedulers import Rates
from tests.support.schedules import SCHEDULERS, follow, run, scale, tensor_optimizer


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


@pytest.mark.parametrize("kind", ["SGD", "Adam", "capturable Adam"])
@pytest.mark.parametrize("rate", [0.25, torch.tensor(0.25)], ids=["float", "tensor"])
def test_one_command_compiles_a_step_again_once_for_a_float_and_never_for_a_tensor(
    rate: Any, kind: str
) -> None:
    """Torch allows a capturable optimizer on the CPU only where its step is compiled."""
    from torch._dynamo.testing import CompileCounter  # Slow to import.

    counter, parameter = CompileCounter(), torch.nn.Parameter(torch.zeros(2))
    own = copy.deepcopy(rate)
    optimizer: Any = SGD([parameter], lr=own)
    if kind != "SGD":
        optimizer = torch.optim.Adam([parameter], lr=own, capturable=kind != "Adam")
    compiled = torch.compile(optimizer.step, backend=counter)

    def updates(steps: int) -> list[float]:
        seen = []
        for _ in range(steps):
            before = parameter.detach().clone()
            parameter.grad = torch.ones(2)
            compiled()  # type: ignore[no-untyped-call]
            seen.append(float((before - parameter.detach())[0]))
        return seen

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Dynamo's own.
        assert updates(3) == pytest.approx([0.25] * 3, rel=1e-4)
        before = counter.frame_count
        rates = Rates(optimizer)
        rates.apply(rates.scaled([0], 0.5))
        assert updates(3) == pytest.approx([0.125] * 3, rel=1e-4)
    again = counter.frame_count - before
    assert again == 0 if isinstance(rate, torch.Tensor) else again <= 1
    assert optimizer.param_groups[0]["lr"] is own or not isinstance(rate, torch.Tensor)
