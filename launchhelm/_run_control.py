"""The controlling half of a Run: what may be commanded, and where commands act."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from launchhelm._commands import CommandDesk
from launchhelm._faults import Faults
from launchhelm._run_service import Service
from launchhelm.commands import Handler, adapt, command_capability
from launchhelm.models import Capability, Document
from launchhelm.values import axes_text, check_step

Function = TypeVar("Function", bound=Callable[..., Any])


class Controls:
    """Commands of a plain loop. A Trainer has a safe point of its own, common to all ranks."""

    desk: CommandDesk
    _service: Service
    _faults: Faults
    _next_step: int
    _is_over: bool

    @property
    def service(self) -> Service:
        """Safe points and their handlers, for the Trainer of this run."""
        return self._service

    def command(self, safe_point: str, *, name: str = "") -> Callable[[Function], Function]:
        """Offer a typed function as a command, as a decorator or called with a bound method.

        Raises:
            TypeError: A parameter whose annotation has no schema.
            ValueError: A name that does not match the rule, or that of a Trainer's control.
        """

        def offer(function: Function) -> Function:
            capability = command_capability(function, safe_point, name=name)
            self._service.register(capability, adapt(function))
            return function

        return offer

    def on(self, safe_point: str, capability: Capability, handler: Handler) -> Document:
        """Offer a capability at one of its safe points.

        Raises:
            ValueError: The capability does not list that point, or its schemas are not semantic.
        """
        if safe_point not in capability.safe_points:
            raise ValueError(f"The capability {capability.name!r} does not list {safe_point!r}.")
        return self._service.register(capability, handler)

    def register(self, capability: Capability, handler: Handler) -> Document:
        """Offer a capability; `handler(payload, context)` runs in `sync`.

        Raises:
            ValueError: Bad names, or schemas that are not semantic.
        """
        return self._service.register(capability, handler)

    def pending(self, safe_point: str) -> bool:
        """Whether a command waits for this safe point. No I/O."""
        return not self._is_over and self.desk.pending(safe_point)

    def sync(self, safe_point: str, *, step: int | None = None, **axes: object) -> int:
        """Run at most one waiting command here, on this thread.

        Returns:
            1 when a handler ran, also when it failed; its outcome is recorded. 0 otherwise.

        Raises:
            TypeError, ValueError: A bad name, step or axis; nothing else.
        """
        step = self._next_step if step is None else check_step(step)
        return self.visit(safe_point, step, axes_text(axes) if axes else {})

    def safe_point(self, name: str, *, step: int | None = None, **axes: object) -> int:
        """Do what `sync` does."""
        return self.sync(name, step=step, **axes)

    @property
    def last_applied(self) -> dict[str, str] | None:
        """Coordinates of the last `sync` that ran a handler."""
        return self._service.last_applied

    @property
    def last_result(self) -> Any:  # Any: whatever the handler returned.
        """What that handler returned; None when the latest `sync` ran nothing."""
        return self._service.last_result

    def visit(self, safe_point: str, step: int, axes: Mapping[str, str]) -> int:
        """Do what `sync` does, with coordinates that have been checked."""
        self.desk.advertise(safe_point)
        if self._is_over:
            return 0
        try:
            return self._service.visit(safe_point, step=step, axes=axes)
        except Exception as error:  # Protects training; a handler's own error is an outcome.
            self._faults.report("control", error)
            return 0
