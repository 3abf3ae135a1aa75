"""Read what a run wrote, as a test wants it: the one run of a root, records by kind and rank."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from launchhelm.records import FINAL_STATES, Outcome, Record
from launchhelm.store.reader import Reader


def only_run(root: Path) -> Path:
    """Return the one run directory below a root."""
    runs = [path for path in root.iterdir() if (path / "run.json").exists()]
    assert len(runs) == 1, runs
    return runs[0]


def records(run: Path, *kinds: str, rank: int | None = None) -> list[Record]:
    """Return all records of these kinds (default: of all), of one rank or of all."""
    return [
        record
        for record in Reader(run).poll()
        if (not kinds or record.kind in kinds) and (rank is None or record.writer.rank == rank)
    ]


def series(run: Path, name: str, *, rank: int | None = None) -> list[tuple[int | None, Any]]:
    """Return (step, value) of one metric."""
    return [
        (record.step, record.body[name])
        for record in records(run, "m", "sys", rank=rank)
        if name in record.body
    ]


def final_outcomes(run: Path) -> dict[str, list[Outcome]]:
    """Return every final outcome by command; each list should have one."""
    found: dict[str, list[Outcome]] = {}
    for record in records(run, "oc"):
        outcome = Outcome.parse(record.body)
        if outcome.state in FINAL_STATES:
            found.setdefault(outcome.command, []).append(outcome)
    return found


def participants(run: Path) -> dict[int, dict[str, Any]]:
    """Return the participant facts that each rank's journals open with, the newest attempt's."""
    found: dict[int, dict[str, Any]] = {}
    for record in records(run, "ev"):
        if record.body.get("type") == "start":
            found[record.writer.rank] = dict(record.body)
    return found


def wait_until(condition: Callable[[], Any], what: str, *, timeout_s: float = 30.0) -> Any:
    """Wait for a condition with a deadline and return what it returned."""
    import time

    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"waited too long for {what}"
        time.sleep(0.02)
