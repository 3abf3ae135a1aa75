"""The series that a Trainer logs by itself, built without waiting for a device.

A logging rank keeps one `Series`. It turns one call of `Trainer.step` into at most one mapping, so
that the recorder gets one record per step. A value on a device is copied there and fetched by the
recorder's thread later.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from launchhelm.records import MetricValue
from launchhelm.values import Lazy

_WIDE = (torch.float32, torch.float64)
_PLAIN = frozenset((float, int, type(None)))


class DeviceValue(Lazy):
    """One value on a device, copied on the stream that made it.

    The recorder's thread works on another stream, so it must wait for the copy before it reads.
    """

    __slots__ = ("_copied",)

    def __init__(self, value: torch.Tensor) -> None:
        """Copy one element; `value` itself is not kept."""
        copy = value.detach().clone()
        super().__init__(copy, "boolean" if copy.dtype is torch.bool else "number")
        self._copied: Any = None  # Any: the event class of the device's own module.
        if copy.is_cuda:
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record(torch.cuda.current_stream(copy.device))

    def resolve(self) -> MetricValue:
        """Fetch the value; waits for the device, on the recorder's thread only."""
        if self._copied is not None:
            self._copied.synchronize()
        return super().resolve()


def taken(value: Any) -> Any:
    """Return what a value is now: tensors become numbers or device copies, the rest stays.

    A tensor of several elements becomes its mean. No reference to the tensor or its graph is kept.
    """
    if type(value) is torch.Tensor and value.is_cpu and value.numel() == 1:
        return value.item()
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach()
    if hasattr(value, "to_local"):  # A DTensor: gathering it would be a collective.
        value = value.to_local()
    if value.numel() != 1:
        value = (value if value.dtype in _WIDE else value.float()).mean()
    return value.item() if value.device.type == "cpu" else DeviceValue(value)


def counted(name: str, value: Any) -> Any:
    """Return a count that a script gave: a number, a tensor of one element, or None.

    Raises:
        TypeError: It is something else.
    """
    if type(value) in _PLAIN:
        return value
    if isinstance(value, torch.Tensor):
        if value.numel() == 1 and not value.is_complex():
            return value.detach()
    elif hasattr(value, "__float__"):
        return float(value)
    raise TypeError(f"{name} must be a number, got {value!r:.100}; use int(...).")


