"""Typed commands: what annotations mean, and what is refused when it is registered."""

from __future__ import annotations

from typing import Any, TypedDict

import pytest

from launchhelm import CommandContext, Schedule
from launchhelm.commands import adapt, command_capability, input_schema
from launchhelm.controls import schema

CONTEXT = CommandContext("c1")


class Inner(TypedDict):
    x: float


class Outer(TypedDict, total=False):
    inner: Inner
    note: str | None


def test_nested_dictionaries_and_lists_become_records_and_lists() -> None:
    def change(outer: Outer, rates: list[float], plan: Schedule) -> None: ...

    made = input_schema(change)
    fits = {"outer": {"inner": {"x": 1}}, "rates": [0.1], "plan": {"points": []}}
    assert schema.check(made, fits) == ""
    assert schema.check(made, {**fits, "outer": {"inner": {}}}) == "outer.inner.x is missing."


def test_the_context_is_passed_in_and_is_no_field() -> None:
    def change(lr: float, context: CommandContext) -> str:
        return f"{context.command_id} {lr}"

    assert [field["name"] for field in input_schema(change)["root"]["fields"]] == ["lr"]
    assert adapt(change)({"lr": 0.5}, CONTEXT) == "c1 0.5"


def test_an_optional_field_left_out_has_its_default_or_none() -> None:
    def change(a: int | None, b: int | None = None) -> tuple[Any, Any]:
        return a, b

    assert adapt(change)({}, CONTEXT) == (None, None)


def test_a_bound_method_can_be_a_command() -> None:
    class Loop:
        lr = 0.1

        def set_lr(self, lr: float) -> None:
            self.lr = lr

    loop = Loop()
    capability = command_capability(loop.set_lr, "after_step")
    adapt(loop.set_lr)({"lr": 0.5}, CONTEXT)
    assert (capability.name, loop.lr) == ("set_lr", 0.5)


def anything(*values: float) -> None: ...
def keywords(**values: float) -> None: ...
def untyped(lr) -> None: ...  # type: ignore[no-untyped-def]  # That is the case.
def mapping(values: dict[str, float]) -> None: ...
def either(value: int | str) -> None: ...
def positional(value: int, /) -> None: ...
def context_of_another_kind(context: int | None) -> None: ...


@pytest.mark.parametrize("bad", [anything, keywords, untyped, mapping, either, positional])
def test_what_has_no_schema_is_refused_when_it_is_registered(bad: Any) -> None:
    with pytest.raises(TypeError):
        input_schema(bad)


def test_a_parameter_called_context_of_another_type_is_a_field() -> None:
    assert input_schema(context_of_another_kind)["root"]["fields"][0]["name"] == "context"


def test_a_lambda_needs_a_name() -> None:
    with pytest.raises(ValueError, match="lower-case"):
        command_capability(lambda: None, "after_step")
    assert command_capability(lambda: None, "after_step", name="ping").name == "ping"


@pytest.mark.parametrize("bad", ["After", "", "a b", "x" * 129, "1a"])
def test_a_safe_point_has_a_plain_name(bad: str) -> None:
    with pytest.raises(ValueError, match="safe point"):
        command_capability(lambda: None, bad, name="ping")


def test_dictionaries_nested_without_end_are_refused() -> None:
    with pytest.raises(TypeError, match="deeper"):
        input_schema(recursive)


class Node(TypedDict):
    child: Node


def recursive(node: Node) -> None: ...
