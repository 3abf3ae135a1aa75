"""Heartbeats beside the loop's slices: of many live runs none is late, however long another takes.

A heartbeat is a request for each process, so the time of many is that of the way to the server.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from launchhelm._clock import Clock
from syncer.work import Work

RUNS_A_THREAD: Final = 8
"""Fewer runs than this need no thread: the loop comes by in time."""
MAX_THREADS: Final = 16

TICK_S: Final = 0.25
AGAIN_S: Final = 1.0

_log = logging.getLogger("launchhelm")


class Pulse:
    """A few threads that call for each run when its heartbeat is due.

    Args:
        beat: Speaks for a run unless its slice is under way, which begins with that.
        interval_s: Since `Work.beat_at`.
        clock: Whose monotonic time decides.
    """

    def __init__(self, beat: Callable[[Work], object], interval_s: float, clock: Clock) -> None:
        self._beat = beat
        self._interval_s = interval_s
        self._clock = clock
        self._lock = threading.Lock()
        self._not_before: dict[Work, float] = {}
        self._threads = 0
        self._over = threading.Event()

    def follow(self, work: Work) -> None:
        """Call for a run from now on."""
        with self._lock:
            self._not_before.setdefault(work, float("-inf"))
            is_short = self._threads < min(MAX_THREADS, len(self._not_before) // RUNS_A_THREAD)
            self._threads += is_short
        if is_short:
            # A daemon: a server that does not answer must not keep a process from ending.
            threading.Thread(target=self._run, name="launchhelm-pulse", daemon=True).start()

    def forget(self, work: Work) -> None:
        """Call for it no more."""
        with self._lock:
            self._not_before.pop(work, None)

    def stop(self) -> None:
        """Let the threads end, each after the run in hand."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(TICK_S):
            while not self._over.is_set() and (work := self._take()) is not None:
                try:
                    self._beat(work)
                except Exception:  # Ours; the other runs are spoken for all the same.
                    _log.exception("Speaking for %s failed.", work.place.directory)

    def _take(self) -> Work | None:
        """Return the run that waits longest, for this thread alone for a while."""
        now = self._clock.monotonic()
        with self._lock:
            due = [
                work
                for work, not_before in self._not_before.items()
                if now >= not_before and now - work.beat_at >= self._interval_s
            ]
            if not due:
                return None
            work = min(due, key=lambda each: each.beat_at)
            self._not_before[work] = now + AGAIN_S
            return work
