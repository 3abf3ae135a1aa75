"""Checkpoints of one process: what comes back, what is refused, and when a file may be trusted."""

from __future__ import annotations

import gc
import os
import pickle
import random
import re
import resource
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.optim import lr_scheduler

import launchhelm.torch as lht
from launchhelm._ids import new_id
from launchhelm.errors import NotFound
from launchhelm.records import Command
from launchhelm.store import inbox, layout
from launchhelm.torch import _checkpoint_vault as vaults
from tests.support.journals import final_outcomes, records, wait_until
from tests.support.one_rank import commanded

Parts = tuple[torch.nn.Module, torch.optim.Optimizer, Any]

SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "cosine with a floor": lambda it: lr_scheduler.CosineAnnealingLR(it, 30, eta_min=0.001),
    "one cycle": lambda it: lr_scheduler.OneCycleLR(it, [0.2, 0.1], total_steps=40),
    "lambda": lambda it: lr_scheduler.LambdaLR(it, lambda step: 1 / (1 + step)),
    "sequence": lambda it: lr_scheduler.SequentialLR(
        it,
        [lr_scheduler.LinearLR(it, 0.1, total_iters=4), lr_scheduler.ExponentialLR(it, 0.9)],
        [4],
    ),
    "plateau": lambda it: lr_scheduler.ReduceLROnPlateau(it, patience=1),
    "none": lambda it: None,
}


