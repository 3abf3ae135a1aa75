"""Ingest: grouped and single. A receipt says that the points are durable and can be read.

Parsing and every refusal come first, on a snapshot and beside other requests. The transaction then
holds nothing but inserts, shared with whoever comes at the same time. What decides between new,
repeated and contradictory is decided inside it.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final  # Any: JSON values and rows.

from starlette.requests import Request
from starlette.routing import Route

from syncer.api import routes as paths
from syncer.api.document import WireError, fingerprint
from syncer.api.limits import MAX_BATCHES, PROTOCOL
from syncer.server import documents, events, normal, quarantine, sessions
from syncer.server.batch import (
    COLUMNS,
    Batch,
    Malformed,
    alike,
    decode,
    read,
    rows,
)
from syncer.server.caller import Caller, canonical_id
from syncer.server.endpoint import endpoint
from syncer.server.errors import ServerError, forbidden, validation
from syncer.server.quarantine import Shape
from syncer.server.state import Server
from syncer.server.together import Together

SCHEMA: Final = (
    """
CREATE TABLE points (
    series INTEGER NOT NULL,    -- documents.place of the stream
    time INTEGER NOT NULL,      -- microseconds since 1970
    epoch INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    flags INTEGER NOT NULL,     -- what does not fit the stream; see quarantine.py
    body TEXT NOT NULL,         -- {"coordinates":[...],"value":...} as JSON
    PRIMARY KEY (series, time, epoch, sequence)
) WITHOUT ROWID;
CREATE UNIQUE INDEX point_identity ON points(series, epoch, sequence);
CREATE TABLE batches (          -- Kept as long as the stream: a batch may come again after weeks.
    id BLOB PRIMARY KEY,
    series INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    count INTEGER NOT NULL,
    digest BLOB NOT NULL,
    fingerprint TEXT            -- where the stored points cannot tell what the batch said
) WITHOUT ROWID;
"""
    + quarantine.SCHEMA
)

_INSERT_AT_ONCE: Final = 100
"""Rows of one statement: each statement costs as much Python as several rows cost SQLite."""
_AT_ONCE: Final = 8
"""Requests in work; the bodies of more wait as they came, a tenth of what they take in pieces."""
_NAMED: Final = 10
"""Sequences that an event lists."""

_log = logging.getLogger(__name__)


def routes() -> list[Route]:
    """Return the endpoints of this module."""
    ingest = Ingest()
    return [
        Route(paths.TELEMETRY_BATCHES, endpoint(ingest.many, raw=True), methods=["POST"]),
        Route(paths.TELEMETRY, endpoint(ingest.one, raw=True), methods=["POST"]),
    ]


@dataclass(frozen=True)
class Rejected:
    """A batch that is not stored, and why."""

    batch_id: str
    stream_id: str
    code: str
    message: str

    def receipt(self) -> dict[str, Any]:
        """Return the receipt; repeating the same batch cannot help."""
        return {
            "batch_id": self.batch_id,
            "stream_id": self.stream_id,
            "status": "rejected",
            "code": self.code,
            "message": self.message,
            "retryable": False,
        }


@dataclass(frozen=True)
class Ready:
    """A batch that can be stored.

    Args:
        stream: The document of its stream.
        rows: Its points, flat.
    """

    batch: Batch
    stream: documents.Document
    rows: list[Any] = field(repr=False)

    @property
    def series(self) -> int:
        """Return the stream's number."""
        return int(self.stream["place"])

    @property
    def place(self) -> dict[str, str]:
        """Return what events say about where something happened."""
        return {
            "organization_id": self.stream["organization_id"],
            "project_id": self.stream["project_id"],
            "run_id": self.stream["run_id"],
            "stream_id": self.stream["id"],
            "participant_id": self.batch.participant_id,
        }

    def receipt(self, status: str) -> dict[str, Any]:
        """Return the receipt of a batch that is stored, now or before."""
        return {
            "batch_id": self.batch.id,
            "stream_id": self.batch.spelled,
            "status": status,
            "durability": "query_visible",
        }


