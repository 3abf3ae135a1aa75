"""The Trainer in one process: what it logs, what it refuses, and how it ends."""

from __future__ import annotations

import copy
import gc
import io
import logging
import math
import pickle
import resource
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import SGD
from torch.optim.lr_scheduler import ExponentialLR

import launchhelm
import launchhelm.torch as lht
from launchhelm.records import Command, Outcome
from launchhelm.store import inbox
from launchhelm.torch._metrics import DeviceValue
from tests.support.journals import final_outcomes, only_run, records, series, wait_until


def make_optimizer(*rates: float) -> SGD:
    groups = [{"params": [torch.nn.Parameter(torch.ones(2))], "lr": rate} for rate in rates]
    return SGD(groups)


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[lht.Trainer]:
    made = lht.init("unit", state_dir=tmp_path)
    yield made
    made.finish()


def on_disk(trainer: lht.Trainer) -> Path:
    trainer.run.flush(delivered=False)
    return trainer.run.directory


# Arguments.


@pytest.mark.parametrize(
    "arguments",
    [
        {"log_ranks": "some"},
        {"on_partial_failure": "ignore"},
        {"control": "maybe"},
        {"control_every": 0},
        {"control_every": True},
        {"control_every": 1.0},
        {"system_interval": 0},
        {"system_interval": 3601},
        {"collective_timeout_s": 0},
        {"collective_timeout_s": math.inf},
        {"overflow": "never"},
        {"project": ""},
        {"tags": "bare"},
    ],
)
def test_wrong_arguments_of_init_are_refused_and_nothing_is_written(
    arguments: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises((ValueError, TypeError)):
        lht.init(**{"project": "x", "state_dir": tmp_path, **arguments})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"controls": ("lr", "speed")}, ValueError),
        ({"controls": ("eval",)}, ValueError),
        ({"eval_fn": 1}, TypeError),
        ({"on_stop": "exit"}, ValueError),
        ({"controls": "lr"}, ValueError),
        ({"log_every": 0}, ValueError),
        ({"log_every": True}, ValueError),
        ({"log_every": 2.0}, ValueError),
        ({"optimizer": object()}, TypeError),
        ({"scheduler": object()}, TypeError),
        ({"scaler": 3}, TypeError),
    ],
)
def test_wrong_arguments_of_watch_are_refused(
    given: dict[str, Any], error: type[Exception], trainer: lht.Trainer
) -> None:
    arguments = {"model": torch.nn.Linear(1, 1), "optimizer": make_optimizer(0.1), **given}
    with pytest.raises(error):
        trainer.watch(**arguments)


@pytest.mark.parametrize("step", [1.0, True, "1", torch.tensor(1)])
def test_a_step_that_is_no_integer_is_refused(step: Any, trainer: lht.Trainer) -> None:
    with pytest.raises(TypeError):
        trainer.step(step)
    assert trainer.global_step == 0


def test_facts_of_a_single_process(trainer: lht.Trainer) -> None:
    facts = trainer.control
    assert (facts.rank, facts.group_rank, facts.world_size, facts.local_rank) == (0, 0, 1, 0)
    assert facts.coordinator == 0 and facts.is_coordinator and not facts.distributed
    assert trainer.is_coordinator and trainer.grad_clip is None
    assert (trainer.log_ranks, trainer.control_every, trainer.on_partial_failure) == (
        "zero",
        1,
        "raise",
    )


# Logging.


def test_steps_count_from_one_and_may_be_given(trainer: lht.Trainer) -> None:
    trainer.step(loss=3)
    trainer.step(loss=2)
    trainer.step(step=-5, loss=1)
    trainer.step(loss=0)
    assert trainer.global_step == -4
    assert series(on_disk(trainer), "train/loss") == [(1, 3), (2, 2), (-5, 1), (-4, 0)]


