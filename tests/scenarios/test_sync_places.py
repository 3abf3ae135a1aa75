"""Where runs lie: in parts, linked, moved, unpacked, read-only, behind a slow or silent storage."""

from __future__ import annotations

import contextlib
import importlib
import os
import pkgutil
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import launchhelm
import launchhelm.cli
import syncer
from launchhelm.cli import Exit, main
from launchhelm.store.layout import parse_segment
from tests.support.reading import Logger, RunBuilder, WriterBuilder, as_nobody, tree, wait_for
from tests.support.sync_command import (
    SyncCommand,
    assert_single,
    attempt_of,
    points,
    run_documents,
    run_states,
    steps,
)
from tests.support.v1_server import PROJECT, V1Server, v1_server

POLL_S = 2.0
NO_EVENTS = "import sys\nsys.modules['watchdog'] = sys.modules['watchdog.observers'] = None\n"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[V1Server]:
    with v1_server(tmp_path / "far") as it:
        yield it


@pytest.fixture
def sync(tmp_path: Path, server: V1Server) -> SyncCommand:
    return SyncCommand(tmp_path, server.url, server.key, {"LAUNCHHELM_PROJECT": PROJECT})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "runs"
    path.mkdir()
    return path


def log(writer: WriterBuilder, numbers: range, loss: float = 1.0) -> None:
    for step in numbers:
        writer.metrics(step, loss=loss)
    writer.flush()


# --- attempts -------------------------------------------------------------------------------------


def test_attempts_of_a_run_may_be_sent_in_any_order_from_copies_that_lack_the_others(
    tmp_path: Path, server: V1Server, sync: SyncCommand, root: Path
) -> None:
    run_id = ""
    for number in range(3):
        run = launchhelm.init(PROJECT, name="jobs", state_dir=root, resume=run_id)
        run_id = run.run_id
        for step in range(100 * number, 100 * (number + 1)):
            run.log({"loss": 1.0}, step=step)
        run.finish(close_run=number == 2)

    for attempt in (3, 1, 2):
        copy = tmp_path / f"host-{attempt}" / run_id
        shutil.copytree(root / run_id, copy)
        for path in (copy / "data").iterdir():
            name = parse_segment(path.name)
            if name is not None and name.writer.attempt != attempt:
                path.unlink()
        assert sync.once(copy).code == Exit.DONE
    assert sync.once(root).points == 0

    found = points(server, "loss")
    assert_single(found)
    assert steps(found) == list(range(300))
    assert {attempt_of(it) for it in found} == {1, 2, 3}
    assert run_states(server) == {"jobs": "closed"}


def test_steps_that_were_repeated_after_a_resume_are_sent_under_each_attempt(
    server: V1Server, sync: SyncCommand, root: Path
) -> None:
    run = RunBuilder(root, attempts=2)
    log(run.writer(attempt=1), range(213), loss=1.0)
    log(run.writer(attempt=2), range(200, 301), loss=2.0)
    assert sync.once(root).code == Exit.DONE
    found = points(server, "loss")
    assert_single(found)
    assert steps(found, attempt=1) == list(range(213))
    assert steps(found, attempt=2) == list(range(200, 301))
    assert all(it.value == float(attempt_of(it)) for it in found)


# --- links, moves, archives -----------------------------------------------------------------------


def test_links_and_loops_in_a_root_send_no_run_twice(
    server: V1Server, sync: SyncCommand, root: Path
) -> None:
    run = RunBuilder(root, name="one")
    log(run.writer(), range(10))
    (root / "latest").symlink_to(run.directory)
    (root / "loop").symlink_to(root)
    (run.directory / "up").symlink_to(root)
    done = sync.once(root)
    assert done.code == Exit.DONE, done.err
    assert len(done.out.splitlines()) == 1
    assert len(run_documents(server)) == 1 and len(points(server, "loss")) == 10


def test_a_run_that_is_moved_and_unpacked_elsewhere_goes_on_as_the_same_run(
    tmp_path: Path, server: V1Server, sync: SyncCommand, root: Path
) -> None:
    run = launchhelm.init(PROJECT, name="moving", state_dir=root)
    log_steps(run, range(50))
    run.finish(close_run=False)
    assert sync.once(root).code == Exit.DONE

    moved = tmp_path / "moved"
    root.rename(moved)
    with tarfile.open(tmp_path / "run.tar", "w") as archive:
        archive.add(moved / run.run_id, "anything")
    shutil.rmtree(moved)
    unpacked = tmp_path / "unpacked"
    with tarfile.open(tmp_path / "run.tar") as archive:
        # Debian's Python 3.11 has no filters; later ones warn without.
        options: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(unpacked, **options)
    again = launchhelm.init(PROJECT, state_dir=unpacked, resume=run.run_id)
    assert again.directory == unpacked / "anything"
    log_steps(again, range(50, 100))
    again.finish()

    assert sync.once(unpacked).code == Exit.DONE
    found = points(server, "loss")
    assert_single(found)
    assert steps(found) == list(range(100))
    assert run_states(server) == {"moving": "closed"}
    written = b"".join(path.read_bytes() for path in unpacked.rglob("*") if path.is_file())
    assert str(root).encode() not in written and str(moved).encode() not in written


