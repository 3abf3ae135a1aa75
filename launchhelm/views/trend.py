"""The course of one metric as eight numbers, at a cost that does not grow with the run.

Sealed segments tell the sums of their points; a journal is looked into at a few places. Whole
curves are for charts.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from launchhelm.errors import StorageError
from launchhelm.records import WriterId
from launchhelm.store.curve import sealed_sums
from launchhelm.store.journal import opened, record_of, whole_lines
from launchhelm.store.layout import DATA, SegmentName
from launchhelm.store.line import dumps
from launchhelm.store.reader import list_segments

PARTS: Final = 8

_MOST_FILES: Final = 16
_PLACES: Final = 16
_PLACE_BYTES: Final = 4 << 10

Part = tuple[float, float, int]
"""A step, a mean, and of how many points it is."""


def trend(directory: Path, name: str) -> list[float | None] | None:
    """Return the mean of each eighth of a metric's steps, as its coordinators logged it.

    None stands where an eighth has no point that was looked at; None for all of it while there are
    fewer than two steps.
    """
    files = [
        SegmentName(writer, number, True in forms)
        for writer, numbers in list_segments(directory).items()
        if not writer.rank
        for number, forms in numbers.items()
    ]
    files.sort(key=lambda each: (each.writer.attempt, each.number))
    some = files[:: -(-len(files) // _MOST_FILES) or 1]
    parts = [part for file in some for part in _parts(directory / DATA / str(file), file, name)]
    if not parts:
        return None
    low, high = min(parts)[0], max(parts)[0]
    if low == high:
        return None
    sums = [(0.0, 0)] * PARTS
    for step, mean, count in parts:
        at = min(PARTS - 1, int((step - low) / (high - low) * PARTS))
        sums[at] = (sums[at][0] + mean * count, sums[at][1] + count)
    return [total / count if count else None for total, count in sums]


def _parts(path: Path, file: SegmentName, name: str) -> list[Part]:
    try:
        if not file.sealed:
            return list(_of_journal(path, file.writer, name))
        return [
            ((row.step0 + row.step1) / 2, row.total / (row.n - row.odd), row.n - row.odd)
            for row in sealed_sums(path, name)
            if row.total is not None and row.step0 is not None and row.step1 is not None
        ]
    except (OSError, StorageError):
        return []  # Sealed just now, or damaged, which the run's own page says.


def _of_journal(path: Path, writer: WriterId, name: str) -> Iterator[Part]:
    needle = dumps(name).encode(errors="replace") + b":"
    with opened(path) as (descriptor, size):
        apart = max(_PLACE_BYTES, size // _PLACES)
        for start in range(0, size, apart):
            # The first line of a place is cut, and so is no record; the last one is not taken.
            for _, _, line in whole_lines(descriptor, start, min(size, start + _PLACE_BYTES)):
                record = record_of(writer, line) if needle in line else None
                if record is None or record.kind not in ("m", "sys") or record.step is None:
                    continue
                value = record.body.get(name)
                if isinstance(value, int | float) and abs(value) < float("inf"):
                    yield float(record.step), float(value), 1
