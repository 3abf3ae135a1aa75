"""Whether one command may act now, as a table."""

from __future__ import annotations

from typing import Any

import pytest

from launchhelm.controls import judge, schema
from launchhelm.records import Command

LR = schema.record([schema.field("lr", schema.number(minimum=0))])


@pytest.mark.parametrize(
    ("fields", "asked", "state", "code"),
    [
        ({}, {}, "fit", ""),
        ({"payload": {"lr": -1}}, {}, "rejected", "local_validation"),
        ({}, {"schema": None}, "rejected", "handler_unavailable_or_changed"),
        ({"valid_s": 60}, {"waited_s": 61}, "expired", "expired"),
        ({"valid_s": 60}, {"waited_s": 60}, "fit", ""),
        ({"first_step": 8}, {"step": 7}, "wait", ""),
        ({"first_step": 8}, {"step": 8}, "fit", ""),
        ({"first_step": 8}, {"step": None}, "wait", ""),
        ({"last_step": 7}, {"step": 7}, "fit", ""),
        ({"last_step": 7}, {"step": 8}, "expired", "expired"),
        ({"expected": {"lr": [0.1]}}, {"values": {"lr": [0.1]}}, "fit", ""),
        ({"expected": {"lr": [0.1]}}, {"values": {"lr": [0.2]}}, "rejected", "changed_meanwhile"),
        ({"expected": {"lr": [0.1]}}, {"values": {}}, "rejected", "changed_meanwhile"),
        # Waiting longer than it is valid ends it, whatever else it waits for.
        ({"first_step": 8, "valid_s": 1}, {"step": 7, "waited_s": 2}, "expired", "expired"),
        # What can never act is said at once, not when its step has come.
        (
            {"first_step": 8, "payload": {"lr": "x"}},
            {"step": 7},
            "rejected",
            "local_validation",
        ),
    ],
)
def test_a_command_is_judged(
    fields: dict[str, Any], asked: dict[str, Any], state: str, code: str
) -> None:
    command = Command(**{"id": "c", "name": "lr", "payload": {"lr": 0.1}, **fields})
    facts: dict[str, Any] = {"schema": LR, "step": 7, "waited_s": 0.0, "values": {}, **asked}
    judgement = judge(command, **facts)
    assert (judgement.state, judgement.code) == (state, code)


def test_a_changed_value_is_told_with_both() -> None:
    command = Command("c", "lr", {"lr": 0.1}, expected={"lr": [0.1]})
    judgement = judge(command, schema=LR, step=1, waited_s=0.0, values={"lr": [0.2]})
    assert judgement.message == "lr was 0.1 and is 0.2 now."