def log_steps(run: launchhelm.Run, numbers: range) -> None:
    for step in numbers:
        run.log({"loss": 1.0}, step=step)


def test_copies_of_a_living_run_send_right_rows_only_and_each_what_the_one_before_lacked(
    tmp_path: Path, server: V1Server, sync: SyncCommand, root: Path
) -> None:
    run = RunBuilder(root)
    with Logger(run, pause_s=0.001):
        for number in range(4):
            copy = tmp_path / f"copy-{number}" / run.run_id
            with contextlib.suppress(shutil.Error):  # A journal was sealed meanwhile.
                shutil.copytree(run.directory, copy)
            sync.once(copy)  # One that is torn may say so.
    assert sync.once(root).code == Exit.DONE
    found = points(server, "loss", "twice")
    assert_single(found)
    for name, factor in (("loss", 0.5), ("twice", 2)):
        sent = {it.step: it.value for it in found if it.name == name}
        assert sorted(sent) == list(range(len(sent))) and len(sent) > 50
        assert all(value == step * factor for step, value in sent.items())


# --- other users, read-only -----------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_another_user_sends_what_may_be_read_of_a_read_only_root_and_changes_nothing(
    server: V1Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One run is closed to that user: it is named, and all others arrive."""
    for package in (launchhelm.cli, syncer):  # That user may not be able to read our folder.
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    with tempfile.TemporaryDirectory() as folder:
        public, home = Path(folder), Path(folder) / "home"
        runs = [RunBuilder(public / "runs", name=f"run-{number}") for number in range(4)]
        for run in runs:
            log(run.writer(), range(30))
        closed, *opened = runs
        (public / "runs" / "0192b3c4-0000-7000-8000-000000000000").touch()
        home.mkdir()
        home.chmod(0o777)
        for path in (public, *public.rglob("*")):
            if path != home:
                path.chmod(0o555 if path.is_dir() else 0o444)
        for path in closed.directory.rglob("*"):
            path.chmod(0)
        before = tree(public / "runs")
        settings = {
            "URL": server.url,
            "API_KEY": server.key,
            "PROJECT": PROJECT,
            "STATE_DIR": str(home),
        }
        for name, value in settings.items():
            monkeypatch.setenv(f"LAUNCHHELM_{name}", value)

        def pass_over(said: Path) -> dict[str, Any]:
            monkeypatch.chdir("/")
            with said.open("w", encoding="utf-8") as file:
                monkeypatch.setattr(sys, "stderr", file)
                return {"code": main(["sync", str(public / "runs")])}

        said = home / "said"
        assert as_nobody(lambda: pass_over(said)) == {"code": Exit.IN_PART}
        assert closed.run_id in said.read_text() and "0192b3c4" in said.read_text()
        found = points(server, "loss")
        assert {it.run for it in found} == {run.run_id for run in opened}
        assert len(found) == 30 * len(opened)
        assert as_nobody(lambda: pass_over(home / "again")) == {"code": Exit.IN_PART}
        assert len(points(server, "loss")) == len(found)
        assert tree(public / "runs") == before


# --- a storage that tells nothing, or late --------------------------------------------------------


def test_new_runs_and_records_are_found_without_any_file_event(
    server: V1Server, sync: SyncCommand, root: Path
) -> None:
    first = RunBuilder(root, name="first").writer()
    log(first, range(10))
    with sync.watching(root, change=NO_EVENTS):
        wait_for(lambda: len(points(server, "loss")) == 10)
        for number in range(2):
            log(first, range(10 + number, 11 + number))
            log(RunBuilder(root, name=f"later-{number}").writer(), range(1))
            wait_for(lambda number=number: len(points(server, "loss")) == 12 + 2 * number)


def test_files_that_show_up_late_or_in_the_wrong_order_are_waited_for_without_a_word(
    tmp_path: Path, server: V1Server, sync: SyncCommand, root: Path
) -> None:
    """First the identity of a run is hidden, then a segment in the middle of its records."""
    run = RunBuilder(root, name="late")
    writer = run.writer()
    log(writer, range(20))
    middle = writer.rotate()
    log(writer, range(20, 40))
    manifest = run.directory / "run.json"
    hidden = [tmp_path / "hidden.json", tmp_path / "hidden.jsonl"]
    manifest.rename(hidden[0])
    middle.rename(hidden[1])
    with sync.watching(root) as process:
        told_late(process, POLL_S)
        assert run_states(server) == {}
        hidden[0].rename(manifest)
        wait_for(lambda: run_documents(server) or process.poll() is not None)
        hidden[1].rename(middle)
        wait_for(lambda: len(points(server, "loss")) == 40)
        process.terminate()
        _, err = process.communicate(timeout=30)
    assert err == "" and process.returncode == Exit.DONE
    found = points(server, "loss")
    assert_single(found)
    assert steps(found) == list(range(40))


def told_late(process: subprocess.Popen[str], seconds: float) -> None:
    """Let a syncer look for so long; it must not end over it."""
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(seconds)
