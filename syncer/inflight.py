"""Batches between the run directory and the wire: cut, queued, sent as one, and made again.

A batch is points of one stream, in the order of their records. A request takes at most one batch
of each stream, all of one participant, so that a stream on the server never has a hole.
"""

from __future__ import annotations

import hashlib
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from launchhelm.records import Record, WriterId
from launchhelm.store.cursor import Cursor, Progress
from launchhelm.store.reader import Reader, list_segments
from syncer.api import wire
from syncer.mapping import Refused, Sample
from syncer.naming import StreamKey
from syncer.state import Flight, State

HEAD_BYTES: Final = 512
"""What a batch has beside its points, at most."""

MIN_REQUEST_BYTES: Final = 4 << 10
"""Requests are not made smaller than this to please a server; single points may still fit."""

_ENTIRELY: Final = 1 << 62
_LIMIT: Final = 2000


class Encoded(NamedTuple):
    """The bytes of a batch, and the arguments that they were made of."""

    head: tuple[str, str, str, str, str]
    data: bytes
    digest: str


@dataclass(slots=True)
class Batch:
    """Points of one stream on their way.

    Args:
        key: The stream.
        seqs: Record numbers, rising, at least one.
        points: As they stand in a batch, one for each number.
        start: Once they are stored, all of the stream from `start` to `last` is dealt with.
        encoded: What `encode` made of it, where that was asked before.
    """

    key: StreamKey
    seqs: Sequence[int]
    points: Sequence[bytes]
    start: int
    size: int = 0
    encoded: Encoded | None = None

    def __post_init__(self) -> None:
        self.size = HEAD_BYTES + sum(map(len, self.points)) + len(self.points)

    @property
    def first(self) -> int:
        """Record number of the first point."""
        return self.seqs[0]

    @property
    def last(self) -> int:
        """Record number of the last point."""
        return self.seqs[-1]

    @property
    def is_full(self) -> bool:
        """Whether no point can be added."""
        return len(self.points) >= wire.MAX_POINTS_PER_BATCH

    def halves(self) -> tuple[Batch, Batch]:
        """Split a batch of two points or more."""
        middle = len(self.points) // 2
        one = Batch(self.key, self.seqs[:middle], self.points[:middle], self.start)
        return one, Batch(self.key, self.seqs[middle:], self.points[middle:], one.last + 1)


@dataclass(frozen=True, slots=True)
class Ready:
    """A batch with everything the wire needs, and the intent to send it."""

    batch: Batch
    flight: Flight
    stream_id: str
    data: bytes


