"""A job of several ranks whose launcher restarts all of them when one dies, as torchrun does.

Each rank notes by itself, durably and in a file that is none of ours, when it begins to apply a
command and when it has: the notes are what reports and records are checked against.
"""

from __future__ import annotations

import abc
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from launchhelm.store import layout
from tests.support.commanding import wait
from tests.support.jobs import end_of_job, started_job
from tests.support.ranks import Ranks

CONTROL = "lr"
PROJECT = "quickstart"
LIFE_S = 7200.0
MAX_RESTARTS = 100
RESTART_S = 300.0

Raised = tuple[type[BaseException] | None, BaseException | None, TracebackType | None]

QUICK = "from tests.support.killed_job import quicken\nquicken()\n"


def quicken() -> None:
    """Make this process wait less than in life, in the same proportions; nothing else changes."""
    from syncer import pull, retry, service
    from syncer.push import RunPush

    for module, name, seconds in (
        (pull, "RENEW_S", 1.5),
        (pull, "BEGIN_S", 4.0),
        (pull, "CLAIM_S", 3.0),
        (retry, "_FIRST_BACKOFF_S", 0.05),
        (retry, "MAX_BACKOFF_S", 1.0),
        (service, "HELD_S", 0.2),
    ):
        assert hasattr(module, name)
        setattr(module, name, seconds)
    options = RunPush.__init__.__kwdefaults__
    assert options is not None
    options["lease_s"] = 3.0


@dataclass(frozen=True)
class Note:
    """One line of a rank's own: it begins to take a rate at a step, or has taken it."""

    attempt: int
    rank: int
    step: int
    value: float
    is_done: bool


def train(
    rank: int, size: int, tell: Callable[[str], None], path: str, sync: bool
) -> dict[str, Any]:
    """Train until there is a file `end`; the learning rate may be commanded."""
    import torch
    import torch.distributed as dist

    import launchhelm.torch as lht

    if sync:
        quicken()
    trainer = lht.init(PROJECT, name="killed", state_dir=f"{path}/runs", sync=sync)
    attempt, step = trainer.run.attempt.number, trainer.run.next_step
    Path(path, f"pid.{rank}").write_text(str(os.getpid()))
    out = os.open(f"{path}/notes/{attempt}.{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    class Group(dict[str, Any]):
        """A parameter group that notes every rate that it is given."""

        def __setitem__(self, name: str, value: Any) -> None:
            # Commands only ever raise the rate: a lower one is a change that is taken back.
            is_command = name == "lr" and value >= self["lr"]
            self._note(value, False, is_command)
            super().__setitem__(name, value)
            self._note(value, True, is_command)

        def _note(self, value: float, is_done: bool, is_command: bool) -> None:
            if is_command:
                os.write(out, json.dumps([attempt, rank, step, value, is_done]).encode() + b"\n")
                os.fsync(out)

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.0)
    optimizer.param_groups[0] = Group(optimizer.param_groups[0])
    trainer.watch(None, optimizer, controls=("lr",))  # type: ignore[arg-type]
    is_over = torch.zeros(1)
    while not is_over:
        step += 1
        trainer.step(step, loss=1.0)
        time.sleep(0.005)
        is_over += os.path.exists(f"{path}/end")
        dist.all_reduce(is_over)
    trainer.finish()
    return {"steps": step}


