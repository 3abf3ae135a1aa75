"""A rank on one host writes, a reader on another reads; processes, hosts and storage fail."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from launchhelm._recorder import Recorder
from launchhelm.records import WriterId
from launchhelm.store.reader import Reader
from tests.rig.reader import Tally, promised
from tests.rig.writer import new_run, opening
from tests.support.two_hosts import EDQUOT, EIO, ENOSPC, ESTALE, RIG, TwoHosts

DEADLINE_S = 60.0


def start_writer(run_directory: Path, promises: Path, attempt: int) -> subprocess.Popen[bytes]:
    arguments = [str(run_directory), str(promises), str(attempt)]
    return subprocess.Popen([sys.executable, str(RIG / "writer.py"), *arguments])


def read_until(tally: Tally, reader: Reader, condition: Callable[[], bool], what: str) -> None:
    """Poll until the condition holds."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {DEADLINE_S:.0f} s until {what}: {tally.gaps}"
        tally.poll(reader)
        time.sleep(0.01)


def read_to_the_promises(tally: Tally, reader: Reader, promises: Path) -> None:
    """Poll until all that was promised has come, then once more for what must not come."""
    wanted = promised(promises)

    def complete() -> bool:
        return all(len(tally.steps.get(w, ())) >= count for w, count in wanted.items())

    read_until(tally, reader, complete, "everything promised is read")
    tally.poll(reader)
    tally.assert_kept(wanted)


def end_writers(
    hosts: TwoHosts, folder: Path, count: int, end: Callable[[subprocess.Popen[bytes]], None]
) -> None:
    """End `count` writers at random moments, each after it has promised something."""
    run = new_run(hosts.a / "runs").name
    promises = folder / "promises"
    reader, tally = Reader(hosts.b / "runs" / run), Tally()
    moment = random.Random(7)
    for attempt in range(1, count + 1):
        before = len(promised(promises))
        writer = start_writer(hosts.a / "runs" / run, promises, attempt)
        try:
            read_until(tally, reader, lambda n=before: len(promised(promises)) > n, "it promises")
            instant = time.monotonic() + moment.uniform(0, 0.2)
            read_until(tally, reader, lambda t=instant: time.monotonic() >= t, "its moment")
        finally:
            end(writer)
            writer.wait()
        read_to_the_promises(tally, reader, promises)
    assert len(promised(promises)) == count
    total = sum(promised(promises).values())
    print(
        f"\n{count} writers ended, {total:,} records promised, 0 lost, 0 doubled, 0 errors", end=""
    )


@pytest.mark.parametrize("count", [8, pytest.param(100, marks=pytest.mark.stress)])
def test_a_killed_writer_loses_nothing_that_flush_promised(
    hosts: TwoHosts, tmp_path: Path, count: int
) -> None:
    """Readers on the other host, at work all the time, see each record once and never err."""
    end_writers(hosts, tmp_path, count, subprocess.Popen.kill)


@pytest.mark.parametrize("count", [6, pytest.param(60, marks=pytest.mark.stress)])
def test_a_power_cut_of_the_writers_host_loses_nothing_that_flush_promised(
    hosts: TwoHosts, tmp_path: Path, count: int
) -> None:
    def cut_power(writer: subprocess.Popen[bytes]) -> None:
        # A stopped process cannot close its files, which would send what its host still holds.
        writer.send_signal(signal.SIGSTOP)
        hosts.crash()
        writer.kill()

    end_writers(hosts, tmp_path, count, cut_power)


def test_a_host_whose_mount_was_lost_goes_on_in_a_new_segment(
    hosts: TwoHosts, tmp_path: Path
) -> None:
    """The process survives; its descriptors do not."""
    run = new_run(hosts.a / "runs").name
    promises = tmp_path / "promises"
    reader, tally = Reader(hosts.b / "runs" / run), Tally()
    writer = start_writer(hosts.a / "runs" / run, promises, 1)
    try:
        for _ in range(3):
            count = sum(promised(promises).values())
            read_until(
                tally, reader, lambda n=count: sum(promised(promises).values()) > n, "it goes on"
            )
            hosts.crash()
        count = sum(promised(promises).values())
        read_until(
            tally, reader, lambda n=count: sum(promised(promises).values()) > n, "it goes on"
        )
    finally:
        writer.kill()
        writer.wait()
    read_to_the_promises(tally, reader, promises)
    assert len(list((hosts.b / "runs" / run / "data").iterdir())) >= 2


def open_recorder(hosts: TwoHosts, *, token: str = "0000000a") -> Recorder:
    """Open a recorder of this process on host A."""
    runs = hosts.a / "runs"
    run = runs / (os.listdir(runs)[0] if runs.exists() else new_run(runs).name)
    writer = WriterId(0, 1, token)
    recorder = Recorder(run, writer, opening(writer), flush_s=0.05)
    recorder.start()
    return recorder


def log(recorder: Recorder, first: int, last: int) -> None:
    for step in range(first, last):
        assert recorder.append("m", {"n": step, "loss": 1 / (step + 1)}, step=step)


