"""Built-in series: which values, at which steps, without holding on to tensors."""

from __future__ import annotations

import gc
import weakref
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim import SGD

from launchhelm.torch._clipping import clip
from launchhelm.torch._metrics import DeviceValue, Series, as_float64, taken


def optimizer(*rates: float, **options: Any) -> SGD:
    return SGD(
        [{"params": [torch.nn.Parameter(torch.zeros(2))], "lr": rate} for rate in rates], **options
    )


def at(series: Series, step: int, now: float = 0.0, **given: Any) -> dict[str, Any]:
    arguments = {"loss": None, "samples": None, "tokens": None, "metrics": None, **given}
    return series.at_step(step, now, **arguments)


def test_a_step_without_arguments_logs_only_the_time() -> None:
    series = Series()
    assert at(series, 1, 10.0) == {}
    assert at(series, 2, 10.5) == {"perf/step_time_s": 0.5}


def test_the_loss_wins_over_a_metric_of_the_same_name() -> None:
    body = at(Series(), 1, loss=0.5, metrics={"train/loss": 9, "acc": 1})
    assert body == {"train/loss": 0.5, "acc": 1}


@pytest.mark.parametrize(
    ("loss", "value"),
    [
        (torch.tensor(0.5), 0.5),
        (torch.tensor([0.25]), 0.25),
        (torch.tensor([1.0, 2.0, 6.0]), 3.0),
        (torch.tensor([1, 2]), 1.5),
        (torch.tensor([1.0, 2.0], dtype=torch.bfloat16), 1.5),
        (torch.tensor(7), 7),
        (torch.tensor(True), True),
        (torch.tensor(2.0, requires_grad=True) * 2, 4.0),
        (3, 3),
    ],
)
def test_a_loss_is_detached_and_averaged(loss: Any, value: Any) -> None:
    logged = at(Series(), 1, loss=loss)["train/loss"]
    assert logged == value and type(logged) is type(value)


def test_no_reference_to_a_loss_or_its_graph_is_kept() -> None:
    series = Series()
    loss = (torch.ones(1000, requires_grad=True) * 2).sum()
    alive = weakref.ref(loss)
    at(series, 1, loss=loss, metrics={"again": loss})
    del loss
    gc.collect()
    assert alive() is None


def test_rates_are_logged_when_due_and_when_they_change() -> None:
    given = optimizer(0.1, 0.2, weight_decay=0.01)
    series = Series()
    series.watch(given, None, log_every=5)
    first = at(series, 1)
    assert first == {
        "optim/lr/group0": 0.1,
        "optim/lr/group1": 0.2,
        "optim/weight_decay/group0": 0.01,
        "optim/weight_decay/group1": 0.01,
    }
    assert at(series, 2) == {}
    given.param_groups[1]["lr"] = 0.3
    assert at(series, 3) == {"optim/lr/group0": 0.1, "optim/lr/group1": 0.3}
    assert at(series, 4) == {}
    assert set(at(series, 5, 1.0)) == {*first, "perf/step_time_s"}


def test_a_tensor_rate_changed_in_place_is_noticed() -> None:
    given = torch.optim.Adam([torch.nn.Parameter(torch.zeros(2))], lr=torch.tensor(0.5))
    series = Series()
    series.watch(given, None, log_every=100)
    at(series, 1)
    assert at(series, 2) == {}
    given.param_groups[0]["lr"].fill_(0.25)
    assert at(series, 3) == {"optim/lr/group0": 0.25}


def test_an_optimizer_without_weight_decay_logs_none() -> None:
    given = torch.optim.LBFGS([torch.nn.Parameter(torch.zeros(2))], lr=0.5)
    series = Series()
    series.watch(given, None, log_every=1)
    assert at(series, 1) == {"optim/lr/group0": 0.5}


def test_rates_of_work_are_means_over_the_window() -> None:
    series = Series()
    series.log_every = 2
    at(series, 1, 0.0, samples=100, tokens=1)
    at(series, 2, 1.0, samples=8, tokens=10)
    at(series, 3, 2.0, samples=8, tokens=10)
    body = at(series, 4, 5.0, samples=24, tokens=30)
    assert body == {
        "perf/step_time_s": 2.0,
        "perf/samples_per_s": 8.0,
        "perf/tokens_per_s": 10.0,
    }


