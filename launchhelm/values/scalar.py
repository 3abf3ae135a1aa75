"""The JSON form of a measurement: plain where every JSON reader gets it right, else tagged."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from launchhelm.records import JSONValue, MetricValue

if TYPE_CHECKING:
    from decimal import Decimal

MAX_PLAIN_INTEGER: Final = (1 << 53) - 1


def scalar(value: int | float | Decimal) -> JSONValue:
    """Return the JSON form of a number.

    Raises:
        TypeError: A boolean, or not a number.
        ValueError: A Decimal that is not finite.
    """
    if isinstance(value, bool):
        raise TypeError("A boolean is not a measurement; log it as it is.")
    if isinstance(value, float):
        number: JSONValue = tagged(float(value))
        return number
    if isinstance(value, int):
        if abs(value) <= MAX_PLAIN_INTEGER:
            return int(value)
        return {"$number": "integer", "value": str(int(value))}
    from decimal import Decimal  # Only for callers that have loaded it already.

    if isinstance(value, Decimal):
        if not value.is_finite():
            raise ValueError("A Decimal must be finite; use float('nan') or float('inf').")
        return {"$number": "decimal", "value": str(value)}
    raise TypeError(f"A measurement is an int, a float or a Decimal, got {type(value).__name__}.")


def tagged(value: MetricValue) -> Any:  # Any: a tagged object or the value itself.
    """Return a stored value as `history` and `latest` give it: non-finite numbers tagged."""
    if isinstance(value, float) and not math.isfinite(value):
        word = "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
        return {"$number": "nonfinite", "value": word}
    return value
