"""Reading on bad days: other users, read-only trees, copies of living runs, killed writers."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launchhelm import views
from launchhelm.store import journal, reader
from launchhelm.store.reader import Reader
from tests.support.reading import (
    FakeClock,
    Logger,
    RunBuilder,
    as_nobody,
    assert_is_prefix,
    tree,
    wait_for,
)

ROOT = Path(__file__).resolve().parents[2]
KILLS = 12
COPIES = 12
NAMING = ("openat", "open", "stat", "newfstatat", "statx", "lstat", "readlink", "access")
LOOKING = (*NAMING, "execve", "pread64", "getdents64", "fcntl")
"""Every system call that a reader may make on something in a run directory."""

LOOK = """
import sys
from pathlib import Path
from tests.faults.test_reader_faults import look_at_everything
look_at_everything(Path(sys.argv[1]))
"""


def look_at_everything(root: Path) -> dict[str, Any]:
    """Use the whole read side once."""
    summaries = views.runs(root)
    view = views.open_run(views.find_run(root, "latest"))
    view.refresh()
    newest = view.latest("loss")
    return {
        "states": sorted(summary.state.word for summary in summaries),
        "ranks": [row.rank for row in view.participants],
        "metrics": view.metrics(),
        "points": len(view.history("loss")),
        "newest": newest.step if newest is not None else None,
        "commands": [command.state for command in view.commands],
        "records": len(view.reader().poll()),
        "problems": view.problems,
    }


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that other users can enter; pytest's own is closed to them."""
    path = Path(tempfile.mkdtemp(prefix="launchhelm-test-"))
    path.chmod(0o755)
    yield path
    for folder in path.rglob("*"):
        if folder.is_dir() and not folder.is_symlink():
            folder.chmod(0o755)
    shutil.rmtree(path)


def finished_run(root: Path) -> RunBuilder:
    """Make a run with sealed segments, a journal, two ranks and a waiting command."""
    run = RunBuilder(root, world_size=2)
    for rank in range(2):
        writer = run.writer(rank)
        for step in range(20):
            writer.metrics(step, loss=float(step))
        writer.seal()
        for step in range(20, 30):
            writer.metrics(step, loss=float(step))
        writer.beat(29)
        writer.close("finished", step=29)
        writer.flush()
    run.command("c1", lr=1)
    return run


# --- other users, read-only -----------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_a_read_only_run_of_another_user_is_fully_viewable_and_stays_as_it_is(
    public: Path,
) -> None:
    run = finished_run(public)
    for path in sorted(run.directory.rglob("*"), reverse=True):
        path.chmod(0o555 if path.is_dir() else 0o444)
    run.directory.chmod(0o555)
    public.chmod(0o555)
    before = tree(public)
    found = as_nobody(lambda: look_at_everything(public))
    assert found == {
        "states": ["finished"],
        "ranks": [0, 1],
        "metrics": ["loss"],
        "points": 60,
        "newest": 29,
        "commands": ["waiting"],
        "records": 64,
        "problems": [],
    }
    assert tree(public) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_what_another_user_may_not_read_is_said_and_the_rest_is_shown(public: Path) -> None:
    run = finished_run(public)
    for path in run.directory.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    run.directory.chmod(0o755)
    closed = RunBuilder(public, run_id="00000000-0000-7000-8000-000000000000")
    closed.directory.chmod(0o700)
    (run.directory / "control").chmod(0o700)
    hidden = next((run.directory / "data").glob("r00001*.jsonl"))
    hidden.chmod(0o600)
    found = as_nobody(lambda: look_at_everything(public))
    assert found["states"] == ["finished", "unreadable"]
    assert found["newest"] == 29
    said = " ".join(found["problems"])
    assert "Permission denied" in said
    assert hidden.name in said
    assert "control" in said


