"""`eval`: run the script's evaluation on every rank, and leave the training as it was.

What is put back: the training flag of each module, the gradients, whether gradients are recorded,
and the random states of Python, NumPy, torch and its CUDA devices. So the losses that follow are
those of a training that was not evaluated.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from launchhelm.controls import schema
from launchhelm.torch._controls import Payload, no_fields
from launchhelm.values import scalar


class Evaluation:
    """Call the script's function, log what it returns as `eval/<name>`, and return it.

    Args:
        function: Takes nothing; returns a mapping of numbers, texts and booleans, or None. Called
            on every rank at one step, in no collective of ours, so it may use collectives.
        model: Whose flags and gradients are put back.
        log: Gets {"eval/<name>": value}.
        notice: Told what was left out of the result.
    """

    name = "eval"
    input_schema = no_fields()

    def __init__(
        self,
        function: Callable[[], Any],
        model: Any,
        log: Callable[[Mapping[str, Any]], object],
        notice: Callable[[str], object],
    ) -> None:
        self._function = function
        self._model = model
        self._log = log
        self._notice = notice

    def problem(self, payload: Payload) -> str:
        """Judge by the schema."""
        return schema.check(self.input_schema, payload)

    def apply(self, payload: Payload) -> Mapping[str, Any]:
        """Evaluate. Whatever the function raises leaves here, after all was put back."""
        with undisturbed(self._model):
            found = self._function()
        if found is None:
            return {}
        if not isinstance(found, Mapping):
            self._notice(f"eval_fn returned {type(found).__name__}, no mapping; it is left out.")
            return {}
        taken = {f"eval/{name}": _taken(value) for name, value in found.items()}
        odd = [name for name, value in taken.items() if value is None]
        if odd:
            self._notice(f"{', '.join(odd)[:200]} of eval_fn is no number, text or boolean.")
        values = {name: value for name, value in taken.items() if value is not None}
        self._log(values)
        return {
            name: value if isinstance(value, bool | str) else scalar(value)
            for name, value in values.items()
        }


@contextlib.contextmanager
def undisturbed(model: Any) -> Iterator[None]:
    """Put everything back that a training would notice of what is done inside."""
    modules = list(model.modules()) if isinstance(model, torch.nn.Module) else []
    flags = [module.training for module in modules]
    parameters = list(model.parameters()) if modules else []
    # Put aside, so that what is done inside cannot add to them.
    gradients = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    records_gradients = torch.is_grad_enabled()
    restore_random = _random_states()
    try:
        yield
    finally:
        restore_random()
        torch.set_grad_enabled(records_gradients)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        for module, flag in zip(modules, flags, strict=True):
            module.training = flag


def _random_states() -> Callable[[], None]:
    """Remember the random states of this process; returns what puts them back."""
    python, cpu = random.getstate(), torch.get_rng_state()
    # What was never used has no state worth keeping, and asking would load it.
    numpy: Any = sys.modules.get("numpy")
    of_numpy = numpy.random.get_state() if numpy is not None else None
    has_cuda = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    of_cuda = torch.cuda.get_rng_state_all() if has_cuda else []

    def restore() -> None:
        random.setstate(python)
        torch.set_rng_state(cpu)
        if of_numpy is not None:
            numpy.random.set_state(of_numpy)
        if of_cuda:
            torch.cuda.set_rng_state_all(of_cuda)

    return restore


def _taken(value: Any) -> bool | str | int | float | None:
    """Return a value as a plain one, None when it is none; a tensor becomes its mean."""
    if isinstance(value, torch.Tensor):
        whole = value.detach()
        whole = whole.full_tensor() if hasattr(whole, "full_tensor") else whole
        return None if whole.is_complex() else float(whole.double().mean())
    if isinstance(value, bool | str):
        return value
    if isinstance(value, int | float):
        return value
    try:
        return float(value)  # Of NumPy, a Decimal, a Fraction.
    except (TypeError, ValueError, OverflowError):
        return None
