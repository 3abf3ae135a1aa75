"""Tunables: typed, bounded, live."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest

from launchhelm.controls import schema
from launchhelm.torch._tunables import Tunable, TunableControl


@pytest.mark.parametrize("name", ["a", "dropout_p", "x" * 64, "a1"])
def test_names_are_plain_words(name: str) -> None:
    assert Tunable(name, 1).name == name


@pytest.mark.parametrize("name", ["", "A", "1a", "_a", "x" * 65, "a-b", "ä", "a.b", 7, None, "a\n"])
def test_other_names_are_refused(name: Any) -> None:
    with pytest.raises(ValueError):
        Tunable(name, 1)


@pytest.mark.parametrize("default", [None, [], {}, 1j, object()])
def test_a_default_of_another_type_is_refused(default: Any) -> None:
    with pytest.raises(TypeError):
        Tunable("x", default)


@pytest.mark.parametrize(
    ("default", "limits"),
    [
        (0.0, {"minimum": 0.1}),
        (5, {"maximum": 4}),
        (math.nan, {}),
        (math.inf, {"minimum": 0}),
        ("c", {"choices": ["a", "b"]}),
        ("a", {"choices": []}),
        (1, {"choices": ["a"]}),
        (True, {"choices": ["a"]}),
        (True, {"minimum": 0}),
        ("a", {"maximum": 1}),
        (1, {"minimum": 3, "maximum": 2}),
        (1.0, {"minimum": math.nan}),
    ],
)
def test_a_default_outside_its_own_limits_is_refused(default: Any, limits: Any) -> None:
    with pytest.raises(ValueError):
        Tunable("x", default, **limits)


@pytest.mark.parametrize("bound", ["1", True, [1]])
def test_a_bound_that_is_no_number_is_refused(bound: Any) -> None:
    with pytest.raises(TypeError):
        Tunable("x", 1.0, minimum=bound)


def test_a_float_takes_an_integer_and_stays_a_float() -> None:
    tunable = Tunable("x", 0.5)
    control = TunableControl(tunable)
    assert control.problem({"value": 2}) == ""
    assert control.apply({"value": 2}) == {"value": 2.0}
    assert type(tunable.value) is float


@pytest.mark.parametrize(
    ("default", "limits", "payload"),
    [
        (3, {"maximum": 9}, {"value": 10}),
        (3, {"minimum": 1}, {"value": 0}),
        (3, {}, {"value": 3.0}),
        (3, {}, {"value": True}),
        (0.5, {"minimum": 0, "maximum": 1}, {"value": 1.0001}),
        (0.5, {}, {"value": math.nan}),
        (0.5, {}, {"value": -math.inf}),
        (0.5, {}, {"value": 10**400}),
        (0.5, {}, {"value": True}),
        (True, {}, {"value": 1}),
        ("a", {"choices": ["a", "b"]}, {"value": "c"}),
        ("a", {}, {"value": 1}),
        (1, {}, {}),
        (1, {}, {"value": 1, "more": 2}),
    ],
)
def test_a_payload_that_does_not_fit_is_refused(default: Any, limits: Any, payload: Any) -> None:
    tunable = Tunable("x", default, **limits)
    assert TunableControl(tunable).problem(payload)
    assert tunable.value == default


def test_bounds_are_inclusive() -> None:
    tunable = Tunable("x", 1, minimum=1, maximum=9)
    control = TunableControl(tunable)
    assert control.problem({"value": 1}) == control.problem({"value": 9}) == ""
    assert schema.check(control.input_schema, {"value": 9}) == ""
    assert "at most 9" in schema.check(control.input_schema, {"value": 10})


def test_tiny_bounds_are_written_as_plain_decimal_text() -> None:
    control = TunableControl(Tunable("x", 1.0, minimum=1e-7))
    field = control.input_schema["root"]["fields"][0]
    assert field["type"]["bounds"] == {"min": "0.0000001"}


def test_a_numpy_float_is_a_float() -> None:
    tunable = Tunable("x", np.float64(0.5))
    assert type(tunable.value) is float


def test_the_value_is_read_only_so_that_no_rank_changes_it_alone() -> None:
    with pytest.raises(AttributeError):
        Tunable("x", 1).value = 2  # type: ignore[misc]


def test_a_tunable_can_be_copied_and_pickled() -> None:
    tunable = Tunable("x", "a", choices=["a", "b"])
    for twin in (copy.deepcopy(tunable), pickle.loads(pickle.dumps(tunable))):
        twin.take("b")
        assert (twin.value, tunable.value) == ("b", "a")


def test_the_largest_integer_that_is_allowed_can_be_set() -> None:
    limit = 2**60 + 1
    control = TunableControl(Tunable("n", 0, maximum=limit))
    assert control.problem({"value": limit}) == ""
    assert str(limit) in control.problem({"value": limit + 1})
