"""From the words of a command line to input and conditions of a command. Pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

from launchhelm import _wording
from launchhelm._wording import json_text
from launchhelm.cli._exit import UsageError
from launchhelm.controls.fields import Capability, field_text, fields_of, fields_text, root_of
from launchhelm.controls.preview import is_number
from launchhelm.store.inbox import MAX_FIELD_DEPTH

_BOOLEANS: Final = {
    "true": True,
    "yes": True,
    "on": True,
    "false": False,
    "no": False,
    "off": False,
}

_SHOWN_CHARS: Final = 20

_SHOWN_GROUP: Final = re.compile(r"group(\d+)", re.ASCII)
"""How parameter groups are shown; in a command their number stands alone."""


def payload_of(words: Sequence[str], capability: Capability) -> dict[str, Any]:
    """Read `key=value` words by the capability's input schema.

    Raises:
        UsageError: A word is no assignment, names no field, or does not read as the field's type.
    """
    name = str(capability.get("name", ""))
    root = root_of(capability)
    fields = fields_of(root)
    payload: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise UsageError(
                f"{name}: {json_text(word)} is not of the form key=value.",
                remedy=f"It takes {fields_text(capability)}.",
            )
        if key in payload:
            raise UsageError(f"{name}: {key} is given twice.", remedy="Give it once.")
        if root.get("kind") == "record" and key not in fields:
            close = get_close_matches(key, fields, 1)
            hint = f"Did you mean {close[0]}? " if close else ""
            raise UsageError(
                f"{name} has no field {json_text(key)}.",
                remedy=f"{hint}It takes {fields_text(capability)}.",
            )
        node = fields[key][0] if key in fields else {"kind": "opaque"}
        try:
            payload[key] = value_of(text, node)
        except ValueError:
            shown = _SHOWN_GROUP.fullmatch(text) if key == "group" else None
            hint = f"Write group={shown[1]}. " if shown is not None else ""
            raise UsageError(
                f"{name} takes {field_text(name, key, node)} for {key}, got {json_text(text)}.",
                remedy=f"{hint}It takes {fields_text(capability)}.",
            ) from None
    return payload


def value_of(text: str, node: Mapping[str, Any]) -> Any:
    """Read one value by its type; ValueError when it does not read as that.

    Raises:
        UsageError: It is nested too deep to be read at all.
    """
    kind = node.get("kind")
    if kind == "scalar":
        scalar = node.get("scalar")
        if scalar == "string":
            return text
        if scalar == "boolean":
            if text.lower() not in _BOOLEANS:
                raise ValueError(text)
            return _BOOLEANS[text.lower()]
        return _number(text, integer=scalar == "integer")
    if kind == "enum":
        if text not in node.get("values", ()):
            raise ValueError(text)
        return text
    if kind in ("list", "record", "schedule"):
        value = _loaded(text)
        if isinstance(value, list) != (kind == "list") or not isinstance(value, list | dict):
            raise ValueError(text)
        return value
    # An opaque field takes any JSON; what is none is text.
    try:
        return _loaded(text)
    except ValueError:
        return text


def _loaded(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise UsageError(
            f"A value is nested deeper than {MAX_FIELD_DEPTH} levels: {text[:_SHOWN_CHARS]}...",
            remedy="Give it with fewer levels, or as text in a file that the script reads.",
        ) from None


def _number(text: str, *, integer: bool) -> int | float:
    if "_" in text:
        raise ValueError(text)
    try:
        return int(text)
    except ValueError:
        if integer:
            raise
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value + 0.0  # Nobody who types -0.0 means a sign.


def _refuse(constant: str) -> Any:
    raise ValueError(constant)


def expectation(
    words: Sequence[str], values: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Read `--expect name=value` words against the values now.

    A value counts as expected when it is given as it is shown, or equals it; what is sent is the
    exact present value, so that the ranks compare without rounding.

    Returns:
        The expected values, and one sentence per value that is different already.

    Raises:
        UsageError: A word is no assignment, or names no value of this run.
    """
    expected: dict[str, Any] = {}
    changed = []
    for word in words:
        name, equals, text = word.partition("=")
        known = f"this run shows {_wording.listed(values)}"
        if not equals or not name:
            raise UsageError(f"--expect {word}: takes name=value; {known}.")
        if name not in values:
            raise UsageError(f"--expect {word}: there is no value of {name}; {known}.")
        present = values[name]
        shown = _wording.values_text(present)
        given = _expected_of(text)
        if text.split() == shown.split():
            given = present
        each = given if isinstance(given, list) else [given] * _length(present)
        now = list(present) if isinstance(present, list | tuple) else [present]
        if len(each) == len(now) and all(map(_shows_the_same, each, now)):
            expected[name] = present
        else:
            changed.append(f"{name} is {shown} now, not {_wording.values_text(given)}")
    return expected, changed


def _expected_of(text: str) -> Any:
    """Read a value as it is shown: `none`, one value, or one per group with spaces between them."""
    words = text.split()
    each = [None if word == "none" else value_of(word, {"kind": "opaque"}) for word in words]
    if len(each) > 1 and all(value is None or is_number(value) for value in each):
        return each
    return None if words == ["none"] else value_of(text, {"kind": "opaque"})


def _length(present: Any) -> int:
    return len(present) if isinstance(present, list | tuple) else 1


def _shows_the_same(given: Any, now: Any) -> bool:
    if given == now:
        return True
    numbers = is_number(given) and is_number(now)
    return numbers and _wording.value_text(float(given)) == _wording.value_text(float(now))