class Job(abc.ABC):
    """A job in a folder, and its launcher.

    Args:
        path: Gets the folders `runs` and `notes`.
        size: Number of ranks.

    Attributes:
        killed_at: When a rank was killed, by the wall clock.
    """

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self.size = size
        self.killed_at: list[float] = []
        (path / "runs").mkdir()
        (path / "notes").mkdir()

    @property
    def directory(self) -> Path | None:
        """The one run, once it is there."""
        found = [it.parent for it in (self.path / "runs").glob("*/run.json")]
        assert len(found) <= 1, found
        return found[0] if found else None

    @property
    def attempt(self) -> int:
        """Number of the newest attempt."""
        assert self.directory is not None
        names = os.listdir(self.directory / layout.ATTEMPTS)
        return max((layout.parse_attempt(name) or 0 for name in names), default=0)

    @property
    def noted(self) -> int:
        """How much the ranks have noted so far."""
        return sum(it.stat().st_size for it in (self.path / "notes").iterdir())

    def notes(self) -> list[Note]:
        """Return all notes; before one that a kill cut short nothing was done."""
        lines = [
            line
            for path in (self.path / "notes").iterdir()
            for line in path.read_text().splitlines(keepends=True)
        ]
        return [Note(*json.loads(line)) for line in lines if line.endswith("\n")]

    @abc.abstractmethod
    def pid(self, rank: int) -> int:
        """The process of a rank; 0 while there is none."""

    @abc.abstractmethod
    def kill(self, rank: int) -> None:
        """Kill a rank; the launcher notices, ends the others, and starts all of them again."""

    @abc.abstractmethod
    def end(self) -> None:
        """Let the job come to its end by itself."""


class KilledJob(Job):
    """The job under a launcher of ours, which is as quick as a launcher can be.

    Args:
        sync: Whether rank 0 has a syncer of its own.
        environment: Of the ranks.
        chance: Decides how the launcher waits.
    """

    def __init__(
        self,
        path: Path,
        size: int,
        *,
        sync: bool,
        environment: Mapping[str, str],
        chance: random.Random,
    ) -> None:
        super().__init__(path, size)
        self._sync = sync
        self._environment = environment
        self._chance = chance
        self._starts = 0

    def __enter__(self) -> Self:
        self._ranks = self._started()
        return self

    def __exit__(self, *error: *Raised) -> None:
        self._ranks.__exit__(*error)

    def pid(self, rank: int) -> int:
        return self._ranks.pids[rank]

    def kill(self, rank: int) -> None:
        self.killed_at.append(time.time())
        self._ranks.kill(rank)
        if self._chance.random() < 0.5:
            time.sleep(self._chance.uniform(0.0, 1.0))  # The others may find out by themselves.
        self._ranks.__exit__(None, None, None)
        self._ranks = self._started()

    def end(self) -> None:
        (self.path / "end").touch()
        ended = self._ranks.wait()
        assert [one.code for one in ended] == [0] * self.size, ended

    def _started(self) -> Ranks:
        launcher = {
            "TORCHELASTIC_RUN_ID": "killed",
            "TORCHELASTIC_RESTART_COUNT": str(self._starts),
        }
        self._starts += 1
        return Ranks(
            train,
            self.size,
            deadline_s=LIFE_S,
            environment={**self._environment, **launcher},
            path=str(self.path),
            sync=self._sync,
        )


class TorchrunJob(Job):
    """The job under torchrun itself, which takes seconds to start it again.

    Args:
        sync: Whether rank 0 has a syncer of its own.
        environment: Of the ranks.
    """

    def __init__(
        self, path: Path, size: int, *, sync: bool, environment: Mapping[str, str]
    ) -> None:
        super().__init__(path, size)
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *(f"--nproc-per-node={size}", f"--max-restarts={MAX_RESTARTS}"),
            *(__file__, str(path), "sync" if sync else ""),
        ]
        self._block = started_job(command, path, environment)

    def __enter__(self) -> Self:
        self._process = self._block.__enter__()
        return self

    def __exit__(self, *error: *Raised) -> None:
        self._block.__exit__(*error)

    def pid(self, rank: int) -> int:
        try:
            pid = int((self.path / f"pid.{rank}").read_text())
            is_ours = str(self.path).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError):
            return 0
        return pid if is_ours else 0

    def kill(self, rank: int) -> None:
        pid = wait(lambda: self.pid(rank), "a rank to kill", RESTART_S)
        self.killed_at.append(time.time())
        os.kill(pid, signal.SIGKILL)

    def end(self) -> None:
        (self.path / "end").touch()
        job = end_of_job(self._process)
        assert job.code == 0, job.said


def main(path: str, sync: str) -> None:
    """Be one rank under torchrun."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    train(dist.get_rank(), dist.get_world_size(), lambda word: None, path, bool(sync))


if __name__ == "__main__":
    main(*sys.argv[1:])
