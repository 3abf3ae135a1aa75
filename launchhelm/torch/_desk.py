"""The coordinator's side of live control: its desk of commands, and the panel that shows values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from launchhelm._commands import CommandDesk
from launchhelm.models import Document
from launchhelm.records import TRAINING_SAFE_POINT, Command, Outcome
from launchhelm.run import Run
from launchhelm.torch._controls import Control, capability
from launchhelm.torch._plant import Plant
from launchhelm.torch._roles import ControlStatus, Ticket
from launchhelm.torch._standing import Standing

QUIET_S: Final = 15.0
"""Least time between two notes about values that change all the time, or about the pace."""

GLANCE_S: Final = 1.0
"""Between two looks at values while they stand still, so that a script's own change is shown."""


class TrainingDesk:
    """The run's desk, bound to the safe point of the training loop.

    Attributes:
        landed: Commands applied since the optimizer last moved, with what they changed; their
            effect is still to be seen.
        urgent: Asked first for a command that nobody has sent, such as that of a signal.
        applied: Told of each outcome that says applied.
        standing: Knows what was commanded; asked next for what is to be commanded again.
    """

    def __init__(self, desk: CommandDesk) -> None:
        self._desk = desk
        self._is_advertised = False
        self.landed: list[tuple[Command, Mapping[str, Any]]] = []
        self.urgent: Callable[[], Command | None] | None = None
        self.applied: Callable[[Outcome], object] = lambda outcome: None
        self.standing: Standing | None = None

    @property
    def paused(self) -> bool:
        """Whether the loop waits on purpose; it still takes commands then."""
        return self._desk.paused

    @paused.setter
    def paused(self, value: bool) -> None:
        self._desk.paused = value

    def register(self, control: Control) -> Document:
        """Offer a control to whoever may command it."""
        if not self._is_advertised:
            self._desk.advertise(TRAINING_SAFE_POINT)
            self._is_advertised = True
        return self._desk.register(capability(control))

    def take(self, step: int, ahead: int = 0, *, recorded: bool = False) -> Command | None:
        """Return the next command that may act at this step, or within so many steps after it."""
        command = None
        if not recorded:
            command = self.urgent() if self.urgent is not None else None
            command = command or self._again()
        return command or self._desk.take(
            TRAINING_SAFE_POINT, step=step, ahead=ahead, recorded=recorded
        )

    def prepare(self, step: int) -> None:
        """Begin to record commands for steps up to this one, so that they can act in a row."""
        self._desk.prepare(TRAINING_SAFE_POINT, step)

    def follows(self, step: int) -> bool:
        """Whether one of those waits, and its record is durable."""
        return self._desk.follows(TRAINING_SAFE_POINT, step)

    def upcoming(self, step: int) -> int | None:
        """Return the earliest step after this one that a command waits for, if any."""
        return self._desk.upcoming(TRAINING_SAFE_POINT, step)

    def _again(self) -> Command | None:
        standing = self.standing
        command = standing.command() if standing is not None else None
        if standing is None or command is None:
            return None
        self._desk.admit(command)
        return command

    def applying(self, command: Command, step: int) -> Ticket:
        """Record that a command is about to act."""
        return self._desk.applying(command, step=step)

    def conclude(self, command: Command, outcome: Outcome) -> None:
        """Record what became of a command."""
        self._desk.conclude(command, outcome)
        if outcome.state == "applied":
            self.landed.append((command, outcome.changes))
            if self.standing is not None:
                self.standing.take(command, outcome)
            self.applied(outcome)

    def forget(self, names: Collection[str]) -> None:
        """Do not look for the effect of commands of which it is known what has undone them."""
        self.landed = [each for each in self.landed if each[0].name not in names]
        for name in names:
            self._desk.restored(name)


class Panel:
    """Records what the controls hold and how the exchange is paced, when either has changed."""

    def __init__(self, run: Run, plant: Plant, status: ControlStatus) -> None:
        self._run = run
        self._plant = plant
        self._status = status
        self._shown: dict[str, Any] = {}
        self._was = (status.on, status.diverged)
        self._quiet_until = 0.0
        self._glance_at = 0.0
        self._glance_s = GLANCE_S

    def look(self, step: int, now: float) -> None:
        """Record a change that no command made; cheap when there is nothing to do.

        Args:
            step: The step that ended.
            now: Monotonic seconds.
        """
        status = self._status
        if now >= self._quiet_until or (status.on, status.diverged) != self._was:
            self._quiet_until = now + QUIET_S
            self.note(step)
        elif now >= self._glance_at:
            # Under a schedule each look finds something, and would be a record.
            has_moved = self._plant.values() != self._shown.get("values")
            if has_moved:
                self.note(step)
            self._glance_s = min(QUIET_S, 2 * self._glance_s) if has_moved else GLANCE_S
            self._glance_at = now + self._glance_s

    def note(self, step: int) -> None:
        """Record the values now, unless they are as recorded last."""
        status = self._status
        self._was = (status.on, status.diverged)
        values = self._plant.values()
        shown = {
            "values": values,
            "calls_per_exchange": status.calls_per_exchange,
            "control": "on" if status.on else "off",
            "why": status.why,
            **({"diverged": status.diverged} if status.diverged else {}),
        }
        if shown == self._shown:
            return
        self._shown = shown
        body = {**shown, "due_call": status.next_due_call, "step": step}
        self._run.recorder.append("ctl", body, step=step)
