"""Run directories as a training leaves them, written line by line, for tests of what reads them."""

from __future__ import annotations

import io
import json
import pickle
import threading
import time
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any

from launchhelm._ids import new_run_id
from launchhelm.controls import schema
from launchhelm.records import Command, Outcome, WriterId
from launchhelm.store import inbox, media
from launchhelm.store.layout import CHECKPOINTS, CONTROL, DATA, SegmentName
from launchhelm.store.line import dumps, metric_values, seal_line
from launchhelm.store.manifest import Attempt, Manifest, create_run, take_attempt

LR = {
    "name": "lr",
    "provider": "launchhelm.torch",
    "safe_points": ["lht"],
    "input_schema": schema.record(
        [
            schema.field("scale", schema.number(minimum=0), optional=True),
            schema.field("lr", schema.number(minimum=0), optional=True),
            schema.field("group", schema.number(minimum=0, integer=True), optional=True),
        ]
    ),
}
KL = {
    "name": "set_kl",
    "provider": "launchhelm.torch",
    "safe_points": ["lht"],
    "input_schema": schema.record([schema.field("value", schema.number(minimum=0.0, maximum=1.0))]),
}


class Journal:
    """One process's journal; each record is on the disk when `add` returns."""

    def __init__(
        self,
        run: Path,
        rank: int = 0,
        *,
        attempt: int = 1,
        world: int = 1,
        host: str = "gpu-000",
        **more: Any,
    ) -> None:
        self.writer = WriterId(rank, attempt, f"{rank:08x}")
        self._path = run / DATA / str(SegmentName(self.writer, 1, sealed=False))
        self._next = 0
        facts = {"id": f"p{rank}", "name": f"rank-{rank}", "role": "trainer"}
        self._write(
            {
                "k": "open",
                "fmt": 1,
                "w": str(self.writer),
                "n": 1,
                "q0": 0,
                "run": run.name,
                "rank": rank,
                "world": world,
                "attempt": attempt,
                "host": host,
                "pid": 1000 + rank,
                "t": time.time(),
                "hb_s": 15.0,
                "flush_s": 0.25,
                "participant": {**facts, "group_rank": rank, "local_rank": rank % 8},
                **more,
            }
        )

    def add(
        self, kind: str, body: Mapping[str, Any], *, step: int | None = None, at: float = 0.0
    ) -> None:
        """Append one record."""
        content = metric_values(body) if kind in ("m", "sys") else dict(body)
        line = {"q": self._next, "k": kind, "t": at or time.time(), "s": step, "v": content}
        self._next += 1
        self._write(line)

    def beat(self, step: int | None, counter: int = 1, **more: Any) -> None:
        """Append a heartbeat."""
        body = {"n": counter, "mono": time.monotonic(), "phase": "training", "phase_s": 0.0}
        self.add("hb", {**body, **more}, step=step)

    def _write(self, line: Mapping[str, Any]) -> None:
        with self._path.open("ab") as file:
            file.write(seal_line(dumps(line).encode()[1:]))


