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

    names = names_of(model, optimizer)
    with _whole(model, saving=True):
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

    names = names_of(model, optimizer)
    name = list(chain.from_iterable(names))
    named = {
        "state": {name[index]: value for index, value in optimizer_state["state"].items()},
        "param_groups": [
            {**group, "params": [name[index] for index in group["params"]]}
            for group in optimizer_state["param_groups"]
        ],
    }
    with _whole(model, saving=False):
        model.load_state_dict(_by_own_names(model, model_state))
        flat = FullyShardedDataParallel.optim_state_dict_to_load(model, optimizer, named)
    optimizer.load_state_dict(flat)


def names_of(model: torch.nn.Module, optimizer: Any) -> list[list[str]]:
    """Return the clean names in each group of the optimizer, in the order of the bare model."""
    place = {clean(path): index for index, (path, _) in enumerate(model.named_modules())}
    of = {parameter: _inside(path, parameter) for path, parameter in model.named_parameters()}
    return [
        sorted(
            (clean(name) for parameter in group["params"] for name in of[parameter]),
            key=lambda name: place[name.rpartition(".")[0]],
        )
        for group in optimizer.param_groups
    ]


def _by_own_names(model: torch.nn.Module, state: Mapping[str, Any]) -> State:
    """Return a state by the names that this model expects; a layer in it may be compiled."""
    tensors = chain(model.named_parameters(), model.named_buffers())
    own = {clean(name): name for path, tensor in tensors for name in _inside(path, tensor)}
    return {own.get(name, name): value for name, value in state.items()}


def _inside(path: str, tensor: Any) -> list[str]:
    """Return the names of all parameters in one that may be flat."""
    path = path.replace("_fsdp_wrapped_module.", "").replace("_checkpoint_wrapped_module.", "")
    names = getattr(tensor, "_fqns", None)
    return [path.removesuffix("_flat_param") + name for name in names] if names else [path]


@contextlib.contextmanager
def _whole(model: torch.nn.Module, *, saving: bool) -> Iterator[None]:
    from torch.distributed.fsdp import (
        FullOptimStateDictConfig,
        FullStateDictConfig,
        FullyShardedDataParallel,
        StateDictType,
    )

    # What is on the CPU would not be copied there, and would be freed under the state's hands.
    offload = saving and any(it.device.type != "cpu" for it in model.parameters())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.filterwarnings("ignore", module=r"torch\.distributed")
        with FullyShardedDataParallel.state_dict_type(
            model,
            StateDictType.FULL_STATE_DICT,
            FullStateDictConfig(offload_to_cpu=offload, rank0_only=saving),
            FullOptimStateDictConfig(offload_to_cpu=offload, rank0_only=saving),
        ):
            yield
