"""Which commands of a run led to its last state, and at which steps they were in effect.

A restart goes back to a checkpoint: what was commanded in the steps that it repeats is lost with
them, and so is what the script does not restore, unless the run brought it back by itself
(`init(reapply=True)`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from launchhelm.controls.undo import Change, Changes
from launchhelm.records import REAPPLY
from launchhelm.views.commands import CommandView
from launchhelm.views.run import RunView

NOT_APPLIED: Final[Mapping[str, str]] = {
    "waiting": "it has not been applied yet",
    "taken": "it has not been applied yet",
    "claimed": "it has not been applied yet",
    "applying": "its outcome is not known yet",
    "outcome_unknown": "its outcome is unknown",
    "rejected": "it was rejected",
    "cancelled": "it was cancelled",
    "expired": "it expired",
}
"""Why a command in a state other than `applied` is not to be counted on."""

Moment = tuple[CommandView, bool]
"""A command that was applied, or (True) that a restart or a restored state took back."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a command is in effect on the way to the last state of its run.

    Args:
        step: From which step on, None when that is not known.
        why: It is no part of that way, "" when it is.
    """

    step: int | None
    why: str = ""


def original_of(command: CommandView) -> str:
    """Return the command that the run brought back by itself with this one, "" for none."""
    is_own = command.issued_by == REAPPLY and not command.owner
    return command.replays.rpartition("/")[2] if is_own else ""


def brought_back(original: str) -> str:
    """Say that the run repeated a command by itself."""
    return f"with it the run brought {original} back (reapply=True)"


def step_of(at: object) -> int | None:
    """Return the step of `applied_at`, None when it tells none."""
    step = at.get("step") if isinstance(at, Mapping) else None
    return int(str(step)) if re.fullmatch(r"-?\d{1,15}", str(step), re.ASCII) else None


def undone_by(command: CommandView) -> str:
    """Say what took a command back, "" when nothing did: `a restore`."""
    what = str((command.effect or {}).get("reverted") or "")
    return f"a {what}" if what.startswith("restore") else what


def returns_of(commands: Sequence[CommandView], command: CommandView) -> list[CommandView]:
    """Return a command and those by which the run brought it back, oldest first."""
    found = [command]
    for each in commands:
        if each.state == "applied" and original_of(each) == found[-1].id:
            found.append(each)
    return found


def moments(commands: Sequence[CommandView], name: str) -> Iterator[Moment]:
    """Yield what has changed one control, oldest first."""
    said: list[tuple[tuple[int, float], bool, CommandView]] = []
    for each in commands:
        if each.name == name and each.state == "applied":
            said.append(((each.states[-1].attempt, each.states[-1].at), False, each))
            if each.restored_at is not None:
                said.append((each.restored_at, True, each))
    for _, is_restored, each in sorted(said, key=lambda it: it[:2]):
        yield each, is_restored


def enter(changes: Changes, moment: Moment) -> None:
    """Add one of those moments to what stands."""
    command, is_restored = moment
    if is_restored:
        effect = command.effect or {}
        factors = {int(group): factor for group, factor in _known(effect, "factors").items()}
        changes.restored(_known(effect, "values").get(command.name), factors)
        return
    known = command.outcome.changes if command.outcome is not None else {}
    change = Change.of(command.name, command.payload, known)
    changes.take(command.id, command.reverts, change, original_of(command))


def places(run: RunView) -> dict[str, Place]:
    """Return where each applied command of a run is in effect on the way to its last state."""
    commands = run.commands
    firsts = _first_steps(run)
    found: dict[str, Place] = {}
    for name in dict.fromkeys(each.name for each in commands):
        found.update(_Line(firsts).follow(commands, name))
    return found


class _Line:
    """The way of one control.

    Args:
        firsts: The first step of each attempt.
    """

    def __init__(self, firsts: Mapping[int, int]) -> None:
        self._firsts = firsts
        self._changes = Changes()
        self._at: dict[str, tuple[int, int | None]] = {}
        self._own: dict[str, str] = {}
        self._lost: dict[str, CommandView] = {}

    def follow(self, commands: Sequence[CommandView], name: str) -> dict[str, Place]:
        """Return the places of the commands of one control."""
        for moment in moments(commands, name):
            command, is_restored = moment
            stood = self._changes.standing()
            enter(self._changes, moment)
            if is_restored:
                lost = set(stood) - set(self._changes.standing())
                self._lost |= dict.fromkeys(lost, command)
                continue
            self._at[command.id] = _applied_at(command)
            original = original_of(command)
            if original:
                self._own[command.id] = original
                self._return(command)
        return {id_: Place(step, self._why(id_, name)) for id_, (_, step) in self._at.items()}

    def _return(self, command: CommandView) -> None:
        """Note that the run has brought back by itself what stands now."""
        for id_ in self._changes.standing():
            lost = self._lost.pop(id_, None)
            since = step_of(lost.effect) if lost is not None else None
            step = self._at[id_][1]
            if since is not None and step is not None and since <= step:
                self._at[id_] = _applied_at(command)  # Its own step was trained again.

    def _why(self, id_: str, name: str) -> str:
        """Say why a command is no part of the way, "" when it is."""
        attempt, step = self._at[id_]
        if id_ in self._own:
            return brought_back(self._own[id_])
        later = [number for number in sorted(self._firsts) if number > attempt]
        for number in later:
            first = self._firsts[number]
            if step is not None and first <= step:
                return f"attempt {number} began again at step {first:,}"
        if id_ in self._lost:
            effect = self._lost[id_].effect or {}
            where = f"step {effect.get('step')} of attempt {effect.get('attempt')}"
            return f"{undone_by(self._lost[id_])} has undone it, {where}"
        return f"attempt {later[0]} went on after it" if later and name == "stop" else ""


def _applied_at(command: CommandView) -> tuple[int, int | None]:
    at = command.outcome.applied_at if command.outcome is not None else None
    return command.states[-1].attempt, step_of(at)


def _first_steps(run: RunView) -> dict[int, int]:
    """Return the first step of each attempt, by all that is recorded of it; {} of a single one."""
    if run.attempt < 2:
        return {}
    seen = [(number, span.first) for number, span in run.spans().items()]
    for command in run.commands:
        if command.state == "applied":
            seen.append(_applied_at(command))
        effect = command.effect or {}
        if isinstance(effect.get("attempt"), int) and isinstance(effect.get("step"), int):
            seen.append((effect["attempt"], effect["step"]))
    firsts: dict[int, int] = {}
    for number, step in seen:
        if step is not None:
            firsts[number] = min(step, firsts.get(number, step))
    return firsts


def _known(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:  # Any: JSON.
    value = body.get(name)
    return value if isinstance(value, Mapping) else {}
