"""What the service turns over: one run's push, what was done with it, and whose turn is next."""

from __future__ import annotations

import heapq
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from syncer import retry
from syncer.api.answers import ApiError
from syncer.discover import Place
from syncer.state import State

SLICE_S: Final = 1.0
"""How long one run may send before it is another's turn."""

FAILED_S: Final = 60.0
"""When a run that failed for a reason of its own is tried again."""


class Report(Protocol):
    """What one slice of a push did; see syncer/push.py."""

    @property
    def points(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def batches(self) -> int: ...
    @property
    def refused(self) -> int: ...
    @property
    def pending_hint(self) -> int: ...
    @property
    def done(self) -> bool: ...
    @property
    def stopped(self) -> str: ...
    @property
    def error(self) -> ApiError | None: ...
    @property
    def advice(self) -> retry.Advice | None: ...


class Push(Protocol):
    """One run on its way to one server; see syncer/push.py."""

    @property
    def place(self) -> Path | None:
        """Where the lease is, once it was asked for."""
        ...

    @property
    def state(self) -> State | None:
        """What is remembered; None without the lease."""
        ...

    @property
    def problems(self) -> list[str]:
        """What of the run cannot be read now."""
        ...

    @property
    def voice(self) -> object:
        """For whom commands may be claimed now; None for nobody."""
        ...

    @property
    def silence(self) -> str:
        """Why no command can have an effect now."""
        ...

    @property
    def has_news(self) -> bool:
        """Whether the next heartbeat is wanted soon."""
        ...

    def acquire(self) -> bool:
        """Take or renew the lease; False while another syncer holds it."""
        ...

    def step(self, limit_s: float = SLICE_S) -> Report:
        """Send for so long."""
        ...

    def heartbeat(self, *, commands: bool = False) -> object:
        """Pass on which processes are alive; also what may be commanded."""
        ...

    def finish_if_ended(self) -> object:
        """End on the server what has ended here."""
        ...

    def close(self) -> object:
        """Let go of the lease and of everything open."""
        ...


class Pull(Protocol):
    """The commands of one run; see syncer/pull.py."""

    @property
    def asked_at(self) -> float | None:
        """Wall time at which commands were asked for last."""
        ...

    @property
    def is_running(self) -> bool:
        """Whether its thread is at work."""
        ...

    def start(self) -> object:
        """Start its thread."""
        ...

    def settle(self) -> bool:
        """Report what is known now; True when nothing is left to report."""
        ...

    def stop(self) -> object:
        """Claim nothing any more."""
        ...


@dataclass(slots=True, eq=False)
class Work:
    """One run, and what was done with it.

    Args:
        state: waiting, sending, sent, held, skipped or failed.
        why: For skipped, failed and held: the reason.
        files: Artifacts that were sent.
        pending: Records that wait, as far as known.
        noted: What was noted beside the run last; None while nothing was.
        caught_up_at: What was durable at this time of the monotonic clock is on the server.
        moved_at: When it was last seen to grow, or its files told so when it was opened.
        pause_s: An event brings a look forward, but no closer than this to the one before.
        lock: Held by whoever uses the push.
        is_over: It has ended, here and on the server, or is left alone; only new files of it count.
        is_live: It may still grow.
    """

    place: Place
    state: str = "waiting"
    why: str = ""
    points: int = 0
    bytes: int = 0
    batches: int = 0
    refused: int = 0
    files: int = 0
    pending: int = 0
    push: Push | None = field(default=None, repr=False)
    pull: Pull | None = field(default=None, repr=False)
    due: float = 0.0
    grew_at: float = 0.0
    moved_at: float = float("-inf")
    beat_at: float = float("-inf")
    served_at: float = float("-inf")
    pause_s: float = 0.0
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False)
    caught_up_at: float = float("-inf")
    noted: str | None = None
    held_since: float | None = None
    holder: int | None = None
    failed_s: float = FAILED_S
    mark: int = 0
    served_before: bool = False
    is_over: bool = False
    is_live: bool = False


@dataclass(slots=True)
class Hold:
    """Why nothing may be sent to this server for a while."""

    until: float
    since: float
    why: str
    kind: str  # busy, unreachable, key or config


class Queue:
    """Runs by the time at which they are due; of equal times, in the order in which they came."""

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Work]] = []
        self._count = 0

    def put(self, work: Work) -> None:
        """Add a run; an earlier entry of it is void from now on."""
        self._count += 1
        heapq.heappush(self._entries, (work.due, self._count, work))

    def take(self, now: float) -> Work | None:
        """Take the first run that is due."""
        if self.due > now:
            return None
        work = heapq.heappop(self._entries)[2]
        work.due = float("inf")
        return work

    @property
    def due(self) -> float:
        """When the first run is due; infinity for none."""
        while self._entries and self._entries[0][0] != self._entries[0][2].due:
            heapq.heappop(self._entries)
        return self._entries[0][0] if self._entries else float("inf")
