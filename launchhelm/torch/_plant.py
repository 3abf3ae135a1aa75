"""The controls of one trainer, as the exchange works them: by name, on every rank alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from launchhelm.torch._controls import Control, Payload, Scaling, StateControl, canonical
from launchhelm.torch._custom import Custom


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one control held before a command."""

    control: StateControl
    held: object


class Plant:
    """A registry of controls. All methods are called on the thread that trains."""

    def __init__(self) -> None:
        self._controls: dict[str, Control] = {}
        self._states: dict[str, StateControl] = {}

    def add(self, control: Control) -> None:
        """Register a control; one of the same name is replaced."""
        self._controls[control.name] = control
        if isinstance(control, StateControl):
            self._states[control.name] = control

    def remove(self, name: str) -> None:
        """Forget a control, if it is there and no command of the script."""
        if self.is_control(name):
            self._controls.pop(name, None)
            self._states.pop(name, None)

    def is_control(self, name: str) -> bool:
        """Whether there is a control of that name which is no command of the script."""
        return name in self._controls and not isinstance(self._controls[name], Custom)

    def __contains__(self, name: str) -> bool:
        return name in self._controls

    def state(self, name: str) -> StateControl | None:
        """Return the control of that name, None when there is none or it runs a handler."""
        return self._states.get(name)

    def values(self) -> dict[str, Any]:
        """Return what every control holds now, as people know it."""
        values: dict[str, Any] = {}
        for control in self._states.values():
            values.update(control.values())
        return values

    def values_of(self, name: str) -> Mapping[str, Any]:
        """Return what one control holds now; nothing for a handler."""
        control = self._states.get(name)
        return control.values() if control is not None else {}

    def look_again(self, name: str, changes: Mapping[str, Any]) -> str:
        """Say why what a command changed is not in effect one step later, "" when it is."""
        control, change = self._states.get(name), changes.get(name)
        if control is None or change is None:
            return ""
        return control.look_again(change["old"], change["new"])

    # What the exchange calls.

    def check(self, name: str, payload: Payload, step: int) -> str | None:
        """Return why this rank cannot take the command, or None. Changes nothing."""
        control = self._controls.get(name)
        if control is None:
            return f"This rank has no control {name!r}."
        return control.problem(payload) or None

    def snapshot(self, name: str, payload: Payload) -> Snapshot:
        """Remember all that the command may change."""
        control = self._states[name]
        return Snapshot(control, control.snapshot())

    def apply(self, name: str, payload: Payload, step: int) -> Mapping[str, Any]:
        """Carry the command out and return its result; may raise."""
        return self._controls[name].apply(payload)

    def note(self, name: str) -> str:
        """Say what people should know of a command that was just applied, "" for nothing."""
        return getattr(self._controls.get(name), "note", "")

    def read_back(self, name: str, payload: Payload) -> str:
        """Return what is in effect now, as one text to compare across ranks."""
        return canonical(self._states[name].state())

    def restore(self, snapshot: object) -> None:
        """Put back exactly what `snapshot` remembered."""
        assert isinstance(snapshot, Snapshot)
        snapshot.control.restore(snapshot.held)

    def changes(self, name: str, snapshot: object) -> Mapping[str, Any]:
        """Return old and new per value, lists per group: {"lr": {"old": [...], "new": [...]}}.

        Under a schedule also "factors": by how much the command scaled that of each group.
        """
        assert isinstance(snapshot, Snapshot)
        old, new = snapshot.control.values_of(snapshot.held), snapshot.control.values()
        changes = {word: {"old": old[word], "new": new[word]} for word in new}
        if isinstance(snapshot.control, Scaling):
            factors = snapshot.control.factors_since(snapshot.held)
            if factors is not None:
                changes[name]["factors"] = factors
        return changes

    def kind(self, name: str) -> Literal["state", "handler"]:
        """Say whether what a control does can be taken back."""
        return "handler" if name in self._controls and name not in self._states else "state"
