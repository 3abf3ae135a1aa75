"""What of a run must be there and is not: files of its processes, and files that records name.

Nothing here reads metrics or digests: a listing, sizes and the records that name files.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from launchhelm import _wording
from launchhelm.errors import LaunchHelmError
from launchhelm.records import KINDS, Record, WriterId
from launchhelm.store import media, shards
from launchhelm.store.body import METRIC_KINDS
from launchhelm.store.reader import Reader, list_segments
from launchhelm.views.run import RunView

_NAMING: Final = tuple(kind for kind in KINDS if kind not in METRIC_KINDS)
_LISTINGS: Final = 8


@dataclass(frozen=True, slots=True)
class Named:
    """A file in media/ that a record names.

    Args:
        what: Which record, in words.
        size: Its bytes; None when the record does not say.
        is_checkpoint: Whether it may need parts in checkpoints/.
    """

    sha256: str
    what: str
    size: int | None = None
    is_checkpoint: bool = False


def absent(run: RunView, *, is_over: bool = False) -> dict[int, list[int]]:
    """Return by attempt the ranks that its file promises and that left no file in data/.

    Args:
        is_over: Whether no process can be starting any more; else the newest attempt counts once
            its state says that it is over.
    """
    is_over = is_over or run.state.is_over
    seen: dict[int, set[int]] = {}
    for writer in list_segments(run.directory):
        seen.setdefault(writer.attempt, set()).add(writer.rank)
    found = {}
    for attempt in run.attempts:
        if attempt.number == run.attempt and not is_over:
            continue
        there = seen.get(attempt.number, set())
        ranks = [rank for rank in range(attempt.world_size or 0) if rank not in there]
        if ranks:
            found[attempt.number] = ranks
    return found


def absent_texts(
    run: RunView, ranks: Collection[int] | None = None, *, is_over: bool = False
) -> list[str]:
    """Say it of some ranks, an attempt a sentence; None means all."""
    said = []
    for attempt, gone in absent(run, is_over=is_over).items():
        asked = [rank for rank in gone if ranks is None or rank in ranks]
        if asked:
            said.append(f"attempt {attempt}: no file of {_wording.ranks_text(asked)}")
    return said


def without_end(run: RunView) -> list[WriterId]:
    """Return the processes, of any attempt, that left no end record."""
    reader = Reader(run.directory, kinds=("close",), patience_s=0.0)
    ended = {record.writer for record in _all_of(reader)}
    return [writer for writer in list_segments(run.directory) if writer not in ended]


def files_of(record: Record) -> Iterator[Named]:
    """Yield each file that a record names."""
    body: Mapping[str, Any] = record.body
    pointer = body.get("$file")
    if isinstance(pointer, str):
        yield Named(pointer.rpartition("/")[2], f"record {record.seq} of {record.writer}")
    if record.kind == "art":
        what = f"artifact {body.get('name')!r}"
        yield Named(
            str(body.get("sha256", "")), what, _size(body.get("size")), bool(body.get("format"))
        )
    files = body.get("files")
    if record.kind == "rich" and isinstance(files, list):
        for each in files:
            if isinstance(each, Mapping):
                what = f"{body.get('name')!r}, step {record.step}"
                yield Named(str(each.get("sha256", "")), what, _size(each.get("size")))


def _size(value: Any) -> int | None:
    return value if type(value) is int else None


def missing_files(directory: Path) -> list[str]:
    """Name the files that a run points to and that are not there with their size.

    Metric records are not read: one with a body in media/ is looked at by `doctor`.
    """
    reader = Reader(directory, kinds=_NAMING, patience_s=0.0)
    named = {each.sha256: each for record in _all_of(reader) for each in files_of(record)}
    wrong = [f"{it.what}: {why}" for it in named.values() if (why := _misfit(directory, it))]
    return [*wrong, *missing_parts(directory, named.values())]


def _misfit(directory: Path, named: Named) -> str:
    try:
        size = os.stat(media.path_of(directory, named.sha256)).st_size
    except OSError as error:
        return error.strerror or str(error)
    except LaunchHelmError as error:
        return error.message
    return "" if named.size in (None, size) else f"{size:,} of {named.size:,} bytes"


def missing_parts(directory: Path, named: Iterable[Named]) -> list[str]:
    """Say which shards are missing, of the checkpoints named and of those with an index."""
    needed = dict.fromkeys(shards.finished(directory))
    for each in named:
        if each.is_checkpoint and not _misfit(directory, each):
            needed[shards.parts_of(media.path_of(directory, each.sha256))] = None
    needed.pop("", None)
    return [text for name in needed for text in shards.missing(directory, name)]


def _all_of(reader: Reader) -> Iterator[Record]:
    for _ in range(_LISTINGS):
        yield from reader.poll()
