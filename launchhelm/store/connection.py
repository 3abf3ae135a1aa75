"""The only door to SQLite for files on shared storage: in memory, or read-only and immutable.

SQLite never opens a file of a run directory for writing, so it takes no lock there and makes no
`-journal`, `-wal` or `-shm` file. Temporary tables and sorts stay in memory.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final
from urllib.parse import quote

from launchhelm.errors import StorageError
from launchhelm.records import FORMAT
from launchhelm.store import schema

_CACHE_KIB: Final = 4096


def memory() -> sqlite3.Connection:
    """Open an empty database in memory, in autocommit mode and without a journal.

    It lies in one piece of memory, which goes back to the system when the connection is closed;
    the thousands of pages of a plain `:memory:` database would stay with the process.
    """
    connection = sqlite3.connect(
        "file:segment?vfs=memdb", uri=True, isolation_level=None, check_same_thread=False
    )
    connection.execute("PRAGMA journal_mode = OFF")
    connection.execute("PRAGMA temp_store = MEMORY")
    return connection


def open_sealed(path: Path) -> sqlite3.Connection:
    """Open a sealed segment: read-only and immutable, without any lock.

    Raises:
        FileNotFoundError: The file is gone; list the directory again.
        StorageError: Not a segment, damaged, or of a newer format.
    """
    size = path.stat().st_size
    try:
        connection = sqlite3.connect(
            f"file:{quote(str(path))}?mode=ro&immutable=1",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            connection.execute("PRAGMA temp_store = MEMORY")
            connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            application_id = connection.execute("PRAGMA application_id").fetchone()[0]
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            pages = connection.execute("PRAGMA page_count").fetchone()[0]
            # SQLite takes what is missing at the end of a file for zeros: a copy that was cut
            # short would give wrong rows instead of an error.
            if pages * schema.PAGE_BYTES != size and application_id == schema.APPLICATION_ID:
                raise sqlite3.DatabaseError("the file is not as long as its header says")
        except BaseException:
            connection.close()
            raise
    except sqlite3.Error as error:
        raise damaged(path, error) from error
    if application_id != schema.APPLICATION_ID or version > FORMAT:
        connection.close()
        found = (
            f"has format {version}, newer than {FORMAT}"
            if application_id == schema.APPLICATION_ID
            else "is not a segment of a run directory"
        )
        raise StorageError(
            f"The file {path.name} {found}.",
            kept="Nothing in it was changed.",
            remedy="Read it with a newer launchhelm-offline." if version > FORMAT else "",
        )
    return connection


def damaged(path: Path, error: sqlite3.Error) -> StorageError:
    """Make the error for a segment that SQLite cannot read."""
    return StorageError(
        f"The sealed segment {path.name} is damaged: {error}.",
        kept="Other segments are not affected, and nothing in this one was changed.",
        remedy="If the run directory was copied, copy it again.",
    )
