"""What a pickled or deep-copied run has instead of a recorder: it records nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from launchhelm._recorder import Progress, Ticket


class NoRecorder:
    """Accepts every call of a Recorder and writes nothing."""

    def __init__(self) -> None:
        self.progress = Progress()
        self.dropped = 0
        self.pending = 0
        self.late = 0
        self.last_error: str | None = None
        self.faults: Counter[str] = Counter()
        self.is_closed = True

    def append(
        self,
        kind: str,
        body: Mapping[str, Any],
        *,
        step: int | None = None,
        axes: Mapping[str, str] | None = None,
        at: float | None = None,
    ) -> bool:
        """Count the record as late."""
        del kind, body, step, axes, at
        self.late += 1
        return False

    def announce(self, ending: str) -> None:
        """Write nothing."""
        del ending

    def beat_soon(self) -> None:
        """Write nothing."""

    def append_urgent(
        self,
        kind: str,
        body: Mapping[str, Any],
        *,
        step: int | None = None,
        axes: Mapping[str, str] | None = None,
    ) -> Ticket:
        """Count the record as late; its ticket is never durable."""
        del kind, body, step, axes
        self.late += 1
        return Ticket()

    def flush(self, timeout_s: float) -> None:
        """Do nothing: there is nothing to wait for."""

    def close(self, state: str, reason: str, timeout_s: float, *, close_run: bool = True) -> bool:
        """Do nothing."""
        del state, reason, timeout_s, close_run
        return True
