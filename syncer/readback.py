"""What a server has of a run, read back point by point and laid beside the run's own records.

The last resort of exactly-once: where our memory is lost, old or contradicted, the server's is
asked. It takes eight bytes a point of the server's, and one pass over the run directory.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from launchhelm.records import WriterId
from launchhelm.store.reader import Reader
from syncer.api.client import Client
from syncer.api.limits import POINTS_PAGE
from syncer.coverage import Coverage
from syncer.inflight import cursor_at
from syncer.mapping import Sample, samples
from syncer.naming import STREAM_LABEL, StreamKey

_LIMIT: Final = 500


@dataclass(slots=True)
class ServerStream:
    """The sequences that a server has of one stream, and the epoch of the last one."""

    sequences: array[int] = field(default_factory=lambda: array("q"))
    epoch: str = ""

    def joined(self, other: ServerStream) -> ServerStream:
        """Return both as one stream."""
        newer = other if other.sequences[-1:] > self.sequences[-1:] else self
        return ServerStream(array("q", sorted(self.sequences + other.sequences)), newer.epoch)

    def __contains__(self, seq: int) -> bool:
        index = bisect_left(self.sequences, seq)
        return index < len(self.sequences) and self.sequences[index] == seq


@dataclass(slots=True)
class Survey:
    """What is dealt with, by the text of the stream's key, and what each writer sends as.

    Attributes:
        epochs: Of the newest points of a writer.
        participants: To whom the streams of a writer belong. A create that came through twice
            leaves another participant beside it, perhaps an older one.
    """

    coverage: dict[str, Coverage] = field(default_factory=dict)
    epochs: dict[str, str] = field(default_factory=dict)
    participants: dict[WriterId, str] = field(default_factory=dict)
    points: int = 0


def survey(
    client: Client,
    run_directory: Path,
    *,
    project_id: str,
    run_id: str,
    only: Collection[StreamKey] | None = None,
    tick: Callable[[], object] = lambda: None,
    read: dict[str, ServerStream] | None = None,
) -> Survey:
    """Find out which records the server has points of.

    A record is dealt with when the server has its point. Beyond the newest record that is visible
    here, all up to the server's newest is; a stream is sent in order.

    Args:
        client: The server.
        run_directory: The run.
        project_id: Of the run on the server.
        run_id: Likewise.
        only: These streams; None means all that the run has there.
        tick: Called now and then, to keep a lease.
        read: Streams that were read before, by their ids; filled as they are read. With many of
            them one request in the middle is likely to fail, and the next try goes on there. Only
            for a caller that has sent nothing since.

    Raises:
        ApiError: The server could not be asked.
    """
    read = {} if read is None else read
    labels = None if only is None else {key.label for key in only}
    found: dict[str, ServerStream] = {}
    owners: dict[str, str] = {}
    for document in client.list_documents("stream", project_id, run_id):
        label = (document["spec"].get("labels") or {}).get(STREAM_LABEL)
        if isinstance(label, str) and (labels is None or label in labels):
            # Where a stream stands twice, points of either are points of it.
            owners.setdefault(label, str(document["spec"].get("participant_id", "")))
            id_ = document["id"]
            if id_ not in read:
                read[id_] = _read_back(client, id_, tick)
            found[label] = found[label].joined(read[id_]) if label in found else read[id_]
    result = Survey(points=sum(len(it.sequences) for it in found.values()))
    keys = _Beside(run_directory, found, tick).keys(result)
    for label, stream in found.items():
        key = keys.get(label) or _parsed(label)
        if key is not None and owners[label]:
            result.participants.setdefault(key.writer, owners[label])
        if key is not None and stream.epoch:
            result.epochs.setdefault(str(key.writer), stream.epoch)
    return result


def _read_back(client: Client, stream_id: str, tick: Callable[[], object]) -> ServerStream:
    tick()
    found = ServerStream()
    newest = -1
    for point in client.all_points(stream_id):
        seq = int(point["sequence"])
        found.sequences.append(seq)
        if seq >= newest:
            newest, found.epoch = seq, point["epoch"]
        if len(found.sequences) % POINTS_PAGE == 0:
            tick()
    # Points come in the order of their times, which may have gone backwards.
    if any(a > b for a, b in zip(found.sequences, found.sequences[1:], strict=False)):
        found.sequences = array("q", sorted(found.sequences))
    return found


class _Beside:
    """Lays the server's sequences beside the records that the directory holds."""

    def __init__(
        self, run_directory: Path, found: dict[str, ServerStream], tick: Callable[[], object]
    ) -> None:
        self._tick = tick
        self._directory = run_directory
        self._found = found
        self._open: dict[StreamKey, tuple[int, int] | None] = {}
        self._coverage: dict[StreamKey, Coverage] = {}

    def keys(self, result: Survey) -> dict[str, StreamKey]:
        """Fill in what is dealt with; return the key of each label that the directory knows."""
        writers = {key.writer for label in self._found if (key := _parsed(label)) is not None}
        for writer in sorted(writers, key=str):
            self._walk(writer)
        by_label = {key.label: key for key in self._open}
        for key, run in self._open.items():
            coverage = self._coverage.setdefault(key, Coverage())
            if run is not None:
                coverage.add(run[0], max(run[1], self._found[key.label].sequences[-1]))
            result.coverage[key.text] = coverage
        for label, stream in self._found.items():
            unseen = _parsed(label)
            if label not in by_label and unseen is not None and stream.sequences:
                result.coverage[unseen.text] = Coverage([(0, stream.sequences[-1])])
        return by_label

    def _walk(self, writer: WriterId) -> None:
        """Go through the records of one writer in order."""
        cursor = cursor_at(self._directory, {writer: 0})
        reader = Reader(self._directory, cursor, ranks=[writer.rank])
        while records := reader.poll(limit=_LIMIT):
            self._tick()
            for record in records:
                if record.writer == writer:
                    for sample in samples(record, self._directory):
                        if isinstance(sample, Sample) and sample.key.label in self._found:
                            self._meet(sample.key, sample.seq)

    def _meet(self, key: StreamKey, seq: int) -> None:
        run = self._open.get(key)
        if seq in self._found[key.label]:
            if run is None:
                run = (seq if key in self._open else 0, seq)
            self._open[key] = (run[0], seq)
            return
        if run is not None:
            self._coverage.setdefault(key, Coverage()).add(*run)
        self._open[key] = None


def _parsed(label: str) -> StreamKey | None:
    """Read a label back; None when it was shortened with a digest, or is not ours."""
    try:
        key = StreamKey.parse(label)
    except ValueError:
        return None
    return key if key.label == label else None
