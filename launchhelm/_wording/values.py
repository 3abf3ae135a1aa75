"""Numbers, times, names and values as sentences say them. Pure."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any, Final

_REASON_WIDTH: Final = 80
_SOURCE: Final = re.compile(r"\[/\S+:\d+\] ")
_UNITS: Final = ("bytes", "kB", "MB", "GB", "TB")
_SHOWN_GROUPS: Final = 4
_SHOWN_DEPTH: Final = 32

# Numbers and time ---------------------------------------------------------------------------


def processes(count: int) -> str:
    """Say `1 process` or `512 processes`."""
    return f"{count:,} process" if count == 1 else f"{count:,} processes"


def size_text(count: int) -> str:
    """Say a number of bytes."""
    value, unit = float(count), 0
    while value >= 1000 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{count:,} bytes" if not unit else f"{value:.1f} {_UNITS[unit]}"


def duration(seconds: float) -> str:
    """Say `41 s`, `23 min`, `3 h 12 min` or `2 d`; rounded down, so that ages never jump back."""
    if not math.isfinite(seconds):
        return "an unknown time"
    whole = max(0, int(seconds))
    if whole < 180:
        return f"{whole} s"
    minutes = whole // 60
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{hours // 24} d"


def step_text(step: int | None) -> str:
    """Write a step with thousands separators, `-` before the first."""
    return "-" if step is None else f"{step:,}"


# Values -------------------------------------------------------------------------------------


def changes_text(changes: Mapping[str, Any]) -> str:
    """Say old and new value, for example `lr 0.01 -> 0.005` or per group where groups differ."""
    return "; ".join(
        f"{plain(name)} {change_text(change.get('old'), change.get('new'))}"
        for name, change in changes.items()
        if isinstance(change, Mapping)
    )


def change_text(old: Any, new: Any) -> str:
    """Say `old -> new`, or that it is unchanged; lists hold one value per parameter group."""
    if not isinstance(old, list | tuple) or not isinstance(new, list | tuple):
        return arrow(old, new)
    pairs = list(zip(old, new, strict=False))
    if not pairs:
        return "in no group"
    if all(pair == pairs[0] for pair in pairs):
        return arrow(*pairs[0]) + (f" in {len(pairs)} groups" if len(pairs) > 1 else "")
    # Groups that stay as they are would hide the ones that change.
    said = [
        f"group{index} {arrow(*pair)}" for index, pair in enumerate(pairs) if pair[0] != pair[1]
    ]
    if not said:
        return "unchanged in all groups"
    return ", ".join(said[:_SHOWN_GROUPS]) + and_more(len(said) - _SHOWN_GROUPS, " groups")


def arrow(old: Any, new: Any) -> str:
    """Say `old -> new`, with all digits where four would hide the difference."""
    if old == new:
        return f"unchanged at {value_text(new)}"
    return " -> ".join(distinct(old, new))


def distinct(old: Any, new: Any) -> tuple[str, str]:
    """Say two values that differ so that the difference is seen."""
    before, after = values_text(old), values_text(new)
    return (before, after) if before != after else (json_text(old), json_text(new))


def payload_text(payload: Mapping[str, Any]) -> str:
    """Say the input of a command as it is typed: `scale=0.5 group=1`."""
    return " ".join(f"{plain(str(key))}={typed_text(value)}" for key, value in payload.items())


def named_text(values: Mapping[str, Any]) -> str:
    """Say values by name, in short: `saved=3 where=a`."""
    return " ".join(f"{plain(str(key))}={values_text(value)}" for key, value in values.items())


def typed_text(value: Any) -> str:
    """Write one value as it is typed, with all its digits: text as it is, what nests as JSON."""
    return plain(value) if isinstance(value, str) else json_text(value)


def json_text(value: Any, *, depth: int = 0) -> str:
    """Write a value as JSON, except for numbers that JSON has not: `NaN`, `+∞`."""
    if isinstance(value, str):
        return plain(json.dumps(value, ensure_ascii=False))
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float):
        short = _float_text(value).replace(",", "")
        return short if not math.isfinite(value) or float(short) == value else repr(value)
    if isinstance(value, Mapping | list | tuple) and depth >= _SHOWN_DEPTH:
        return "..."
    if isinstance(value, Mapping):
        if "$number" in value:
            return _tagged_text(value)
        pairs = (
            f"{plain(json.dumps(str(key), ensure_ascii=False))}:{json_text(it, depth=depth + 1)}"
            for key, it in value.items()
        )
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(json_text(item, depth=depth + 1) for item in value) + "]"
    return plain(str(value))


def _tagged_text(number: Mapping[str, Any]) -> str:
    """Write a number for which JSON has no form, as records and servers tag it."""
    said = str(number.get("value", number["$number"]))
    try:
        value = float(said)
    except ValueError:
        return plain(said)
    return plain(said) if math.isfinite(value) else _float_text(value)


def values_text(value: Any) -> str:
    """Say one value, or one per parameter group."""
    if not isinstance(value, list | tuple):
        return value_text(value)
    said = [value_text(item) for item in value]
    if len(set(said)) == 1:
        return said[0]
    return " ".join(said[:_SHOWN_GROUPS]) + and_more(len(said) - _SHOWN_GROUPS)


def value_text(value: Any) -> str:
    """Write one value: 4 significant digits, `NaN` and `+∞` by name, other things as text."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return _float_text(value)
    return typed_text(value)


def _float_text(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+∞" if value > 0 else "-∞"
    size = abs(value)
    if size == 0 or 1e-3 <= size < 1e4:
        return f"{value:.4g}"
    if 1e4 <= size < 1e6:
        return f"{float(f'{value:.4g}'):,.0f}"
    mantissa, _, exponent = f"{value:.3e}".partition("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


# Names --------------------------------------------------------------------------------------


def plain(text: str) -> str:
    """Escape what could move the cursor or reorder a line; everything else stays as it is."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        _escaped(character) if _is_hostile(character) else character for character in text
    )


def _is_hostile(character: str) -> bool:
    # Controls, surrogates, line separators, and the format characters that reorder or hide text.
    # The joiners stay: emoji and several scripts need them.
    category = unicodedata.category(character)
    if category == "Cf":
        return character not in "\u200c\u200d"
    return category in ("Cc", "Cs", "Zl", "Zp")


def _escaped(character: str) -> str:
    return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(character) or (
        f"\\x{ord(character):02x}" if ord(character) < 0x100 else f"\\u{ord(character):04x}"
    )


def cut(text: str, width: int) -> str:
    """Cut a long name in the middle, so that both ends stay readable."""
    if len(text) <= width or width < 3:
        return text
    head = width // 2
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def short_reason(reason: str) -> str:
    """Cut a reason to its beginning, without the place in a library's sources that some lead with.

    For tables, and beside a reason that matters more.
    """
    said = plain(_SOURCE.sub("", reason))
    return said if len(said) <= _REASON_WIDTH else f"{said[: _REASON_WIDTH - 1]}…"


def listed(items: Iterable[str], *, empty: str = "none") -> str:
    """Join names with commas."""
    return ", ".join(plain(item) for item in items) or empty


def and_more(count: int, unit: str = "") -> str:
    """Say how many are left out, "" for none."""
    return f" and {count:,} more{unit}" if count > 0 else ""
