"""The exchange on one rank, its pace, and its packing: no process group needed."""

from __future__ import annotations

import time
from typing import Any

import pytest

from launchhelm.records import Command
from launchhelm.torch import _exchange
from launchhelm.torch._errors import DivergedStateError
from launchhelm.torch._exchange import Exchange
from launchhelm.torch._judge import (
    judge_results,
    judge_votes,
)
from launchhelm.torch._messages import (
    INLINE_BYTES,
    Applied,
    Cause,
    Checked,
    Go,
    Kind,
    Lost,
    Off,
    Packet,
    Raise,
    Restore,
    Row,
    Settle,
    Settled,
    Status,
)
from launchhelm.torch._pace import Pace
from launchhelm.torch._protocol import Machine
from launchhelm.torch._wire import pack, pack_row, unpack, unpack_row
from tests.support.scripted import ScriptedDesk, ScriptedPlant, Shown, command


class Alone:
    """A trainer of one rank."""

    def __init__(self, *commands: Any, durable_after_s: float = 0.0, **options: Any) -> None:
        self.desk = ScriptedDesk(commands, durable_after_s=durable_after_s)
        self.plant = ScriptedPlant(0)
        self.notices: list[str] = []
        self.exchange = Exchange(
            links=None,
            desk=self.desk,
            plant=self.plant,
            progress=Shown(),
            notice=self.notices.append,
            **options,
        )

    def steps(self, first: int, last: int) -> None:
        for step in range(first, last + 1):
            self.exchange.on_call(step)


def test_one_rank_applies_a_command_as_soon_as_its_record_is_durable() -> None:
    alone = Alone(command("lr", value=0.05))
    alone.steps(3, 6)
    (outcome,) = alone.desk.outcomes
    assert outcome.state == "applied"
    assert (outcome.applied_on, outcome.of) == (1, 1)
    assert outcome.applied_at == {"step": 4}
    assert outcome.changes == {"lr": {"old": 0.1, "new": 0.05}}
    assert alone.plant.held["lr"] == 0.05


def test_nothing_changes_before_the_record_is_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = Alone(command("lr", value=0.05), durable_after_s=1e9)
    alone.steps(1, 50)
    assert alone.plant.held["lr"] == 0.1
    assert not alone.desk.outcomes
    monkeypatch.setattr(_exchange, "RECORD_LIMIT_S", -1.0)
    alone.steps(51, 52)
    assert [(one.state, one.code) for one in alone.desk.outcomes] == [
        ("rejected", "storage_unavailable")
    ]
    assert alone.plant.held["lr"] == 0.1


@pytest.mark.parametrize("durable_after_s", [0.0, 0.02])
def test_a_command_for_a_later_step_is_applied_at_just_that_step(durable_after_s: float) -> None:
    alone = Alone(command("lr", first_step=60, value=0.05), durable_after_s=durable_after_s)
    for step in range(1, 70):
        time.sleep(0.002)
        alone.exchange.on_call(step)
    (outcome,) = alone.desk.outcomes
    assert outcome.applied_at == {"step": 60}


def test_commands_for_one_step_and_for_the_next_ones_are_applied_at_just_those_steps() -> None:
    wanted = [("lr", 40), ("x", 40), ("lr", 40), ("lr", 41), ("x", 42), ("x", 44)]
    alone = Alone(
        *(Command(f"{n}", name, {"value": n + 1.0}, first_step=first)
          for n, (name, first) in enumerate(wanted))
    )  # fmt: skip
    for step in range(1, 50):
        time.sleep(0.003)
        alone.exchange.on_call(step)
    at = [(one.name, one.applied_at["step"]) for one in alone.desk.outcomes]
    assert at == wanted
    assert alone.plant.held == {"lr": 4.0, "x": 6.0}


def test_of_very_many_commands_for_one_step_a_limited_number_acts_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_exchange, "MOST_AT_ONCE", 3)
    commands = [Command(f"{n}", "x", {"value": float(n)}, first_step=20) for n in range(9)]
    alone = Alone(*commands)
    for step in range(1, 40):
        time.sleep(0.003)
        alone.exchange.on_call(step)
    at = [one.applied_at["step"] for one in alone.desk.outcomes]
    assert len(at) == 9 and at == sorted(at) and at.count(20) == 3


def test_a_value_that_changed_after_the_command_was_taken_refuses_it() -> None:
    sent = Command("one", "lr", {"value": 0.5}, first_step=30, expected={"lr": 0.1})
    alone = Alone(sent)
    for step in range(1, 40):
        time.sleep(0.003)
        if step == 30:
            alone.plant.held["lr"] = 0.2
        alone.exchange.on_call(step)
    (outcome,) = alone.desk.outcomes
    assert (outcome.state, outcome.code) == ("rejected", "changed_meanwhile")
    assert outcome.message == "lr was 0.1 and is 0.2 now."
    assert alone.plant.held["lr"] == 0.2