# --- what the kernel sees -------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace to see system calls")
def test_readers_write_nothing_lock_nothing_map_nothing_and_probe_no_name(tmp_path: Path) -> None:
    """Every name below the root that is opened or looked at was shown by a listing before."""
    root = tmp_path / "root"
    root.mkdir()
    finished_run(root)
    known = {str(path) for path in root.rglob("*")} | {str(root)}
    log = tmp_path / "strace.log"
    traced = subprocess.run(
        [
            *("strace", "-f", "-y", "-o", str(log), "-s", "4096"),
            *("-e", "trace=%file,fcntl,flock,mmap,pread64,pwrite64,write,ftruncate,getdents64"),
            *(sys.executable, "-B", "-c", LOOK, str(root)),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if "ptrace" in traced.stderr or "PTRACE" in traced.stderr:
        pytest.skip("strace may not trace here")
    assert traced.returncode == 0, traced.stderr
    everything = log.read_text()
    lines = [line for line in everything.splitlines() if str(root) in line]
    assert len(lines) > 20
    for line in lines:
        call = line.split(maxsplit=1)[1].partition("(")[0]
        assert call in LOOKING, line
        assert not any(flag in line for flag in ("O_WRONLY", "O_RDWR", "O_CREAT")), line
        if call in NAMING and '"' in line:
            path = line.split('"')[1]
            assert path in known or not path.startswith(str(root)), f"probed: {line}"
    assert "F_SETLK" not in everything
    assert "flock(" not in everything


# --- moved, linked, archived ----------------------------------------------------------------------


def test_a_moved_and_an_unpacked_run_open_under_their_own_id(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    run = finished_run(root)
    expected = len(Reader(run.directory).poll())
    archive = tmp_path / "run.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(run.directory, arcname="some-name")
    moved = tmp_path / "moved-elsewhere"
    run.directory.rename(moved)
    with tarfile.open(archive) as tar:
        # Debian's Python 3.11 has no filters; later ones warn without.
        options = {"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}
        tar.extractall(tmp_path / "unpacked", **options)
    for place in (moved, tmp_path / "unpacked" / "some-name"):
        view = views.open_run(place)
        assert view.run_id == run.run_id
        assert len(view.reader().poll()) == expected
        assert view.state.word == "finished"
    mentions = [p for p in moved.rglob("*") if p.is_file() and str(root).encode() in p.read_bytes()]
    assert mentions == []


def test_a_link_loop_in_a_run_or_its_root_is_not_followed(tmp_path: Path) -> None:
    run = finished_run(tmp_path)
    (run.directory / "data" / "loop").symlink_to(tmp_path)
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "again").symlink_to(run.directory)
    assert len(views.runs(tmp_path)) == 1
    assert views.open_run(run.directory).problems == []


# --- storage that answers oddly -------------------------------------------------------------------


def test_a_stale_handle_is_normal_and_an_input_error_is_said_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunBuilder(tmp_path)
    writer = run.writer()
    for step in range(5):
        writer.metrics(step, loss=1.0)
    writer.flush()
    opened = os.open
    failures = {"error": errno.ESTALE, "left": 2}

    def failing_open(path: object, *arguments: object, **more: object) -> int:
        if str(path).endswith(".jsonl") and failures["left"] > 0:
            failures["left"] -= 1
            raise OSError(failures["error"], os.strerror(failures["error"]))
        return opened(path, *arguments, **more)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(journal.os, "open", failing_open)
    found = Reader(run.directory)
    assert len(found.poll()) == 5
    assert found.problems == []
    failures.update(error=errno.EIO, left=1)
    found = Reader(run.directory)
    assert found.poll() == []
    assert found.problems == [f"{writer.journal.name} cannot be read: {os.strerror(errno.EIO)}"]
    assert len(found.poll()) == 5
    assert found.problems == []


def test_a_directory_that_cannot_be_listed_for_a_while_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = finished_run(tmp_path)
    found = Reader(run.directory)

    def broken(_: Path) -> object:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(reader, "list_segments", broken)
        assert found.poll() == []
        assert found.problems
    assert len(found.poll()) == 64
    assert found.problems == []


# --- living and killed writers --------------------------------------------------------------------


@pytest.mark.slow
def test_a_copy_of_a_living_run_reads_as_a_consistent_prefix_and_the_next_is_whole(
    tmp_path: Path,
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    run = RunBuilder(root)
    copy = tmp_path / "copy"
    counts = []
    with Logger(run):
        for number in range(COPIES):
            if number % 2:
                shutil.rmtree(copy, ignore_errors=True)
            # As cp -r would: files that vanish meanwhile are left out, others are cut anywhere.
            subprocess.run(
                ["cp", "-r", "-T", "--remove-destination", str(run.directory), str(copy)],
                stderr=subprocess.DEVNULL,
            )
            clock = FakeClock()
            found = Reader(copy, clock=clock)
            counts.append(assert_is_prefix(found.poll()))
            values = {p.step: p.value for p in views.open_run(copy).points("loss")}
            assert all(value == step * 0.5 for step, value in values.items() if step is not None)
    shutil.rmtree(copy)
    shutil.copytree(run.directory, copy)
    everything = assert_is_prefix(Reader(copy).poll())
    assert everything >= max(counts) > 0


@pytest.mark.slow
def test_a_killed_writer_leaves_a_gap_free_prefix_that_readers_do_not_touch(
    tmp_path: Path,
) -> None:
    run = RunBuilder(tmp_path)
    chance = random.Random(11)
    clock = FakeClock()
    found = Reader(run.directory, clock=clock)
    expected: dict[object, list[int]] = {}
    for attempt in range(1, KILLS + 1):
        run.attempt(1)
        with Logger(run, attempt=attempt) as logger:
            for _ in range(chance.randrange(6)):
                for record in found.poll():
                    expected.setdefault(record.writer, []).append(record.seq)
            logger.kill()
        before = tree(run.directory)
        mine = [record for record in Reader(run.directory).poll() if record.writer == logger.writer]
        assert assert_is_prefix(mine) > 50
        assert tree(run.directory) == before
    clock.pass_s(1000)
    for record in found.poll():
        expected.setdefault(record.writer, []).append(record.seq)
    assert len(expected) == KILLS
    assert all(seqs == list(range(len(seqs))) for seqs in expected.values())
    assert found.gaps == []
    view = views.open_run(run.directory)
    assert [attempt.end for attempt in view.attempts[1:]] == [""] * KILLS


@pytest.mark.slow
def test_readers_that_come_and_go_miss_nothing_of_a_living_writer(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path)
    found = Reader(run.directory)
    seqs: list[int] = []
    with Logger(run):
        while len(seqs) < 4000:
            seqs += [record.seq for record in found.poll(limit=700)]
            found = Reader(run.directory, found.cursor)
    seqs += [record.seq for record in found.poll()]
    assert seqs == list(range(len(seqs)))
    assert found.problems == []


@pytest.mark.slow
def test_a_stopped_process_is_silent_and_runs_again_when_its_counter_moves(
    tmp_path: Path,
) -> None:
    run = RunBuilder(tmp_path)
    clock = FakeClock(wall=0.0)
    with Logger(run, pause_s=0.005) as logger:
        view = views.open_run(run.directory, clock=clock)
        view.refresh()
        logger.process.send_signal(signal.SIGSTOP)

        def stands_still() -> bool:
            before = view.participants[0].last_at
            view.refresh()
            return view.participants[0].last_at == before

        wait_for(lambda: all(stands_still() for _ in range(20)))
        clock.pass_s(views.SILENT_S + 1)
        view.refresh()
        assert view.participants[0].state == "silent"
        assert view.state.word == "no news"
        logger.process.send_signal(signal.SIGCONT)

        def moves() -> bool:
            view.refresh()
            return view.participants[0].state == "ok"

        wait_for(moves)
        assert view.state.word == "running"
