"""From the words of a command line to the input of a command, by the published schema. Pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

from launchhelm import _wording
from launchhelm.cli._exit import UsageError

_BOOLEANS: Final = {
    "true": True,
    "yes": True,
    "on": True,
    "false": False,
    "no": False,
    "off": False,
}

ABOVE_ZERO: Final = frozenset({("lr", "scale"), ("lr", "lr")})
"""Control and field whose value must be above 0, which its schema cannot say."""

_SHOWN_GROUP: Final = re.compile(r"group(\d+)", re.ASCII)
"""How parameter groups are shown; in a command their number stands alone."""

Capability = Mapping[str, Any]  # Any: a JSON document, as the run registered it.


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
                f"{name}: {word!r} is not of the form key=value.",
                remedy=f"It takes {fields_text(capability)}.",
            )
        if key in payload:
            raise UsageError(f"{name}: {key} is given twice.", remedy="Give it once.")
        if root.get("kind") == "record" and key not in fields:
            close = get_close_matches(key, fields, 1)
            hint = f"Did you mean {close[0]}? " if close else ""
            raise UsageError(
                f"{name} has no field {key!r}.", remedy=f"{hint}It takes {fields_text(capability)}."
            )
        node = fields[key][0] if key in fields else {"kind": "opaque"}
        try:
            payload[key] = value_of(text, node)
        except ValueError:
            shown = _SHOWN_GROUP.fullmatch(text) if key == "group" else None
            hint = f"Write group={shown[1]}. " if shown is not None else ""
            raise UsageError(
                f"{name}: {key} takes {_field_text(name, key, node)}, got {text!r}.",
                remedy=f"{hint}{name} takes {fields_text(capability)}.",
            ) from None
    return payload


def value_of(text: str, node: Mapping[str, Any]) -> Any:
    """Read one value by its type; ValueError when it does not read as that."""
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
        value = json.loads(text, parse_constant=_refuse)
        if isinstance(value, list) != (kind == "list") or not isinstance(value, list | dict):
            raise ValueError(text)
        return value
    # An opaque field takes any JSON; what is none is text.
    try:
        return json.loads(text, parse_constant=_refuse)
    except ValueError:
        return text


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


def root_of(capability: Capability) -> Mapping[str, Any]:
    """Return the root node of a control's input schema; opaque where there is none."""
    document = capability.get("input_schema")
    root = document.get("root") if isinstance(document, Mapping) else None
    return root if isinstance(root, Mapping) else {"kind": "opaque"}


def fields_of(root: Mapping[str, Any]) -> dict[str, tuple[Mapping[str, Any], bool]]:
    """Return type and optional-flag per field, in the order of the schema."""
    return {
        str(each["name"]): (each.get("type") or {"kind": "opaque"}, bool(each.get("optional")))
        for each in root.get("fields", ())
    }


def field_texts(capability: Capability) -> list[str]:
    """Say what a control takes, field by field: `scale: a number of at least 0, optional`."""
    fields = fields_of(root_of(capability))
    if not fields:
        return ["no fields" if root_of(capability).get("kind") == "record" else "any key=value"]
    control = str(capability.get("name", ""))
    return [
        f"{name}: {_field_text(control, name, node)}{', optional' if optional else ''}"
        for name, (node, optional) in fields.items()
    ]


def fields_text(capability: Capability) -> str:
    """Say the same in one line."""
    return "; ".join(field_texts(capability))


def _field_text(control: str, field: str, node: Mapping[str, Any]) -> str:
    """Say what a field takes; a schema has no bound that is excluded, but some rules have."""
    text = type_text(node)
    return text.replace("of at least 0", "above 0") if (control, field) in ABOVE_ZERO else text


def type_text(node: Mapping[str, Any]) -> str:
    """Say what one field takes, with bounds and unit."""
    kind = node.get("kind")
    if kind == "enum":
        return "one of " + _wording.listed(node.get("values", ()))
    if kind == "list":
        return f"a JSON list of {type_text(node.get('item') or {})}"
    if kind == "record":
        return "a JSON object"
    if kind == "schedule":
        return 'a JSON object {"points": [{"at": "0", "value": "0.1"}, ...]}'
    if kind != "scalar":
        return "anything"
    word = {"boolean": "true or false", "string": "text"}.get(str(node.get("scalar")))
    if word:
        return word
    word = "an integer" if node.get("scalar") == "integer" else "a number"
    bounds = node.get("bounds") or {}
    low, high = bounds.get("min"), bounds.get("max")
    if low is not None and high is not None:
        word += f" from {low} to {high}"
    elif low is not None:
        word += f" of at least {low}"
    elif high is not None:
        word += f" of at most {high}"
    return word + (f" {node['unit']}" if node.get("unit") else "")
