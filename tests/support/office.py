"""One coordinator's desk over a run directory, polled by hand; every record is durable at once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launchhelm._commands import CommandDesk
from launchhelm.controls import schema
from launchhelm.models import Capability, Scope, opaque_schema
from launchhelm.records import Command, Outcome, WriterId
from launchhelm.store.claims import Ledger
from launchhelm.store.inbox import Inbox
from launchhelm.store.manifest import Attempt, take_attempt
from tests.support.journals import final_outcomes, records
from tests.support.runs import DirectRecorder, TurnedClock

LR = schema.record([schema.field("lr", schema.number(minimum=0))])


def offer(name: str = "set_lr", *points: str, input_schema: Mapping[str, Any] = LR) -> Capability:
    return Capability(name, "script", "1", input_schema, opaque_schema(), points or ("after_step",))


class Office:
    """A run directory with one coordinator's desk on it, polled by hand."""

    def __init__(self, run: Path, attempt: int = 1, clock: TurnedClock | None = None) -> None:
        self.run = run
        self.clock = clock or TurnedClock()
        self.writer = WriterId(0, attempt, f"{attempt:08x}")
        taken = take_attempt(run, Attempt(0, 0, {}, 0.0, 1, "here"))
        assert taken.number == attempt
        self.recorder = DirectRecorder(run, self.writer)
        self.desk = CommandDesk(
            self.recorder,
            scope=Scope("o"),
            participant_id="p",
            attempt=attempt,
            inbox=Inbox(run, self.writer, clock=self.clock),
            ledger=Ledger(run, self.writer),
            clock=self.clock,
        )
        self.desk.register(offer())
        self.desk.pending("after_step")

    def take(self, safe_point: str = "after_step", step: int | None = 7) -> Command | None:
        self.desk.poll()
        return self.desk.take(safe_point, step=step)

    def states(self, command: str) -> list[str]:
        return [
            record.body["state"]
            for record in records(self.run, "oc")
            if record.body["cmd"] == command
        ]

    def outcome(self, command: str) -> Outcome:
        [outcome] = final_outcomes(self.run)[command]
        return outcome

    def files(self) -> list[str]:
        return sorted(os.listdir(self.run / "control"))
