"""Many live runs in one process, for benchmarks.live_runs: the real journals, desks and inboxes.

    python -m benchmarks._many_writers ROOT RUNS RANKS

What is left out is the training, and the threads: one loop writes for all ranks. Each rank logs
three metrics a second, beats every 15 s, and makes it durable; rank 0 of each run looks into its
inbox twice a second and applies what it finds. Runs until its input ends.
"""

from __future__ import annotations

import resource
import select
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final  # Any: bodies of records.

from benchmarks import generate
from launchhelm._commands import CommandDesk
from launchhelm._ids import new_id
from launchhelm._run_service import Service
from launchhelm.commands import adapt, command_capability
from launchhelm.models import NIL, Scope
from launchhelm.store.inbox import Inbox
from launchhelm.store.writer import JournalWriter

SAFE_POINT: Final = "after_step"
CONTROL: Final = "set_lr"
TICKS: Final = 20
"""Parts of a second; each rank has its own, so that they do not all write at one moment."""
BEAT_S: Final = 15
LOOK_TICKS: Final = 10


def set_lr(lr: float) -> dict[str, float]:
    """The one control that every run offers."""
    return {"lr": lr}


@dataclass(frozen=True)
class Written:
    """A record that is on the disk already."""

    durable: bool = True

    def wait(self, timeout_s: float) -> bool:
        """Return at once."""
        return True


@dataclass
class Records:
    """What a desk needs of a recorder, without its thread."""

    writer: JournalWriter
    faults: Counter[str] = field(default_factory=Counter)

    def append(self, kind: str, body: Mapping[str, Any], *, step: int | None = None) -> bool:
        """Append a record for the next flush."""
        self.writer.append(kind, body, step=step)
        return True

    def append_urgent(
        self, kind: str, body: Mapping[str, Any], *, step: int | None = None
    ) -> Written:
        """Append a record and make it durable."""
        self.writer.append(kind, body, step=step)
        self.writer.flush()
        return Written()


class Run:
    """One job: the journals of its ranks, and the desk of rank 0."""

    def __init__(self, root: Path, number: int, ranks: int) -> None:
        directory = generate.make_run(root, name=f"live-{number}", world_size=ranks)
        self.writers = [generate.make_writer(directory, rank, ranks) for rank in range(ranks)]
        for writer in self.writers:
            writer.append("ev", {"type": "start", "world_size": ranks})
        leader = self.writers[0]
        self.desk = CommandDesk(
            Records(leader),
            scope=Scope(NIL, NIL, directory.name),
            participant_id=new_id(),
            attempt=1,
            inbox=Inbox(directory, leader.writer),
        )
        self._service = Service(self.desk, epoch="1")
        self._service.register(command_capability(set_lr, SAFE_POINT), adapt(set_lr))
        self.desk.advertise(SAFE_POINT)
        for writer in self.writers:
            writer.flush()

    def log(self, rank: int, step: int, *, beats: bool) -> None:
        """Record a second of one rank."""
        writer = self.writers[rank]
        values = {"loss": 1.0 / (step + 1), "lr": 0.1, "grad_norm": step * 0.001}
        writer.append("m", values, step=step)
        if beats:
            generate.beat(writer, step // BEAT_S, step)
        writer.flush()

    def control(self, step: int, *, looks: bool) -> None:
        """Pass a control point, after a look into the inbox where one is due."""
        if looks:
            self.desk.poll()
        self._service.visit(SAFE_POINT, step=step, axes={})


def main() -> None:
    """Write until nobody listens any more."""
    root, runs, ranks = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    wanted = runs * ranks + 64
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (wanted, max(wanted, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    )
    jobs = [Run(root, number, ranks) for number in range(runs)]
    everyone = [(job, rank) for job in jobs for rank in range(ranks)]
    print("ready", flush=True)
    began, tick = time.monotonic(), 0
    while True:
        part, second = tick % TICKS, tick // TICKS
        for place in range(part, len(everyone), TICKS):
            job, rank = everyone[place]
            job.log(rank, second, beats=(second + place) % BEAT_S == 0)
        for place, job in enumerate(jobs):
            job.control(second, looks=(tick + place) % LOOK_TICKS == 0)
        tick += 1
        wait_s = max(0.0, began + tick / TICKS - time.monotonic())
        if select.select([sys.stdin], [], [], wait_s)[0]:
            return


if __name__ == "__main__":
    main()