class Series:
    """Builds the built-in metrics of one logging rank.

    Args:
        fault: Told of what could not be read, and why; the rest is kept.
    """

    def __init__(
        self, fault: Callable[[str, Exception], object] = lambda what, error: None
    ) -> None:
        self._fault = fault
        self.log_every = 1
        self.grad_norm: float | None = None
        self.skipped_steps: int | None = None
        self._optimizer: Any = None
        self._scaler: Any = None
        self._logged: dict[str, list[Any]] = {"lr": [], "weight_decay": []}
        self._names: dict[str, list[str]] = {"lr": [], "weight_decay": []}
        self._has_cuda = torch.cuda.is_available()
        self._window_from: float | None = None
        self._window_calls = 0
        self._window_counts = {"samples": 0.0, "tokens": 0.0}

    def watch(self, optimizer: Any, scaler: Any, log_every: int) -> None:
        """Log rates and decay of this optimizer from now on."""
        self.log_every = log_every
        self._optimizer = optimizer
        self._scaler = scaler
        self._logged = {"lr": [], "weight_decay": []}

    def leave_out(self, seconds: float) -> None:
        """Count time since the last call of `at_step` for no step: the loop was told to pause."""
        if self._window_from is not None:
            self._window_from += seconds

    def at_step(
        self,
        step: int,
        now: float,
        *,
        loss: Any,
        samples: float | None,
        tokens: float | None,
        metrics: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        """Return what to log at this call of `step`; empty when nothing is due.

        Args:
            step: The step that ended.
            now: Monotonic seconds.
            loss: A number, or a tensor on any device.
            samples: How many samples this step saw.
            tokens: How many tokens this step saw.
            metrics: The script's own.
        """
        due = step % self.log_every == 0
        body: dict[str, Any] = {}
        if due and metrics:
            for name, value in metrics.items():
                self._try("metrics", self._take, name, value, body)
        if due and loss is not None:
            self._try("loss", self._take_loss, loss, body)
        if due and self.grad_norm is not None:
            body["optim/grad_norm"] = self.grad_norm
        if due and self.skipped_steps is not None:
            body["optim/skipped_steps"] = self.skipped_steps
        if self._optimizer is not None:
            self._try("lr", self._rates, "lr", body, due)
            self._try("weight decay", self._rates, "weight_decay", body, due)
        samples, tokens = self._count("samples", samples), self._count("tokens", tokens)
        self._try("pace", self._pace, now, samples, tokens, body, due)
        if due:
            self._try("loss scale", self._state, body)
        return body

    def _try(self, what: str, part: Callable[..., None], *arguments: Any) -> None:
        """Let one part of the record fail alone."""
        try:
            part(*arguments)
        except Exception as error:  # Training goes on, and so does the rest of the record.
            self._fault(what, error)

    def _count(self, name: str, value: Any) -> Any:
        try:
            return counted(name, value)
        except Exception as error:
            self._fault(name, error)
        return None

    def _take(self, name: str, value: Any, body: dict[str, Any]) -> None:
        body[name] = taken(value)

    def _take_loss(self, loss: Any, body: dict[str, Any]) -> None:
        if not hasattr(loss, "__float__"):  # A first loss that is text would make all texts.
            raise TypeError(f"loss must be a number or a tensor, got {loss!r:.100}.")
        body["train/loss"] = taken(loss)

    def _state(self, body: dict[str, Any]) -> None:
        if self._has_cuda and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            body["cuda/max_memory_allocated_bytes"] = torch.cuda.max_memory_allocated()
        if self._scaler is not None:
            body["loss_scale"] = _loss_scale(self._scaler)

    def _rates(self, field: str, body: dict[str, Any], due: bool) -> None:
        """Log one list when it is due or has changed; a tensor's version tells of a change."""
        values = [group.get(field) for group in self._optimizer.param_groups]
        marks = values
        if not _PLAIN.issuperset(map(type, values)):
            marks = [each._version if isinstance(each, torch.Tensor) else each for each in values]
        if not due and marks == self._logged[field]:
            return
        self._logged[field] = marks
        names = self._names[field]
        while len(names) < len(values):
            names.append(f"optim/{field}/group{len(names)}")
        for name, value in zip(names, values, strict=False):
            if value is not None:
                body[name] = value if type(value) is float else taken(value)

    def _pace(
        self,
        now: float,
        samples: float | None,
        tokens: float | None,
        body: dict[str, Any],
        due: bool,
    ) -> None:
        """Log means over all calls since the last due one, not only over the last step."""
        if self._window_from is None:
            self._window_from = now
            return
        self._window_calls += 1
        counts = self._window_counts
        if samples is not None:
            counts["samples"] += samples
        if tokens is not None:
            counts["tokens"] += tokens
        if not due:
            return
        elapsed = now - self._window_from
        body["perf/step_time_s"] = elapsed / self._window_calls
        if elapsed > 0:
            if samples is not None:
                body["perf/samples_per_s"] = taken(counts["samples"] / elapsed)
            if tokens is not None:
                body["perf/tokens_per_s"] = taken(counts["tokens"] / elapsed)
        self._window_from = now
        self._window_calls = 0
        counts["samples"] = counts["tokens"] = 0.0


def _loss_scale(scaler: Any) -> Any:
    # get_scale() waits for the device; the scaler's own tensor can be fetched later.
    scale = getattr(scaler, "_scale", None)
    return taken(scale) if isinstance(scale, torch.Tensor) else scaler.get_scale()


def as_float64(value: Any) -> tuple[torch.Tensor, str]:
    """Return a number or tensor as a flat float64 tensor on the CPU, and why it is not that.

    What is no number becomes NaN, of the same length where it has one: other ranks wait for it.
    """
    length = 1
    try:
        if not isinstance(value, torch.Tensor):
            return torch.tensor([float(value)], dtype=torch.float64), ""
        length = value.numel()
        if not value.is_complex():
            return value.detach().to("cpu", torch.float64).flatten(), ""
        why = "it is complex"
    except Exception as error:  # The value may be of any class of the script.
        why = f"{type(value).__name__} is no number ({error})"[:200]
    return torch.full((length,), math.nan, dtype=torch.float64), why
