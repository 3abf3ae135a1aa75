"""The JSON of the v1 API (`launchhelm-json-v1`): what is acceptable, its wire and canonical form.

The wire form is what is sent: compact, keys in the order given, numbers as Python spells them. The
canonical form is only hashed. Both are written by the standard library alone, because a batch that
is sent again must have the same bytes whatever else is installed.
"""

from __future__ import annotations

import json
import math
from decimal import Decimal
from hashlib import sha256
from json.encoder import encode_basestring
from typing import Any, Final  # Any: JSON values.

from syncer.api.limits import (
    MAX_DEPTH,
    MAX_DOCUMENT_BYTES,
    MAX_EXPONENT,
    MAX_LITERAL,
    MAX_SAFE_INTEGER,
    MAX_VALUES,
    MIN_EXPONENT,
)

MAX_LOOSE_LITERAL: Final = 400
"""Characters of a number where any magnitude is taken: more than binary64 can hold."""


class WireError(ValueError):
    """Something that the wire does not allow.

    Args:
        message: What is wrong, in one sentence, without the content.
        reason: Stable word for programs.
        size: Bytes of what was too large, else 0.
    """

    def __init__(self, message: str, *, reason: str = "invalid", size: int = 0) -> None:
        super().__init__(message)
        self.reason = reason
        self.size = size


def parse(
    text: str | bytes,
    *,
    max_bytes: int = MAX_DOCUMENT_BYTES,
    max_values: int = MAX_VALUES,
    max_depth: int = MAX_DEPTH,
    exact: bool = True,
) -> Any:
    """Read a document that has a canonical form. Linear in its length, whatever it holds.

    Args:
        text: UTF-8.
        max_bytes: Limit of the text; also max_values, max_depth.
        exact: Whether numbers must be those that every reader understands alike; else any finite
            number will do, integers of any size included.

    Raises:
        WireError: It is not acceptable.
    """
    try:
        data = text if isinstance(text, bytes) else text.encode()
        if len(data) > max_bytes:
            raise WireError(
                f"The document has {len(data):,} bytes; {max_bytes:,} at most.",
                reason="size_limit",
                size=len(data),
            )
        value = (_EXACT if exact else _LOOSE).decode(data.decode())
    except UnicodeError:
        raise WireError("The document is not valid UTF-8.", reason="invalid_utf8") from None
    except json.JSONDecodeError as error:
        raise WireError(
            f"The document is not valid JSON (at character {error.pos}).", reason="invalid_json"
        ) from None
    except RecursionError:
        raise _too_complex() from None
    _check(value, depth=0, max_values=max_values, max_depth=max_depth, any_number=not exact)
    return value


def encode(value: Any, *, max_bytes: int = MAX_DOCUMENT_BYTES, depth: int = 0) -> bytes:
    """Return the wire form of a value.

    Args:
        value: None, bool, int, float, str, and lists, tuples and dicts of them.
        max_bytes: Limit of the result.
        depth: Where the value will lie in the document that is sent.

    Raises:
        WireError: It is not acceptable; it must not be sent.
    """
    _check(value, depth=depth, max_values=MAX_VALUES, max_depth=MAX_DEPTH)
    data = _utf8(_ENCODER.encode(value))
    if len(data) > max_bytes:
        raise WireError(
            f"The document has {len(data):,} bytes; {max_bytes:,} at most.",
            reason="size_limit",
            size=len(data),
        )
    return data


def canonical(value: Any) -> bytes:
    """Return the canonical form of a value: keys sorted, every number spelled in one way.

    Raises:
        WireError: It has none.
    """
    encode(value)
    parts: list[str] = []
    _write(value, parts)
    return "".join(parts).encode()


def fingerprint(value: Any) -> str:
    """Return the hex digest by which two parties know that they speak of the same document.

    Raises:
        WireError: The value has no canonical form.
    """
    return sha256(b"launchhelm-json-v1\0" + canonical(value)).hexdigest()


def string(text: str) -> bytes:
    """Return the wire form of a string, quotes included.

    Raises:
        WireError: It holds a lone surrogate.
    """
    return _utf8(encode_basestring(text))


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise WireError("A string holds a lone surrogate.", reason="lone_surrogate") from None


