"""The server's one SQLite database: one writer at a time, readers on snapshots, migrations.

Write-ahead log with full synchronisation: what was committed is on the disk before its receipt is
sent. Threads: any may call; `write` is guarded by one lock, each reader has a connection of its
own from a small pool. Other processes (the key and backup verbs) may open the same file.
"""

from __future__ import annotations

import contextlib
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from launchhelm._clock import SYSTEM_CLOCK, Clock
from launchhelm.errors import StorageError
from syncer.server import (
    accounts,
    artifacts,
    commands,
    documents,
    events,
    ledger,
    points,
    sessions,
    telemetry,
)

MIGRATIONS: Final[Sequence[str]] = (
    "\n".join(
        module.SCHEMA
        for module in (
            accounts,
            documents,
            sessions,
            telemetry,
            points,
            artifacts,
            events,
            commands,
        )
    ),
    ledger.PEOPLE,
)
"""Scripts in order; the database's user_version counts those that ran. Released ones never change:
a later change of a table is one more script."""

_BUSY_S: Final = 30.0
"""How long one process waits for another one's transaction, a backup's for example."""

_IDLE_READERS: Final = 8


class Database:
    """One database file.

    Args:
        path: The file; made with its tables when absent, migrated when older.
        clock: The server's time, for whoever needs it beside a connection.

    Raises:
        StorageError: The file was written by a newer version, or is no database.
    """

    def __init__(self, path: Path, clock: Clock = SYSTEM_CLOCK) -> None:
        self.path = path
        self.clock = clock
        self._writing = threading.Lock()
        self._readers: queue.LifoQueue[sqlite3.Connection] = queue.LifoQueue(_IDLE_READERS)
        try:
            self._writer = self._connect()
            self._migrate()
        except sqlite3.DatabaseError as error:
            raise StorageError(f"The database {path} cannot be opened: {error}.") from error

    @contextlib.contextmanager
    def write(self, *, durable: bool = True) -> Iterator[sqlite3.Connection]:
        """Lend the writing connection inside a transaction that is durable when the block ends.

        One at a time. An exception rolls back and passes. Never nested: it would wait for itself.

        Args:
            durable: False leaves that to the next transaction that is: a power cut takes it back
                whole, and a process that is killed does not.
        """
        with self._writing:
            if not durable:
                self._writer.execute("PRAGMA synchronous = NORMAL")
            try:
                self._writer.execute("BEGIN IMMEDIATE")
                yield self._writer
                self._writer.execute("COMMIT")
            except BaseException:
                # A full disk may have ended the transaction already.
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
                raise
            finally:
                if not durable:
                    self._writer.execute("PRAGMA synchronous = FULL")

    @contextlib.contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """Lend a read-only connection; all it sees inside the block is of one moment."""
        try:
            connection = self._readers.get_nowait()
        except queue.Empty:
            connection = self._connect()
            connection.execute("PRAGMA query_only = ON")
        connection.execute("BEGIN")
        try:
            yield connection
        finally:
            connection.execute("ROLLBACK")
            try:
                self._readers.put_nowait(connection)
            except queue.Full:
                connection.close()

    def backup(self, target: Path, change: Callable[[sqlite3.Connection], object]) -> None:
        """Copy the whole database as of one moment, while it is in use, and change the copy."""
        with (
            contextlib.closing(self._connect()) as source,
            contextlib.closing(sqlite3.connect(target)) as copy,
        ):
            source.backup(copy)
            with copy:
                change(copy)

    def close(self) -> None:
        """Close every idle connection; call it when nothing uses the database any more."""
        with self._writing:
            self._writer.close()
        with contextlib.suppress(queue.Empty):
            while True:
                self._readers.get_nowait().close()

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
        )
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        return connection

    def _migrate(self) -> None:
        with self._writing:
            version = int(self._writer.execute("PRAGMA user_version").fetchone()[0])
            if version > len(MIGRATIONS):
                raise StorageError(
                    f"The database {self.path} has format {version}, we know {len(MIGRATIONS)}.",
                    kept="Nothing was changed.",
                    remedy="Install the launchhelm-offline that wrote it, or a newer one.",
                )
            for number, script in enumerate(MIGRATIONS[version:], version + 1):
                try:
                    self._writer.executescript(
                        f"BEGIN IMMEDIATE;\n{script}\nPRAGMA user_version = {number};\nCOMMIT;"
                    )
                except BaseException:
                    if self._writer.in_transaction:
                        self._writer.execute("ROLLBACK")
                    raise
