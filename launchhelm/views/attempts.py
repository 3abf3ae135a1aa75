"""Which steps each launch of a run logged, so that a resume shows what it repeats or leaves out."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from launchhelm.errors import StorageError
from launchhelm.records import WriterId
from launchhelm.store.journal import first_line_end, number_and_kind, opened, record_of, whole_lines
from launchhelm.store.layout import DATA, SegmentName
from launchhelm.store.sealed import sealed_first_logged
from launchhelm.views.liveness import Observer
from launchhelm.views.participants import Watch

_HEAD_BYTES: Final = 4 << 20
"""How far into a journal its first metric is searched for."""


@dataclass(frozen=True, slots=True)
class Span:
    """The steps of one attempt, as its coordinator logged them; None while there are none."""

    first: int | None = None
    last: int | None = None


def span(directory: Path, writer: WriterId, files: Mapping[int, set[bool]]) -> Span:
    """Return the steps of a coordinator, from the head of its first file and the end of its last.

    Never raises for what it finds.
    """
    watch = Watch(writer)
    watch.look(directory, files, Observer())
    last = watch.close.step if watch.close is not None else None
    return Span(_first(directory, writer, files), last if last is not None else watch.step)


def _first(directory: Path, writer: WriterId, files: Mapping[int, set[bool]]) -> int | None:
    for number in sorted(files):
        is_sealed = True in files[number]
        path = directory / DATA / str(SegmentName(writer, number, is_sealed))
        try:
            found = sealed_first_logged(path) if is_sealed else _first_in_journal(path, writer)
        except (OSError, StorageError, sqlite3.Error):
            return None
        if found is not None:
            return found
    return None


def _first_in_journal(path: Path, writer: WriterId) -> int | None:
    with opened(path) as (descriptor, size):
        end = min(size, _HEAD_BYTES)
        for _, _, line in whole_lines(descriptor, first_line_end(descriptor), end):
            known = number_and_kind(line)
            record = record_of(writer, line) if known is not None and known[1] == "m" else None
            if record is not None and record.step is not None:
                return record.step
    return None
