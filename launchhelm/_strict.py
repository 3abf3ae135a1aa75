"""Strict JSON for everybody who prints or serves it: no bare NaN, no odd objects."""

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


def _strict(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(name): _strict(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
