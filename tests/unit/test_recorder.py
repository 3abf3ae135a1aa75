"""The recorder: nothing in the way of the caller, everything in order on disk."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from launchhelm import _drain
from launchhelm._buffer import Buffer
from launchhelm._recorder import Recorder
from launchhelm.errors import ConfigError
from launchhelm.store import segment
from launchhelm.store import writer as writer_module
from tests.support.storage import (
    OPENING,
    WRITER,
    FaultyOs,
    recording,
    records,
    steps,
    stored_records,
    wait_until,
)

DONE_IN_THE_CHILD = 42


def in_a_fork(action: Any) -> int:
    """Run something in a forked child and return its exit code; 1 means that it raised."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            action()
            code = DONE_IN_THE_CHILD
        finally:
            os._exit(code)
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, 9)
    os.waitpid(child, 0)
    raise AssertionError("the child did not end")


def test_a_run_is_readable_as_soon_as_it_has_started(tmp_path: Path) -> None:
    with recording(tmp_path):
        (journal,) = (tmp_path / "data").iterdir()
        assert b'"k":"open"' in journal.read_bytes()


def test_records_become_durable_by_themselves(tmp_path: Path) -> None:
    with recording(tmp_path) as recorder:
        for step in range(100):
            assert recorder.append("m", {"loss": 1.0}, step=step)
        wait_until(lambda: len(steps(tmp_path)) == 100)


def test_flush_returns_when_all_before_it_is_durable(tmp_path: Path) -> None:
    with recording(tmp_path, flush_s=60) as recorder:
        for step in range(100):
            recorder.append("m", {"loss": 1.0}, step=step)
        recorder.flush(10)
        assert steps(tmp_path) == list(range(100))


def test_an_urgent_record_is_flushed_at_once_with_all_before_it(tmp_path: Path) -> None:
    with recording(tmp_path, flush_s=60) as recorder:
        recorder.append("m", {"loss": 1.0}, step=1)
        ticket = recorder.append_urgent("oc", {"cmd": "a", "state": "claimed"})
        assert ticket.wait(10)
        assert ticket.durable
        assert [record.kind for record in records(tmp_path)] == ["m", "oc"]


