"""`run.runtime`: the lower level of a run, for code that drives safe points itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from launchhelm._run_service import Service
from launchhelm.commands import Handler
from launchhelm.models import Capability, Document, Scope, timestamp
from launchhelm.records import NAME_PATTERN
from launchhelm.values.coordinates import MAX_AXES, MAX_COORDINATE_CHARS, is_decimal

if TYPE_CHECKING:
    from launchhelm.run import Run

OFFLINE = "offline"


class Runtime:
    """Participant, session and delivery of one process. Made by its Run."""

    def __init__(self, run: Run, service: Service, scope: Scope) -> None:
        self._run = run
        self._service = service
        self.scope = scope
        now = timestamp()
        participant = run.participant
        spec = {
            "name": participant.name,
            "role": participant.role,
            "labels": dict(participant.labels),
        }
        self.participant = Document(participant.id, "participant", scope, "1", spec, now, now)
        self.session = {"epoch": str(run.attempt.number), "state_revision": "0"}
        self.client = None

    @property
    def overflow(self) -> str:
        """What a full buffer does."""
        return self._run.overflow

    @property
    def dropped(self) -> int:
        """How many records were dropped so far."""
        return self._run.recorder.dropped

    @property
    def last_transport_error(self) -> str | None:
        """What the attached sync thread last met, None when all is well; without it, "offline"."""
        syncer = self._run.syncer
        return OFFLINE if syncer is None else syncer.trouble or None

    @property
    def last_result(self) -> Any:  # Any: whatever the handler returned.
        """What the handler of the latest safe point returned."""
        return self._service.last_result

    def register(
        self,
        capability: Capability,
        handler: Handler,
        *,
        validate: Callable[[Mapping[str, Any]], object] | None = None,
    ) -> Document:
        """Offer a capability; `validate(payload)` raises to reject a command.

        Raises:
            ValueError: Bad names, or schemas that are not semantic.
        """
        return self._service.register(capability, handler, validate=validate)

    def pending(self, safe_point: str) -> bool:
        """Whether a command waits for this safe point."""
        return self._run.pending(safe_point)

    def safe_point(self, name: str, *, coordinates: Sequence[Mapping[str, str]]) -> int:
        """Run at most one waiting command, at coordinates given as the wire has them.

        Raises:
            TypeError, ValueError: A bad name or coordinates.
        """
        checked = validate_coordinates(coordinates)
        step = checked.pop("step", None)
        is_whole = step is not None and re.fullmatch(r"-?[0-9]+", step) is not None
        at = int(step) if is_whole and step is not None else self._run.next_step
        return self._run.visit(name, at, checked)

    def flush(self, *, timeout: float = 30.0, delivered: bool = True) -> None:
        """Do what `run.flush` does."""
        self._run.flush(delivered=delivered, timeout=timeout)

    def report_applied_on(self, count: int, of: int) -> None:
        """Say, inside a handler, how many participants it changed; the last word counts.

        Raises:
            ValueError: Not 0 <= count <= of with of >= 1.
            RuntimeError: No handler is running.
        """
        self._service.report_applied_on(count, of)

    def stop_accepting(self) -> None:
        """Refuse commands from now on; those that wait are concluded as rejected."""
        self._run.desk.close()

    def end_session(self, *, close_run: str = "never") -> None:
        """Write the end of this process; "never" leaves the run open."""
        self._run.finish(close_run=close_run != "never")

    def close(self, *, timeout: float = 35.0) -> None:
        """Write everything and the end of this process."""
        self._run.finish(close_run=False, timeout=timeout)


def validate_coordinates(coordinates: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return coordinates of the wire as axis to text, in order.

    Raises:
        ValueError: None or too many, a bad axis or value, another key, or an axis given twice.
    """
    if not 1 <= len(coordinates) <= MAX_AXES:
        raise ValueError(f"A safe point has 1 to {MAX_AXES} coordinates.")
    checked: dict[str, str] = {}
    for entry in coordinates:
        axis, value = entry.get("axis"), entry.get("value")
        if not isinstance(axis, str) or NAME_PATTERN.fullmatch(axis) is None:
            raise ValueError(f"{axis!r} is not the name of an axis.")
        if not is_decimal(value) or len(str(value)) > MAX_COORDINATE_CHARS:
            raise ValueError(f"The coordinate of {axis} must be short decimal text.")
        if entry.keys() - {"axis", "value", "unit"}:
            raise ValueError("A coordinate has an axis, a value and perhaps a unit.")
        if axis in checked:
            raise ValueError(f"The axis {axis} is given twice.")
        checked[axis] = str(value)
    return checked
