"""The bytes of artifacts: one immutable file per part, named by its own SHA-256.

    <data>/artifacts/<first two digits>/<sha256>
    <data>/artifacts/incoming/<random>          on its way; left by a crash, removed a day later

No text of a client is in any path. A file is complete and on the disk before it gets its name, so
a name means the bytes. Nothing here holds more than one piece of a file in memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from launchhelm._ids import new_id

PIECE_BYTES: Final = 1 << 20
"""What is read at a time."""

_SHA256: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_ABANDONED_S: Final = 24 * 3600.0


def is_sha256(text: object) -> bool:
    """Decide whether this is a digest as we write it, safe to be a file's name."""
    return isinstance(text, str) and _SHA256.fullmatch(text) is not None


class Incoming:
    """A file that is being received.

    Args:
        blobs: Where it goes in the end.
    """

    def __init__(self, blobs: Blobs) -> None:
        blobs.incoming.mkdir(parents=True, exist_ok=True)
        self._blobs = blobs
        self._path = blobs.incoming / new_id()
        self._file = self._path.open("xb")
        self._digest = hashlib.sha256()
        self.size = 0

    @property
    def sha256(self) -> str:
        """Return the digest of what came so far."""
        return self._digest.hexdigest()

    def add(self, piece: bytes) -> None:
        """Append."""
        self._digest.update(piece)
        self._file.write(piece)
        self.size += len(piece)

    def keep(self) -> None:
        """Make the file durable under the name of its digest."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        final = self._blobs.path(self.sha256)
        if not final.parent.is_dir():
            final.parent.mkdir(parents=True, exist_ok=True)
            _sync_directory(final.parent.parent)
        # A file of this name has the same bytes; the newer one does as well as the older.
        self._path.replace(final)
        _sync_directory(final.parent)

    def drop(self) -> None:
        """Forget it, unless it was kept."""
        self._file.close()
        self._path.unlink(missing_ok=True)


class Blobs:
    """A folder of such files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.incoming = root / "incoming"

    def path(self, sha256: str) -> Path:
        """Return where the file of a digest lies, or would lie."""
        assert is_sha256(sha256), "a path is made of digests only"
        return self.root / sha256[:2] / sha256

    def has(self, sha256: str, size: int) -> bool:
        """Decide whether the file is there, in its full length."""
        try:
            return self.path(sha256).stat().st_size == size
        except FileNotFoundError:
            return False

    def pieces(self, digests: Iterable[str]) -> Iterator[bytes]:
        """Yield the bytes of some files one after the other."""
        for sha256 in digests:
            with self.path(sha256).open("rb") as file:
                while piece := file.read(PIECE_BYTES):
                    yield piece

    def sha256(self, digests: Iterable[str]) -> str:
        """Return the digest of some files as one."""
        whole = hashlib.sha256()
        for piece in self.pieces(digests):
            whole.update(piece)
        return whole.hexdigest()

    def sweep(self, now: float) -> None:
        """Remove what a crash left half received more than a day ago."""
        with contextlib.suppress(FileNotFoundError):
            for path in self.incoming.iterdir():
                with contextlib.suppress(FileNotFoundError):
                    if now - path.stat().st_mtime > _ABANDONED_S:
                        path.unlink()


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
