"""Which changes of one control stand, and so which command may be undone. Pure.

A state is named by the command that made it. What undoes a command leads back to the state before
it, so that both cancel out, and so does what undoes that in turn. A command may be undone while
the control is in the state that it made.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

_CLOSE: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Change:
    """What one applied command did, as its outcome says.

    Args:
        old: Value before it, per group where there are groups; None where nobody knows. Any: JSON.
        new: The same after it.
        factors: By how much it scaled the schedule of each group; None without a schedule. None
            for a group: no factor undoes it.
        scale: As it was typed, like `group`; None where it was not.
        is_known: Whether old and new are.
    """

    old: Any = None
    new: Any = None
    factors: Sequence[float | None] | None = None
    scale: float | None = None
    group: int | None = None
    is_known: bool = True

    @classmethod
    def of(cls, name: str, payload: Mapping[str, Any], changes: Mapping[str, Any]) -> Change:
        """Read it out of a command and its outcome."""
        scale, group = payload.get("scale"), payload.get("group")
        said = changes.get(name)
        if not isinstance(said, Mapping) or "old" not in said or "new" not in said:
            return cls(scale=scale, group=group, is_known=False)
        factors = said.get("factors")
        return cls(said["old"], said["new"], factors, scale, group)


class Changes:
    """The applied commands of one control, given oldest first.

    Attributes:
        state: The command that made the state of now; "" for the one before all of them.
    """

    def __init__(self) -> None:
        self.state = ""
        self._before: dict[str, str] = {}
        self._after: dict[str, str] = {}
        self._changes: dict[str, Change] = {}
        self._restores = 0
        self._has_lost = False

    def take(self, command: str, reverts: str, change: Change, brings_back: str = "") -> None:
        """Add a command that was applied.

        Args:
            reverts: The command that it undid, "" for none.
            brings_back: The last command of those that a restored state undid and that this one
                put in effect again, "" for none.
        """
        self._before[command], self._changes[command] = self.state, change
        if reverts and reverts not in self._after and self.may_undo(reverts):
            # Of an earlier process: the sender knows what that led to.
            self._after[reverts], self._before[reverts] = self.state, f"before {reverts}"
        self._has_lost = self._has_lost and bool(brings_back)
        if self._is_taken_back(reverts, change):
            self.state = self._before[reverts]
        elif self._has_lost and brings_back in self._after:
            self.state = self._after[brings_back]
        else:
            self.state = command
        self._after[command] = self.state

    def _is_taken_back(self, reverts: str, change: Change) -> bool:
        if reverts not in self._after or not self.may_undo(reverts):
            return False
        target = self._changes.get(reverts)
        return target is None or _cancel_out(target, change)

    def restored(self, values: Any, factors: Mapping[int, float] | None) -> None:
        """Note that a restart or a restored state undid the last changes, as far as it says itself.

        Args:
            values: Of the control since then; Any: JSON.
            factors: By how much the schedule of a group is scaled since then; None without one.
        """
        self._has_lost = True
        for state in self._earlier():
            if self._is_as_in(state, values, factors):
                self.state = state
                return
        self._restores += 1
        self.state = f"restored {self._restores}"

    def standing(self) -> list[str]:
        """Return the commands that led to the state of now, newest first."""
        return [state for state in (self.state, *self._earlier()) if state in self._changes]

    def may_undo(self, command: str) -> bool:
        """Whether the control is in the state that this command made.

        Of a command of an earlier process only the sender knows, as long as nothing stands here.
        """
        if command not in self._after:
            return self.state not in self._changes
        return self._after[command] == self.state

    def is_undone(self, command: str) -> bool:
        """Whether the control is in the state before this command again."""
        return self._before.get(command) == self.state and not self.may_undo(command)

    def _earlier(self) -> list[str]:
        """Return the states before the one of now, newest first."""
        states, state = [], self.state
        while state:
            state = self._before.get(state, "")
            states.append(state)
        return states

    def _is_as_in(self, state: str, values: Any, factors: Mapping[int, float] | None) -> bool:
        if factors:
            scaled = self._scaled(state)
            return all(
                scaled is not None and same(scaled.get(group, 1.0), factor)
                for group, factor in factors.items()
            )
        if state:
            change = self._changes.get(state)
            return change is not None and change.is_known and same(change.new, values)
        first = next(iter(self._changes.values()), None)
        return first is not None and first.is_known and same(first.old, values)

    def _scaled(self, state: str) -> dict[int, float] | None:
        """Return by how much the changes up to a state scale each group, None where it is open."""
        scaled: dict[int, float] = {}
        while state:
            change = self._changes.get(state)
            if change is None or change.factors is None:
                return None
            for group, factor in enumerate(change.factors):
                if factor is None:
                    return None
                scaled[group] = scaled.get(group, 1.0) * factor
            state = self._before[state]
        return scaled


def _cancel_out(one: Change, other: Change) -> bool:
    """Whether the second change left what there was before the first.

    Under a schedule the values moved on in between; what counts then are the factors.
    """
    if one.factors is not None and other.factors is not None:
        if None in (*one.factors, *other.factors) or len(one.factors) != len(other.factors):
            return False
        pairs = zip(one.factors, other.factors, strict=True)
        return all(same(a * b, 1.0) for a, b in pairs if a is not None and b is not None)
    if one.is_known and other.is_known and same(one.old, other.new):
        return True
    if one.scale and other.scale and one.group == other.group:
        return same(one.scale * other.scale, 1.0)
    return _scales_back(one, other)


def _scales_back(one: Change, other: Change) -> bool:
    sides = (one.old, one.new, other.old, other.new)
    if not all(isinstance(side, list | tuple) for side in sides):
        return False
    if len({len(side) for side in sides}) != 1:
        return False
    return all(
        all(_is_number(each) for each in row) and same(row[1] * row[3], row[0] * row[2])
        for row in zip(*sides, strict=True)
    )


def same(one: Any, other: Any) -> bool:
    """Whether two values of a control are equal but for rounding."""
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    is_whole = isinstance(one, int) and isinstance(other, int)
    if _is_number(one) and _is_number(other) and not is_whole:
        return math.isclose(one, other, rel_tol=_CLOSE)
    return bool(one == other)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
