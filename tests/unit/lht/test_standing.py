"""What was commanded is looked after: what a restart or a restored state has undone is told.

With `reapply=True` it is commanded again.
"""

from __future__ import annotations

import copy
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import SGD
from torch.optim.lr_scheduler import ExponentialLR, LambdaLR, LRScheduler

import launchhelm.torch as lht
from launchhelm import views
from launchhelm._wording import outcome_text
from launchhelm.records import FREEZE, Command, Outcome
from launchhelm.store import inbox
from launchhelm.views.around import around_of
from tests.support.journals import final_outcomes, records, series, wait_until
from tests.support.one_rank import on_disk


def make_optimizer(*rates: float) -> SGD:
    groups = [{"params": [torch.nn.Parameter(torch.ones(2))], "lr": rate} for rate in rates]
    return SGD(groups)


def command(trainer: lht.Trainer, id_: str, name: str, **payload: Any) -> Outcome:
    """Send a command, step until it has an outcome, and return that."""
    inbox.send(trainer.run.directory, Command(id_, name, payload))

    def step() -> list[Outcome] | None:
        trainer.step(loss=1)
        return final_outcomes(trainer.run.directory).get(id_)

    (outcome,) = wait_until(step, f"the outcome of {id_}")
    return outcome  # type: ignore[no-any-return]


