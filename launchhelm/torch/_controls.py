"""What may be changed live on every rank: the learning rate, and the script's own tunables.

A control is judged, snapshotted, applied, read back and restored by the exchange, on the thread
that trains, with the same payload on every rank. `problem` changes nothing, so that all ranks can
refuse before any rank acts.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, Protocol

from launchhelm.controls import schema
from launchhelm.models import Capability, opaque_schema
from launchhelm.records import TRAINING_SAFE_POINT
from launchhelm.torch._schedulers import Change, Rates, unsound

PROVIDER: Final = "launchhelm.torch"
VERSION: Final = "1.0.0"

Payload = Mapping[str, Any]  # Any: JSON, checked against the control's schema first.
TunableValue = bool | int | float | str

_TUNABLE_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,63}", re.ASCII)


class StateControl(Protocol):
    """A control whose effect is a value that can be read back and restored."""

    name: str
    input_schema: Mapping[str, Any]

    def problem(self, payload: Payload) -> str:
        """Return "" when the payload may be applied now, else one sentence that says why not."""
        ...

    def snapshot(self) -> object:
        """Remember everything that `apply` may change."""
        ...

    def apply(self, payload: Payload) -> Mapping[str, Any]:
        """Make the change and return the result of the command."""
        ...

    def restore(self, snapshot: object) -> None:
        """Put back exactly what the snapshot saw."""
        ...

    def state(self) -> object:
        """Return all that must be equal on all ranks, as JSON."""
        ...

    def values(self) -> Mapping[str, Any]:
        """Return the values as people know them: {"lr": [per group]}."""
        ...

    def values_of(self, snapshot: object) -> Mapping[str, Any]:
        """Return the values that a snapshot holds, in the form of `values`."""
        ...


def capability(control: StateControl) -> Capability:
    """Describe a control for whoever may command it."""
    return Capability(
        name=control.name,
        provider=PROVIDER,
        version=VERSION,
        input_schema=control.input_schema,
        output_schema=opaque_schema(),
        safe_points=(TRAINING_SAFE_POINT,),
    )


def canonical(value: object) -> str:
    """Return one text per value, equal on all ranks exactly when the value is, to the last bit."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


class LearningRate:
    """`lr`: scale the schedule of every group or of one, or set the rate.

    Without `group` all groups change; an absolute `lr` then makes them equal. `keep_ratios` gives
    the first group that rate and scales the others by the same factor.
    """

    name = "lr"
    input_schema: Mapping[str, Any] = schema.record(
        [
            schema.field("scale", schema.number(minimum=0), optional=True),
            schema.field("lr", schema.number(minimum=0), optional=True),
            schema.field("group", schema.number(minimum=0, integer=True), optional=True),
            schema.field("keep_ratios", schema.boolean(), optional=True),
        ]
    )

    def __init__(self, rates: Rates) -> None:
        self.rates = rates

    def problem(self, payload: Payload) -> str:
        """Judge by the schema, then by what only this process knows."""
        known = payload if isinstance(payload, Mapping) else {}
        given = [word for word in ("scale", "lr") if word in known]
        for word in given:
            # Said before the schema speaks, whose bound of 0 is inclusive.
            if _is_number(payload[word]) and not _is_positive(payload[word]):
                return f"{word} must be a finite number above 0, got {payload[word]!r}."
        misfit = schema.check(self.input_schema, payload)
        if misfit:
            return misfit
        if len(given) != 1:
            return "lr takes exactly one of scale and lr."
        group = payload.get("group")
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
        return ""

    def _plan(self, payload: Payload) -> list[Change] | None:
        group = payload.get("group")
        groups = range(self.rates.group_count) if group is None else [group]
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
        return {"lr": [float(rate) for rate in snapshot.rates]}


