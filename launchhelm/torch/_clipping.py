"""`grad_clip`: the limit that `Trainer.clip_grad_norm_` uses, and the clipping itself.

Gradients are clipped at their true size: those that a scaler has scaled are unscaled first, once,
and the norm of sharded ones is that of all shards. What cannot be clipped rightly is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from launchhelm import _wording
from launchhelm.controls import schema
from launchhelm.controls.float32 import in_float32
from launchhelm.torch._controls import OneValue, Payload, is_number, is_positive
from launchhelm.torch._groups import chain
from launchhelm.torch._wrapping import is_dtensor, is_fsdp1, unknown


class Clipping:
    """How one trainer clips: the limit, and what became of it.

    Attributes:
        limit: From commands; None: clipping is off.
        uses: How often the limit, or its absence, was used.
        norm: Of the last gradients before clipping; None: never measured, or the step is skipped.
        skipped: Steps that the scaler skips because of an infinite or NaN gradient, as far as
            `clip` saw them.
    """

    def __init__(self, limit: float | None, world_size: int) -> None:
        self.limit = limit
        self.uses = 0
        self.norm: float | None = None
        self.skipped = 0
        self._world_size = world_size
        self._model: Any = None
        self._optimizer: Any = None
        self._scaler: Any = None
        self.obstacle = ""

    def watch(self, model: Any, optimizer: Any, scaler: Any) -> None:
        """Clip the gradients of these objects from now on."""
        self._model, self._optimizer, self._scaler = model, optimizer, scaler
        try:
            self.obstacle = obstacle(model, optimizer, self._world_size)
        except Exception:  # A model of a class that answers oddly is still one to train.
            self.obstacle = ""

    @property
    def is_ready(self) -> bool:
        """Whether there is anything to clip."""
        return self._optimizer is not None

    @property
    def has_scaler(self) -> bool:
        """Whether there is a scaler as torch's, that may skip steps."""
        scaler = self._scaler
        return hasattr(scaler, "unscale_") and bool(scaler.is_enabled())

    def clip(self, max_norm: float | None) -> float:
        """Clip to `max_norm`, by default to the limit; without both only measure.

        Returns:
            The norm before that. Waits for the device.

        Raises:
            RuntimeError: These gradients cannot be clipped here, or the scaler was stepped already.
            ValueError: The limit is negative or NaN.
        """
        if max_norm is not None and not max_norm >= 0:
            raise ValueError(f"max_norm must be a number of at least 0, got {max_norm!r}.")
        if self.obstacle:
            raise RuntimeError(f"clip_grad_norm_() would be wrong here: {self.obstacle}")
        if max_norm is None:
            self.uses += 1
        if self.has_scaler:
            unscale(self._scaler, self._optimizer)
        norm = clip(self._model, self._optimizer, self.limit if max_norm is None else max_norm)
        will_skip = self.has_scaler and not math.isfinite(norm)
        self.skipped += will_skip
        self.norm = None if will_skip else norm
        return norm


class GradClip(OneValue):
    """`grad_clip`: set the limit, or switch clipping off."""

    name = "grad_clip"
    input_schema: Mapping[str, Any] = schema.record(
        [schema.field("max_norm", schema.opaque(), optional=True)]
    )

    def __init__(self, clipping: Clipping) -> None:
        self._clipping = clipping
        self._uses = 0
        super().__init__(
            self.name,
            lambda: clipping.limit,
            lambda limit: setattr(clipping, "limit", limit),
        )

    def problem(self, payload: Payload) -> str:
        """Judge by the schema, then by what the gradients of this model allow."""
        misfit = schema.check(self.input_schema, payload)
        if misfit:
            return misfit
        limit = payload.get("max_norm")
        if limit is not None and not (is_number(limit) and is_positive(limit)):
            said = _wording.json_text(limit)
            return f"max_norm must be a finite number above 0, or null for off, got {said}."
        if limit is not None and not in_float32(limit):
            return f"max_norm must be a number that float32 can hold, got {limit!r}."
        return self._clipping.obstacle if limit is not None else ""

    def apply(self, payload: Payload) -> Mapping[str, Any]:
        """Take the limit."""
        limit = payload.get("max_norm")
        self._clipping.limit = None if limit is None else float(limit)
        self._uses = self._clipping.uses
        return {"max_norm": self._clipping.limit}

    def look_again(self, old: Any, new: Any) -> str:
        """Say that the script did not clip."""
        if new is None or self._clipping.uses > self._uses:
            return ""
        return (
            f"grad_clip is {new:g} and nothing used it in the step after that: it acts where the "
            "script calls trainer.clip_grad_norm_() without an argument."
        )


