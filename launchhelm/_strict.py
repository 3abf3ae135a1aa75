"""Strict JSON for everybody who prints, serves or is sent it: no bare NaN, no odd objects."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def dump(value: Any) -> str:
    """Write strict JSON: non-finite numbers become the strings NaN, Infinity and -Infinity."""
    try:
        # What is plain already, as nearly everything is, is written at the encoder's speed.
        return json.dumps(value, allow_nan=False, separators=(", ", ": "))
    except (TypeError, ValueError):
        return json.dumps(_strict(value), allow_nan=False, separators=(", ", ": "))


def load(text: str) -> Any:
    """Read JSON of which everything can be written again, and no name stands twice.

    Raises:
        ValueError: It is not that.
    """
    try:
        value = json.loads(text, parse_constant=_refuse, object_pairs_hook=_object)
        # What parses and cannot be written must not reach a run: 1e999, lone surrogates.
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except RecursionError:
        raise ValueError("nested too deep") from None
    return value


def _refuse(constant: str) -> Any:
    raise ValueError(constant)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice")
    return found


def _strict(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(name): _strict(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
