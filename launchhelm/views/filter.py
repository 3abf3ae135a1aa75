"""The filter language of run lists. Pure: from a text to a predicate over run documents.

words match title, id and tags      state:running host:gpu-0 tag:base project:llm
name op value (= != < <= > >= ~)    over config, summary and the run's own fields
before:2026-11-30 after:2026-11-01  by creation time        -term negates
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from launchhelm.errors import ConfigError

Row = Mapping[str, Any]  # Any: a run document, as `ls --json` prints it.
Predicate = Callable[[Row], bool]

_KEYS: Final = {
    "state": "state",
    "host": "host",
    "project": "project",
    "group": "group",
}
_COMPARISON: Final = re.compile(r"([^<>=!~:]+)(!=|<=|>=|=|<|>|~)(.*)")


def parse(text: str) -> Predicate:
    """Make the predicate of a filter; an empty one matches all.

    Raises:
        ConfigError: A term cannot be read; the message says which.
    """
    terms = [_term(word) for word in text.split()]
    return lambda row: all(term(row) for term in terms)


def _term(word: str) -> Predicate:
    if word.startswith("-") and len(word) > 1:
        inner = _term(word[1:])
        return lambda row: not inner(row)
    key, colon, value = word.partition(":")
    if colon and key in _KEYS:
        field = _KEYS[key]
        # "no news" is written state:no-news, since blanks separate terms.
        wanted = value.casefold()
        return lambda row: wanted in str(row.get(field) or "").casefold().replace(" ", "-")
    if colon and key == "tag":
        return lambda row: value in (row.get("tags") or ())
    if colon and key in ("before", "after"):
        moment = _moment(word, value)
        if key == "before":
            return lambda row: (row.get("created_at") or 0.0) < moment
        return lambda row: (row.get("created_at") or 0.0) >= moment
    match = _COMPARISON.fullmatch(word)
    if match is not None:
        return _comparison(word, match[1], match[2], match[3])
    wanted = word.casefold()
    return lambda row: any(
        wanted in str(text).casefold()
        for text in (row.get("name"), row.get("id"), *(row.get("tags") or ()))
    )


def _moment(word: str, value: str) -> float:
    try:
        return datetime.fromisoformat(value).timestamp()
    except ValueError:
        raise ConfigError(f"Filter {word!r}: a date is written 2026-11-30.") from None


def _comparison(word: str, name: str, operator: str, text: str) -> Predicate:
    if not text:
        raise ConfigError(f"Filter {word!r}: a value is missing after {operator}.")
    number = _as_number(text)
    if operator in ("<", "<=", ">", ">=") and number is None:
        raise ConfigError(f"Filter {word!r}: {operator} compares numbers.")

    def holds(row: Row) -> bool:
        found = _look_up(row, name)
        if operator == "~":
            return found is not None and text.casefold() in str(found).casefold()
        value = _as_number(found)
        if number is None or value is None:
            same = found is not None and str(found) == text
            return same if operator == "=" else operator == "!=" and not same
        return {
            "=": value == number,
            "!=": value != number,
            "<": value < number,
            "<=": value <= number,
            ">": value > number,
            ">=": value >= number,
        }[operator]

    return holds


def _look_up(row: Row, name: str) -> Any:
    for place in (row, row.get("config"), row.get("metrics")):
        found: Any = place
        if isinstance(place, Mapping) and name in place:
            return place[name]
        for part in name.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
        if found is not None:
            return found
    return None


def _as_number(value: Any) -> float | None:
    if isinstance(value, bool) or value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
