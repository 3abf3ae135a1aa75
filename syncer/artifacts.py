"""The artifacts of one run on their way to one server: in parts, resumable, in constant memory.

A point that names an artifact says nothing to a server that knows the artifact by another id. So
the artifact comes first; then `resolved` puts the server's id into the record. Media are artifacts
whose id here is `pending:` and their digest, so equal bytes go up once.

What is wrong with one artifact (a file that is gone or damaged, a refusal that will not change)
sets that artifact aside, with its reason, and never holds up anything else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final  # Any: JSON values.

from launchhelm._clock import SYSTEM_CLOCK, Clock
from launchhelm.errors import StorageError
from launchhelm.records import Record
from launchhelm.store import media
from launchhelm.values.media import PENDING, artifact_of, items_of, with_items
from syncer.api.answers import ApiError
from syncer.api.client import Client
from syncer.api.wire import MAX_NAME, MAX_PART_BYTES, MAX_PARTS, PART_BYTES, WireError, coordinate
from syncer.naming import shortened
from syncer.retry import pause_s

ARTIFACT_LABEL: Final = "launchhelm.offline.artifact"
"""In the provenance of an artifact: our id of it."""

READY: Final = ("ready", "verifying")
"""States in which a server has all bytes."""

UNSEEN_S: Final = 60.0
"""A file system may show a record before the file that it names."""

MAX_STARTS: Final = 3
"""An upload that the server breaks off is begun again this often."""

PATIENCE: Final = 5
"""Failures in a row of what is not the server itself, after which somebody should be told."""

MEDIA: Final = "media"
"""The purpose of artifacts that a rich value names."""

_OCTETS: Final = "application/octet-stream"
_CHUNK: Final = media.CHUNK_BYTES


@dataclass(frozen=True, slots=True)
class Artifact:
    """What an `art` record says.

    Args:
        id: Ours; scripts and points know it by this.
        coordinates: Where it was made, as the wire has them.
    """

    id: str
    name: str
    media_type: str
    size: int
    sha256: str
    purpose: str
    coordinates: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, record: Record) -> Artifact:
        """Read a record.

        Raises:
            ValueError: It does not name a file of ours.
        """
        body = record.body
        id_, size, sha256 = body.get("id"), body.get("size"), body.get("sha256")
        if not isinstance(id_, str) or not isinstance(sha256, str) or type(size) is not int:
            raise ValueError("the record names no file")
        if not 1 <= size <= MAX_PARTS * MAX_PART_BYTES:
            raise ValueError(f"{size:,} bytes; 1 to {MAX_PARTS * MAX_PART_BYTES:,} can be sent")
        step = {} if record.step is None else {"step": str(record.step)}
        try:
            places = [(axis, coordinate(it)) for axis, it in {**step, **record.axes}.items()]
        except WireError:
            places = []  # A place is no reason to lose the bytes.
        return cls(
            id=id_,
            name=shortened(str(body.get("name") or id_), MAX_NAME),
            media_type=str(body.get("media_type") or _OCTETS),
            size=size,
            sha256=sha256,
            purpose=str(body.get("purpose") or "general"),
            coordinates=tuple(places),
        )

    def key(self, run_id: str) -> str:
        """Return what makes a repeat of its upload, also by another syncer, find the document.

        The same artifact of the same run always has the same one.
        """
        if self.purpose == MEDIA:
            return f"media:{run_id}:{self.sha256}:{self.media_type}"
        return f"launchhelm.offline:{run_id}:{self.id}"

    @property
    def labels(self) -> dict[str, str]:
        """Labels of its provenance."""
        return {} if self.purpose == MEDIA else {ARTIFACT_LABEL: self.id}

    @property
    def part_bytes(self) -> int:
        """Size of each part but the last: the usual one, larger where they would be too many."""
        return max(PART_BYTES, -(-self.size // MAX_PARTS))


def media_of(record: Record) -> Iterator[Record]:
    """Yield the media of a `rich` record as `art` records, wherever it was logged."""
    files = record.body.get("files")
    for file in files if isinstance(files, list) else ():
        if isinstance(file, dict) and isinstance(file.get("sha256"), str):
            digest = file["sha256"]
            body = {**file, "id": PENDING + digest, "name": digest, "purpose": MEDIA}
            yield replace(record, kind="art", step=None, axes={}, body=body)


@dataclass(frozen=True, slots=True)
class SetAside:
    """An artifact that this server does not get; its file stays where it is."""

    record: Record
    id: str
    size: int
    why: str


class Artifacts:
    """The artifacts of one run on one server. One thread; `step` does a slice of the work.

    Args:
        client: The server.
        run_directory: Where the files are.
        scope: Returns where artifacts of the run live on the server; asked before each upload.
        known: Server's ids by ours, as remembered; "" for one that was set aside.
        remember: Makes one more entry of `known` durable.
        clock: For waits.
    """

    def __init__(
        self,
        client: Client,
        run_directory: Path,
        scope: Callable[[], Mapping[str, str]],
        *,
        known: Mapping[str, str] | None = None,
        remember: Callable[[str, str], object] = lambda ours, theirs: None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.known: dict[str, str] = dict(known or {})
        self.problem = ""
        """Why the upload in hand does not go on now; "" while it does."""
        self.sent_bytes = 0
        """Of artifacts that came through."""
        self._client = client
        self._directory = run_directory
        self._scope = scope
        self._remember = remember
        self._clock = clock
        self._waiting: dict[str, Record] = {}
        self._upload: _Upload | None = None
        self._again_at = 0.0
        self._failures = 0

    @property
    def pending(self) -> int:
        """Artifacts that are not on the server yet."""
        return len(self._waiting)

    @property
    def stopped(self) -> str:
        """Why the upload in hand will hardly go on soon; "" while there is hope."""
        return self.problem if self._failures >= PATIENCE else ""

    @property
    def due_at(self) -> float:
        """Monotonic time from which on `step` can do something."""
        return self._again_at if self._waiting else float("inf")

    def take(self, record: Record) -> bool:
        """Queue the artifact of an `art` record; return whether it is dealt with already."""
        id_ = str(record.body.get("id"))
        if id_ in self.known:
            return True
        self._waiting.setdefault(id_, record)
        return False

    def resolved(self, record: Record) -> Record | None:
        """Return a metric or rich record with the server's ids in it, None while one is to come.

        A value that names an artifact which was set aside becomes one that no stream takes.
        """
        if record.kind == "rich":
            return self._resolved_rich(record)
        ours = [
            name
            for name, value in record.body.items()
            if type(value) is str and (value in self.known or value in self._waiting)
        ]
        if not ours:
            return record
        if any(record.body[name] in self._waiting for name in ours):
            return None
        theirs = {name: self.known[record.body[name]] or None for name in ours}
        return replace(record, body={**record.body, **theirs})

    def _resolved_rich(self, record: Record) -> Record | None:
        value = record.body.get("value")
        if not isinstance(value, dict):
            return record
        named = {artifact_of(item) for item in items_of(value)}
        if any(id_ in self._waiting for id_ in named):
            return None
        # A medium whose bytes nobody knows is set aside like one whose bytes are gone.
        theirs = {
            id_: self.known.get(id_, "")
            for id_ in named
            if id_ in self.known or id_.startswith(PENDING)
        }
        if not theirs:
            return record
        swapped = with_items(value, theirs) if all(theirs.values()) else None
        return replace(record, body={**record.body, "value": swapped})

    def step(self, limit_s: float = 1.0) -> list[SetAside]:
        """Send for so long, at least one piece; return what had to be set aside meanwhile.

        Raises:
            ApiError: What concerns the server as a whole: out of reach, busy, a refused key. The
                next call goes on where this one stopped.
        """
        aside: list[SetAside] = []
        deadline = self._clock.monotonic() + limit_s
        while self._waiting and self._clock.monotonic() >= self._again_at:
            id_, record = next(iter(self._waiting.items()))
            try:
                self._advance(record)
            except _Useless as reason:
                aside.append(SetAside(record, id_, _size(record), str(reason)))
                self._done(id_, "")
            if self._clock.monotonic() >= deadline:
                break
        return aside

    def _advance(self, record: Record) -> None:
        """Do one piece of the upload in hand."""
        if self._upload is None:
            try:
                artifact = Artifact.parse(record)
            except ValueError as error:
                raise _Useless(str(error)) from None
            self._upload = _Upload(self._client, self._directory, artifact, dict(self._scope()))
        upload = self._upload
        try:
            server_id = upload.advance()
        except _NotThere as reason:
            self._wait_for_file(upload, str(reason))
            return
        except ApiError as error:
            self._failed(upload, error)
            return
        self._failures, self.problem, upload.unseen_since = 0, "", None
        if server_id:
            self.sent_bytes += upload.artifact.size
            self._done(upload.artifact.id, server_id)

    def _wait_for_file(self, upload: _Upload, reason: str) -> None:
        now = self._clock.monotonic()
        if upload.unseen_since is None:
            upload.unseen_since = now
        if now - upload.unseen_since >= UNSEEN_S:
            raise _Useless(reason)
        self.problem = reason
        self._again_at = now + 1.0

    def _failed(self, upload: _Upload, error: ApiError) -> None:
        self.problem = error.message
        is_elsewhere = _is_elsewhere(error)
        if not is_elsewhere and _concerns_all(error):
            raise error
        if is_elsewhere:
            wait_s = pause_s(error.retry_after_s, self._failures)
            self._failures += 1
            self._again_at = self._clock.monotonic() + wait_s
            return
        upload.starts += 1
        if upload.starts >= MAX_STARTS:
            raise _Useless(f"{error.message} ({error.status or error.code})") from error
        upload.start_over()

    def _done(self, id_: str, server_id: str) -> None:
        self._remember(id_, server_id)
        self.known[id_] = server_id
        self._waiting.pop(id_, None)
        self._upload = None
        self._again_at, self._failures, self.problem = 0.0, 0, ""


class _Useless(Exception):
    """Nothing that we do will bring this artifact to the server."""


class _NotThere(Exception):
    """The file is not there, or not whole; perhaps it is soon."""


@dataclass(slots=True)
class _Upload:
    """One artifact on its way, piece by piece; after an error comes the same piece again."""

    client: Client
    directory: Path
    artifact: Artifact
    scope: dict[str, str]
    starts: int = 0
    unseen_since: float | None = None
    _digest: Any = field(default_factory=hashlib.sha256)  # Any: hashlib names no type for it.
    _read: int = 0
    _server_id: str = ""
    _sent: int = 0
    _etags: list[str] = field(default_factory=list)

    def start_over(self) -> None:
        """Announce it again; the file is known to be whole."""
        self._server_id, self._sent, self._etags = "", 0, []

    def advance(self) -> str:
        """Do one piece; return the server's id once the server has everything, else "".

        Raises:
            ApiError: The server, or the place that it named for a part, did not take it.
            _NotThere, _Useless: The file.
        """
        if self._read < self.artifact.size:
            self._verify()
        elif not self._server_id:
            return self._announce()
        elif self._sent < self.artifact.size:
            self._send_part()
        else:
            return self._complete()
        return ""

    def _verify(self) -> None:
        """Read some of the file; at its end the digest must be the promised one."""
        data = self._bytes_at(self._read, min(PART_BYTES, self.artifact.size - self._read))
        self._digest.update(data)
        self._read += len(data)
        whole = self._read == self.artifact.size
        if whole and self._digest.hexdigest() != self.artifact.sha256:
            raise _Useless("its file is damaged: the bytes do not have the recorded digest")

    def _announce(self) -> str:
        artifact = self.artifact
        body = {
            "scope": self.scope,
            "name": artifact.name,
            "media_type": artifact.media_type,
            "size": str(artifact.size),
            "sha256": artifact.sha256,
            "provenance": {
                "inputs": [],
                "coordinates": [{"axis": axis, "value": it} for axis, it in artifact.coordinates],
                "labels": artifact.labels,
            },
            "purpose": artifact.purpose,
        }
        key = artifact.key(self.scope.get("run_id", ""))
        document = self.client.create_artifact(body, key)
        self._server_id = str(document["id"])
        return self._server_id if document["spec"].get("state") in READY else ""

    def _send_part(self) -> None:
        size = min(self.artifact.part_bytes, self.artifact.size - self._sent)
        data = self._bytes_at(self._sent, size)
        number = len(self._etags) + 1
        sha256 = hashlib.sha256(data).hexdigest()
        place = self.client.artifact_part(self._server_id, number, size, sha256)
        self._etags.append(self.client.put_part(place["url"], place["headers"], data))
        self._sent += size

    def _complete(self) -> str:
        parts = [{"number": n, "etag": etag} for n, etag in enumerate(self._etags, 1)]
        document = self.client.complete_artifact(self._server_id, parts)
        said = document["spec"].get("sha256", self.artifact.sha256)
        if said != self.artifact.sha256:
            raise ApiError("validation", "The server put other bytes together.", status=400)
        return self._server_id

    def _bytes_at(self, offset: int, size: int) -> bytes:
        try:
            path = media.path_of(self.directory, self.artifact.sha256)
        except StorageError as error:
            raise _Useless(error.message) from None
        try:
            # Opened anew for each piece: a handle does not survive every change of a mount.
            with open(path, "rb") as file:
                file.seek(offset)
                data = file.read(size)
        except OSError as error:
            raise _NotThere(f"its file cannot be read: {error.strerror or error}") from None
        if len(data) != size:
            raise _NotThere("its file is shorter than recorded")
        return data


def _is_elsewhere(error: ApiError) -> bool:
    """Whether it may be another machine's bad hour, which is no reason to hold points back: that
    of the place where parts go, or of a gateway that speaks no JSON."""
    speaks_html = error.code == "http_error" and error.status in (404, 405, 409, 410, 413, 422)
    return speaks_html or error.code in ("upload_failed", "upload_uncertain")


def _concerns_all(error: ApiError) -> bool:
    """Whether an error says something of the server or the key, not of one artifact."""
    is_final = 400 <= error.status < 500 and error.status not in (401, 403, 408, 425, 429)
    return error.retryable or not is_final


def _size(record: Record) -> int:
    size = record.body.get("size")
    return size if isinstance(size, int) else 0
