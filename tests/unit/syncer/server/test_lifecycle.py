"""The life of a command as a table: every state meets every event."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from syncer.server import lifecycle
from syncer.server.lifecycle import LEASE_S, Life, Refused, Said

NOW = 1000.0
OPEN_LEASE = NOW + LEASE_S

WAITING = Life("queued", expires_at=2000.0)
CLAIMED = Life("claimed", expires_at=2000.0, leases=("old", "valid"), lease_until=OPEN_LEASE)
APPLYING = replace(CLAIMED, execution="applying", begun=True)
STATES = {
    "pending": replace(WAITING, execution="pending_approval"),
    "queued": WAITING,
    "claimed": CLAIMED,
    "lapsed": replace(CLAIMED, lease_until=NOW),
    "applying": APPLYING,
    "lost": replace(
        APPLYING, execution="outcome_unknown", decided_by="server", failure_code="lease_lost"
    ),
    "superseded": replace(
        APPLYING, execution="outcome_unknown", decided_by="server", failure_code="epoch_superseded"
    ),
    "cancelled": replace(WAITING, execution="cancelled", decided_by="operator"),
    "rejected here": replace(CLAIMED, execution="rejected", decided_by="server"),
    "applied": replace(APPLYING, execution="applied", decided_by="participant"),
    "rejected there": replace(CLAIMED, execution="rejected", decided_by="participant"),
    "unknown there": replace(APPLYING, execution="outcome_unknown", decided_by="participant"),
}
APPLY = Said("applied", result={"lr": [0.05]}, applied_at=({"axis": "step", "value": "12"},))
REJECT = Said("rejected", failure_code="local_validation")
UNKNOWN = Said("outcome_unknown", failure_code="ValueError")

EVENTS: dict[str, Callable[[Life], Life]] = {
    "approve": lifecycle.approve,
    "cancel": lifecycle.cancel,
    "claim": lambda life: lifecycle.claim(life, "new", NOW),
    "begin": lambda life: lifecycle.begin(life, "valid", NOW),
    "begin with an older lease": lambda life: lifecycle.begin(life, "old", NOW),
    "begin with a foreign lease": lambda life: lifecycle.begin(life, "foreign", NOW),
    "renew": lambda life: lifecycle.renew(life, "valid", NOW),
    "renew an older lease": lambda life: lifecycle.renew(life, "old", NOW),
    "supersede": lifecycle.supersede,
    "end session": lifecycle.end_session,
    "expire": lambda life: lifecycle.settle(life, life.expires_at),
    "report applied": lambda life: lifecycle.report(life, APPLY)[0],
    "report rejected": lambda life: lifecycle.report(life, REJECT)[0],
    "report unknown": lambda life: lifecycle.report(life, UNKNOWN)[0],
}

# One row per event; one word per state in the order of STATES. "-" is refused, "=" is unchanged.
TABLE = """
event                      | pending   queued    claimed  lapsed   applying lost     superseded cancelled rejected_here applied rejected_there unknown_there
approve                    | queued    =         =        =        =        -        -          -         -             -       -              -
cancel                     | cancelled cancelled -        -        -        -        -          =         -             -       -              -
claim                      | -         claimed   -        claimed  -        -        -          -         -             -       -              -
begin                      | -         -         applying applying =        applying -          -         -             -       -              -
begin with an older lease  | -         -         applying applying -        -        -          -         -             -       -              -
begin with a foreign lease | -         -         -        -        -        -        -          -         -             -       -              -
renew                      | -         -         =        claimed  =        applying -          -         -             -       -              -
renew an older lease       | -         -         -        -        -        -        -          -         -             -       -              -
supersede                  | rejected  rejected  rejected rejected unknown  =        =          =         =             =       =              =
end session                | rejected  rejected  rejected rejected =        =        =          =         =             =       =              =
expire                     | rejected  rejected  =        =        unknown  =        =          =         =             =       =              =
report applied             | applied   applied   applied  applied  applied  applied  applied    applied   applied       =       =              =
report rejected            | rejected  rejected  rejected rejected rejected rejected rejected   =         =             =       =              =
report unknown             | unknown   unknown   unknown  unknown  unknown  unknown  unknown    =         =             =       =              =
"""  # noqa: E501 - A table is read as a table.


def _cells() -> list[Any]:
    rows = [row.split("|") for row in TABLE.strip().splitlines()[1:]]
    return [
        pytest.param(event.strip(), state, word, id=f"{event.strip()} when {state}")
        for event, words in rows
        for state, word in zip(STATES, words.split(), strict=True)
    ]


@pytest.mark.parametrize(("event", "state", "word"), _cells())
def test_every_event_in_every_state_does_what_the_table_says(
    event: str, state: str, word: str
) -> None:
    before = STATES[state]
    if word == "-":
        with pytest.raises(Refused):
            EVENTS[event](before)
        return
    after = EVENTS[event](before)
    if word == "=":
        assert after == before
    else:
        assert after.execution == {"unknown": "outcome_unknown"}.get(word, word)
        assert after != before


def test_the_table_names_every_event() -> None:
    assert {cell.values[0] for cell in _cells()} == set(EVENTS)


@pytest.mark.parametrize("execution", ["claimed", "applying"])
def test_a_claimed_command_neither_expires_nor_is_taken_back(execution: Any) -> None:
    life = replace(APPLYING, execution=execution, expires_at=NOW - 1)
    assert lifecycle.settle(life, NOW) == life
    with pytest.raises(Refused):
        lifecycle.cancel(life)


def test_a_lease_that_was_lost_lives_again_with_its_renewal() -> None:
    """Whether somebody looked in between makes no difference."""
    late = OPEN_LEASE + 1
    lost = lifecycle.settle(APPLYING, late)
    assert (lost.execution, lost.failure_code) == ("outcome_unknown", "lease_lost")
    seen = lifecycle.renew(lost, "valid", late)
    unseen = lifecycle.renew(APPLYING, "valid", late)
    assert seen == unseen == replace(APPLYING, lease_until=late + LEASE_S)


def test_a_begin_with_an_older_lease_takes_the_command_from_the_newer() -> None:
    life = lifecycle.begin(CLAIMED, "old", NOW)
    assert life.lease_id == "old"
    with pytest.raises(Refused):
        lifecycle.begin(life, "valid", NOW)


def test_the_participants_word_replaces_the_servers_guess_with_all_that_it_says() -> None:
    said = replace(APPLY, applied_on=(512, 512))
    life, flag = lifecycle.report(STATES["superseded"], said)
    assert flag == ""
    assert life.result == {"lr": [0.05]}
    assert life.applied_at == ({"axis": "step", "value": "12"},)
    assert life.applied_on == (512, 512)
    assert (life.failure_code, life.decided_by) == ("", "participant")


@pytest.mark.parametrize(
    ("state", "said", "flagged"),
    [
        ("claimed", APPLY, False),
        ("queued", APPLY, True),
        ("applied", APPLY, False),
        ("lost", REJECT, False),
        ("rejected here", UNKNOWN, False),
        ("rejected here", APPLY, True),
        ("cancelled", APPLY, True),
        ("applied", REJECT, True),
        ("unknown there", APPLY, True),
    ],
)
def test_a_contradiction_is_flagged_and_agreement_is_not(
    state: str, said: Said, flagged: bool
) -> None:
    assert bool(lifecycle.report(STATES[state], said)[1]) is flagged


def test_the_first_word_of_the_participant_stands() -> None:
    once, _ = lifecycle.report(APPLYING, UNKNOWN)
    twice, flag = lifecycle.report(once, APPLY)
    assert twice == once
    assert flag
