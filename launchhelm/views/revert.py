"""The commands that undo another one: the values before it, if nothing has changed them since."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from launchhelm import _wording
from launchhelm.controls.assign import PER_GROUP, payload_of
from launchhelm.views.commands import CommandView
from launchhelm.views.plan import values_of
from launchhelm.views.run import RunView

Step = tuple[dict[str, Any], dict[str, Any]]
"""Input of one command and the values it expects. Any: JSON."""


class CannotUndo(Exception):
    """Why a command cannot be undone by another one."""


def undoing(run: RunView, command: CommandView) -> list[Step]:
    """Return the commands that undo one as the run stands, in order; none when it is undone.

    Raises:
        CannotUndo: It was not applied, or another command has changed its control since.
    """
    return steps_back(command, _undone_by(run, command), values_of(run), run.attempt)


def _undone_by(run: RunView, command: CommandView) -> list[CommandView]:
    """Return the commands that undid it, in part or whole, since nothing else changed its control.

    Raises:
        CannotUndo: It was not applied, or another command has changed its control since.
    """
    if command.state != "applied":
        raise CannotUndo(f"it is {command.state.replace('_', ' ')}")
    if command.name not in run.capabilities:
        raise CannotUndo("the run has no such control now")
    reverted = (command.effect or {}).get("reverted")
    if reverted:
        raise CannotUndo(f"a {reverted} has undone it already")
    applied = [
        each for each in run.commands if each.state == "applied" and each.name == command.name
    ]
    applied.sort(key=lambda each: (each.states[-1].attempt, each.states[-1].at))
    cancelled = _cancelled_out(applied, command.id)
    stand = [each for each in applied if each.id == command.id or each.id not in cancelled]
    newest = next(each for each in reversed(stand) if each.reverts != command.id)
    if newest.id != command.id:
        raise CannotUndo(f"command {newest.id} has changed it since; undo that one first")
    return [each for each in stand if each.reverts == command.id]


def _cancelled_out(applied: Sequence[CommandView], but: str) -> set[str]:
    """Return the commands that were undone whole, and those that undid them.

    Args:
        applied: Oldest first.
        but: A command that is to be undone itself, so that it matters how far it has been.
    """
    known = {each.id: each for each in applied}
    gone: set[str] = set()
    for last in reversed(applied):
        target = known.get(last.reverts)
        if target is None or target.id == but or last.id in gone:
            continue
        if target.id in gone or _is_undone(target, last):
            gone |= {target.id, *(each.id for each in applied if each.reverts == target.id)}
    return gone


def _is_undone(command: CommandView, last: CommandView) -> bool:
    """Tell whether the last command that undid another left what there was before that one.

    Under a schedule the values moved on in between; a scale that was taken back is whole then.
    """
    before, after = (_sides(each, command.name) for each in (command, last))
    scales: list[Any] = [each.payload.get("scale") for each in (command, last)]
    same_group = command.payload.get("group") == last.payload.get("group")
    if command.name in PER_GROUP and all(scales) and same_group:
        return bool(math.isclose(scales[0] * scales[1], 1.0))
    return before is not None and after is not None and before[0] == after[1]


def _sides(command: CommandView, name: str) -> tuple[Any, Any] | None:
    change = command.outcome.changes.get(name) if command.outcome is not None else None
    return (change.get("old"), change.get("new")) if isinstance(change, Mapping) else None


def steps_back(
    command: CommandView,
    undone: Sequence[CommandView],
    values: Mapping[str, Any],
    attempt: int,
) -> list[Step]:
    """Return the commands that undo one, in order; none when its values are the old ones again.

    Args:
        undone: Applied commands that undid it in part.
        values: Of all controls now.
        attempt: The launch that runs now.

    Raises:
        CannotUndo: There is no such command.
    """
    name = command.name
    outcome = command.outcome
    change = outcome.changes.get(name) if outcome is not None else None
    if not isinstance(change, Mapping) or name not in values:
        raise CannotUndo("what it did is not a value that a command can set")
    old: Any = change.get("old")
    new: Any = change.get("new")
    now = values[name]
    as_left = f"it is {_wording.values_text(now)} now, not as the command left it"
    if name not in PER_GROUP:
        if now not in (old, new):
            raise CannotUndo(as_left)
        return [(_one_value(name, old), {name: now})] if now != old else []
    if not len(old) == len(new) == len(now):
        raise CannotUndo("the optimizer has other groups now")
    after = (command.effect or {}).get("values", {}).get(name, new)
    stands = all(each in pair for each, *pair in zip(now, old, new, strict=True))
    if stands and after == new and old != new:
        return _absolute(name, old, now) if now != old else []
    if name != "lr" or command.states[-1].attempt != attempt:
        raise CannotUndo(as_left)
    groups = [each.payload.get("group") for each in undone]
    steps = _relative(command.payload, old, new)
    return [(payload, {}) for payload in steps if payload.get("group") not in groups]


def _one_value(name: str, old: Any) -> dict[str, Any]:
    payload = payload_of(name, old)
    if payload is None and name == "dropout":
        raise CannotUndo("its modules had different values")
    if payload is None:
        raise CannotUndo("send the command that does the opposite")
    return payload


def _absolute(name: str, old: list[float], now: list[float]) -> list[Step]:
    """Set the old values: all groups at once where they were equal, else one after the other."""
    if len(set(old)) == 1:
        return [(_one_value(name, old[0]), {name: now})]
    steps: list[Step] = []
    values = list(now)
    for group, value in enumerate(old):
        if values[group] != value:
            steps.append(({**_one_value(name, value), "group": group}, {name: list(values)}))
            values[group] = value
    return steps


def _relative(
    payload: Mapping[str, Any], old: list[float], new: list[float]
) -> list[dict[str, Any]]:
    """Scale back what a schedule has moved on: there is no value left to set or to expect."""
    if "scale" in payload:
        return [{**payload, "scale": 1 / payload["scale"]}]
    pairs = list(zip(old, new, strict=True))
    if not all(before and after for before, after in pairs):
        raise CannotUndo("a rate was 0")
    factors = [before / after for before, after in pairs]
    if len(set(factors)) == 1:
        return [{"scale": factors[0]}]
    return [
        {"scale": factor, "group": group} for group, factor in enumerate(factors) if factor != 1
    ]
