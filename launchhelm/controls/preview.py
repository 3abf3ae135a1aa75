"""What a command would do, judged before anything is sent. Pure: no disk, no clock, no promise.

The ranks judge again with their own rules and values; this only saves a round trip and a surprise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from launchhelm import _wording
from launchhelm.controls import schema
from launchhelm.controls.fields import Capability, fields_of, root_of
from launchhelm.controls.float32 import in_float32
from launchhelm.records import Command

_SAID_RANKS: Final = 4
_FACTOR_LIMIT: Final = 10.0
"""A change by more than this factor, or to zero, is pointed out."""

_PER_GROUP: Final = ("lr", "weight_decay")
_EACH: Final = ("scales", "lrs", "values")
"""Fields with one number for each group."""

_LR_FIELDS: Final = ("scale", "lr", "scales", "lrs")
_DECAY_FIELDS: Final = ("value", "scale", "values")


# Judging a payload --------------------------------------------------------------------------


def problem_with(capability: Capability, payload: Mapping[str, Any], values: Any) -> str:
    """Say why the run would refuse this payload, "" when nothing is known against it.

    Args:
        capability: As published by the run.
        payload: From `payload_of`.
        values: The values now, from the run's newest `ctl` record.
    """
    name = str(capability.get("name", ""))
    if name == "lr":
        problem = _not_above_zero(payload)
        if problem:
            return problem  # Said before the schema speaks, whose bound of 0 is inclusive.
    if name == "dropout":
        p: Any = payload.get("p")
        if is_number(p) and not 0 <= p < 1:
            return f"dropout takes a number from 0 to below 1 for p, got {_wording.json_text(p)}"
    problem = schema.check(capability.get("input_schema") or {}, payload)
    if problem:
        return f"{name}: {problem.rstrip('.')}"
    if name == "lr":
        return _problem_with_lr(capability, payload, values)
    if name == "weight_decay":
        return _problem_with_decay(capability, payload, values)
    if name == "grad_clip":
        return _problem_with_clip(payload.get("max_norm"))
    return ""


def _problem_with_lr(capability: Capability, payload: Mapping[str, Any], values: Any) -> str:
    given = [field for field in _LR_FIELDS if field in payload]
    if len(given) != 1:
        one_of = _one_of(capability, _LR_FIELDS)
        return f"lr takes exactly one of {one_of}, for example scale=0.5 or lr=1e-4"
    if given[0] in _EACH:
        each = _problem_with_each("lr", given[0], payload, values)
        return each or _problem_with_size("lr", payload, values)
    if payload.get("keep_ratios") and "group" in payload:
        return "lr: keep_ratios is about all groups; leave out group"
    return _problem_with_group("lr", payload, values) or _problem_with_size("lr", payload, values)


def _not_above_zero(payload: Mapping[str, Any]) -> str:
    for field in _LR_FIELDS:
        given: Any = payload.get(field)
        for number in given if isinstance(given, list) else [given]:
            if is_number(number) and not number > 0:
                said = _wording.json_text(number)
                return f"lr takes a number above 0 for {field}, got {said}"
    return ""


def _problem_with_size(name: str, payload: Mapping[str, Any], values: Any) -> str:
    """Find a number that is not 0 and would be 0 in float32, or too large for it."""
    old = values.get(name) if isinstance(values, Mapping) else None
    known = isinstance(old, list | tuple) and all(map(is_number, old))
    change = change_of(name, payload, values) if known else None
    told = ("scale", "lr") if name == "lr" else ("value",)
    given = [payload[field] for field in told if field in payload]
    each = [number for field in _EACH for number in payload.get(field, ())]
    for number in [*given, *each, *(change.new if change is not None else ())]:
        if number and not in_float32(number):
            said = _wording.json_text(number)
            return f"{name}: {said} is a number that float32 cannot hold"
    return ""


def _problem_with_decay(capability: Capability, payload: Mapping[str, Any], values: Any) -> str:
    given = [field for field in _DECAY_FIELDS if field in payload]
    if len(given) != 1:
        one_of = _one_of(capability, _DECAY_FIELDS)
        return f"weight_decay takes exactly one of {one_of}, for example value=0.1"
    if given[0] in _EACH:
        each = _problem_with_each("weight_decay", given[0], payload, values)
        return each or _problem_with_size("weight_decay", payload, values)
    if payload.get("skip_zero") and "group" in payload:
        return "weight_decay: skip_zero is about all groups; leave out group"
    group = _problem_with_group("weight_decay", payload, values)
    return group or _problem_with_size("weight_decay", payload, values)


def _one_of(capability: Capability, names: tuple[str, ...]) -> str:
    *first, last = [each for each in names if each in fields_of(root_of(capability))]
    return f"{', '.join(first)} and {last}" if first else last


def one_of(capability: Capability) -> list[str]:
    """Return the fields of which exactly one is given, which a schema cannot say."""
    names = {"lr": _LR_FIELDS, "weight_decay": _DECAY_FIELDS}.get(str(capability.get("name")), ())
    known = [each for each in names if each in fields_of(root_of(capability))]
    return known if len(known) > 1 else []


def _problem_with_each(name: str, field: str, payload: Mapping[str, Any], values: Any) -> str:
    more = [each for each in ("group", "keep_ratios", "skip_zero") if each in payload]
    if more:
        return f"{name}: {field} is about all groups; leave out {more[0]}"
    groups = values.get(name) if isinstance(values, Mapping) else None
    if not isinstance(groups, list | tuple) or len(groups) == len(payload[field]):
        return ""
    return f"{name} takes one number per group for {field}, {len(groups)} in all"


def _problem_with_clip(limit: Any) -> str:
    if limit is None or (is_number(limit) and in_float32(limit)):
        return ""
    said = _wording.json_text(limit)
    if is_number(limit) and limit > 0:
        return f"grad_clip: {said} is a number that float32 cannot hold"
    return f"grad_clip takes a number above 0 for max_norm, or null for off, got {said}"


def _problem_with_group(name: str, payload: Mapping[str, Any], values: Any) -> str:
    groups = values.get(name) if isinstance(values, Mapping) else None
    group = payload.get("group")
    if group is None or not isinstance(groups, list | tuple) or group < len(groups):
        return ""
    there = "only group 0" if len(groups) == 1 else f"groups 0 to {len(groups) - 1}"
    return f"{name} has no group {group}; the optimizer has {there}"


# What would change --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Change:
    """Old and new value of one control; lists hold one value per parameter group."""

    name: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{self.name} {_wording.change_text(self.old, self.new)}"


def change_of(name: str, payload: Mapping[str, Any], values: Mapping[str, Any]) -> Change | None:
    """Foresee the new values, None where only the run can know."""
    if name not in values:
        return None
    old = values[name]
    if name in _PER_GROUP and isinstance(old, list | tuple):
        each = payload.get("lrs", payload.get("values"))
        if each is not None:
            return Change(name, list(old), list(each))
        if "scales" in payload:
            new = [value * factor for value, factor in zip(old, payload["scales"], strict=False)]
            return Change(name, list(old), new)
        group = payload.get("group")
        target = payload.get("lr", payload.get("value"))
        if payload.get("keep_ratios") and not old[:1]:
            return None
        if payload.get("keep_ratios") and target is not None:
            # The first group gets the value, the others keep their ratio to it.
            return (
                Change(name, list(old), [target * (value / old[0]) for value in old])
                if old[0]
                else None
            )
        new = list(old)
        for index in range(len(old)) if group is None else [group]:
            if payload.get("skip_zero") and not old[index]:
                continue
            new[index] = old[index] * payload["scale"] if "scale" in payload else target
        return Change(name, list(old), new)
    if name == "grad_clip":
        return Change(name, old, payload.get("max_norm"))
    if name == "dropout" and payload.get("skip_zero"):
        return None
    for key in ("value", "p"):
        if key in payload:
            return Change(name, old, payload[key])
    return None


def warnings_for(
    change: Change | None, capability: Capability, payload: Mapping[str, Any]
) -> list[str]:
    """Point out what a person may not have meant."""
    if change is None:
        return []
    old = change.old if isinstance(change.old, list) else [change.old]
    new = change.new if isinstance(change.new, list) else [change.new]
    said = []
    if len(set(old)) > 1 and len(set(new)) == 1 and not {"scale", *_EACH} & set(payload):
        fields = fields_of(root_of(capability))
        safer = [k for k in ("keep_ratios", "skip_zero") if k in fields and not payload.get(k)]
        way = f"{safer[0]}=true avoids it" if safer else "group=N sets one group only"
        said.append(f"groups differ now and would become equal; {way}")
    if change.name == "dropout" and isinstance(change.old, str):
        said.append(
            "modules differ now and would become equal; skip_zero=true leaves those at 0 alone"
        )
    for before, after in zip(old, new, strict=True):
        if is_number(before) and is_number(after) and before and change.name in _PER_GROUP:
            factor = abs(after / before)
            if factor > _FACTOR_LIMIT or factor < 1 / _FACTOR_LIMIT:
                bold = f"changes by a factor of {factor:.4g}" if after else "becomes 0"
                said.append(f"{change.name} {bold}")
                break
    return said


def is_number(value: Any) -> bool:
    """Whether this is a number, which True is not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


