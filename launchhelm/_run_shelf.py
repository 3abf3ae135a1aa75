"""The bytes of media on their way into the run directory: each once, and never in training's way.

Called on any thread. A file is written by a thread of its own, so that storage that hangs holds the
caller up once, and not for long.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from launchhelm.store import layout, media
from launchhelm.values.base import PendingBlob

PATIENCE_S: Final = 5.0
"""How long a call waits for storage that says nothing."""

_MAX_KNOWN: Final = 100_000


class Shelf:
    """What this process has stored of media.

    Args:
        run_directory: The run.
        limit_bytes: Of all media of this process; None for no limit.
        patience_s: As PATIENCE_S.
    """

    def __init__(
        self,
        run_directory: Path,
        *,
        limit_bytes: int | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.limit_bytes = limit_bytes
        self._directory = run_directory
        self._patience_s = patience_s
        self._sizes: dict[str, int] = {}
        self._total_bytes = 0
        self._hanging: threading.Thread | None = None

    def put(self, blobs: Iterable[PendingBlob]) -> None:
        """Store bytes; they are durable on return.

        Raises:
            OSError: They could not be stored; TimeoutError where storage hangs, at once when it
                did so before and still does.
        """
        new = {blob.hash: blob for blob in blobs if blob.hash not in self._sizes}
        if not new:
            return
        size = sum(len(blob.data) for blob in new.values())
        if self.limit_bytes is not None and self._total_bytes + size > self.limit_bytes:
            raise OSError(f"media_spool_bytes allows {self.limit_bytes:,} bytes of media")
        if self._hanging is not None and self._hanging.is_alive():
            raise TimeoutError(f"{self._directory / layout.MEDIA} still hangs")
        errors: list[Exception] = []
        thread = threading.Thread(
            target=self._store,
            args=(list(new.values()), errors),
            daemon=True,
            name="launchhelm-media",
        )
        thread.start()
        thread.join(self._patience_s)
        if thread.is_alive():
            self._hanging = thread
            raise TimeoutError(
                f"{self._directory / layout.MEDIA} took nothing for {self._patience_s:g} s"
            )
        if errors:
            raise errors[0]
        self._total_bytes += size

    def size_of(self, sha256: str) -> int | None:
        """Return how many bytes the run has under a digest, None where there are none."""
        known = self._sizes.get(sha256)
        if known is not None:
            return known
        try:
            return media.path_of(self._directory, sha256).stat().st_size
        except OSError:
            return None

    def _store(self, blobs: list[PendingBlob], errors: list[Exception]) -> None:
        try:
            for blob in blobs:
                media.put(self._directory, [blob.data])
                if len(self._sizes) >= _MAX_KNOWN:
                    self._sizes.clear()  # Then some are written once more.
                self._sizes[blob.hash] = len(blob.data)
        except Exception as error:  # It is raised on the thread that waits.
            errors.append(error)
