"""`run.artifact`, `run.checkpoint` and `run.fetch`, without a server."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import launchhelm
from launchhelm import Run
from launchhelm.errors import ConfigError, Conflict, ProtocolError, StorageError
from launchhelm.store import media
from tests.support.journals import records, series
from tests.support.runs import running

DATA = os.urandom(262_144)
DIGEST = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with running(tmp_path / "runs", name="under-test") as run:
        yield run


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "weights.bin"
    path.write_bytes(DATA)
    return path


def test_the_bytes_are_the_runs_own_when_the_call_returns(run: Run, source: Path) -> None:
    document = run.artifact(source, step=0, name="weights")
    source.write_bytes(b"something else")
    source.unlink()
    assert media.read(run.directory, DIGEST) == DATA
    assert run.fetch("weights") == DATA
    assert document.kind == "artifact"
    assert document.scope.run_id == run.run_id
    assert document.spec["sha256"] == DIGEST
    assert document.spec["size"] == "262144"
    assert document.spec["state"] == "ready"
    assert document.spec["name"] == "weights.bin"
    assert document.spec["purpose"] == "general"


def test_an_artifact_is_a_record_and_its_name_a_point_after_it(run: Run, source: Path) -> None:
    document = run.artifact(source, step=7, name="weights", media_type="a/b", fold=2)
    run.flush(delivered=False)
    first, second = records(run.directory, "art", "m")
    assert (first.kind, first.step, first.axes) == ("art", 7, {"fold": "2"})
    assert first.body == {
        "id": document.id,
        "name": "weights.bin",
        "media_type": "a/b",
        "size": len(DATA),
        "sha256": DIGEST,
        "purpose": "general",
    }
    assert (second.kind, second.step, second.axes) == ("m", 7, {"fold": "2"})
    assert second.body == {"weights": document.id}
    latest = run.latest("weights")
    assert latest is not None and latest["value"] == document.id
    assert latest["coordinates"] == {"step": "7", "fold": "2"}


def test_an_artifact_without_a_name_is_no_point(run: Run, source: Path) -> None:
    run.artifact(source)
    run.flush(delivered=False)
    assert len(records(run.directory, "art")) == 1
    assert records(run.directory, "m") == []


def test_the_step_is_the_counter_and_does_not_move_it(run: Run, source: Path) -> None:
    run.log({"loss": 1.0}, step=4)
    run.checkpoint(source)
    run.log({"loss": 0.5})
    run.flush(delivered=False)
    assert [step for step, _ in series(run.directory, "checkpoint")] == [5]
    assert [step for step, _ in series(run.directory, "loss")] == [4, 5]


def test_a_checkpoint_may_be_bytes_and_the_newest_is_fetched(run: Run) -> None:
    first = run.checkpoint(b"one", step=1)
    second = run.checkpoint(memoryview(b"two"), step=2)
    assert first.id != second.id
    assert first.spec["name"] == "checkpoint"
    assert run.fetch("checkpoint") == b"two"


def test_the_same_bytes_twice_are_two_artifacts_and_one_file(run: Run, source: Path) -> None:
    assert run.artifact(source).id != run.artifact(source).id
    assert [path.name for path in (run.directory / "media").iterdir()] == [DIGEST]


def test_a_key_makes_a_second_call_the_first(run: Run, source: Path) -> None:
    first = run.artifact(source, idempotency_key="final")
    assert run.artifact(source, idempotency_key="final") is first
    with pytest.raises(Conflict):
        run.artifact(b"other", idempotency_key="final")
    run.flush(delivered=False)
    assert len(records(run.directory, "art")) == 1


def test_a_full_disk_is_one_clear_error_and_costs_nothing_else(
    run: Run, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.log({"loss": 1.0}, step=0)

    def full(descriptor: int, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.write", full)
    with pytest.raises(StorageError) as caught:
        run.checkpoint(source)
    monkeypatch.undo()
    assert "No space left" in caught.value.message
    assert caught.value.remedy
    run.log({"loss": 0.5}, step=1)
    run.flush(delivered=False)
    assert series(run.directory, "loss") == [(0, 1.0), (1, 0.5)]
    assert records(run.directory, "art") == []
    assert list((run.directory / "media").iterdir()) == []
    assert run.metrics() == ["loss"]


def test_wrong_arguments_raise_before_anything_is_copied(run: Run, source: Path) -> None:
    run.log({"loss": 1.0})
    with pytest.raises(OSError):
        run.artifact("no such file")
    with pytest.raises(OSError):
        run.artifact(source.parent)
    with pytest.raises(ValueError, match="1 byte; a server takes no empty one"):
        run.artifact(b"")
    with pytest.raises(TypeError, match="holds numbers"):
        run.artifact(source, name="loss")
    with pytest.raises(TypeError):
        run.artifact(source, step=1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        run.artifact(source, name=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        run.artifact(source, media_type="")
    with pytest.raises(ValueError):
        run.artifact(source, Fold=1)
    assert not (run.directory / "media").exists()


def test_fetch_says_what_is_not_there(run: Run, source: Path) -> None:
    with pytest.raises(ProtocolError, match="no point"):
        run.fetch("weights")
    run.log({"note": "plain text"})
    with pytest.raises(ProtocolError, match="no artifact"):
        run.fetch("note")
    with pytest.raises(ConfigError):
        run.fetch("note", run="nobody")
    run.artifact(source, name="weights")
    (run.directory / "media" / DIGEST).unlink()
    with pytest.raises(StorageError):
        run.fetch("weights")


def test_a_sibling_run_is_fetched_from(run: Run, source: Path) -> None:
    run.artifact(source, name="weights")
    with running(run.directory.parent, name="other", project=run.project) as other:
        run.flush(delivered=False)
        assert other.fetch("weights", run="under-test") == DATA


def test_after_finish_nothing_is_written_and_reading_goes_on(run: Run, source: Path) -> None:
    run.artifact(source, name="weights")
    run.finish()
    late = run.artifact(b"late", name="weights")
    assert late.spec["sha256"] == hashlib.sha256(b"late").hexdigest()
    assert [path.name for path in (run.directory / "media").iterdir()] == [DIGEST]
    assert run.fetch("weights") == DATA


def test_the_bytes_of_a_killed_run_are_there(tmp_path: Path) -> None:
    """The file is durable before its record, so no record ever names bytes that are not there."""
    import subprocess
    import sys

    code = (
        "import os, signal, launchhelm\n"
        "run = launchhelm.init('p', name='killed', state_dir='runs')\n"
        "run.checkpoint(b'state', step=3)\n"
        "run.flush(delivered=False)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        timeout=60,
        check=False,
        capture_output=True,
    )
    with launchhelm.init("p", name="next", state_dir=tmp_path / "runs") as run:
        assert run.fetch("checkpoint", run="killed") == b"state"
