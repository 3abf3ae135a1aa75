"""Write run directories, break what is under them, and read them without the package's reader."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from json import loads
from pathlib import Path
from typing import Any

from launchhelm._recorder import Recorder
from launchhelm.records import Record, WriterId
from launchhelm.store.layout import parse_segment
from launchhelm.store.line import to_record
from launchhelm.store.segment import sealed_records

WRITER = WriterId(0, 1, "0123abcd")
OPENING: Mapping[str, Any] = {"run": "test-run", "rank": 0, "world": 1, "attempt": 1}


def wait_until(condition: Callable[[], object], *, timeout_s: float = 20.0) -> None:
    """Wait for a condition, with a deadline."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s} s")
        time.sleep(0.005)


def good_lines(data: bytes) -> list[dict[str, Any]]:
    """Return the objects of all good lines, judged by the format's text alone."""
    found = []
    for line in data.split(b"\n")[:-1]:
        if line[:6] == b'{"c":"' and line[6:14] == b"%08x" % zlib.crc32(line[16:]):
            found.append(loads(line))
    return found


def journal_records(path: Path) -> list[Record]:
    """Return the records of one journal."""
    name = parse_segment(path.name)
    assert name is not None
    records = (to_record(name.writer, line) for line in good_lines(path.read_bytes()))
    return [record for record in records if record is not None]


def stored_records(run_directory: Path) -> dict[WriterId, list[Record]]:
    """Return all records of all writers in order, each number once; asserts that copies agree."""
    while True:
        try:
            return _stored_records(run_directory)
        except FileNotFoundError:
            continue  # Sealed between the listing and the opening.


def _stored_records(run_directory: Path) -> dict[WriterId, list[Record]]:
    names = [parse_segment(path.name) for path in (run_directory / "data").iterdir()]
    found: dict[WriterId, dict[int, Record]] = {}
    for name in sorted((n for n in names if n is not None), key=lambda n: (n.number, n.sealed)):
        path = run_directory / "data" / str(name)
        records = list(sealed_records(path)) if name.sealed else journal_records(path)
        own = found.setdefault(name.writer, {})
        for record in records:
            assert repr(own.setdefault(record.seq, record)) == repr(record), "two truths"
    return {writer: [own[seq] for seq in sorted(own)] for writer, own in found.items()}


def records(run_directory: Path, *kinds: str) -> list[Record]:
    """Return the records of the only writer, of some kinds or all."""
    (own,) = stored_records(run_directory).values()
    return [record for record in own if not kinds or record.kind in kinds]


def steps(run_directory: Path) -> list[int | None]:
    """Return the steps of the only writer's metric records."""
    return [record.step for record in records(run_directory, "m")]


@contextmanager
def recording(run_directory: Path, **options: Any) -> Iterator[Recorder]:
    """Start a recorder, and close it in the end."""
    recorder = Recorder(run_directory, WRITER, OPENING, **{"flush_s": 0.01, **options})
    recorder.start()
    try:
        yield recorder
    finally:
        recorder.close("finished", "", 10)


