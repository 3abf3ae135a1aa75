"""Several requests, one transaction: what makes small durable writes cheap.

A disk needs milliseconds to make a commit durable, whatever its size. So whoever comes while a
commit is under way waits in a line, and the first of the line then commits for all of it.

Threads: any may call `run`. `_turn` is held by the one that commits, `_lock` guards the line and is
never held while waiting.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")
Job = Callable[[sqlite3.Connection], T]
Write = Callable[[], AbstractContextManager[sqlite3.Connection]]

MAX_TOGETHER: Final = 32
"""Jobs of one transaction, so that it ends before anybody's patience does."""


class _Entry(Generic[T]):
    """A job in the line, and in the end its result or what it raised."""

    def __init__(self, job: Job[T]) -> None:
        self.job = job
        self.done = False
        self.result: T | None = None
        self.error: BaseException | None = None


class Together:
    """A line of jobs in front of the one writing connection."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._lock = threading.Lock()
        # Any: the results of different callers.
        self._line: list[_Entry[Any]] = []

    @property
    def waiting(self) -> int:
        """Return the length of the line."""
        with self._lock:
            return len(self._line)

    def run(self, write: Write, job: Job[T]) -> T:
        """Run a job in a transaction, together with others, and return when it is durable.

        Args:
            write: Lends the connection inside a transaction.
            job: Called with it, possibly a second time when the transaction failed because of
                another job; whatever it did before was rolled back.

        Raises:
            Whatever the job, or the commit, raised.
        """
        entry = _Entry(job)
        with self._lock:
            self._line.append(entry)
        with self._turn:
            while not entry.done:
                with self._lock:
                    group, self._line = self._line[:MAX_TOGETHER], self._line[MAX_TOGETHER:]
                _commit(write, group)
        if entry.error is not None:
            raise entry.error
        return entry.result  # type: ignore[return-value] # Set, since the job is done.


def _commit(write: Write, group: list[_Entry[Any]]) -> None:
    try:
        with write() as connection:
            results = [entry.job(connection) for entry in group]
    except BaseException as error:  # Any of the jobs': each waits for its own result.
        if len(group) == 1:
            group[0].error, group[0].done = error, True
        else:
            for entry in group:
                _commit(write, [entry])
        return
    for entry, result in zip(group, results, strict=True):
        entry.result, entry.done = result, True
