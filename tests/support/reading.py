"""Run directories made by hand, for tests of the read side: journals line by line, any shape.

run = RunBuilder(tmp_path, world_size=2)
rank0 = run.writer(0)
rank0.metrics(step=0, loss=1.0)
rank0.beat(step=1)
rank0.flush()                       # nothing is on disk before
rank0.seal()                        # the journal becomes a segment, the next one begins
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from launchhelm._ids import new_run_id
from launchhelm.records import Record, WriterId
from launchhelm.store import layout
from launchhelm.store.layout import SegmentName
from launchhelm.store.line import dumps, metric_values, seal_line
from launchhelm.store.manifest import Attempt, Manifest, create_run, take_attempt
from launchhelm.store.segment import seal

EPOCH = 1_796_022_506.0
"""Some time in 2026 at which made-up hosts begin."""


class FakeClock:
    """Time that moves only when told to; `wall` and `monotonic` go together unless moved apart."""

    def __init__(self, wall: float = EPOCH, monotonic: float = 1000.0) -> None:
        self.wall_at = wall
        self.monotonic_at = monotonic

    def wall(self) -> float:
        return self.wall_at

    def monotonic(self) -> float:
        return self.monotonic_at

    def pass_s(self, seconds: float) -> None:
        self.wall_at += seconds
        self.monotonic_at += seconds


def line_of(
    kind: str,
    seq: int,
    body: Mapping[str, Any],
    *,
    step: int | None = None,
    at: float = EPOCH,
    axes: Mapping[str, str] | None = None,
) -> bytes:
    """Make one journal line, its newline included."""
    value: dict[str, Any] = {"q": seq, "k": kind, "t": round(at, 3), "s": step}
    if axes:
        value["a"] = dict(axes)
    value["v"] = metric_values(body) if kind in ("m", "sys") else body
    return seal_line(dumps(value)[1:].encode())


def opening_of(writer: WriterId, number: int, first_seq: int, **facts: Any) -> bytes:
    """Make the first line of a journal."""
    value = {"k": "open", "fmt": 1, "w": str(writer), "n": number, "q0": first_seq, **facts}
    return seal_line(dumps(value)[1:].encode())


class WriterBuilder:
    """The files of one process, written as its recorder would."""

    def __init__(self, data: Path, writer: WriterId, facts: Mapping[str, Any]) -> None:
        self.data = data
        self.writer = writer
        self.facts = dict(facts)
        self.number = 1
        self.seq = 0
        self.at = EPOCH
        self.beats = 0
        self._pending: list[bytes] = []
        self._segment_first = 0

    @property
    def journal(self) -> Path:
        return self.data / str(SegmentName(self.writer, self.number, sealed=False))

    def record(self, kind: str, body: Mapping[str, Any], **more: Any) -> int:
        """Add a record; returns its number."""
        more.setdefault("at", self.at)
        self._pending.append(line_of(kind, self.seq, body, **more))
        self.seq += 1
        return self.seq - 1

    def metrics(self, step: int | None = None, **values: Any) -> int:
        return self.record("m", values, step=step)

    def beat(self, step: int | None = None, phase: str = "training", **more: Any) -> int:
        self.beats += 1
        body = {"n": self.beats, "mono": self.at - EPOCH, "phase": phase, "phase_s": 0.0, **more}
        return self.record("hb", body, step=step)

    def close(self, state: str = "finished", reason: str = "", step: int | None = None) -> int:
        return self.record(
            "close", {"state": state, "reason": reason, "close_run": True}, step=step
        )

    def flush(self) -> None:
        """Put everything pending on disk."""
        lines = b"".join(self._pending)
        self._pending.clear()
        with open(self.journal, "ab") as file:
            if not file.tell():
                file.write(opening_of(self.writer, self.number, self._segment_first, **self.facts))
            file.write(lines)

    def rotate(self) -> Path:
        """Begin the next segment; returns the journal of the one before."""
        self.flush()
        before = self.journal
        self.number += 1
        self._segment_first = self.seq
        return before

    def seal(self) -> Path:
        """Begin the next segment and seal the one before."""
        return seal(self.rotate())


class RunBuilder:
    """A run directory and its writers."""

    def __init__(
        self,
        root: Path,
        *,
        name: str = "made-up",
        world_size: int = 1,
        created_at: float = EPOCH,
        run_id: str = "",
        attempts: int = 1,
        **extra: Any,
    ) -> None:
        manifest = Manifest(
            run_id=run_id or new_run_id(),
            name=name,
            project="tests",
            project_id="6f1c3d57-86a5-5c9b-8a39-8a2e5c1f0d11",
            created_at=created_at,
            created_by="tester",
            host="host-0",
            config={"lr": 0.1},
            extra={"world_size": world_size, **extra},
        )
        self.world_size = world_size
        self.run_id = manifest.run_id
        self.directory = create_run(root, manifest)
        for _ in range(attempts):
            self.attempt(world_size)

    def attempt(self, world_size: int) -> int:
        taken = take_attempt(self.directory, Attempt(0, 0, {}, EPOCH, world_size, "host-0"))
        return taken.number

    def writer(
        self, rank: int = 0, *, attempt: int = 1, token: str = "", world_size: int = 0, **facts: Any
    ) -> WriterBuilder:
        world = world_size or self.world_size
        known = {
            "run": self.run_id,
            "rank": rank,
            "world": world,
            "attempt": attempt,
            "host": f"host-{rank // 8}",
            "pid": 1000 + rank,
            "boot": "made-up",
            "start": 1,
            "flush_s": 0.25,
            "hb_s": 15.0,
            "participant": {
                "id": f"p{rank}",
                "name": f"rank-{rank}",
                "role": "trainer",
                "rank": rank,
                "group_rank": rank,
                "local_rank": rank % 8,
                "labels": {},
            },
            **facts,
        }
        writer = WriterId(rank, attempt, token or f"{rank:04x}{attempt:04x}")
        return WriterBuilder(self.directory / layout.DATA, writer, known)

    def command(self, id_: str, name: str = "lr", **payload: Any) -> Path:
        """Put a command into the inbox."""
        from launchhelm.records import Command
        from launchhelm.store.inbox import send

        return send(self.directory, Command(id=id_, name=name, payload=payload, issued_by="me"))


def age_files(directory: Path, seconds: float, *, clock: FakeClock) -> None:
    """Set the times of all files as if they were last written so long ago."""
    at = clock.wall() - seconds
    for path in directory.rglob("*"):
        os.utime(path, (at, at))


def tree(directory: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return mode, time of change and content of everything below, to compare later."""
    found = {}
    for path in sorted(directory.rglob("*")):
        facts = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(directory))] = (facts.st_mode, facts.st_mtime_ns, content)
    return found


