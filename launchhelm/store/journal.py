"""Reading a journal that may be growing, torn, or about to be sealed: lines forwards and backwards.

A file is opened anew for every look: on a network file system that is what asks the server for its
true size. Nothing here raises for a bad line; whoever reads decides what a bad line means.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from launchhelm.records import Record, WriterId
from launchhelm.store.line import MAX_LINE_BYTES, is_intact, open_line, to_record

_CHUNK_BYTES: Final = 4 << 20
_TAIL_BYTES: Final = 16 << 10
_OPENING_BYTES: Final = 64 << 10
_HEAD = re.compile(rb'\{"c":"[0-9a-f]{8}","q":(\d+),"k":"([^"\\]*)"')


@contextmanager
def opened(path: Path) -> Iterator[tuple[int, int]]:
    """Open a journal for one look; yields the descriptor and the size to read up to.

    Raises:
        OSError: ENOENT and ESTALE are normal: the journal was just sealed.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor, os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def whole_lines(descriptor: int, start: int, end: int) -> Iterator[tuple[int, int, bytes]]:
    """Yield (start, end, line) of every line that has its newline before `end`.

    A line over the limit is bad whatever it holds; it is given as b"" so that a long run of NULs,
    as a power cut may leave, costs no memory.
    """
    position = start
    carry = b""
    skipped = 0
    while position < end:
        chunk = os.pread(descriptor, min(_CHUNK_BYTES, end - position), position)
        if not chunk:
            return
        position += len(chunk)
        lines = (carry + chunk).split(b"\n")
        carry = lines.pop()
        for line in lines:
            after = start + skipped + len(line) + 1
            yield start, after, b"" if skipped else line
            start, skipped = after, 0
        if len(carry) > MAX_LINE_BYTES:
            skipped += len(carry)
            carry = b""


def number_and_kind(line: bytes) -> tuple[int, str] | None:
    """Return the number and kind of an intact record line without parsing it.

    None for a bad line, for an `open` line, and for a line whose fields stand in another order,
    which has to be parsed.
    """
    match = _HEAD.match(line)
    if match is None or not is_intact(line):
        return None
    return int(match[1]), match[2].decode("utf-8", "replace")


def skim(data: bytes) -> tuple[int, int, list[bytes]] | None:
    """Pass over whole lines of metrics at the speed of a search.

    Returns:
        The numbers of the first and the last line, and the lines of all other kinds than "m".
        None when the lines are not plainly whole and consecutive: then look at each.
    """
    lines = data.split(b"\n")
    lines.pop()
    if not lines or b"\0" in data or data.count(b'\n{"c":"') != len(lines) - 1:
        return None
    first, last = number_and_kind(lines[0]), number_and_kind(lines[-1])
    if first is None or last is None or last[0] - first[0] != len(lines) - 1:
        return None
    # The kind stands within these bytes, and the body does not begin before them.
    return first[0], last[0], [line for line in lines if line.find(b'"k":"m"', 16, 48) < 0]


def whole_chunk(descriptor: int, start: int, end: int) -> bytes:
    """Read whole lines from `start`, some megabytes of them at most; b"" when there is none."""
    data = os.pread(descriptor, min(_CHUNK_BYTES, end - start), start)
    return data[: data.rfind(b"\n") + 1]


def record_of(writer: WriterId, line: bytes) -> Record | None:
    """Parse one line; None when it is bad or not a record."""
    value = open_line(line)
    return None if value is None else to_record(writer, value)


def opening(descriptor: int) -> dict[str, Any] | None:
    """Return the `open` line of a journal; None while it is not there whole, or is damaged."""
    head = os.pread(descriptor, _OPENING_BYTES, 0)
    line, newline, _ = head.partition(b"\n")
    value = open_line(line) if newline else None
    return value if value is not None and value.get("k") == "open" else None


def first_line_end(descriptor: int) -> int:
    """Return the offset after the `open` line, 0 when it is not there whole."""
    head = os.pread(descriptor, _OPENING_BYTES, 0)
    return head.find(b"\n") + 1


def lines_backwards(
    descriptor: int, end: int, *, start: int = 0, chunk_bytes: int = _TAIL_BYTES
) -> Iterator[bytes]:
    """Yield the lines before `end`, newest first; an unfinished last line is left out.

    Chunks grow as the search goes on, so that a tail is cheap and a whole file not slow.
    """
    position = end
    carry = b""
    at_end = True
    while position > start:
        wanted = min(chunk_bytes, position - start)
        chunk = os.pread(descriptor, wanted, position - wanted)
        if len(chunk) < wanted:
            return  # The file became shorter: somebody replaced a copy.
        position -= wanted
        chunk_bytes = min(chunk_bytes * 2, _CHUNK_BYTES)
        lines = (chunk + carry).split(b"\n")
        if at_end:
            lines.pop()
            at_end = not lines
        carry = lines[0] if lines else chunk + carry
        yield from reversed(lines[1:])
        if len(carry) > MAX_LINE_BYTES:
            carry = b""  # No good line is that long; what is left of it fails its checksum.
    if not at_end:
        yield carry
