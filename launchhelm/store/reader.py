"""Every record of a run, each once, while other hosts write, seal and die.

A reader lists `data/` on every poll and never asks for a name that the listing did not show: NFS
remembers "no such file" for up to a minute. It keeps no file open, writes nothing, takes no lock.
One reader belongs to one thread.

Per writer, records come in number order. What is missing in the middle may still become visible
(a torn write that is about to be repeated, a page that another host has not seen yet), so the
reader waits 30 seconds on its own clock, then goes on and reports a gap.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from launchhelm._clock import SYSTEM_CLOCK, Clock
from launchhelm.errors import StorageError
from launchhelm.records import FORMAT, Record, WriterId
from launchhelm.store.cursor import Cursor, Progress
from launchhelm.store.journal import (
    first_line_end,
    number_and_kind,
    opened,
    opening,
    record_of,
    skim,
    whole_chunk,
    whole_lines,
)
from launchhelm.store.layout import DATA, SegmentName, parse_segment
from launchhelm.store.line import open_line, to_record
from launchhelm.store.sealed import sealed_entries, sealed_meta
from launchhelm.store.segment import sealed_records

PATIENCE_S: Final = 30.0
"""How long a hole may last before it is called a gap."""

LOST: Final = ("not found", "not in the sealed segment")
"""Why a reader itself calls something a gap; other words are the writer's."""

_LISTINGS: Final = 4
"""A journal that vanished was sealed; so many new listings are tried within one poll."""

Listing = dict[WriterId, dict[int, set[bool]]]
"""Per writer and segment number: whether it is there sealed (True), as a journal (False)."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Records of one writer that do not exist: given up by the writer, or lost on the way."""

    writer: WriterId
    first: int
    last: int
    why: str


def list_segments(run_directory: Path) -> Listing:
    """List `data/` once; names that are not ours are ignored.

    Raises:
        OSError: The directory is not there (yet), or cannot be read.
    """
    listing: Listing = {}
    for name in os.listdir(run_directory / DATA):
        segment = parse_segment(name)
        if segment is not None:
            forms = listing.setdefault(segment.writer, {}).setdefault(segment.number, set())
            forms.add(segment.sealed)
    return listing


def has_vanished(error: OSError) -> bool:
    """Whether a listed file is no longer there under its name: sealed or moved, never an error."""
    return error.errno in (errno.ENOENT, errno.ESTALE)


