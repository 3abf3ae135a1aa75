"""One artifact on its way to a server, piece by piece: judged, announced, sent, put together.

After an error comes the same piece again. The bytes come from wherever the maker of an upload says;
a part of them at a time is in memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final  # Any: JSON values, and hashlib names no type.

from launchhelm.errors import StorageError
from launchhelm.records import Record
from launchhelm.store import media
from syncer.api.answers import ApiError
from syncer.api.client import Client
from syncer.api.wire import MAX_NAME, MAX_PART_BYTES, MAX_PARTS, PART_BYTES, WireError, coordinate
from syncer.naming import shortened

ARTIFACT_LABEL: Final = "launchhelm.offline.artifact"
"""In the provenance of an artifact: our id of it."""

READY: Final = ("ready", "verifying")
"""States in which a server has all bytes."""

MEDIA: Final = "media"
"""The purpose of artifacts that a rich value names."""

_MAX_KEY_PART: Final = 512

OCTETS: Final = "application/octet-stream"

Read = Callable[[int, int], bytes]
"""Returns so many bytes from an offset on, or raises `NotThere` or `Useless`."""


class Useless(Exception):
    """Nothing that we do will bring this artifact to the server."""


class NotThere(Exception):
    """The file is not there, or not whole; perhaps it is soon."""


def require_sendable(size: int) -> None:
    """Say that an artifact cannot have so many bytes.

    Raises:
        ValueError: It cannot.
    """
    if not 1 <= size <= MAX_PARTS * MAX_PART_BYTES:
        raise ValueError(f"{size:,} bytes; 1 to {MAX_PARTS * MAX_PART_BYTES:,} can be sent")


@dataclass(frozen=True, slots=True)
class Artifact:
    """What an `art` record says, or what is sent along with one.

    Args:
        id: Ours; scripts and points know it by this.
        sha256: "" while nobody has read the bytes.
        coordinates: Where it was made, as the wire has them.
        more: Labels of its provenance, beside our id.
    """

    id: str
    name: str
    media_type: str
    size: int
    sha256: str
    purpose: str
    coordinates: tuple[tuple[str, str], ...] = ()
    more: tuple[tuple[str, str], ...] = ()

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
        require_sendable(size)
        step = {} if record.step is None else {"step": str(record.step)}
        try:
            places = [(axis, coordinate(it)) for axis, it in {**step, **record.axes}.items()]
        except WireError:
            places = []  # A place is no reason to lose the bytes.
        return cls(
            id=id_,
            name=shortened(str(body.get("name") or id_), MAX_NAME),
            media_type=str(body.get("media_type") or OCTETS),
            size=size,
            sha256=sha256,
            purpose=str(body.get("purpose") or "general"),
            coordinates=tuple(places),
        )

    def key(self, run_id: str) -> str:
        """Return what makes a repeat of its upload, also by another syncer, find the document.

        The same artifact of the same run always has the same one, and a header can carry it.
        """
        head, rest = f"launchhelm.offline:{run_id}:", self.id
        if self.purpose == MEDIA:
            head, rest = f"media:{run_id}:{self.sha256}:", self.media_type
        if len(rest) > _MAX_KEY_PART or not (rest.isascii() and rest.isprintable()):
            rest = hashlib.sha256(rest.encode(errors="surrogatepass")).hexdigest()
        return head + rest

    @property
    def labels(self) -> dict[str, str]:
        """Labels of its provenance."""
        return {} if self.purpose == MEDIA else {ARTIFACT_LABEL: self.id, **dict(self.more)}

    @property
    def part_bytes(self) -> int:
        """Size of each part but the last: the usual one, larger where they would be too many."""
        return max(PART_BYTES, -(-self.size // MAX_PARTS))


@dataclass(slots=True)
class Upload:
    """One artifact on its way.

    Args:
        artifact: What it is. One whose digest is not known gets that of its bytes.
        read: Its bytes.
        scope: Where it will live on the server.
        starts: How often the server has broken it off.
        unseen_since: Since when its bytes are not there.
    """

    client: Client
    artifact: Artifact
    read: Read
    scope: dict[str, str]
    starts: int = 0
    unseen_since: float | None = None
    _digest: Any = field(default_factory=hashlib.sha256)
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
            NotThere, Useless: The file.
        """
        if not self.is_verified:
            self.verify()
        elif not self._server_id:
            return self._announce()
        elif self._sent < self.artifact.size:
            self._send_part()
        else:
            return self._complete()
        return ""

    @property
    def is_verified(self) -> bool:
        """Whether all of the file was read, and is what it should be."""
        return self._read == self.artifact.size

    def verify(self) -> None:
        """Read some of the file; at its end the digest must be the promised one."""
        data = self.read(self._read, min(PART_BYTES, self.artifact.size - self._read))
        self._digest.update(data)
        self._read += len(data)
        if self._read < self.artifact.size:
            return
        found = self._digest.hexdigest()
        if not self.artifact.sha256:
            self.artifact = replace(self.artifact, sha256=found)
        elif found != self.artifact.sha256:
            raise Useless("its file is damaged: the bytes do not have the recorded digest")

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
        data = self.read(self._sent, size)
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


def medium(run_directory: Path, sha256: str) -> Read:
    """Return how the file of a digest in media/ is read."""

    def read(offset: int, size: int) -> bytes:
        try:
            path = media.path_of(run_directory, sha256)
        except StorageError as error:
            raise Useless(error.message) from None
        try:
            # Opened anew for each piece: a handle does not survive every change of a mount.
            with open(path, "rb") as file:
                file.seek(offset)
                data = file.read(size)
        except OSError as error:
            raise NotThere(f"its file cannot be read: {error.strerror or error}") from None
        return whole(data, size)

    return read


def whole(data: bytes, size: int) -> bytes:
    """Return the bytes that were read if they are as many as were wanted.

    Raises:
        NotThere: There are fewer.
    """
    if len(data) != size:
        raise NotThere("its file is shorter than recorded")
    return data