# When and where -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class When:
    """About when a command acts: a step and seconds from now; None where the pace is unknown."""

    step: int | None
    in_s: float | None
    processes: int | None

    def __str__(self) -> str:
        said = "at the next control point" if self.step is None else f"at about step {self.step:,}"
        if self.in_s is not None:
            said += f", in {_wording.duration(max(1.0, self.in_s))}"
        if self.processes is not None:
            said += f", on {_wording.processes(self.processes)}"
        return said


def when(
    *,
    step: int | None,
    pace_s: float | None,
    calls_per_exchange: int | None,
    poll_s: float,
    first_step: int | None,
    world_size: int | None,
) -> When:
    """Estimate when a command acts: one look into the inbox, one exchange, and agreed steps ahead.

    A call of `step` is taken as one step; scripts that number steps otherwise get a rough answer.
    """
    if step is None:
        return When(first_step, None, world_size)
    ahead = 2 * (calls_per_exchange or 1)
    if pace_s:
        ahead += math.ceil(poll_s / pace_s)
    target = max(step + ahead, first_step if first_step is not None else 0)
    return When(target, (target - step) * pace_s if pace_s else None, world_size)


def step_warnings(
    command: Command, step: int | None, when: When, *, is_paused: bool = False
) -> list[str]:
    """Point out steps that have passed or may never come, and a validity that ends before.

    Args:
        step: Of the run now, None while it has reported none.
        when: The command is expected to act.
        is_paused: All ranks wait at that step, and commands act there.
    """
    said = []
    first = command.first_step
    if first is not None and step is None:
        said.append("the run has reported no step yet, so that it is not known when that comes")
    elif first is not None and step is not None and first < step + (not is_paused):
        said.append(
            f"step {first:,} has passed (the run is at {step:,}); it acts as soon as it can"
        )
    late = lateness(command, step, when, is_paused=is_paused)
    if late:
        said.append(late)
    if when.in_s is not None and when.in_s > command.valid_s:
        valid = _wording.duration(command.valid_s)
        said.append(f"it expires after {valid}, before that at the present pace")
    return said


def lateness(command: Command, step: int | None, when: When, *, is_paused: bool) -> str:
    """Say that a command comes too late for its last step, "" when it does not."""
    last = command.last_step
    if last is None or step is None:
        return ""
    if last < step:
        return f"step {last:,} has passed (the run is at {step:,}); it would expire at once"
    if when.step is not None and last < when.step and not is_paused:
        return f"it could act at about step {when.step:,}, past its last step {last:,}"
    return ""


def trouble_text(states: Mapping[int, str]) -> str:
    """Name the ranks that may hold a command up: `Rank 137 is behind.`"""
    said = []
    for word in ("missing", "silent", "late", "behind"):
        ranks = sorted(rank for rank, state in states.items() if state == word)
        if not ranks:
            continue
        named = ", ".join(str(rank) for rank in ranks[:_SAID_RANKS])
        if len(ranks) > _SAID_RANKS:
            named += f" and {len(ranks) - _SAID_RANKS} more"
        said.append(f"Rank {named} is {word}." if len(ranks) == 1 else f"Ranks {named} are {word}.")
    return " ".join(said)