def wait_for(condition: Any, *, timeout_s: float = 20.0) -> Any:
    """Wait until a condition holds; returns what it returned."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.01)


NOBODY = 65534


def as_nobody(function: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Run a function in a child process of a user without any rights; needs root.

    The child is forked, not executed: the interpreter itself may be out of that user's reach, so
    everything that the function imports has to be loaded already.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            answer = json.dumps(function())
        except BaseException as error:  # Everything has to be told, and nothing may escape.
            answer = json.dumps({"error": repr(error)})
        with os.fdopen(writing, "w") as pipe:
            pipe.write(answer)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        found: dict[str, Any] = json.loads(pipe.read())
    os.waitpid(child, 0)
    assert "error" not in found, found
    return found


LOGGER = """
import itertools, sys, time
from pathlib import Path
from launchhelm._recorder import Recorder
from launchhelm.records import Record, WriterId

run, rank, attempt, token, pause = Path(sys.argv[1]), *map(int, sys.argv[2:4]), *sys.argv[4:6]
recorder = Recorder(
    run, WriterId(rank, attempt, token), {"rank": rank, "world": 1, "host": "here"},
    heartbeat_s=0.05, flush_s=0.02, segment_bytes=20_000, max_segment_bytes=40_000,
)
recorder.start()
for step in itertools.count():
    recorder.append("m", {"loss": step * 0.5, "twice": step * 2}, step=step)
    recorder.progress.step = step
    if step == 50:
        recorder.flush(20)
        print("logging", flush=True)
    time.sleep(float(pause))
"""
"""A process that logs `loss == step / 2` and `twice == 2 * step` until it is killed."""


class Logger:
    """A real process at work in a run directory; killed at the end of the block at the latest."""

    def __init__(
        self, run: RunBuilder, *, rank: int = 0, attempt: int = 1, pause_s: float = 0.0002
    ) -> None:
        token = os.urandom(4).hex()
        self.writer = WriterId(rank, attempt, token)
        arguments = [str(run.directory), str(rank), str(attempt), token, str(pause_s)]
        self.process = subprocess.Popen(
            [sys.executable, "-c", LOGGER, *arguments],
            stdout=subprocess.PIPE,
            cwd=Path(__file__).resolve().parents[2],
        )

    def __enter__(self) -> Logger:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"logging\n"
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


def assert_is_prefix(records: list[Record]) -> int:
    """Check that these are the first records of a Logger, right in every value; how many."""
    assert [record.seq for record in records] == list(range(len(records)))
    for record in records:
        if record.kind == "m":
            assert record.step is not None
            assert record.body == {"loss": record.step * 0.5, "twice": record.step * 2}
    return len(records)
