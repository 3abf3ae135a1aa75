"""Start a script as a user would, under any launcher, and leave no process of it behind."""

from __future__ import annotations

import os
import signal
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Job:
    """How a job ended, and all that it said."""

    code: int
    said: str


def run_job(
    command: Sequence[str],
    directory: Path,
    environment: Mapping[str, str] | None = None,
    *,
    timeout_s: float = 100.0,
) -> Job:
    """Run a command; it and all that it started are gone on return, however it ended."""
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
        said, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        said = f"no end within {timeout_s:g} s"
    finally:
        _kill(mark)
    return Job(process.wait(), said)


def _kill(mark: str) -> None:
    """Kill every process with this in its environment; launchers give workers own sessions."""
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and mark.encode() in Path("/proc", name, "environ").read_bytes():
                os.kill(int(name), signal.SIGKILL)
        except OSError:
            continue  # It has ended meanwhile, or is not ours.