def obstacle(model: Any, optimizer: Any, world_size: int) -> str:
    """Return why gradients of this model cannot be clipped rightly, "" when they can."""
    if is_fsdp1(model):
        return ""  # The module itself knows how.
    if isinstance(model, torch.nn.Module) and any(is_fsdp1(each) for each in model.modules()):
        return (
            "part of the model is a FullyShardedDataParallel, and only the outermost module can "
            "clip it; wrap the whole model."
        )
    why = unknown(model, world_size)
    if why:
        return (
            f"{why}; use its own setting for clipping, or watch the module inside if every rank "
            "has whole gradients."
        )
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if type(parameter).__name__ in ("FlatParameter", "ShardedTensor"):
                return (
                    f"a parameter is a {type(parameter).__name__}, one shard of many; watch the "
                    "FullyShardedDataParallel module."
                )
            if is_dtensor(parameter) and parameter.device_mesh.size() < world_size:
                return (
                    f"a parameter is sharded over {parameter.device_mesh.size()} of {world_size} "
                    "ranks, and what the others hold is not known; clip by the parallel scheme."
                )
    return ""


def unscale(scaler: Any, optimizer: Any) -> None:
    """Bring gradients back to their true size, unless the script did since its last step.

    Raises:
        RuntimeError: The scaler was stepped already; clip before that.
    """
    if getattr(scaler, "_scale", True) is None:
        return  # Nothing was ever scaled.
    # The scaler keeps its states by the optimizer that its step() gets. A wrapper that has the
    # scaler, as that of accelerate, gives it the optimizer inside.
    known = chain(optimizer)
    states = getattr(scaler, "_per_optimizer_states", {})
    if any(id(it) in states and states[id(it)]["stage"].name == "UNSCALED" for it in known):
        return
    is_stepped_inside = len(known) > 1 and getattr(optimizer, "scaler", None) is scaler
    scaler.unscale_(known[1] if is_stepped_inside else optimizer)


def clip(model: Any, optimizer: Any, limit: float | None) -> float:
    """Clip the gradients of an optimizer's parameters in place; only measure them without a limit.

    Returns:
        Their norm before that. Waits for the device; with shards, for the other ranks too.
    """
    if is_fsdp1(model):
        return float(model.clip_grad_norm_(math.inf if limit is None else limit))
    gradients = [
        parameter.grad
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.grad is not None
    ]
    # Gradients that are spread over different ranks cannot meet in one operation.
    by_mesh: dict[Any, list[torch.Tensor]] = {}
    for gradient in gradients:
        by_mesh.setdefault(getattr(gradient, "device_mesh", None), []).append(gradient)
    norms = [_norm(each) for each in by_mesh.values()]
    if not norms:
        return 0.0
    if len(norms) == 1:
        norm = norms[0]
    else:
        norm = torch.linalg.vector_norm(torch.stack([each.to(norms[0].device) for each in norms]))
    if limit is not None:
        # As torch.nn.utils.clip_grad_norm_ does it, to the last bit.
        factor = torch.clamp(limit / (norm + 1e-6), max=1.0)
        for gradient in gradients:
            gradient.detach().mul_(factor.to(gradient.device))
    return float(norm)


def _norm(gradients: list[torch.Tensor]) -> torch.Tensor:
    """Return the norm of gradients of one mesh, or of none, as a plain tensor."""
    norms = [torch.linalg.vector_norm(each.detach()) for each in gradients]
    norm = torch.linalg.vector_norm(torch.stack([each.to(norms[0].device) for each in norms]))
    whole: torch.Tensor = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    return whole