class Ingest:
    """The way of telemetry into one server's database.

    It has a few threads of its own, so that heartbeats and claims never wait behind it for one.
    """

    def __init__(self) -> None:
        self._together = Together()
        self._threads = ThreadPoolExecutor(_AT_ONCE, "ingest")

    async def many(
        self, server: Server, caller: Caller, request: Request, body: bytes
    ) -> dict[str, Any]:
        """Serve grouped ingest: one receipt per batch, in order."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._many, server, caller, body)

    async def one(
        self, server: Server, caller: Caller, request: Request, body: bytes
    ) -> dict[str, Any]:
        """Serve single ingest, where a rejection is an error document."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._one, server, caller, body)

    def _many(self, server: Server, caller: Caller, body: bytes) -> dict[str, Any]:
        found = normal.read(body)
        contents = _contents(body) if found is None else found
        return {"receipts": self._store(server, prepare(server, caller, map(_parsed, contents)))}

    def _one(self, server: Server, caller: Caller, body: bytes) -> dict[str, Any]:
        batch = _parsed(_object(body))
        (receipt,) = self._store(server, prepare(server, caller, [batch]))
        if receipt["status"] == "rejected":
            status = {"not_found": 404, "conflict": 409}.get(receipt["code"], 400)
            raise ServerError(status, receipt["code"], receipt["message"])
        return receipt

    def _store(self, server: Server, prepared: list[Ready | Rejected]) -> list[dict[str, Any]]:
        def job(connection: sqlite3.Connection) -> list[dict[str, Any]]:
            return [
                each.receipt() if isinstance(each, Rejected) else store(connection, each)
                for each in prepared
            ]

        receipts = self._together.run(server.database.write, job)
        for receipt in receipts:
            if receipt["status"] == "rejected":
                _log.warning("batch %s: %s", receipt["batch_id"], receipt["message"])
        return receipts


def prepare(
    server: Server, caller: Caller, batches: Iterable[Batch | Rejected]
) -> list[Ready | Rejected]:
    """Decide which batches can be stored, and read their points; the order stays.

    Raises:
        ServerError: `forbidden` when the key may not write to one of the streams.
    """
    known: list[tuple[Batch, documents.Document] | Rejected] = []
    with server.database.read() as connection:
        streams = _Streams(connection)
        for batch in batches:
            if isinstance(batch, Rejected):
                known.append(batch)
                continue
            try:
                known.append((batch, streams.of(caller, batch)))
            except Malformed as error:
                known.append(_rejected(batch, "validation", str(error)))
            except _Unknown as error:
                known.append(_rejected(batch, "not_found", str(error)))
    return [each if isinstance(each, Rejected) else made_ready(*each) for each in known]


def store(connection: sqlite3.Connection, ready: Ready) -> dict[str, Any]:
    """Store one batch inside a transaction, and return its receipt."""
    batch = ready.batch
    earlier = connection.execute("SELECT * FROM batches WHERE id = ?", (batch.key,)).fetchone()
    if earlier is not None:
        if earlier["digest"] == batch.digest or _same(connection, ready, earlier):
            return ready.receipt("duplicate")
        return _rejected(
            batch, "conflict", "A batch of this id and other content is stored."
        ).receipt()
    fresh = ready.rows
    contradicting: list[int] = []
    if _overlaps(connection, ready):
        fresh, contradicting = _sift(connection, ready)
    _insert(connection, fresh)
    print_of = _fingerprint(batch) if contradicting else None
    connection.execute(
        "INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?)",
        (batch.key, ready.series, batch.epoch, batch.count, batch.digest, print_of),
    )
    flags = fresh[4::COLUMNS]
    if any(flags):
        marks = zip(fresh[2::COLUMNS], fresh[3::COLUMNS], flags, strict=True)
        quarantine.note(connection, ready.series, marks, ready.place)
    if contradicting:
        facts = {
            **ready.place,
            "batch_id": batch.id,
            "epoch": str(batch.epoch),
            "count": len(contradicting),
            "sequences": [str(sequence) for sequence in contradicting[:_NAMED]],
        }
        events.note(connection, "points_contradicted", facts)
    return ready.receipt("accepted")


class _Unknown(Exception):
    """There is no such stream, as far as the caller may know."""


