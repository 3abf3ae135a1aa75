"""`weight_decay`: of every parameter group, or of one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import torch

from launchhelm.controls import schema
from launchhelm.controls.float32 import LARGEST, in_float32
from launchhelm.torch._controls import Payload, is_number
from launchhelm.torch._groups import Groups, copied, lost, require_held, write

_KEY: Final = "weight_decay"


class WeightDecay:
    """Set the weight decay, or multiply it.

    Without `group` all groups change, also those that are exempt by a decay of 0; `skip_zero`
    leaves those alone. `values` has one number for each group.
    """

    name = "weight_decay"
    # Hosted, `value` is required; here `scale` may stand in its place.
    input_schema: Mapping[str, Any] = schema.record(
        [
            schema.field("value", schema.number(minimum=0), optional=True),
            schema.field("group", schema.number(minimum=0, integer=True), optional=True),
            schema.field("scale", schema.number(minimum=0), optional=True),
            schema.field("skip_zero", schema.boolean(), optional=True),
            schema.field("values", schema.listing(schema.number(minimum=0)), optional=True),
        ]
    )

    def __init__(self, groups: Groups) -> None:
        self._groups = groups

    def problem(self, payload: Payload) -> str:
        """Judge by the schema, then by what only this process knows."""
        misfit = schema.check(self.input_schema, payload)
        if misfit:
            return misfit
        given = [word for word in ("value", "scale", "values") if word in payload]
        if len(given) != 1:
            return "weight_decay takes exactly one of value, scale and values."
        for number in payload["values"] if "values" in payload else [payload[given[0]]]:
            if not number <= LARGEST:
                return f"{given[0]} must be a number that float32 can hold, got {number!r}."
        count = self._groups.count
        group = payload.get("group")
        if "values" in payload:
            if group is not None or "skip_zero" in payload:
                return "values is about all groups; leave out group and skip_zero."
            if len(payload["values"]) != count:
                return f"values takes one number per group, {count} in all."
        if group is not None and group >= count:
            return f"group {group} does not exist; the optimizer has {count} (from 0)."
        if group is not None and payload.get("skip_zero"):
            return "skip_zero is about all groups; leave out group."
        without = [index for index in self._chosen(payload) if not self._has(index)]
        if without:
            kind = type(self._groups.chain[-1]).__name__
            return f"{kind} has no weight decay in group {without[0]}."
        for index, value in self._plan(payload):
            if value != 0 and not in_float32(value):
                return f"group {index} would get {value!r}, which float32 cannot hold."
        return ""

    def apply(self, payload: Payload) -> Mapping[str, Any]:
        """Change the decay; the result lists every group."""
        for index, value in self._plan(payload):
            for group in self._groups.all(index):
                write(group, _KEY, value)
            require_held(self._groups, index, _KEY, value)
        return self.values()

    def snapshot(self) -> object:
        """Remember the decay of every group."""
        return [
            [copied(group.get(_KEY)) for group in self._groups.all(index)]
            for index in range(self._groups.count)
        ]

    def restore(self, snapshot: Any) -> None:
        """Put every decay back."""
        for index, values in enumerate(snapshot):
            for group, value in zip(self._groups.all(index), values, strict=True):
                if value is not None:
                    write(group, _KEY, value)

    def state(self) -> object:
        """Return the decay of every group."""
        return self.values()

    def values(self) -> Mapping[str, Any]:
        """Return the decay of every group; nothing where the optimizer has none."""
        if not all(self._has(index) for index in range(self._groups.count)):
            return {}
        return {self.name: self._groups.read(_KEY)}

    def values_of(self, snapshot: Any) -> Mapping[str, Any]:
        """Return the decay that every group had, in the form of `values`."""
        now = self.values()
        return {word: [float(values[0]) for values in snapshot] for word in now}

    def look_again(self, old: Any, new: Any) -> str:
        """Say which groups have another decay than was commanded."""
        now = self._groups.read(_KEY)
        groups = [
            index
            for index, (before, after) in enumerate(zip(old, new, strict=False))
            if before != after and not math.isclose(now[index], after, rel_tol=1e-6)
        ]
        return lost(self.name, now, groups, "a schedule of the script, or a wrapper around it")

    def _has(self, index: int) -> bool:
        return is_number(self._decay(index)) or isinstance(self._decay(index), torch.Tensor)

    def _decay(self, index: int) -> Any:
        return self._groups.real(index).get(_KEY)

    def _chosen(self, payload: Payload) -> list[int]:
        group = payload.get("group")
        return list(range(self._groups.count)) if group is None else [group]

    def _plan(self, payload: Payload) -> list[tuple[int, float]]:
        """Return group and new decay of whatever changes."""
        plan = []
        for index in self._chosen(payload):
            old = float(self._decay(index))
            if "values" in payload:
                plan.append((index, float(payload["values"][index])))
                continue
            if old == 0.0 and payload.get("skip_zero"):
                continue
            new = old * payload["scale"] if "scale" in payload else float(payload["value"])
            plan.append((index, new))
        return plan
