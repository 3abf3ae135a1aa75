"""How many calls lie between two exchanges, and how long before its step a command must travel."""

from __future__ import annotations

import itertools
import math
from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class Pace:
    """About 0.5 s of training from exchange to exchange, found out carefully.

    The interval at most doubles, is at most 1,000, and times the slowest recent step stays below
    5 s, so that a training that suddenly slows down still listens.
    """

    target_s: float = 0.5
    limit_s: float = 5.0
    most: int = 1000
    soon_s: float = 0.02
    interval: int = 1
    ticks: deque[float] = field(default_factory=lambda: deque(maxlen=65))
    """When the last calls were; their differences are the steps. Every call appends its time."""
    step_s: float = 0.0
    """The median of recent steps, when it was needed last."""
    _seen: tuple[int, int] | None = None
    _was_regular: bool = False

    def rest(self) -> None:
        """Let the time until the next call count for nothing."""
        self.ticks.append(math.nan)

    def next_interval(self) -> int:
        """Decide the interval that follows the current one."""
        slowest_s = self._measure()
        most = min(2 * self.interval, self.most, self.limit_s / max(slowest_s, 1e-9))
        self.interval = max(1, int(min(most, self.target_s / max(self.step_s, 1e-9))))
        return self.interval

    def soon(self) -> int:
        """Return the calls until the next exchange while a command is under way."""
        return min(self.interval, self._calls_in(self.soon_s))

    def lead(self) -> int:
        """Return how many calls after its announcement a command can surely be applied."""
        self._measure()
        return 3 * self._calls_in(self.soon_s) + 1

    def usual(self) -> float:
        """Return the median seconds of recent steps, 0 before there are any."""
        self._measure()
        return self.step_s

    def _measure(self) -> float:
        """Find out how long steps take; returns the slowest of the recent ones."""
        taken = [now - before for before, now in itertools.pairwise(self.ticks)]
        taken = sorted(each for each in taken if each == each)  # No NaN.
        if not taken:
            return self.limit_s
        self.step_s = taken[len(taken) // 2]
        return taken[-1]

    def _calls_in(self, seconds: float) -> int:
        return max(1, min(self.most, round(seconds / max(self.step_s, 1e-9))))

    def is_regular(self, call: int, step: int) -> bool:
        """Whether steps rose by one per call since this was asked at an earlier call."""
        before, self._seen = self._seen, (call, step)
        if before is None or call > before[0]:
            self._was_regular = before is not None and call - before[0] == step - before[1]
        return self._was_regular
