"""`lr`: the learning rate of every parameter group, under any schedule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from launchhelm.controls import schema
from launchhelm.torch._controls import Payload, is_number, is_positive
from launchhelm.torch._groups import lost, require_held
from launchhelm.torch._schedulers import Change, Rates, unsound

_EACH: Final = ("scales", "lrs")
"""Fields with one number for each group."""


class LearningRate:
    """`lr`: scale the schedule of every group or of one, or set the rate.

    Without `group` all groups change; an absolute `lr` then makes them equal. `keep_ratios` gives
    the first group that rate and scales the others by the same factor. `scales` and `lrs` have one
    number for each group; a group with a factor of 1, or the rate that it has, is left alone.
    """

    name = "lr"
    input_schema: Mapping[str, Any] = schema.record(
        [
            schema.field("scale", schema.number(minimum=0), optional=True),
            schema.field("lr", schema.number(minimum=0), optional=True),
            schema.field("group", schema.number(minimum=0, integer=True), optional=True),
            schema.field("keep_ratios", schema.boolean(), optional=True),
            schema.field("scales", schema.listing(schema.number(minimum=0)), optional=True),
            schema.field("lrs", schema.listing(schema.number(minimum=0)), optional=True),
        ]
    )

    def __init__(self, rates: Rates) -> None:
        self.rates = rates

    def problem(self, payload: Payload) -> str:
        """Judge by the schema, then by what only this process knows."""
        known = payload if isinstance(payload, Mapping) else {}
        given = [word for word in ("scale", "lr", *_EACH) if word in known]
        for word in given:
            # Said before the schema speaks, whose bound of 0 is inclusive.
            for number in payload[word] if isinstance(payload[word], list) else [payload[word]]:
                if is_number(number) and not is_positive(number):
                    return f"{word} must be a finite number above 0, got {number!r}."
        misfit = schema.check(self.input_schema, payload)
        if misfit:
            return misfit
        if len(given) != 1:
            return "lr takes exactly one of scale, lr, scales and lrs."
        group = payload.get("group")
        if given[0] in _EACH:
            if group is not None or "keep_ratios" in payload:
                return f"{given[0]} is about all groups; leave out group and keep_ratios."
            if len(payload[given[0]]) != self.rates.group_count:
                count = self.rates.group_count
                return f"{given[0]} takes one number per group, {count} in all."
        if group is not None and group >= self.rates.group_count:
            count = self.rates.group_count
            return f"group {group} does not exist; the optimizer has {count} (from 0)."
        if payload.get("keep_ratios") and group is not None:
            return "keep_ratios is about all groups; leave out group."
        changes = self._plan(payload)
        if changes is None:
            return "keep_ratios needs a first group whose rate, or base rate, is not 0."
        for change in changes:
            what = unsound(change)
            if what:
                return f"group {change.group} would get {what}, which float32 cannot hold."
        torn = self.rates.torn(changes)
        if torn:
            return f"{torn} share one tensor as their rate, so they can only change alike."
        return ""

    def _plan(self, payload: Payload) -> list[Change] | None:
        group = payload.get("group")
        groups = range(self.rates.group_count) if group is None else [group]
        if "scales" in payload:
            factors = enumerate(payload["scales"])
            wanted = [(index, float(factor)) for index, factor in factors if factor != 1]
            return [each for index, factor in wanted for each in self.rates.scaled([index], factor)]
        if "lrs" in payload:
            rates = enumerate(zip(payload["lrs"], self.rates.now(), strict=True))
            moved = [(index, float(rate)) for index, (rate, now) in rates if rate != now]
            return [each for index, rate in moved for each in self.rates.absolute([index], rate)]
        if "scale" in payload:
            return self.rates.scaled(groups, float(payload["scale"]))
        target = float(payload["lr"])
        if payload.get("keep_ratios"):
            return self.rates.in_proportion(target)
        return self.rates.absolute(groups, target)

    def snapshot(self) -> object:
        """Remember rates and multipliers."""
        return self.rates.snapshot()

    def apply(self, payload: Payload) -> Mapping[str, Any]:
        """Change the rates; the result lists every group."""
        changes = self._plan(payload)
        assert changes is not None, "problem() refuses what cannot be planned"
        self.rates.apply(changes)
        for change in changes:
            require_held(self.rates.groups, change.group, "lr", change.rate)
        result: dict[str, Any] = {"lr": self.rates.now()}
        held = [change.group for change in changes if change.held]
        if held:
            result["held_until_the_schedule_moves"] = held
        return result

    def restore(self, snapshot: Any) -> None:
        """Put rates and multipliers back."""
        self.rates.restore(snapshot)

    def state(self) -> object:
        """Return rates and multipliers."""
        return [self.rates.now(), self.rates.multipliers()]

    def values(self) -> Mapping[str, Any]:
        """Return the rate of each group."""
        return {"lr": self.rates.now()}

    def values_of(self, snapshot: Any) -> Mapping[str, Any]:
        """Return the rate that each group had."""
        return {"lr": [float(rates[0]) for rates in snapshot.rates]}

    def factors_since(self, snapshot: Any) -> list[float | None] | None:
        """Return by how much the schedule of each group was scaled since; None without a schedule.

        None for a group that was 0 or is held: no factor undoes that.
        """
        return self.rates.factors_since(snapshot)

    def look_again(self, old: Any, new: Any) -> str:
        """Say which groups do not follow the command, or the schedule that it scaled."""
        return lost(
            "lr",
            self.rates.now(),
            [
                index
                for index, (before, after) in enumerate(zip(old, new, strict=False))
                if before != after
                and index < self.rates.group_count
                and self.rates.is_lost(index, before, after)
            ],
            "a scheduler that watch() was not given, or a wrapper around the optimizer",
        )
