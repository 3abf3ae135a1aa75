"""Make the golden run directories of format 1. Ran once; what it made is never edited again.

    python -m tests.golden.make_format_1 DIRECTORY

Each directory has an expected.json beside it, made from what was written, not from what was read.
A later version of the package must go on reading these files: write a new set beside them instead
of running this again.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launchhelm.records import Command, WriterId
from launchhelm.store.inbox import encode
from launchhelm.store.layout import CommandName, hidden_name
from launchhelm.store.manifest import Attempt, Manifest, create_run, take_attempt
from launchhelm.store.segment import seal
from launchhelm.store.writer import JournalWriter

EPOCH = 1_796_022_506.355


class Clock:
    """A clock that stands still: the same script makes the same bytes."""

    def wall(self) -> float:
        return EPOCH

    def monotonic(self) -> float:
        return 0.0


@dataclass
class Golden:
    """One run directory in the making, and what it should say."""

    root: Path
    title: str
    world_size: int = 1
    expected: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        number = 1 + sum(1 for path in self.root.iterdir() if path.is_dir())
        self.run_id = f"01a229{number:02x}-0000-7000-8000-0000000000{number:02x}"
        manifest = Manifest(
            run_id=self.run_id,
            name=self.title,
            project="golden",
            project_id="3a1d5a8e-0f0b-5b55-9a39-6f0a3c2f1e77",
            created_at=EPOCH,
            created_by="tester",
            host="gpu-000",
            config={"lr": 0.01, "model": {"layers": 2}, "resume": False},
            extra={"world_size": self.world_size, "tags": ["golden"], "notes": "naïve ☃"},
        )
        made = create_run(self.root, manifest)
        self.directory = made.rename(self.root / self.title)
        self.expected = {"run_id": self.run_id, "name": self.title, "records": {}}
        self.attempt()

    def attempt(self) -> None:
        launch = {"kind": "torchrun", "run": "none"}
        attempt = Attempt(0, 0, launch, EPOCH, self.world_size, "gpu-000")
        take_attempt(self.directory, attempt)

    def writer(self, rank: int = 0, attempt: int = 1) -> GoldenWriter:
        return GoldenWriter(self, rank, attempt)

    def finish(self) -> None:
        text = json.dumps(self.expected, ensure_ascii=False, indent=1)
        (self.root / f"{self.title}.expected.json").write_text(text + "\n", encoding="utf-8")


class GoldenWriter:
    """Writes through the real writer, and notes what it wrote."""

    def __init__(self, golden: Golden, rank: int, attempt: int) -> None:
        self.id = WriterId(rank, attempt, f"{rank:04x}{attempt:04x}")
        self.records: list[list[Any]] = []
        golden.expected["records"][str(self.id)] = self.records
        opening = {
            "run": golden.run_id,
            "rank": rank,
            "world": golden.world_size,
            "attempt": attempt,
            "host": f"gpu-{rank:03d}",
            "pid": 4711 + rank,
            "pidns": "pid:[1]",
            "boot": "none",
            "start": "1",
            "flush_s": 0.25,
            "hb_s": 15.0,
            "lib": "launchhelm-offline 0.1.0",
            "participant": {"id": f"p{rank}", "name": f"rank-{rank}", "local_rank": rank},
        }
        self.journal = JournalWriter(golden.directory / "data", self.id, opening, clock=Clock())
        self.journal.flush()

    def record(
        self,
        kind: str,
        body: Mapping[str, Any],
        *,
        step: int | None = None,
        axes: Mapping[str, str] | None = None,
    ) -> None:
        at = EPOCH + len(self.records)
        self.journal.append(kind, body, step=step, axes=axes, at=at)
        texts = {name: repr(value) for name, value in body.items()}
        self.records.append([kind, round(at, 3), step, dict(axes or {}), texts])

    def some(self, first: int, last: int) -> None:
        """Log metrics of every class for these steps, with a heartbeat after every fourth."""
        for step in range(first, last):
            odd = (0.1 * step, math.nan, math.inf, -math.inf, -0.0)[step % 5]
            values = {"loss": odd, "tokens": 2**40 + step, "ok": step % 2 == 0, "word": f"w{step}"}
            self.record("m", values, step=step, axes={"epoch": str(step // 4)})
            if step % 4 == 3:
                beat = {"n": step // 4 + 1, "mono": float(step), "phase": "training"}
                self.record("hb", {**beat, "phase_s": 0.5}, step=step)

    def flush(self) -> None:
        self.journal.flush()

    def seal(self) -> None:
        self.flush()
        journal = self.journal.rotate()
        assert journal is not None
        seal(journal, clock=Clock())


def live_journal(root: Path) -> None:
    """A run that is being written: one journal, a command in the inbox, a file half made."""
    golden = Golden(root, "live-journal")
    writer = golden.writer()
    writer.record("ev", {"type": "start", "world_size": 1})
    writer.record("cap", {"name": "lr", "provider": "launchhelm.torch", "safe_points": ["lht"]})
    writer.some(0, 10)
    writer.record("m", {"big": 2**80, "損失/ü": 1, "none-step": 0.5}, step=None)
    writer.record("a-later-kind", {"anything": [1, None, {"x": True}]}, step=9)
    writer.flush()
    command = Command(id="c0ffee", name="lr", payload={"scale": 0.5}, issued_by="alice")
    control = golden.directory / "control"
    (control / str(CommandName(0, command.id))).write_bytes(encode(command))
    (golden.directory / "data" / hidden_name("r.db")).write_bytes(b"half")
    (golden.directory / "data" / "readme.txt").write_text("not ours")
    golden.finish()


def sealed_and_journal(root: Path) -> None:
    """Two sealed segments and a journal, with a command from claim to effect."""
    golden = Golden(root, "sealed-and-journal")
    writer = golden.writer()
    writer.some(0, 8)
    writer.seal()
    outcome = {"cmd": "c1", "name": "lr", "payload": {"scale": 0.5}, "owner": "alice"}
    writer.record("oc", {**outcome, "state": "claimed"}, step=8)
    writer.record("oc", {"cmd": "c1", "state": "applying", "of": 1}, step=9)
    changes = {"lr": {"old": [0.01], "new": [0.005]}}
    final = {"cmd": "c1", "state": "applied", "applied_on": 1, "of": 1, "changes": changes}
    writer.record("oc", {**final, "applied_at": {"step": 10}}, step=10)
    writer.record("effect", {"cmd": "c1", "step": 11, "values": {"lr": [0.005]}}, step=11)
    writer.some(8, 16)
    writer.seal()
    writer.some(16, 20)
    writer.flush()
    golden.finish()


def two_attempts(root: Path) -> None:
    """Attempt 1 died at step 12; attempt 2 went on from step 8 and finished."""
    golden = Golden(root, "two-attempts")
    first = golden.writer(attempt=1)
    first.some(0, 13)
    first.flush()
    golden.attempt()
    second = golden.writer(attempt=2)
    second.some(8, 17)
    second.record("sum", {"best": 0.25})
    second.record("close", {"state": "finished", "reason": "", "close_run": True}, step=16)
    second.seal()
    golden.finish()


def torn_tail(root: Path) -> None:
    """The last line was being written when the copy was made."""
    golden = Golden(root, "torn-tail")
    writer = golden.writer()
    writer.some(0, 6)
    writer.flush()
    path = next((golden.directory / "data").glob("*.jsonl"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-33])
    writer.records.pop()
    golden.finish()


def killed_rank(root: Path) -> None:
    """Of two ranks one was killed; the other gave up records before it noticed and stopped."""
    golden = Golden(root, "killed-rank", world_size=2)
    first, second = golden.writer(0), golden.writer(1)
    second.some(0, 4)
    second.flush()
    first.some(0, 5)
    lost_first, lost_last = first.journal.skip(3)
    first.records += [None, None, None]
    first.record("gap", {"first": lost_first, "last": lost_last, "why": "buffer full"})
    first.record("ev", {"type": "left", "rank": 1, "last_step": 3}, step=5)
    first.record("close", {"state": "terminated", "reason": "SIGTERM"}, step=5)
    first.flush()
    golden.finish()


ALL: tuple[Callable[[Path], None], ...] = (
    live_journal,
    sealed_and_journal,
    two_attempts,
    torn_tail,
    killed_rank,
)


def main(root: Path) -> None:
    """Make all of them in an empty directory."""
    root.mkdir(parents=True, exist_ok=True)
    if any(root.iterdir()):
        raise SystemExit(f"{root} is not empty: golden files are made once and never edited")
    for make in ALL:
        make(root)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
