"""The whole state of a FullyShardedDataParallel model, by that class's own means.

Its optimizer may hold flat parameters, each of many in one; they are told apart by their names.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import torch

from launchhelm.torch._wrapping import clean

State = dict[str, Any]  # Any: what a state_dict() holds is the module's and the optimizer's own.


def full_state(model: torch.nn.Module, optimizer: Any) -> tuple[State, State]:
    """Gather both whole states on rank 0 of the model's group, on the CPU. Collective."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    names = _names(model, optimizer)
    with _whole(model, rank0_only=True):
        model_state = {clean(name): value for name, value in model.state_dict().items()}
        named: State = {}
        if optimizer.state:
            named = FullyShardedDataParallel.optim_state_dict(model, optimizer).get("state", {})
    number = {name: index for index, name in enumerate(chain.from_iterable(names))}
    groups = []
    for group, inside in zip(optimizer.param_groups, names, strict=True):
        groups.append({**group, "params": [number[name] for name in inside]})
    by_number = {number[clean(name)]: value for name, value in named.items()}
    return model_state, {"state": dict(sorted(by_number.items())), "param_groups": groups}


def load(
    model: torch.nn.Module, optimizer: Any, model_state: State, optimizer_state: Mapping[str, Any]
) -> None:
    """Take both whole states, which every rank holds. Collective."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    names = _names(model, optimizer)
    name = list(chain.from_iterable(names))
    named = {
        "state": {name[index]: value for index, value in optimizer_state["state"].items()},
        "param_groups": [
            {**group, "params": [name[index] for index in group["params"]]}
            for group in optimizer_state["param_groups"]
        ],
    }
    with _whole(model, rank0_only=False):
        model.load_state_dict(
            {wrapped: model_state[clean(wrapped)] for wrapped in model.state_dict()}
        )
        flat = FullyShardedDataParallel.optim_state_dict_to_load(model, optimizer, named)
    optimizer.load_state_dict(flat)


def _names(model: torch.nn.Module, optimizer: Any) -> list[list[str]]:
    """Return the clean names in each group of the optimizer, in the order of the bare model."""
    place = {clean(path): index for index, (path, _) in enumerate(model.named_modules())}
    of: dict[Any, list[str]] = {}
    for path, parameter in model.named_parameters():
        inside = getattr(parameter, "_fqns", None)
        prefix = clean(path).removesuffix("_flat_param")
        of[parameter] = [prefix + clean(each) for each in inside] if inside else [clean(path)]
    return [
        sorted(
            (name for parameter in group["params"] for name in of[parameter]),
            key=lambda name: place[name.rpartition(".")[0]],
        )
        for group in optimizer.param_groups
    ]


@contextlib.contextmanager
def _whole(model: torch.nn.Module, *, rank0_only: bool) -> Iterator[None]:
    from torch.distributed.fsdp import (
        FullOptimStateDictConfig,
        FullStateDictConfig,
        FullyShardedDataParallel,
        StateDictType,
    )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        with FullyShardedDataParallel.state_dict_type(
            model,
            StateDictType.FULL_STATE_DICT,
            FullStateDictConfig(offload_to_cpu=True, rank0_only=rank0_only),
            FullOptimStateDictConfig(offload_to_cpu=True, rank0_only=rank0_only),
        ):
            yield