def _check(
    value: Any, *, depth: int, max_values: int, max_depth: int, any_number: bool = False
) -> None:
    """Walk a value once. A loop ends at the depth, a shared part at the number of values."""
    count = 1
    waiting = [(value, depth)]
    while waiting:
        value, depth = waiting.pop()
        if depth > max_depth:
            raise _too_complex()
        if isinstance(value, str):
            if not value.isascii():
                _utf8(value)
        elif value is None or isinstance(value, bool):
            pass
        elif isinstance(value, int | float):
            if not any_number:
                _check_number(value)
        elif isinstance(value, dict | list | tuple):
            count += len(value)
            if count > max_values:
                raise _too_complex()
            if isinstance(value, dict):
                for key in value:
                    if not isinstance(key, str):
                        raise WireError("The keys of an object must be strings.", reason="type")
                    if not key.isascii():
                        _utf8(key)
                value = value.values()
            waiting.extend((child, depth + 1) for child in value)
        else:
            raise WireError(f"{type(value).__name__} has no JSON form.", reason="type")


def _check_number(value: int | float) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise WireError("A bare number must be finite.", reason="nonfinite_literal")
    if not -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER:
        if isinstance(value, int) and (value.bit_length() > 1023 or int(float(value)) != value):
            raise _inexact()
        raise WireError("A bare number must lie within 2^53.", reason="large_integer")


def _too_complex() -> WireError:
    return WireError("The document holds too many values, or too deep.", reason="complexity_limit")


def _inexact() -> WireError:
    return WireError("A number is not what a binary64 holds.", reason="binary64_round_trip")


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise WireError("An object holds a key twice.", reason="duplicate_key")
    return made


def _exact_int(text: str) -> int:
    if len(text) > MAX_LITERAL:
        raise _too_long()
    value = int(text)
    if not -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER:
        _check_number(value)
    return value


def _exact_float(text: str) -> float:
    if len(text) > MAX_LITERAL:
        raise _too_long()
    value = float(text)
    shortest = repr(value)
    if shortest != text:
        exponent = text.lower().partition("e")[2]
        if exponent and not MIN_EXPONENT <= int(exponent) <= MAX_EXPONENT:
            raise WireError("The exponent of a number is out of range.", reason="exponent_range")
        if not math.isfinite(value) or Decimal(shortest) != Decimal(text):
            raise _inexact()
    _check_number(value)
    return value


def _loose_int(text: str) -> int:
    if len(text) > MAX_LOOSE_LITERAL:
        raise _too_long()
    return int(text)


def _loose_float(text: str) -> float:
    if len(text) > MAX_LOOSE_LITERAL:
        raise _too_long()
    value = float(text)
    if not math.isfinite(value):
        raise WireError("A number is beyond binary64.", reason="nonfinite_literal")
    return value


def _too_long() -> WireError:
    return WireError("A number has too many characters.", reason="literal_too_long")


def _constant(text: str) -> Any:
    raise WireError(f"{text} is no number of JSON.", reason="nonfinite_literal")


def _write(value: Any, parts: list[str]) -> None:
    if isinstance(value, str):
        parts.append(_canonical_string(value))
    elif value is None:
        parts.append("null")
    elif isinstance(value, bool):
        parts.append("true" if value else "false")
    elif isinstance(value, int):
        parts.append(_canonical_number(int.__repr__(value)))
    elif isinstance(value, float):
        parts.append(_canonical_number(float.__repr__(value)))
    elif isinstance(value, dict):
        mark = "{"
        for key in sorted(value):
            parts.append(mark + _canonical_string(key) + ":")
            _write(value[key], parts)
            mark = ","
        parts.append("}" if value else "{}")
    else:
        mark = "["
        for child in value:
            parts.append(mark)
            _write(child, parts)
            mark = ","
        parts.append("]" if value else "[]")


def _canonical_string(text: str) -> str:
    return encode_basestring(text).replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _canonical_number(text: str) -> str:
    mantissa, _, exponent = text.partition("e")
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    digits = (whole + fraction).lstrip("0")
    if not digits:
        return "0"
    significant = digits.rstrip("0")
    power = int(exponent or 0) - len(fraction) + len(digits) - len(significant)
    return f"{'-' if text[0] == '-' else ''}{significant}e{power}"


_ENCODER: Final = json.JSONEncoder(
    ensure_ascii=False, check_circular=False, allow_nan=False, separators=(",", ":")
)
_EXACT: Final = json.JSONDecoder(
    object_pairs_hook=_pairs,
    parse_int=_exact_int,
    parse_float=_exact_float,
    parse_constant=_constant,
)
_LOOSE: Final = json.JSONDecoder(
    object_pairs_hook=_pairs,
    parse_int=_loose_int,
    parse_float=_loose_float,
    parse_constant=_constant,
)
