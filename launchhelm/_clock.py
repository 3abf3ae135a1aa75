"""The one door to time: wall time for people, monotonic time for every decision."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What the package needs of time. Tests pass a clock of their own."""

    def wall(self) -> float:
        """Seconds since the epoch, UTC. Shown, never compared with another host's."""
        ...

    def monotonic(self) -> float:
        """Seconds on this host's monotonic clock."""
        ...


class SystemClock:
    """The clock of this host."""

    wall = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)


SYSTEM_CLOCK: Clock = SystemClock()
