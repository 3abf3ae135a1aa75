"""What earlier attempts were commanded, and whether this one still has it in effect.

Optimizer and scheduler know nothing of a live command: a script that starts again has its own
values, or those of its checkpoint. Nothing is changed here; what was undone is told.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launchhelm.store.reader import Reader
from launchhelm.torch._controls import StateControl, is_number
from launchhelm.torch._learning_rate import LearningRate


@dataclass(slots=True)
class Commanded:
    """What the applied commands of one control came to.

    Args:
        attempt: Where the last one was applied.
        step: When.
        values: Per group what it was given last; a control without groups has group 0 only.
        factors: Per group the product of all changes in that attempt; None: it cannot be known.
        seen: The value per group that the same attempt recorded last.
    """

    attempt: int
    step: int | None
    values: dict[int, Any] = field(default_factory=dict)  # Any: a number, or a tunable's value.
    factors: dict[int, float | None] = field(default_factory=dict)
    seen: list[Any] = field(default_factory=list)

    @property
    def where(self) -> str:
        """Say when the last command was applied."""
        step = "" if self.step is None else f"step {self.step} of "
        return f"at {step}attempt {self.attempt}" if step else f"in attempt {self.attempt}"

    def precedes(self, attempt: int, step: object) -> bool:
        """Whether what was recorded at a step may be what became of the last command."""
        if attempt != self.attempt:
            return False
        return self.step is None or (isinstance(step, int) and step >= self.step)

    def take(self, old: list[Any], new: list[Any]) -> None:
        """Add what one more command has changed."""
        for group, (before, after) in enumerate(zip(old, new, strict=False)):
            if before == after:
                continue
            self.values[group] = after
            factor = self.factors.get(group, 1.0)
            if factor is None or not is_number(before) or not is_number(after) or not before:
                self.factors[group] = None
            else:
                self.factors[group] = factor * (after / before)
        self.seen = new


def kept(restored: Mapping[str, Any]) -> tuple[int, float | None, Mapping[str, Any]]:
    """Read step, gradient clip and tunables out of what a run kept; odd parts are left out."""
    own, control = restored.get("launchhelm.torch"), restored.get("control")
    step = own.get("step") if isinstance(own, Mapping) else None
    limit = control.get("grad_clip") if isinstance(control, Mapping) else None
    tunables = restored.get("tunables")
    return (
        step if isinstance(step, int) and not isinstance(step, bool) else 0,
        float(limit) if isinstance(limit, int | float) and limit > 0 else None,
        tunables if isinstance(tunables, Mapping) else {},
    )


def commanded(directory: Path, attempt: int) -> dict[str, Commanded]:
    """Read what the attempts before this one were commanded, by control.

    Only the coordinators' records other than metrics are read.
    """
    from launchhelm.views.fold import whole_body  # A run that begins anew never needs it.

    known: dict[str, Commanded] = {}
    for record in Reader(directory, kinds=("oc", "ctl"), ranks=(0,)).poll():
        if record.writer.attempt >= attempt:
            continue
        body = whole_body(directory, record.body)
        if record.kind == "ctl":
            for name, value in _mapping(body.get("values")).items():
                mine = known.get(name)
                if mine is not None and mine.precedes(record.writer.attempt, body.get("step")):
                    mine.seen = _per_group(value)
        elif body.get("state") == "applied":
            _take(known, body, record.writer.attempt)
    return known


def _take(known: dict[str, Commanded], body: Mapping[str, Any], attempt: int) -> None:
    step = _mapping(body.get("applied_at")).get("step")
    for name, change in _mapping(body.get("changes")).items():
        if not isinstance(change, Mapping) or "old" not in change or "new" not in change:
            continue
        mine = known.setdefault(name, Commanded(attempt, step))
        if mine.attempt != attempt:
            mine.factors = {}
        mine.attempt, mine.step = attempt, step
        mine.take(_per_group(change["old"]), _per_group(change["new"]))


def undone(control: StateControl, past: Commanded) -> str:
    """Return one sentence on what is not in effect any more, "" when all is."""
    now = _per_group(control.values().get(control.name))
    if isinstance(control, LearningRate) and control.rates.has_schedule:
        return _unscaled(control, past, now)
    groups = [group for group in past.values if group < len(now)]
    # What the script or its scheduler made of the rate afterwards may have been restored too.
    has_kept = all(
        _same(now[group], past.values[group])
        or (group < len(past.seen) and _same(now[group], past.seen[group]))
        for group in groups
    )
    if has_kept:
        return ""
    was = _said([past.values[group] for group in groups])
    return (
        f"{control.name} is {_said([now[group] for group in groups])}; {was} was commanded "
        f"{past.where} and is not in effect any more (reverted by restart)."
    )


def _unscaled(control: LearningRate, past: Commanded, now: list[Any]) -> str:
    """Judge a schedule by its factor: the rate says nothing, as the next step may undo it."""
    groups = [
        group
        for group, factor in past.factors.items()
        if group < len(now)
        and (factor is None or not math.isclose(factor, 1.0, rel_tol=1e-6))
        and control.rates.is_unscaled(group)
    ]
    if not groups:
        return ""
    factors = [past.factors[group] for group in groups]
    if None in factors:
        was = _said([past.values[group] for group in groups])
    else:
        was = f"a factor of {_said(factors)}"
    return (
        f"{control.name} is {_said([now[group] for group in groups])} and its schedule is "
        f"unscaled; {was} was commanded {past.where} and is not in effect any more "
        "(reverted by restart)."
    )


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _per_group(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _same(one: Any, other: Any) -> bool:
    if is_number(one) and is_number(other):
        return math.isclose(one, other, rel_tol=1e-6)
    return bool(one == other)


def _said(values: list[Any]) -> str:
    texts = [f"{each:.6g}" if isinstance(each, float) else repr(each) for each in values]
    return texts[0] if len(set(texts)) == 1 else f"[{', '.join(texts)}]"