class FaultyOs:
    """The os module with faults, to be put in the place of a module's `os`.

    `fail("fsync", errno.EIO, times=3)` makes the next calls fail; times=None makes all of them
    fail until `heal()`. A hook runs before a call, outside any lock.
    """

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.hooks: dict[str, Callable[[], None]] = {}
        self.short_writes = 0
        self._faults: dict[str, list[int]] = {}
        self._always: dict[str, int] = {}

    def fail(self, call: str, number: int, *, times: int | None = 1) -> None:
        if times is None:
            self._always[call] = number
        else:
            self._faults.setdefault(call, []).extend([number] * times)

    def heal(self) -> None:
        self._faults.clear()
        self._always.clear()
        self.hooks.clear()

    def __getattr__(self, name: str) -> Any:
        value = getattr(os, name)
        if not callable(value) or isinstance(value, type):
            return value

        def call(*args: Any, **options: Any) -> Any:
            self.calls[name] += 1
            if name in self.hooks:
                self.hooks[name]()
            waiting = self._faults.get(name)
            number = waiting.pop(0) if waiting else self._always.get(name, 0)
            if number:
                raise OSError(number, os.strerror(number))
            if name == "pwrite" and self.short_writes:
                self.short_writes -= 1
                descriptor, data, offset = args
                return os.pwrite(descriptor, data[: max(1, len(data) // 2)], offset)
            return value(*args, **options)

        return call


@dataclass(frozen=True)
class KillCount:
    """What killed writers logged, were promised by flush, and left; `late_s` is the age that the
    oldest lost record had reached when its writer was killed."""

    kills: int = 0
    logged: int = 0
    promised: int = 0
    found: int = 0
    late_s: float = 0.0

    def __add__(self, other: KillCount) -> KillCount:
        return KillCount(
            self.kills + other.kills,
            self.logged + other.logged,
            self.promised + other.promised,
            self.found + other.found,
            max(self.late_s, other.late_s),
        )

    def __str__(self) -> str:
        return (
            f"{self.kills} kills: {self.logged} records logged, {self.promised} promised by "
            f"flush, {self.found} found; none promised lost, none doubled; "
            f"oldest lost record {self.late_s * 1000:.0f} ms old"
        )


_KILLED_WRITER = """
import os, random, sys, time
from pathlib import Path
from tests.support.storage import OPENING, WRITER
from launchhelm._recorder import Recorder

run, segment_bytes = Path(sys.argv[1]), int(sys.argv[2])
recorder = Recorder(run, WRITER, OPENING, flush_s=0.02, segment_bytes=segment_bytes)
recorder.start()
chance = random.Random(int(sys.argv[3]))
step = 0
while True:
    for _ in range(chance.randrange(1, 60)):
        values = {"train/loss": chance.random(), "lr": 1e-4, "odd": float("nan")}
        recorder.append("m", values, step=step)
        os.write(1, b"l%d %.6f\\n" % (step, time.monotonic()))
        step += 1
    if chance.random() < 0.3:
        recorder.flush(10)
        os.write(1, b"f%d\\n" % step)
"""


def kill_a_writer(
    run_directory: Path, *, seed: int, after_s: float, segment_bytes: int
) -> KillCount:
    """Let a process log and flush, kill it with SIGKILL, and check what it left.

    Returns:
        How many records were logged, promised by flush, and found.
    """
    (run_directory / "data").mkdir(parents=True)
    arguments = [str(run_directory), str(segment_bytes), str(seed)]
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    child = subprocess.Popen(
        [sys.executable, "-c", _KILLED_WRITER, *arguments],
        stdout=subprocess.PIPE,
        env=environment,
    )
    assert child.stdout is not None
    said = b""
    try:
        said = os.read(child.stdout.fileno(), 1 << 16)  # Logging has begun.
        deadline = time.monotonic() + after_s
        os.set_blocking(child.stdout.fileno(), False)
        while (rest := deadline - time.monotonic()) > 0:
            try:
                said += os.read(child.stdout.fileno(), 1 << 20)
            except BlockingIOError:
                time.sleep(min(0.001, rest))
        assert child.poll() is None, "the writer ended by itself"
    finally:
        child.send_signal(signal.SIGKILL)
        os.set_blocking(child.stdout.fileno(), True)
        said += child.stdout.read()
        child.wait()
        child.stdout.close()
    words = [word.split() for word in said.split(b"\n")[:-1]]
    times = [float(word[1]) for word in words if word[0][:1] == b"l"]
    promised = max((int(word[0][1:]) for word in words if word[0][:1] == b"f"), default=0)
    found = records(run_directory, "m")
    assert [record.step for record in found] == list(range(len(found))), "a hole or a double"
    every = records(run_directory)
    assert [record.seq for record in every] == list(range(len(every)))
    assert len(found) >= promised, f"{promised} promised, {len(found)} found"
    # The writer may have logged one more before it could say so.
    assert len(found) <= len(times) + 1
    late_s = times[-1] - times[len(found)] if len(found) < len(times) else 0.0
    return KillCount(1, len(times), promised, len(found), late_s)
