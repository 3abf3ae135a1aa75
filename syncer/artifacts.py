"""The artifacts of one run on their way to one server: in parts, resumable, in constant memory.

A point that names an artifact says nothing to a server that knows the artifact by another id. So
the artifact comes first; then `resolved` puts the server's id into the record. Media are artifacts
whose id here is `pending:` and their digest, so equal bytes go up once. A checkpoint in shards is
more than one artifact on the server and one here, see shards.py.

What is wrong with one artifact (a file that is gone or damaged, a refusal that will not change)
sets that artifact aside, with its reason, and never holds up anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from launchhelm._clock import SYSTEM_CLOCK, Clock
from launchhelm.records import Record
from launchhelm.values.media import PENDING, artifact_of, items_of, with_items
from syncer.api.answers import ApiError
from syncer.api.client import Client
from syncer.retry import pause_s
from syncer.shardlist import superseded
from syncer.shards import Checkpoint
from syncer.upload import MEDIA, Artifact, NotThere, Upload, Useless, medium

UNSEEN_S: Final = 60.0
"""A file system may show a record before the file that it names."""

MAX_STARTS: Final = 3
"""An upload that the server breaks off is begun again this often."""

PATIENCE: Final = 5
"""Failures in a row of what is not the server itself, after which somebody should be told."""


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
        self._upload: Upload | Checkpoint | None = None
        self._begun: dict[str, Checkpoint] = {}
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
            id_ = self._next()
            record = self._waiting[id_]
            try:
                self._advance(record)
            except Useless as reason:
                aside.append(SetAside(record, id_, _size(record), str(reason)))
                self._done(id_, "")
            if self._clock.monotonic() >= deadline:
                break
        return aside

    def _next(self) -> str:
        """Return our id of what is in hand; else of what is new, before more shards."""
        if self._upload is not None:
            return self._upload.artifact.id
        new = next((id_ for id_ in self._waiting if id_ not in self._begun), "")
        return new or next(iter(self._begun))

    def _advance(self, record: Record) -> None:
        """Do one piece of the upload in hand."""
        if self._upload is None:
            self._upload = self._begun.get(str(record.body.get("id"))) or self._begin(record)
        upload = self._upload
        try:
            server_id = upload.advance()
        except NotThere as reason:
            self._wait_for_file(upload, str(reason))
            return
        except ApiError as error:
            self._failed(upload, error)
            return
        self._failures, self.problem, upload.unseen_since = 0, "", None
        if server_id:
            self.sent_bytes += upload.artifact.size
            self._done(upload.artifact.id, server_id)
        elif isinstance(upload, Checkpoint) and upload.is_between:
            self._begun[upload.artifact.id] = upload
            self._upload = None

    def _begin(self, record: Record) -> Upload | Checkpoint:
        try:
            artifact = Artifact.parse(record)
        except ValueError as error:
            raise Useless(str(error)) from None
        read = medium(self._directory, artifact.sha256)
        upload = Upload(self._client, artifact, read, dict(self._scope()))
        if not record.body.get("format"):
            return upload
        return Checkpoint(upload, record.body, self._directory, self.known, self._done_beside)

    def _wait_for_file(self, upload: Upload | Checkpoint, reason: str) -> None:
        now = self._clock.monotonic()
        if upload.unseen_since is None:
            upload.unseen_since = now
        if now - upload.unseen_since >= UNSEEN_S:
            raise Useless(reason)
        self.problem = reason
        self._again_at = now + 1.0

    def _failed(self, upload: Upload | Checkpoint, error: ApiError) -> None:
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
            raise Useless(f"{error.message} ({error.status or error.code})") from error
        upload.start_over()

    def _done_beside(self, artifact: Artifact, id_: str, server_id: str) -> None:
        """Remember what belongs to the checkpoint in hand."""
        self._remember(id_, server_id)
        self.known[id_] = server_id
        for each in superseded(self.known, id_):
            del self.known[each]
        self.sent_bytes += artifact.size

    def _done(self, id_: str, server_id: str) -> None:
        self._remember(id_, server_id)
        self.known[id_] = server_id
        self._waiting.pop(id_, None)
        self._begun.pop(id_, None)
        self._upload = None
        self._again_at, self._failures, self.problem = 0.0, 0, ""


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
