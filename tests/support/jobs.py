"""Start a script as a user would, under any launcher, and leave no process of it behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOTING_JOB = ROOT / "tests" / "support" / "noting_job.py"


@dataclass(frozen=True)
class Job:
    """How a job ended, and all that it said."""

    code: int
    said: str


def torchrun(ranks: int, script: Path, *arguments: object) -> list[str]:
    """Return the command for a network of its own, in which any port is free."""
    return [
        *(sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={ranks}"),
        *("--master_addr=127.0.0.1", "--master_port=29500"),
        *(str(script), *map(str, arguments)),
    ]


def run_job(
    command: Sequence[str],
    directory: Path,
    environment: Mapping[str, str] | None = None,
    *,
    timeout_s: float = 100.0,
) -> Job:
    """Run a command; it and all that it started are gone on return, however it ended."""
    with started_job(command, directory, environment) as process:
        return end_of_job(process, timeout_s=timeout_s)


@contextlib.contextmanager
def started_job(
    command: Sequence[str], directory: Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Start a command; it and all that it started are gone at the end of the block.

    An error that leaves the block gets what the command said as a note.
    """
    mark = f"JOB_OF_A_TEST={uuid.uuid4().hex}"
    process = subprocess.Popen(
        command,
        cwd=directory,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            **(environment or {}),
            **dict([mark.split("=")]),
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    except BaseException as error:
        _kill(mark)
        error.add_note(f"The job said:\n{process.communicate(timeout=30.0)[0]}")
        raise
    else:
        _kill(mark)
        process.communicate(timeout=30.0)


def end_of_job(process: subprocess.Popen[str], *, timeout_s: float = 100.0) -> Job:
    """Wait for the end of a started job."""
    try:
        said, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        said = f"no end within {timeout_s:g} s"
    return Job(process.wait(), said)


def _kill(mark: str) -> None:
    """Kill every process with this in its environment; launchers give workers own sessions."""
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and mark.encode() in Path("/proc", name, "environ").read_bytes():
                os.kill(int(name), signal.SIGKILL)
        except OSError:
            continue  # It has ended meanwhile, or is not ours.
