"""What a schema says about a payload, in words that a person can act on."""

from __future__ import annotations

from typing import Any

import pytest

from launchhelm.controls import schema

LR = schema.record(
    [
        schema.field("scale", schema.number(minimum=0), optional=True),
        schema.field("group", schema.number(minimum=0, integer=True), optional=True),
        schema.field("mode", schema.choice(["hold", "scale"])),
        schema.field("steps", schema.listing(schema.number(integer=True))),
    ]
)
GOOD = {"mode": "hold", "steps": [1, 2]}


def test_what_fits_has_nothing_to_be_said_about() -> None:
    assert schema.check(LR, {**GOOD, "scale": 0.5, "group": 0}) == ""


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"scale": -1}, "scale must be at least 0, got -1."),
        ({"scale": float("nan")}, "scale must be a number, got NaN."),
        ({"scale": "0.5"}, 'scale must be a number, got "0.5".'),
        ({"group": 1.0}, "group must be an integer, got 1.0."),
        ({"group": True}, "group must be an integer, got true."),
        ({"mode": "now"}, 'mode must be one of hold, scale, got "now".'),
        ({"steps": [1, "2"]}, 'steps[1] must be an integer, got "2".'),
        ({"lr": 1}, 'The input has no field "lr"; fields: scale, group, mode, steps.'),
    ],
)
def test_the_answer_names_the_field_and_the_value(changed: dict[str, Any], said: str) -> None:
    assert schema.check(LR, {**GOOD, **changed}) == said


@pytest.mark.parametrize("limit", [2**53 + 1, 2**60 + 1, 10**30 + 1])
def test_a_bound_of_an_integer_is_exact_where_floats_are_not(limit: int) -> None:
    fits = schema.record(
        [schema.field("n", schema.number(minimum=-limit, maximum=limit, integer=True))]
    )
    for value in (limit, -limit):
        assert schema.check(fits, {"n": value}) == ""
        beyond = value + (1 if value > 0 else -1)
        assert f"{value}, got {beyond}." in schema.check(fits, {"n": beyond})


def test_a_float_is_compared_with_the_float_that_was_meant() -> None:
    """0.1 is a little more than its decimal text, and is not above a maximum of 0.1 for that."""
    fits = schema.record([schema.field("p", schema.number(maximum=0.1))])
    assert schema.check(fits, {"p": 0.1}) == schema.check(fits, {"p": 0}) == ""
    assert schema.check(fits, {"p": 0.1000001}) and schema.check(fits, {"p": 1})
    odd = {"root": {"kind": "scalar", "scalar": "integer", "bounds": {"max": "many"}}}
    assert "bounds that are not decimal text" in schema.check(odd, 1)


def test_a_missing_field_is_named() -> None:
    assert schema.check(LR, {"mode": "hold"}) == "steps is missing."


def test_a_schema_nested_without_end_is_refused_not_followed() -> None:
    node = schema.number()
    for _ in range(100):
        node = schema.listing(node)
    payload: Any = 1
    for _ in range(100):
        payload = [payload]
    assert "nested deeper" in schema.check({"root": node}, payload)


@pytest.mark.parametrize("bad", [float("nan"), {1, 2}, object(), {"a": [float("inf")]}])
def test_what_is_not_json_is_refused(bad: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        schema.as_json(bad)


def test_a_json_copy_shares_nothing_with_its_original() -> None:
    original = {"a": [1, 2], "b": (3,)}
    copy = schema.as_json(original)
    original["a"].append(9)
    assert copy == {"a": [1, 2], "b": [3]}
