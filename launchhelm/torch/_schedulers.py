"""A live learning rate and the user's schedule, reconciled.

Each parameter group has one multiplier. Torch's scheduler never sees it: around the outermost
`scheduler.step` the rate that torch left there the last time is put back, torch computes the next
one, and the product is written to the group. So every schedule is scaled exactly, whether it
computes from the current rate or from a stored base, nested or not, with one factor per group,
and none of torch's own fields change.

`ReduceLROnPlateau` starts from whatever rate it finds and has an absolute floor, so it needs no
multiplier and gets none: its floor stays where the user put it.

Everything here runs on the thread that trains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.optim.lr_scheduler import (
    ConstantLR,
    CosineAnnealingLR,
    ExponentialLR,
    LinearLR,
    MultiStepLR,
    PolynomialLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)

from launchhelm.controls.float32 import in_float32
from launchhelm.torch._groups import Groups, before_load, copied, is_proven, proof, write
from launchhelm.torch._scheduler_hook import hook

_FROM_CURRENT = (
    *(ConstantLR, CosineAnnealingLR, ExponentialLR, LinearLR),
    *(MultiStepLR, PolynomialLR, StepLR),
)
"""Schedules that multiply the rate they find, and can also say it in closed form."""


_NOTHING = 1e-12
"""A schedule that ends at 0 may miss it by rounding: this part of its base is 0 as well."""

_ROUNDING = 1e-12
"""A factor and its inverse may miss 1 by this."""

Rate = float | torch.Tensor


@dataclass(frozen=True, slots=True)
class Change:
    """What one group shall become: its rate now, its multiplier, and whether it is held.

    Args:
        group: Index in `optimizer.param_groups`.
        rate: The rate from now on until the schedule moves.
        multiplier: Laid over the schedule afterwards.
        held: The schedule gives 0 and its base is 0 too, so no factor reaches the rate.
            It holds until the schedule moves, which then goes on unscaled.
    """

    group: int
    rate: float
    multiplier: float
    held: bool = False


@dataclass(frozen=True, slots=True)
class _Slot:
    """What we know of one group.

    Args:
        multiplier: Laid over the schedule.
        scheduled: What torch computed last, without the multiplier. None: never taken.
        written: Proof that nobody else wrote since: the float, or the tensor and its version.
        held: Keep the rate until `scheduled` changes.
    """

    multiplier: float = 1.0
    scheduled: Rate | None = None
    written: object = None
    held: bool = False


_UNTOUCHED = _Slot()


@dataclass(frozen=True, slots=True)
class RatesSnapshot:
    """All that `Rates.restore` needs to undo a change exactly."""

    rates: tuple[tuple[Rate, ...], ...]
    """Per group, first that of the innermost optimizer."""
    slots: Mapping[int, _Slot]
    ours: frozenset[int]


class Rates:
    """The learning rates of one optimizer, under the schedule of one scheduler or of none.

    Args:
        optimizer: Anything with torch's `param_groups`.
        scheduler: Its outermost scheduler, of any class with `step`; hooked until `unhook`.

    Attributes:
        groups: Those of the optimizer and of what it wraps.
        optimizer: The one of them that the scheduler works on, else the innermost.
    """

    def __init__(self, optimizer: Any, scheduler: Any = None) -> None:
        self.groups = Groups(optimizer)
        scheduled = getattr(scheduler, "optimizer", None)
        is_inside = any(scheduled is each for each in self.groups.chain)
        self.optimizer: Any = scheduled if is_inside else self.groups.chain[-1]
        self.scheduler = scheduler
        self._slots: dict[int, _Slot] = {}
        self._had: dict[int, set[float]] = {}
        self._inside = False
        self._is_loaded = False
        self._overwritten: set[int] = set()
        self.has_schedule = scheduler is not None and not isinstance(scheduler, ReduceLROnPlateau)
        self._unhook: list[Callable[[], None]] = []
        if self.has_schedule:
            loads = before_load(self.groups.chain[-1], self._note_load)
            self._unhook = [hook(scheduler, self), loads]

    def unhook(self) -> None:
        """Leave the scheduler as it was; the rates stay as they are."""
        for undo in self._unhook:
            undo()
        self._unhook = []

    @property
    def group_count(self) -> int:
        return len(self.optimizer.param_groups)

    def now(self) -> list[float]:
        """Return the rate of each group. Waits for the device where a rate is a tensor there."""
        return self.groups.read("lr")

    def multipliers(self) -> list[float]:
        """Return the multiplier of each group."""
        self.settle()
        return [self._slot(index).multiplier for index in range(self.group_count)]

    def base(self, index: int) -> float:
        """Return the rate that the schedule of a group starts from, 0.0 when it says none."""
        return float(self.optimizer.param_groups[index].get("initial_lr", 0.0))

    def factor(self, index: int) -> float:
        """Return by how much the schedule of a group is scaled, whoever did it.

        The multiplier alone does not tell: a schedule that computes from the current rate carries
        on a scaled one that a checkpoint brought back.
        """
        self.settle()
        multiplier = self._slot(index).multiplier
        try:
            schedule = self.scheduler
            if isinstance(schedule, SequentialLR):
                if schedule.last_epoch < schedule._milestones[-1]:
                    return multiplier  # The next part starts from its base, whatever this one does.
                schedule = schedule._schedulers[-1]
            if not isinstance(schedule, _FROM_CURRENT):
                return multiplier
            closed: Any = schedule
            own = float(closed._get_closed_form_lr()[index])
        except Exception:  # Torch's own and private; without it the multiplier must do.
            return multiplier
        return float(self.optimizer.param_groups[index]["lr"]) / own if own else multiplier

    # After a state was loaded.

    def saved(self) -> list[dict[str, Any]]:
        """Return what a checkpoint has to hold beside the states of optimizer and scheduler."""
        self.settle()
        return [
            {
                "multiplier": self._slot(index).multiplier,
                "scheduled": copied(self._slot(index).scheduled) if self._is_ours(index) else None,
                "held": self._slot(index).held,
            }
            for index in range(self.group_count)
        ]

    def adopt(self, multipliers: Sequence[float]) -> None:
        """Go on with the multipliers under which the rates of now were saved."""
        self.resume([{"multiplier": each} for each in multipliers])

    def resume(self, saved: Sequence[Mapping[str, Any]]) -> None:
        """Go on as when `saved` was called; the states of that time are loaded again."""
        self._is_loaded = False
        if not self.has_schedule:
            return
        for index, slot in enumerate(saved[: self.group_count]):
            rate, multiplier = self.optimizer.param_groups[index]["lr"], float(slot["multiplier"])
            scheduled, is_held = slot.get("scheduled"), bool(slot.get("held"))
            if scheduled is None:
                scheduled = copied(rate) / multiplier
            self._put(index, _Slot(multiplier, scheduled, self._proof(index), is_held))

    def settle(self) -> None:
        """Find out which multiplier a loaded state was saved under, when one was loaded.

        Rate and schedule say it together, since torch's own `_last_lr` is without a multiplier. A
        ratio that no command has made is none of ours: then the multiplier of now stays.
        """
        if not self._is_loaded or self._inside:
            return
        self._is_loaded = False
        last = getattr(self.scheduler, "_last_lr", None) or ()
        for index, scheduled in enumerate(map(float, last[: self.group_count])):
            rate = self.optimizer.param_groups[index]["lr"]
            for multiplier in self._had.get(index, ()):
                if scheduled and _close(float(rate), scheduled * multiplier):
                    is_tensor = isinstance(rate, torch.Tensor)
                    own = copied(rate) / multiplier if is_tensor else scheduled
                    self._put(index, _Slot(multiplier, own, self._proof(index)))
                    break

    def _note_load(self) -> None:
        self._is_loaded = True

    def _put(self, index: int, slot: _Slot) -> None:
        self._slots[index] = slot
        self._had.setdefault(index, {1.0}).add(slot.multiplier)

    def factors_since(self, snapshot: RatesSnapshot) -> list[float | None] | None:
        """Return by how much the schedule of each group was scaled since; None without one.

        Under `ReduceLROnPlateau` that is the rate. None for a group that no factor brings back.
        """
        if self.scheduler is None:
            return None
        if not self.has_schedule:
            pairs = zip((float(rates[0]) for rates in snapshot.rates), self.now(), strict=True)
            return [_ratio(before, after) for before, after in pairs]
        factors: list[float | None] = []
        for index, now in enumerate(self.multipliers()):
            before = snapshot.slots.get(index, _UNTOUCHED)
            is_held = before.held or self._slot(index).held
            factors.append(None if is_held else now / before.multiplier)
        return factors

    # Planning: reads, changes nothing.

    def scaled(self, groups: Sequence[int], factor: float) -> list[Change]:
        """Plan to multiply the schedule of some groups."""
        self.settle()
        changes = []
        for index in groups:
            slot = self._slot(index)
            current = float(self.optimizer.param_groups[index]["lr"])
            if slot.held:
                changes.append(Change(index, current * factor, slot.multiplier * factor, True))
                continue
            if not self.has_schedule:
                changes.append(Change(index, current * factor, 1.0))
                continue
            scheduled = float(self._scheduled(index))
            multiplier = slot.multiplier * factor
            if math.isclose(multiplier, 1.0, rel_tol=_ROUNDING):
                multiplier = 1.0  # What was scaled is scaled back: to the last bit as it would be.
            # At 0 the rate may be one that was commanded there, and no multiple of the schedule's.
            is_zero = self._is_zero(index, scheduled)
            changes.append(
                Change(index, current * factor if is_zero else scheduled * multiplier, multiplier)
            )
        return changes

    def absolute(self, groups: Sequence[int], target: float) -> list[Change]:
        """Plan to give some groups this rate now, and to scale their schedules to match."""
        self.settle()
        return [self._absolute(index, target) for index in groups]

    def _absolute(self, index: int, target: float) -> Change:
        if not self.has_schedule:
            return Change(index, target, 1.0)
        scheduled = float(self._scheduled(index))
        if not self._is_zero(index, scheduled):
            return Change(index, target, target / scheduled)
        # The first step of a warm-up, or the end of a cosine: no factor of 0 is the target, so
        # the factor is taken from the base. Without one, only holding is left.
        base = self.base(index)
        if base != 0.0:
            return Change(index, target, target / base)
        return Change(index, target, self._slot(index).multiplier, held=True)

    def _is_zero(self, index: int, scheduled: float) -> bool:
        return abs(scheduled) <= _NOTHING * self.base(index)

    def in_proportion(self, target: float) -> list[Change] | None:
        """Plan to give the first group this rate and to keep the ratios of the others to it.

        None when the first group's rate is 0 and it has no base either: there is no ratio then.
        """
        self.settle()
        rates = self.now()
        if not any(rates) and self.has_schedule:
            rates = [self.base(index) for index in range(self.group_count)]
        if not rates or rates[0] == 0.0:
            return None
        changes = []
        for index, rate in enumerate(rates):
            if rate == 0.0:
                changes += self.scaled([index], target / rates[0])
            else:
                changes.append(self._absolute(index, target * (rate / rates[0])))
        return changes

    def torn(self, changes: Sequence[Change]) -> str:
        """Return which groups share one tensor that a plan gives different rates, "" for none."""
        groups = self.optimizer.param_groups
        planned = {change.group: change.rate for change in changes}
        for index, rate in planned.items():
            tensor = groups[index]["lr"]
            for other, group in enumerate(groups):
                is_shared = isinstance(tensor, torch.Tensor) and group["lr"] is tensor
                if is_shared and planned.get(other) != rate:
                    return f"groups {min(index, other)} and {max(index, other)}"
        return ""

    # Changing.

    def apply(self, changes: Sequence[Change]) -> None:
        """Carry a plan out."""
        # All are read before one is written: groups may share a tensor, which changes in place.
        scheduled = [copied(self._scheduled(change.group)) for change in changes]
        for change in changes:
            for group in self.groups.all(change.group):
                write(group, "lr", change.rate)
        for change, before in zip(changes, scheduled, strict=True):
            index = change.group
            self._overwritten.discard(index)
            if self.has_schedule:
                self._put(index, _Slot(change.multiplier, before, self._proof(index), change.held))

    def snapshot(self) -> RatesSnapshot:
        """Remember rates and multipliers."""
        self.settle()
        return RatesSnapshot(
            rates=tuple(
                tuple(copied(group["lr"]) for group in self.groups.all(index))
                for index in range(self.group_count)
            ),
            slots=dict(self._slots),
            ours=frozenset(index for index in self._slots if self._is_ours(index)),
        )

    def restore(self, snapshot: RatesSnapshot) -> None:
        """Put back exactly what the snapshot saw."""
        slots = dict(snapshot.slots)
        for index, rates in enumerate(snapshot.rates):
            for group, rate in zip(self.groups.all(index), rates, strict=True):
                write(group, "lr", rate)
        for index in snapshot.ours:
            slots[index] = replace(slots[index], written=self._proof(index))
        self._slots = slots

    # Around the scheduler's step.

    def step_scheduler(self, step: Callable[[], Any]) -> Any:
        """Run one step of the schedule in its own, unscaled space."""
        self.settle()
        if self._inside or not self._slots:
            return step()
        groups = self.optimizer.param_groups
        before: dict[int, tuple[Rate, Rate]] = {}
        for index in self._slots:
            if index < len(groups):
                before[index] = copied(self._scheduled(index)), copied(groups[index]["lr"])
                if not self._is_ours(index):
                    self._overwritten.add(index)
        self._inside = True
        try:
            for index, (scheduled, _) in before.items():
                if self._slots[index].multiplier != 1.0 or self._slots[index].held:
                    write(groups[index], "lr", scheduled)
            return step()
        finally:
            # Also when torch raised: a rate left unscaled would be a change nobody asked for.
            self._rescale(before)
            self._inside = False

    def _rescale(self, before: Mapping[int, tuple[Rate, Rate]]) -> None:
        groups = self.optimizer.param_groups
        after = {index: copied(groups[index]["lr"]) for index in before}
        for index, (was, rate) in before.items():
            slot, scheduled = self._slots[index], after[index]
            held = slot.held and float(scheduled) == float(was)
            value = rate if held else _moved(was, scheduled, rate, slot.multiplier)
            write(groups[index], "lr", value)
            self._slots[index] = replace(slot, scheduled=scheduled, held=held)
        for index in before:
            self._slots[index] = replace(self._slots[index], written=self._proof(index))

    def is_lost(self, index: int, old: float, new: float) -> bool:
        """Whether a command took a group's rate from old to new, and somebody else wrote it since.

        Ask when optimizer and scheduler have moved once.
        """
        now = float(self.groups.real(index)["lr"])
        if not self.has_schedule:
            # What is left is ReduceLROnPlateau, which may have reduced it.
            return not (_close(now, new) or (self.scheduler is not None and old != now < new))
        if index in self._overwritten or not self._is_ours(index):
            return True
        # An inner optimizer has the rate of its last step, or the next one already.
        return not (
            _close(now, new) or _close(now, float(self.optimizer.param_groups[index]["lr"]))
        )

    def effective(self, last: Sequence[Any]) -> list[Any]:
        """Scale what `get_last_lr` of the scheduler returns, so that it says what is in effect."""
        if self._inside or not self._slots:
            return list(last)
        groups = self.optimizer.param_groups
        if len(last) != len(groups):
            return list(last)
        return [
            copied(groups[index]["lr"])
            if self._slot(index).held or self._is_ours(index)
            else rate * self._slot(index).multiplier
            for index, rate in enumerate(last)
        ]

    def _slot(self, index: int) -> _Slot:
        return self._slots.get(index, _UNTOUCHED)

    def _proof(self, index: int) -> object:
        return proof(self.optimizer.param_groups[index]["lr"])

    def _is_ours(self, index: int) -> bool:
        """Whether the group's rate is still the one that we wrote."""
        slot = self._slot(index)
        rate = self.optimizer.param_groups[index]["lr"]
        return slot.scheduled is not None and is_proven(slot.written, rate)

    def _scheduled(self, index: int) -> Rate:
        """Return the group's rate without the multiplier.

        Whoever else wrote the rate meant it as it is, so it is divided; our own needs no division.
        """
        slot = self._slot(index)
        rate: Rate = self.optimizer.param_groups[index]["lr"]
        if slot.scheduled is not None and is_proven(slot.written, rate):
            return slot.scheduled
        return rate if slot.multiplier == 1.0 else copied(rate) / slot.multiplier


def _moved(was: Rate, scheduled: Rate, rate: Rate, multiplier: float) -> Rate:
    """Return the rate after a step of the schedule: it stands still, to the last bit, with it."""
    if isinstance(scheduled, torch.Tensor):  # Compared where it is: nobody waits for the device.
        return torch.where(scheduled == was, rate, scheduled * multiplier)
    return rate if scheduled == was else scheduled * multiplier


def _ratio(before: float, after: float) -> float | None:
    if before == after:
        return 1.0
    return after / before if before and after else None


def _close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-6)


def unsound(change: Change) -> str:
    """Return which number float32 cannot hold, "" when it can hold the rate and the multiplier.

    An optimizer would raise for one that is too large, and take one that is too small for 0.
    """
    if change.rate != 0.0 and not in_float32(change.rate):
        return f"the rate {change.rate!r}"
    if not in_float32(change.multiplier):
        return f"the multiplier {change.multiplier!r}"
    return ""
