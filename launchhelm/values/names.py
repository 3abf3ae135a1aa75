"""Which names are allowed: metrics take almost any text, commands and safe points a plain word."""

from __future__ import annotations

from typing import Final

from launchhelm.records import NAME_PATTERN

MAX_METRIC_NAME_BYTES: Final = 1024


def name_problem(name: str) -> str:
    """Return why a metric cannot have this name, or "" when it can."""
    if not name:
        return "an empty name"
    if "\0" in name:
        return "a name with a NUL character"
    try:
        size_bytes = len(name.encode())
    except UnicodeEncodeError:
        return "a name with a lone surrogate"
    if size_bytes > MAX_METRIC_NAME_BYTES:
        return f"a name of {size_bytes:,} bytes; {MAX_METRIC_NAME_BYTES:,} are allowed"
    return ""


def require_name(name: object, what: str) -> str:
    """Return a command's or safe point's name.

    Raises:
        TypeError: It is not a string.
        ValueError: It does not match the rule.
    """
    if not isinstance(name, str):
        raise TypeError(f"The {what} must be a string, got {type(name).__name__}.")
    if NAME_PATTERN.fullmatch(name) is None:
        raise ValueError(
            f"The {what} {name!r} must match ^{NAME_PATTERN.pattern}$: a lower-case letter, then "
            "up to 127 lower-case letters, digits, '_', '.', ':' or '-'."
        )
    return name
