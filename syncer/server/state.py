"""What every request of one server shares: database, clock, secret, limits, and the wake-up bell.

This module imports nothing of the server at run time, so every other one may import it.
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from launchhelm._clock import Clock

if TYPE_CHECKING:
    from syncer.server.database import Database

LIVE_S: Final = 60.0
"""A session is live for so long after its last heartbeat; clients beat every 15 to 19 s."""

MIN_BODY_BYTES: Final = 1_048_700
"""What clients may send in one request."""


@dataclass(frozen=True)
class Limits:
    """What one request, and one key, may ask for.

    Args:
        body_bytes: Longest request body, at least MIN_BODY_BYTES.
        requests_per_s: Sustained rate per key; 0 means no limit.
        burst: Requests that a key may make at once on top of that.
    """

    body_bytes: int = 4 * 1024 * 1024
    requests_per_s: float = 0.0
    burst: int = 50


class Wake:
    """A bell per participant: parked claims wait for it, whoever changes something rings it.

    Any thread may notify. To miss nothing, read `count` before looking for work and hand it to
    `wait`, which returns at once when the bell rang in between.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._waiting: dict[str, set[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]]] = {}
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether the server is stopping: nothing should be parked any more."""
        return self._closed

    def count(self, participant_id: str) -> int:
        """Return how often the participant's bell rang so far."""
        with self._lock:
            return self._counts.get(participant_id, 0)

    def notify(self, participant_id: str) -> None:
        """Ring: a command, a safe point, a new epoch or an end."""
        with self._lock:
            self._counts[participant_id] = self._counts.get(participant_id, 0) + 1
            waiting = self._waiting.pop(participant_id, set())
        _release(waiting)

    async def wait(self, participant_id: str, timeout_s: float, *, seen: int | None = None) -> bool:
        """Wait for the bell.

        Args:
            seen: What `count` said before the caller looked; None: only rings from now on count.

        Returns:
            True when it rang, False when the time is over or the server stops.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        entry = (loop, future)
        with self._lock:
            count = self._counts.get(participant_id, 0)
            if seen is not None and count != seen:
                return True
            if self._closed or timeout_s <= 0:
                return False
            self._waiting.setdefault(participant_id, set()).add(entry)
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            pass
        finally:
            with self._lock:
                remaining = self._waiting.get(participant_id)
                if remaining is not None:
                    remaining.discard(entry)
                    if not remaining:
                        del self._waiting[participant_id]
        return self.count(participant_id) != count

    def close(self) -> None:
        """End every wait now, and every later one at once."""
        with self._lock:
            self._closed = True
            waiting = [entry for entries in self._waiting.values() for entry in entries]
            self._waiting.clear()
        _release(waiting)


def _release(
    waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]]
    | list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]],
) -> None:
    for loop, future in waiting:
        if not loop.is_closed():
            loop.call_soon_threadsafe(_finish, future)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


@dataclass
class Server:
    """One running server.

    Args:
        database: Everything that is stored, except the bytes of artifacts.
        clock: Wall time for stamps, monotonic time for waits.
        data: The data directory; `artifacts` lies in it.
        secret: 32 random bytes of this data directory, for signed addresses.
        generation: Name of this line of history; a backup that is served has another.
        trust_proxy: Whether only a reverse proxy can reach us, so that its X-Forwarded-* count.
    """

    database: Database
    clock: Clock
    data: Path
    secret: bytes
    generation: str = ""
    wake: Wake = field(default_factory=Wake)
    limits: Limits = field(default_factory=Limits)
    trust_proxy: bool = False
    started_at: float = field(init=False)

    def __post_init__(self) -> None:
        self.started_at = self.clock.wall()

    @property
    def artifacts(self) -> Path:
        """Return the folder of artifact bytes; `serve backup` copies it."""
        return self.data / "artifacts"
