"""Typed commands: the schema of a command's input, from the annotations of its function."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any, Final, TypedDict, Union

from launchhelm.controls import schema
from launchhelm.models import Capability, CommandContext, opaque_schema
from launchhelm.values.names import require_name

MAX_DEPTH: Final = 8
"""Levels of nested typed dictionaries."""

Handler = Callable[[Mapping[str, Any], CommandContext], Any]
"""What a capability calls: handler(payload, context). Any: whatever its author returns."""


class SchedulePoint(TypedDict):
    """One point of a schedule, as decimal text."""

    at: str
    value: str


class Schedule(TypedDict):
    """A parameter that is a schedule: values at positions."""

    points: list[SchedulePoint]


def input_schema(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the schema of a function's parameters.

    `int`, `float`, `str`, `bool`, `list[T]`, typed dictionaries and `Schedule` are understood;
    `T | None` or a default of None makes a field optional. `context: CommandContext` is passed in
    when the command runs, and is no field.

    Raises:
        TypeError: A parameter without annotation, of another type, or `*args` / `**kwargs`.
    """
    fields = []
    for parameter in _parameters(function):
        if _is_context(parameter):
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise TypeError(
                f"A command cannot take *{parameter.name}: name each parameter and annotate it."
            )
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise TypeError(f"A command cannot take the positional-only {parameter.name!r}.")
        where = f"parameter {parameter.name!r}"
        node, optional = _field_type(parameter.annotation, where, 1)
        optional = optional or parameter.default is None
        fields.append(schema.field(parameter.name, node, optional=optional))
    return schema.record(fields)


def command_capability(
    function: Callable[..., Any], safe_point: str, *, name: str = ""
) -> Capability:
    """Return the capability that a typed function offers at one safe point.

    Raises:
        TypeError: Its parameters have no schema.
        ValueError: Its name, or the safe point's, does not match the rule.
    """
    name = name or getattr(function, "__name__", "")
    return Capability(
        name=require_name(name, "name of a command"),
        provider="script",
        version="1.0.0",
        input_schema=input_schema(function),
        output_schema=opaque_schema(),
        safe_points=(require_name(safe_point, "safe point"),),
    )


def adapt(function: Callable[..., Any]) -> Handler:
    """Return the handler that calls a typed function with a payload's fields as keywords."""
    wants_context = any(map(_is_context, _parameters(function)))
    defaults = {
        parameter.name: None
        for parameter in _parameters(function)
        if parameter.default is parameter.empty and not _is_context(parameter)
    }

    def handler(payload: Mapping[str, Any], context: CommandContext) -> Any:
        # A field left out that has no default admits None, or its schema would have asked for it.
        arguments: dict[str, Any] = {**defaults, **payload}
        if wants_context:
            arguments["context"] = context
        return function(**arguments)

    return handler


def _parameters(function: Callable[..., Any]) -> list[Any]:  # Any: inspect.Parameter.
    """Return the parameters with their annotations resolved."""
    import inspect  # Loaded by the first command, not by `import launchhelm`.

    try:
        signature = inspect.signature(function, eval_str=True)
    except NameError as error:
        raise TypeError(f"An annotation of the command cannot be resolved: {error}.") from error
    return list(signature.parameters.values())


def _is_context(parameter: Any) -> bool:  # Any: inspect.Parameter.
    return parameter.name == "context" and parameter.annotation is CommandContext


_SCALARS: Final[Mapping[object, Callable[[], schema.Node]]] = {
    int: lambda: schema.number(integer=True),
    float: schema.number,
    str: schema.text,
    bool: schema.boolean,
}


def _field_type(annotation: Any, where: str, depth: int) -> tuple[schema.Node, bool]:
    """Return the node of an annotation and whether it admits None. Any: an annotation."""
    from typing import get_args, get_origin

    if get_origin(annotation) in (Union, types.UnionType):
        members = [member for member in get_args(annotation) if member is not type(None)]
        if len(members) == 1 and len(get_args(annotation)) == 2:
            return _field_type(members[0], where, depth)[0], True
    return _node(annotation, where, depth), False


def _node(annotation: Any, where: str, depth: int) -> schema.Node:  # Any: an annotation.
    from typing import get_args, get_origin, is_typeddict

    if annotation in _SCALARS:
        return _SCALARS[annotation]()
    if annotation is Schedule:
        return schema.schedule()
    if get_origin(annotation) is list:
        return schema.listing(_node(get_args(annotation)[0], where, depth))
    if is_typeddict(annotation):
        return _record_of(annotation, where, depth)
    raise TypeError(
        f"The {where} of a command needs one of these annotations: int, float, str, bool, list[T], "
        f"a TypedDict, Schedule, or one of them | None. Got {annotation!r}."
    )


def _record_of(kind: Any, where: str, depth: int) -> schema.Node:  # Any: a TypedDict class.
    from typing import get_type_hints

    if depth >= MAX_DEPTH:
        raise TypeError(f"The {where} nests typed dictionaries deeper than {MAX_DEPTH} levels.")
    fields = []
    for name, annotation in get_type_hints(kind).items():
        node, optional = _field_type(annotation, f"{where}, key {name!r}", depth + 1)
        optional = optional or name in kind.__optional_keys__
        fields.append(schema.field(name, node, optional=optional))
    return schema.record_node(fields)