def test_one_step_is_one_record_with_all_its_values(trainer: lht.Trainer) -> None:
    trainer.watch(torch.nn.Linear(1, 1), make_optimizer(0.1, 0.2))
    for _ in range(3):
        trainer.step(loss=torch.tensor(0.5), samples=4, tokens=9, metrics={"acc": 0.75})
    found = records(on_disk(trainer), "m")
    assert [record.step for record in found] == [1, 2, 3]
    assert found[0].body.keys() == {
        *("train/loss", "acc", "optim/lr/group0", "optim/lr/group1"),
        *("optim/weight_decay/group0", "optim/weight_decay/group1"),
    }
    assert found[2].body.keys() - found[0].body.keys() == {
        *("perf/step_time_s", "perf/samples_per_s", "perf/tokens_per_s"),
    }


def test_a_step_takes_rich_values_beside_numbers_when_it_is_due(trainer: lht.Trainer) -> None:
    trainer.watch(torch.nn.Linear(1, 1), make_optimizer(0.1), log_every=2)
    image = launchhelm.Image(torch.zeros(2, 2, 3, dtype=torch.uint8))
    for step in range(1, 5):
        trainer.step(metrics={"x": image, "many": [image, image], "acc": step})
    run = on_disk(trainer)
    shown = [(each.step, each.body["name"]) for each in records(run, "rich")]
    assert shown == [(2, "x"), (2, "many"), (4, "x"), (4, "many")]
    assert series(run, "acc") == [(2, 2), (4, 4)]


def test_log_uses_the_trainers_step(trainer: lht.Trainer) -> None:
    trainer.step(step=41)
    assert trainer.log({"eval/acc": torch.tensor(0.5)}) is True
    assert trainer.log({"eval/acc": 0.75}, step=7) is True
    assert series(on_disk(trainer), "eval/acc") == [(41, 0.5), (7, 0.75)]