def test_a_step_that_does_not_come_is_waited_for_however_calls_and_steps_go() -> None:
    alone = Alone(command("lr", first_step=20, value=0.05))
    for step in (1, 2, 3, *[19] * 40):
        alone.exchange.on_call(step)
    assert not alone.desk.outcomes
    alone.exchange.on_call(25)
    alone.exchange.on_call(26)
    assert [one.applied_at["step"] for one in alone.desk.outcomes] in ([25], [26])


def test_a_refused_command_changes_nothing_and_says_why() -> None:
    alone = Alone(command("lr", value=-1))
    alone.steps(1, 3)
    (outcome,) = alone.desk.outcomes
    assert (outcome.state, outcome.code) == ("rejected", "local_validation")
    assert outcome.message == "-1 is out of range"
    assert not alone.desk.recorded


def test_a_failed_apply_is_taken_back_and_raised_at_every_later_call() -> None:
    alone = Alone(command("lr", value=0.05, fail=0, how="half"))
    with pytest.raises(DivergedStateError) as caught:
        alone.steps(1, 5)
    error = caught.value
    assert (error.capability, error.failures) == ("lr", [(0, "RuntimeError: half way")])
    assert (error.applied_on, error.of, error.rolled_back, error.state_consistent) == (
        0, 1, True, True,
    )  # fmt: skip
    assert alone.plant.held["lr"] == 0.1
    (outcome,) = alone.desk.outcomes
    assert (outcome.state, outcome.code) == ("outcome_unknown", "DivergedStateError")
    assert outcome.rolled_back is True
    for step in (6, 7):
        with pytest.raises(DivergedStateError):
            alone.exchange.on_call(step)
    alone.exchange.finish()
    alone.exchange.on_call(8)


def test_with_continue_a_failed_apply_warns_and_control_goes_on() -> None:
    alone = Alone(
        command("lr", 1, value=0.05, fail=0, how="half"),
        command("lr", 5, value=0.02),
        on_partial_failure="continue",
    )
    with pytest.warns(RuntimeWarning, match="half way"):
        alone.steps(1, 10)
    assert [one.state for one in alone.desk.outcomes] == ["outcome_unknown", "applied"]
    assert alone.plant.held["lr"] == 0.02


def test_control_every_counts_calls_and_not_step_numbers() -> None:
    alone = Alone(command("lr", 1, value=0.05), control_every=4)
    for step in (1, 3, 5, 7, 9, 11, 13, 15):
        alone.exchange.on_call(step)
    (outcome,) = alone.desk.outcomes
    assert outcome.applied_at == {"step": 15}


def test_a_command_under_way_when_the_run_ends_is_refused() -> None:
    alone = Alone(command("lr", value=0.05), durable_after_s=1e9)
    alone.steps(1, 2)
    alone.exchange.finish()
    assert [(one.state, one.code) for one in alone.desk.outcomes] == [("rejected", "run_ended")]


def test_a_desk_that_fails_is_told_once_and_never_raises_into_training() -> None:
    alone = Alone()
    alone.desk.take = None  # type: ignore[method-assign, assignment]
    alone.steps(1, 3)
    assert len(alone.notices) == 1
    assert "could not be taken" in alone.notices[0]


def test_a_mistake_of_ours_turns_control_off_and_never_raises_into_training() -> None:
    alone = Alone(command("lr", 1, value=0.05), command("lr", 5, value=0.01))
    alone.desk.applying = None  # type: ignore[method-assign, assignment]
    alone.steps(1, 9)
    assert not alone.exchange.status.on
    assert [one.state for one in alone.desk.outcomes] == ["rejected", "rejected"]
    assert len(alone.notices) == 1
    assert "internal error" in alone.notices[0]


def test_an_oversized_command_is_refused() -> None:
    alone = Alone(command("lr", value=0.05, note="x" * 70_000))
    alone.steps(1, 2)
    assert [one.code for one in alone.desk.outcomes] == ["too_large"]


def test_the_pace_at_most_doubles_and_heeds_the_slowest_step() -> None:
    pace, now = Pace(), 0.0
    for _ in range(65):
        pace.ticks.append(now)
        now += 0.005
    seen = [pace.next_interval() for _ in range(10)]
    assert seen[:4] == [2, 4, 8, 16]
    assert seen[-1] in (99, 100, 101)
    assert pace.soon() == 4
    pace.ticks.append(now + 2.0)
    assert pace.next_interval() == 2
    for _ in range(65):
        pace.ticks.append(now)
        now += 1e-5
    assert [pace.next_interval() for _ in range(12)][-1] == 1000


