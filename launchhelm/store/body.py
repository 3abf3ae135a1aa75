"""The JSON text of a record's body, whatever the caller put into it. Never raises for a value."""

from __future__ import annotations

import functools
import importlib
import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from launchhelm.store.line import dumps, special

METRIC_KINDS: Final = ("m", "sys")
_DEPTH: Final = 60


@functools.cache
def _find_fast() -> Callable[[Any], bytes] | None:
    """Use orjson where somebody installed it: 20 times faster on floats, and never needed.

    Looked for at the first record, so that readers import nothing but the standard library.
    """
    try:
        found: Callable[[Any], bytes] = importlib.import_module("orjson").dumps
    except ImportError:
        return None
    return found


def encode(kind: str, body: Mapping[str, Any], odd: Counter[str]) -> bytes:
    """Render a body as UTF-8 JSON.

    Args:
        kind: Metric kinds hold MetricValues, or objects with `resolve()` that make one.
        body: Not changed.
        odd: Counts what could not be kept: `value` for a metric without a usable value.
    """
    metric = kind in METRIC_KINDS
    fast = _find_fast()
    if fast is not None and metric:
        try:
            text = fast(body)
        except TypeError:
            pass  # Not plain data, or an integer that orjson does not take.
        else:
            # orjson writes null for what JSON has not; no metric value is None.
            if b"null" not in text:
                return text
    try:
        text = dumps(body).encode()
        if not metric or b"null" not in text:
            return text
    except (TypeError, ValueError):
        pass  # Something that JSON has not; UnicodeEncodeError is a ValueError.
    clean = _metrics(body, odd) if metric else plain(body)
    return dumps(clean).encode(errors="replace")


def plain(value: Any, depth: int = _DEPTH) -> Any:
    """Return the same data as JSON has it: odd numbers are tagged, other objects are text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else special(value)
    if depth and isinstance(value, Mapping):
        return {str(name): plain(item, depth - 1) for name, item in value.items()}
    if depth and isinstance(value, list | tuple | set | frozenset):
        return [plain(item, depth - 1) for item in value]
    try:
        return str(value)
    except Exception:  # Any object of the user's may be here, and its __str__ too.
        return f"<{type(value).__name__}>"


def _metrics(body: Mapping[str, Any], odd: Counter[str]) -> dict[str, Any]:
    clean: dict[str, Any] = {}
    for name, value in body.items():
        if not isinstance(value, bool | int | float | str):
            try:
                value = value.resolve()
            except Exception:  # Protects the recorder's thread from a device error of this value.
                value = None
        if isinstance(value, float) and not math.isfinite(value):
            value = special(value)
        elif not isinstance(value, bool | int | float | str):
            odd["value"] += 1
            continue
        clean[name] = value
    return clean
