"""What a script prints, line by line, as records; the terminal still gets everything.

A line that is redrawn with carriage returns, as progress bars do, is recorded once, in its last
state. Nothing here ever raises into a print().
"""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final, TextIO

MAX_LINE_CHARS: Final = 1024
MAX_PARTIAL_CHARS: Final = 64 << 10
"""Text without a line end is cut into lines beyond this."""

STREAMS: Final = ("stdout", "stderr")

Record = Callable[[str, str], object]
"""Called with (text, stream) for each line."""


def split_line(text: str) -> list[str]:
    """Cut one line into pieces that fit a record; an empty line stays one piece."""
    return [text[at : at + MAX_LINE_CHARS] for at in range(0, len(text), MAX_LINE_CHARS)] or [""]


class Capture:
    """Stands in for sys.stdout and sys.stderr from `start` to `stop`.

    Args:
        record: Gets each line.
        failed: Gets our own errors.
    """

    def __init__(self, record: Record, failed: Callable[[Exception], object]) -> None:
        self._record = record
        self._failed = failed
        self._tees: list[_Tee] = []

    def start(self) -> None:
        """Put the two stand-ins in place; a second call does nothing."""
        if self._tees:
            return
        for stream in STREAMS:
            original = getattr(sys, stream)
            if original is None:  # A process without a terminal may have none.
                continue
            tee = _Tee(original, stream, self._record, self._failed)
            self._tees.append(tee)
            setattr(sys, stream, tee)

    def stop(self) -> None:
        """Put the originals back and record what has no line end yet.

        Where somebody else has wrapped a stand-in since, it stays in place and only passes on.
        """
        for tee in self._tees:
            if getattr(sys, tee.stream) is tee:
                setattr(sys, tee.stream, tee.original)
            tee.close_line()
        self._tees = []


class _Tee(io.TextIOBase):
    """Passes everything on to the original stream, and lines to the record."""

    def __init__(
        self,
        original: TextIO,
        stream: str,
        record: Record,
        failed: Callable[[Exception], object],
    ) -> None:
        self.original = original
        self.stream = stream
        self._record: Record | None = record
        self._failed = failed
        self._partial = ""
        self._busy = threading.local()
        self._lock = threading.RLock()

    def write(self, text: str) -> int:
        count = self.original.write(text)
        # Whatever is printed while a line is being recorded is not recorded itself.
        if self._record is not None and not getattr(self._busy, "now", False):
            self._busy.now = True
            try:
                with self._lock:
                    self._take(text)
            except Exception as error:  # Protects whoever prints.
                self._failed(error)
            finally:
                self._busy.now = False
        return count if isinstance(count, int) else len(text)

    def writelines(self, lines: Iterable[str]) -> None:  # type: ignore[override]  # Any text.
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        self.original.flush()

    def close_line(self) -> None:
        """Record what has no line end, and record nothing more."""
        try:
            with self._lock:
                if self._partial:
                    self._line(self._partial)
                self._partial = ""
        except Exception as error:  # Protects finish().
            self._failed(error)
        self._record = None

    def isatty(self) -> bool:
        return self.original.isatty()

    def fileno(self) -> int:
        return self.original.fileno()

    def writable(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:  # Any: encoding, buffer, ... of the original.
        return getattr(self.original, name)

    @property
    def encoding(self) -> str:  # type: ignore[override]  # A property of the original, too.
        return self.original.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]  # As above.
        return self.original.errors

    def _take(self, text: str) -> None:
        lines = (self._partial + text).split("\n")
        self._partial = lines.pop()
        for line in lines:
            self._line(line)
        if len(self._partial) > MAX_PARTIAL_CHARS:
            # Only the last state of a redrawn line is of use.
            self._partial = self._partial.rpartition("\r")[2]
            while len(self._partial) > MAX_PARTIAL_CHARS:
                self._line(self._partial[:MAX_LINE_CHARS])
                self._partial = self._partial[MAX_LINE_CHARS:]

    def _line(self, line: str) -> None:
        shown = line.rstrip("\r").rpartition("\r")[2]
        if self._record is not None:
            for piece in split_line(shown):
                self._record(piece, self.stream)