def test_one_long_step_and_a_pause_do_not_change_what_a_step_usually_takes() -> None:
    pace, now = Pace(), 0.0
    for call in range(60):
        now += 8.0 if call == 30 else 0.03
        pace.ticks.append(now)
        if call == 40:
            pace.rest()
    assert pace.usual() == pytest.approx(0.03)


def test_packets_and_rows_survive_packing() -> None:
    packet = Packet(7, Kind.APPLY, 1 << 40, 3, 83, 1 << 41, 12)
    assert unpack(pack(packet)) == (packet, b"")
    assert unpack(pack(packet, b"x" * INLINE_BYTES)) == (packet, b"x" * INLINE_BYTES)
    assert unpack(bytes(len(pack(packet)))) is None
    row = Row(Status.FAILED, 1 << 40, -5, (1 << 56), "Fehler: größer als 1 " + "ü" * 300)
    assert unpack_row(pack_row(Row(Status.OK, 5, 5, more=True))).more
    back = unpack_row(pack_row(row))
    assert (back.status, back.call, back.step, back.digest) == (
        row.status, row.call, row.step, row.digest,
    )  # fmt: skip
    assert row.text.startswith(back.text)
    assert 250 <= len(back.text.encode()) <= 256


def test_ranks_at_different_steps_refuse_a_command_by_name() -> None:
    verdict = judge_votes([Row(Status.OK, 5, 50), Row(Status.OK, 5, 51)])
    assert verdict is not None
    assert verdict.code == "steps_differ"
    assert "rank 1 at step 51 (call 5)" in verdict.message


def test_the_odd_rank_is_the_one_that_failed() -> None:
    rows = [Row(Status.OK, 5, 5, digest, f"[{digest}]") for digest in (2, 1, 1, 1)]
    verdict = judge_results(rows)
    assert verdict.state == "outcome_unknown"
    assert verdict.failures == ((0, "ReadBack: holds [2], unlike the other ranks"),)
    assert verdict.applied_on == 3


GONE = Lost(Cause("dead", (0,), "the process of rank 0 is gone"))


def peer_that_accepted() -> Machine:
    """Bring a peer to the wait for the votes, its own being an acceptance."""
    machine = Machine(rank=1, size=2)
    machine.begin(2, 2)
    machine.feed(Packet(0, Kind.COMMAND, 3, command=1, size=9))
    machine.feed(Checked(""))
    return machine


def test_a_peer_is_in_doubt_from_its_accepting_vote_on() -> None:
    machine = peer_that_accepted()
    assert machine.feed(GONE) == Off(GONE.cause, in_doubt=True)
    assert isinstance(machine.feed(None), Settle)
    assert isinstance(machine.feed(Settled(never=False)), Raise)


def test_the_coordinators_word_that_nothing_was_announced_ends_the_doubt() -> None:
    machine = peer_that_accepted()
    machine.feed(GONE)
    machine.feed(None)
    assert machine.feed(Settled(never=True)) == Go()
    assert machine.divergence is None


def test_a_peer_that_applied_takes_it_back_when_the_results_are_lost() -> None:
    machine = peer_that_accepted()
    machine.feed((Row(Status.OK, 2, 2), Row(Status.OK, 2, 2)))
    machine.begin(3, 3)
    machine.feed(Packet(1, Kind.APPLY, 9, command=1, apply_call=4))
    machine.begin(4, 4)
    machine.feed(Applied(Status.OK, changed=True))
    assert machine.feed(GONE) == Off(GONE.cause, in_doubt=True)
    assert machine.feed(None) == Restore()
    assert machine.feed("") == Settle(1, applied=True, wait=False)
    assert isinstance(machine.feed(Settled(never=True)), Raise)


def test_a_peer_that_refused_is_not_in_doubt() -> None:
    machine = Machine(rank=1, size=2)
    machine.begin(2, 2)
    machine.feed(Packet(0, Kind.COMMAND, 3, command=1, size=9))
    machine.feed(Checked("out of range"))
    assert machine.feed(GONE) == Off(GONE.cause, in_doubt=False)
    assert machine.feed(None) == Go()


def test_another_serial_number_ends_control_without_a_guess() -> None:
    machine = Machine(rank=1, size=2)
    machine.begin(2, 2)
    action = machine.feed(Packet(5, Kind.IDLE, 3))
    assert isinstance(action, Off)
    assert action.cause.kind == "serial"