class _Streams:
    """What one request asked the database about its streams and participants."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._streams: dict[str, documents.Document | None] = {}
        self._issued: dict[tuple[str, int], bool] = {}

    def of(self, caller: Caller, batch: Batch) -> documents.Document:
        """Return the stream of a batch that the caller may write.

        A closed run, an ended session, a superseded epoch and every revision of the stream are
        fine: late data is normal.
        """
        if batch.stream_id not in self._streams:
            self._streams[batch.stream_id] = documents.get(self._connection, batch.stream_id)
        stream = self._streams[batch.stream_id]
        if (
            stream is None
            or stream["kind"] != "stream"
            or stream["organization_id"] != caller.organization
        ):
            raise _Unknown("There is no such stream.")
        participant = batch.participant_id
        if not caller.may("telemetry.write", documents.reach(stream), participant_id=participant):
            raise forbidden("This key may not do telemetry.write there.")
        if canonical_id(str(stream["spec"].get("participant_id"))) != participant:
            raise Malformed("The stream belongs to another participant.")
        session = (participant, batch.epoch)
        if session not in self._issued:
            self._issued[session] = sessions.issued(self._connection, *session)
        if not self._issued[session]:
            raise Malformed("The participant never had a session of this epoch.")
        return stream


def _contents(body: bytes) -> Sequence[Any]:
    content = _object(body)
    if content.get("protocol", PROTOCOL) != PROTOCOL:
        raise validation(f"The protocol must be {PROTOCOL}.")
    batches = content.get("batches")
    if not isinstance(batches, list) or len(batches) > MAX_BATCHES:
        raise validation(f"batches must be a list of at most {MAX_BATCHES}.")
    return batches


def _object(body: bytes) -> dict[str, Any]:
    try:
        content = decode(body)
    except Malformed as error:
        raise validation(str(error)) from None
    if not isinstance(content, dict):
        raise validation("The body must be a JSON object.")
    return content


def made_ready(batch: Batch, stream: documents.Document) -> Ready | Rejected:
    """Read the points of a batch."""
    try:
        return Ready(batch, stream, rows(batch, int(stream["place"]), Shape.of(stream["spec"])))
    except Malformed as error:
        return _rejected(batch, "validation", str(error))


def _parsed(content: Any) -> Batch | Rejected:
    """Read the head of a batch, if it is not read; `validation` when it has no id to answer to."""
    try:
        return content if isinstance(content, Batch) else read(content)
    except Malformed as error:
        batch_id = content.get("batch_id") if isinstance(content, dict) else None
        if not isinstance(batch_id, str):
            raise validation("A batch must be an object with a batch_id.") from None
        stream_id = content.get("stream_id")
        spelled = stream_id if isinstance(stream_id, str) else ""
        return Rejected(batch_id, spelled, "validation", str(error))


def _rejected(batch: Batch, code: str, message: str) -> Rejected:
    return Rejected(batch.id, batch.spelled, code, message)


def _overlaps(connection: sqlite3.Connection, ready: Ready) -> bool:
    """Decide quickly whether some point may be there already, or comes twice."""
    sequences = ready.rows[3::COLUMNS]
    if len(set(sequences)) < len(sequences):
        return True
    found = connection.execute(
        "SELECT 1 FROM points WHERE series = ? AND epoch = ? AND sequence BETWEEN ? AND ? LIMIT 1",
        (ready.series, ready.batch.epoch, min(sequences), max(sequences)),
    ).fetchone()
    return found is not None


def _sift(connection: sqlite3.Connection, ready: Ready) -> tuple[list[Any], list[int]]:
    """Split off the points that are stored already; of those return the ones that differ."""
    fresh: list[Any] = []
    taken: dict[int, tuple[int, str]] = {}
    contradicting: list[int] = []
    for row in _each(ready.rows):
        _, time, epoch, sequence, _, body = row
        first = taken.get(sequence) or _stored(connection, ready.series, epoch, sequence)
        if first is None:
            taken[sequence] = (time, body)
            fresh += row
        elif first[0] != time or not alike(first[1], body):
            contradicting.append(sequence)
    return fresh, contradicting


def _stored(
    connection: sqlite3.Connection, series: int, epoch: int, sequence: int
) -> tuple[int, str] | None:
    row = connection.execute(
        "SELECT time, body FROM points WHERE series = ? AND epoch = ? AND sequence = ?",
        (series, epoch, sequence),
    ).fetchone()
    return (row["time"], row["body"]) if row else None


def _same(connection: sqlite3.Connection, ready: Ready, earlier: sqlite3.Row) -> bool:
    """Compare a batch with the one stored under its id by meaning, since their bytes differ."""
    head = (ready.series, ready.batch.epoch, ready.batch.count)
    if head != (earlier["series"], earlier["epoch"], earlier["count"]):
        return False
    if earlier["fingerprint"] is not None:
        return bool(earlier["fingerprint"] == _fingerprint(ready.batch))
    for _, time, epoch, sequence, _, body in _each(ready.rows):
        first = _stored(connection, ready.series, epoch, sequence)
        if first is None or first[0] != time or not alike(first[1], body):
            return False
    return True


def _fingerprint(batch: Batch) -> str:
    try:
        return fingerprint(batch.content)
    except WireError:
        return batch.digest.hex()  # It has no canonical form: its bytes have to do.


def _each(flat: list[Any]) -> Iterator[tuple[Any, ...]]:
    return zip(*[iter(flat)] * COLUMNS, strict=True)


def _insert(connection: sqlite3.Connection, flat: list[Any]) -> None:
    step = _INSERT_AT_ONCE * COLUMNS
    for start in range(0, len(flat), step):
        part = flat[start : start + step]
        connection.execute(_statement(len(part) // COLUMNS), part)


@lru_cache(maxsize=_INSERT_AT_ONCE)
def _statement(count: int) -> str:
    row = "(" + ",".join("?" * COLUMNS) + ")"
    return f"INSERT INTO points VALUES {','.join([row] * count)}"