class MadeRun:
    """A run with one journal per rank."""

    def __init__(
        self, root: Path, name: str = "ddp-run", *, ranks: int = 1, **manifest: Any
    ) -> None:
        run_id = new_run_id()
        extra = {"world_size": ranks, **manifest.pop("extra", {})}
        facts = {
            "project": "quickstart",
            "project_id": "p",
            "created_at": time.time(),
            "created_by": "alice",
            "host": "gpu-000",
            "config": {"lr": 0.01},
        }
        made = Manifest(run_id=run_id, name=name, extra=extra, **{**facts, **manifest})
        self.path = create_run(root, made)
        self.run_id = run_id
        take_attempt(self.path, Attempt(0, 0, {}, time.time(), ranks, "gpu-000"))
        self.journals = [Journal(self.path, rank, world=ranks) for rank in range(ranks)]

    def train(self, step: int = 400) -> MadeRun:
        """Make it a running training with lr and one tunable."""
        for capability in (LR, KL):
            self.journals[0].add("cap", capability)
        self.report({"lr": [0.01, 0.01], "set_kl": 0.5}, step=step)
        self.journals[0].add("m", {"train/loss": 2.25, "optim/lr/group0": 0.01}, step=step)
        for journal in self.journals:
            journal.beat(step, step_time_ms=5.0)
        return self

    def report(self, values: Mapping[str, Any], *, step: int, **more: Any) -> None:
        """Write a `ctl` record."""
        body = {"values": values, "due_call": step + 100, "calls_per_exchange": 100, "step": step}
        self.journals[0].add("ctl", {"control": "on", "why": "", **body, **more}, step=step)

    def end(self, state: str = "finished", reason: str = "", step: int = 400) -> MadeRun:
        """End every process."""
        for journal in self.journals:
            journal.add("close", {"state": state, "reason": reason, "close_run": True}, step=step)
        return self

    def conclude(self, command: Command, outcome: Outcome, *, step: int = 412) -> None:
        """Record a command as claimed, then its outcome."""
        claimed = Outcome(
            command.id,
            "claimed",
            name=command.name,
            payload=command.payload,
            issued_by=command.issued_by,
            reason=command.reason,
        )
        self.journals[0].add("oc", claimed.body(), step=step - 1)
        self.journals[0].add("oc", outcome.but(command=command.id).body(), step=step)


def with_two_attempts(root: Path, *, first_ends: bool = True) -> MadeRun:
    """Make a run of two ranks whose second attempt has ended; `journals` are those of the first."""
    run = MadeRun(root, "resumed", ranks=2).train()
    if first_ends:
        run.end("crashed")
    take_attempt(run.path, Attempt(0, 1, {}, time.time(), 2, "gpu-000"))
    for rank in range(2):
        journal = Journal(run.path, rank, attempt=2, world=2)
        journal.beat(500)
        journal.add("close", {"state": "finished", "close_run": True}, step=500)
    return run


def add_shards(run: MadeRun) -> Path:
    """Add a checkpoint in two parts of 64 bytes, as torch lays them out; return their directory."""
    parts = run.path / CHECKPOINTS / "parts"
    parts.mkdir(parents=True)
    # Classes of the same shape are enough: nobody who looks without torch knows torch's.
    index = SimpleNamespace(
        storage_data={
            rank: SimpleNamespace(relative_path=f"__{rank}_0.distcp", offset=32, length=32)
            for rank in range(2)
        }
    )
    for rank in range(2):
        (parts / f"__{rank}_0.distcp").write_bytes(bytes(64))
    (parts / ".metadata").write_bytes(pickle.dumps(index))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        payload = {"step": 400, "launchhelm.offline": {"parts": parts.name}}
        archive.writestr("archive/data.pkl", pickle.dumps(payload))
    stored = media.put(run.path, [packed.getvalue()])
    body = {"id": "c", "name": "step-400.pt", "sha256": stored.sha256, "size": stored.size}
    run.journals[0].add("art", {**body, "format": "launchhelm-checkpoint/1"}, step=400)
    return parts


class Coordinator:
    """Takes the next command out of the inbox, on a thread, and answers it as told."""

    def __init__(self, run: MadeRun, answer: Callable[[Command], Outcome]) -> None:
        self._run = run
        self._answer = answer
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self.taken: list[Command] = []

    def __enter__(self) -> Coordinator:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join(timeout=10)

    def _work(self) -> None:
        while not self._stop.wait(0.01):
            for name, command in inbox.waiting(self._run.path):
                if command is None:
                    continue
                self._run.conclude(command, self._answer(command))
                (self._run.path / CONTROL / str(name)).unlink()
                self.taken.append(command)


def commands_in(run: Path) -> list[dict[str, Any]]:
    """Return the bodies of the command files in an inbox."""
    files = sorted((run / CONTROL).glob("new.*.json"))
    return [json.loads(file.read_bytes()) for file in files]
