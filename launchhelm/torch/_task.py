"""The command under way, as every rank knows it, and its steps on this rank's controls."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from launchhelm.records import Command, Outcome
from launchhelm.torch._controls import NotDone
from launchhelm.torch._messages import Applied, Checked, Status, Verdict, digest
from launchhelm.torch._roles import Plant, Ticket


@dataclass(slots=True)
class Task:
    """One command on one rank.

    Args:
        plant: The controls of this rank.
        body: What travels to the other ranks.
        command: Where it came from; on the coordinator only.
    """

    plant: Plant
    body: bytes
    command: Command | None = None
    name: str = ""
    payload: Mapping[str, Any] = field(default_factory=dict)
    first_step: int | None = None
    last_step: int | None = None
    ticket: Ticket | None = None
    """Of its `applying` record; on the coordinator."""
    recorded_at: float = 0.0
    _snapshot: object = None
    _result: Mapping[str, Any] | None = None
    _changes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        value = json.loads(self.body)
        self.name, self.payload = value["name"], value["payload"]
        self.first_step, self.last_step = value["steps"]

    @classmethod
    def of(cls, command: Command, plant: Plant) -> Self:
        """Make the coordinator's own."""
        steps = [command.first_step, command.last_step]
        body = {"name": command.name, "payload": command.payload, "steps": steps}
        return cls(plant, json.dumps(body, separators=(",", ":")).encode(), command)

    def check(self, step: int) -> Checked:
        """Ask the controls whether it would fit. Changes nothing."""
        try:
            handler = self.plant.kind(self.name) == "handler"
            return Checked(self.plant.check(self.name, self.payload, step) or "", handler)
        except Exception as error:  # A control's mistake is a refusal, not a crash.
            return Checked(text_of(error))

    def apply(self, step: int, handler: bool) -> Applied:
        """Snapshot, apply, read back; of a handler, run it."""
        if self.last_step is not None and step > self.last_step:
            return Applied(Status.EXPIRED, f"Expired: step {step} is past {self.last_step}")
        if self.first_step is not None and step < self.first_step:
            return Applied(Status.EARLY, f"Step {step} came where {self.first_step} was expected")
        plant, changed = self.plant, False
        try:
            if handler:
                self._result = plant.apply(self.name, self.payload, step)
                return Applied(Status.OK)
            self._snapshot = plant.snapshot(self.name, self.payload)
            changed = True
            self._result = plant.apply(self.name, self.payload, step)
            values = plant.read_back(self.name, self.payload)
            if self.command is not None:
                self._changes = plant.changes(self.name, self._snapshot)
        except NotDone as error:
            return Applied(Status.NOT_DONE, str(error))
        except Exception as error:  # It may raise anything; the other ranks must hear of it.
            return Applied(Status.FAILED, text_of(error), changed=changed)
        return Applied(Status.OK, values, digest(values), changed)

    def restore(self) -> str:
        """Take back what `apply` changed; returns "" or the error."""
        try:
            self.plant.restore(self._snapshot)
        except Exception as error:  # The other ranks must hear of it.
            return text_of(error)
        return ""

    def outcome(self, verdict: Verdict, step: int, hosts: Mapping[int, str], size: int) -> Outcome:
        """Say what became of it. `hosts` names the ranks of the verdict's failures."""
        assert self.command is not None
        is_applied = verdict.state == "applied"
        has_begun = is_applied or verdict.state == "outcome_unknown"
        return Outcome(
            command=self.command.id,
            state=verdict.state,
            code=verdict.code,
            message=verdict.message or (self.plant.note(self.name) if is_applied else ""),
            name=self.name,
            result=self._result if is_applied else None,
            applied_at={"step": step} if is_applied else {},
            applied_on=verdict.applied_on,
            of=size if has_begun else None,
            rolled_back=verdict.rolled_back,
            changes=self._changes if has_begun else {},
            failures=tuple((rank, hosts[rank], text) for rank, text in verdict.failures),
        )


def text_of(error: BaseException) -> str:
    """Return an error as other ranks and people read it."""
    return f"{type(error).__name__}: {error}"
