"""What a live control is, and what all of them have in common.

A control is judged, snapshotted, applied, read back and restored by the exchange, on the thread
that trains, with the same payload on every rank. `problem` changes nothing, so that all ranks can
refuse before any rank acts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, runtime_checkable

from launchhelm.controls import schema
from launchhelm.models import Capability, opaque_schema
from launchhelm.records import TRAINING_SAFE_POINT

PROVIDER: Final = "launchhelm.torch"
VERSION: Final = "1.0.0"

Payload = Mapping[str, Any]  # Any: JSON, checked against the control's schema first.


class Control(Protocol):
    """Something that a command can be about.

    One that is no `StateControl` runs a handler: what it does cannot be taken back.
    """

    name: str
    input_schema: Mapping[str, Any]

    def problem(self, payload: Payload) -> str:
        """Return "" when the payload may be applied now, else one sentence that says why not."""
        ...

    def apply(self, payload: Payload) -> Mapping[str, Any]:
        """Make the change and return the result of the command.

        Raises:
            NotEffective: The change was made, and something else is read back.
            NotDone: Nothing was changed, on any rank.
        """
        ...


@runtime_checkable
class StateControl(Control, Protocol):
    """A control whose effect is a value that can be read back and restored."""

    def snapshot(self) -> object:
        """Remember everything that `apply` may change."""
        ...

    def restore(self, snapshot: Any) -> None:
        """Put back exactly what the snapshot saw."""
        ...

    def state(self) -> object:
        """Return all that must be equal on all ranks, as JSON."""
        ...

    def values(self) -> Mapping[str, Any]:
        """Return the values as people know them: {"lr": [per group]}."""
        ...

    def values_of(self, snapshot: Any) -> Mapping[str, Any]:
        """Return the values that a snapshot holds, in the form of `values`."""
        ...

    def look_again(self, old: Any, new: Any) -> str:
        """Say why a change is not in effect after one more optimizer step, "" when it is.

        Args:
            old: What `values` had under the control's name before the change.
            new: The same right after it.
        """
        ...


@runtime_checkable
class Scaling(Protocol):
    """A control that scales a schedule: what it did is undone by factors."""

    def factors_since(self, snapshot: Any) -> list[float | None] | None:
        """Return by how much each group was scaled since a snapshot; None without a schedule."""
        ...


class NotEffective(Exception):
    """A value was written, and another one is read back."""


class NotDone(Exception):
    """A handler has changed nothing, as all ranks found out together; so none of them differs."""


class OneValue:
    """The part of a state control that holds one plain value.

    Args:
        name: Of the value, as people know it.
        get: Reads it.
        put: Writes it.
    """

    def __init__(self, name: str, get: Callable[[], Any], put: Callable[[Any], object]) -> None:
        self._word = name
        self._get = get
        self._put = put

    def snapshot(self) -> object:
        """Remember the value."""
        return self._get()

    def restore(self, snapshot: Any) -> None:
        """Put the value back."""
        self._put(snapshot)

    def state(self) -> object:
        """Return the value."""
        return self._get()

    def values(self) -> Mapping[str, Any]:
        """Return the value under its name."""
        return self.values_of(self._get())

    def values_of(self, snapshot: Any) -> Mapping[str, Any]:
        """Return the value that was."""
        return {self._word: snapshot}

    def look_again(self, old: Any, new: Any) -> str:
        """Nothing but a command writes this value."""
        return ""


def capability(control: Control) -> Capability:
    """Describe a control for whoever may command it."""
    return Capability(
        name=control.name,
        provider=PROVIDER,
        version=VERSION,
        input_schema=control.input_schema,
        output_schema=opaque_schema(),
        safe_points=(TRAINING_SAFE_POINT,),
    )


def canonical(value: object) -> str:
    """Return one text per value, equal on all ranks exactly when the value is, to the last bit."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def no_fields() -> Mapping[str, Any]:
    """Return the schema of a command that says everything by its name."""
    return schema.record([])


def is_number(value: object) -> bool:
    """Whether it is an int or a float; a bool is none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_positive(value: int | float) -> bool:
    """Whether it is a finite number above 0 for a float too."""
    try:
        return 0 < float(value) < math.inf
    except OverflowError:
        return False