def test_a_part_that_cannot_be_read_is_told_and_costs_no_other() -> None:
    class Broken:
        def get_scale(self) -> float:
            raise RuntimeError("the scaler's own")

    faults: list[str] = []
    series = Series(lambda what, error: faults.append(f"{what}: {error}"))
    series.watch(optimizer(0.1), Broken(), log_every=1)
    at(series, 1, 0.0)
    odd = at(series, 2, 1.0, loss="1.5", samples="5", tokens=8, metrics={"b": 2})
    assert odd == {
        "b": 2,
        "optim/lr/group0": 0.1,
        "optim/weight_decay/group0": 0,
        "perf/step_time_s": 1.0,
        "perf/tokens_per_s": 8.0,
    }
    assert [text.split(":")[0] for text in faults] == [
        "loss scale",
        "loss",
        "samples",
        "loss scale",
    ]
    assert "samples must be a number, got '5'; use int(...)." in faults[2]
    assert at(series, 3, 2.0, samples=4)["perf/samples_per_s"] == 4.0


@pytest.mark.parametrize("count", [5, 5.0, torch.tensor([5]), np.int64(5), Fraction(5)])
def test_a_count_may_be_any_number(count: Any) -> None:
    series = Series()
    at(series, 1, 0.0, samples=count)
    assert at(series, 2, 1.0, samples=count)["perf/samples_per_s"] == 5.0


def test_two_calls_at_the_same_instant_have_no_rate() -> None:
    series = Series()
    at(series, 1, 3.0)
    assert at(series, 2, 3.0, samples=5) == {"perf/step_time_s": 0.0}


def test_the_norm_of_the_gradients_repeats_once_it_is_known() -> None:
    series = Series()
    assert "optim/grad_norm" not in at(series, 1)
    series.grad_norm = 1.5
    assert at(series, 2, 1.0)["optim/grad_norm"] == 1.5
    assert at(series, 3, 2.0)["optim/grad_norm"] == 1.5


def test_the_scale_of_a_watched_scaler_is_logged() -> None:
    series = Series()
    series.watch(optimizer(0.1), torch.amp.GradScaler("cpu", init_scale=8.0), 1)
    assert at(series, 1)["loss_scale"] == 8.0


def test_what_is_no_tensor_is_left_to_the_run() -> None:
    marker = object()
    assert taken(marker) is marker


def test_a_value_on_a_device_is_copied_at_once_and_fetched_later() -> None:
    loss = torch.tensor(2.0, requires_grad=True) * 3
    alive = weakref.ref(loss)
    value = DeviceValue(loss)
    loss.data.fill_(7.0)
    del loss
    gc.collect()
    assert alive() is None
    assert value.resolve() == 6.0
    assert value.kind == "number"
    assert DeviceValue(torch.tensor(True)).kind == "boolean"


@pytest.mark.parametrize(
    ("value", "flat"),
    [
        (3, [3.0]),
        (torch.tensor([[1, 2], [3, 4]]), [1.0, 2.0, 3.0, 4.0]),
        (torch.tensor(0.5, requires_grad=True), [0.5]),
        ("0.25", [0.25]),
    ],
)
def test_values_to_reduce_become_float64(value: Any, flat: list[float]) -> None:
    made, why = as_float64(value)
    assert made.dtype is torch.float64 and made.tolist() == flat and why == ""


class NoNumber:
    def __float__(self) -> float:
        raise KeyError("the script's own")


@pytest.mark.parametrize("value", ["word", None, object(), NoNumber(), torch.tensor(1j), 10**400])
def test_what_is_no_number_is_reduced_as_nan(value: Any) -> None:
    made, why = as_float64(value)
    assert made.isnan().tolist() == [True] and why


@pytest.mark.parametrize("value", [torch.ones(3, device="meta"), torch.ones(3) * 1j])
def test_a_tensor_that_cannot_be_read_keeps_its_length_so_that_ranks_fit(value: Any) -> None:
    made, why = as_float64(value)
    assert made.isnan().tolist() == [True, True, True] and why


def test_without_gradients_the_norm_is_zero() -> None:
    assert clip(None, optimizer(0.1), None) == 0.0
    assert clip(None, optimizer(0.1), 1.0) == 0.0


def test_a_sharded_model_clips_by_itself() -> None:
    class FullyShardedDataParallel:
        def clip_grad_norm_(self, limit: float) -> torch.Tensor:
            return torch.tensor(limit)

    assert clip(FullyShardedDataParallel(), optimizer(0.1), 2.0) == 2.0
