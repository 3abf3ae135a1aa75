"""The last records of a run without reading all of it, then every new one."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from launchhelm import views
from launchhelm.errors import StorageError
from launchhelm.records import Record
from launchhelm.store.cursor import Cursor, Progress
from launchhelm.store.journal import opened, opening
from launchhelm.store.layout import DATA, SegmentName
from launchhelm.store.reader import list_segments
from launchhelm.store.sealed import sealed_meta

_TRIES: Final = 16


class Follower:
    """Starts some segments before the end, and goes back further only when too little is found."""

    def __init__(
        self, view: views.RunView, *, kinds: Collection[str], ranks: Collection[int] | None
    ) -> None:
        self._view = view
        self._kinds = kinds
        self._ranks = ranks
        self._reader = view.reader(kinds=kinds, ranks=ranks)

    @property
    def problems(self) -> list[str]:
        """Say what cannot be read now."""
        return self._reader.problems

    def last(self, count: int, choose: Callable[[Record], Record | None]) -> list[Record]:
        """Return the last `count` records that `choose` lets pass; `new` goes on after them."""
        back = 1
        for _ in range(_TRIES):
            cursor, complete = _before_the_end(self._view.directory, back)
            self._reader = self._view.reader(cursor, kinds=self._kinds, ranks=self._ranks)
            found = [
                chosen for record in self._reader.poll() if (chosen := choose(record)) is not None
            ]
            if len(found) >= count or complete:
                break
            back *= 4
        # Across writers only their clocks could order; within a writer the number does.
        found.sort(key=lambda record: (record.writer.attempt, record.at))
        return found[-count:] if count else []

    def new(self) -> list[Record]:
        """Return what became readable since the last call."""
        return self._reader.poll()


def _before_the_end(directory: Path, back: int) -> tuple[Cursor, bool]:
    """Make a cursor at the `back`-th newest segment of each writer; True when that is all of it."""
    cursor, complete = Cursor(), True
    try:
        listing = list_segments(directory)
    except OSError:
        return cursor, True
    for writer, files in listing.items():
        numbers = sorted(files)
        if len(numbers) <= back:
            continue
        number = numbers[-back]
        first = _first_record(directory, SegmentName(writer, number, True in files[number]))
        if first is not None:
            complete = False
            cursor.writers[writer] = Progress(wanted=first, done=number - 1)
    return cursor, complete


def _first_record(directory: Path, name: SegmentName) -> int | None:
    path = directory / DATA / str(name)
    try:
        if name.sealed:
            return sealed_meta(path).first
        with opened(path) as (descriptor, _):
            first = (opening(descriptor) or {}).get("q0")
    except (OSError, StorageError):
        return None
    return first if isinstance(first, int) else None
