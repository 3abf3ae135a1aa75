"""What the exchange needs of the rest of the package, and the status that it shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from launchhelm.records import Command, Outcome


class Ticket(Protocol):
    """A record on its way to the disk."""

    @property
    def durable(self) -> bool:
        """Whether it has arrived."""
        ...


class Desk(Protocol):
    """Where the coordinator gets commands and files what became of them. No method waits."""

    def take(self, step: int, ahead: int = 0, *, recorded: bool = False) -> Command | None:
        """Return the next command that may be applied now or within so many steps, if any.

        `recorded`: of those whose `applying` record is durable, as `prepare` has begun it.
        """
        ...

    def prepare(self, step: int) -> None:
        """Begin to write the `applying` records of commands for steps up to this one."""
        ...

    def follows(self, step: int) -> bool:
        """Whether a command for a step up to this one waits, and its record is durable."""
        ...

    def upcoming(self, step: int) -> int | None:
        """Return the earliest step after this one that a command waits for, if any."""
        ...

    def applying(self, command: Command, step: int) -> Ticket:
        """Begin to write the record that must be durable before anything changes."""
        ...

    def conclude(self, command: Command, outcome: Outcome) -> None:
        """File the one final outcome."""
        ...


class Plant(Protocol):
    """The controls of this rank. Every method runs on the thread that calls `Trainer.step`."""

    def kind(self, name: str) -> Literal["state", "handler"]:
        """Say whether the control is state, which can be taken back, or runs a handler."""
        ...

    def check(self, name: str, payload: Mapping[str, Any], step: int) -> str | None:
        """Say why the command does not fit ("" or None when it does). Changes nothing."""
        ...

    def snapshot(self, name: str, payload: Mapping[str, Any]) -> object:
        """Return what `restore` needs to undo `apply` exactly."""
        ...

    def apply(self, name: str, payload: Mapping[str, Any], step: int) -> Mapping[str, Any]:
        """Change the state and return the result for the outcome. May raise anything."""
        ...

    def note(self, name: str) -> str:
        """Say what people should know of what `apply` just did, "" for nothing."""
        ...

    def read_back(self, name: str, payload: Mapping[str, Any]) -> str:
        """Return the values now in effect as canonical text; "" when ranks may differ."""
        ...

    def restore(self, snapshot: object) -> None:
        """Undo `apply`, also one that failed half way."""
        ...

    def changes(self, name: str, snapshot: object) -> Mapping[str, Any]:
        """Return {"value": {"old": ..., "new": ...}} for the outcome, after `apply`."""
        ...

    def values(self) -> Mapping[str, Any]:
        """Return what all controls hold now, by name; JSON, to be equal on all ranks."""
        ...


class Progress(Protocol):
    """What the heartbeat shows of this rank."""

    phase: str
    phase_since: float
    exchange_wait_ms: float | None
    step_time_ms: float | None
    control_off: str


@dataclass(slots=True)
class ControlStatus:
    """The state of the exchange, for the `ctl` record and the status view.

    `diverged` is {name: {rank: value}} of values that differ between ranks.
    """

    on: bool = True
    why: str = ""
    serial: int = 0
    next_due_call: int = 0
    calls_per_exchange: int = 1
    last_wait_ms: float = 0.0
    diverged: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
