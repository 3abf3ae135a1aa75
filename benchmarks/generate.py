"""Run directories of any size, as the real writer makes them, for benchmarks of the read side."""

from __future__ import annotations

import time
from pathlib import Path

from launchhelm._ids import new_id, new_run_id, new_token, project_id_for
from launchhelm.records import WriterId
from launchhelm.store.manifest import Attempt, Manifest, create_run, take_attempt
from launchhelm.store.segment import seal
from launchhelm.store.writer import JournalWriter

_FLUSH_RECORDS = 2000


def make_run(root: Path, *, name: str, world_size: int = 1) -> Path:
    """Make an empty run of one attempt."""
    now = time.time()
    manifest = Manifest(
        run_id=new_run_id(),
        name=name,
        project="benchmark",
        project_id=project_id_for("", "benchmark"),
        created_at=now,
        created_by="benchmark",
        host="host-0",
        config={"lr": 0.1, "layers": 12},
        extra={"world_size": world_size},
    )
    directory = create_run(root, manifest)
    take_attempt(directory, Attempt(0, 0, {}, now, world_size, "host-0"))
    return directory


def make_writer(directory: Path, rank: int, world_size: int) -> JournalWriter:
    """Open the journal of one rank."""
    opening = {
        "run": directory.name,
        "rank": rank,
        "world": world_size,
        "attempt": 1,
        "host": f"host-{rank // 8}",
        "pid": 1000 + rank,
        "boot": "none",
        "start": "1",
        "flush_s": 0.25,
        "hb_s": 15.0,
        "participant": {"id": new_id(), "name": f"rank-{rank}", "local_rank": rank % 8},
    }
    return JournalWriter(directory / "data", WriterId(rank, 1, new_token()), opening)


def beat(writer: JournalWriter, number: int, step: int) -> None:
    """Append a heartbeat."""
    body = {
        "n": number,
        "mono": 15.0 * number,
        "phase": "training",
        "phase_s": 0.004,
        "exchange_wait_ms": 0.2,
        "step_time_ms": 5.0,
    }
    writer.append("hb", body, step=step)


def log_points(writer: JournalWriter, first: int, last: int, *, metrics: int) -> None:
    """Log that many metrics at each step; complete segments are sealed."""
    names = [f"metric/{index}" for index in range(metrics - 1)]
    for step in range(first, last):
        values = {"loss": 1.0 / (step + 1), **dict.fromkeys(names, step * 0.001 + 0.1)}
        writer.append("m", values, step=step, at=1_796_000_000 + step * 0.005)
        if step % 3000 == 2999:
            beat(writer, step // 3000, step)
        if step % _FLUSH_RECORDS == 0:
            writer.flush()
            if writer.is_full:
                journal = writer.rotate()
                if journal is not None:
                    seal(journal)
    writer.flush()


def finish(writer: JournalWriter, step: int) -> None:
    """End a run as the last act of its only process, and seal what it wrote."""
    writer.append("close", {"state": "finished", "reason": "", "close_run": True}, step=step)
    writer.flush()
    journal = writer.rotate()
    if journal is not None:
        seal(journal)


def many_ranks(root: Path, ranks: int, *, steps: int) -> list[JournalWriter]:
    """A running job: every rank has beaten for a while, rank 0 has logged 10 metrics a step."""
    directory = make_run(root, name=f"{ranks}-ranks", world_size=ranks)
    writers = [make_writer(directory, rank, ranks) for rank in range(ranks)]
    for writer in writers:
        writer.append("ev", {"type": "start", "world_size": ranks})
        for number in range(40):
            beat(writer, number, steps * number // 40)
        writer.flush()
    log_points(writers[0], 0, steps, metrics=10)
    for writer in writers:
        beat(writer, 40, steps)
        writer.flush()
    return writers


def many_runs(root: Path, count: int, *, steps: int) -> None:
    """Runs of one rank: every other one finished and sealed, the others still journals."""
    for index in range(count):
        directory = make_run(root, name=f"run-{index}")
        writer = make_writer(directory, 0, 1)
        log_points(writer, 0, steps, metrics=5)
        beat(writer, 1, steps)
        if index % 2:
            finish(writer, steps)
        else:
            writer.flush()


def long_run(root: Path, steps: int, *, metrics: int) -> Path:
    """One rank with that many steps; the newest part is a journal."""
    directory = make_run(root, name=f"{steps}-steps")
    log_points(make_writer(directory, 0, 1), 0, steps, metrics=metrics)
    return directory


def finished_run(root: Path, steps: int, *, metrics: int) -> Path:
    """The same, complete: everything in it is sealed."""
    directory = make_run(root, name=f"{steps}-steps")
    writer = make_writer(directory, 0, 1)
    writer.append("ev", {"type": "start", "world_size": 1})
    log_points(writer, 0, steps, metrics=metrics)
    finish(writer, steps)
    return directory
