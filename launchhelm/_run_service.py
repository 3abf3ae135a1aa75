"""Safe points of a plain run: at most one command per call, on the thread that calls.

The order is the promise: a command is claimed and durable before it is seen here, `applying` is
durable before its handler runs, and exactly one final outcome is recorded afterwards, whatever the
handler does.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from launchhelm._clock import SYSTEM_CLOCK, Clock
from launchhelm._commands import CommandDesk, Ticket, Validate
from launchhelm._run_results import as_result
from launchhelm.commands import Handler
from launchhelm.models import Capability, CommandContext, Document
from launchhelm.records import TRAINING_SAFE_POINT, Command, Outcome

APPLYING_WAIT_S: Final = 0.25
"""How long one call waits for `applying` to be durable; after that the next call looks again."""

APPLYING_LIMIT_S: Final = 5.0
"""After so long the storage is called unavailable, and the command is rejected."""

MAX_CODE_CHARS: Final = 128
MAX_MESSAGE_CHARS: Final = 1000

_log = logging.getLogger("launchhelm")

Offer = Callable[[Document, Capability, Handler, Validate | None], object]


@dataclass(slots=True)
class _Begun:
    """A command whose `applying` record is on its way."""

    command: Command
    ticket: Ticket
    since: float


class Service:
    """Handlers by name, and what the last of them did."""

    def __init__(self, desk: CommandDesk, *, epoch: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self._desk = desk
        self.epoch = epoch
        self._clock = clock
        self._handlers: dict[str, Handler] = {}
        self._begun: dict[str, _Begun] = {}
        self._lock = threading.RLock()
        self._depth = 0
        self.reported: tuple[int, int] | None = None
        self.training: Offer | None = None
        """Takes the capabilities of the training safe point, where a Trainer runs the handlers."""
        self.is_control: Callable[[str], bool] = lambda name: False
        """Whether a Trainer offers a control of that name, which no handler may replace."""
        self.last_applied: dict[str, str] | None = None
        self.last_result: Any = None  # Any: whatever the handler returned.

    def register(
        self, capability: Capability, handler: Handler, *, validate: Validate | None = None
    ) -> Document:
        """Offer a capability with its handler; an earlier one of that name is replaced.

        Raises:
            TypeError: The handler cannot be called.
            ValueError: A bad name, safe point or schema, or the name of a Trainer's control.
        """
        if not callable(handler):
            raise TypeError(f"The handler of {capability.name!r} cannot be called.")
        if self.is_control(capability.name):
            raise ValueError(
                f"There is a control {capability.name!r} already; give the command another name."
            )
        document = self._desk.register(capability, validate=validate)
        if self.training is not None and TRAINING_SAFE_POINT in capability.safe_points:
            self.training(document, capability, handler, validate)
        self._handlers[capability.name] = handler
        return document

    def require_free(self, name: str) -> None:
        """Refuse a control that would replace a command of the script.

        Raises:
            ValueError: There is a command of that name.
        """
        if name in self._handlers:
            raise ValueError(f"There is a command {name!r} already; give that another name.")

    def report_applied_on(self, count: int, of: int) -> None:
        """Say how many participants a handler changed; the last word counts.

        Raises:
            ValueError: Not 0 <= count <= of, or of < 1.
            RuntimeError: No handler is running.
        """
        for number in (count, of):
            if isinstance(number, bool) or not isinstance(number, int):
                raise ValueError("report_applied_on takes two integers.")
        if not 0 <= count <= of or of < 1:
            raise ValueError(f"report_applied_on needs 0 <= count <= of, got {count} of {of}.")
        if not self._depth:
            raise RuntimeError("report_applied_on is for handlers, while they run.")
        self.reported = (count, of)

    @contextmanager
    def handling(self) -> Iterator[None]:
        """Let the handler that runs in this block report."""
        self.reported = None
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def visit(self, safe_point: str, *, step: int, axes: Mapping[str, str]) -> int:
        """Run at most one waiting command; 1 when a handler ran, also when it failed.

        Raises:
            BaseException: Only what is not an Exception, from the handler: KeyboardInterrupt, ...
        """
        self.last_result = None
        with self._lock:
            command = self._next(safe_point, step)
        if command is None:
            return 0
        self._run(command, step, axes)
        return 1

    def _next(self, safe_point: str, step: int) -> Command | None:
        """Return a command whose `applying` is durable."""
        begun = self._begun.get(safe_point)
        if begun is None:
            command = self._desk.take(safe_point, step=step)
            if command is None:
                return None
            if command.name not in self._handlers:
                message = f"This run has no handler for {command.name!r}."
                code = "handler_unavailable_or_changed"
                self._desk.conclude(
                    command, Outcome(command.id, "rejected", code=code, message=message)
                )
                return None
            ticket = self._desk.applying(command, step=step)
            begun = self._begun[safe_point] = _Begun(command, ticket, self._clock.monotonic())
        if begun.ticket.wait(APPLYING_WAIT_S):
            del self._begun[safe_point]
            return begun.command
        if self._clock.monotonic() - begun.since > APPLYING_LIMIT_S:
            del self._begun[safe_point]
            outcome = Outcome(
                begun.command.id,
                "rejected",
                code="storage_unavailable",
                message="The run directory accepts no writes.",
            )
            self._desk.conclude(begun.command, outcome)
        return None

    def _run(self, command: Command, step: int, axes: Mapping[str, str]) -> None:
        coordinates = {"step": str(step), **axes}
        context = CommandContext(
            command_id=command.id,
            epoch=self.epoch,
            coordinates=tuple({"axis": axis, "value": text} for axis, text in coordinates.items()),
        )
        try:
            with self.handling():
                value = self._handlers[command.name](command.payload, context)
        except Exception as error:  # The user's handler: its failure is an outcome.
            self._desk.conclude(command, self._failed(command, error), step=step)
        except BaseException as error:
            self._desk.conclude(command, self._failed(command, error), step=step)
            raise
        else:
            self.last_result = value
            self._desk.conclude(command, self._returned(command, value, step, axes), step=step)
        finally:
            self.last_applied = coordinates

    def _returned(
        self, command: Command, value: Any, step: int, axes: Mapping[str, str]
    ) -> Outcome:
        count, of = self.reported or (1, 1)
        if count < of:
            return Outcome(
                command.id,
                "outcome_unknown",
                code="partially_applied",
                message=f"Applied on {count} of {of}.",
                applied_on=count,
                of=of,
            )
        result, note = as_result(value)
        if note:
            _log.warning("launchhelm: Command %r: %s", command.name, note)
        return Outcome(
            command.id,
            "applied",
            message=note,
            result=result,
            applied_at={"step": step, **axes},
            applied_on=count,
            of=of,
        )

    def _failed(self, command: Command, error: BaseException) -> Outcome:
        count, of = self.reported or (None, None)
        return Outcome(
            command.id,
            "outcome_unknown",
            code=type(error).__name__[:MAX_CODE_CHARS],
            message=_text(error),
            applied_on=count,
            of=of,
        )


def _text(error: BaseException) -> str:
    try:
        return str(error)[:MAX_MESSAGE_CHARS]
    except Exception:  # An exception of the user's whose __str__ fails.
        return ""
