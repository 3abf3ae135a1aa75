"""How often a key may ask: one token bucket per key, in memory."""

from __future__ import annotations

import math
import threading
from typing import Final

from launchhelm._clock import Clock
from syncer.server.errors import rate_limited

_KEYS: Final = 10_000
"""Buckets kept; the least recently used ones, which are full by then, go first."""


class Rates:
    """The buckets of one server.

    Args:
        requests_per_s: Sustained rate of a key; 0 means that nobody is limited.
        burst: Requests that a rested key may make at once.
    """

    def __init__(self, requests_per_s: float, burst: int, clock: Clock) -> None:
        self._rate = requests_per_s
        self._burst = float(max(burst, 1))
        self._clock = clock
        self._lock = threading.Lock()
        self._buckets: dict[str, tuple[float, float]] = {}

    def take(self, key_id: str) -> None:
        """Count one request of a key.

        Raises:
            ServerError: 429 with the seconds until the next one is free.
        """
        if self._rate <= 0:
            return
        now = self._clock.monotonic()
        with self._lock:
            left, at = self._buckets.pop(key_id, (self._burst, now))
            left = min(self._burst, left + (now - at) * self._rate)
            self._buckets[key_id] = (left - 1 if left >= 1 else left, now)
            if len(self._buckets) > _KEYS:
                del self._buckets[next(iter(self._buckets))]
        if left < 1:
            wait = math.ceil((1 - left) / self._rate)
            raise rate_limited(
                f"This key may make {self._rate:g} requests a second.", retry_after_s=wait
            )
