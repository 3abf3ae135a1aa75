"""What went wrong inside: counted always, logged once per cause, never raised into training."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

_log = logging.getLogger("launchhelm")


class Faults:
    """The faults of one recorder. Any thread may report; counts are for people.

    Args:
        note: Receives the first fault of each component as (component, error, count), to record it.
    """

    def __init__(self, note: Callable[[str, str, int], None]) -> None:
        self.counts: Counter[str] = Counter()
        self.note = note
        self._told: set[str] = set()

    def guard(self, component: str, action: Callable[[], object]) -> bool:
        """Run an action; an exception of it is reported. Returns whether there was none."""
        try:
            action()
        except Exception as error:  # Protects training, and the thread that calls.
            self.report(component, error)
            return False
        return True

    def report(self, component: str, error: Exception) -> None:
        """Count a fault; log its traceback and record it the first time."""
        self.counts[component] += 1
        if self._first(f"fault {component}"):
            # What storage says is its own explanation; a mistake of ours needs the traceback.
            is_ours = not isinstance(error, OSError)
            _log.error(
                "Recording has a fault in its %s: %s. Training goes on.",
                component,
                str(error).rstrip("."),
                exc_info=error if is_ours else None,
            )
            self.note(component, f"{type(error).__name__}: {error}", 1)

    def warn(self, cause: str, message: str) -> None:
        """Log a warning, once per cause."""
        if self._first(cause):
            _log.warning(message)

    def forget(self) -> None:
        """Start anew, in a forked child."""
        self._told = set()

    def _first(self, cause: str) -> bool:
        known = cause in self._told
        self._told.add(cause)
        return not known
