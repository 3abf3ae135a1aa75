"""`stop`, `pause`, `resume`, `ping`: commands about the loop itself.

`stop` and `pause` only raise a flag, on every rank at the same call of `step`; the Trainer acts
on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from launchhelm.controls import schema
from launchhelm.torch._controls import OneValue, Payload, no_fields

HOLD_S: Final = 0.5
"""Between two exchanges of ranks that are paused."""


class TrainingStopped(Exception):
    """A `stop` command landed, and `watch(on_stop="raise")` asked for this; on every rank."""


@dataclass(frozen=True, slots=True)
class Flow:
    """What the loop was told.

    Args:
        stop_requested: It should end.
        paused: It waits at a control point.
        saves: It ends with a checkpoint of this step.
    """

    stop_requested: bool = False
    paused: bool = False
    saves: bool = False


_EFFECTS: Final[Mapping[str, Mapping[str, bool]]] = {
    # A loop that is told to end must get the chance to.
    "stop": {"stop_requested": True, "paused": False},
    "pause": {"paused": True},
    "resume": {"paused": False},
}
FLOW_CONTROLS: Final = tuple(_EFFECTS)


class FlowHolder:
    """Where the one `Flow` of a trainer stands."""

    def __init__(self) -> None:
        self.now = Flow()


class FlowControl(OneValue):
    """`stop`, `pause` or `resume`."""

    def __init__(self, name: str, holder: FlowHolder) -> None:
        self.name = name
        self.input_schema = no_fields()
        if name == "stop":
            saves = schema.field("checkpoint", schema.boolean(), optional=True)
            self.input_schema = schema.record([saves])
        self._holder = holder
        super().__init__(
            next(iter(_EFFECTS[name])),
            lambda: holder.now,
            lambda flow: setattr(holder, "now", flow),
        )

    def problem(self, payload: Payload) -> str:
        """Judge by the schema; a loop that ends can only end."""
        misfit = schema.check(self.input_schema, payload)
        if not misfit and self.name == "pause" and self._holder.now.stop_requested:
            return "The training was told to stop; it cannot be paused any more."
        return misfit

    def apply(self, payload: Payload) -> Mapping[str, Any]:
        """Raise or lower the flag."""
        effects = dict(_EFFECTS[self.name])
        if payload.get("checkpoint"):
            effects["saves"] = True
        self._holder.now = replace(self._holder.now, **effects)
        return self.values()

    def state(self) -> object:
        """Return both flags."""
        return asdict(self._holder.now)

    def values_of(self, snapshot: Any) -> Mapping[str, Any]:
        """Return the flag that this command is about."""
        return {self._word: getattr(snapshot, self._word)}


class Ping:
    """`ping`: travels like any command, changes nothing, and comes back with what it carried."""

    name = "ping"
    input_schema: Mapping[str, Any] = schema.record(
        [schema.field("echo", schema.opaque(), optional=True)]
    )

    def problem(self, payload: Payload) -> str:
        """Judge by the schema."""
        return schema.check(self.input_schema, payload)

    def apply(self, payload: Payload) -> Mapping[str, Any]:
        """Return what came."""
        return dict(payload)
