"""The coordinator's desk: from a file in the inbox to exactly one outcome."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from launchhelm.models import opaque_schema
from launchhelm.records import CANCEL, Command, Outcome
from launchhelm.store import inbox
from launchhelm.store.inbox import Inbox
from launchhelm.store.manifest import Attempt, take_attempt
from tests.support.journals import final_outcomes, records
from tests.support.office import Office, offer
from tests.support.runs import TurnedClock, empty_run, running, send, until


@pytest.fixture
def office(tmp_path: Path) -> Office:
    return Office(empty_run(tmp_path))


def test_a_command_is_claimed_then_applying_then_applied(office: Office) -> None:
    sent = send(
        office.run,
        "set_lr",
        {"lr": 0.5},
        issued_by="ann",
        reason="too high",
        first_step=2,
        last_step=9,
    )
    taken = office.take()
    assert taken == sent
    assert office.desk.applying(taken, step=7).durable
    office.desk.conclude(taken, Outcome(taken.id, "applied", applied_at={"step": 7}))
    assert office.states(sent.id) == ["claimed", "applying", "applied"]
    outcome = office.outcome(sent.id)
    assert (outcome.name, outcome.issued_by, outcome.reason) == ("set_lr", "ann", "too high")
    assert outcome.owner
    [claimed, *_] = records(office.run, "oc")
    assert claimed.body["payload"] == {"lr": 0.5}
    assert (claimed.body["first_step"], claimed.body["last_step"]) == (2, 9)
    office.desk.poll()
    assert office.files() == []


def test_nothing_is_handed_out_before_its_claim_is_durable(office: Office) -> None:
    send(office.run, "set_lr", {"lr": 0.5})
    office.recorder.is_slow = True
    assert office.take() is None
    assert not office.desk.pending("after_step")
    office.recorder.catch_up()
    assert office.desk.pending("after_step")
    assert office.desk.take("after_step", step=7) is not None


def test_each_safe_point_has_its_own_queue(office: Office) -> None:
    office.desk.register(offer("save", "after_epoch", input_schema=opaque_schema()))
    first = send(office.run, "save", {}, id="a")
    second = send(office.run, "set_lr", {"lr": 0.1}, id="b")
    assert office.take("after_step") == second
    assert office.take("after_epoch") == first


@pytest.mark.parametrize(
    ("fields", "state", "code"),
    [
        ({"payload": {"lr": -1}}, "rejected", "local_validation"),
        ({"payload": {"rate": 1}}, "rejected", "local_validation"),
        ({"name": "gone"}, "rejected", "handler_unavailable_or_changed"),
        ({"last_step": 6}, "expired", "expired"),
        ({"expected": {"lr": [9.0]}}, "rejected", "changed_meanwhile"),
        ({"for_attempt": 3}, "rejected", "attempt_over"),
    ],
)
def test_a_command_that_may_not_act_is_concluded_and_never_handed_out(
    office: Office, fields: dict[str, Any], state: str, code: str
) -> None:
    office.desk.values = lambda: {"lr": [0.1]}
    sent = send(office.run, **{"name": "set_lr", "payload": {"lr": 1}, **fields})
    office.clock.turn(0.1)
    assert office.take() is None
    outcome = office.outcome(sent.id)
    assert (outcome.state, outcome.code) == (state, code)
    office.desk.poll()
    assert office.files() == []


def test_a_command_waits_for_its_first_step_and_holds_up_no_other(office: Office) -> None:
    later = send(office.run, "set_lr", {"lr": 1}, id="a", first_step=9)
    now = send(office.run, "set_lr", {"lr": 2}, id="b")
    assert office.take(step=7) == now
    assert office.take(step=8) is None
    assert office.take(step=9) == later


def test_commands_for_steps_act_in_the_order_of_those_steps(office: Office) -> None:
    for id_, first in (("c", 9), ("d", None), ("b", 8), ("a", 7)):
        send(office.run, "set_lr", {"lr": 1}, id=id_, first_step=first)
    taken = [office.take(step=10) for _ in range(4)]
    assert [it.first_step for it in taken if it is not None] == [None, 7, 8, 9]


def test_a_command_that_is_recorded_before_its_turn_can_follow_and_still_be_cancelled(
    office: Office,
) -> None:
    first, second, third = (
        send(office.run, "set_lr", {"lr": 1}, id=id_, first_step=9) for id_ in "abc"
    )
    assert office.take(step=9) == first
    assert not office.desk.follows("after_step", 9)
    office.desk.prepare("after_step", 9)
    office.desk.prepare("after_step", 9)
    assert office.states(second.id) == ["claimed", "applying"]
    assert office.desk.follows("after_step", 9) and not office.desk.follows("after_step", 8)
    send(office.run, CANCEL, {"id": second.id}, id="order")
    office.desk.poll()
    assert office.states(second.id) == ["claimed", "applying", "cancelled"]
    taken = office.desk.take("after_step", step=9, recorded=True)
    assert taken == third and office.desk.applying(third).durable
    assert office.states(third.id) == ["claimed", "applying"]
    assert office.desk.take("after_step", step=9, recorded=True) is None


def test_the_controls_own_check_may_refuse(office: Office) -> None:
    def even(payload: Mapping[str, Any]) -> None:
        if payload["lr"] % 2:
            raise ValueError("lr must be even")

    office.desk.register(offer(), validate=even)
    odd = send(office.run, "set_lr", {"lr": 1}, id="a")
    even_one = send(office.run, "set_lr", {"lr": 2}, id="b")
    assert office.take() == even_one
    assert office.outcome(odd.id).message == "lr must be even"


def test_an_unreadable_file_has_an_outcome_too(office: Office) -> None:
    (office.run / "control" / f"new.{0:020d}.c1.json").write_text("{")
    assert office.take() is None
    assert office.outcome("c1").code == "malformed"
    office.desk.poll()
    assert office.files() == []


def test_a_command_that_arrives_again_is_noted_and_not_run_again(office: Office) -> None:
    sent = send(office.run, "set_lr", {"lr": 0.5})
    taken = office.take()
    assert taken is not None
    for _ in range(2):
        send(office.run, "set_lr", {"lr": 0.5}, id=sent.id)
        assert office.take() is None
        if _ == 0:
            office.desk.applying(taken)
            office.desk.conclude(taken, Outcome(taken.id, "applied"))
    assert office.states(sent.id) == ["claimed", "applying", "applied"]
    assert len([r for r in records(office.run, "ev") if r.body["type"] == "notice"]) == 2
    office.desk.poll()
    assert office.files() == []


def test_a_second_outcome_is_counted_and_not_recorded(office: Office) -> None:
    send(office.run, "set_lr", {"lr": 0.5})
    taken = office.take()
    assert taken is not None
    office.desk.conclude(taken, Outcome(taken.id, "applied"))
    office.desk.conclude(taken, Outcome(taken.id, "rejected"))
    assert office.outcome(taken.id).state == "applied"
    assert office.recorder.faults["second outcome"] == 1


def test_nothing_is_claimed_while_the_loop_stands_still(office: Office) -> None:
    office.clock.turn(61)
    send(office.run, "set_lr", {"lr": 0.5})
    office.desk.poll()
    assert office.files()[0].startswith("new.")
    office.desk.pending("after_step")
    office.desk.poll()
    assert office.files()[0].startswith("got.")


def test_a_loop_that_waits_on_purpose_still_takes_commands(office: Office) -> None:
    office.clock.turn(61)
    office.desk.paused = True
    send(office.run, "set_lr", {"lr": 0.5})
    office.desk.poll()
    assert office.files()[0].startswith("got.")


def test_what_waits_too_long_expires_without_a_safe_point(office: Office) -> None:
    sent = send(office.run, "set_lr", {"lr": 0.5}, valid_s=100, first_step=10**6)
    assert office.take() is None
    office.clock.turn(101)
    office.desk.poll()
    assert office.outcome(sent.id).state == "expired"


def test_a_frozen_process_looks_for_a_newer_attempt_before_it_acts(office: Office) -> None:
    send(office.run, "set_lr", {"lr": 0.5}, id="c1")
    office.desk.poll()
    office.clock.turn(30)
    assert office.desk.take("after_step", step=7) is None
    take_attempt(office.run, Attempt(0, 0, {}, 0.0, 1, "elsewhere"))
    assert office.take() is None
    assert office.outcome("c1").code == "runtime_restart"


def test_the_end_of_a_run_concludes_what_is_open(office: Office) -> None:
    for id_ in ("a", "b"):
        send(office.run, "set_lr", {"lr": 0.5}, id=id_)
    begun = office.take()
    assert begun is not None
    office.desk.applying(begun)
    office.desk.close()
    assert {id_: office.outcome(id_).state for id_ in ("a", "b")} == {
        "a": "outcome_unknown",
        "b": "rejected",
    }
    office.desk.sweep()
    assert office.files() == []


def test_a_waiting_command_goes_to_the_next_attempt(office: Office) -> None:
    office.clock.turn(61)
    sent = send(office.run, "set_lr", {"lr": 0.5})
    office.desk.poll()
    following = Office(office.run, 2, office.clock)
    assert following.take() == sent


@pytest.mark.parametrize(
    ("applying", "state"), [(False, "rejected"), (True, "outcome_unknown")], ids=["no", "yes"]
)
def test_what_a_dead_coordinator_left_open_is_closed_by_the_next(
    office: Office, applying: bool, state: str
) -> None:
    sent = send(office.run, "set_lr", {"lr": 0.5})
    taken = office.take()
    assert taken is not None
    if applying:
        office.desk.applying(taken)
    following = Office(office.run, 2, office.clock)
    assert following.take() is None
    office.clock.turn(16)
    assert following.take() is None
    outcome = following.outcome(sent.id)
    assert (outcome.state, outcome.code) == (state, "runtime_restart")
    following.desk.poll()
    assert following.files() == []


def test_a_file_taken_and_never_recorded_is_closed_with_its_name(office: Office) -> None:
    sent = send(office.run, "set_lr", {"lr": 0.5}, issued_by="ann")
    Inbox(office.run, office.writer).poll(may_claim=True)
    following = Office(office.run, 2, office.clock)
    following.take()
    office.clock.turn(16)
    following.take()
    outcome = following.outcome(sent.id)
    assert (outcome.state, outcome.name, outcome.issued_by) == ("rejected", "set_lr", "ann")


def test_a_listing_that_is_slow_is_asked_for_less_often(office: Office) -> None:
    class Slow(TurnedClock):
        def monotonic(self) -> float:
            self.at += 0.3
            return self.at

    office.desk._inbox = Inbox(office.run, office.writer, clock=Slow())
    waits = [office.desk.poll() for _ in range(5)]
    assert waits == [1.0, 2.0, 4.0, 5.0, 5.0]


def test_an_inbox_that_cannot_be_listed_is_counted_and_tried_again(office: Office) -> None:
    (office.run / "control").rmdir()
    assert office.desk.poll() == 1.0
    assert office.recorder.faults["command reader"] == 1
    (office.run / "control").mkdir()
    assert office.desk.poll() == 0.5


def test_registering_again_replaces(office: Office) -> None:
    office.desk.register(offer(input_schema=opaque_schema()))
    sent = send(office.run, "set_lr", {"anything": 1})
    assert office.take() == sent
    assert [r.body["name"] for r in records(office.run, "cap")] == ["set_lr", "set_lr"]


def test_a_participant_has_at_most_64_safe_points(office: Office) -> None:
    for index in range(64):
        office.desk.advertise(f"p{index}")
    with pytest.raises(ValueError, match="64"):
        office.desk.advertise("one_more")
    office.desk.advertise("p0")


PAGE = Path(__file__).resolve().parents[2] / "docs" / "run-directory.md"


def documented(what: str) -> set[str]:
    """Return the fields of the table of that name in docs/run-directory.md."""
    table = PAGE.read_text("utf-8").partition(f"| field of {what} | meaning |\n")[2]
    return set(re.findall(r"^\| `(\w+)` \|", table.partition("\n\n")[0], flags=re.M))


def test_every_field_of_a_command_and_of_its_outcome_is_documented() -> None:
    full = Command(
        "c", "n", {}, "ann", 1.0, "why", 7, 1, first_step=1, last_step=2, expected={"lr": 1}
    )
    body = json.loads(
        inbox.encode(dataclasses.replace(full, server={"id": "s"}, reverts="a", replays="b"))
    )
    assert documented("a command") == set(body)
    names = {each.name for each in dataclasses.fields(Outcome)} - {"command"} | {"cmd"}
    assert documented("an outcome") == names


def test_a_command_written_by_hand_as_documented_is_answered(tmp_path: Path) -> None:
    text = PAGE.read_text("utf-8").partition("```json\n")[2].partition("```")[0]
    rates: list[float] = []
    with running(tmp_path) as run:
        run.command("after_step", name="set_rate")(take_rate(rates))
        hidden = run.directory / "control" / ".by-hand"
        hidden.write_text(text)
        hidden.rename(hidden.with_name("new.00000000000000000000.halve-1.json"))
        until(lambda: run.sync("after_step", step=99) or list(hidden.parent.glob("got.*")))
        assert rates == []
        until(lambda: run.sync("after_step", step=100))
    assert rates == [0.5]
    [outcome] = final_outcomes(run.directory)["halve-1"]
    assert (outcome.state, outcome.name, outcome.reason) == ("applied", "set_rate", "noisy")
    [claimed, *_] = records(run.directory, "oc")
    assert set(claimed.body) <= documented("an outcome")
    assert claimed.body["first_step"] == 100


def take_rate(rates: list[float]) -> Callable[[float], None]:
    def set_rate(value: float) -> None:
        rates.append(value)

    return set_rate