class Job:
    """One attempt of a script, with a schedule of whatever kind, or with none."""

    def __init__(
        self, root: Path, schedule: str = "", resume: str = "", *, reapply: bool = False
    ) -> None:
        self.trainer = lht.init("undone", state_dir=root, resume=resume, reapply=reapply)
        self.optimizer = make_optimizer(0.1, 0.2)
        self.scheduler: LRScheduler | None = None
        if schedule == "lambda":
            self.scheduler = LambdaLR(self.optimizer, lambda step: 1.0)
        if schedule == "exponential":
            self.scheduler = ExponentialLR(self.optimizer, 0.5)
        self.trainer.watch(torch.nn.Linear(1, 1), self.optimizer, self.scheduler)

    def move(self) -> None:
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()

    def states(self) -> list[dict[str, Any]]:
        """Return what a checkpoint of the script's own would hold."""
        both = (self.optimizer, self.scheduler)
        return copy.deepcopy([each.state_dict() for each in both if each is not None])

    def load(self, states: list[dict[str, Any]]) -> None:
        for each, state in zip((self.optimizer, self.scheduler), states, strict=False):
            assert each is not None
            each.load_state_dict(copy.deepcopy(state))

    @property
    def rates(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def end(self) -> str:
        self.trainer.finish(close_run=False)
        return self.trainer.run.run_id


def undone(job: Job, caplog: pytest.LogCaptureFixture) -> list[str]:
    """Take two steps and return what was said, once in the log and once in the records."""
    caplog.clear()
    job.trainer.step(loss=1)
    job.trainer.step(loss=1)
    logged = [each.message.removeprefix("launchhelm: ") for each in caplog.records]
    number = job.trainer.run.attempt.number
    noticed = [
        each.body["text"]
        for each in records(on_disk(job.trainer), "ev")
        if each.body["type"] == "notice" and each.writer.attempt == number
    ]
    assert logged == noticed
    return logged


def test_a_restart_says_which_live_changes_are_not_in_effect_any_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = Job(tmp_path)
    first.trainer.tunable("gain", 1.0)
    first.trainer.tunable("kept", 1)
    first.trainer.tunable("late", "a")
    rate = command(first.trainer, "one", "lr", scale=0.5)
    gain = command(first.trainer, "two", "set_gain", value=2)
    command(first.trainer, "three", "set_kept", value=5)
    command(first.trainer, "four", "set_late", value="b")
    first.trainer.run.keep({"tunables": {"kept": 5}})
    run_id = first.end()
    for attempt in (2, 3):
        job = Job(tmp_path, resume=run_id)
        job.trainer.tunable("gain", 1.0)
        job.trainer.tunable("kept", 1)
        assert undone(job, caplog) == [
            f"lr is [0.1, 0.2]; [0.05, 0.1] was commanded at step {rate.applied_at['step']} of "
            "attempt 1 and is not in effect any more (reverted by restore or restart). "
            "Send the command again to have it back.",
            f"set_gain is 1; 2 was commanded at step {gain.applied_at['step']} of "
            "attempt 1 and is not in effect any more (reverted by restore or restart). "
            "Send the command again to have it back.",
        ], attempt
        caplog.clear()
        job.trainer.tunable("late", "a")
        job.trainer.step()
        assert "set_late is 'a'; 'b' was commanded" in caplog.text
        job.end()


def test_a_restart_that_loads_a_commanded_rate_without_a_schedule_says_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = Job(tmp_path)
    command(first.trainer, "one", "lr", scale=0.5, group=1)
    second = Job(tmp_path, resume=first.end())
    second.load(first.states())
    assert undone(second, caplog) == []
    second.optimizer.param_groups[1]["lr"] = 0.01  # The script's own, as the run records.
    assert second.trainer._panel is not None
    command(second.trainer, "two", "lr", lr=0.02)
    second.optimizer.param_groups[0]["lr"] = 0.003
    second.trainer._panel.note(second.trainer.global_step)
    third = Job(tmp_path, resume=second.end())
    third.load(second.states())
    assert undone(third, caplog) == []
    third.end()


def test_a_restart_says_that_a_schedule_is_unscaled_again_although_the_rate_was_loaded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = Job(tmp_path, "lambda")
    command(first.trainer, "one", "lr", scale=0.25)
    command(first.trainer, "two", "lr", scale=2)
    run_id = first.end()
    for moves in (0, 1):
        job = Job(tmp_path, "lambda", resume=run_id)
        job.load(first.states())
        for _ in range(moves):
            job.move()
        (said,) = undone(job, caplog)
        rates = "[0.1, 0.2]" if moves else "[0.05, 0.1]"
        assert said.startswith(f"lr is {rates} and its schedule is unscaled; a factor of 0.5 was")
        job.end()


def test_a_schedule_that_goes_on_from_a_loaded_rate_has_lost_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = Job(tmp_path, "exponential")
    command(first.trainer, "one", "lr", scale=0.25)
    first.move()
    run_id = first.end()
    second = Job(tmp_path, "exponential", resume=run_id)
    second.load(first.states())
    second.move()
    assert undone(second, caplog) == []
    second.end()
    third = Job(tmp_path, "exponential", resume=run_id)
    third.move()
    (said,) = undone(third, caplog)
    assert "a factor of 0.25 was commanded" in said
    third.end()


def test_changes_that_were_taken_back_by_command_are_not_missed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = Job(tmp_path, "lambda")
    first.trainer.tunable("gain", 1.0)
    for id_, name, payload in (
        ("one", "lr", {"scale": 0.5}),
        ("two", "lr", {"scale": 2}),
        ("three", "set_gain", {"value": 2}),
        ("four", "set_gain", {"value": 1}),
    ):
        command(first.trainer, id_, name, **payload)
    second = Job(tmp_path, "lambda", resume=first.end())
    second.trainer.tunable("gain", 1.0)
    assert undone(second, caplog) == []
    second.end()


def test_a_run_whose_past_cannot_be_read_trains_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise OSError("gone")

    run_id = Job(tmp_path).end()
    monkeypatch.setattr("launchhelm.torch._standing.past_of", broken)
    with caplog.at_level(logging.CRITICAL):
        second = Job(tmp_path, resume=run_id)
    second.trainer.step(loss=1)
    assert second.trainer.run.recorder.faults["past commands"] == 1
    second.end()


# A state that is restored while the training runs, and commanding again.


def reverted(trainer: lht.Trainer) -> list[dict[str, Any]]:
    """Return the records of what was undone, oldest first."""
    found = records(on_disk(trainer), "effect")
    return [dict(each.body) for each in found if "reverted" in each.body]


def own_of(trainer: lht.Trainer) -> list[Outcome]:
    """Return how the commands of the run's own ended."""
    all_ = [each for ended in final_outcomes(trainer.run.directory).values() for each in ended]
    return [each for each in all_ if each.issued_by == "reapply=True"]


def again(trainer: lht.Trainer, count: int) -> list[Outcome]:
    """Step until so many commands of the run's own have an outcome, and return them in order."""

    def step() -> list[Outcome] | None:
        trainer.step(loss=1)
        own = own_of(trainer)
        return own if len(own) >= count else None

    return wait_until(step, f"{count} commands of the run's own")  # type: ignore[no-any-return]


@pytest.mark.parametrize("schedule", ["", "lambda", "exponential"])
def test_a_state_from_before_a_command_is_told_as_reverted_by_restore(
    tmp_path: Path, schedule: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As a notice, a record, in what is said of the command, and as the rate of the series."""
    job = Job(tmp_path, schedule)
    tr = job.trainer
    before = job.states()
    outcome = command(tr, "one", "lr", scale=0.5)
    tr.step(loss=1)
    job.load(before)
    (said,) = undone(job, caplog)
    what = "[0.1, 0.2]" + (" and its schedule is unscaled" if schedule else "")
    was = "a factor of 0.5" if schedule else "[0.05, 0.1]"
    assert said == (
        f"lr is {what}; {was} was commanded at step {outcome.applied_at['step']} of attempt 1 and "
        "is not in effect any more (reverted by restore). Send the command again to have it back."
    )
    (record,) = reverted(tr)
    assert (record["cmd"], record["name"], record["reverted"]) == ("one", "lr", "restore")
    assert record["values"] == {"lr": [0.1, 0.2]} and record["not_effective"] in said
    assert dict(series(on_disk(tr), "optim/lr/group0"))[record["step"]] == 0.1
    view = views.open_run(on_disk(tr))
    (one,) = view.commands
    assert str(outcome_text(one, around_of(view, command=one))) == (
        f"Applied at step {outcome.applied_at['step']}, not in effect any more: reverted by "
        f"restore, step {record['step']} of attempt 1"
    )
    job.end()


def test_a_state_from_after_a_command_or_without_a_difference_is_not_worth_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job(tmp_path, "lambda")
    job.trainer.tunable("gain", 1.0)
    command(job.trainer, "one", "lr", scale=0.5)
    command(job.trainer, "two", "set_gain", value=2)
    command(job.trainer, "three", "weight_decay", value=0.25)
    job.trainer.step(loss=1)
    states = job.states()
    job.move()
    # The script's own doing after the command, which the load does not change.
    for group in (*job.optimizer.param_groups, *states[0]["param_groups"]):
        group["weight_decay"] = 0.5
    job.load(states)
    assert undone(job, caplog) == []
    assert job.rates == [0.05, 0.1]
    job.end()


@pytest.mark.parametrize("schedule", ["", "lambda", "exponential"])
def test_what_a_restored_state_has_undone_is_commanded_again(tmp_path: Path, schedule: str) -> None:
    job = Job(tmp_path, schedule, reapply=True)
    before = job.states()
    command(job.trainer, "one", "lr", scale=0.5)
    between = job.states()
    command(job.trainer, "two", "lr", scale=0.1, group=1)
    command(job.trainer, "three", "weight_decay", value=0.25)
    job.load(between)
    assert job.rates == [0.05, 0.1]
    rate, decay = again(job.trainer, 2)
    assert job.rates == pytest.approx([0.05, 0.01])
    assert job.optimizer.param_groups[1]["weight_decay"] == 0.25
    assert (rate.state, rate.applied_on, decay.state) == ("applied", 1, "applied")
    change = rate.changes["lr"]
    assert (change["old"], change["new"]) == ([0.05, 0.1], pytest.approx([0.05, 0.01]))
    assert change.get("factors") == (pytest.approx([1.0, 0.1]) if schedule else None)
    assert rate.reason.endswith("of attempt 1, reverted by restore")
    (claimed,) = (
        each.body
        for each in records(on_disk(job.trainer), "oc")
        if each.body["cmd"] == rate.command and each.body["state"] == "claimed"
    )
    assert claimed["replays"] == f"{job.trainer.run.run_id}/two"
    job.load(before)
    # Groups that lost different things get them back by one command.
    assert [each.name for each in again(job.trainer, 4)[2:]] == ["lr", "weight_decay"]
    assert job.rates == pytest.approx([0.05, 0.01])
    assert job.trainer.run.recorder.faults == {}
    for _ in range(3):  # Nothing is commanded a second time.
        job.trainer.step(loss=1)
    assert len(again(job.trainer, 4)) == 4
    job.end()


@pytest.mark.parametrize("schedule", ["", "lambda", "exponential"])
def test_a_restart_with_reapply_commands_again_what_its_checkpoint_has_not(
    tmp_path: Path, schedule: str
) -> None:
    """Also of two commands the newer one only; and the attempt after that has nothing to add."""
    first = Job(tmp_path, schedule)
    first.trainer.tunable("gain", 1.0)
    command(first.trainer, "one", "lr", scale=0.5)
    saved = first.states()
    command(first.trainer, "two", "lr", scale=0.5)
    command(first.trainer, "three", "set_gain", value=3)
    command(first.trainer, "four", "grad_clip", max_norm=2.0)
    run_id = first.end()

    second = Job(tmp_path, schedule, resume=run_id, reapply=True)
    gain = second.trainer.tunable("gain", 1.0)
    second.load(saved)
    done = {each.name: each for each in again(second.trainer, 3)}
    assert done.keys() == {"lr", "set_gain", "grad_clip"}
    assert {each.state for each in done.values()} == {"applied"}
    second.move()
    assert second.rates == pytest.approx(
        [0.0125, 0.025] if schedule == "exponential" else [0.025, 0.05]
    )
    assert (gain.value, second.trainer.grad_clip) == (3.0, 2.0)
    saved = second.states()
    second.end()

    if schedule != "lambda":  # Whose states do not hold the factor.
        third = Job(tmp_path, schedule, resume=run_id, reapply=True)
        third.trainer.run.keep({})
        third.load(saved)
        third.trainer.step(loss=1)
        assert [each["name"] for each in reverted(third.trainer)[-1:]] == ["grad_clip"]
        third.end()


@pytest.mark.parametrize("schedule", ["", "lambda", "exponential"])
def test_all_groups_are_brought_back_by_one_command_at_one_step(
    tmp_path: Path, schedule: str
) -> None:
    """Also where the rates tell a factor that misses the one that was typed by rounding."""
    rates = [0.1 * 0.95**number for number in range(12)]

    class Grouped(Job):
        def __init__(self, resume: str = "") -> None:
            super().__init__(tmp_path, resume=resume, reapply=True)
            groups = [
                {"params": [torch.nn.Parameter(torch.ones(2))], "lr": rate, "weight_decay": rate}
                for rate in rates
            ]
            self.optimizer = SGD(groups)
            if schedule == "lambda":
                self.scheduler = LambdaLR(self.optimizer, lambda step: 0.97**step)
            if schedule == "exponential":
                self.scheduler = ExponentialLR(self.optimizer, 0.97)
            self.trainer.watch(torch.nn.Linear(1, 1), self.optimizer, self.scheduler)

        def again(self, count: int) -> list[Outcome]:
            """Train, and keep the ratios of each step, until the run has commanded so much."""
            self.ratios = []
            while len(found := own_of(self.trainer)) < count:
                self.move()
                self.trainer.step(loss=1)
                self.ratios += [[rate / self.rates[0] for rate in self.rates]]
            return found

    first = Grouped()
    for _ in range(7):
        first.move()
    command(first.trainer, "one", "lr", scale=0.5)
    command(first.trainer, "two", "weight_decay", scale=0.5)
    second = Grouped(first.end())
    rate, decay = second.again(2)
    assert (rate.name, decay.name) == ("lr", "weight_decay")
    inputs = {
        each.body["cmd"]: each.body["payload"]
        for each in records(on_disk(second.trainer), "oc")
        if each.body["state"] == "claimed"
    }
    halves = [each / 2 for each in rates]
    assert inputs[rate.command] == ({"scale": 0.5} if schedule else {"lrs": halves})
    assert inputs[decay.command] == {"values": halves}
    for ratios in second.ratios:
        assert ratios == pytest.approx([each / rates[0] for each in rates], rel=1e-9)
    second.end()


def test_a_checkpoint_of_the_trainer_holds_what_was_commanded_before_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also the factor of a schedule that computes from a base; only what is newer is told."""
    job = Job(tmp_path, "lambda")
    command(job.trainer, "one", "lr", scale=0.5)
    job.trainer.save_checkpoint()
    command(job.trainer, "two", "lr", scale=0.5)
    command(job.trainer, "three", "weight_decay", value=0.25)
    job.trainer.load_checkpoint("latest")
    job.move()
    assert job.rates == [0.05, 0.1]
    rate, decay = undone(job, caplog)
    assert "scaled by 0.5; a factor of 0.25 was commanded" in rate
    # Nothing else is suspected of what the load has done.
    assert decay.startswith("weight_decay is 0; 0.25 was commanded")
    job.trainer.save_checkpoint()
    again = Job(tmp_path, "lambda", resume=job.end())
    again.trainer.load_checkpoint("latest")
    again.move()
    assert again.rates == [0.05, 0.1]
    again.trainer.step(loss=1)
    texts = [each["not_effective"] for each in reverted(again.trainer)[2:]]
    assert [text.split()[0] for text in texts] == ["lr", "weight_decay"]
    again.end()


def test_a_factor_goes_on_over_attempts_that_have_kept_it(tmp_path: Path) -> None:
    """Its product is what has to be there; what was lost and told is no part of it any more."""
    first = Job(tmp_path, "exponential")
    fresh = first.states()
    command(first.trainer, "one", "lr", scale=0.5)
    saved, run_id = first.states(), first.end()
    second = Job(tmp_path, "exponential", resume=run_id)
    second.load(saved)
    command(second.trainer, "two", "lr", scale=0.5)
    second.end()
    third = Job(tmp_path, "exponential", resume=run_id)
    third.load(fresh)
    third.trainer.step(loss=1)
    assert "a factor of 0.25 was commanded" in reverted(third.trainer)[-1]["not_effective"]
    command(third.trainer, "three", "lr", scale=0.125)
    third.end()
    fourth = Job(tmp_path, "exponential", resume=run_id, reapply=True)
    (last,) = again(fourth.trainer, 1)
    assert fourth.rates == pytest.approx([0.0125, 0.025]) and last.state == "applied"
    fourth.end()


def test_a_freeze_holds_up_commands_and_not_what_was_commanded_before_it(tmp_path: Path) -> None:
    first = Job(tmp_path)
    command(first.trainer, "one", "lr", scale=0.5)
    before = first.states()
    command(first.trainer, "two", FREEZE)
    second = Job(tmp_path, resume=first.end(), reapply=True)
    assert [each.state for each in again(second.trainer, 1)] == ["applied"]
    assert second.rates == [0.05, 0.1]
    refused = command(second.trainer, "three", "lr", scale=0.5)
    assert (refused.state, refused.code) == ("rejected", "frozen")
    before[0]["param_groups"][0]["lr"] = 0.1
    second.load(before)
    assert again(second.trainer, 2)[-1].state == "applied"
    assert second.rates == [0.05, 0.1]
    second.end()


def test_another_optimizer_that_is_watched_without_a_commanded_rate_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job(tmp_path)
    command(job.trainer, "one", "lr", scale=0.5)
    job.optimizer = make_optimizer(0.1, 0.2)
    job.trainer.watch(torch.nn.Linear(1, 1), job.optimizer)
    (said,) = undone(job, caplog)
    assert "(reverted by another watch)" in said
    job.end()


def test_a_value_that_cannot_be_read_never_stops_a_load_or_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path, reapply=True)
    states = job.states()
    command(job.trainer, "one", "lr", scale=0.5)

    def broken(*_: Any) -> Any:
        raise RuntimeError("bad luck")

    with monkeypatch.context() as patch:
        patch.setattr(job.trainer._plant, "values_of", broken)
        job.load(states)
        patch.setattr("launchhelm.torch._standing._lost_groups", broken)
        job.trainer.step(loss=1)
    assert job.trainer.run.recorder.faults["past commands"] == 2
    command(job.trainer, "two", "lr", scale=0.5)
    job.end()