def make(schedule: str = "cosine with a floor") -> Parts:
    """Make what is trained; the same in every call, but for the random state that it leaves."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))
    groups: list[dict[str, Any]] = [
        {"params": model[0].parameters(), "lr": 0.1},
        {"params": model[2].parameters()},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.05)
    return model, optimizer, SCHEDULES[schedule](optimizer)


def train(trainer: lht.Trainer, parts: Parts, steps: int) -> list[float]:
    """Train on numbers from all three generators; return the loss of each step."""
    model, optimizer, scheduler = parts
    losses = []
    for _ in range(steps):
        noise = random.random() + float(numpy.random.rand())
        loss = (model(torch.randn(3, 4)) + noise).square().mean()
        optimizer.zero_grad()
        loss.backward()
        trainer.clip_grad_norm_()
        optimizer.step()
        if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
            scheduler.step(loss.item())
        elif scheduler is not None:
            scheduler.step()
        trainer.step(loss=loss.item())
        losses.append(loss.item())
    return losses


def command(trainer: lht.Trainer, *commands: tuple[str, dict[str, Any]]) -> None:
    """Have these commands applied, all at about the same time."""
    for number, (name, payload) in enumerate(commands):
        inbox.send(trainer.run.directory, Command(f"{number}-{name}", name, payload))

    def states() -> list[str] | None:
        trainer.step()
        ended = final_outcomes(trainer.run.directory)
        return [each[0].state for each in ended.values()] if len(ended) == len(commands) else None

    assert set(wait_until(states, "the outcomes", timeout_s=60.0)) == {"applied"}


def begin(root: Path, parts: Parts, resume: str = "", **options: Any) -> lht.Trainer:
    trainer = lht.init("unit", state_dir=root, resume=resume, **options)
    trainer.watch(*parts)
    return trainer


@pytest.fixture
def parts() -> Parts:
    return make()


@pytest.fixture
def trainer(tmp_path: Path, parts: Parts) -> Iterator[lht.Trainer]:
    made = begin(tmp_path, parts)
    yield made
    made.finish()


def kept_files(trainer: lht.Trainer) -> list[str]:
    media = trainer.run.directory / layout.MEDIA
    return sorted(os.listdir(media)) if media.exists() else []


# What comes back.


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_commanded_training_goes_on_to_the_last_bit_in_the_next_attempt(
    tmp_path: Path, schedule: str
) -> None:
    parts = make(schedule)
    trainer = begin(tmp_path, parts)
    train(trainer, parts, 3)
    command(
        trainer,
        ("lr", {"scale": 0.5}),
        ("dropout", {"p": 0.6}),
        ("grad_clip", {"max_norm": 0.75}),
        ("lr", {"scale": 0.5, "group": 1}),
    )
    train(trainer, parts, 2)
    trainer.tunable("level", 1).take(7)
    at = trainer.global_step
    trainer.save_checkpoint(extra={"epoch": 2, "mean": torch.ones(2)})
    expected = train(trainer, parts, 6)
    rates = [group["lr"] for group in parts[1].param_groups]
    trainer.finish(close_run=False)

    parts = make(schedule)
    trainer = begin(tmp_path, parts, resume=trainer.run.run_id)
    assert (trainer.global_step, trainer.grad_clip) == (at, 0.75)
    assert trainer.tunable("level", 1).value == 7
    extra = trainer.load_checkpoint()
    assert extra["epoch"] == 2 and torch.equal(extra["mean"], torch.ones(2))
    assert (trainer.global_step, trainer.grad_clip, parts[0][1].p) == (at, 0.75, 0.6)
    assert train(trainer, parts, 6) == expected
    assert [group["lr"] for group in parts[1].param_groups] == rates
    trainer.finish()


def test_a_tunable_that_is_declared_after_the_load_has_its_value_then(
    trainer: lht.Trainer, tmp_path: Path
) -> None:
    early = trainer.tunable("early", 1)
    early.take(5)
    trainer.tunable("late", 0.5).take(0.25)
    trainer.tunable("shrunk", 10).take(9)
    trainer.save_checkpoint(tmp_path / "one.pt")
    other = begin(tmp_path, make())
    declared = other.tunable("early", 1)
    other.load_checkpoint(tmp_path / "one.pt")
    assert declared.value == 5
    assert other.tunable("late", 0.5).value == 0.25
    assert other.tunable("shrunk", 1, maximum=3).value == 1
    other.finish()


def test_dropout_that_no_command_has_changed_is_the_scripts(
    trainer: lht.Trainer, tmp_path: Path
) -> None:
    trainer.save_checkpoint(tmp_path / "one.pt")
    parts = make()
    parts[0][1].p = 0.45
    other = begin(tmp_path, parts)
    other.load_checkpoint(tmp_path / "one.pt")
    assert parts[0][1].p == 0.45
    other.finish()


def test_without_watch_step_and_tunables_are_saved(tmp_path: Path) -> None:
    trainer = lht.init("unit", state_dir=tmp_path)
    trainer.step(41)
    trainer.tunable("level", "low").take("high")
    trainer.save_checkpoint(extra={"seen": [1, 2]})
    trainer.step()
    assert trainer.load_checkpoint() == {"seen": [1, 2]}
    assert trainer.global_step == 41
    trainer.finish()


def test_what_only_one_side_has_is_told_and_left(
    trainer: lht.Trainer, tmp_path: Path, parts: Parts
) -> None:
    trainer.save_checkpoint(tmp_path / "one.pt")
    other = lht.init("unit", state_dir=tmp_path)
    other.watch(*make("none")[:2])
    other.load_checkpoint(tmp_path / "one.pt")
    other.run.flush(delivered=False)
    notices = [r.body["text"] for r in records(other.run.directory, "ev") if "text" in r.body]
    assert any("Its scheduler is not watched" in text for text in notices)
    id_ = other.save_checkpoint()
    other.watch(*make())
    other.load_checkpoint()
    other.run.flush(delivered=False)
    notices = [r.body["text"] for r in records(other.run.directory, "ev") if "text" in r.body]
    assert any(f"Checkpoint {id_} of step 0: It has no scheduler" in text for text in notices)
    other.finish()


# The hosted form.


def test_a_file_says_the_scaled_schedule_to_whoever_knows_no_multipliers(
    trainer: lht.Trainer, tmp_path: Path, parts: Parts
) -> None:
    train(trainer, parts, 3)
    outcome = commanded(trainer, "lr", {"scale": 0.25})
    assert outcome.state == "applied"
    trainer.save_checkpoint(tmp_path / "one.pt")
    file = torch.load(tmp_path / "one.pt", weights_only=True)
    rates = [group["lr"] for group in parts[1].param_groups]

    _, optimizer, scheduler = make()
    optimizer.load_state_dict(file["optimizer"])
    scheduler.load_state_dict(file["scheduler"])
    assert scheduler.get_last_lr() == pytest.approx(rates)
    for _ in range(5):
        optimizer.step()
        scheduler.step()
    train(trainer, parts, 5)
    expected = [group["lr"] for group in parts[1].param_groups]
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx(expected)
    (change,) = file["control"]["lr_history"]
    assert change["step"] == outcome.applied_at["step"]
    assert (change["groups"], change["factors"]) == ([0, 1], pytest.approx([0.25, 0.25]))
    assert file["format"] == "launchhelm.torch.checkpoint/1"
    assert set(file["rng"]) == {"python", "torch_cpu", "numpy"}


# When a file may be trusted.


def test_a_checkpoint_is_verifying_when_save_returns_and_then_ready(
    trainer: lht.Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The artifact is the file itself, under its digest, and recorded once it is good."""
    trainer.step(3)
    id_ = trainer.save_checkpoint()
    trainer.load_checkpoint()  # Waits for it.
    trainer.run.flush(delivered=False)
    begun, ready = (
        next(r for r in records(trainer.run.directory, kind) if r.body.get("id") == id_)
        for kind in ("ev", "art")
    )
    assert (begun.body["state"], begun.step, ready.step) == ("verifying", 3, 3)
    assert kept_files(trainer) == [ready.body["sha256"]]
    assert ready.body["name"] == "step-3.pt"
    assert trainer.run.history("checkpoint")[-1]["value"] == id_
    assert len(trainer.run.fetch("checkpoint")) == ready.body["size"]


