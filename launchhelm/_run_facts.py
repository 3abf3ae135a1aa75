"""What a process says of itself when it starts: in its files, in its attempt, and on stderr."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from launchhelm import _run_metadata as metadata
from launchhelm import _settings
from launchhelm._ids import new_token
from launchhelm._run_launch import boot_id, start_time
from launchhelm._run_open import Opened
from launchhelm.records import Participant
from launchhelm.store import layout
from launchhelm.store.manifest import write_durably

if TYPE_CHECKING:
    from launchhelm.run import Run


def opening(opened: Opened, participant: Participant) -> dict[str, Any]:
    """Return the facts of this process for the first line of its segments."""
    from launchhelm import __version__

    try:
        pid_namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        pid_namespace = ""
    return {
        "run": opened.manifest.run_id,
        "rank": participant.rank,
        "world": participant.world_size,
        "attempt": opened.attempt.number,
        "host": participant.host,
        "pid": os.getpid(),
        "pidns": pid_namespace,
        "boot": boot_id(),
        "start": start_time("self"),
        "lib": f"launchhelm-offline {__version__}",
        "participant": {
            "id": participant.id,
            "name": participant.name,
            "role": participant.role,
            "labels": dict(participant.labels),
            "group_rank": participant.group_rank,
            "local_rank": participant.local_rank,
        },
    }


def start_facts(opened: Opened, participant: Participant) -> dict[str, Any]:
    facts: dict[str, Any] = {"world_size": participant.world_size}
    if opened.attempt.resumed_from is not None:
        facts["resumed_from"] = opened.attempt.resumed_from
        facts["next_step"] = opened.past.next_step
    return facts


def look_for_manifest(opened: Opened, notice: Callable[[str], object]) -> float:
    """Where this host does not see the coordinator's files, write down which run these belong to.

    Runs once on the recorder's thread, a while after the start, by listing.
    """
    directory = opened.directory
    if layout.MANIFEST not in os.listdir(directory):
        nodes = directory / layout.NODES
        nodes.mkdir(exist_ok=True)
        host = re.sub(r"[^A-Za-z0-9.-]", "_", metadata.host_name())
        data = json.dumps(opened.manifest.wire(), ensure_ascii=False).encode()
        write_durably(nodes / f"{host}-{new_token()}.json", data)
        notice(f"{metadata.host_name()} does not see the coordinator's files in {directory}.")
    return 86_400.0


def first_line(run: Run) -> str:
    """Say where the run is written, how to look at it, and whether it is uploaded."""
    attempt = f", attempt {run.attempt.number}" if run.attempt.number > 1 else ""
    text = f"launchhelm: writing {run.name!r}{attempt} to {run.directory}"
    if run.syncer is not None:
        text += f"; uploading to {run.syncer.url}"
    elif _settings.API_KEY.read() or _settings.API_KEY_FILE.read():
        root = run.directory.parent
        text += f"; not uploading: run `launchhelm sync {root} --watch` beside it, or "
        text += "start it with LAUNCHHELM_SYNC=1 (sync=True)"
    return f"{text}; look at it with: launchhelm show {run.directory}"


def say(line: str) -> None:
    """Write one line to stderr; a terminal that is gone is no reason to fail."""
    try:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):
        pass
