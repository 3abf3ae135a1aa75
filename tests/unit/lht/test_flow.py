"""stop, pause, resume, ping in one process: what the loop sees of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import SGD

import launchhelm.torch as lht
from launchhelm import views
from launchhelm.records import Command
from launchhelm.store import inbox
from launchhelm.torch._flow import FlowControl, FlowHolder, Ping
from tests.support.journals import final_outcomes, records, wait_until
from tests.support.one_rank import commanded, on_disk


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[lht.Trainer]:
    with lht.init("flow", state_dir=tmp_path) as made:
        yield made


def watch(trainer: lht.Trainer, *controls: str, **options: Any) -> SGD:
    optimizer = SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    trainer.watch(torch.nn.Linear(1, 1), optimizer, controls=("lr", *controls), **options)
    return optimizer


def test_ping_is_always_there_and_comes_back_with_what_it_carried(trainer: lht.Trainer) -> None:
    outcome = commanded(trainer, "ping", {"echo": {"at": [1, "ä"]}})
    assert outcome.state == "applied" and outcome.result == {"echo": {"at": [1, "ä"]}}
    assert outcome.changes == {}
    assert commanded(trainer, "ping").result == {}
    assert commanded(trainer, "ping", {"text": 1}).state == "rejected"


def test_what_was_not_asked_for_is_not_offered(trainer: lht.Trainer) -> None:
    watch(trainer)
    assert list(trainer.capabilities) == ["ping", "lr"]
    assert commanded(trainer, "stop").code == "handler_unavailable_or_changed"
    watch(trainer, "pause")
    assert {"pause", "resume"} < set(trainer.capabilities)


def test_a_stop_is_seen_by_the_loop_from_the_step_where_it_landed(trainer: lht.Trainer) -> None:
    watch(trainer, "stop")
    before = trainer.stop_requested
    outcome = commanded(trainer, "stop")
    assert outcome.changes == {"stop_requested": {"old": False, "new": True}}
    assert (before, trainer.stop_requested) == (False, True)
    trainer.step()  # A loop may go on as long as it likes.
    trainer.finish()
    state = views.open_run(trainer.run.directory).state
    assert (state.word, state.is_closed) == ("stopped", True)
    assert state.text.startswith("stopped by a stop command at step")


def test_a_loop_that_never_asks_whether_to_stop_has_finished_by_itself(
    trainer: lht.Trainer,
) -> None:
    watch(trainer, "stop")
    assert commanded(trainer, "stop").state == "applied"
    trainer.step()
    trainer.finish()
    assert views.open_run(trainer.run.directory).state.word == "finished"


def test_a_stop_may_be_an_exception(trainer: lht.Trainer) -> None:
    watch(trainer, "stop", on_stop="raise")
    with pytest.raises(lht.TrainingStopped, match="landed at step"):
        commanded(trainer, "stop")
    assert trainer.stop_requested
    with pytest.raises(lht.TrainingStopped):
        trainer.step()
    trainer.finish()
    (outcomes,) = final_outcomes(trainer.run.directory).values()
    assert [each.state for each in outcomes] == ["applied"]
    trainer.step()


def send(trainer: lht.Trainer, name: str, **payload: Any) -> Any:
    """Send a command from another thread while the loop waits; returns its outcome."""
    run = trainer.run.directory
    inbox.send(run, Command(f"late-{name}", name, payload))
    return wait_until(lambda: final_outcomes(run).get(f"late-{name}"), f"the end of {name}")[0]


def beside(work: Any) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_a_paused_loop_takes_commands_at_its_step_until_it_is_resumed(
    trainer: lht.Trainer,
) -> None:
    optimizer = watch(trainer, "pause")
    ended: list[Any] = []
    shown: list[str] = []

    def steer() -> None:
        wait_until(lambda: trainer._progress.phase == "paused", "the pause")
        shown.append(trainer._progress.phase)
        ended.append(send(trainer, "lr", lr=0.5))
        ended.append(send(trainer, "resume"))

    thread = beside(steer)
    paused = commanded(trainer, "pause")
    thread.join()
    changed, resumed = ended
    assert paused.changes == {"paused": {"old": False, "new": True}}
    assert changed.state == resumed.state == "applied"
    assert paused.applied_at == changed.applied_at == resumed.applied_at
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert shown == ["paused"] and trainer._progress.phase == "training"
    values = [record.body["values"] for record in records(on_disk(trainer), "ctl")]
    assert [each["paused"] for each in values if "paused" in each][-1] is False
    assert any(each.get("paused") is True for each in values)


def test_a_pause_is_no_part_of_a_step_time(trainer: lht.Trainer) -> None:
    watch(trainer, "pause")
    trainer.step(samples=10)

    def steer() -> None:
        wait_until(lambda: trainer._progress.phase == "paused", "the pause")
        time.sleep(2.0)
        send(trainer, "resume")

    thread = beside(steer)
    begun = time.monotonic()
    commanded(trainer, "pause")
    thread.join()
    for _ in range(3):
        trainer.step(samples=10)
    took_s = time.monotonic() - begun
    logged = records(on_disk(trainer), "m")
    steps = [each.body["perf/step_time_s"] for each in logged if "perf/step_time_s" in each.body]
    assert took_s > 2.0 and 0.0 <= sum(steps) < took_s - 2.0 and min(steps) >= 0.0
    rates = [each.body["perf/samples_per_s"] for each in logged[-3:]]
    assert min(rates) > 10 / (took_s - 2.0)


def test_a_command_for_the_step_after_a_pause_waits_until_the_pause_has_ended(
    trainer: lht.Trainer,
) -> None:
    optimizer = watch(trainer, "pause")
    run = trainer.run.directory
    inbox.send(run, Command("hold", "pause", {}, first_step=500))
    inbox.send(run, Command("half", "lr", {"scale": 0.5}, first_step=500))
    inbox.send(run, Command("next", "lr", {"scale": 0.1}, first_step=501))
    resumed: list[Any] = []

    def steer() -> None:
        wait_until(lambda: trainer._progress.phase == "paused", "the pause")
        resumed.append(send(trainer, "resume"))

    thread = beside(steer)
    while trainer.global_step < 600:
        trainer.step(loss=1.0)
        time.sleep(0.002)
    thread.join()
    ended = {id_: outcomes for id_, outcomes in final_outcomes(run).items() if id_ != "late-resume"}
    at = {id_: outcome.applied_at.get("step") for id_, (outcome,) in ended.items()}
    assert (at["hold"], at["half"], resumed[0].applied_at) == (500, 500, {"step": 500})
    assert 501 <= at["next"] < 530
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.005)


def test_a_stop_ends_a_pause(trainer: lht.Trainer) -> None:
    watch(trainer, "pause", "stop")
    ended: list[Any] = []

    def steer() -> None:
        wait_until(lambda: trainer._progress.phase == "paused", "the pause")
        ended.append(send(trainer, "stop"))

    thread = beside(steer)
    commanded(trainer, "pause")
    thread.join()
    assert ended[0].state == "applied" and trainer.stop_requested
    assert commanded(trainer, "pause").state == "rejected"


def test_flags_are_taken_back_together() -> None:
    holder = FlowHolder()
    pause, stop = FlowControl("pause", holder), FlowControl("stop", holder)
    pause.apply({})
    snapshot = stop.snapshot()
    stop.apply({})
    assert (holder.now.stop_requested, holder.now.paused) == (True, False)
    stop.restore(snapshot)
    assert (holder.now.stop_requested, holder.now.paused) == (False, True)
    for control in (pause, stop, FlowControl("resume", holder), Ping()):
        assert control.problem({"now": True})
