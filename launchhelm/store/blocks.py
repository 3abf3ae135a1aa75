"""What the parts of a journal hold, so that a question about a few steps need not read all of it.

Both indexes grow with their journal and belong to one reader. They never decide what is true: every
line that is used is checked by its checksum.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from launchhelm.store.journal import whole_chunk, whole_lines

BLOCK_BYTES: Final = 512 << 10

_MAX_SHAPES: Final = 20_000
_STEP = re.compile(rb',"s":(-?\d+|null),')
# Checksum and numbers: what differs between lines that log the same metrics.
_VARIABLE = re.compile(rb'\{"c":"[0-9a-f]{8}"|":-?[0-9][-+.eE0-9]*')


@dataclass(frozen=True, slots=True)
class Block:
    """Whole lines of a journal, and bounds of the steps in them; minus infinity means no step."""

    start: int
    end: int
    low: float
    high: float


class StepIndex:
    """The blocks of one journal."""

    def __init__(self) -> None:
        self._blocks: list[Block] = []
        self._end = 0

    def blocks(self, descriptor: int, size: int) -> list[Block]:
        """Return the blocks up to `size`, reading what is new."""
        while self._end < size:
            data = whole_chunk(descriptor, self._end, min(size, self._end + BLOCK_BYTES))
            data = data or whole_chunk(descriptor, self._end, size)
            # What is not yet visible here reads as zeros: look at it again next time.
            zero = data.find(b"\0")
            if zero >= 0:
                data = data[: data.rfind(b"\n", 0, zero) + 1]
            if not data:
                # A line of enormous length, an unfinished one, or zeros: no bounds are known.
                return [*self._blocks, Block(self._end, size, -math.inf, math.inf)]
            self._add(data)
        return list(self._blocks)

    def _add(self, data: bytes) -> None:
        found = _STEP.findall(data)
        steps = [-math.inf if step == b"null" else int(step) for step in found] or [-math.inf]
        new = Block(self._end, self._end + len(data), min(steps), max(steps))
        last = self._blocks[-1] if self._blocks else None
        if last is not None and new.end - last.start <= BLOCK_BYTES:
            # A journal that is polled as it grows would else come in very small blocks.
            low, high = min(last.low, new.low), max(last.high, new.high)
            self._blocks[-1] = replace(last, end=new.end, low=low, high=high)
        else:
            self._blocks.append(new)
        self._end = new.end


class NameIndex:
    """The metric names of one journal.

    Args:
        names_of: Returns the names and kinds of one line; None when it is bad.
    """

    def __init__(self, names_of: Callable[[bytes], dict[str, str] | None]) -> None:
        self._names_of = names_of
        self._names: dict[str, str] = {}
        self._shapes: set[bytes] = set()
        self._end = 0

    def names(self, descriptor: int, size: int) -> dict[str, str]:
        """Return the names up to `size`, reading what is new."""
        start = self._end
        is_whole = True
        while start < size:
            data = whole_chunk(descriptor, start, size)
            if not data:
                # One line of enormous length, which is bad, or an unfinished one.
                skipped = next(whole_lines(descriptor, start, size), None)
                if skipped is None:
                    break
                start, is_whole = skipped[1], False
                continue
            self._look(data)
            start += len(data)
            is_whole = is_whole and b"\0" not in data
            if is_whole:
                self._end = start
        return self._names

    def _look(self, data: bytes) -> None:
        """Parse one line of each shape: the same line but for its checksum and numbers."""
        lines = data.split(b"\n")
        shapes = _VARIABLE.sub(b"", data).split(b"\n")
        fresh = dict(zip(shapes, lines, strict=True))
        for shape in fresh.keys() - self._shapes:
            found = self._names_of(fresh[shape])
            if found is None:
                # That one is bad; others of its shape need not be.
                every = (line for line, its in zip(lines, shapes, strict=True) if its == shape)
                found = next((names for names in map(self._names_of, every) if names), None)
            if found is not None:
                self._names.update(found)
                if len(self._shapes) < _MAX_SHAPES:
                    self._shapes.add(shape)
