"""Runs as a test needs them: started quietly, commanded, waited for; and clocks that tests turn."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from launchhelm._buffer import Ticket
from launchhelm._ids import new_id
from launchhelm.records import Command, WriterId
from launchhelm.run import Run, init
from launchhelm.store import inbox
from launchhelm.store.manifest import Manifest, create_run
from launchhelm.store.writer import JournalWriter


class TurnedClock:
    """A clock that stands still until it is turned."""

    def __init__(self, at: float = 1_000.0) -> None:
        self.at = at

    def wall(self) -> float:
        return 1_796_000_000.0 + self.at

    def monotonic(self) -> float:
        return self.at

    def turn(self, seconds: float) -> None:
        self.at += seconds


class DirectRecorder:
    """A recorder without a thread: every record is on the disk when the call returns."""

    def __init__(self, run_directory: Path, writer: WriterId, *, opening: Any = None) -> None:
        self.faults: Counter[str] = Counter()
        self.journal = JournalWriter(run_directory / "data", writer, opening or {})
        self.journal.flush()
        self.is_slow = False
        self.late_tickets: list[Ticket] = []

    def append(self, kind: str, body: Mapping[str, Any], *, step: int | None = None) -> bool:
        self.append_urgent(kind, body, step=step)
        return True

    def append_urgent(
        self, kind: str, body: Mapping[str, Any], *, step: int | None = None
    ) -> Ticket:
        ticket = Ticket()
        self.journal.append(kind, body, step=step)
        if self.is_slow:
            self.late_tickets.append(ticket)
            return ticket
        self.journal.flush()
        ticket.resolve()
        return ticket

    def catch_up(self) -> None:
        """Make everything durable that was slow."""
        self.is_slow = False
        self.journal.flush()
        for ticket in self.late_tickets:
            ticket.resolve()
        self.late_tickets = []


@contextmanager
def running(root: Path, **arguments: Any) -> Iterator[Run]:
    """Start a run below a root; end it when the test has not."""
    run = init(arguments.pop("project", "tests"), state_dir=root, **arguments)
    try:
        yield run
    finally:
        run.finish()


def empty_run(root: Path) -> Path:
    """Make a run directory that nobody writes."""
    manifest = Manifest(new_id(), "empty", "tests", new_id(), 0.0, "nobody", "nowhere")
    return create_run(root, manifest)


def send(run_directory: Path, name: str, payload: Mapping[str, Any], **fields: Any) -> Command:
    """Put a command into a run's inbox."""
    command = Command(id=fields.pop("id", None) or new_id(), name=name, payload=payload, **fields)
    inbox.send(run_directory, command)
    return command


def until(condition: Callable[[], object], *, timeout_s: float = 20.0) -> None:
    """Wait for a condition; the test fails when the deadline passes."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{condition} did not come true"
        time.sleep(0.01)


def use_in_a_child(run: Run) -> None:
    """Use a run as a worker process might that was given it."""
    assert run.log({"a": 99}, step=1) is False
    run.flush()
    run.finish()
