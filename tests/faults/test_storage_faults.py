"""Storage that is full, slow, hung or gone: training goes on, and what can be kept is kept."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from launchhelm import _drain, _overflow
from launchhelm.errors import BufferFull, ConfigError
from launchhelm.store import manifest as manifest_module
from launchhelm.store import segment
from launchhelm.store import writer as writer_module
from launchhelm.store.segment import sealed_records
from tests.support.storage import FaultyOs, recording, records, steps, wait_until


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> FaultyOs:
    """What the journals see as the os module; retries come quickly."""
    faulty = FaultyOs()
    monkeypatch.setattr(writer_module, "os", faulty)
    monkeypatch.setattr(_drain, "_RETRY_S", (0.02,))
    return faulty


class Hang:
    """An fsync that returns only when it is let go."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self._let_go = threading.Event()

    def __call__(self) -> None:
        self.entered.set()
        assert self._let_go.wait(60)

    def end(self) -> None:
        self._let_go.set()


@pytest.mark.parametrize(
    "number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.ESTALE, errno.EROFS]
)
@pytest.mark.parametrize("call", ["pwrite", "fsync"])
def test_storage_that_recovers_has_lost_nothing(
    tmp_path: Path, storage: FaultyOs, call: str, number: int
) -> None:
    with recording(tmp_path) as recorder:
        storage.fail(call, number, times=None)
        for step in range(1000):
            assert recorder.append("m", {"loss": 1.0}, step=step)
        wait_until(lambda: storage.calls[call] > 3)
        assert recorder.last_error == os.strerror(number)
        with pytest.raises(TimeoutError, match="not accepted everything"):
            recorder.flush(0.01)
        storage.heal()
        recorder.flush(10)
        assert recorder.last_error is None
        assert steps(tmp_path) == list(range(1000))
    assert recorder.dropped == 0
    assert recorder.faults["storage"] > 0
    faults = [r.body for r in records(tmp_path, "ev") if r.body["type"] == "fault"]
    assert [fault["component"] for fault in faults] == ["storage"]
    assert faults[0]["error"] == os.strerror(number)
    numbers = [record.seq for record in records(tmp_path)]
    assert numbers == list(range(len(numbers)))


def test_a_failing_storage_is_warned_about_once(
    tmp_path: Path, storage: FaultyOs, caplog: pytest.LogCaptureFixture
) -> None:
    with recording(tmp_path) as recorder:
        storage.fail("fsync", errno.ENOSPC, times=None)
        recorder.append("m", {"loss": 1.0})
        wait_until(lambda: storage.calls["fsync"] > 5)
        storage.heal()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "No space left on device" in caplog.text


def test_storage_that_is_gone_for_good_costs_the_oldest_points_only(
    tmp_path: Path, storage: FaultyOs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_overflow, "PATIENCE_S", 0.05)
    with recording(tmp_path, buffer_records=1000) as recorder:
        recorder.flush(10)
        storage.fail("pwrite", errno.ENOSPC, times=None)
        for step in range(5000):
            recorder.append("m", {"loss": 1.0}, step=step)
            if step % 500 == 0:
                recorder.append("oc", {"cmd": str(step), "state": "applied"})
        tracemalloc.start()
        for step in range(5000, 25_000):
            recorder.append("m", {"loss": 1.0}, step=step)
        grown = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        storage.heal()
    # The buffer was full all the time: what came in took the place of what went out.
    assert grown < 2 << 20
    assert len(records(tmp_path, "oc")) == 10
    assert len(records(tmp_path, "close")) == 1
    kept = steps(tmp_path)
    # Those that had their number before the storage went are kept in the journal's memory.
    assert kept[-900:] == list(range(24_100, 25_000))
    assert recorder.dropped == 25_000 - len(kept)
    lost = {
        number
        for gap in records(tmp_path, "gap")
        for number in range(gap.body["first"], gap.body["last"] + 1)
    }
    assert len(lost) == recorder.dropped
    numbers = {record.seq for record in records(tmp_path)}
    assert numbers.isdisjoint(lost)
    assert numbers | lost == set(range(max(numbers) + 1))