def read_all(hosts: TwoHosts, tally: Tally, reader: Reader, writer: str, count: int) -> None:
    read_until(
        tally, reader, lambda: len(tally.steps.get(writer, ())) >= count, f"{count} are read"
    )
    tally.poll(reader)
    tally.assert_kept({writer: count})
    assert len(tally.steps[writer]) == count
    assert tally.gaps == []


@pytest.mark.parametrize(
    "rules",
    [
        f"write {ENOSPC} 100 data",
        f"write {EDQUOT} 70 data",
        f"write {EIO} 100 data",
        f"fsync {EIO} 100 data",
        f"fsync {ENOSPC} 50 data",
        f"write {ESTALE} 100 data\nfsync {ESTALE} 100 data",
        f"any {EIO} 60",
        f"any {ESTALE} 100",
    ],
    ids=lambda rules: rules.replace("\n", ", "),
)
def test_storage_faults_that_end_lose_nothing_buffered(hosts: TwoHosts, rules: str) -> None:
    """While it lasts, log() neither waits nor raises; afterwards every record is there, once."""
    recorder = open_recorder(hosts)
    run = next((hosts.b / "runs").iterdir())
    reader, tally = Reader(run), Tally()
    try:
        log(recorder, 0, 200)
        recorder.flush(DEADLINE_S)
        hosts.fault(rules)
        for first in range(200, 400, 50):
            log(recorder, first, first + 50)
            with contextlib.suppress(TimeoutError):
                recorder.flush(0.3)
            tally.poll(reader)
        hosts.heal()
        recorder.flush(DEADLINE_S)
        log(recorder, 400, 500)
    finally:
        hosts.heal()
        assert recorder.close("finished", "", DEADLINE_S)
    read_all(hosts, tally, reader, "r00000-a001-0000000a", 500)
    assert recorder.dropped == 0


class HastyClock:
    """A reader's clock on which a minute passes in a second."""

    wall = staticmethod(time.time)

    @staticmethod
    def monotonic() -> float:
        return time.monotonic() * 60


def test_storage_that_loses_what_it_confirmed_shows_a_gap_and_keeps_the_rest(
    hosts: TwoHosts,
) -> None:
    """Half of each write is dropped, and fsync says yes: no wrong record, no error, a named gap."""
    recorder = open_recorder(hosts)
    run = next((hosts.b / "runs").iterdir())
    reader, tally = Reader(run, clock=HastyClock()), Tally()
    log(recorder, 0, 200)
    recorder.flush(DEADLINE_S)
    hosts.fault(f"short {EIO} 100 data")
    log(recorder, 200, 400)
    recorder.flush(DEADLINE_S)
    hosts.heal()
    log(recorder, 400, 600)
    recorder.close("finished", "", DEADLINE_S)

    read_until(tally, reader, lambda: 599 in tally.steps.get(str(recorder.writer_id), ()), "599")
    steps = tally.steps[str(recorder.writer_id)]
    assert tally.errors == [] and tally.doubled == 0
    assert set(range(200)) <= set(steps) and set(range(450, 600)) <= set(steps)
    missing = 600 - len(steps)
    assert missing > 0, "the rig no longer lies"
    assert sum(gap.last - gap.first + 1 for gap in reader.gaps) >= missing


def test_a_run_needs_no_locks(make_hosts: Callable[..., TwoHosts]) -> None:
    """Writing, sealing and reading work where every lock fails, as on Lustre without flock."""
    hosts = make_hosts(lock="none")
    with open(hosts.a / "probe", "w") as probe, pytest.raises(OSError):
        fcntl.flock(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
    recorder = open_recorder(hosts)
    log(recorder, 0, 300)
    assert recorder.close("finished", "", DEADLINE_S)
    run = next((hosts.b / "runs").iterdir())
    assert [path.suffix for path in (run / "data").iterdir()] == [".db"]
    read_all(hosts, Tally(), Reader(run), "r00000-a001-0000000a", 300)


def test_a_reader_finds_what_appears_although_missing_names_stay_missing(
    make_hosts: Callable[..., TwoHosts],
) -> None:
    """A host that asked for a name too early is told "no such file" for long; listings tell."""
    hosts = make_hosts(negative_s=600)
    first = open_recorder(hosts, token="0000000a")
    run = next((hosts.b / "runs").iterdir())
    reader, tally = Reader(run), Tally()
    log(first, 0, 10)
    first.flush(DEADLINE_S)
    read_all(hosts, tally, reader, "r00000-a001-0000000a", 10)

    assert not (run / "probed").exists()
    (hosts.a / "runs" / run.name / "probed").write_text("there")
    second = open_recorder(hosts, token="0000000b")
    log(second, 0, 10)
    second.flush(DEADLINE_S)
    assert not (run / "probed").exists(), "the rig no longer delays names"

    read_all(hosts, tally, reader, "r00000-a001-0000000b", 10)
    log(first, 10, 20)
    assert first.close("finished", "", DEADLINE_S)
    assert second.close("finished", "", DEADLINE_S)
    read_all(hosts, tally, reader, "r00000-a001-0000000a", 20)
