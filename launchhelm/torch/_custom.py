"""A command of the script at the training safe point: its handler runs on every rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from launchhelm._commands import Validate
from launchhelm._run_results import as_result
from launchhelm._run_service import Service
from launchhelm.commands import Handler
from launchhelm.controls import schema
from launchhelm.models import Capability, CommandContext
from launchhelm.torch._controls import Payload


class PartlyApplied(Exception):
    """A handler reported fewer participants than there are."""


class Custom:
    """A control made of a function that every rank registered.

    What it does cannot be taken back. The result of the command is the coordinator's.

    Args:
        step: Returns the step that is being ended.
        notice: Told of a result that was dropped; None where no result is kept.

    Attributes:
        note: What people should know of the last call, "" for nothing.
    """

    def __init__(
        self,
        capability: Capability,
        handler: Handler,
        validate: Validate | None,
        service: Service,
        step: Callable[[], int],
        notice: Callable[[str], object] | None,
    ) -> None:
        self.name = capability.name
        self.input_schema: Mapping[str, Any] = capability.input_schema
        self._handler = handler
        self._validate = validate
        self._service = service
        self._step = step
        self._notice = notice
        self.note = ""

    def problem(self, payload: Payload) -> str:
        """Judge by the schema, then by the script's own check."""
        misfit = schema.check(self.input_schema, payload)
        if not misfit and self._validate is not None:
            try:
                self._validate(payload)
            except Exception as error:  # Whatever it raises means no.
                return str(error) or type(error).__name__
        return misfit

    def apply(self, payload: Payload) -> Mapping[str, Any]:
        """Call the handler and return what it returned, as JSON; {} when that is none.

        Raises:
            PartlyApplied: It reported that it did not reach all.
        """
        self.note = ""
        step = {"axis": "step", "value": str(self._step())}
        # Only the coordinator knows the command's id.
        context = CommandContext(command_id="", epoch=self._service.epoch, coordinates=(step,))
        with self._service.handling():
            value = self._handler(payload, context)
            count, of = self._service.reported or (1, 1)
        if count < of:
            raise PartlyApplied(f"reported {count} of {of}")
        if self._notice is None:
            return {}
        result, self.note = as_result(value)
        if self.note:
            self._notice(f"Command {self.name!r}: {self.note}")
        return result  # type: ignore[no-any-return]
