"""The command that undoes another one: the state before it, if nothing has changed it since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from launchhelm import _wording
from launchhelm.controls.assign import PER_GROUP, factors_payload, payload_of, values_payload
from launchhelm.controls.undo import Change, Changes, same
from launchhelm.records import ORDERS
from launchhelm.views.commands import CommandView
from launchhelm.views.lineage import NOT_APPLIED, enter, moments, returns_of, undone_by
from launchhelm.views.plan import values_of
from launchhelm.views.run import RunView

Step = tuple[dict[str, Any], dict[str, Any]]
"""Input of a command and the values it expects. Any: JSON."""

_NO_VALUE: Final = {
    "checkpoint": "a checkpoint changes nothing in the training; its file stays",
    "eval": "an evaluation leaves the training as it was, so there is nothing to set back",
    "stop": "a stop is never taken back",
    "pause": "send resume, which does the opposite",
    "resume": "send pause, which does the opposite",
    "ping": "a ping changes nothing",
}


class CannotUndo(Exception):
    """Why a command cannot be undone by another one."""


def undoing(run: RunView, command: CommandView) -> Step | None:
    """Return the command that undoes another one as the run stands, None when it is undone.

    Raises:
        CannotUndo: It was not applied, is about no value, or is not the last change any more.
    """
    _require_undoable(run, command)
    changes = Changes()
    for moment in moments(run.commands, command.name):
        enter(changes, moment)
    if not changes.may_undo(command.id):
        # What the run brought back by itself goes on in another command.
        returns = returns_of(run.commands, command)
        restored = undone_by(returns[-1])
        if restored:
            raise CannotUndo(f"{restored} has undone it already")
        if changes.is_undone(command.id):
            return None
        if changes.state.startswith("restored"):
            raise CannotUndo("a restored state has changed it since")
        ids = {each.id for each in returns}
        done = (each for each in run.commands if each.reverts in ids and each.state == "applied")
        undone = next((each.id for each in done), "")
        if undone:
            raise CannotUndo(f"command {undone} has undone it already")
        raise CannotUndo(f"command {changes.state} has changed it since; undo that one first")
    return step_back(command, values_of(run))


def _require_undoable(run: RunView, command: CommandView) -> None:
    state = command.state
    if state == "outcome_unknown":
        show = f"launchhelm show {run.run_id} --controls"
        raise CannotUndo(
            "its outcome is unknown, and so is what there is to undo; set the value that you want, "
            f"by what the run reports now: {show}"
        )
    if command.is_pending:
        cancel = f"launchhelm control {run.run_id} cancel {command.id}"
        raise CannotUndo(f"it has not been applied yet; take it back: {cancel}")
    if state != "applied":
        raise CannotUndo(f"{NOT_APPLIED.get(state, 'it was not applied')} and has changed nothing")
    if command.name in ORDERS:
        raise CannotUndo("it is an order about commands; give the one that does the opposite")
    if command.name in _NO_VALUE:
        raise CannotUndo(_NO_VALUE[command.name])
    if command.name not in run.capabilities:
        raise CannotUndo("the run has no such control now")


def step_back(command: CommandView, values: Mapping[str, Any]) -> Step | None:
    """Return the one command that undoes another, None when its values are the old ones again.

    Under a schedule that is its factor, so that the schedule goes on as if it had never been.

    Args:
        values: Of all controls now.

    Raises:
        CannotUndo: There is no such command.
    """
    name, known = command.name, command.outcome
    change = Change.of(name, command.payload, known.changes if known is not None else {})
    if not change.is_known or name not in values:
        raise CannotUndo("what it did is not a value that a command can set")
    now = values[name]
    as_left = f"it is {_wording.values_text(now)} now, not as the command left it"
    if name not in PER_GROUP:
        if same(now, change.old):
            return None
        if not same(now, change.new):
            raise CannotUndo(as_left)
        return _one_value(name, change.old), {name: now}
    if not len(change.old) == len(change.new) == len(now):
        raise CannotUndo("the optimizer has other groups now")
    if change.factors is not None:
        is_scaled = any(factor != 1.0 for factor in change.factors)
        return (_scaled_back(change.factors), {}) if is_scaled else None
    if same(now, change.old):
        return None
    if not same(now, change.new):
        raise CannotUndo(as_left)
    payload = values_payload(name, change.old, now)
    return payload or _scaled_back(_ratios(change)), {name: now}


def _one_value(name: str, old: Any) -> dict[str, Any]:
    payload = payload_of(name, old)
    if payload is None and name == "dropout":
        raise CannotUndo("its modules had different values")
    if payload is None:
        raise CannotUndo("what it did is not a value that a command can set")
    return payload


def _scaled_back(factors: Sequence[float | None]) -> dict[str, Any]:
    """Return the input that takes back factors."""
    if None in factors:
        raise CannotUndo("a rate was 0 before it, and no factor leads back to that")
    return factors_payload([1.0 / factor for factor in factors if factor is not None])


def _ratios(change: Change) -> list[float | None]:
    """Return by how much each rate was changed."""
    pairs = list(zip(change.old, change.new, strict=True))
    return [
        1.0 if before == after else after / before if before and after else None
        for before, after in pairs
    ]
