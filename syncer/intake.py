"""From the run directory to batches that wait: slice by slice, so that memory stays flat.

A record that is dealt with is passed over. What a restriction leaves out does not count as dealt
with, so that a later pass without it sends exactly that.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from launchhelm._clock import SYSTEM_CLOCK, Clock
from launchhelm.records import Record, WriterId
from launchhelm.store.body import METRIC_KINDS
from launchhelm.store.cursor import Cursor
from launchhelm.store.reader import Reader
from launchhelm.views.fold import whole_body
from syncer.artifacts import Artifacts, media_of
from syncer.coverage import Coverage
from syncer.facts import Facts
from syncer.inflight import Outbox
from syncer.mapping import Layout, Refused, Sample, numbers, samples
from syncer.naming import StreamKey
from syncer.state import State

PARTS: Final = ("metrics", "console", "media", "system", "controls")
"""What `only` may name."""

MAX_RECORDS: Final = 2000
POINTS: Final = 10_000
"""Points of a slice, about."""

EVERYTHING: Final = ""
"""The cursor of passes without a restriction."""

_PART_OF: Final = {
    "m": "metrics",
    "con": "console",
    "rich": "media",
    "art": "media",
    "sys": "system",
}
_OTHERS: Final = "controls"

_NAMING: Final = ("m", "rich")
"""Kinds of records that may name an artifact."""

_NOTHING: Final = Coverage()


@dataclass(frozen=True, slots=True)
class Restriction:
    """What of a run is sent.

    Args:
        only: Of PARTS; empty means all.
        since: Records before this time, by the clock of their writer, are left out.
    """

    only: frozenset[str] = frozenset()
    since: float | None = None

    @property
    def is_whole(self) -> bool:
        """Whether nothing is left out."""
        return not self.only and self.since is None

    @property
    def cursor(self) -> str | None:
        """Name of the cursor in the state; None where none is kept."""
        return ",".join(sorted(self.only)) if self.since is None else None

    def admits(self, record: Record) -> bool:
        """Whether a record is sent."""
        # Records know whole milliseconds, the nearest: one made right after `since` may lie before.
        if self.since is not None and record.at < round(self.since, 3):
            return False
        return not self.only or _PART_OF.get(record.kind, _OTHERS) in self.only


@dataclass(slots=True)
class _Run:
    """Points of one stream that follow each other.

    Args:
        start: From where on they cover the stream.
        after: All that is dealt with lies at or below this number.
        is_apart: Whether something that is dealt with lies between these and those before.
    """

    start: int
    after: int
    is_apart: bool
    seqs: list[int] = field(default_factory=list)
    points: list[bytes] = field(default_factory=list)

    def add(self, seq: int, point: bytes) -> None:
        """Add a point behind the others."""
        self.seqs.append(seq)
        self.points.append(point)


class Intake:
    """Reads one run into an outbox. One thread.

    Attributes:
        held: Streams that are not sent now, by the reason.
    """

    def __init__(
        self,
        run_directory: Path,
        state: State,
        outbox: Outbox,
        facts: Facts,
        artifacts: Artifacts,
        restriction: Restriction,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.held: dict[StreamKey, str] = {}
        self._refused: list[Refused] = []
        self._directory = run_directory
        self._state = state
        self._outbox = outbox
        self._facts = facts
        self._artifacts = artifacts
        self._restriction = restriction
        self._clock = clock
        self._reader = self._new_reader()
        self._flying = self._covered_by_flights()
        self._limit = POINTS // 25
        self._runs: dict[StreamKey, _Run] = {}
        self._lanes: dict[Layout, tuple[int, list[_Run]]] = {}
        self._tails: dict[StreamKey, int] = {}
        self._apart: set[StreamKey] = set()
        self._deferred: deque[Record] = deque()
        self._blocked: Counter[tuple[WriterId, str]] = Counter()
        self._left_out: set[str] = set()

    @property
    def cursor(self) -> str | None:
        """The text of the cursor, when all before it is in the outbox or dealt with."""
        waits = self.held or self._deferred or self._artifacts.pending
        return None if waits else self._reader.cursor.text()

    @property
    def is_whole(self) -> bool:
        """Whether nothing of the run is left out."""
        return self._restriction.is_whole

    @property
    def problems(self) -> list[str]:
        """What cannot be read now, one sentence each."""
        holes = self._reader.holes.items()
        missing = [f"{writer}: record {seq} is not visible yet" for writer, seq in holes]
        return [*self._reader.problems, *missing]

    def read(self) -> bool:
        """Put the points of some more records into the outbox; False when there are none."""
        self._take_deferred()
        records = self._reader.poll(limit=self._limit)
        before = self._outbox.points
        for record in records:
            self._facts.take(record)
            self._take(record)
        self._close_runs()
        if records:
            per_record = max(1.0, (self._outbox.points - before) / len(records))
            self._limit = int(min(MAX_RECORDS, 2 * self._limit, max(1, POINTS / per_record)))
        return bool(records)

    def rewind(self) -> None:
        """Go back to the cursor of the state, after what is dealt with was found out anew.

        What is on its way then is not read again: whoever holds it sends it or puts it back.
        """
        self._outbox.clear()
        self._refused.clear()
        self._runs.clear()
        self._lanes.clear()
        self._tails.clear()
        self._apart.clear()
        self._deferred.clear()
        self._blocked.clear()
        self._reader = self._new_reader()
        self._flying = self._covered_by_flights()

    def take_refused(self) -> list[Refused]:
        """Return the values that no server takes, of what was read since the last call."""
        refused, self._refused = self._refused, []
        return refused

    def points(self, record: Record) -> Sequence[Sample | Refused]:
        """Return the points of a record, with the server's ids of artifacts."""
        if record.kind not in _NAMING:
            return samples(record, self._directory)
        record = self._whole(record)
        return samples(self._artifacts.resolved(record) or record, self._directory)

    def _whole(self, record: Record) -> Record:
        """Return a record with a rich value as it is without the limit of a line."""
        if record.kind != "rich":
            return record
        return replace(record, body=whole_body(self._directory, record.body))

    def _new_reader(self) -> Reader:
        cursors = self._state.cursors
        name = self._restriction.cursor
        # What a pass without restriction has dealt with is dealt with for all.
        text = cursors.get(EVERYTHING if name is None or name not in cursors else name)
        try:
            cursor = Cursor.parse(text) if text else None
        except ValueError:
            cursor = None
        return Reader(self._directory, cursor, clock=self._clock, newest_first=True)

    # --- one record -------------------------------------------------------------------------------

    def _take(self, record: Record) -> None:
        is_wanted = self._restriction.admits(record)
        if record.kind == "art":
            if is_wanted:
                self._artifacts.take(record)
            else:
                self._left_out.add(str(record.body.get("id")))
            return
        if record.kind in _NAMING and is_wanted:
            record = self._whole(record)
            if record.kind == "rich":
                for medium in media_of(record):
                    self._artifacts.take(medium)
            record = self._without_waiting(record)
        if is_wanted and record.kind in METRIC_KINDS and self._take_numbers(record):
            return
        for sample in self.points(record):
            run = self._runs.get(sample.key)
            if run is not None and is_wanted and run.after < sample.seq and type(sample) is Sample:
                run.add(sample.seq, sample.data)
            else:
                self._offer(sample, is_wanted)

    def _take_numbers(self, record: Record) -> bool:
        """Put a record of numbers behind others of its streams; False where one has none."""
        found = numbers(record)
        if found is None:
            return False
        layout, points = found
        lane = self._lanes.get(layout)
        if lane is None:
            if not all(key in self._runs for key in layout.keys):
                return False
            runs = [self._runs[key] for key in layout.keys]
            lane = self._lanes[layout] = max(run.after for run in runs), runs
        after, runs = lane
        seq = record.seq
        if seq <= after:
            return False
        for run, point in zip(runs, points, strict=True):
            run.seqs.append(seq)
            run.points.append(point)
        return True

    def _offer(self, sample: Sample | Refused, is_wanted: bool) -> None:
        key, seq = sample.key, sample.seq
        if key in self.held:
            return
        coverage = self._coverage(key)
        if seq in coverage:
            self._close_run(key)
            self._tails[key] = seq
            self._apart.add(key)
        elif not is_wanted:
            self._close_run(key)
            self._tails.pop(key, None)
        elif isinstance(sample, Refused):
            self._refused.append(sample)
            self._tails[key] = seq
        else:
            run = self._runs.get(key)
            if run is None:
                start, is_apart = self._start(key, seq), key in self._apart
                run = self._runs[key] = _Run(start, coverage.last, is_apart)
                self._apart.discard(key)
            run.add(seq, sample.data)

    def _coverage(self, key: StreamKey) -> Coverage:
        stream = self._state.stream(key.text)
        coverage = _NOTHING if stream is None else stream.coverage
        return self._flying.get(key.text, coverage)

    def _covered_by_flights(self) -> dict[str, Coverage]:
        """What is dealt with or on its way, of the streams of which something is on its way.

        It need not follow later changes: these are of points that have been read since.
        """
        covered: dict[str, Coverage] = {}
        for flight in self._state.flights.values():
            stream = self._state.streams[flight.stream]
            found = covered.setdefault(stream.key, Coverage(stream.coverage))
            found.add(flight.first, flight.last)
        return covered

    def _start(self, key: StreamKey, seq: int) -> int:
        """From where on a batch covers its stream: without restriction, nothing is left before."""
        if self._restriction.is_whole:
            return 0
        return self._tails[key] + 1 if key in self._tails else seq

    def _close_run(self, key: StreamKey) -> None:
        run = self._runs.pop(key, None)
        if run is not None:
            self._lanes.clear()
            self._tails[key] = run.seqs[-1]
            self._outbox.add(key, run.seqs, run.points, run.start, fills=not run.is_apart)

    def _close_runs(self) -> None:
        for key in list(self._runs):
            self._close_run(key)

    # --- points that name an artifact -------------------------------------------------------------

    def _without_waiting(self, record: Record) -> Record:
        """Set aside what names an artifact that is not on the server yet, and what follows it."""
        if not self._blocked and not self._artifacts.pending and not self._left_out:
            return record
        later = [
            name
            for name in _names(record)
            if self._blocked[record.writer, name] or self._waits(record, name)
        ]
        if not later:
            return record
        for name in later:
            self._deferred.append(_only(record, name))
            self._blocked[record.writer, name] += 1
        if record.kind == "rich":
            return replace(record, body={})
        return replace(
            record, body={name: it for name, it in record.body.items() if name not in later}
        )

    def _waits(self, record: Record, name: str) -> bool:
        if record.kind == "m":
            value = record.body[name]
            if type(value) is not str:
                return False
            if value in self._left_out:
                return True
        return self._artifacts.resolved(_only(record, name)) is None

    def _take_deferred(self) -> None:
        """Take in what no longer waits for its artifact, each stream in its order."""
        waiting: set[tuple[WriterId, str]] = set()
        for _ in range(len(self._deferred)):
            record = self._deferred.popleft()
            (name,) = _names(record)
            if (record.writer, name) in waiting or self._waits(record, name):
                waiting.add((record.writer, name))
                self._deferred.append(record)
                continue
            self._blocked[record.writer, name] -= 1
            for sample in self.points(record):
                self._offer(sample, True)
        if not self._deferred:
            self._blocked.clear()
        self._close_runs()


def _names(record: Record) -> Sequence[str]:
    """Return the metrics of which a record has a value."""
    if record.kind == "m":
        return list(record.body)
    name = record.body.get("name")
    return [name] if isinstance(name, str) else []


def _only(record: Record, name: str) -> Record:
    """Return a record with one metric of its own."""
    return replace(record, body={name: record.body[name]}) if record.kind == "m" else record
