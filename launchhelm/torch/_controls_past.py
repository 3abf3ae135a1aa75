"""What the controls of a run were commanded, as its records and this process know it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launchhelm.records import Record
from launchhelm.store.reader import Reader
from launchhelm.torch._controls import is_number


@dataclass(slots=True)
class Commanded:
    """What the applied commands of one control came to.

    Args:
        command: The last one.
        attempt: Where it was applied.
        step: When.
        values: Per group what it was given last; a control without groups has group 0 only.
        factors: Per group the product of all changes; None: it cannot be known.
        had: Per group every factor that was in effect at some time, 1.0 among them.
        reverted_to: Per group the factor that a restart or a restored state has left.
        seen: The value per group that was recorded last, or that a restored state has replaced.
        is_lost: A restart or a restored state has undone the last command, as was told.
    """

    command: str
    attempt: int
    step: int | None
    values: dict[int, Any] = field(default_factory=dict)  # Any: a number, or a tunable's value.
    factors: dict[int, float | None] = field(default_factory=dict)
    had: dict[int, set[float]] = field(default_factory=dict)
    reverted_to: dict[int, float] = field(default_factory=dict)
    seen: list[Any] = field(default_factory=list)
    is_lost: bool = False

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

    def take(self, old: Sequence[Any], new: Sequence[Any]) -> None:
        """Add what one more command has changed."""
        self.is_lost = False
        for group, (before, after) in enumerate(zip(old, new, strict=False)):
            if before == after:
                continue
            self.values[group] = after
            factor = self.reverted_to.pop(group, self.factors.get(group, 1.0))
            if factor is None or not is_number(before) or not is_number(after) or not before:
                self.factors[group] = None
            else:
                self.hold(group, factor * (after / before))
        self.seen = list(new)

    def hold(self, group: int, factor: float) -> None:
        """Note the product of all changes of a group."""
        self.factors[group] = factor
        self.had.setdefault(group, {1.0}).add(factor)


@dataclass(slots=True)
class Past:
    """What earlier attempts left.

    Args:
        commanded: By control.
    """

    commanded: dict[str, Commanded] = field(default_factory=dict)


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


def past_of(directory: Path, attempt: int) -> Past:
    """Read what the attempts before this one were commanded.

    Only the coordinators' records other than metrics are read.
    """
    from launchhelm.views.fold import whole_body  # A run that begins anew never needs it.

    past = Past()
    for record in Reader(directory, kinds=("oc", "ctl", "effect"), ranks=(0,)).poll():
        if record.writer.attempt < attempt:
            _take(past, record, whole_body(directory, record.body))
    return past


def _take(past: Past, record: Record, body: Mapping[str, Any]) -> None:
    known, attempt = past.commanded, record.writer.attempt
    if record.kind == "ctl":
        for name, value in _mapping(body.get("values")).items():
            mine = known.get(name)
            if mine is not None and mine.precedes(attempt, body.get("step")):
                mine.seen = per_group(value)
    elif record.kind == "effect":
        mine = known.get(str(body.get("name")))
        if mine is not None:
            mine.is_lost = bool(body.get("reverted"))
            factors = _mapping(body.get("factors")).items()
            mine.reverted_to = {int(group): float(factor) for group, factor in factors}
    elif body.get("state") == "applied":
        step = _mapping(body.get("applied_at")).get("step")
        add(known, str(body.get("cmd")), attempt, step, _mapping(body.get("changes")))


def add(
    known: dict[str, Commanded],
    command: str,
    attempt: int,
    step: int | None,
    changes: Mapping[str, Any],
) -> None:
    """Add what a command that was applied has changed."""
    for name, change in changes.items():
        if not isinstance(change, Mapping) or "old" not in change or "new" not in change:
            continue
        mine = known.setdefault(name, Commanded(command, attempt, step))
        mine.command, mine.attempt, mine.step = command, attempt, step
        mine.take(per_group(change["old"]), per_group(change["new"]))


def per_group(value: Any) -> list[Any]:
    """Return the values of a control, one per group."""
    return list(value) if isinstance(value, list | tuple) else [value]


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
