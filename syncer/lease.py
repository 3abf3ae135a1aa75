"""The right to push one run to one server; it lapses when its holder's counter stands still.

Files `lease.<epoch:08d>` in the state directory. The highest number counts. A number is taken by
O_EXCL, so one process gets it, and the directory is listed, never probed: both hold on network file
systems. Age is judged by the counter on the observer's own clock; no file time is compared. Only of
a process of the observer's own kernel and namespace it is known at once that it is gone. Numbers
never come down, not even after the lease files were deleted, because the state files carry them
too.

A lease is advice. What makes a replaced holder harmless is the order in push.py.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
from pathlib import Path
from typing import Final

from launchhelm._clock import SYSTEM_CLOCK, Clock
from launchhelm._ids import new_id
from launchhelm.store.line import dumps, open_line, seal_line
from launchhelm.views.liveness import process_facts, process_is_gone

LEASE_S: Final = 120.0
"""Longer than any file system may keep what another host wrote from us."""

RENEW_S: Final = 10.0

_NAME = re.compile(r"lease\.(\d{8,})", re.ASCII)
_NUMBERED = re.compile(r"(?:lease|state)\.(\d{8,})(?:\.\d{5,}\.jsonl)?", re.ASCII)
_READ_BYTES: Final = 4096


class Lease:
    """One candidate for the lease of one directory; belongs to one thread.

    Args:
        directory: Where the lease files are; it exists.
        clock: Whose monotonic time decides.
        lease_s: How long a counter may stand still.
    """

    def __init__(
        self, directory: Path, clock: Clock = SYSTEM_CLOCK, *, lease_s: float = LEASE_S
    ) -> None:
        self.epoch: int | None = None
        self.holder = ""
        self._directory = directory
        self._clock = clock
        self._lease_s = lease_s
        self._owner = new_id()
        self._count = 0
        self._renewed_at = 0.0
        self._descriptor = -1
        self._seen: tuple[int, bytes] = (0, b"")
        self._seen_at = 0.0

    def try_acquire(self) -> int | None:
        """Take the lease if nobody keeps it, or keep it; its epoch, or None while another holds it.

        A dead holder is only known as such after this has been called for `lease_s` seconds.

        Raises:
            OSError: The directory cannot be listed or written.
        """
        if self.epoch is not None and self.still_mine():
            return self.epoch
        self._drop()
        names = os.listdir(self._directory)
        if not self._is_free(names):
            return None
        epoch = 1 + max(map(_number, names), default=0)
        if not self._create(epoch):
            return None
        names = os.listdir(self._directory)
        if epoch != max(_leases(names), default=0):
            self._drop()
            return None
        self.epoch, self.holder = epoch, ""
        for lower in _leases(names):
            if lower < epoch:
                with contextlib.suppress(OSError):
                    os.unlink(self._directory / lease_name(lower))
        return epoch

    def renew(self) -> None:
        """Raise the counter, at most every 10 s. A failure shows as a lapse, in time."""
        now = self._clock.monotonic()
        if self.epoch is None or now - self._renewed_at < min(RENEW_S, self._lease_s / 4):
            return
        with contextlib.suppress(OSError):
            self._write()
            self._renewed_at = now

    def still_mine(self, *beside: str) -> bool:
        """Whether a listing shows our lease, none above it, and the names `beside` it.

        Raises:
            OSError: The directory cannot be listed.
        """
        if self.epoch is None:
            return False
        try:
            names = set(os.listdir(self._directory))
        except FileNotFoundError:
            return False
        numbers = _leases(names)
        return bool(numbers) and max(numbers) == self.epoch and names.issuperset(beside)

    def release(self) -> None:
        """Say that the lease is free, so that the next one need not wait for it to lapse."""
        if self.epoch is not None:
            with contextlib.suppress(OSError):
                self._write(is_free=True)
        self._drop()

    def _drop(self) -> None:
        self.epoch = None
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = -1

    def _is_free(self, names: list[str]) -> bool:
        """Whether the highest lease is free, or its counter has stood still for long enough."""
        highest = max(_leases(names), default=0)
        if not highest:
            return True
        try:
            with open(self._directory / lease_name(highest), "rb") as file:
                data = file.read(_READ_BYTES)
        except FileNotFoundError:
            return False  # It was replaced just now.
        said = open_line(data.rstrip(b" \n")) or {}
        self.holder = f"{said.get('host', '?')}, process {said.get('pid', '?')}"
        if said.get("free") is True or process_is_gone(said):
            return True
        now = self._clock.monotonic()
        if (highest, data) != self._seen:
            self._seen, self._seen_at = (highest, data), now
        return now - self._seen_at >= self._lease_s

    def _create(self, epoch: int) -> bool:
        try:
            self._descriptor = os.open(
                self._directory / lease_name(epoch),
                os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC,
                0o640,
            )
        except FileExistsError:
            return False  # Somebody was faster.
        try:
            self._write()
        except OSError:
            self._drop()
            with contextlib.suppress(OSError):
                os.unlink(self._directory / lease_name(epoch))
            raise
        self._renewed_at = self._clock.monotonic()
        return True

    def _write(self, *, is_free: bool = False) -> None:
        self._count += 1
        said = {
            # Of one width, so that a line never leaves a tail of the one before it.
            "n": f"{self._count:012d}",
            "free": is_free,
            "owner": self._owner,
            "host": socket.gethostname(),
            **process_facts(),
        }
        line = seal_line(dumps(said).encode(errors="replace")[1:])
        os.pwrite(self._descriptor, line.ljust(512), 0)
        os.fsync(self._descriptor)


def lease_name(epoch: int) -> str:
    """Name the file of one lease."""
    return f"lease.{epoch:08d}"


def _leases(names: set[str] | list[str]) -> list[int]:
    return [int(match[1]) for match in map(_NAME.fullmatch, names) if match]


def _number(name: str) -> int:
    match = _NUMBERED.fullmatch(name)
    return int(match[1]) if match else 0
