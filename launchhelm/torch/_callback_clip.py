"""`grad_clip` where a framework clips: the limit is the framework's own setting, read back from it.

A callback cannot clip by itself, because the framework steps the optimizer between two of its
events. So a command writes the value that the framework reads before each optimizer step, and once
after each command the gradients that it left are measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from launchhelm.torch._clipping import Clipping, GradClip
from launchhelm.torch._controls import NotEffective, OneValue, Payload

_ROUNDING = 1.01
"""Gradients of half precision miss a limit by this factor at most."""


class FrameworkClip(OneValue):
    """`grad_clip`: set the limit in the framework, or switch its clipping off.

    Args:
        get: Returns the limit in effect, None when the framework does not clip.
        put: Sets it; None switches clipping off.
        obstacle: Returns why the framework would not clip to a norm, "" when it would.
        setting: What the value is called where the user set it.
    """

    name = "grad_clip"
    input_schema: Mapping[str, Any] = GradClip.input_schema

    def __init__(
        self,
        get: Callable[[], float | None],
        put: Callable[[float | None], object],
        obstacle: Callable[[], str],
        setting: str,
    ) -> None:
        super().__init__(self.name, get, put)
        self._limit = get
        self._obstacle = obstacle
        self._setting = setting
        self._is_unproven = False
        self._norm: float | None = None

    def problem(self, payload: Payload) -> str:
        """Judge as a trainer's own, then by what the framework does with its setting."""
        return GradClip(Clipping(None, 1)).problem(payload) or self._obstacle()

    def apply(self, payload: Payload) -> Mapping[str, Any]:
        """Set the limit and read it back.

        Raises:
            NotEffective: Something else is there.
        """
        limit = payload.get("max_norm")
        wanted = None if limit is None else float(limit)
        self._put(wanted)
        if self._limit() != wanted:
            raise NotEffective(f"{self._setting} was set to {wanted!r}, and is {self._limit()!r}")
        self._is_unproven, self._norm = True, None
        return {"max_norm": wanted}

    def observe(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Measure what the framework made of the gradients, once after each command.

        Of sharded ones only those of this rank: that is no collective, and already too much when
        they exceed the limit. Waits for the device.
        """
        if not self._is_unproven:
            return
        self._is_unproven = False
        gradients = [each.grad for each in parameters if each.grad is not None]
        own = [getattr(each, "to_local", lambda each=each: each)() for each in gradients]
        self._norm = math.hypot(*(float(each.detach().float().norm()) for each in own))

    def look_again(self, old: Any, new: Any) -> str:
        """Say that something else writes the setting, or that the framework did not heed it."""
        now = self._limit()
        if now != new:
            return (
                f"grad_clip was set to {new} and is {now} one step later: something else in the "
                f"training writes {self._setting}."
            )
        norm = self._norm
        if new is None or norm is None or not math.isfinite(norm) or norm <= new * _ROUNDING:
            return ""
        return (
            f"grad_clip is {new:g} by {self._setting}, and the gradients of the step after that "
            f"had norm {norm:.4g} all the same: they were not clipped."
        )
