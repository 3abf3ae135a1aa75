"""A desk and a plant that do what a test wrote down, and remember what happened to them.

A command's payload is its own script:

    {"value": 0.5}                                  sets the control of that name to 0.5
    {"value": -1}                                   refused by every rank
    {"value": 0.5, "refuse": 2}                     refused by rank 2
    {"value": 0.5, "fail": 1, "how": "snapshot"}    fails on rank 1: "snapshot", "half" (after the
                                                    change), "odd" (holds another value), "stuck"
                                                    (half, and cannot be taken back), "kill"
    {"value": 0.1, "slow": 1, "by": 2.0}            a handler that takes 0.1 s, and 2 s on rank 1
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from launchhelm.records import Command, Outcome


def command(name: str, first_step: int = 0, **payload: Any) -> Command:
    """Make a command whose id says when it is due."""
    return Command(id=f"{name}-{first_step}", name=name, payload=payload, first_step=first_step)


@dataclass
class Shown:
    """What a heartbeat would show, with every phase there was."""

    step: int | None = None
    phase_since: float = 0.0
    exchange_wait_ms: float | None = None
    step_time_ms: float | None = None
    phases: list[str] = field(default_factory=lambda: ["training"])

    @property
    def phase(self) -> str:
        return self.phases[-1]

    @phase.setter
    def phase(self, value: str) -> None:
        self.phases.append(value)


@dataclass
class LateTicket:
    """A record that becomes durable a while after it was begun."""

    durable_at: float

    @property
    def durable(self) -> bool:
        return time.monotonic() >= self.durable_at


class ScriptedDesk:
    """Hands out commands at their first step, one after the other."""

    def __init__(self, commands: Iterable[Command], *, durable_after_s: float = 0.005) -> None:
        self.waiting = sorted(commands, key=lambda one: one.first_step or 0)
        self.outcomes: list[Outcome] = []
        self.recorded: list[str] = []
        self._durable_after_s = durable_after_s
        self._prepared: dict[str, LateTicket] = {}

    def take(self, step: int, ahead: int = 0, *, recorded: bool = False) -> Command | None:
        if recorded and not self.follows(step + ahead):
            return None
        if self.waiting and step + ahead >= (self.waiting[0].first_step or 0):
            return self.waiting.pop(0)
        return None

    def prepare(self, step: int) -> None:
        for each in self.waiting:
            if (each.first_step or 0) <= step and each.id not in self._prepared:
                self._prepared[each.id] = self._record(each)

    def follows(self, step: int) -> bool:
        if not self.waiting or (self.waiting[0].first_step or 0) > step:
            return False
        ticket = self._prepared.get(self.waiting[0].id)
        return ticket is not None and ticket.durable

    def upcoming(self, step: int) -> int | None:
        first = (self.waiting[0].first_step or 0) if self.waiting else 0
        return first if first > step else None

    def applying(self, command: Command, step: int) -> LateTicket:
        return self._prepared.get(command.id) or self._record(command)

    def _record(self, command: Command) -> LateTicket:
        self.recorded.append(command.id)
        return LateTicket(time.monotonic() + self._durable_after_s)

    def conclude(self, command: Command, outcome: Outcome) -> None:
        assert command.id not in [one.command for one in self.outcomes], f"twice: {outcome}"
        self.outcomes.append(outcome)

    def bodies(self) -> list[dict[str, Any]]:
        """Return the outcomes as JSON."""
        return [outcome.body() for outcome in self.outcomes]


class ScriptedPlant:
    """Controls named `lr` and `x`, and a handler `job`."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.held: dict[str, float] = {"lr": 0.1, "x": 1.0}
        self.stuck = False
        self.jobs: list[int] = []

    def kind(self, name: str) -> Literal["state", "handler"]:
        return "handler" if name == "job" else "state"

    def check(self, name: str, payload: Mapping[str, Any], step: int) -> str | None:
        if name != "job" and name not in self.held:
            return f"no control {name!r}"
        if payload["value"] < 0 or payload.get("refuse") == self.rank:
            return f"{payload['value']} is out of range"
        return ""

    def snapshot(self, name: str, payload: Mapping[str, Any]) -> object:
        if self._fails(payload, "snapshot"):
            raise RuntimeError("no snapshot")
        return dict(self.held)

    def apply(self, name: str, payload: Mapping[str, Any], step: int) -> Mapping[str, Any]:
        if self._fails(payload, "kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        if name == "job":
            slow = payload.get("slow") == self.rank
            time.sleep(payload["by"] if slow else payload["value"])
            self.jobs.append(step)
            if self._fails(payload, "half"):
                raise RuntimeError("job failed")
            return {"done": True}
        self.held[name] = payload["value"]
        self.stuck = self._fails(payload, "stuck")
        if self.stuck or self._fails(payload, "half"):
            self.held[name] = -99.0
            raise RuntimeError("half way")
        if self._fails(payload, "odd"):
            self.held[name] += 0.25
        return {name: payload["value"]}

    def read_back(self, name: str, payload: Mapping[str, Any]) -> str:
        return repr(sorted(self.held.items()))

    def restore(self, snapshot: object) -> None:
        if self.stuck:
            raise RuntimeError("cannot be taken back")
        assert isinstance(snapshot, dict)
        self.held = dict(snapshot)

    def note(self, name: str) -> str:
        return ""

    def changes(self, name: str, snapshot: object) -> Mapping[str, Any]:
        assert isinstance(snapshot, dict)
        return {name: {"old": snapshot.get(name), "new": self.held.get(name)}}

    def values(self) -> Mapping[str, Any]:
        return dict(self.held)

    def _fails(self, payload: Mapping[str, Any], how: str) -> bool:
        return payload.get("fail") == self.rank and payload.get("how") == how
