"""The journal of one participant: numbers its records, appends them, and starts new segments.

Single-threaded: the recorder's thread is the only caller. Nothing else writes these files, so there
is no lock and nothing to repair.
"""

from __future__ import annotations

import errno
import json
import os
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from launchhelm._clock import SYSTEM_CLOCK, Clock
from launchhelm.records import FORMAT, WriterId
from launchhelm.store import layout, media
from launchhelm.store.body import METRIC_KINDS, encode, plain
from launchhelm.store.line import MAX_LINE_BYTES, dumps, seal_line
from launchhelm.store.schema import MAX_RECORDS

_GONE: Final = (errno.ESTALE, errno.EBADF, errno.ENOENT, errno.ENOTCONN)
"""The file itself is lost to us; writing to it again would be of no use."""

_OPEN_TRIES: Final = 100
_JOURNAL_MODE: Final = 0o640


class JournalWriter:
    """The open segment of one writer, and the lines that are not in it yet.

    `append` gives a record its number and keeps its line in memory. `flush` makes all of them
    durable with one write and one fsync. A flush that fails changes nothing: the next one writes
    the same bytes at the same offset, which repairs a torn tail and re-dirties pages that a failed
    fsync dropped.

    Args:
        data_directory: `data/` of the run.
        writer: Whose segments these are.
        opening: Fields of the `open` line beside `fmt`, `w`, `n` and `q0`.
        clock: For records without a usable time.
        segment_bytes: The first segment is complete at this size; each further one is twice as
            large, up to `max_segment_bytes`, so that files grow slowly in number.
        durable: False for a copy that can be made again: it waits for no disk.
    """

    def __init__(
        self,
        data_directory: Path,
        writer: WriterId,
        opening: Mapping[str, Any],
        *,
        clock: Clock = SYSTEM_CLOCK,
        segment_bytes: int = 8 << 20,
        max_segment_bytes: int = 32 << 20,
        durable: bool = True,
    ) -> None:
        self.directory = data_directory
        self.writer = writer
        self.next_seq = 0
        self.durable_seq = 0
        self.odd: Counter[str] = Counter()
        self._opening = plain(opening)
        self._clock = clock
        self._durable = durable
        self._segment_bytes = segment_bytes
        self._max_segment_bytes = max(segment_bytes, max_segment_bytes)
        self._number = 0
        self._path = Path()
        self._descriptor = -1
        self._good = 0
        self._open_line = b""
        self._first_seq = 0
        self._lines: list[bytes] = []
        self._pending_bytes = 0

    @property
    def pending_bytes(self) -> int:
        """Bytes of records that are not durable yet."""
        return self._pending_bytes

    def append(
        self,
        kind: str,
        body: Mapping[str, Any],
        *,
        step: int | None = None,
        axes: Mapping[str, str] | None = None,
        at: float | None = None,
    ) -> int:
        """Number one record and keep it for the next flush; return how many records it became.

        A metric body above the line limit becomes several records with the same step, time and
        axes. A single body above it goes to a content-addressed file, and the record points to it.

        Raises:
            OSError: That file could not be written; no number was used.
        """
        text = encode(kind, body, self.odd)
        if at is None or not -1e11 < at < 1e11:
            at = self._clock.wall()
        middle = b'"k":%b,"t":%.3f,"s":%b,' % (
            dumps(kind).encode(errors="replace"),
            at,
            b"null" if step is None else b"%d" % step,
        )
        if axes:
            middle += b'"a":%b,' % dumps(plain(axes)).encode(errors="replace")
        # 64 bytes hold the checksum, the number and the brackets.
        room = MAX_LINE_BYTES - len(middle) - 64
        bodies = [text] if len(text) <= room else self._split(kind, text, room)
        for part in bodies:
            line = seal_line(b'"q":%d,%b"v":%b}' % (self.next_seq, middle, part))
            self._lines.append(line)
            self._pending_bytes += len(line)
            self.next_seq += 1
        return len(bodies)

    def skip(self, count: int) -> tuple[int, int]:
        """Use up numbers for records that were given up; return the first and the last."""
        first = self.next_seq
        self.next_seq += count
        return first, self.next_seq - 1

    def start(self) -> None:
        """Open the first segment, durable on return.

        Raises:
            OSError: Nothing is open, and nothing is left behind where that could be helped.
        """
        try:
            self.flush()
        except OSError:
            if self._descriptor >= 0:
                self._abandon()
                with suppress(OSError):
                    os.unlink(self._path)
            raise

    def flush(self) -> None:
        """Make every appended record durable: one write, one fsync; a new segment when needed.

        Raises:
            OSError: Nothing was lost and nothing changed; call it again later.
        """
        if self._descriptor < 0:
            self._open()
        if not self._lines and self._good:
            return
        try:
            self._write()
        except OSError as error:
            if error.errno not in _GONE:
                raise
            # Records of the lost segment that were durable stay where they are; those that were
            # not may come to stand in two segments, and readers take each number once.
            self._abandon()
            self._open()
            self._write()

    def leave_if_deleted(self) -> bool:
        """Let go of the open segment if its file has no name any more; return whether it had none.

        An open file takes writes long after somebody removed it, and none of them can be read.
        """
        if self._descriptor < 0 or os.fstat(self._descriptor).st_nlink:
            return False
        self._abandon()
        return True

    @property
    def is_full(self) -> bool:
        """Whether the segment has reached its size and `rotate` is due."""
        return self._good >= self._segment_bytes or self.next_seq - self._first_seq >= MAX_RECORDS

    def rotate(self) -> Path | None:
        """Let go of the segment and return its journal, ready for sealing; call it after `flush`.

        The next flush starts a new segment. Returns None when there is no complete segment.
        """
        if self._descriptor < 0 or not self._good:
            return None
        self._close_descriptor()
        self._segment_bytes = min(2 * self._segment_bytes, self._max_segment_bytes)
        return self._path

    def _open(self) -> None:
        """Create the next segment; its first flush writes the `open` line as well."""
        for _ in range(_OPEN_TRIES):
            self._number += 1
            path = self.directory / str(layout.SegmentName(self.writer, self._number, sealed=False))
            try:
                descriptor = os.open(
                    path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, _JOURNAL_MODE
                )
            except FileExistsError:
                # A network file system may answer twice for one creation. Numbers may skip.
                continue
            self._path, self._descriptor, self._good = path, descriptor, 0
            self._first_seq = self.durable_seq
            opening = {
                "fmt": FORMAT,
                "w": str(self.writer),
                "n": self._number,
                "q0": self._first_seq,
                **self._opening,
            }
            self._open_line = seal_line(
                b'"k":"open",%b' % dumps(opening).encode(errors="replace")[1:]
            )
            return
        raise OSError(errno.EEXIST, f"no free segment number for {self.writer}")

    def _write(self) -> None:
        data = b"".join(self._lines)
        if len(self._lines) > 1:
            self._lines = [data]
        whole = data if self._good else self._open_line + data
        rest = memoryview(whole)
        offset = self._good
        while rest:
            written = os.pwrite(self._descriptor, rest, offset)
            if written <= 0:
                raise OSError(errno.EIO, "the file system wrote nothing")
            offset += written
            rest = rest[written:]
        if not self._good:
            os.fchmod(self._descriptor, _JOURNAL_MODE)
        if self._durable:
            os.fsync(self._descriptor)
            if not self._good:
                self._sync_directory()
        self._good = offset
        self._lines.clear()
        self._pending_bytes = 0
        self.durable_seq = self.next_seq

    def _abandon(self) -> None:
        with suppress(OSError):  # The error that led here says more.
            self._close_descriptor()

    def _close_descriptor(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)

    def _sync_directory(self) -> None:
        """Make the segment's name durable, where the file system can."""
        try:
            descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return
        try:
            os.fsync(descriptor)
        except OSError:
            pass
        finally:
            os.close(descriptor)

    def _split(self, kind: str, text: bytes, room: int) -> list[bytes]:
        if kind not in METRIC_KINDS:
            return [self._spill(text)]
        parts: list[bytes] = []
        current: list[bytes] = []
        size = 2
        # The values are JSON by now; only names and values that fit are taken together.
        for name, value in json.loads(text).items():
            head = dumps(name).encode(errors="replace") + b":"
            item = head + dumps(value).encode(errors="replace")
            if len(item) > room - 2:
                item = head + self._spill(dumps(value).encode(errors="replace"))
            if current and size + len(item) + 1 > room:
                parts.append(b"{%b}" % b",".join(current))
                current, size = [], 2
            current.append(item)
            size += len(item) + 1
        parts.append(b"{%b}" % b",".join(current))
        return parts

    def _spill(self, text: bytes) -> bytes:
        """Put a body beside the journals, under its digest, and return what points to it."""
        stored = media.put(self.directory.parent, [text])
        name = f"{layout.MEDIA}/{stored.sha256}"
        return dumps({"$file": name, "size": stored.size}).encode()