class Tunable:
    """A value of the script that may be changed live, the same on all ranks.

    Args:
        name: `set_<name>` is the control.
        default: Its value until a command changes it; its type is the tunable's.
        minimum: Inclusive, numbers only.
        maximum: Inclusive, numbers only.
        choices: The only texts allowed, strings only.

    Raises:
        TypeError: The default is no bool, int, float or str, or a bound is no number.
        ValueError: A bad name, bounds or choices that do not fit the type or the default.
    """

    def __init__(
        self,
        name: str,
        default: TunableValue,
        *,
        minimum: float | None = None,
        maximum: float | None = None,
        choices: Sequence[str] | None = None,
    ) -> None:
        if not isinstance(name, str) or _TUNABLE_NAME.fullmatch(name) is None:
            raise ValueError(
                f"A tunable's name must match ^{_TUNABLE_NAME.pattern}$, got {name!r}."
            )
        # bool before int, which it is a subclass of; numpy.float64 is a float and becomes one.
        kind = next((kind for kind in (bool, int, float, str) if isinstance(default, kind)), None)
        if kind is None:
            found = type(default).__name__
            raise TypeError(f"{name}: the default must be bool, int, float or str, got {found}.")
        self.name = name
        self.minimum = minimum
        self.maximum = maximum
        self.choices = None if choices is None else tuple(choices)
        self._type: type = kind
        self._check_limits()
        problem = self._beyond(default)
        if problem:
            raise ValueError(f"{name}: the default {problem}.")
        self._value = kind(default)

    @property
    def value(self) -> Any:  # Any: of the default's type, which the caller knows.
        """The value now."""
        return self._value

    def __repr__(self) -> str:
        return f"Tunable({self.name!r}, value={self._value!r})"

    def problem(self, value: object) -> str:
        """Return why this value cannot be taken, or "" when it can."""
        if self._type is float and isinstance(value, int) and not isinstance(value, bool):
            try:
                value = float(value)
            except OverflowError:
                return f"{self.name} cannot hold so large a number."
        if type(value) is not self._type:
            return f"{self.name} is of type {self._type.__name__}, got {value!r}."
        beyond = self._beyond(value)
        return f"{self.name} {beyond}." if beyond else ""

    def take(self, value: object) -> None:
        """Hold this value, converted to the tunable's type; `problem` must have said ""."""
        self._value = self._type(value)

    def input_schema(self) -> Mapping[str, Any]:
        """Return the schema of `set_<name>`; an integer's maximum is only checked here."""
        if self._type is bool:
            node = schema.boolean()
        elif self._type is str:
            node = schema.text() if self.choices is None else schema.choice(self.choices)
        else:
            node = schema.number(integer=self._type is int)
            bounds = {"min": self.minimum, "max": self.maximum if self._type is float else None}
            texts = {word: _decimal(bound) for word, bound in bounds.items() if bound is not None}
            if texts:
                node["bounds"] = texts
        return schema.record([schema.field("value", node)])

    def _check_limits(self) -> None:
        bounds = [bound for bound in (self.minimum, self.maximum) if bound is not None]
        for bound in bounds:
            if isinstance(bound, bool) or not isinstance(bound, int | float):
                raise TypeError(f"{self.name}: a bound must be a number, got {bound!r}.")
            if not math.isfinite(bound):
                raise ValueError(f"{self.name}: a bound must be finite, got {bound!r}.")
        if bounds and self._type not in (int, float):
            raise ValueError(f"{self.name}: only numbers have bounds.")
        if len(bounds) == 2 and bounds[0] > bounds[1]:
            raise ValueError(f"{self.name}: the minimum is above the maximum.")
        if self.choices is None:
            return
        if self._type is not str:
            raise ValueError(f"{self.name}: only a string has choices.")
        if not self.choices or not all(isinstance(choice, str) for choice in self.choices):
            raise ValueError(f"{self.name}: choices must be strings, at least one.")

    def _beyond(self, value: Any) -> str:
        if isinstance(value, float) and not math.isfinite(value):
            return f"must be finite, got {value!r}"
        if self.minimum is not None and value < self.minimum:
            return f"must be at least {self.minimum!r}, got {value!r}"
        if self.maximum is not None and value > self.maximum:
            return f"must be at most {self.maximum!r}, got {value!r}"
        if self.choices is not None and value not in self.choices:
            return f"must be one of {', '.join(self.choices)}, got {value!r}"
        return ""


class TunableControl:
    """`set_<name>`: give a tunable another value."""

    def __init__(self, tunable: Tunable) -> None:
        self.name = f"set_{tunable.name}"
        self.input_schema = tunable.input_schema()
        self._tunable = tunable

    def problem(self, payload: Payload) -> str:
        """Judge by the schema, then by bounds and choices."""
        return schema.check(self.input_schema, payload) or self._tunable.problem(payload["value"])

    def snapshot(self) -> object:
        """Remember the value."""
        return self._tunable.value

    def apply(self, payload: Payload) -> Mapping[str, Any]:
        """Take the value."""
        self._tunable.take(payload["value"])
        return {"value": self._tunable.value}

    def restore(self, snapshot: object) -> None:
        """Put the value back."""
        self._tunable.take(snapshot)

    def state(self) -> object:
        """Return the value."""
        return self._tunable.value

    def values(self) -> Mapping[str, Any]:
        """Return the value under the control's name."""
        return {self.name: self._tunable.value}

    def values_of(self, snapshot: object) -> Mapping[str, Any]:
        """Return the value that was."""
        return {self.name: snapshot}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_positive(value: int | float) -> bool:
    try:
        return 0 < float(value) < math.inf
    except OverflowError:
        return False


def _decimal(bound: float) -> str:
    """Write a bound as plain decimal text that keeps its class: 3.0 stays 3.0, 1e-7 gets digits."""
    return format(Decimal(repr(bound)), "f")
