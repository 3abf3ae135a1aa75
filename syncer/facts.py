"""What a run's records have said about it so far: title, notes, summary, units, starts and ends.

Records may come in any order of writers and more than once; the newest by (attempt, number) counts.
Only the coordinator speaks for the run; every process speaks for itself.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from launchhelm._clock import SYSTEM_CLOCK, Clock
from launchhelm.errors import StorageError
from launchhelm.records import Record, WriterId
from launchhelm.store import journal, layout
from launchhelm.store.layout import SegmentName
from launchhelm.store.manifest import Manifest
from launchhelm.store.reader import Reader, list_segments
from launchhelm.store.sealed import sealed_meta
from launchhelm.views.fold import Newest, whole_body

FACT_KINDS: Final = frozenset({"def", "sum", "desc", "ev", "close", "cap"})
_DESCRIBED: Final = ("name", "group", "tags", "notes")


class Facts:
    """The facts of one run directory.

    Args:
        directory: The run directory; only read.
        manifest: Who the run is.

    Attributes:
        version: Rises with every record that may have changed the run's document.
        offered: Rises with every capability and safe point of a coordinator.
    """

    def __init__(self, directory: Path, manifest: Manifest) -> None:
        self.directory = directory
        self.manifest = manifest
        self.version = 0
        self.offered = 0
        self._described = Newest()
        self._summary = Newest()
        self._reductions = Newest()
        self._units: dict[str, str] = {}
        self._worlds: dict[int, int] = {}
        self._ends: dict[WriterId, Mapping[str, Any]] = {}
        self._writers: set[WriterId] = set()
        self._openings: dict[WriterId, Mapping[str, Any]] = {}
        self._offers: dict[WriterId, dict[str, tuple[int, Mapping[str, Any]]]] = {}
        self._safe_points: dict[WriterId, set[str]] = {}

    @classmethod
    def read(cls, directory: Path, manifest: Manifest, *, clock: Clock = SYSTEM_CLOCK) -> Facts:
        """Read all that a run has said so far; passes over metrics at the speed of a search."""
        facts = cls(directory, manifest)
        for record in Reader(directory, kinds=FACT_KINDS, clock=clock).poll():
            facts.take(record)
        return facts

    def take(self, record: Record) -> None:
        """Take in a record; those that say nothing about the run are ignored."""
        if record.kind not in FACT_KINDS:
            return
        writer = record.writer
        self._writers.add(writer)
        body = whole_body(self.directory, record.body)
        stamp = (writer.attempt, record.seq)
        if record.kind == "ev":
            self._take_start(writer, body)
            self._take_safe_point(writer, body)
        elif record.kind == "cap":
            self._take_offer(writer, body, record.seq)
        elif record.kind == "close":
            self._ends[writer] = body
            self.version += 1
        elif record.kind == "def":
            self._take_definition(writer, body, stamp)
        elif writer.rank == 0:
            self._take_description(record.kind, body, stamp)

    def _take_start(self, writer: WriterId, body: Mapping[str, Any]) -> None:
        world_size = body.get("world_size")
        if body.get("type") == "start" and isinstance(world_size, int):
            self._worlds[writer.attempt] = max(world_size, self._worlds.get(writer.attempt, 0))
            self.version += 1

    def _take_safe_point(self, writer: WriterId, body: Mapping[str, Any]) -> None:
        name = body.get("name")
        if writer.rank == 0 and body.get("type") == "safe_point" and isinstance(name, str):
            self._safe_points.setdefault(writer, set()).add(name)
            self.offered += 1

    def _take_offer(self, writer: WriterId, body: Mapping[str, Any], seq: int) -> None:
        name = body.get("name")
        if writer.rank != 0 or not isinstance(name, str) or not isinstance(body.get("id"), str):
            return
        offers = self._offers.setdefault(writer, {})
        if seq >= offers.get(name, (-1, {}))[0]:
            offers[name] = (seq, body)  # An earlier one of that name is replaced.
            self.offered += 1

    def _take_definition(
        self, writer: WriterId, body: Mapping[str, Any], stamp: tuple[int, int]
    ) -> None:
        name, unit, state = body.get("name"), body.get("unit"), body.get("state")
        if not isinstance(name, str):
            return
        if isinstance(unit, str) and unit:
            self._units.setdefault(name, unit)  # A unit is fixed once it is given.
        if writer.rank == 0 and isinstance(state, Mapping):
            self._reductions.take(name, state, stamp)
            self.version += 1

    def _take_description(self, kind: str, body: Mapping[str, Any], stamp: tuple[int, int]) -> None:
        self.version += 1
        for name, value in body.items():
            if kind == "sum":
                self._summary.take(name, value, stamp)
            elif name in _DESCRIBED and value is not None:
                self._described.take(name, value, stamp)

    # --- the run ----------------------------------------------------------------------------------

    @property
    def run_id(self) -> str:
        """The run's own id."""
        return self.manifest.run_id

    @property
    def name(self) -> str:
        """The title, as described last."""
        return str(self._described.values.get("name") or self.manifest.name)

    @property
    def group(self) -> str:
        """The group, as described last."""
        return str(self._said("group", ""))

    @property
    def notes(self) -> str:
        """The notes, as described last."""
        return str(self._said("notes", ""))

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags, as described last."""
        tags = self._said("tags", ())
        return tuple(map(str, tags)) if isinstance(tags, list | tuple) else ()

    def _said(self, name: str, default: Any) -> Any:  # Any: JSON of run.json or of a record.
        return self._described.values.get(name, self.manifest.extra.get(name, default))

    @property
    def summary(self) -> dict[str, Any]:
        """Summary values as stored; names that were removed are not in it."""
        return {name: value for name, value in self._summary.values.items() if value is not None}

    @property
    def reductions(self) -> Mapping[str, Mapping[str, Any]]:
        """Per metric the state of its running reduction, where one was recorded."""
        return self._reductions.values

    def unit(self, name: str) -> str:
        """Return the unit that a metric was defined with; "" for none."""
        return self._units.get(name, "")

    # --- what may be commanded --------------------------------------------------------------------

    def offers(self, writer: WriterId) -> list[Mapping[str, Any]]:
        """Return the capabilities of a coordinator as it recorded them, the newest of each name."""
        return [body for _, body in self._offers.get(writer, {}).values()]

    @property
    def offering(self) -> frozenset[WriterId]:
        """Coordinators, of any attempt, that could be commanded."""
        return frozenset(self._offers)

    def safe_points(self, writer: WriterId) -> frozenset[str]:
        """Return the safe points that a coordinator has said it passes."""
        return frozenset(self._safe_points.get(writer, ()))

    # --- its end ----------------------------------------------------------------------------------

    @property
    def has_coordinator(self) -> bool:
        """Whether the coordinator's files are here, so that we can speak for the run."""
        return any(writer.rank == 0 for writer in self._writers)

    @property
    def attempt(self) -> int:
        """Number of the newest attempt that has a record; 0 for none."""
        return max((writer.attempt for writer in self._writers), default=0)

    @property
    def open_ranks(self) -> list[int]:
        """Ranks of the newest attempt that have not ended."""
        attempt = self.attempt
        ended = {writer.rank for writer in self._ends if writer.attempt == attempt}
        known = {writer.rank for writer in self._writers if writer.attempt == attempt}
        return sorted({*range(self._worlds.get(attempt, 1)), *known} - ended)

    @property
    def is_complete(self) -> bool:
        """Whether the coordinator finished the run for good, in the newest attempt."""
        end: Mapping[str, Any] = {}
        for writer, body in self._ends.items():
            if writer.rank == 0 and writer.attempt == self.attempt:
                end = body
        return end.get("state") == "finished" and bool(end.get("close_run", True))

    @property
    def state(self) -> str:
        """`closed` when the run is complete and every rank of its newest attempt has ended."""
        is_over = self.is_complete and not self.open_ranks
        return "closed" if is_over and self._newest_attempt() <= self.attempt else "open"

    def note_ended(self, writer: WriterId) -> None:
        """Note that a process is gone although it left no end record, as the caller knows."""
        if writer not in self._ends:
            self._ends[writer] = {}
            self.version += 1

    def has_ended(self, writer: WriterId) -> bool:
        """Whether a process left an end record, or was noted to be gone."""
        return writer in self._ends

    def _newest_attempt(self) -> int:
        """Return the number of the newest launch, which may have no record yet."""
        try:
            names = os.listdir(self.directory / layout.ATTEMPTS)
        except OSError:
            return 0
        return max((layout.parse_attempt(name) or 0 for name in names), default=0)

    # --- its processes ----------------------------------------------------------------------------

    def opening(self, writer: WriterId) -> Mapping[str, Any]:
        """Return what a process says in the first line of its files; {} while it is unreadable."""
        found = self._openings.get(writer) or self._read_opening(writer)
        if found:
            self._openings[writer] = found
        return found

    def _read_opening(self, writer: WriterId) -> Mapping[str, Any]:
        try:
            files = list_segments(self.directory).get(writer, {})
        except OSError:
            return {}
        for number, forms in sorted(files.items()):
            for sealed in sorted(forms, reverse=True):
                path = self.directory / layout.DATA / str(SegmentName(writer, number, sealed))
                try:
                    if sealed:
                        return sealed_meta(path).opening
                    with journal.opened(path) as (descriptor, _):
                        line = journal.opening(descriptor)
                except (OSError, StorageError):
                    continue  # Sealed meanwhile, or cut short: another file says the same.
                if line is not None:
                    return line
        return {}
