"""The control exchange of one trainer: SKELETON of the interface, the body follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from launchhelm._clock import SYSTEM_CLOCK, Clock
from launchhelm.records import Command, Outcome
from launchhelm.torch._collective import Links


class Ticket(Protocol):
    """A record on its way to the disk."""

    @property
    def durable(self) -> bool:
        """Whether it has arrived."""
        ...


class Desk(Protocol):
    """Where the coordinator gets commands and files what became of them; no method waits."""

    def take(self, step: int) -> Command | None: ...
    def applying(self, command: Command, step: int) -> Ticket: ...
    def conclude(self, command: Command, outcome: Outcome) -> None: ...


class Plant(Protocol):
    """The controls of this rank; every method runs on the thread that calls `Trainer.step`."""

    def kind(self, name: str) -> Literal["state", "handler"]: ...
    def check(self, name: str, payload: Mapping[str, Any], step: int) -> str | None: ...
    def snapshot(self, name: str, payload: Mapping[str, Any]) -> object: ...
    def apply(self, name: str, payload: Mapping[str, Any], step: int) -> Mapping[str, Any]: ...
    def read_back(self, name: str, payload: Mapping[str, Any]) -> str: ...
    def restore(self, snapshot: object) -> None: ...
    def changes(self, name: str, snapshot: object) -> Mapping[str, Any]: ...


class Progress(Protocol):
    """What the heartbeat shows; `launchhelm._recorder.Progress` is one."""

    step: int | None
    phase: str
    phase_since: float
    exchange_wait_ms: float | None
    step_time_ms: float | None


@dataclass
class ControlStatus:
    """The state of the exchange, for the `ctl` record and the status view."""

    on: bool = True
    why: str = ""
    serial: int = 0
    next_due_call: int = 0
    calls_per_exchange: int = 1
    last_wait_ms: float = 0.0


class Exchange:
    def __init__(
        self,
        *,
        links: Links | None,
        desk: Desk | None,
        plant: Plant,
        progress: Progress,
        notice: Callable[[str], None],
        control_every: int = 1,
        on_partial_failure: str = "raise",
        timeout_s: float = 1800.0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.status = ControlStatus()

    def on_call(self, step: int) -> None:
        """Do what is due at this call of `Trainer.step`; once per call, on every rank."""

    def finish(self, reason: str = "finished") -> None:
        """Leave without a collective; at most 2 s."""
