"""The random states of one process: what decides dropout, shuffling and noise from here on.

Those of Python, of NumPy, of torch on the CPU and of every CUDA device, as values that a checkpoint
can hold and that load without running code. Generators that a sampler or a worker has for itself
are the script's to save.
"""

from __future__ import annotations

import base64
import importlib
import random
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

State = dict[str, Any]  # Any: integers, lists of them, and tensors of bytes.

_NUMPY_GENERATOR: Final = "MT19937"
_TENSORS: Final = ("torch_cpu", "cuda")
_BYTES: Final = "$bytes"


def captured() -> State:
    """Return the states as they are now.

    Returns:
        `python`: `random.getstate()` in lists; `torch_cpu`: uint8 tensor; and where they are in
        use `cuda`: a uint8 tensor for each visible device, and `numpy`.

    Raises:
        ValueError: NumPy's global generator is not the one that can be saved.
    """
    version, words, gauss = random.getstate()
    state: State = {
        "python": [version, list(words), gauss],
        "torch_cpu": torch.get_rng_state(),
    }
    # What was never used has no state worth keeping, and asking would load it.
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = torch.cuda.get_rng_state_all()
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, position, has_gauss, cached = numpy.random.get_state()
        if name != _NUMPY_GENERATOR:
            raise ValueError(
                f"NumPy's global generator is {name}; only {_NUMPY_GENERATOR} can be saved. "
                "Keep a numpy.random.Generator of your own, and its state in extra="
            )
        state["numpy"] = {
            "name": name,
            "keys": [int(key) for key in keys],
            "position": int(position),
            "has_gauss": int(has_gauss),
            "cached_gauss": float(cached),
        }
    return state


def packed(state: State) -> State:
    """Return states as JSON, to be sent."""

    def text(value: Any) -> Any:
        if isinstance(value, list):
            return [text(each) for each in value]
        return {_BYTES: base64.b64encode(value.numpy()).decode()}

    return {**state, **{key: text(state[key]) for key in _TENSORS if key in state}}


def unpacked(state: State) -> State:
    """Return states that were packed."""

    def whole(value: Any) -> Any:
        if isinstance(value, dict) and _BYTES in value:
            data = bytearray(base64.b64decode(value[_BYTES]))
            return torch.frombuffer(data, dtype=torch.uint8)
        return [whole(each) for each in value] if isinstance(value, list) else value

    return {**state, **{key: whole(state[key]) for key in _TENSORS if key in state}}


def problem(state: object) -> str:
    """Say why these states cannot be restored here, "" when they can. Changes nothing."""
    try:
        if not isinstance(state, Mapping):
            raise TypeError(f"they are {type(state).__name__}, no mapping")
        random.Random().setstate(_python(state["python"]))
        torch.Generator().set_state(_bytes(state["torch_cpu"]))
        for each in _cuda(state):
            torch.Generator(device="cuda").set_state(_bytes(each))
        numpy = _numpy(state)
        if numpy is not None:
            numpy.random.RandomState().set_state(_numpy_tuple(state["numpy"]))
    except Exception as error:  # Whatever a file may hold: it is judged here and nowhere else.
        return f"its random states cannot be restored: {type(error).__name__}: {error}"
    return ""


def restore(state: Mapping[str, Any]) -> None:
    """Go on from these states; `problem` must have said "". Devices that are not here are left."""
    random.setstate(_python(state["python"]))
    torch.set_rng_state(_bytes(state["torch_cpu"]))
    for index, each in enumerate(_cuda(state)):
        torch.cuda.set_rng_state(_bytes(each), index)
    numpy = _numpy(state)
    if numpy is not None:
        numpy.random.set_state(_numpy_tuple(state["numpy"]))


def _python(state: Any) -> tuple[int, tuple[int, ...], float | None]:
    version, words, gauss = state
    return version, tuple(words), gauss


def _bytes(state: Any) -> torch.Tensor:
    if not isinstance(state, torch.Tensor) or state.dtype != torch.uint8 or state.is_cuda:
        raise TypeError("a state is no tensor of bytes on the CPU")
    return state.clone()


def _cuda(state: Mapping[str, Any]) -> Sequence[torch.Tensor]:
    if not torch.cuda.is_available():
        return ()
    return list(state.get("cuda", ()))[: torch.cuda.device_count()]


def _numpy(state: Mapping[str, Any]) -> Any:
    """Return NumPy where a file needs it and it can be had: this package does without."""
    if "numpy" not in state:
        return None
    try:
        return importlib.import_module("numpy")
    except ImportError:
        return None


def _numpy_tuple(state: Mapping[str, Any]) -> tuple[str, list[int], int, int, float]:
    keys = [int(key) for key in state["keys"]]
    name, cached = str(state["name"]), float(state["cached_gauss"])
    return name, keys, int(state["position"]), int(state["has_gauss"]), cached
