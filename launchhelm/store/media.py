"""Bytes beside the journals, each under its SHA-256: artifacts, and bodies too large for a line.

A name in media/ says what its content must be. So the same bytes are stored once, ranks that store
them at the same time cannot disturb each other, and whoever reads can tell a damaged file.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from launchhelm.errors import LaunchHelmError, StorageError
from launchhelm.store import layout
from launchhelm.store.manifest import sync_directory

CHUNK_BYTES: Final = 1 << 20
"""What is held in memory of a file of any size."""

_MODE: Final = 0o440
_DIGEST: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Stored:
    """What some bytes are: their digest in hex, and their number."""

    sha256: str
    size: int


def path_of(run_directory: Path, sha256: str) -> Path:
    """Name the file of a digest.

    Raises:
        StorageError: The text is no digest, so that no file but ours is ever named.
    """
    if _DIGEST.fullmatch(sha256) is None:
        raise StorageError(f"{sha256[:80]!r} is no SHA-256 in lower-case hex.")
    return run_directory / layout.MEDIA / sha256


def put(
    run_directory: Path,
    chunks: Iterable[bytes],
    *,
    before_rename: Callable[[], object] = lambda: None,
) -> Stored:
    """Store bytes under their digest: hidden, synced, renamed. Durable on return.

    A file that is there already is replaced by the same bytes, which heals a damaged one.

    Args:
        before_rename: Called when all bytes are written and synced, and still hidden.

    Raises:
        OSError: They could not be stored, and nothing of them is left behind. What `chunks` and
            `before_rename` raise comes through, with the same effect.
    """
    directory = run_directory / layout.MEDIA
    directory.mkdir(exist_ok=True)
    hidden = directory / layout.hidden_name("new")
    try:
        descriptor = os.open(hidden, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            stored = measure(_written(descriptor, chunks))
            os.fchmod(descriptor, _MODE)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        before_rename()
        os.rename(hidden, directory / stored.sha256)
    except BaseException:
        with suppress(OSError):
            os.unlink(hidden)
        raise
    sync_directory(directory)
    return stored


def reveal(hidden: Path, sha256: str) -> None:
    """Give a file that was made in media/ under a hidden name the name of its digest. Durable.

    Raises:
        OSError: It stays hidden.
    """
    os.chmod(hidden, _MODE)
    os.rename(hidden, hidden.with_name(sha256))
    sync_directory(hidden.parent)


def measure(chunks: Iterable[bytes]) -> Stored:
    """Return what bytes are, without storing them."""
    digest = hashlib.sha256()
    size = 0
    for chunk in chunks:
        digest.update(chunk)
        size += len(chunk)
    return Stored(digest.hexdigest(), size)


def file_chunks(path: Path) -> Iterator[bytes]:
    """Yield the bytes of a file in pieces; it is open, and known to be a file, on the first one.

    Raises:
        OSError: It cannot be opened, or is no ordinary file.
        LaunchHelmError: `source_changed`: it changed, or became unreadable, while it was read.
    """
    # A pipe would wait for its other end.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        before = os.fstat(descriptor)
        if stat.S_ISDIR(before.st_mode):
            raise IsADirectoryError(errno.EISDIR, "Is a directory", str(path))
        if not stat.S_ISREG(before.st_mode):
            raise OSError(errno.EINVAL, "Not an ordinary file", str(path))
        try:
            while chunk := os.read(descriptor, CHUNK_BYTES):
                yield chunk
            after = os.fstat(descriptor)
        except OSError as error:
            raise _changed(path, f"could not be read ({error.strerror or error})") from error
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise _changed(path, "changed")
    finally:
        os.close(descriptor)


def read(run_directory: Path, sha256: str) -> bytes:
    """Return the bytes of a digest.

    Raises:
        StorageError: They are not there any more, or are others by now.
    """
    path = path_of(run_directory, sha256)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StorageError(
            f"{path} cannot be read: {error.strerror or error}.",
            remedy="Look for a copy of the run directory, or on the server that it was synced to.",
        ) from error
    if hashlib.sha256(data).hexdigest() != sha256:
        raise StorageError(
            f"{path} is damaged: its bytes do not have the digest that is its name.",
            remedy="Look for a copy of the run directory, or on the server that it was synced to.",
        )
    return data


def _written(descriptor: int, chunks: Iterable[bytes]) -> Iterator[bytes]:
    for chunk in chunks:
        rest = memoryview(chunk)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        yield chunk


def _changed(path: Path, how: str) -> LaunchHelmError:
    return LaunchHelmError(
        "source_changed",
        f"{path} {how} while it was copied into the run.",
        retryable=True,
        kept="Nothing of it was recorded; the run goes on.",
        remedy="Hand a file over when it is whole: write it under another name, then rename it.",
    )
