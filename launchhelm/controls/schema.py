"""Semantic schemas: what the input of a command must look like.

    {"revision": "1", "root": {"kind": "record", "renderer": "form", "fields": [
        {"name": "scale", "type": {"kind": "scalar", "scalar": "number", "renderer": "numeric",
                                   "bounds": {"min": "0"}}, "optional": true}]}}

Bounds are inclusive decimal text. A schema of a kind we do not know accepts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final, TypeAlias

from launchhelm import _wording
from launchhelm.records import JSONValue
from launchhelm.values.coordinates import is_decimal

Node: TypeAlias = dict[str, Any]
"""One type of a schema, as JSON. Any: nodes nest."""

MAX_DEPTH: Final = 32


def check(schema: Mapping[str, Any], payload: object) -> str:
    """Return "" when the payload fits, else one sentence that says what does not."""
    root = schema.get("root") if isinstance(schema, Mapping) else None
    if not isinstance(root, Mapping):
        return "The capability has no schema."
    return _check(root, payload, "", 0)


def require(schema: object) -> None:
    """Refuse what is not a semantic schema.

    Raises:
        ValueError: There is no `root` object with a string `kind`.
    """
    root = schema.get("root") if isinstance(schema, Mapping) else None
    if not isinstance(root, Mapping) or not isinstance(root.get("kind"), str):
        raise ValueError("A semantic schema is {'revision': '1', 'root': {'kind': ...}}.")


def record(fields: Sequence[Node]) -> Node:
    """Make the schema of an object with these fields; see `field`."""
    return {"revision": "1", "root": record_node(fields)}


def record_node(fields: Sequence[Node]) -> Node:
    """Make the node of an object."""
    return {"kind": "record", "renderer": "form", "fields": list(fields)}


def field(name: str, node: Node, *, optional: bool = False) -> Node:
    """Make one field of a record."""
    made: Node = {"name": name, "type": node}
    if optional:
        made["optional"] = True
    return made


def number(
    *, minimum: float | None = None, maximum: float | None = None, integer: bool = False
) -> Node:
    """Make the node of a number with inclusive bounds."""
    node: Node = {
        "kind": "scalar",
        "scalar": "integer" if integer else "number",
        "renderer": "numeric",
    }
    limits = {"min": minimum, "max": maximum}
    bounds = {word: _bound_text(limit) for word, limit in limits.items() if limit is not None}
    if bounds:
        node["bounds"] = bounds
    return node


def text() -> Node:
    """Make the node of a string."""
    return {"kind": "scalar", "scalar": "string", "renderer": "text"}


def boolean() -> Node:
    """Make the node of a boolean."""
    return {"kind": "scalar", "scalar": "boolean", "renderer": "check"}


def choice(values: Sequence[str]) -> Node:
    """Make the node of one of several strings."""
    return {"kind": "enum", "values": list(values), "renderer": "generic"}


def listing(item: Node) -> Node:
    """Make the node of a list."""
    return {"kind": "list", "renderer": "generic", "item": item}


def schedule() -> Node:
    """Make the node of a schedule: points of decimal text."""
    return {"kind": "schedule", "renderer": "generic"}


def opaque() -> Node:
    """Make the node of anything."""
    return {"kind": "opaque", "renderer": "generic"}


def _check(node: Mapping[str, Any], value: object, where: str, depth: int) -> str:
    if depth > MAX_DEPTH:
        return f"{_subject(where)} is nested deeper than {MAX_DEPTH} levels."
    rule = _RULES.get(str(node.get("kind")))
    if rule is None:
        return f"{_subject(where)} has a type that this version does not know."
    return rule(node, value, where, depth)


def _check_record(node: Mapping[str, Any], value: object, where: str, depth: int) -> str:
    if not isinstance(value, Mapping):
        return f"{_subject(where)} must be an object, got {_said(value)}."
    fields = {item.get("name"): item for item in node.get("fields") or ()}
    for name in value:
        if name not in fields:
            known = ", ".join(map(str, fields)) or "none"
            return f"{_subject(where)} has no field {_said(name)}; fields: {known}."
    for name, item in fields.items():
        inner = f"{where}.{name}" if where else str(name)
        if name not in value:
            if item.get("optional") is not True:
                return f"{inner} is missing."
            continue
        kind = item.get("type")
        problem = _check(kind if isinstance(kind, Mapping) else {}, value[name], inner, depth + 1)
        if problem:
            return problem
    return ""


def _check_scalar(node: Mapping[str, Any], value: object, where: str, depth: int) -> str:
    del depth
    scalar = node.get("scalar")
    if scalar == "string":
        return "" if isinstance(value, str) else f"{where} must be text, got {_said(value)}."
    if scalar == "boolean":
        if isinstance(value, bool):
            return ""
        return f"{_subject(where)} must be true or false, got {_said(value)}."
    if scalar == "integer":
        if isinstance(value, bool) or not isinstance(value, int):
            return f"{_subject(where)} must be an integer, got {_said(value)}."
    elif scalar == "number":
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"{_subject(where)} must be a number, got {_said(value)}."
        if value != value:
            return f"{_subject(where)} must be a number, got NaN."
    else:
        return f"{_subject(where)} has a type that this version does not know."
    return _check_bounds(node.get("bounds") or {}, value, where)


def _check_bounds(bounds: Mapping[str, Any], value: int | float, where: str) -> str:
    # Exact for integers, above 2**53 too; a float is compared with the float that was meant.
    kind = Decimal if isinstance(value, int) else float
    try:
        low = kind(bounds["min"]) if "min" in bounds else None
        high = kind(bounds["max"]) if "max" in bounds else None
    except (TypeError, ValueError, InvalidOperation):
        return f"{_subject(where)} has bounds that are not decimal text."
    if low is not None and value < low:
        return f"{_subject(where)} must be at least {bounds['min']}, got {_said(value)}."
    if high is not None and value > high:
        return f"{_subject(where)} must be at most {bounds['max']}, got {_said(value)}."
    return ""


def _check_enum(node: Mapping[str, Any], value: object, where: str, depth: int) -> str:
    del depth
    values = node.get("values")
    if not isinstance(values, list) or not all(isinstance(item, str) for item in values):
        return f"{_subject(where)} has choices that are not texts."
    if isinstance(value, str) and value in values:
        return ""
    return f"{_subject(where)} must be one of {', '.join(values)}, got {_said(value)}."


def _check_list(node: Mapping[str, Any], value: object, where: str, depth: int) -> str:
    if not isinstance(value, list | tuple):
        return f"{_subject(where)} must be a list, got {_said(value)}."
    item = node.get("item")
    for index, entry in enumerate(value):
        inner = f"{where}[{index}]"
        problem = _check(item if isinstance(item, Mapping) else {}, entry, inner, depth + 1)
        if problem:
            return problem
    return ""


def _check_schedule(node: Mapping[str, Any], value: object, where: str, depth: int) -> str:
    del node, depth
    points = value.get("points") if isinstance(value, Mapping) else None
    if not isinstance(points, list | tuple):
        return f"{_subject(where)} must be an object with a list of points."
    for index, point in enumerate(points):
        for word in ("at", "value"):
            if not isinstance(point, Mapping) or not is_decimal(point.get(word)):
                return f'{where}.points[{index}].{word} must be decimal text such as "0.001".'
    return ""


def _check_opaque(node: Mapping[str, Any], value: object, where: str, depth: int) -> str:
    del node, value, where, depth
    return ""


_RULES: Final[Mapping[str, Callable[[Mapping[str, Any], object, str, int], str]]] = {
    "record": _check_record,
    "scalar": _check_scalar,
    "enum": _check_enum,
    "list": _check_list,
    "schedule": _check_schedule,
    "opaque": _check_opaque,
}


def _subject(where: str) -> str:
    return where or "The input"


def _said(value: object) -> str:
    """Say a value of the payload, cut to a readable length."""
    # Whole numbers that are no integers keep their point.
    shown = str(value) if isinstance(value, float) else _wording.json_text(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."


def _bound_text(limit: float) -> str:
    from launchhelm.values.coordinates import coordinate

    return coordinate(limit)


def as_json(value: JSONValue) -> JSONValue:
    """Return a deep copy made of plain JSON types.

    Raises:
        TypeError: Something in it is not JSON.
        ValueError: A number is not finite, or it contains itself.
    """
    import json

    copy: JSONValue = json.loads(json.dumps(value, allow_nan=False))
    return copy
