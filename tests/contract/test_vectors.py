"""The hosted SDK's own answers to the questions that a schema, a number or a coordinate raises."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, TypedDict

import pytest

from launchhelm import CommandContext, Schedule, scalar
from launchhelm.commands import command_capability, input_schema
from launchhelm.controls import schema
from launchhelm.runtime import validate_coordinates
from launchhelm.values import axes_text, check_step, coordinate

CASES = json.loads((Path(__file__).parent / "vectors" / "sdk.json").read_text("utf-8"))


class Options(TypedDict, total=False):
    a: int
    b: str


def scalars(lr: float, n: int, s: str, b: bool) -> None: ...
def optional(x: float | None, y: int = 3, z: str | None = None) -> None: ...
def complex_(l: list[float], sch: Schedule, o: Options, context: CommandContext) -> None: ...  # noqa: E741 - The vector names it so.
def untyped(x): ...  # type: ignore[no-untyped-def]  # That is the case.


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "(lr: float, n: int, s: str, b: bool)": scalars,
    "(x: float | None, y: int = 3, z: str | None = None)": optional,
    "(l: list[float], sch: Schedule, o: TypedDict(total=False){a: int, b: str}, "
    "context: CommandContext)": complex_,
    "(x)": untyped,
}
PYTHON = {
    "int": int,
    "float": float,
    "decimal": Decimal,
    "str": str,
    "bool": lambda text: text == "true",
}


def of(function: str) -> list[Any]:
    found = [case for case in CASES if case["function"] == function]
    assert found
    return [pytest.param(case["input"], case["expected"], id=case["id"]) for case in found]


def fails(expected: Any) -> type[Exception] | None:
    """Return the error that a case expects; a JSON Schema error is our ValueError."""
    if not isinstance(expected, dict) or "error" not in expected:
        return None
    return {"TypeError": TypeError}.get(expected["error"]["type"], ValueError)


@pytest.mark.parametrize(("given", "expected"), of("validate_semantic"))
def test_a_payload_fits_a_schema_as_hosted(given: dict[str, Any], expected: Any) -> None:
    problem = schema.check(given["schema"], json.loads(given["value_json_text"]))
    assert (problem == "") == (expected == "valid"), problem


@pytest.mark.parametrize(("given", "expected"), of("require_semantic"))
def test_a_schema_may_be_registered_as_hosted(given: dict[str, Any], expected: Any) -> None:
    if fails(expected):
        with pytest.raises(ValueError, match="semantic"):
            schema.require(given["schema"])
    else:
        schema.require(given["schema"])


@pytest.mark.parametrize(("given", "expected"), of("input_schema"))
def test_a_typed_function_has_the_hosted_schema(given: dict[str, Any], expected: Any) -> None:
    function = FUNCTIONS[given["signature"]]
    if fails(expected):
        with pytest.raises(TypeError):
            input_schema(function)
    else:
        assert input_schema(function) == expected


@pytest.mark.parametrize(("given", "expected"), of("capability_spec"))
def test_a_capability_has_the_hosted_form(given: dict[str, Any], expected: Any) -> None:
    function = FUNCTIONS[given["signature"]]
    capability = command_capability(function, given["safe_point"], name=given["name"])
    assert capability.wire(given["participant_id"]) == expected


@pytest.mark.parametrize(("given", "expected"), of("scalar"))
def test_a_measurement_has_the_hosted_json_form(given: dict[str, Any], expected: Any) -> None:
    value = PYTHON[given["type"]](given["text"])
    error = fails(expected)
    if error:
        with pytest.raises(error):
            scalar(value)
    else:
        assert repr(scalar(value)) == repr(json.loads(expected["json_text"]))


@pytest.mark.parametrize(("given", "expected"), of("coordinate"))
def test_a_coordinate_has_the_hosted_text(given: dict[str, Any], expected: Any) -> None:
    value = PYTHON[given["type"]](given["text"])
    error = fails(expected)
    if error:
        with pytest.raises(error):
            coordinate(value)
    else:
        assert coordinate(value) == expected


@pytest.mark.parametrize(("given", "expected"), of("run_coordinates"))
def test_axes_of_a_point_are_checked_and_ordered_as_hosted(
    given: dict[str, Any], expected: Any
) -> None:
    if fails(expected):
        with pytest.raises(ValueError):
            axes_text(given["axes"])
        return
    step = given["next_step_before"] if given["step"] is None else check_step(given["step"])
    made = {"step": str(step), **axes_text(given["axes"])}
    assert [{"axis": axis, "value": text} for axis, text in made.items()] == expected["coordinates"]


@pytest.mark.parametrize(("given", "expected"), of("validate_coordinates"))
def test_coordinates_of_a_safe_point_are_checked_as_hosted(
    given: dict[str, Any], expected: Any
) -> None:
    many = [{"axis": f"a{index}", "value": "0"} for index in range(33)]
    coordinates = given.get("coordinates", many)
    if fails(expected):
        with pytest.raises(ValueError):
            validate_coordinates(coordinates)
    else:
        assert validate_coordinates(coordinates) == {"step": "1"}
