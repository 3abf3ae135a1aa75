"""What is around a model: wrappers that are known, the names inside them, and those not known."""

from __future__ import annotations

from typing import Any, Final

import torch

_INSIDE: Final = frozenset(("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"))
"""Under which names torch's wrappers keep the module inside; no part of the names of its state."""

_ENGINES: Final = frozenset(("deepspeed", "fairscale", "megatron", "colossalai"))
"""Packages whose modules shard parameters in ways of their own."""


def clean(name: str) -> str:
    """Return the name that a parameter has in the bare model."""
    return ".".join(part for part in name.split(".") if part not in _INSIDE)


def peeled(model: Any) -> Any:
    """Return the module inside torch.compile and DistributedDataParallel, where those are."""
    while True:
        ddp = as_ddp(model)
        inside = ddp.module if ddp is not None else getattr(model, "_orig_mod", None)
        if not isinstance(inside, torch.nn.Module):
            return model
        model = inside


def as_ddp(model: Any) -> Any:
    """Return a model that is a DistributedDataParallel, or the one that was compiled; or None."""
    model = getattr(model, "_orig_mod", model)
    return model if isinstance(model, torch.nn.parallel.DistributedDataParallel) else None


def is_fsdp1(module: Any) -> bool:
    """Whether this is a FullyShardedDataParallel, in whichever release it is defined."""
    return hasattr(module, "_fsdp_wrapped_module") or (
        type(module).__name__ == "FullyShardedDataParallel"
    )


def is_fsdp2(module: Any) -> bool:
    """Whether `fully_shard` was applied to this. Its parameters are whole tensors now and then."""
    return any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__)


def is_dtensor(tensor: Any) -> bool:
    """Whether a tensor is spread over a mesh of ranks, as `fully_shard` does it."""
    return isinstance(tensor, torch.Tensor) and hasattr(tensor, "device_mesh")


def unknown(model: Any, world_size: int) -> str:
    """Return what of a model may shard parameters in a way that is not known here, "" for nothing.

    Args:
        model: Anything; what is no module has no parts.
        world_size: Ranks that train together.
    """
    if not isinstance(model, torch.nn.Module):
        return ""
    for module in model.modules():
        kind = type(module)
        if kind.__module__.split(".")[0] in _ENGINES:
            return f"{kind.__name__} of {kind.__module__} shards parameters in its own way"
    kind = type(model)
    inside = [name for name, _ in model.named_children()]
    if world_size > 1 and inside == ["module"] and not kind.__module__.startswith("torch."):
        return (
            f"{kind.__module__}.{kind.__name__} is a wrapper that is not known here, and may shard "
            "parameters"
        )
    return ""