def test_log_waits_only_so_long_in_all(
    tmp_path: Path, storage: FaultyOs, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept = []
    monkeypatch.setattr(_overflow, "sleep", slept.append)
    with recording(tmp_path, buffer_records=10) as recorder:
        hang = Hang()
        storage.hooks["fsync"] = hang
        recorder.append("m", {"loss": 1.0})
        assert hang.entered.wait(10)
        for step in range(1000):
            assert recorder.append("m", {"loss": 1.0}, step=step)
        storage.heal()
        hang.end()
    assert sum(slept) == pytest.approx(_overflow.PATIENCE_S, abs=0.1)


def test_a_burst_that_working_storage_takes_in_time_loses_nothing(tmp_path: Path) -> None:
    with recording(tmp_path, buffer_records=500) as recorder:
        for step in range(20_000):
            assert recorder.append("m", {"loss": 1.0}, step=step)
    assert recorder.dropped == 0
    assert steps(tmp_path) == list(range(20_000))


def test_overflow_raise_raises_and_keeps_what_was_there(tmp_path: Path, storage: FaultyOs) -> None:
    with recording(tmp_path, buffer_records=10, overflow="raise") as recorder:
        hang = Hang()
        storage.hooks["fsync"] = hang
        recorder.append("m", {"loss": 1.0}, step=-1)
        assert hang.entered.wait(10)
        for step in range(10):
            recorder.append("m", {"loss": 1.0}, step=step)
        with pytest.raises(BufferFull):
            recorder.append("m", {"loss": 1.0}, step=10)
        recorder.append("oc", {"cmd": "a"})
        storage.heal()
        hang.end()
    assert steps(tmp_path) == list(range(-1, 10))
    assert len(records(tmp_path, "oc")) == 1


def test_overflow_drop_new_refuses_and_counts(tmp_path: Path, storage: FaultyOs) -> None:
    with recording(tmp_path, buffer_records=10, overflow="drop_new") as recorder:
        hang = Hang()
        storage.hooks["fsync"] = hang
        recorder.append("m", {"loss": 1.0}, step=-1)
        assert hang.entered.wait(10)
        taken = [recorder.append("m", {"loss": 1.0}, step=step) for step in range(15)]
        storage.heal()
        hang.end()
    assert taken == [True] * 10 + [False] * 5
    assert recorder.dropped == 5
    assert steps(tmp_path) == list(range(-1, 10))


def test_a_hung_fsync_delays_neither_logging_nor_the_end(tmp_path: Path, storage: FaultyOs) -> None:
    with recording(tmp_path) as recorder:
        hang = Hang()
        storage.hooks["fsync"] = hang
        recorder.append("m", {"loss": 1.0}, step=0)
        assert hang.entered.wait(10)
        # The thread is in the kernel; every one of these returns all the same.
        for step in range(1, 20_000):
            recorder.append("m", {"loss": 1.0}, step=step)
        assert not recorder.close("finished", "", 0.05)
        storage.heal()
        hang.end()
        assert recorder.close("finished", "", 20)
    assert steps(tmp_path) == list(range(20_000))


def test_a_process_with_hung_storage_ends_all_the_same(tmp_path: Path) -> None:
    script = """
import sys, time
from pathlib import Path
from launchhelm import _endings
from launchhelm._recorder import Recorder
from launchhelm.store import writer
from tests.support.storage import OPENING, WRITER, FaultyOs

storage = FaultyOs()
writer.os = storage
recorder = Recorder(Path(sys.argv[1]), WRITER, OPENING, flush_s=0.01)
recorder.start()
_endings.at_end(lambda state, reason: recorder.close(state, reason, 0.2))
storage.hooks["fsync"] = lambda: time.sleep(1000)
recorder.append("m", {"loss": 1.0})
print("logged", flush=True)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stdout == "logged\n"
    assert done.stderr == ""


def test_a_file_size_limit_is_survived_and_told(tmp_path: Path) -> None:
    """A real limit of the kernel, raised again later."""
    script = """
import resource, sys, time
from pathlib import Path
from launchhelm import _drain
from tests.support.storage import recording, wait_until

_drain._RETRY_S = (0.02,)
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, hard))
with recording(Path(sys.argv[1])) as recorder:
    for step in range(2000):
        recorder.append("m", {"loss": 1.0}, step=step)
    wait_until(lambda: recorder.last_error)
    print(recorder.last_error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    recorder.flush(10)
    assert recorder.dropped == 0
"""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "File too large\n", done.stderr
    assert steps(tmp_path) == list(range(2000))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB; skips loudly where none can be mounted."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a small tmpfs: {mounted.stderr.decode().strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_is_survived_and_complete_after_room_was_made(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_drain, "_RETRY_S", (0.02,))
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 900_000)
    with recording(small_disk / "run") as recorder:
        step = 0
        while not recorder.last_error:
            recorder.append("m", {"loss": 0.1234567}, step=step)
            step += 1
            time.sleep(0)
        assert recorder.last_error == "No space left on device"
        ballast.unlink()
        recorder.flush(20)
        assert steps(small_disk / "run") == list(range(step))
    assert recorder.dropped == 0


def test_a_disk_that_is_full_at_the_start_is_one_clear_error(small_disk: Path) -> None:
    (small_disk / "run" / "data").mkdir(parents=True)
    ballast = os.open(small_disk / "ballast", os.O_CREAT | os.O_WRONLY)
    try:
        with pytest.raises(OSError, match="No space"):
            while True:
                os.write(ballast, b"x" * 4096)
    finally:
        os.close(ballast)
    with pytest.raises(ConfigError, match="No space left on device"), recording(small_disk / "run"):
        pass
    assert list((small_disk / "run" / "data").iterdir()) == []


def test_a_full_disk_while_sealing_leaves_the_journals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty = FaultyOs()
    monkeypatch.setattr(segment, "os", faulty)
    faulty.fail("write", errno.ENOSPC, times=2)
    with recording(tmp_path, segment_bytes=2000) as recorder:
        for step in range(200):
            recorder.append("m", {"loss": 1.0}, step=step)
            if step % 20 == 0:
                recorder.flush(10)
    # Each was tried once more later; what cannot be sealed is complete as a journal.
    assert recorder.faults["seal"] == 2
    assert steps(tmp_path) == list(range(200))
    names = [path.name for path in (tmp_path / "data").iterdir()]
    assert not any(name.startswith(".") for name in names)


def test_a_large_body_waits_in_its_place_until_its_file_can_be_written(
    tmp_path: Path, storage: FaultyOs, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = FaultyOs()
    files.fail("write", errno.ENOSPC, times=3)
    monkeypatch.setattr(manifest_module, "os", files)
    with recording(tmp_path) as recorder:
        recorder.append("m", {"loss": 1.0}, step=0)
        recorder.append("rich", {"text": "x" * (1 << 20)}, step=1)
        recorder.append("m", {"loss": 1.0}, step=2)
        recorder.flush(10)
    assert recorder.dropped == 0
    found = records(tmp_path, "m", "rich")
    assert [record.step for record in found] == [0, 1, 2]
    assert (tmp_path / found[1].body["$file"]).exists()


def test_a_data_directory_that_disappears_is_survived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_drain, "_RETRY_S", (0.02,))
    with recording(tmp_path) as recorder:
        recorder.append("m", {"loss": 1.0}, step=0)
        recorder.flush(10)
        (tmp_path / "data").rename(tmp_path / "moved")
        # The open file moved along. A segment of its own is due when this one is complete.
        recorder.append("m", {"loss": 1.0}, step=1)
        recorder.flush(10)
        (tmp_path / "moved").rename(tmp_path / "data")
    assert steps(tmp_path) == [0, 1]


def test_a_run_that_became_read_only_keeps_its_records_in_memory(
    tmp_path: Path, storage: FaultyOs
) -> None:
    with recording(tmp_path, segment_bytes=200) as recorder:
        recorder.append("m", {"loss": 1.0}, step=0)
        recorder.flush(10)
        storage.fail("open", errno.EROFS, times=None)
        storage.fail("pwrite", errno.EROFS, times=None)
        recorder.append("m", {"loss": 1.0}, step=1)
        wait_until(lambda: recorder.last_error == "Read-only file system")
        storage.heal()
    assert steps(tmp_path) == [0, 1]


def test_a_process_killed_while_sealing_leaves_journal_or_segment(tmp_path: Path) -> None:
    """Ends the process before each step of a seal in turn."""
    script = """
import os, sys
from pathlib import Path
from launchhelm.store import manifest as manifest_module
from launchhelm.store import segment
from tests.support.storage import FaultyOs, OPENING, WRITER
from launchhelm.store.writer import JournalWriter

run, call, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
(run / "data").mkdir(parents=True)
writer = JournalWriter(run / "data", WRITER, OPENING)
for step in range(50):
    writer.append("m", {"loss": 1.0}, step=step)
writer.flush()
journal = writer.rotate()
storage = FaultyOs()
segment.os = storage
def die():
    if storage.calls[call] == count:
        os.kill(os.getpid(), 9)
storage.hooks[call] = die
segment.seal(journal)
"""
    moments = [("open", 1), ("write", 1), ("fchmod", 1), ("fsync", 1), ("close", 1)]
    moments += [("rename", 1), ("open", 2), ("fsync", 2), ("unlink", 1), ("unlink", 2)]
    for call, count in moments:
        run = tmp_path / f"{call}-{count}"
        done = subprocess.run(
            [sys.executable, "-c", script, str(run), call, str(count)],
            env={**os.environ, "PYTHONPATH": os.getcwd()},
            check=False,
        )
        assert done.returncode == (0 if (call, count) == ("unlink", 2) else -9), (call, count)
        assert steps(run) == list(range(50)), (call, count)
        for sealed in (run / "data").glob("r*.db"):
            assert len(list(sealed_records(sealed))) == 50