class Reader:
    """New records of all writers of a run, poll by poll.

    Args:
        run_directory: The run; nothing in it is changed.
        cursor: Where to go on; None means from the start. The reader takes a copy.
        clock: Whose monotonic time decides how long a hole is waited for.
        kinds: Deliver these kinds only. Without "m" among them the lines of metrics are passed
            over at the speed of a search; their numbers still count, their values are not checked.
        ranks: Read the writers of these ranks only.
        newest_first: Read the newest attempt first, and the coordinator first within each. With a
            limit, what is being written now then never waits behind what old attempts left.
        patience_s: How long a hole may last. 0 for files that nobody writes any more.
    """

    def __init__(
        self,
        run_directory: Path,
        cursor: Cursor | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        kinds: Collection[str] | None = None,
        ranks: Collection[int] | None = None,
        newest_first: bool = False,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.cursor = Cursor.parse(cursor.text()) if cursor is not None else Cursor()
        self.gaps: list[Gap] = []
        self._directory = run_directory
        self._clock = clock
        self._kinds = frozenset(kinds) if kinds is not None else None
        self._wants_metrics = kinds is None or "m" in kinds
        self._ranks = frozenset(ranks) if ranks is not None else None
        self._newest_first = newest_first
        self._patience_s = patience_s
        self._problems: dict[str, str] = {}
        self._holes: dict[WriterId, tuple[int, float]] = {}
        self._closed: dict[WriterId, int] = {}

    @property
    def problems(self) -> list[str]:
        """What cannot be read now, one sentence each; a problem that went away is not in it."""
        return list(self._problems.values())

    @property
    def holes(self) -> dict[WriterId, int]:
        """Writers whose next record is not there although later ones are, and its number."""
        return {writer: wanted for writer, (wanted, _) in self._holes.items()}

    def poll(self, *, limit: int | None = None) -> list[Record]:
        """Return the records that became readable since the last poll, at most `limit`.

        Never raises for what it finds on the disk: see `problems` and `gaps`.
        """
        batch: list[Record] = []
        for _ in range(_LISTINGS):
            listing = self._list()
            vanished = False
            for writer in sorted(listing, key=self._turn):
                vanished |= self._advance(writer, listing[writer], batch, limit)
                if limit is not None and len(batch) >= limit:
                    return batch
            if not vanished:
                break
        return batch

    def _turn(self, writer: WriterId) -> tuple[int, int, str]:
        attempt = -writer.attempt if self._newest_first else writer.attempt
        return attempt, writer.rank, writer.token

    def _list(self) -> Listing:
        try:
            listing = list_segments(self._directory)
        except FileNotFoundError:
            return {}  # Not visible yet; the next listing asks the server again.
        except OSError as error:
            self._problems[DATA] = f"{DATA}/ cannot be listed: {error.strerror}"
            return {}
        self._problems.pop(DATA, None)
        if self._ranks is None:
            return listing
        return {writer: files for writer, files in listing.items() if writer.rank in self._ranks}

    def _advance(
        self, writer: WriterId, files: dict[int, set[bool]], batch: list[Record], limit: int | None
    ) -> bool:
        """Read on in one writer's segments; True when a listed file had vanished."""
        progress = self.cursor.of(writer)
        if self._closed.get(writer, -1) >= max(files):
            return False
        while True:
            before = progress.wanted
            vanished = False
            ahead: list[int] = []
            for number in sorted(number for number in files if number > progress.done):
                try:
                    beyond = self._read(writer, number, files[number], progress, batch, limit)
                except OSError as error:
                    vanished |= has_vanished(error)
                    if not has_vanished(error):
                        self._cannot_read(SegmentName(writer, number, True in files[number]), error)
                    continue
                if limit is not None and len(batch) >= limit:
                    return vanished
                if beyond is not None:
                    ahead.append(beyond)
            if not ahead:
                self._holes.pop(writer, None)
                return vanished
            if progress.wanted == before and not self._may_pass(writer, before, vanished):
                return vanished
            if progress.wanted == before:
                self.gaps.append(Gap(writer, before, min(ahead) - 1, LOST[0]))
                progress.wanted = min(ahead)

    def _may_pass(self, writer: WriterId, wanted: int, vanished: bool) -> bool:
        """Whether a hole has lasted long enough to go on after it."""
        now = self._clock.monotonic()
        hole = self._holes.get(writer)
        if hole is None or hole[0] != wanted:
            self._holes[writer] = (wanted, now)
            return False
        return now - hole[1] >= self._patience_s and not vanished

    def _read(
        self,
        writer: WriterId,
        number: int,
        forms: set[bool],
        progress: Progress,
        batch: list[Record],
        limit: int | None,
    ) -> int | None:
        """Read on in one segment; the number of its next record when one before that is missing."""
        if True in forms:
            name = SegmentName(writer, number, sealed=True)
            try:
                beyond = self._read_sealed(name, progress, batch, limit)
            except StorageError as error:
                # A copy that was cut short. The journal, where it came along, says the same.
                self._cannot_read(name, error)
                if False not in forms:
                    return None
            else:
                self._problems.pop(str(name), None)
                return beyond
        name = SegmentName(writer, number, sealed=False)
        beyond = self._read_journal(name, progress, batch, limit)
        self._problems.pop(str(name), None)
        return beyond

    def _read_sealed(
        self, name: SegmentName, progress: Progress, batch: list[Record], limit: int | None
    ) -> int | None:
        path = self._directory / DATA / str(name)
        meta = sealed_meta(path)
        if meta.last >= progress.wanted:
            if meta.first > progress.wanted:
                return meta.first
            left = None if limit is None else limit - len(batch)
            for record in self._records_of(path, progress.wanted, left):
                if record.kind == "gap":
                    self._note_gap(record)
                elif self._kinds is None and record.seq > progress.wanted:
                    self._lost(name.writer, progress.wanted, record.seq - 1)
                progress.wanted = record.seq + 1
                if self._delivers(record.kind):
                    batch.append(record)
                    if limit is not None and len(batch) >= limit:
                        return None
            progress.wanted = meta.last + 1
        progress.finish(name.number)
        return None

    def _records_of(self, path: Path, wanted: int, limit: int | None) -> Iterator[Record]:
        if self._kinds is None:
            return sealed_records(path, from_seq=wanted, limit=limit)
        return sealed_entries(path, self._kinds | {"gap"}, from_seq=wanted)

    def _read_journal(
        self, name: SegmentName, progress: Progress, batch: list[Record], limit: int | None
    ) -> int | None:
        look = _Look(name, progress, batch, limit, progress.offsets.get(name.number, 0))
        with opened(self._directory / DATA / str(name)) as (descriptor, size):
            try:
                if not look.keep and not self._begin(look, descriptor):
                    return None
                if look.keep and not self._wants_metrics and limit is None:
                    self._skim(look, descriptor, size)
                for _, end, line in whole_lines(descriptor, look.keep, size):
                    beyond = self._take_line(look, end, line)
                    if beyond is not None or look.is_full:
                        return beyond
            finally:
                if name.number > progress.done:
                    progress.offsets[name.number] = look.keep
        return None

    def _begin(self, look: _Look, descriptor: int) -> bool:
        """Read the `open` line; False for a journal of a newer format."""
        value = opening(descriptor)
        if value is None:
            return True
        if not self._understands(look.name, value.get("fmt")):
            return False
        look.keep = first_line_end(descriptor)
        first = value.get("q0")
        if isinstance(first, int) and first <= look.progress.wanted:
            look.progress.finish(look.name.number - 1)
        return True

    def _skim(self, look: _Look, descriptor: int, size: int) -> None:
        """Pass over metric lines as long as nothing is missing among them.

        Of what is passed over only the ends are checked: a bit that was flipped in a metric line
        is found by whoever reads metrics.
        """
        while data := whole_chunk(descriptor, look.keep, size):
            found = skim(data)
            if found is None or found[0] > look.progress.wanted:
                return
            _, last, lines = found
            others = [(number_and_kind(line), line) for line in lines]
            if any(known is None or known[1] == "gap" for known, _ in others):
                return
            for known, line in others:
                if known is not None and known[0] >= look.progress.wanted:
                    self._take_known(look, known[0], known[1], line, None)
            look.progress.wanted = max(look.progress.wanted, last + 1)
            look.progress.finish(look.name.number - 1)
            look.keep += len(data)

    def _take_line(self, look: _Look, end: int, line: bytes) -> int | None:
        """Take in one line; its number when a record before it is missing."""
        record = None
        known = number_and_kind(line)
        if known is None:
            value = open_line(line)
            if value is None:
                return None  # Bad. It is passed once a good line shows that nothing is missing.
            record = to_record(look.name.writer, value)
            if record is None:
                look.keep = end
                return None
            known = record.seq, record.kind
        seq, kind = known
        wanted = look.progress.wanted
        if seq > wanted:
            if kind != "gap":
                return seq
            record = record or record_of(look.name.writer, line)
            if record is None or _first_lost(record) > wanted:
                return seq
        if seq < wanted or self._take_known(look, seq, kind, line, record):
            look.keep = end
        return None

    def _take_known(
        self, look: _Look, seq: int, kind: str, line: bytes, record: Record | None
    ) -> bool:
        """Take in a record that is due; False when its line does not parse."""
        if kind == "gap" or self._delivers(kind):
            record = record or record_of(look.name.writer, line)
            if record is None:
                return False
            if kind == "gap":
                self._note_gap(record)
            if self._delivers(kind):
                look.batch.append(record)
        if kind == "close":
            self._closed[look.name.writer] = look.name.number
        look.progress.wanted = seq + 1
        look.progress.finish(look.name.number - 1)
        return True

    def _delivers(self, kind: str) -> bool:
        return self._kinds is None or kind in self._kinds

    def _note_gap(self, record: Record) -> None:
        first, last = _first_lost(record), record.body.get("last")
        if isinstance(last, int) and last >= first:
            self.gaps.append(Gap(record.writer, first, last, str(record.body.get("why", ""))))

    def _lost(self, writer: WriterId, first: int, last: int) -> None:
        self.gaps.append(Gap(writer, first, last, LOST[1]))

    def _understands(self, name: SegmentName, version: object) -> bool:
        if not isinstance(version, int) or version <= FORMAT:
            return True
        self._problems[f"format of {name}"] = (
            f"{name} is of format {version}, which is newer than {FORMAT}: skipped, "
            "a newer launchhelm can read it"
        )
        return False

    def _cannot_read(self, name: SegmentName, error: Exception) -> None:
        said = str(error)
        if isinstance(error, OSError):
            said = error.strerror or said
        elif isinstance(error, StorageError):
            said = error.message
        self._problems[str(name)] = f"{name} cannot be read: {said}"


@dataclass(slots=True)
class _Look:
    """One look at one journal; `keep` is the offset at which the next one goes on."""

    name: SegmentName
    progress: Progress
    batch: list[Record]
    limit: int | None
    keep: int

    @property
    def is_full(self) -> bool:
        return self.limit is not None and len(self.batch) >= self.limit


def _first_lost(record: Record) -> int:
    first = record.body.get("first")
    return first if isinstance(first, int) else record.seq