def test_latest_and_finish_wait_for_what_was_just_saved(tmp_path: Path) -> None:
    parts = make()
    trainer = begin(tmp_path, parts)
    for epoch in range(3):
        train(trainer, parts, 1)
        trainer.save_checkpoint(extra={"epoch": epoch})
        assert trainer.load_checkpoint("latest") == {"epoch": epoch}
    trainer.save_checkpoint(extra={"epoch": "last"})
    trainer.finish(close_run=False)
    assert len(records(trainer.run.directory, "art")) == 4
    again = begin(tmp_path, make(), resume=trainer.run.run_id)
    assert again.load_checkpoint() == {"epoch": "last"}
    again.finish()


def test_what_an_attempt_could_not_verify_the_next_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = make()
    trainer = begin(tmp_path, parts)
    trainer.step(1)
    trainer.save_checkpoint(extra={"epoch": 1})
    trainer.load_checkpoint()
    with monkeypatch.context() as change:
        change.setattr(vaults.Vault, "_make_ready", lambda self, job: None)
        trainer.step(2)
        id_ = trainer.save_checkpoint(extra={"epoch": 2})
        trainer.finish(close_run=False)
    # The name that `snapshot` copies, and `clean` leaves.
    assert [name for name in kept_files(trainer) if name.startswith(layout.UNREADY)]

    again = begin(tmp_path, make(), resume=trainer.run.run_id)
    assert again.global_step == 1
    assert again.load_checkpoint() == {"epoch": 2}
    assert again.global_step == 2
    again.finish(close_run=False)
    assert [name for name in kept_files(trainer) if name.startswith(".")] == []
    assert id_ in [record.body["id"] for record in records(again.run.directory, "art")]
    third = lht.init("unit", state_dir=tmp_path, resume=trainer.run.run_id)
    assert third.global_step == 2
    third.finish()


def test_an_attempt_that_is_killed_between_name_and_record_loses_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = begin(tmp_path, make())
    trainer.step(5)
    with monkeypatch.context() as change:
        change.setattr(vaults.Vault, "_record", lambda self, job, stored: None)
        id_ = trainer.save_checkpoint(extra={"epoch": 1})
        trainer.finish(close_run=False)
    (name,) = kept_files(trainer)
    assert not name.startswith(".")

    again = begin(tmp_path, make(), resume=trainer.run.run_id)
    assert again.load_checkpoint() == {"epoch": 1}
    again.finish()
    (recorded,) = records(again.run.directory, "art")
    assert (recorded.body["id"], recorded.body["sha256"], recorded.step) == (id_, name, 5)


