"""The command that undoes another one: the state before it, if nothing has changed it since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from launchhelm import _wording
from launchhelm.controls.assign import PER_GROUP, payload_of
from launchhelm.controls.undo import Change, Changes
from launchhelm.records import ORDERS
from launchhelm.views.commands import CommandView
from launchhelm.views.plan import values_of
from launchhelm.views.run import RunView

Step = tuple[dict[str, Any], dict[str, Any]]
"""Input of a command and the values it expects. Any: JSON."""

_EACH: Final = {"lr": "lrs", "weight_decay": "values"}
"""The field that sets every group by itself."""

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
    changes = _changes_of(run.commands, command.name)
    if not changes.may_undo(command.id):
        reverted = (command.effect or {}).get("reverted")
        if reverted:
            raise CannotUndo(f"a {reverted} has undone it already")
        if changes.is_undone(command.id):
            return None
        if changes.state.startswith("restored"):
            raise CannotUndo("a restored state has changed it since")
        undone = next((it.id for it in run.commands if _undid(it, command)), "")
        if undone:
            raise CannotUndo(f"command {undone} has undone it already")
        raise CannotUndo(f"command {changes.state} has changed it since; undo that one first")
    return step_back(command, values_of(run))


def _undid(later: CommandView, command: CommandView) -> bool:
    return later.state == "applied" and later.reverts == command.id


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
        ended = "it expired" if state == "expired" else f"it was {state}"
        raise CannotUndo(f"{ended} and has changed nothing")
    if command.name in ORDERS:
        raise CannotUndo("it is an order about commands; give the one that does the opposite")
    if command.name in _NO_VALUE:
        raise CannotUndo(_NO_VALUE[command.name])
    if command.name not in run.capabilities:
        raise CannotUndo("the run has no such control now")


def _changes_of(commands: Sequence[CommandView], name: str) -> Changes:
    """Fold all that changed one control: the commands that were applied, and restored states."""
    changes = Changes()
    mine = [each for each in commands if each.name == name and each.state == "applied"]
    said: list[tuple[tuple[int, float], int, CommandView]] = []
    for each in mine:
        said.append(((each.states[-1].attempt, each.states[-1].at), 0, each))
        if each.restored_at is not None:
            said.append((each.restored_at, 1, each))
    for _, kind, each in sorted(said, key=lambda it: it[:2]):
        if kind:
            effect = each.effect or {}
            factors = {int(group): factor for group, factor in _known(effect, "factors").items()}
            changes.restored(_known(effect, "values").get(name), factors)
        else:
            outcome = each.outcome
            known = outcome.changes if outcome is not None else {}
            changes.take(each.id, each.reverts, Change.of(name, each.payload, known))
    return changes


def _known(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = body.get(name)
    return value if isinstance(value, Mapping) else {}


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
        if now not in (change.old, change.new):
            raise CannotUndo(as_left)
        return (_one_value(name, change.old), {name: now}) if now != change.old else None
    if not len(change.old) == len(change.new) == len(now):
        raise CannotUndo("the optimizer has other groups now")
    if change.factors is not None:
        is_scaled = any(factor != 1.0 for factor in change.factors)
        return (_scaled_back(change.factors), {}) if is_scaled else None
    if now == change.old and change.old != change.new:
        return None
    if now == change.new and change.old != change.new:
        payload = _set_back(name, change.old, now)
        if payload is not None:
            return payload, {name: now}
    if name != "lr":
        raise CannotUndo(as_left)
    # Something that has no factor has moved the rate on, such as ReduceLROnPlateau.
    return _scaled_back(_ratios(change)), {}


def _one_value(name: str, old: Any) -> dict[str, Any]:
    payload = payload_of(name, old)
    if payload is None and name == "dropout":
        raise CannotUndo("its modules had different values")
    if payload is None:
        raise CannotUndo("what it did is not a value that a command can set")
    return payload


def _set_back(name: str, old: Sequence[float], now: Sequence[float]) -> dict[str, Any] | None:
    """Return the input that sets the old values of all groups at once; no rate can be set to 0."""
    moved = [group for group, value in enumerate(old) if value != now[group]]
    if name == "lr" and not all(old[group] for group in moved):
        return None
    if len(set(old)) == 1:
        return _one_value(name, old[0])
    if len(moved) == 1:
        return {**_one_value(name, old[moved[0]]), "group": moved[0]}
    if name == "lr" and not all(old):
        return None
    return {_EACH[name]: list(old)}


def _scaled_back(factors: Sequence[float | None]) -> dict[str, Any]:
    """Return the input that takes back factors; a group with a factor of 1 is left alone."""
    if None in factors:
        raise CannotUndo("its rate is held until the schedule moves, which no factor undoes")
    back = [1.0 / factor for factor in factors if factor is not None]
    scaled = [group for group, factor in enumerate(back) if factor != 1.0]
    if len(set(back)) == 1:
        return {"scale": back[0]}
    if len(scaled) == 1:
        return {"scale": back[scaled[0]], "group": scaled[0]}
    return {"scales": back}


def _ratios(change: Change) -> list[float | None]:
    """Return by how much each rate was changed; as typed where that is all that is known."""
    if change.scale is not None:
        groups = range(len(change.old))
        return [change.scale if change.group in (None, group) else 1.0 for group in groups]
    pairs = list(zip(change.old, change.new, strict=True))
    if not all((before and after) or before == after for before, after in pairs):
        raise CannotUndo("a rate was 0, and no factor leads back to that")
    return [after / before if before != after else 1.0 for before, after in pairs]
