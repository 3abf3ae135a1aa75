"""Whether one command may act now: expired, too early, overtaken by another change, or fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from launchhelm import _wording
from launchhelm.controls.schema import check
from launchhelm.records import Command

FIT: Final = "fit"
WAIT: Final = "wait"


@dataclass(frozen=True, slots=True)
class Judgement:
    """What to do with a command at a safe point.

    Args:
        state: `fit`, `wait` (its first step has not come), or the final state `rejected`/`expired`.
        code: Why, for programs.
        message: Why, for people.
    """

    state: str
    code: str = ""
    message: str = ""


def judge(
    command: Command,
    *,
    schema: Mapping[str, Any] | None,
    step: int | None,
    ahead: int = 0,
    waited_s: float,
    values: Mapping[str, Any],
    frozen: str = "",
    is_overtaken: bool = False,
) -> Judgement:
    """Judge one command. Pure: no clock, no disk, no optimizer.

    Args:
        schema: Input schema of the capability as it is now, None when there is none.
        step: The step about to be controlled, None when the loop does not say.
        ahead: A first step that is at most so many steps away need not be waited for.
        waited_s: How long the command has waited in all.
        values: The values that controls have now, for `expected`.
        frozen: Who froze the controls and why, "" while they are not.
        is_overtaken: Whether the command that this one undoes is not the last change any more.
    """
    if waited_s > command.valid_s:
        return Judgement("expired", "expired", _not_within(command.valid_s))
    if command.last_step is not None and step is not None and step > command.last_step:
        return Judgement(
            "expired", "expired", f"Valid up to step {command.last_step:,}; the run is at {step:,}."
        )
    if schema is None:
        return Judgement(
            "rejected",
            "handler_unavailable_or_changed",
            f"This run has no control {_wording.json_text(command.name)}.",
        )
    problem = check(schema, command.payload)
    if problem:
        return Judgement("rejected", "local_validation", problem)
    if command.first_step is not None and (step is None or step + ahead < command.first_step):
        return Judgement(WAIT)
    if frozen:
        return Judgement("rejected", "frozen", frozen)
    if is_overtaken:
        return Judgement(
            "rejected", "changed_meanwhile", f"A later command changed {command.name}."
        )
    changed = unexpected(command.expected, values)
    return Judgement("rejected", "changed_meanwhile", changed) if changed else Judgement(FIT)


def unexpected(expected: Mapping[str, Any], values: Mapping[str, Any]) -> str:
    """Say which value is not as the sender of a command expected it, "" when all are."""
    for name, seen in expected.items():
        if name not in values:
            return f"{name} was {_wording.values_text(seen)} and is not known now."
        if values[name] != seen:
            before, now = _wording.distinct(seen, values[name])
            return f"{name} was {before} and is {now} now."
    return ""


def _not_within(valid_s: float) -> str:
    if valid_s >= 120:
        return f"It was not applied within {valid_s / 60:g} minutes."
    return f"It was not applied within {valid_s:g} second{'s' * (valid_s != 1)}."
