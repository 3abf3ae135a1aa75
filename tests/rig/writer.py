"""A rank that logs numbered records, and notes outside the shared folder what was promised.

    python writer.py RUN_DIRECTORY PROMISES ATTEMPT [LIMIT]

PROMISES gets one line `WRITER COUNT` after each flush that returned: the first COUNT records of
that writer are durable. It is fsynced, so that a power cut here cannot take a promise back.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from launchhelm._ids import new_token
from launchhelm._recorder import Recorder
from launchhelm.records import WriterId
from launchhelm.store.manifest import Manifest, create_run

BATCH = 20


def new_run(root: Path) -> Path:
    """Make an empty run below a root."""
    manifest = Manifest(
        run_id="0196a000-0000-7000-8000-000000000001",
        name="rig",
        project="rig",
        project_id="rig",
        created_at=0.0,
        created_by="",
        host="a",
    )
    return create_run(root, manifest)


def opening(writer: WriterId) -> dict[str, object]:
    """Return what the `open` line says of this process."""
    return {
        "run": "rig",
        "rank": writer.rank,
        "world": 1,
        "attempt": writer.attempt,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "boot": "",
        "start": 0,
        "flush_s": 0.25,
        "hb_s": 15.0,
        "lib": "rig",
    }


def main() -> None:
    """Log and flush until killed, or until LIMIT records are durable."""
    run_directory, promises, attempt = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    limit = int(sys.argv[4]) if len(sys.argv) > 4 else sys.maxsize
    writer = WriterId(0, attempt, new_token())
    recorder = Recorder(run_directory, writer, opening(writer), flush_s=0.05)
    recorder.start()
    note = os.open(promises, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    done = 0
    while done < limit:
        for step in range(done, done + BATCH):
            recorder.append("m", {"n": step, "loss": 1 / (step + 1)}, step=step)
        done += BATCH
        recorder.flush(600)  # A server that boots can take minutes to be noticed.
        os.write(note, f"{writer} {done}\n".encode())
        os.fsync(note)
    recorder.close("finished", "", 30)


if __name__ == "__main__":
    main()
