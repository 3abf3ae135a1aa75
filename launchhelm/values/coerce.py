"""Make any number that a training script holds a plain Python value, importing no library.

Whatever looks like a NumPy scalar, a tensor or a number of the standard library is recognised by
what it can do. Values are taken before `log` returns, so that a later change of an array or tensor
changes nothing, and no reference to a tensor or its graph is kept. A value on a device is copied
there, on the caller's stream, and fetched by the recorder's thread: the training thread never
waits for the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from launchhelm.records import MetricValue

MAX_INTEGER_BITS: Final = 4096
"""Python refuses to print integers of more than 4,300 digits; ours end well before."""

KINDS: Final = ("number", "string", "boolean")


class Lazy:
    """A value that is still on a device.

    `resolve` is called once, by the recorder's thread. The copy is detached, so no graph lives on.
    """

    __slots__ = ("_then", "_value", "kind")

    def __init__(self, value: Any, kind: str) -> None:  # Any: a tensor of any library.
        self._value = value
        self._then: Callable[[MetricValue], None] | None = None
        self.kind = kind

    def resolve(self) -> MetricValue:
        """Fetch the value; waits for the device.

        Raises:
            TypeError: The device holds something that is not a number.
        """
        value = _exact(self._value.item())
        if self._then is not None:
            self._then(value)
        return value

    def then(self, callback: Callable[[MetricValue], None]) -> None:
        """Call back with the value when it has been fetched, on the recorder's thread."""
        self._then = callback


def coerce(value: object) -> MetricValue | Lazy:
    """Return the value as bool, int, float or str, class and sign kept, or as a Lazy.

    Raises:
        TypeError: It is not one value that a metric can hold; the text says why.
    """
    if value is None or isinstance(value, str | float | int):
        return _exact(value)
    dtype = getattr(value, "dtype", None)
    if dtype is not None:
        return _of_array(value, dtype)
    if hasattr(type(value), "__float__"):
        return _of_number(value)
    if isinstance(value, Lazy):  # Taken from its device already, by launchhelm.torch.
        return value
    if isinstance(value, complex):
        raise TypeError("a complex number has no place on an axis; log .real, .imag or abs()")
    raise TypeError(f"a {type(value).__name__} is not a number, a string or a boolean")


def kind_of(value: MetricValue | Lazy) -> str:
    """Return the kind of metric that holds such a value: number, string or boolean."""
    if isinstance(value, Lazy):
        return value.kind
    if isinstance(value, bool):
        return "boolean"
    return "string" if isinstance(value, str) else "number"


def _exact(value: object) -> MetricValue:
    """Strip subclasses: enumerations, numpy.float64 and numpy.str_ become what they hold."""
    if isinstance(value, bool):
        return value
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, int):
        if value.bit_length() > MAX_INTEGER_BITS:
            raise TypeError(f"an integer of more than {MAX_INTEGER_BITS} bits")
        return int.__int__(value)
    if isinstance(value, str):
        text = str.__str__(value)
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                raise TypeError("a text with a lone surrogate is not valid Unicode") from None
        return text
    if value is None:
        raise TypeError("None is not a value; leave the metric out of this call")
    if hasattr(type(value), "__float__"):  # numpy.longdouble stays itself after item().
        return float(value)  # type: ignore[arg-type]  # Checked in the line above.
    raise TypeError(f"a {type(value).__name__} is not a number, a string or a boolean")


def _of_array(value: Any, dtype: Any) -> MetricValue | Lazy:  # Any: arrays of any library.
    """Take the one element of a NumPy or torch scalar or array."""
    word = str(dtype).rpartition(".")[2]
    if word.startswith("complex"):
        raise TypeError("a complex number has no place on an axis; log .real, .imag or abs()")
    count = value.numel() if hasattr(value, "numel") else getattr(value, "size", 1)
    if count != 1:
        raise TypeError(f"an array of {count} values; log its mean, or use a histogram")
    device = getattr(value, "device", None)
    place = getattr(device, "type", None) or "cpu"
    if place != "cpu" and hasattr(value, "detach"):
        if place == "meta":
            raise TypeError("a tensor on the meta device has no value")
        return Lazy(value.detach().clone(), _kind_of_dtype(word))
    if word.startswith(("datetime", "timedelta")):
        raise TypeError(f"a {word} is not a number; log seconds as a float")
    return _exact(value.item())


def _kind_of_dtype(word: str) -> str:
    return "boolean" if word in ("bool", "bool_") else "number"


def _of_number(value: Any) -> float:  # Any: Decimal, Fraction and whatever else has __float__.
    """Take a number of the standard library, or of any other that can become a float."""
    try:
        result = float(value)
    except (ValueError, ArithmeticError) as error:
        raise TypeError(f"a {type(value).__name__} that is not a float: {error}") from None
    if math.isinf(result) and _is_finite(value):
        raise TypeError(f"a {type(value).__name__} too large for a float")
    return result


def _is_finite(value: Any) -> bool:  # Any: as above.
    is_infinite = getattr(value, "is_infinite", None)
    return not is_infinite() if callable(is_infinite) else False
