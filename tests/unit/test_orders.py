"""Orders: a command taken back, all of them frozen, and what is scheduled for a later step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from launchhelm.records import Command, Outcome
from tests.support.office import Office, offer
from tests.support.runs import empty_run, send

LATER: dict[str, Any] = {"name": "set_lr", "payload": {"lr": 0.5}, "first_step": 100}


@pytest.fixture
def office(tmp_path: Path) -> Office:
    return Office(empty_run(tmp_path))


def cancel(office: Office, id_: str, **fields: Any) -> Command:
    return send(office.run, "run:cancel", {"id": id_}, **fields)


def told(office: Office, command: Command) -> tuple[str, str]:
    outcome = office.outcome(command.id)
    return outcome.state, outcome.code


def test_a_command_that_waits_is_cancelled_and_never_acts(office: Office) -> None:
    waiting = send(office.run, **LATER)
    assert office.take() is None
    order = cancel(office, waiting.id, reason="wrong run")
    assert office.take(step=200) is None
    assert told(office, waiting) == ("cancelled", "cancelled")
    assert office.outcome(waiting.id).message.endswith("wrong run")
    outcome = office.outcome(order.id)
    assert (outcome.state, outcome.applied_on, outcome.of) == ("applied", 1, 1)
    office.desk.poll()
    assert office.files() == []


def test_what_is_cancelled_before_rank_0_looks_is_cancelled_however_the_files_are_named(
    office: Office,
) -> None:
    first = send(office.run, "set_lr", {"lr": 1}, id="b")
    cancel(office, "b", id="a")
    second = send(office.run, "set_lr", {"lr": 2}, id="c")
    cancel(office, "c", id="d")
    assert office.take() is None
    assert told(office, first)[0] == told(office, second)[0] == "cancelled"


def test_a_loop_that_passes_no_safe_point_holds_no_order_up(office: Office) -> None:
    office.clock.turn(600)
    waiting = send(office.run, "set_lr", {"lr": 1})
    office.desk.poll()
    assert len(office.files()) == 1
    cancel(office, waiting.id)
    office.desk.poll()
    assert told(office, waiting) == ("cancelled", "cancelled")


def test_what_has_begun_or_ended_or_never_was_cannot_be_cancelled(office: Office) -> None:
    sent = send(office.run, "set_lr", {"lr": 1})
    taken = office.take()
    assert taken == sent
    late = cancel(office, sent.id)
    office.desk.poll()
    assert told(office, late) == ("rejected", "too_late")
    office.desk.conclude(taken, Outcome(sent.id, "applied"))
    later = cancel(office, sent.id)
    unknown = cancel(office, "nothing")
    office.desk.poll()
    assert office.outcome(later.id).message == "Too late: it was applied."
    assert told(office, unknown) == ("rejected", "unknown_command")
    assert office.outcome(sent.id).state == "applied"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"payload": {}}, "local_validation"),
        ({"payload": {"id": 7}}, "local_validation"),
        ({"first_step": 3}, "local_validation"),
        ({"for_attempt": 9}, "attempt_over"),
    ],
)
def test_an_order_that_does_not_fit_is_refused(
    office: Office, fields: dict[str, Any], code: str
) -> None:
    order = send(office.run, **{"name": "run:cancel", "payload": {"id": "x"}, **fields})
    office.desk.poll()
    assert told(office, order) == ("rejected", code)


def test_nothing_acts_while_the_controls_are_frozen(office: Office) -> None:
    scheduled = send(office.run, **LATER)
    assert office.take() is None
    send(office.run, "run:freeze", {}, reason="measuring")
    office.desk.poll()
    refused = send(office.run, "set_lr", {"lr": 2})
    assert office.take() is None
    assert told(office, refused) == ("rejected", "frozen")
    assert office.outcome(refused.id).message.endswith("measuring")
    send(office.run, "run:unfreeze", {})
    assert office.take() is None
    assert office.take(step=100) == scheduled


def test_a_freeze_holds_in_the_next_attempt_until_it_is_undone(
    office: Office,
) -> None:
    send(office.run, "run:freeze", {})
    office.desk.poll()
    again = Office(office.run, attempt=2)
    refused = send(office.run, "set_lr", {"lr": 2})
    assert again.take() is None
    assert told(again, refused) == ("rejected", "frozen")
    send(office.run, "run:unfreeze", {})
    again.desk.poll()
    third = Office(office.run, attempt=3)
    sent = send(office.run, "set_lr", {"lr": 3})
    assert third.take() == sent


def test_a_command_for_a_far_step_waits_in_the_inbox_for_whichever_attempt_comes_there(
    office: Office,
) -> None:
    office.take(step=0)
    office.clock.turn(10)
    office.take(step=10)  # One step a second: step 100 is a minute and a half away.
    far = send(office.run, **LATER)
    assert office.take(step=11) is None
    assert [name[:4] for name in office.files()] == ["new."]
    again = Office(office.run, attempt=2)
    assert again.take(step=90) is None
    assert again.take(step=100) == far


def test_what_waits_in_the_inbox_expires_when_the_loop_passes_its_last_step(
    office: Office,
) -> None:
    for step in (0, 10):
        office.take(step=step)
        office.clock.turn(10)
    sent = send(office.run, **LATER, last_step=110)
    assert office.take(step=20) is None
    assert [name[:4] for name in office.files()] == ["new."]
    assert office.take(step=500) is None
    office.clock.turn(10)
    assert office.take(step=500) is None
    assert told(office, sent) == ("expired", "expired")


def test_a_step_that_has_passed_or_is_skipped_holds_no_command_up(office: Office) -> None:
    passed = send(office.run, "set_lr", {"lr": 1}, id="a", first_step=3)
    between = send(office.run, "set_lr", {"lr": 2}, id="b", first_step=15)
    assert office.take(step=10) == passed
    assert office.take(step=10) is None
    assert office.take(step=20) == between


def test_two_who_both_say_what_they_saw_change_a_value_once(office: Office) -> None:
    office.desk.values = lambda: {"lr": [0.1]}
    first = send(office.run, "set_lr", {"lr": 0.05}, expected={"lr": [0.1]})
    second = send(office.run, "set_lr", {"lr": 0.05}, expected={"lr": [0.1]})
    taken = office.take()
    assert taken is not None and taken.id in (first.id, second.id)
    office.desk.values = lambda: {"lr": [0.05]}
    office.desk.conclude(taken, Outcome(taken.id, "applied"))
    assert office.take() is None
    other = second if taken.id == first.id else first
    assert told(office, other) == ("rejected", "changed_meanwhile")


class Steered:
    """A desk whose control `set_lr` is changed and changed back, command by command."""

    def __init__(self, office: Office) -> None:
        self.office = office
        self.now = 1.0

    def apply(self, value: float, *, reverts: str = "") -> str:
        """Have a command applied, and return its id."""
        send(self.office.run, "set_lr", {"lr": value}, reverts=reverts)
        taken = self.office.take()
        assert taken is not None
        changes = {"set_lr": {"old": self.now, "new": value}}
        self.office.desk.conclude(taken, Outcome(taken.id, "applied", changes=changes))
        self.now = value
        return taken.id

    def is_refused(self, reverts: str) -> bool:
        """Send what undoes a command, and tell whether the desk refuses it; it is not applied."""
        sent = send(self.office.run, "set_lr", {"lr": 9}, reverts=reverts)
        taken = self.office.take()
        if taken is not None:
            self.office.desk.conclude(taken, Outcome(taken.id, "rejected"))
            return False
        return told(self.office, sent) == ("rejected", "changed_meanwhile")


def test_a_revert_is_refused_once_another_command_changed_the_control(office: Office) -> None:
    office.desk.register(offer("other"))
    steered = Steered(office)
    first = steered.apply(2)
    send(office.run, "other", {"lr": 1})
    other = office.take()
    assert other is not None
    office.desk.conclude(other, Outcome(other.id, "applied"))
    assert not steered.is_refused(first)
    steered.apply(3)
    assert steered.is_refused(first)


def test_a_command_and_what_undid_it_cancel_out(office: Office) -> None:
    steered = Steered(office)
    first, second = steered.apply(2), steered.apply(3)
    undone = steered.apply(2, reverts=second)
    assert steered.is_refused(second)
    assert not steered.is_refused(first) and not steered.is_refused(undone)
    again = steered.apply(3, reverts=undone)  # A revert of a revert: the second stands again.
    assert steered.is_refused(first) and steered.is_refused(undone)
    assert not steered.is_refused(second) and not steered.is_refused(again)
    steered.apply(2, reverts=again)
    last = steered.apply(1, reverts=first)
    assert steered.is_refused(first) and steered.is_refused(undone)
    assert not steered.is_refused(last)


def test_what_undoes_something_else_than_it_says_is_a_change_of_its_own(office: Office) -> None:
    steered = Steered(office)
    first, second = steered.apply(2), steered.apply(3)
    steered.apply(7, reverts=second)
    assert steered.is_refused(first)


def test_of_an_earlier_attempt_the_sender_knows_what_stands_until_something_stands_here(
    office: Office,
) -> None:
    steered = Steered(office)
    assert not steered.is_refused("earlier")
    mine = steered.apply(2)
    assert steered.is_refused("earlier")
    steered.apply(1, reverts=mine)
    steered.apply(0, reverts="earlier")
    assert steered.is_refused("earlier") and not steered.is_refused("earlier still")


def test_a_revert_that_was_given_before_a_state_was_restored_is_refused(office: Office) -> None:
    steered = Steered(office)
    first = steered.apply(2)
    late = send(office.run, "set_lr", {"lr": 1}, reverts=first)
    office.desk.poll()
    office.desk.restored("set_lr")
    assert office.take() is None
    assert told(office, late) == ("rejected", "changed_meanwhile")
    office.clock.turn(1.0)
    assert not steered.is_refused("what the sender knows to stand")