def test_odd_values_are_left_out_and_never_raise(
    trainer: lht.Trainer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    trainer.step(loss=torch.tensor(1j), metrics={"good": 1})
    trainer.step(loss=object(), samples="many", metrics={"none": None})  # type: ignore[arg-type]
    trainer.step(loss=math.nan, metrics={"good": 2})
    run = on_disk(trainer)
    assert [step for step, _ in series(run, "train/loss")] == [3]
    assert (3, 2) in series(run, "good")
    with pytest.raises(TypeError, match="metrics must be a mapping"):
        trainer.step(metrics=["good"])  # type: ignore[arg-type]


def test_reduced_metrics_of_one_process_are_its_own(trainer: lht.Trainer) -> None:
    trainer.step()
    trainer.log_reduced({"a": torch.tensor([1, 3]), "b": 5, "c": "no number"}, op="max")
    run = on_disk(trainer)
    assert series(run, "a") == [(1, 2.0)] and series(run, "b") == [(1, 5.0)]
    with pytest.raises(ValueError):
        trainer.log_reduced({"a": 1}, op="first")


def test_an_odd_value_to_reduce_becomes_nan_and_is_warned_of_once(
    trainer: lht.Trainer, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        trainer.step()
        trainer.log_reduced({"good": 1, "odd": None})
    run = on_disk(trainer)
    assert [step for step, value in series(run, "odd") if math.isnan(value)] == [1, 2, 3]
    assert series(run, "good") == [(1, 1.0), (2, 1.0), (3, 1.0)]
    (warning,) = [each.message for each in caplog.records if "as NaN" in each.message]
    assert "'odd' on rank 0" in warning and "NoneType" in warning
    said = [each.body["text"] for each in records(run, "ev") if each.body["type"] == "notice"]
    assert len([text for text in said if "'odd'" in text]) == 1


def test_the_norm_of_gradients_is_measured_clipped_and_logged(trainer: lht.Trainer) -> None:
    with pytest.raises(RuntimeError):
        trainer.clip_grad_norm_()
    optimizer = make_optimizer(0.1, 0.1)
    parameters = [group["params"][0] for group in optimizer.param_groups]
    trainer.watch(torch.nn.Linear(1, 1), optimizer)
    for parameter in parameters:
        parameter.grad = torch.full((2,), 2.0)
    assert trainer.clip_grad_norm_() == pytest.approx(4.0)
    assert parameters[0].grad is not None and parameters[0].grad.tolist() == [2.0, 2.0]
    assert trainer.clip_grad_norm_(1.0) == pytest.approx(4.0)
    assert trainer.clip_grad_norm_() == pytest.approx(1.0)
    trainer.step()
    trainer.step()
    norms = series(on_disk(trainer), "optim/grad_norm")
    assert [step for step, _ in norms] == [1, 2]
    assert norms[0][1] == norms[1][1] == pytest.approx(1.0)


def test_losses_and_their_graphs_are_let_go(trainer: lht.Trainer) -> None:
    alive = []
    for _ in range(50):
        loss = (torch.ones(1000, requires_grad=True) * 2).sum()
        alive.append(weakref.ref(loss))
        trainer.step(loss=loss, metrics={"same": loss})
    del loss
    gc.collect()
    assert not any(reference() is not None for reference in alive)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("steps", [60, pytest.param(2000, marks=pytest.mark.stress)])
def test_memory_stays_flat_while_each_loss_carries_a_large_graph(
    trainer: lht.Trainer, steps: int
) -> None:
    """Of 10 MB for each step; what is kept of a loss at most until the next step."""

    def resident_mb() -> float:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize() / 1e6

    weight = torch.ones(2_500_000, requires_grad=True)
    before: weakref.ref[Any] | None = None
    for step in range(steps):
        loss = (weight * 2).square().sum()
        trainer.step(loss=loss)
        assert before is None or before() is None
        before = weakref.ref(loss)
        del loss
        if step == 10:
            grown_from = resident_mb()
    assert resident_mb() - grown_from < 20


def test_values_on_a_device_are_fetched_by_the_recorder(
    trainer: lht.Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No device here, so every tensor is treated as if it lay on one."""
    monkeypatch.setattr("launchhelm.torch._metrics.taken", DeviceValue)
    monkeypatch.setattr("launchhelm.torch._trainer.taken", DeviceValue)
    loss = torch.tensor(0.5)
    trainer.step(loss=loss)
    trainer.log({"other": loss})
    loss.fill_(9.0)
    run = on_disk(trainer)
    assert series(run, "train/loss") == [(1, 0.5)]
    assert series(run, "other") == [(1, 0.5)]


def test_a_run_whose_log_breaks_does_not_stop_training(
    trainer: lht.Trainer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise OSError("no memory left for this")

    with caplog.at_level(logging.CRITICAL):
        monkeypatch.setattr(trainer._series, "at_step", broken)
        trainer.step(loss=1)
    assert trainer.run.recorder.faults["metrics"] == 1


# Watching.


def test_only_what_exists_is_advertised(trainer: lht.Trainer) -> None:
    trainer.watch(
        torch.nn.Linear(1, 1),
        make_optimizer(0.1),
        controls=("lr", "weight_decay", "grad_clip", "dropout", "checkpoint", "eval"),
        eval_fn=lambda: None,
    )
    trainer.tunable("gain", 0.5)
    built_in = ["ping", "lr", "weight_decay", "grad_clip", "dropout", "checkpoint", "eval"]
    there_are = [*built_in, "set_gain"]
    assert list(trainer.capabilities) == there_are
    offered = [record.body["name"] for record in records(on_disk(trainer), "cap")]
    assert offered == there_are


def test_watching_without_lr_leaves_the_scheduler_alone(trainer: lht.Trainer) -> None:
    optimizer = make_optimizer(0.1)
    scheduler = ExponentialLR(optimizer, 0.5)
    trainer.watch(torch.nn.Linear(1, 1), optimizer, scheduler, controls=())
    assert type(scheduler) is ExponentialLR and list(trainer.capabilities) == ["ping"]


def test_watching_again_replaces_the_objects(trainer: lht.Trainer) -> None:
    first, second = make_optimizer(0.1), make_optimizer(0.2)
    schedulers = [ExponentialLR(each, 0.5) for each in (first, second)]
    model = torch.nn.Linear(1, 1)
    trainer.watch(model, first, schedulers[0])
    trainer.watch(model, second, schedulers[1], log_every=2)
    assert type(schedulers[0]) is ExponentialLR
    assert type(schedulers[1]) is not ExponentialLR
    trainer.step(loss=1)
    trainer.step(loss=1)
    run = on_disk(trainer)
    assert series(run, "train/loss") == [(2, 1)]
    assert series(run, "optim/lr/group0") == [(1, 0.2), (2, 0.2)]


def test_a_wrapped_model_of_any_kind_may_be_watched(trainer: lht.Trainer) -> None:
    class FullyShardedDataParallel(torch.nn.Module):
        _fsdp_wrapped_module = None

    trainer.watch(FullyShardedDataParallel(), make_optimizer(0.1))
    assert "lr" in trainer.capabilities


# Commands.


def command(trainer: lht.Trainer, id_: str, name: str, **payload: Any) -> Outcome:
    """Send a command, step until it has an outcome, and return that."""
    inbox.send(trainer.run.directory, Command(id_, name, payload))

    def step() -> list[Outcome] | None:
        trainer.step(loss=1)
        return final_outcomes(trainer.run.directory).get(id_)

    (outcome,) = wait_until(step, f"the outcome of {id_}")
    return outcome  # type: ignore[no-any-return]


def test_a_command_changes_the_rate_after_the_step_was_logged(trainer: lht.Trainer) -> None:
    optimizer = make_optimizer(0.1, 0.2)
    trainer.watch(torch.nn.Linear(1, 1), optimizer)
    outcome = command(trainer, "one", "lr", scale=0.5)
    assert (outcome.state, outcome.applied_on, outcome.of) == ("applied", 1, 1)
    assert outcome.result == {"lr": [0.05, 0.1]}
    assert outcome.changes == {"lr": {"old": [0.1, 0.2], "new": [0.05, 0.1]}}
    assert [group["lr"] for group in optimizer.param_groups] == [0.05, 0.1]
    trainer.step(loss=1)
    run = on_disk(trainer)
    at = outcome.applied_at["step"]
    logged = dict(series(run, "optim/lr/group0"))
    assert (logged[at], logged[at + 1]) == (0.1, 0.05)
    (effect,) = records(run, "effect")
    assert effect.body == {"cmd": "one", "step": at + 1, "values": {"lr": [0.05, 0.1]}}
    shown = records(run, "ctl")[-1].body
    assert shown["values"]["lr"] == [0.05, 0.1] and shown["step"] == at
    assert trainer.run.desk.values() == shown["values"]


def test_an_expectation_is_judged_by_what_the_optimizer_holds_and_not_by_what_was_shown(
    trainer: lht.Trainer,
) -> None:
    optimizer = make_optimizer(0.1)
    trainer.watch(torch.nn.Linear(1, 1), optimizer)
    trainer.step(loss=1)
    optimizer.param_groups[0]["lr"] = 0.3  # By the script.
    directory = trainer.run.directory
    for id_, seen in (("stale", 0.1), ("true", 0.3)):
        inbox.send(directory, Command(id_, "lr", {"lr": 0.05}, expected={"lr": [seen]}))

    def step() -> dict[str, list[Outcome]] | None:
        trainer.step(loss=1)
        ended = final_outcomes(directory)
        return ended if len(ended) == 2 else None

    ended = wait_until(step, "both outcomes")
    ((stale,), (true,)) = ended["stale"], ended["true"]
    assert (stale.state, stale.code) == ("rejected", "changed_meanwhile")
    assert stale.message in ("lr was 0.1 and is 0.3 now.", "lr was 0.1 and is 0.05 now.")
    assert true.state == "applied"
    state = optimizer.state_dict()
    state["param_groups"][0]["lr"] = 0.7
    optimizer.load_state_dict(state)
    inbox.send(directory, Command("after", "lr", {"lr": 0.5}, expected={"lr": [0.7]}))
    (after,) = wait_until(
        lambda: trainer.step(loss=1) or final_outcomes(directory).get("after"), "the last outcome"
    )
    assert after.state == "applied"


def test_a_commanded_rate_stays_when_the_same_objects_are_watched_again(
    trainer: lht.Trainer,
) -> None:
    optimizer = make_optimizer(0.1)
    scheduler = ExponentialLR(optimizer, 0.5)
    model = torch.nn.Linear(1, 1)
    trainer.watch(model, optimizer, scheduler)
    command(trainer, "one", "lr", scale=0.5)
    trainer.watch(model, optimizer, scheduler)
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.05 * 0.5


@pytest.mark.parametrize(
    "payload",
    [
        {"scale": -1},
        {"scale": 0},
        {"scale": 1e300},
        {"lr": 1e39},
        {},
        {"lr": "0.1"},
        {"scale": 0.5, "group": 5},
    ],
)
def test_a_bad_command_is_rejected_and_training_goes_on(
    payload: dict[str, Any], trainer: lht.Trainer
) -> None:
    optimizer = make_optimizer(0.1)
    trainer.watch(torch.nn.Linear(1, 1), optimizer)
    outcome = command(trainer, "bad", "lr", **payload)
    assert (outcome.state, outcome.code) == ("rejected", "local_validation")
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_a_tunable_is_set_and_reported(trainer: lht.Trainer) -> None:
    depth = trainer.tunable("depth", 3, minimum=1, maximum=9)
    outcome = command(trainer, "deeper", "set_depth", value=9)
    assert outcome.result == {"value": 9} and depth.value == 9
    assert outcome.changes == {"set_depth": {"old": 3, "new": 9}}
    assert command(trainer, "too-deep", "set_depth", value=10).state == "rejected"


def test_a_tunable_can_be_declared_only_once(trainer: lht.Trainer) -> None:
    trainer.tunable("gain", 1.0)
    with pytest.raises(ValueError):
        trainer.tunable("gain", 1.0)


def test_control_off_means_no_command_is_taken(tmp_path: Path) -> None:
    with lht.init("off", state_dir=tmp_path, control="off") as trainer:
        trainer.watch(torch.nn.Linear(1, 1), make_optimizer(0.1))
        trainer.step(loss=1)
        assert trainer.capabilities == {}
        shown = records(on_disk(trainer), "ctl")[-1].body
        assert (shown["control"], shown["why"]) == ("off", 'control="off"')


# Resuming.


def test_kept_values_beat_defaults_on_a_resume(tmp_path: Path) -> None:
    first = lht.init("again", name="it", state_dir=tmp_path)
    first.step(step=12, loss=1)
    first.run.keep(
        {
            "launchhelm.torch": {"step": 12},
            "control": {"grad_clip": 0.5},
            "tunables": {"gain": 0.25, "depth": 99},
        }
    )
    first.finish(close_run=False)
    second = lht.init("again", state_dir=tmp_path, resume=first.run.run_id)
    assert (second.global_step, second.grad_clip) == (12, 0.5)
    assert second.tunable("gain", 1.0).value == 0.25
    assert second.tunable("depth", 3, maximum=9).value == 3
    second.step(loss=1)
    second.finish()
    assert [step for step, _ in series(only_run(tmp_path), "train/loss")] == [12, 13]


# The end.


def test_calls_after_finish_never_raise_and_write_nothing(tmp_path: Path) -> None:
    trainer = lht.init("over", state_dir=tmp_path)
    optimizer = make_optimizer(0.1)
    scheduler = ExponentialLR(optimizer, 0.5)
    model = torch.nn.Linear(1, 1)
    trainer.watch(model, optimizer, scheduler)
    trainer.step(loss=1)
    trainer.finish()
    count = len(records(only_run(tmp_path)))

    trainer.step(loss=2)
    trainer.watch(model, optimizer, scheduler)
    trainer.log({"a": 1})
    trainer.log_reduced({"a": 1})
    trainer.clip_grad_norm_(1.0)
    assert trainer.tunable("gain", 0.5).value == 0.5
    trainer.finish()
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.05
    assert type(scheduler) is ExponentialLR
    assert len(records(only_run(tmp_path))) == count


def test_a_commanded_rate_outlives_the_end_of_the_run(tmp_path: Path) -> None:
    trainer = lht.init("over", state_dir=tmp_path)
    optimizer = make_optimizer(0.1)
    scheduler = ExponentialLR(optimizer, 0.5)
    trainer.watch(torch.nn.Linear(1, 1), optimizer, scheduler)
    command(trainer, "one", "lr", scale=0.1)
    trainer.finish()
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.1 * 0.5 * 0.1


def test_an_exception_inside_with_is_the_reason_of_the_end(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), lht.init("error", state_dir=tmp_path) as trainer:
        trainer.step(loss=1)
        raise ZeroDivisionError("training broke")
    (close,) = records(only_run(tmp_path), "close")
    assert close.body["state"] == "error"
    assert close.body["reason"] == "ZeroDivisionError: training broke"


def test_system_metrics_end_with_the_run(tmp_path: Path) -> None:
    with lht.init("sys", state_dir=tmp_path, system_metrics=True, system_interval=0.02) as trainer:
        trainer.step(step=5)
        wait_until(lambda: series(trainer.run.directory, "system/process_rss_bytes"), "a sample")
    assert set(series(only_run(tmp_path), "system/collector")) == {(0, "ok")}
    assert series(only_run(tmp_path), "system/process_rss_bytes")[-1][0] == 5


# Copies.


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
def test_a_copy_of_everything_trains_on_and_records_nothing(
    duplicate: Any, trainer: lht.Trainer
) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    scheduler = ExponentialLR(optimizer, 0.5)
    trainer.watch(model, optimizer, scheduler)
    trainer.step(loss=1)
    parts = duplicate(
        {"trainer": trainer, "model": model, "optimizer": optimizer, "scheduler": scheduler}
    )
    twin = parts["trainer"]
    assert twin.run.run_id == trainer.run.run_id
    assert twin.global_step == 1 and twin.control == trainer.control
    count = len(records(on_disk(trainer)))
    parts["model"](torch.ones(1, 2)).sum().backward()
    twin.clip_grad_norm_()
    twin.watch(parts["model"], parts["optimizer"])
    assert twin.clip_grad_norm_(1.0) == pytest.approx(3**0.5)
    twin.step(loss=5)
    twin.log({"a": 1})
    twin.finish()
    assert len(records(on_disk(trainer))) == count
    trainer.step(loss=2)
    assert [value for _, value in series(on_disk(trainer), "train/loss")] == [1, 2]


class Touching(torch.utils.data.Dataset[int]):
    """A data set whose workers log, as if they were the training."""

    def __init__(self, trainer: lht.Trainer) -> None:
        self.trainer = trainer

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        self.trainer.log({"in a worker": index})
        self.trainer.run.flush()
        return index


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_workers_of_a_data_loader_record_nothing_and_the_training_goes_on(
    trainer: lht.Trainer,
) -> None:
    loader = torch.utils.data.DataLoader(Touching(trainer), num_workers=2, persistent_workers=True)
    for _ in range(2):
        assert [int(batch) for batch in loader] == list(range(8))
        trainer.step(loss=1)
    del loader
    run = on_disk(trainer)
    assert [step for step, _ in series(run, "train/loss")] == [1, 2]
    assert series(run, "in a worker") == []


def test_watched_objects_are_saved_with_the_keys_of_unwatched_ones(trainer: lht.Trainer) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = ExponentialLR(optimizer, 0.5)
    before = [each.state_dict().keys() for each in (model, optimizer, scheduler)]
    trainer.watch(model, optimizer, scheduler)
    assert [each.state_dict().keys() for each in (model, optimizer, scheduler)] == before
    buffer = io.BytesIO()
    torch.save({"trainer": trainer, "model": model, "scheduler": scheduler}, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    loaded["trainer"].step(loss=1)
