"""`set_<name>`: values that the script declares, live and equal on all ranks."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from launchhelm.controls import schema
from launchhelm.torch._controls import OneValue, Payload

TunableValue = bool | int | float | str

_TUNABLE_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,63}", re.ASCII)


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
        """Return the schema of `set_<name>`."""
        if self._type is bool:
            node = schema.boolean()
        elif self._type is str:
            node = schema.text() if self.choices is None else schema.choice(self.choices)
        else:
            node = schema.number(integer=self._type is int)
            bounds = {"min": self.minimum, "max": self.maximum}
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


class TunableControl(OneValue):
    """`set_<name>`: give a tunable another value."""

    def __init__(self, tunable: Tunable) -> None:
        self.name = f"set_{tunable.name}"
        self.input_schema = tunable.input_schema()
        self._tunable = tunable
        super().__init__(self.name, lambda: tunable.value, tunable.take)

    def problem(self, payload: Payload) -> str:
        """Judge by the schema, then by bounds and choices."""
        return schema.check(self.input_schema, payload) or self._tunable.problem(payload["value"])

    def apply(self, payload: Payload) -> Mapping[str, Any]:
        """Take the value."""
        self._tunable.take(payload["value"])
        return {"value": self._tunable.value}


def _decimal(bound: float) -> str:
    """Write a bound as plain decimal text that keeps its class: 3.0 stays 3.0, 1e-7 gets digits."""
    return format(Decimal(repr(bound)), "f")
