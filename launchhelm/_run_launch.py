"""What a restart of a job has in common with its first start, as its launcher tells.

A restart finds its run by this key; whoever starts the same command anew gets a run of its own.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from launchhelm import _run_metadata as metadata
from launchhelm import _settings

WAYS: Final = ("torchrun", "slurm")


def launch_key(project: str, name: str) -> dict[str, str]:
    """Return what a restart of the same job has in common with its first start.

    `key` binds project, title and command line; `slurm` and `torchrun` name the job as its
    launcher does. The restart counts stand beside them.
    """
    digest = hashlib.sha256()
    for part in (project, name, *sys.argv):
        digest.update(part.encode("utf-8", "surrogatepass") + b"\0")
    key = {"key": digest.hexdigest()[:32]}
    job = _settings.SLURM_JOB_ID.read()
    if job:
        task, step = _settings.SLURM_ARRAY_TASK_ID.read(), _settings.SLURM_STEP_ID.read()
        key["slurm"] = f"{job}/{task}/{step}"
        key["slurm_restarts"] = str(_count(_settings.SLURM_RESTART_COUNT.read()))
    run = _settings.TORCHELASTIC_RUN_ID.read()
    if run:
        agent = os.getppid()
        key["torchrun"] = "/".join(
            (run, metadata.host_name(), boot_id(), str(agent), start_time(agent))
        )
        key["torchrun_restarts"] = str(_count(_settings.RESTART_COUNT.read()))
    return key


def boot_id() -> str:
    """Return the id of this boot of the kernel, "" where there is none."""
    return _read("/proc/sys/kernel/random/boot_id")


def start_time(pid: int | str) -> str:
    """Return when a process started, in clock ticks since boot, "" where that is not known."""
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 else ""


def restarts(launch: Mapping[str, str]) -> list[str]:
    """Return the launchers that say this is a restart."""
    return [way for way in WAYS if _count(launch.get(f"{way}_restarts", ""))]


def restart_count(launch: Mapping[str, str]) -> int:
    """Return the restart count of the innermost launcher."""
    return next((_count(launch[f"{way}_restarts"]) for way in WAYS if way in launch), 0)


def follows(launch: Mapping[str, str], earlier: Mapping[str, str], way: str) -> bool:
    """Whether a launch is a later restart of the same job."""
    count = f"{way}_restarts"
    return launch.get(way) == earlier.get(way) and _count(launch.get(count, "")) > _count(
        earlier.get(count, "")
    )


def _count(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0


def _read(path: str) -> str:
    try:
        return Path(path).read_text("ascii", "replace").strip()
    except OSError:
        return ""
