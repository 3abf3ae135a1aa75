"""What a control takes, from its published schema, field by field. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from launchhelm import _wording

ABOVE_ZERO: Final = frozenset(("lr", each) for each in ("scale", "lr", "scales", "lrs"))
"""Control and field whose value must be above 0, which its schema cannot say."""

_EXACT: Final = {
    ("grad_clip", "max_norm"): ("anything", "a number above 0, or null for off"),
    ("dropout", "p"): ("a number from 0 to 1", "a number from 0 to below 1"),
    **dict.fromkeys(ABOVE_ZERO, ("of at least 0", "above 0")),
}
"""Control and field: what its schema says, and what is so."""

NEEDED: Final = {"grad_clip": ("max_norm",)}
"""By control: what a form asks for although a command may leave it out, which would mean off."""

Capability = Mapping[str, Any]  # Any: a JSON document, as the run registered it.


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
        f"{name}: {field_text(control, name, node)}{', optional' if optional else ''}"
        for name, (node, optional) in fields.items()
    ]


def fields_text(capability: Capability) -> str:
    """Say the same in one line."""
    return "; ".join(field_texts(capability))


def field_text(control: str, field: str, node: Mapping[str, Any]) -> str:
    """Say what a field takes; a schema has no bound that is excluded, but some rules have."""
    said, exact = _EXACT.get((control, field), ("", ""))
    text = type_text(node)
    return text.replace(said, exact) if said else text


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