def test_each_thread_keeps_its_order_and_nothing_is_lost(tmp_path: Path) -> None:
    kinds = ("m", "ev", "con", "oc", "m")

    def log(who: str, recorder: Recorder) -> None:
        for number in range(500):
            kind = kinds[number % len(kinds)]
            if kind == "oc":
                recorder.append_urgent(kind, {"who": who, "number": number})
            else:
                recorder.append(kind, {"who": who, "number": number})

    with recording(tmp_path, flush_s=0.001) as recorder:
        threads = [threading.Thread(target=log, args=(str(n), recorder)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = [record for record in records(tmp_path) if "who" in record.body]
    for who in "0123":
        numbers = [record.body["number"] for record in found if record.body["who"] == who]
        assert numbers == list(range(500))
    assert [record.seq for record in records(tmp_path)] == list(range(2001))


def test_a_clean_end_says_so_and_seals_everything(tmp_path: Path) -> None:
    with recording(tmp_path) as recorder:
        recorder.append("m", {"loss": 1.0}, step=1)
        recorder.progress.step = 1
        assert recorder.close("preempted", "SIGTERM", 10)
        assert recorder.close("finished", "", 10)
    assert [path.suffix for path in (tmp_path / "data").iterdir()] == [".db"]
    last = records(tmp_path)[-1]
    assert (last.kind, last.step) == ("close", 1)
    assert last.body == {"state": "preempted", "reason": "SIGTERM", "close_run": True}


def test_what_comes_after_the_end_is_counted_and_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with recording(tmp_path) as recorder:
        pass
    assert not recorder.append("m", {"loss": 1.0})
    assert not recorder.append_urgent("oc", {}).wait(0)
    recorder.flush(1)
    assert recorder.late == 2
    assert [record.message for record in caplog.records].count(
        "Something was logged after finish(); it is discarded."
    ) == 1


def test_heartbeats_rise_and_say_what_the_loop_does(tmp_path: Path) -> None:
    with recording(tmp_path, heartbeat_s=0.02) as recorder:
        recorder.progress.phase = "in eval"
        recorder.progress.step = 7
        recorder.progress.step_time_ms = 5.25
        wait_until(lambda: len(records(tmp_path, "hb")) >= 3)
    beats = records(tmp_path, "hb")
    assert [beat.body["n"] for beat in beats] == list(range(1, len(beats) + 1))
    assert beats[-1].step == 7
    assert beats[-1].body["phase"] == "in eval"
    assert beats[-1].body["phase_s"] > 0
    assert beats[-1].body["step_time_ms"] == 5.25
    assert "exchange_wait_ms" not in beats[-1].body


def test_heartbeats_go_on_while_records_flow(tmp_path: Path) -> None:
    with recording(tmp_path, heartbeat_s=0.02, flush_s=0.001) as recorder:

        def log_and_look() -> bool:
            recorder.append("m", {"loss": 1.0})
            return len(records(tmp_path, "hb")) >= 3

        wait_until(log_and_look)


def test_callbacks_run_on_the_thread_at_their_own_pace(tmp_path: Path) -> None:
    seen: list[str] = []

    def once() -> float | None:
        seen.append(threading.current_thread().name)
        return 1000.0

    with recording(tmp_path) as recorder:
        recorder.every(0.01, once)
        wait_until(lambda: seen)
    assert seen == ["launchhelm-recorder"]


def test_a_callback_may_flush(tmp_path: Path) -> None:
    flushed = []
    with recording(tmp_path, flush_s=60) as recorder:
        recorder.append("m", {"loss": 1.0}, step=1)

        def flush() -> float:
            recorder.flush(5)
            flushed.append(steps(tmp_path))
            return 1000.0

        recorder.every(0.01, flush)
        wait_until(lambda: flushed)
    assert flushed == [[1]]


def test_segments_are_sealed_while_the_run_goes_on(tmp_path: Path) -> None:
    with recording(tmp_path, segment_bytes=20_000, max_segment_bytes=40_000) as recorder:
        for step in range(3000):
            recorder.append("m", {"loss": 1.0}, step=step)
            if step % 100 == 0:
                recorder.flush(10)
        wait_until(lambda: list((tmp_path / "data").glob("*.db")))
    assert steps(tmp_path) == list(range(3000))
    assert len(list((tmp_path / "data").glob("*.db"))) >= 4
    assert not list((tmp_path / "data").glob("*.jsonl"))


def test_sealing_does_not_delay_a_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sealing, may_seal = threading.Event(), threading.Event()
    seal = _drain.seal

    def slow_seal(*arguments: Any, **options: Any) -> Path:
        sealing.set()
        assert may_seal.wait(20)
        return seal(*arguments, **options)

    monkeypatch.setattr(_drain, "seal", slow_seal)
    with recording(tmp_path, segment_bytes=100) as recorder:
        recorder.append("m", {"loss": 1.0}, step=1)
        assert sealing.wait(10)
        recorder.append("m", {"loss": 1.0}, step=2)
        recorder.flush(10)
        assert steps(tmp_path) == [1, 2]
        may_seal.set()


def test_sealing_rests_after_every_slice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with recording(tmp_path, segment_bytes=1 << 30) as recorder:
        for step in range(5000):
            recorder.append("m", {f"loss{number}": 0.1 for number in range(5)}, step=step)
        recorder.flush(10)
        rests: list[float] = []
        monkeypatch.setattr(segment, "_SLICE_S", 0.0)
        monkeypatch.setattr(segment, "_REST_S", 0.0)
        monkeypatch.setattr(segment.time, "sleep", rests.append)
        recorder.close("finished", "", 20)
    # Reading, inserting and comparing all take part: no piece is longer than a few hundred rows.
    assert len(rests) > 2 * 5000 / 200


def test_an_unusable_directory_is_one_clear_error_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    with pytest.raises(ConfigError, match="cannot be written"):
        Recorder(tmp_path, WRITER, OPENING).start()


def test_an_unknown_overflow_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'block', 'drop_new' or 'raise'"):
        Recorder(tmp_path, WRITER, OPENING, overflow="drop")


def test_a_relative_directory_is_immune_to_chdir(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with recording(Path("run"), segment_bytes=200) as recorder:
        monkeypatch.chdir(tmp_path / "elsewhere")
        for step in range(20):
            recorder.append("m", {"loss": 1.0}, step=step)
            recorder.flush(10)
    assert not list((tmp_path / "elsewhere").iterdir())
    assert steps(tmp_path / "run") == list(range(20))


def test_a_steady_rank_makes_one_write_and_one_sync_a_flush_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = FaultyOs()
    monkeypatch.setattr(writer_module, "os", storage)
    with recording(tmp_path, flush_s=60) as recorder:
        storage.calls.clear()
        for flush in range(20):
            for step in range(50):
                recorder.append("m", {"loss": 1.0}, step=50 * flush + step)
            recorder.flush(10)
        assert storage.calls == {"pwrite": 20, "fsync": 20}


def test_an_idle_rank_writes_its_heartbeat_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = FaultyOs()
    monkeypatch.setattr(writer_module, "os", storage)
    with recording(tmp_path, heartbeat_s=0.05) as recorder:
        storage.calls.clear()
        wait_until(lambda: storage.calls["fsync"] >= 5)
        recorder.flush(10)
        calls = dict(storage.calls)
    # Each beat also looks once whether the open file is still in its directory.
    assert calls.keys() == {"pwrite", "fsync", "fstat"}
    assert calls["pwrite"] == calls["fsync"] <= len(records(tmp_path, "hb"))
    assert calls["fstat"] <= calls["fsync"] + 1


def test_an_idle_thread_sleeps_until_the_next_heartbeat(tmp_path: Path) -> None:
    with recording(tmp_path, heartbeat_s=15.0) as recorder:
        recorder.append("m", {"loss": 1.0})
        recorder.flush(10)
        wait_until(lambda: recorder._idle)
        turns: list[float] = []
        recorder._run_callbacks = turns.append  # type: ignore[method-assign]
        time.sleep(0.2)
        assert turns == []


def test_there_is_one_thread_and_it_is_a_daemon(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with recording(tmp_path) as recorder:
        recorder.append("m", {"loss": 1.0})
        recorder.flush(10)
        (thread,) = set(threading.enumerate()) - before
        assert thread.daemon
    wait_until(lambda: not thread.is_alive())


# --- forks --------------------------------------------------------------------------------------


def test_a_forked_child_writes_nothing_and_the_parent_goes_on(tmp_path: Path) -> None:
    with recording(tmp_path, flush_s=60) as recorder:
        recorder.append("m", {"loss": 1.0}, step=0)

        def child() -> None:
            assert not recorder.append("m", {"loss": 1.0}, step=1000)
            recorder.flush(1)
            assert not recorder.append_urgent("oc", {}).wait(0.01)
            assert recorder.close("finished", "", 1)
            assert recorder.late == 2

        assert in_a_fork(child) == DONE_IN_THE_CHILD
        recorder.append("m", {"loss": 1.0}, step=1)
    assert steps(tmp_path) == [0, 1]
    assert len(records(tmp_path, "close")) == 1


def test_forks_in_the_middle_of_logging_never_hang(tmp_path: Path) -> None:
    with recording(tmp_path, flush_s=0.001) as recorder:
        stop = threading.Event()
        tickets = []

        def log() -> None:
            while not stop.is_set():
                recorder.append("m", {"loss": 1.0})
                tickets.append(recorder.append_urgent("ev", {"type": "message"}))
                time.sleep(0)

        def child() -> None:
            recorder.append("m", {"loss": 1.0})
            tickets[-1].wait(0.001)
            recorder.flush(1)
            recorder.close("finished", "", 1)

        thread = threading.Thread(target=log)
        thread.start()
        try:
            wait_until(lambda: tickets)
            for _ in range(25):
                assert in_a_fork(child) == DONE_IN_THE_CHILD
        finally:
            stop.set()
            thread.join()
    (own,) = stored_records(tmp_path).values()
    assert [record.seq for record in own] == list(range(len(own)))


# --- the buffer ---------------------------------------------------------------------------------


def test_a_full_buffer_gives_up_the_oldest_points_and_nothing_else() -> None:
    buffer = Buffer(max_bytes=1 << 20, max_records=10)
    for number in range(10):
        assert buffer.put("m", {"n": number}, number, None, 0.0)
        assert buffer.put("oc", {"n": number}, number, None, 0.0)
    assert not buffer.put("m", {"n": 10}, 10, None, 0.0)
    assert buffer.give_up_oldest()
    assert buffer.put("m", {"n": 10}, 10, None, 0.0)
    taken: list[Any] = []
    buffer.take(100, taken.append)
    assert [entry.step for entry in taken if entry.kind == "m"] == list(range(1, 11))
    assert [entry.step for entry in taken if entry.kind == "oc"] == list(range(10))
    assert buffer.lost == 1


def test_a_large_record_counts_with_its_size() -> None:
    buffer = Buffer(max_bytes=100_000, max_records=10)
    assert buffer.put("con", {"text": "x" * 100_000}, None, None, 0.0)
    assert not buffer.put("m", {"n": 1}, None, None, 0.0)
    buffer.take(1, lambda entry: None)
    assert buffer.put("m", {"n": 1}, None, None, 0.0)


def test_an_entry_that_cannot_be_taken_stays_first() -> None:
    buffer = Buffer(max_bytes=1 << 20, max_records=10)
    for number in range(3):
        buffer.put("m", {"n": number}, number, None, 0.0)

    def refuse(entry: Any) -> None:
        if entry.step == 1:
            raise OSError

    with pytest.raises(OSError):
        buffer.take(10, refuse)
    taken: list[Any] = []
    buffer.take(10, taken.append)
    assert [entry.step for entry in taken] == [1, 2]


# --- the end of the process -----------------------------------------------------------------------

ENDINGS = {
    "by_itself": ("pass", "finished", ""),
    "by_sys_exit": ("sys.exit(0)", "finished", ""),
    "by_an_exception": ("raise ValueError('bad batch')", "error", "ValueError: bad batch"),
    "by_an_interrupt": ("raise KeyboardInterrupt", "interrupted", "KeyboardInterrupt"),
    "by_a_signal": ("os.kill(os.getpid(), signal.SIGTERM)", "terminated", "SIGTERM"),
    "in_a_spawned_process": (
        "multiprocessing.get_context('fork').Process(target=child).start()",
        "finished",
        "",
    ),
}
SCRIPT = """
import multiprocessing, os, signal, sys
from pathlib import Path
from launchhelm import _endings
from launchhelm._recorder import Recorder
from tests.support.storage import OPENING, WRITER

def child():
    raise RuntimeError("in the child")

def start():
    recorder = Recorder(Path(sys.argv[1]), WRITER, OPENING, flush_s=60)
    recorder.start()
    end = lambda state, reason: recorder.close(state, reason, 2)
    _endings.at_end(end)
    _endings.on_signals(end)
    for step in range(10):
        recorder.append("m", {{"loss": 1.0}}, step=step)

start()
{ending}
"""


def run_script(run: Path, ending: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT.format(ending=ending), str(run)],
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("name", ENDINGS)
def test_a_script_that_ends_without_finish_loses_nothing(tmp_path: Path, name: str) -> None:
    ending, state, reason = ENDINGS[name]
    done = run_script(tmp_path, ending)
    assert steps(tmp_path) == list(range(10)), done.stderr
    (close,) = records(tmp_path, "close")
    assert (close.body["state"], close.body["reason"]) == (state, reason)
    assert ("Traceback" in done.stderr) == (name not in ("by_itself", "by_sys_exit", "by_a_signal"))


def test_a_child_that_records_a_run_of_its_own_ends_it_properly(tmp_path: Path) -> None:
    ending = """
def child():
    sys.argv[1] += "/child"
    start()
    raise ValueError("in the child")

process = multiprocessing.get_context("fork").Process(target=child)
process.start()
process.join()
"""
    done = run_script(tmp_path, ending)
    (close,) = records(tmp_path / "child", "close")
    assert close.body["state"] == "error", done.stderr
    assert close.body["reason"] == "ValueError: in the child"
    assert steps(tmp_path / "child") == list(range(10))
    (close,) = records(tmp_path, "close")
    assert close.body["state"] == "finished"


def test_nothing_is_written_outside_the_run_directory(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o500)
    environment = {
        **os.environ,
        "PYTHONPATH": os.getcwd(),
        **dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME", "SQLITE_TMPDIR"), str(home)),
    }
    script = """
import sys
from pathlib import Path
from tests.support.storage import recording
opened = []
sys.addaudithook(lambda event, args: event in ("open", "os.mkdir", "os.rename", "os.remove",
    "sqlite3.connect") and opened.append((event, args)))
with recording(Path(sys.argv[1]), segment_bytes=5000) as recorder:
    for step in range(500):
        recorder.append("m", {"loss": 1.0}, step=step)
        if step % 50 == 0: recorder.flush(10)
import os
for event, args in opened:
    path = str(args[0])
    writes = event != "open" or (args[2] or 0) & (os.O_CREAT | os.O_WRONLY | os.O_RDWR)
    if event == "sqlite3.connect":
        writes = "vfs=memdb" not in path and "immutable=1" not in path
    if writes and not path.startswith(sys.argv[1]):
        sys.exit(f"{event} {args}")
"""
    subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "run")], env=environment, check=True
    )
    assert list(home.iterdir()) == []
    assert steps(tmp_path / "run") == list(range(500))


def test_a_fault_inside_is_logged_once_counted_and_survived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with recording(tmp_path, flush_s=0.001) as recorder:
        broken = {"turn": 3, "callback": 3}

        def break_down(what: str) -> None:
            if broken[what]:
                broken[what] -= 1
                raise RuntimeError(f"{what} is broken")

        sleep = recorder._sleep
        monkeypatch.setattr(recorder, "_sleep", lambda: (break_down("turn"), sleep()))

        def callback() -> None:
            break_down("callback")

        recorder.every(0.01, callback)
        for step in range(100):
            recorder.append("m", {"loss": 1.0}, step=step)
        wait_until(lambda: not any(broken.values()))
        recorder.flush(10)
    assert recorder.faults == {"recorder": 3, "callback": 3}
    tracebacks = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(tracebacks) == 2
    assert all(record.exc_info for record in tracebacks)
    assert steps(tmp_path) == list(range(100))
    shown = {record.body["component"]: record.body["error"] for record in records(tmp_path, "ev")}
    assert shown == {
        "recorder": "RuntimeError: turn is broken",
        "callback": "RuntimeError: callback is broken",
    }


def test_a_record_that_cannot_be_encoded_costs_only_itself(tmp_path: Path) -> None:
    with recording(tmp_path) as recorder:
        recorder.append("m", {"loss": 1.0}, step=0)
        recorder.append("m", {"loss": 1.0}, step="no number")  # type: ignore[arg-type]
        recorder.append("m", {"loss": 1.0}, step=2)
        recorder.flush(10)
    assert steps(tmp_path) == [0, 2]
    assert recorder.dropped == 1
    assert recorder.faults == {"encoder": 1}
    (gap,) = records(tmp_path, "gap")
    assert gap.body == {"first": 1, "last": 1, "why": "not encodable"}
    assert [record.seq for record in records(tmp_path)][:3] == [0, 2, 3]
