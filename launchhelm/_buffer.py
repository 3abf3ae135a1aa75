"""The bounded buffer between the training thread and the recorder's thread.

Any thread calls `put`; only the recorder's thread calls `take`. `put` takes no lock: append and
popleft of a deque are atomic, so neither a signal handler nor a fork can meet a lock that is held.
Sizes are estimates, kept by plain additions; each drain to the bottom sets them right again.

Metric points, console lines and rich values wait in one queue, everything else in another that is
never shortened; a number taken first keeps them in order.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

DROPPABLE: Final = frozenset({"m", "sys", "con", "rich"})
"""What a full buffer may give up, oldest first. Outcomes, events and end records never are."""

_ENTRY_BYTES: Final = 256
_VALUE_BYTES: Final = 64
_GIVEN_UP_SHARE: Final = 100


class Entry(NamedTuple):
    """One record on its way to the writer."""

    order: int
    kind: str
    body: Mapping[str, Any]  # Any: see Record.
    step: int | None
    axes: Mapping[str, str] | None
    at: float
    ticket: Ticket | None


_new: Final = tuple.__new__


class Ticket:
    """Tells when one record is durable. One-way, and safe to ask in a signal handler or a fork."""

    __slots__ = ("_latch", "durable")

    def __init__(self) -> None:
        self.durable = False
        self._latch = threading.Lock()
        self._latch.acquire()

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is durable; return whether it is."""
        if not self.durable and self._latch.acquire(timeout=max(0.0, timeout_s)):
            self._latch.release()
        return self.durable

    def resolve(self) -> None:
        """Called once by the recorder's thread, when the record is durable."""
        self.durable = True
        self._latch.release()


class Buffer:
    """Entries that wait for the recorder's thread, within limits.

    Args:
        max_bytes: Estimated size above which `is_full`.
        max_records: Number of droppable entries above which `is_full`.
    """

    def __init__(self, *, max_bytes: int, max_records: int) -> None:
        self.droppable: deque[Entry] = deque()
        self.kept: deque[Entry] = deque()
        self.lost = 0
        self.taken = 0
        self._max_bytes = max_bytes
        self._max_records = max_records
        self._size_bytes = 0
        self._next = itertools.count().__next__
        self._shrinking = threading.RLock()

    @property
    def is_full(self) -> bool:
        """Whether the next droppable entry needs room made for it."""
        return self._size_bytes >= self._max_bytes or len(self.droppable) >= self._max_records

    def __len__(self) -> int:
        return len(self.droppable) + len(self.kept)

    def put(
        self,
        kind: str,
        body: Mapping[str, Any],
        step: int | None,
        axes: Mapping[str, str] | None,
        at: float,
    ) -> bool:
        """Add one entry, or return False when it is droppable and the buffer is full."""
        if kind in DROPPABLE:
            if self._size_bytes >= self._max_bytes or len(self.droppable) >= self._max_records:
                return False
            size = _ENTRY_BYTES + _VALUE_BYTES * len(body) if kind == "m" else _size(body)
            # No bytecode between load and store lets another thread or a signal in (3.10 and
            # later); a lost addition would cost nothing but accuracy.
            self._size_bytes += size
            # Entry(...) would take three times as long.
            self.droppable.append(_new(Entry, (self._next(), kind, body, step, axes, at, None)))
        else:
            self.put_kept(kind, body, step, axes, at, None)
        return True

    def put_kept(
        self,
        kind: str,
        body: Mapping[str, Any],
        step: int | None,
        axes: Mapping[str, str] | None,
        at: float,
        ticket: Ticket | None,
    ) -> None:
        """Add one entry that is never given up."""
        self._size_bytes += _size(body)
        self.kept.append(Entry(self._next(), kind, body, step, axes, at, ticket))

    def give_up_oldest(self) -> bool:
        """Drop the oldest hundredth of what may be dropped; False when nothing may be."""
        with self._shrinking:
            count = max(1, len(self.droppable) // _GIVEN_UP_SHARE)
            dropped = 0
            for _ in range(count):
                try:
                    entry = self.droppable.popleft()
                except IndexError:
                    break
                self._size_bytes -= _size_of(entry)
                dropped += 1
            self.lost += dropped
            return dropped > 0

    def take(self, limit: int, accept: Callable[[Entry], None]) -> int:
        """Hand up to `limit` entries to `accept` in order; an entry it raises for stays first.

        Entries that are added meanwhile are left for the next call, so that those of one thread
        never overtake each other.
        """
        stop = self._next()
        droppable, kept = self.droppable, self.kept
        count = 0
        while count < limit:
            ahead = kept[0].order if kept else stop
            try:
                queue = droppable if droppable[0].order < ahead else kept
            except IndexError:
                queue = kept
            try:
                entry = queue.popleft()
            except IndexError:
                break
            if entry.order >= stop:
                queue.appendleft(entry)
                break
            try:
                accept(entry)
            except BaseException:
                queue.appendleft(entry)
                raise
            self._size_bytes -= _size_of(entry)
            self.taken += 1
            count += 1
        if not droppable and not kept:
            self._size_bytes = 0
        return count

    def is_urgent(self) -> bool:
        """Whether somebody waits for an entry in here."""
        return any(entry.ticket is not None for entry in tuple(self.kept))

    def clear(self) -> None:
        """Forget everything: in a forked child, where it belongs to the parent."""
        self.droppable = deque()
        self.kept = deque()
        self._size_bytes = 0
        self._shrinking = threading.RLock()


def _size_of(entry: Entry) -> int:
    if entry.kind == "m":
        return _ENTRY_BYTES + _VALUE_BYTES * len(entry.body)
    return _size(entry.body)


def _size(body: Mapping[str, Any]) -> int:
    """Estimate the memory of a body without looking deeper than its first two levels."""
    size = _ENTRY_BYTES + getattr(body, "size_bytes", 0)  # Rich values know theirs.
    for value in body.values():
        size += _VALUE_BYTES
        if isinstance(value, str | bytes | list | tuple | dict):
            size += len(value) if isinstance(value, str | bytes) else _VALUE_BYTES * len(value)
    return size