@dataclass(slots=True)
class Outbox:
    """Batches that wait, per participant and stream.

    Args:
        max_bytes: Of one request; comes down when a server takes less.
    """

    max_bytes: int = wire.MAX_REQUEST_BYTES
    points: int = 0
    _queues: dict[WriterId, dict[StreamKey, deque[Batch]]] = field(default_factory=dict)

    def add(
        self,
        key: StreamKey,
        seqs: Sequence[int],
        points: Sequence[bytes],
        start: int,
        *,
        fills: bool = True,
    ) -> None:
        """Cut points of one stream into batches behind those that wait.

        Args:
            key: The stream.
            seqs: Record numbers, rising.
            points: As they stand in a batch, one for each number.
            start: From where on they cover the stream.
            fills: Whether the last batch that waits may be filled up: no point between is dealt
                with, for the batch could not be made again from its first and last record then.
        """
        self.points += len(points)
        queue = self._queues.setdefault(key.writer, {}).setdefault(key, deque())
        last = queue[-1] if queue else None
        if fills and last is not None and not last.is_full and start <= last.last + 1:
            queue.pop()
            seqs, points, start = [*last.seqs, *seqs], [*last.points, *points], last.start
        begin = 0
        for part in wire.partition(points):
            batch = Batch(key, seqs[begin : begin + len(part)], part, start)
            queue.append(batch)
            begin += len(part)
            start = batch.last + 1

    def put_back(self, batches: Iterable[Batch]) -> None:
        """Put batches before those that wait, in their order."""
        for batch in reversed(list(batches)):
            queue = self._queues.setdefault(batch.key.writer, {}).setdefault(batch.key, deque())
            queue.appendleft(batch)
            self.points += len(batch.points)

    def clear(self) -> None:
        """Let go of everything that waits."""
        self._queues.clear()
        self.points = 0

    def has(self, key: StreamKey) -> bool:
        """Whether something waits for one stream."""
        return bool(self._queues.get(key.writer, {}).get(key))

    def drop(self, key: StreamKey) -> None:
        """Let go of everything that waits for one stream."""
        queue = self._queues.get(key.writer, {}).pop(key, ())
        self.points -= sum(len(batch.points) for batch in queue)

    def take(self) -> list[Batch]:
        """Take the batches of the next request; [] when nothing waits. All get their turn."""
        for writer, queues in list(self._queues.items()):
            del self._queues[writer]
            taken: list[Batch] = []
            size = 0
            for key, queue in list(queues.items()):
                while queue[0].size > self.max_bytes and len(queue[0].points) > 1:
                    queue.extendleft(reversed(queue.popleft().halves()))
                if taken and size + queue[0].size > self.max_bytes:
                    break
                taken.append(queue.popleft())
                size += taken[-1].size
                del queues[key]
                if queue:
                    queues[key] = queue
                if len(taken) == wire.MAX_BATCHES:
                    break
            if queues:
                self._queues[writer] = queues
            if taken:
                self.points -= sum(len(batch.points) for batch in taken)
                return taken
        return []

    def full(self) -> Iterator[Batch]:
        """Yield the batches that will leave next in their streams as they are."""
        for queues in self._queues.values():
            for queue in queues.values():
                if queue[0].is_full and queue[0].size <= self.max_bytes:
                    yield queue[0]

    def too_large(self, body_bytes: int) -> None:
        """Take note that the server did not take a request of that size."""
        self.max_bytes = max(MIN_REQUEST_BYTES, min(self.max_bytes, body_bytes // 2))


def batch_id(server: str, stream_id: str, key: StreamKey, epoch: str, first: int, last: int) -> str:
    """Return the id of a batch: whoever sends these records to this stream gives the same one."""
    text = f"launchhelm-offline {server} {stream_id} {epoch} {first} {last} {key.text}"
    return str(uuid.uuid5(uuid.NAMESPACE_URL, text))


def encode(batch: Batch, state: State, server: str, epoch: str) -> Ready:
    """Make the bytes of a batch, and the intent to send them.

    Args:
        batch: Its stream and participant are known to the state, with their server ids.
        state: Where those ids are.
        server: Name of the server and organisation.
        epoch: Under which the points are sent.
    """
    number = state.number[batch.key.text]
    stream = state.streams[number]
    identity = batch_id(server, stream.id, batch.key, epoch, batch.first, batch.last)
    participant = state.participants[str(batch.key.writer)]
    head = (identity, stream.id, stream.revision, epoch, participant)
    if batch.encoded is None or batch.encoded.head != head:
        data = wire.batch(*head, batch.points)
        batch.encoded = Encoded(head, data, _digest(data))
    flight = Flight(
        stream=number,
        first=batch.first,
        last=batch.last,
        start=batch.start,
        count=len(batch.points),
        epoch=epoch,
        batch_id=identity,
        digest=batch.encoded.digest,
    )
    return Ready(batch, flight, stream.id, batch.encoded.data)


def remake(
    run_directory: Path,
    state: State,
    points_of: Callable[[Record], Sequence[Sample | Refused]],
) -> tuple[list[Ready], list[tuple[Flight, int]]]:
    """Make the batches again that were on their way when a syncer ended.

    Args:
        run_directory: Where the records are.
        state: What was on its way.
        points_of: Makes the points of a record.

    Returns:
        Those with the very bytes that were promised; then the flights for which that failed, each
        with the number of points that can be read.
    """
    ready: list[Ready] = []
    failed: list[tuple[Flight, int]] = []
    by_writer: dict[WriterId, list[tuple[StreamKey, Flight]]] = {}
    for flight in state.flights.values():
        key = StreamKey.parse(state.streams[flight.stream].key)
        by_writer.setdefault(key.writer, []).append((key, flight))
    for writer, flights in by_writer.items():
        found: dict[StreamKey, list[Sample]] = {key: [] for key, _ in flights}
        first = min(flight.first for _, flight in flights)
        last = max(flight.last for _, flight in flights)
        for record in records_between(run_directory, writer, first, last):
            for sample in points_of(record):
                if isinstance(sample, Sample) and sample.key in found:
                    found[sample.key].append(sample)
        for key, flight in flights:
            points = [it for it in found[key] if flight.first <= it.seq <= flight.last]
            again = _again(key, flight, points, state)
            if again is None:
                failed.append((flight, len(points)))
            else:
                ready.append(again)
    return ready, failed


def _again(key: StreamKey, flight: Flight, points: Sequence[Sample], state: State) -> Ready | None:
    participant = state.participants.get(str(key.writer))
    if len(points) != flight.count or participant is None:
        return None
    stream = state.streams[flight.stream]
    batch = Batch(key, [it.seq for it in points], [it.data for it in points], flight.start)
    data = wire.batch(
        flight.batch_id, stream.id, stream.revision, flight.epoch, participant, batch.points
    )
    if _digest(data) != flight.digest:
        return None
    return Ready(batch, flight, stream.id, data)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


def records_between(
    run_directory: Path, writer: WriterId, first: int, last: int
) -> Iterator[Record]:
    """Yield the records of one writer from one number to another, as far as they can be read."""
    reader = Reader(run_directory, cursor_at(run_directory, {writer: first}), ranks=[writer.rank])
    while records := reader.poll(limit=_LIMIT):
        for record in records:
            if record.writer != writer:
                continue  # It began only just now.
            if record.seq > last:
                return
            yield record


def cursor_at(run_directory: Path, wanted: dict[WriterId, int]) -> Cursor:
    """Return a cursor that delivers some writers from a record on, and the others not at all."""
    try:
        listing = list_segments(run_directory)
    except OSError:
        return Cursor()
    return Cursor(
        {
            writer: Progress(wanted=wanted[writer])
            if writer in wanted
            else Progress(wanted=_ENTIRELY, done=_ENTIRELY)
            for writer in listing
        }
    )