def test_the_end_of_a_run_waits_no_longer_than_it_may(
    trainer: lht.Trainer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What takes longer is left for the next attempt, and said."""
    held, verified = threading.Event(), vaults.Vault._verified

    def waiting(self: vaults.Vault, path: Path) -> Any:
        held.wait(60.0)
        return verified(self, path)

    monkeypatch.setattr(vaults.Vault, "_verified", waiting)
    trainer.save_checkpoint()
    trainer.finish(timeout=1.5)
    assert "was not verified before the end" in caplog.text
    held.set()
    job = trainer._checkpoints._vault._newest  # type: ignore[union-attr]
    assert job is not None and job.over.wait(60.0) and not job.sha256
    assert [name for name in kept_files(trainer) if name.startswith(".")]


def test_a_tunable_that_is_never_declared_again_is_saved_on(
    trainer: lht.Trainer, tmp_path: Path
) -> None:
    trainer.tunable("level", 1).take(3)
    trainer.save_checkpoint(tmp_path / "one.pt")
    second = begin(tmp_path, make())
    second.load_checkpoint(tmp_path / "one.pt")
    second.save_checkpoint(tmp_path / "two.pt")
    second.finish()
    third = begin(tmp_path, make())
    third.load_checkpoint(tmp_path / "two.pt")
    assert third.tunable("level", 1).value == 3
    third.finish()


def test_a_file_that_an_attempt_left_torn_gives_way_to_the_last_good_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = begin(tmp_path, make())
    trainer.step(1)
    trainer.save_checkpoint(extra={"epoch": 1})
    trainer.load_checkpoint()
    monkeypatch.setattr(vaults.Vault, "_make_ready", lambda self, job: None)
    trainer.step(2)
    trainer.save_checkpoint(extra={"epoch": 2})
    trainer.finish(close_run=False)
    monkeypatch.undo()
    (left,) = (trainer.run.directory / layout.MEDIA).glob(".checkpoint*")
    with left.open("rb+") as file:
        file.seek(left.stat().st_size // 2)
        file.write(bytes(64))  # As after a loss of power.

    again = begin(tmp_path, make(), resume=trainer.run.run_id)
    assert again.load_checkpoint() == {"epoch": 1}
    assert not left.exists()
    again.finish()


def test_a_file_that_does_not_load_back_is_never_recorded(
    trainer: lht.Trainer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    trainer.save_checkpoint(extra={"epoch": 1})
    trainer.load_checkpoint()
    write = vaults.Vault.write

    def torn(self: vaults.Vault, payload: Any) -> Path:
        path = write(self, payload)
        os.truncate(path, path.stat().st_size // 2)
        return path

    monkeypatch.setattr(vaults.Vault, "write", torn)
    trainer.save_checkpoint(extra={"epoch": 2})
    assert trainer.load_checkpoint() == {"epoch": 1}
    assert "cannot be used" in caplog.text
    trainer.run.flush(delivered=False)
    assert len(records(trainer.run.directory, "art")) == 1
    assert len(kept_files(trainer)) == 1


def test_a_checkpoint_loads_by_the_id_that_its_save_has_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = begin(tmp_path, make())
    ids = []
    for epoch in range(3):
        trainer.step(epoch)
        if epoch == 2:
            monkeypatch.setattr(vaults.Vault, "_make_ready", lambda self, job: None)
        ids.append(str(trainer.save_checkpoint(extra={"epoch": epoch})))
    assert trainer.load_checkpoint(ids[0]) == {"epoch": 0}
    trainer.finish(close_run=False)
    monkeypatch.undo()
    again = begin(tmp_path, make(), resume=trainer.run.run_id)
    again.save_checkpoint(extra={"epoch": "newer"})
    for epoch in (1, 2, 0):  # The last one is made ready now.
        assert again.load_checkpoint(ids[epoch]) == {"epoch": epoch}
        assert again.global_step == epoch
    assert again.load_checkpoint() == {"epoch": "newer"}
    unknown = new_id()
    with pytest.raises(NotFound, match=unknown):
        again.load_checkpoint(unknown)
    again.finish()


# Places.


def test_a_path_gets_a_copy_and_the_run_keeps_its_own(
    trainer: lht.Trainer, tmp_path: Path, parts: Parts
) -> None:
    train(trainer, parts, 1)
    path = tmp_path / "copy.pt"
    trainer.save_checkpoint(path, extra={"epoch": 1})
    assert torch.load(path, weights_only=True)["extra"] == {"epoch": 1}
    path.write_bytes(b"mine")
    assert trainer.load_checkpoint() == {"epoch": 1}
    with pytest.raises(lht.CheckpointError, match="No such file"):
        trainer.save_checkpoint(tmp_path / "missing" / "mine.pt")
    assert len(kept_files(trainer)) == 1
    assert trainer.run.restored == {}


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="has no /proc")
def test_a_save_that_does_not_fit_says_so_and_holds_no_room(
    trainer: lht.Trainer, parts: Parts
) -> None:
    train(trainer, parts, 1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    gc.disable()
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, before[1]))
        with pytest.raises(lht.CheckpointError, match="File too large") as refused:
            trainer.save_checkpoint(extra={"large": torch.ones(100_000)})
        opened = [
            os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()
        ]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        gc.enable()
    assert not [name for name in opened if ".checkpoint-" in name]
    assert str(trainer.run.directory / layout.MEDIA) in str(refused.value)
    assert kept_files(trainer) == []
    train(trainer, parts, 1)
    trainer.save_checkpoint()


def test_shards_of_a_checkpoint_that_cannot_be_used_go_with_it(
    trainer: lht.Trainer, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(trainer, parts, 1)
    write = vaults.Vault.write

    def torn(self: vaults.Vault, payload: Any) -> Path:
        path = write(self, payload)
        os.truncate(path, path.stat().st_size // 2)
        return path

    trainer.save_checkpoint(sharded=True)
    monkeypatch.setattr(vaults.Vault, "write", torn)
    trainer.save_checkpoint(sharded=True)
    monkeypatch.undo()
    trainer.load_checkpoint("latest")  # Waits for what is being verified.
    (left,) = (trainer.run.directory / layout.CHECKPOINTS).iterdir()
    trainer.save_checkpoint()
    trainer.load_checkpoint("latest")
    trainer.run.flush(delivered=False)
    said = [record.body["parts"] for record in records(trainer.run.directory, "art")]
    assert said == [left.name, ""]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="has no /proc")
def test_shards_that_do_not_fit_say_so_and_hold_no_room(trainer: lht.Trainer, parts: Parts) -> None:
    train(trainer, parts, 1)
    shards = trainer.run.directory / layout.CHECKPOINTS
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    gc.disable()
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, before[1]))
        with pytest.raises(lht.CheckpointError, match="File too large") as refused:
            trainer.save_checkpoint(sharded=True)
        opened = [
            os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()
        ]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        gc.enable()
    assert not [name for name in opened if ".distcp" in name]
    assert str(shards) in str(refused.value)
    assert list(shards.iterdir()) == [] and kept_files(trainer) == []
    train(trainer, parts, 1)
    trainer.save_checkpoint(sharded=True)
    (made,) = shards.iterdir()
    assert {path.name for path in made.iterdir()} == {".metadata", "__0_0.distcp"}


def test_a_path_that_is_no_file_is_refused_before_anything_is_written(
    trainer: lht.Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "copyfile", None)  # Nobody's devices are at stake here.
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link-to-a-pipe").symlink_to("pipe")
    odd = {
        "/dev/full": "/dev/full is a device",
        str(tmp_path / "pipe"): "is a pipe",
        str(tmp_path / "link-to-a-pipe"): "link-to-a-pipe is a pipe",
        str(tmp_path): "is a directory",
        "": 'path=""',
        str(tmp_path / "missing" / "mine.pt"): "No such file",
    }
    for path, said in odd.items():
        with pytest.raises(lht.CheckpointError, match=re.escape(said)):
            trainer.save_checkpoint(path)
    assert kept_files(trainer) == []
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)
    assert stat.S_ISFIFO(os.stat(tmp_path / "pipe").st_mode)


def test_a_path_that_is_a_link_is_followed(trainer: lht.Trainer, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "newest.pt"
    link.symlink_to(Path("elsewhere") / "real.pt")
    for epoch in (1, 2):  # The file that it names is not there, then it is.
        trainer.save_checkpoint(link, extra={"epoch": epoch})
        assert link.is_symlink()
        assert torch.load(link, weights_only=True)["extra"] == {"epoch": epoch}
    assert os.listdir(tmp_path / "elsewhere") == ["real.pt"]


def test_latest_of_a_run_without_checkpoints_is_not_found(
    trainer: lht.Trainer, parts: Parts
) -> None:
    with pytest.raises(NotFound):
        trainer.load_checkpoint()
    train(trainer, parts, 1)  # Nothing happened to the training.


def test_what_the_script_keeps_for_itself_stays(tmp_path: Path) -> None:
    trainer = lht.init("unit", state_dir=tmp_path)
    trainer.run.keep({"mine": 1})
    trainer.save_checkpoint()
    trainer.finish(close_run=False)
    again = lht.init("unit", state_dir=tmp_path, resume=trainer.run.run_id)
    assert again.run.restored["mine"] == 1
    assert again.run.restored["launchhelm.torch"]["step"] == 0
    again.finish()


# Refused.


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"a": {"b": [1, Path("/x")]}}, "extra['a']['b'][1] is a pathlib.PosixPath"),
        ({"scale": numpy.float64(0.5)}, "extra['scale'] is a numpy.float64"),
        ({"make": make}, "extra['make'] is a builtins.function"),
        ({Path("/x"): 1}, "the key PosixPath('/x') of extra is a pathlib.PosixPath"),
    ],
)
def test_extra_that_could_not_be_loaded_is_refused_by_its_key_before_anything_is_written(
    trainer: lht.Trainer, extra: Any, named: str
) -> None:
    with pytest.raises(lht.CheckpointError) as refused:
        trainer.save_checkpoint(extra=extra)
    assert named in str(refused.value)
    assert kept_files(trainer) == []
    trainer.step()


@pytest.mark.parametrize("extra", [[1, 2], 5, "abc", (), torch.ones(2)], ids=repr)
def test_extra_that_is_no_dict_is_refused_with_what_to_give(
    trainer: lht.Trainer, extra: Any
) -> None:
    with pytest.raises(lht.CheckpointError, match=r'give a dict, extra=\{"value": \.\.\.\}'):
        trainer.save_checkpoint(extra=extra)
    assert kept_files(trainer) == []


def test_extra_that_contains_itself_is_said_in_few_words(
    trainer: lht.Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    looped: dict[str, Any] = {}
    looped["x"] = [looped]
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    tries: list[object] = []
    save = torch.save

    def counted(*args: Any) -> None:
        tries.append(args)
        save(*args)

    monkeypatch.setattr(torch, "save", counted)
    with pytest.raises(lht.CheckpointError, match=r"extra\['x'\]\[0\] contains itself") as refused:
        trainer.save_checkpoint(extra=looped)
    assert len(str(refused.value)) < 400
    with pytest.raises(lht.CheckpointError, match="extra is nested too deeply"):
        trainer.save_checkpoint(extra={"deep": deep})
    assert len(tries) <= 2  # Looking through it again at each depth would take seconds.


def test_a_generator_of_numpy_that_cannot_be_saved_is_named(
    trainer: lht.Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numpy.random, "get_state", lambda: ("SFC64", [], 0, 0, 0.0))
    with pytest.raises(lht.CheckpointError, match="SFC64"):
        trainer.save_checkpoint()


def test_a_model_that_does_not_fit_is_left_as_it_is(
    trainer: lht.Trainer, tmp_path: Path, parts: Parts
) -> None:
    trainer.save_checkpoint(tmp_path / "one.pt")
    model = torch.nn.Linear(3, 3)
    before = model.weight.detach().clone()
    other = lht.init("unit", state_dir=tmp_path)
    other.watch(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(lht.CheckpointError, match="Nothing of this training was changed"):
        other.load_checkpoint(tmp_path / "one.pt")
    assert torch.equal(model.weight, before)
    other.step()
    other.finish()


def test_a_training_that_is_half_restored_goes_no_further_until_a_good_load(
    trainer: lht.Trainer, tmp_path: Path, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer.save_checkpoint(tmp_path / "one.pt")

    def refuse(state: Any) -> None:
        raise RuntimeError("not today")

    monkeypatch.setattr(parts[2], "load_state_dict", refuse)
    with pytest.raises(lht.CheckpointError, match="not today"):
        trainer.load_checkpoint(tmp_path / "one.pt")
    for _ in range(2):
        with pytest.raises(lht.CheckpointError, match="half restored"):
            trainer.step()
    with pytest.raises(lht.CheckpointError, match="half restored"):
        trainer.save_checkpoint()
    monkeypatch.undo()
    trainer.load_checkpoint(tmp_path / "one.pt")
    train(trainer, parts, 1)


def test_after_finish_nothing_is_saved_and_loading_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = begin(tmp_path, make())
    trainer.save_checkpoint()
    copy = pickle.loads(pickle.dumps(trainer))
    trainer.finish()
    for ended in (trainer, copy):
        assert ended.save_checkpoint(tmp_path / "late.pt") is None
        with pytest.raises(lht.CheckpointError):
            ended.load_checkpoint()
    assert not (tmp_path / "late.pt").exists()
    assert "saves nothing" in caplog.text


# The control.


def test_the_checkpoint_control_names_its_artifact(trainer: lht.Trainer, parts: Parts) -> None:
    outcome = commanded(trainer, "checkpoint")
    assert (outcome.state, outcome.applied_on) == ("applied", 1)
    trainer.load_checkpoint()
    assert trainer.global_step == outcome.applied_at["step"]
    assert outcome.result is not None
    assert trainer.run.history("checkpoint")[-1]["value"] == outcome.result["artifact"]


def test_a_checkpoint_control_on_a_full_disk_is_rejected_and_training_goes_on(
    trainer: lht.Trainer, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: vaults.Vault, payload: Any) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(vaults.Vault, "write", full)
    outcome = commanded(trainer, "checkpoint")
    assert (outcome.state, outcome.code) == ("rejected", "not_done")
    assert "No space left" in outcome.message
    train(trainer, parts, 2)
