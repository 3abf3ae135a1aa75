"""Coordinates: the step, and further axes as exact decimal text."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final

from launchhelm.records import NAME_PATTERN

MAX_AXES: Final = 32
MAX_COORDINATE_CHARS: Final = 128
MAX_STEP: Final = 1 << 127
"""Far beyond any step counter, and short enough to be printed."""

_DECIMAL = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?", re.ASCII)


def is_decimal(text: object) -> bool:
    """Whether this is decimal text without exponent: `-0.50` is, `1e3` and `.5` are not."""
    return isinstance(text, str) and _DECIMAL.fullmatch(text) is not None


def coordinate(value: object) -> str:
    """Return the decimal text of one coordinate.

    Raises:
        TypeError: Neither int, float nor str; a bool is no coordinate.
        ValueError: Not finite, or text that is not plain decimal.
    """
    if isinstance(value, str):
        if not is_decimal(value):
            raise ValueError(f"A coordinate given as text must be plain decimal, got {value!r}.")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(
            f"A coordinate must be an int, a float or decimal text, got {type(value).__name__}."
        )
    if isinstance(value, int):
        return str(int(value))
    if not math.isfinite(value):
        raise ValueError(f"A coordinate must be finite, got {value!r}.")
    return _plain(float(value))


def check_axis(name: object) -> str:
    """Return the name of an axis beside step.

    Raises:
        ValueError: It does not match the rule, or is `step`.
    """
    if not isinstance(name, str) or NAME_PATTERN.fullmatch(name) is None or name == "step":
        raise ValueError(
            f"The axis {name!r} must match ^{NAME_PATTERN.pattern}$ and must not be 'step'."
        )
    return name


def axes_text(axes: Mapping[str, object]) -> dict[str, str]:
    """Return the coordinates beside step, in the order given.

    Raises:
        TypeError: A value of another type.
        ValueError: A bad axis name, a value that is not finite decimal, or too many axes.
    """
    if len(axes) >= MAX_AXES:
        raise ValueError(f"A point has at most {MAX_AXES} coordinates, step included.")
    checked = {check_axis(name): coordinate(value) for name, value in axes.items()}
    for name, text in checked.items():
        if len(text) > MAX_COORDINATE_CHARS:
            raise ValueError(f"{name} has {len(text)} characters; {MAX_COORDINATE_CHARS} at most.")
    return checked


def check_step(step: object) -> int:
    """Return an explicit step.

    Raises:
        TypeError: Not an int (a bool, a float and a NumPy integer are not).
        ValueError: Beyond any counter.
    """
    if isinstance(step, bool) or not isinstance(step, int):
        raise TypeError(f"step must be an int, got {type(step).__name__}; use int(step).")
    if not -MAX_STEP < step < MAX_STEP:
        raise ValueError("step is beyond 127 bits.")
    return int(step)


def _plain(value: float) -> str:
    """Write a float in plain decimal: 1e-07 becomes 0.0000001, 100.0 becomes 100."""
    from decimal import Decimal  # Loaded by the first float coordinate, not by `import launchhelm`.

    text = format(Decimal(repr(value)), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text
