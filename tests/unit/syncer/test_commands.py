"""Commands of a server as the run's inbox has them, and outcomes of the run as results."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from launchhelm.records import Outcome, WriterId
from launchhelm.store.inbox import decode, encode
from syncer import commands
from syncer.api import wire
from syncer.commands import APPLIED_ON, Offer, Origin, Voice

NOW = 1_800_000_000.0
WRITER = WriterId(0, 3, "0123abcd")
PARTICIPANT = "55555555-5555-4555-8555-555555555555"
CAPABILITY = "44444444-4444-4444-8444-444444444444"
ID = "aaaaaaaa-aaaa-4aaa-8aaa-aaaaaaaaaaaa"
SERVER = "0123456789abcdef"
OFFER = Offer(CAPABILITY, "1", "lr", frozenset({"lht"}))
VOICE = Voice(WRITER, PARTICIPANT, "7", {}, offers={CAPABILITY: OFFER})


def command(**changes: Any) -> dict[str, Any]:
    """Return a claimed command; the changes are of its request, before it is signed."""
    request = {
        "scope": {"organization_id": "1", "project_id": "2", "run_id": "3"},
        "capability": {"id": CAPABILITY, "kind": "capability", "revision": "1"},
        "participant_id": PARTICIPANT,
        "epoch": "7",
        "expected_state_revision": "12",
        "targets": [],
        "input": {"scale": 0.5},
        "safe_point": "lht",
        "expires_at": wire.timestamp(NOW + 60),
        "reason": "halve the rate",
        **changes,
    }
    return {
        "id": ID,
        "fingerprint": wire.fingerprint(request),
        "execution": "claimed",
        "lease_id": "lease-1",
        "request": request,
    }


ORIGIN = Origin(
    SERVER,
    ID,
    "7",
    "lease-1",
    command()["fingerprint"],
    PARTICIPANT,
    command()["request"]["expires_at"],
)


def test_where_a_command_comes_from_is_read_from_the_claim() -> None:
    assert commands.origin_of(command(), SERVER) == ORIGIN
    assert commands.origin_of({**command(), "lease_id": None}, SERVER) is None
    assert commands.origin_of({}, SERVER) is None


def test_a_good_command_may_reach_the_run() -> None:
    assert commands.refusal(command(), VOICE, NOW) == ""


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"epoch": "6"}, "epoch_superseded"),
        ({"participant_id": CAPABILITY}, "epoch_superseded"),
        ({"capability": {"id": CAPABILITY, "revision": "2"}}, "handler_unavailable_or_changed"),
        ({"capability": {"id": CAPABILITY}}, "handler_unavailable_or_changed"),
        ({"capability": {"id": ID, "revision": "1"}}, "handler_unavailable_or_changed"),
        ({"capability": None}, "handler_unavailable_or_changed"),
        ({"safe_point": "other"}, "undeclared_safe_point"),
        ({"safe_point": ""}, "undeclared_safe_point"),
        ({"expires_at": wire.timestamp(NOW)}, "expired"),
        ({"expires_at": "tomorrow"}, "expired"),
        ({"expires_at": "2100-01-01T00:00:00"}, "expired"),
        ({"input": [0.5]}, "local_validation"),
        ({"input": None}, "local_validation"),
        ({"input": {"text": "x" * 65_000}}, "local_validation"),
    ],
)
def test_what_does_not_fit_the_process_is_refused_with_the_code_of_the_contract(
    changes: dict[str, Any], code: str
) -> None:
    assert commands.refusal(command(**changes), VOICE, NOW) == code


@pytest.mark.parametrize(
    "forged",
    [
        {"fingerprint": "0" * 64},
        {"fingerprint": None},
        {"request": {**command()["request"], "input": {"scale": 2.0}}},
        {"request": {**command()["request"], "input": {"scale": math.inf}}},
        {"request": None},
    ],
)
def test_a_request_that_is_not_the_one_that_was_signed_is_refused(forged: dict[str, Any]) -> None:
    assert commands.refusal({**command(), **forged}, VOICE, NOW) == "fingerprint_mismatch"


def test_the_inbox_gets_all_that_is_needed_to_act_and_to_report() -> None:
    request = command()["request"]
    made = commands.inbox_command(
        request, OFFER, ORIGIN, WRITER, issued_by="https://127.0.0.1", now=NOW
    )
    made = decode(encode(made))
    assert (made.id, made.name, made.payload) == (ID, "lr", {"scale": 0.5})
    assert (made.for_attempt, made.valid_s, made.revision) == (3, 60.0, 12)
    assert (made.issued_by, made.reason) == ("https://127.0.0.1", "halve the rate")
    assert Origin.parse(made.server, SERVER) == ORIGIN


@pytest.mark.parametrize("revision", ["", "-1", "x", "9" * 19, None, 3.5])
def test_a_strange_revision_orders_a_command_like_a_local_one(revision: Any) -> None:
    request = {**command()["request"], "expected_state_revision": revision}
    made = commands.inbox_command(request, OFFER, ORIGIN, WRITER, issued_by="", now=NOW)
    assert made.revision == 0


@pytest.mark.parametrize(
    "changed",
    [
        {"server": "another"},
        {"id": "not a uuid"},
        {"participant": "../keys"},
        {"lease": None},
        {"epoch": 7},
    ],
)
def test_an_origin_that_cannot_be_reported_is_none(changed: dict[str, Any]) -> None:
    assert Origin.parse({**ORIGIN.field(), **changed}, SERVER) is None
    assert Origin.parse({}, SERVER) is None


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (
            Outcome(
                ID,
                "applied",
                result={"lr": [0.05]},
                applied_at={"step": 12},
                applied_on=4,
                of=4,
                changes={"lr": {"old": [0.1], "new": [0.05]}},
            ),
            {
                "outcome": "applied",
                "result": {"lr": [0.05], "old": {"lr": [0.1]}, "new": {"lr": [0.05]}},
                "applied_at": [{"axis": "step", "value": "12"}],
                "failure_code": "",
                "applied_on": {"count": 4, "of": 4},
            },
        ),
        (
            Outcome(ID, "applied", result=None, changes={"lr": {"new": 2**60}}),
            {"outcome": "applied", "result": {"new": {"lr": wire.number(2**60)}}},
        ),
        (
            Outcome(ID, "applied", result={"lr": math.nan}),
            {"outcome": "applied", "result": {"lr": wire.number(math.nan)}},
        ),
        (Outcome(ID, "applied", result="x" * (2 << 20)), {"outcome": "applied", "result": None}),
        (
            Outcome(ID, "rejected", code="local_validation", of=4),
            {
                "outcome": "rejected",
                "failure_code": "local_validation",
                "applied_on": {"count": 0, "of": 4},
            },
        ),
        (
            Outcome(ID, "expired", code="expired"),
            {"outcome": "rejected", "failure_code": "expired"},
        ),
        (Outcome(ID, "expired"), {"outcome": "rejected", "failure_code": "expired"}),
        (Outcome(ID, "cancelled"), {"outcome": "rejected", "failure_code": "cancelled"}),
        (
            Outcome(
                ID,
                "outcome_unknown",
                code="DivergedStateError",
                result={"lr": 1},
                applied_at={"step": 1},
                applied_on=3,
                of=4,
            ),
            {
                "outcome": "outcome_unknown",
                "result": None,
                "applied_at": [],
                "failure_code": "DivergedStateError",
                "applied_on": {"count": 3, "of": 4},
            },
        ),
        (
            Outcome(ID, "outcome_unknown", code="runtime_restart"),
            {"outcome": "outcome_unknown", "failure_code": "runtime_restart"},
        ),
        (Outcome(ID, "outcome_unknown", applied_on=5, of=4), {"outcome": "outcome_unknown"}),
    ],
)
def test_an_outcome_becomes_the_result_of_the_contract(
    outcome: Outcome, expected: dict[str, Any]
) -> None:
    told = commands.result(outcome, ORIGIN, extensions=frozenset({APPLIED_ON}))
    wire.encode(told)
    assert (told["lease_id"], told["epoch"]) == ("lease-1", "7")
    assert {name: told[name] for name in expected} == expected
    assert ("applied_on" in told) == ("applied_on" in expected)
    plain = commands.result(outcome, ORIGIN, extensions=frozenset())
    assert plain == {name: value for name, value in told.items() if name != "applied_on"}


def test_the_clock_of_a_server_of_ours_decides_how_long_a_command_is_valid() -> None:
    there = NOW - 7200
    given = {**command(), "updated_at": wire.timestamp(there)}
    ours = replace(VOICE, extensions=frozenset({APPLIED_ON}))
    assert commands.server_time(given, ours, NOW) == there
    assert commands.server_time(given, VOICE, NOW) == NOW
    assert commands.server_time(command(), ours, NOW) == NOW


@pytest.mark.parametrize(
    ("told", "issuer"),
    [
        (
            {"submitted_by": "alice (key 0199f3a2)"},
            "alice (key 0199f3a2) by way of https://lan.example",
        ),
        ({}, "https://lan.example"),
        ({"submitted_by": 7}, "https://lan.example"),
        (
            {"submitted_by": "\ud800" + 5000 * "a"},
            "?" + 319 * "a" + " by way of https://lan.example",
        ),
    ],
)
def test_who_gave_a_command_is_what_its_server_tells(told: dict[str, Any], issuer: str) -> None:
    assert commands.issuer({**command(), **told}, "https://lan.example") == issuer
