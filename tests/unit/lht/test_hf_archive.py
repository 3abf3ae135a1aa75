"""What both callbacks share: checkpoints copied beside the training, and a limit that is proven."""

from __future__ import annotations

import os
import shutil
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import launchhelm
from launchhelm.store import media
from launchhelm.torch import _callback_archive
from launchhelm.torch._callback import plain
from launchhelm.torch._callback_archive import Archive
from launchhelm.torch._callback_clip import FrameworkClip
from launchhelm.torch._controls import NotEffective
from tests.support.journals import records


@pytest.fixture
def run(tmp_path: Path) -> Iterator[launchhelm.Run]:
    with launchhelm.init("demo", state_dir=tmp_path / "runs") as it:
        yield it


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A checkpoint of three files, one of them two levels down."""
    folder = tmp_path / "checkpoint-7"
    (folder / "shards").mkdir(parents=True)
    (folder / "state.json").write_text("{}")
    (folder / "weights").write_bytes(bytes(range(256)) * 10)
    (folder / "shards" / "empty").touch()
    return folder


def notices(run: launchhelm.Run) -> list[str]:
    run.flush(delivered=False)
    found = (it.body for it in records(run.directory, "ev"))
    return [str(body["text"]) for body in found if body.get("about") == "checkpoints"]


def artifacts(run: launchhelm.Run) -> list[str]:
    run.flush(delivered=False)
    return [str(it.body["sha256"]) for it in records(run.directory, "art")]


def test_a_directory_becomes_one_tar_and_equal_content_equal_bytes(
    run: launchhelm.Run, saved: Path, tmp_path: Path
) -> None:
    archive = Archive(run, "saved")
    archive.keep(saved, step=7)
    archive.keep(saved, step=8)
    shutil.rmtree(saved)  # What is taken can be deleted at once.
    archive.wait(60.0)
    one, other = artifacts(run)
    assert one == other
    with tarfile.open(media.path_of(run.directory, one)) as tar:
        tar.extractall(tmp_path / "out", filter="data")
    assert (tmp_path / "out/checkpoint-7/weights").read_bytes() == bytes(range(256)) * 10
    assert (tmp_path / "out/checkpoint-7/shards/empty").read_bytes() == b""
    assert run.fetch("saved") == media.read(run.directory, one)
    assert notices(run) == []


def test_what_cannot_be_copied_is_said_and_left_where_it_is(
    run: launchhelm.Run, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = Archive(run, "saved")
    archive.keep(saved / "missing", step=1)
    with monkeypatch.context() as patch:
        patch.setattr(_callback_archive, "MAX_FILES", 2)
        archive.keep(saved, step=2)
    with archive._turn:  # The copy waits until the file has changed.
        archive.keep(saved / "weights", step=3)
        with (saved / "weights").open("ab") as more:
            more.write(b"more")
    archive.wait(60.0)
    with monkeypatch.context() as patch:
        usage = SimpleNamespace(free=2 * (saved / "weights").stat().st_size)
        patch.setattr(_callback_archive.shutil, "disk_usage", lambda path: usage)
        archive.keep(saved / "weights", step=4)
        archive.wait(60.0)
    said = notices(run)
    for text, why in zip(
        said,
        ("cannot be opened", "more than 2 files", "changed while it was copied", "MiB are free"),
        strict=True,
    ):
        assert why in text and "left where it is" in text
    assert artifacts(run) == [] and (saved / "weights").exists()


def test_the_end_of_a_run_waits_for_a_copy_however_it_comes(
    run: launchhelm.Run, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = Archive(run, "saved")
    waiting = threading.Event()
    wait = archive.wait

    def seen(timeout_s: float) -> None:
        waiting.set()
        wait(timeout_s)

    monkeypatch.setattr(archive, "wait", seen)
    archive._turn.acquire()
    archive.keep(saved, step=7)
    end = threading.Thread(target=lambda: run.finish(state="error", reason="lost"))
    end.start()
    assert waiting.wait(60.0)
    archive._turn.release()
    end.join(60.0)
    (art,) = records(run.directory, "art")
    (close,) = records(run.directory, "close")
    assert media.read(run.directory, str(art.body["sha256"])) and close.body["state"] == "error"
    assert notices(run) == []


def test_a_copy_that_the_end_overtakes_at_its_last_byte_leaves_nothing(
    run: launchhelm.Run,
    saved: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    archive = Archive(run, "saved")
    is_whole, goes_on = threading.Event(), threading.Event()
    fsync = os.fsync

    def slow(descriptor: int) -> None:
        if threading.current_thread().name == "launchhelm-archive":
            is_whole.set()
            assert goes_on.wait(60.0)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", slow)
    archive.keep(saved, step=7)
    assert is_whole.wait(60.0)
    run.finish(timeout=_callback_archive.RECORDS_S)
    goes_on.set()
    archive.wait(60.0)
    (text,) = notices(run)
    assert "the run ended before that" in text
    assert records(run.directory, "art") == []
    assert list((run.directory / "media").iterdir()) == []
    assert "after finish()" not in caplog.text


def test_the_end_of_a_run_gives_up_a_copy_that_takes_too_long(
    run: launchhelm.Run, saved: Path
) -> None:
    archive = Archive(run, "saved")
    with archive._turn:
        archive.keep(saved, step=7)
        run.finish(timeout=_callback_archive.RECORDS_S)
    archive.wait(60.0)
    (text,) = notices(run)
    assert "the run ended before that" in text
    assert records(run.directory, "art") == []
    assert list((run.directory / "media").glob("*")) == []


class Framework:
    """Has a setting for clipping, and heeds it or not."""

    def __init__(self) -> None:
        self.limit: float | None = 1.0
        self.heeds = True
        self.parameter = torch.nn.Parameter(torch.ones(4))
        self.clip = FrameworkClip(lambda: self.limit, self.put, lambda: "", "Framework.limit")

    def put(self, limit: float | None) -> None:
        self.limit = limit

    def step(self) -> None:
        self.parameter.grad = torch.full((4,), 2.0)
        if self.heeds and self.limit is not None:
            torch.nn.utils.clip_grad_norm_([self.parameter], self.limit)
        self.clip.observe([self.parameter])


def test_a_limit_is_proven_by_the_gradients_after_it() -> None:
    framework = Framework()
    clip = framework.clip
    for heeds, said in ((True, ""), (False, "had norm 4 all the same")):
        framework.heeds = heeds
        assert clip.apply({"max_norm": 0.5}) == {"max_norm": 0.5}
        framework.step()
        assert said in clip.look_again(1.0, 0.5) and bool(said) == bool(clip.look_again(1.0, 0.5))
    framework.step()
    clip.apply({})
    framework.step()
    assert clip.look_again(0.5, None) == ""


def test_a_limit_that_somebody_else_writes_is_told() -> None:
    framework = Framework()
    framework.clip.apply({"max_norm": 0.5})
    framework.limit = 2.0
    assert "is 2.0 one step later" in framework.clip.look_again(1.0, 0.5)
    framework.put = lambda limit: None  # type: ignore[method-assign]
    stuck = FrameworkClip(lambda: framework.limit, framework.put, lambda: "", "Framework.limit")
    with pytest.raises(NotEffective, match=r"was set to 0\.5, and is 2\.0"):
        stuck.apply({"max_norm": 0.5})


def test_settings_become_what_a_config_takes() -> None:
    given = {"a": None, "b": float("nan"), "c": [None, 1, {"d": None, "e": Path("x")}], 3: True}
    assert plain(given) == {"b": "nan", "c": ["None", 1, {"e": "x"}], "3": True}
