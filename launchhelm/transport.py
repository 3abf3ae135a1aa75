"""The calls of `Client` that need a server: a thin layer over the v1 client of the syncer.

With `_attach` the only way from the SDK to the syncer. Nothing is imported, and no connection made,
before the first request.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final  # Any: JSON values, and a transport of httpx.

from launchhelm import _optional
from launchhelm._clock import SYSTEM_CLOCK
from launchhelm.errors import ConfigError, Offline
from launchhelm.models import Document, Scope

if TYPE_CHECKING:
    from syncer.api.client import Client as V1Client

Json = dict[str, Any]

PART_BYTES: Final = 16 << 20
_READY: Final = ("ready", "verifying")
_DECISIONS: Final = ("approve", "cancel")


def check_address(base_url: str, organization_id: str) -> str:
    """Return a server's address without its last slash.

    Raises:
        ValueError: User, query or fragment in it, plain HTTP to another host than this one, or an
            organisation that is no UUID.
    """
    from syncer.api.origin import check_organization, check_origin

    try:
        check_organization(organization_id)
        return check_origin(base_url)
    except (ConfigError, TypeError) as error:
        raise ValueError(error.message if isinstance(error, ConfigError) else str(error)) from None


class ServerCalls:
    """What can be asked of one server with one key. Thread-safe.

    Every method raises LaunchHelmError: `offline` without a key or the package that speaks HTTP,
    `transport` when no answer came, both retryable; else with the server's own code. An id that is
    no UUID is a ValueError, before anything is sent. `Mapping` arguments may be records of
    `launchhelm.models` too.
    """

    base_url: str
    organization_id: str

    def __init__(
        self, base_url: str, api_key: str, organization_id: str, transport: Any, timeout: float
    ) -> None:
        self.base_url = check_address(base_url, organization_id)
        self.organization_id = organization_id
        self._given = (api_key, transport, timeout)
        self._key = api_key
        self._v1: V1Client | None = None

    def close(self) -> None:
        """Close every connection; requests in flight fail."""
        if self._v1 is not None:
            self._v1.close()
            self._v1 = None

    def abort(self) -> None:
        """Fail the requests in flight."""
        self.close()

    def _server(self) -> V1Client:
        if self._v1 is None:
            if not self._key:
                raise Offline(
                    "There is no API key, so no server can be asked.",
                    retryable=True,
                    kept="Local runs can be read without one.",
                    remedy="Set LAUNCHHELM_API_KEY, or ask for what a local run has.",
                )
            try:
                from syncer.api.client import Client
            except ImportError as error:
                raise Offline(
                    f"No server can be asked: {_optional.missing('httpx')}.",
                    retryable=True,
                    kept="Local runs can be read without it.",
                    remedy="pip install 'launchhelm-offline[sync]'",
                ) from error
            _, transport, timeout = self._given
            self._v1 = Client(
                self.base_url,
                self.organization_id,
                self._key,
                timeout_s=timeout,
                transport=transport,
            )
        return self._v1

    def request(
        self,
        method: str,
        path: str,
        data: Any = None,
        *,
        idempotency_key: str | None = None,
        params: Mapping[str, str] | None = None,
        timeout: float | None = None,
        bearer: str | None = None,
    ) -> Any:
        """Call any path of the API and return the decoded JSON.

        Args:
            path: From the origin on.
            data: JSON to send; None for no body.
            timeout: Seconds to wait for the answer.
            bearer: Instead of the key.
        """
        return self._server().request(
            method,
            path,
            data,
            idempotency_key=idempotency_key or "",
            params=params,
            read_timeout_s=timeout,
            token=bearer,
        )

    # --- keys and organisations -------------------------------------------------------------------

    def list_my_organizations(self) -> list[tuple[str, str]]:
        """Return id and name of the organisations that the key knows."""
        found = self._server().organizations()
        return [(str(each.get("id", "")), str(each.get("name", ""))) for each in found]

    def create_key(self, participant: Document) -> Json:
        """Ask for a key of one participant; `token` "" means that the key in use will do."""
        from syncer.keys import Keys

        keys = Keys(self._server(), SYSTEM_CLOCK)
        return {"token": keys.token(participant.id, participant.scope.wire()) or ""}

    def adopt(self, token: str) -> None:
        """Use another key from now on."""
        self.close()
        self._key = token

    # --- documents --------------------------------------------------------------------------------

    def create_document(self, kind: str, scope: Scope, spec: Mapping[str, Any]) -> Document:
        """Create a document. Not idempotent: a lost answer may leave one behind."""
        return Document.parse(self._server().create_document(kind, _wire(scope), _wire(spec)))

    def create_documents(
        self, documents: Sequence[tuple[str, Scope, Mapping[str, Any]]]
    ) -> list[Document]:
        """Create 1 to 1024 documents (kind, scope, spec), all or none."""
        if not 1 <= len(documents) <= 1024:
            raise ValueError(f"create_documents takes 1 to 1024 documents, got {len(documents)}.")
        made = self._server().create_documents(
            [
                {"kind": kind, "scope": _wire(scope), "spec": _wire(spec)}
                for kind, scope, spec in documents
            ]
        )
        return [Document.parse(each) for each in made]

    def get_document(self, document_id: str, *, revision: str = "") -> Document:
        """Read a document, the newest revision unless one is named."""
        return Document.parse(self._server().get_document(document_id, revision))

    def update_document(self, document: Document, spec: Mapping[str, Any]) -> Document:
        """Replace a document's spec; code `conflict` when its revision has moved."""
        answer = self._server().update_document(document.id, document.revision, _wire(spec))
        return Document.parse(answer)

    def list_documents(
        self,
        *,
        kind: str = "",
        project_id: str = "",
        run_id: str = "",
        cursor: str = "",
        limit: int = 100,
    ) -> Json:
        """Return a page `{"items": [document, ...], "next_cursor"}`; "" filters nothing."""
        filters = {"kind": kind, "project_id": project_id, "run_id": run_id, "cursor": cursor}
        params = {name: text for name, text in filters.items() if text}
        path = f"/v1/organizations/{self.organization_id}/documents"
        page: Json = self.request("GET", path, params={**params, "limit": str(limit)})
        return page

    def events(self, *, cursor: str = "0", limit: int = 100) -> Json:
        """Return a page of the organisation's events."""
        return self._server().events(cursor, limit)

    # --- sessions and telemetry -------------------------------------------------------------------

    def connect(
        self,
        participant_id: str,
        instance_id: str,
        *,
        safe_points: Sequence[str] = (),
        attempt_id: str = "",
    ) -> Json:
        """Open a session; its `epoch` fences every earlier one."""
        return self._server().connect(
            participant_id, instance_id, safe_points, attempt_id=attempt_id
        )

    def heartbeat(
        self, participant_id: str, epoch: str, *, safe_points: Sequence[str] = ()
    ) -> Json:
        """Say that a participant lives; code `conflict` means that it is fenced."""
        points = safe_points or None
        return self._server().heartbeat(participant_id, epoch, safe_points=points)

    def end_session(self, participant_id: str, epoch: str, *, close_run: str = "never") -> Json:
        """End a session; `when_idle` closes the run if nobody else of it is connected."""
        return self._server().end_session(participant_id, epoch, close_run)

    def ingest(self, batch: Mapping[str, Any]) -> Json:
        """Send one batch of points and return its receipt."""
        path = f"/v1/organizations/{self.organization_id}/telemetry"
        answer: Json = self.request("POST", path, _wire(batch))
        return answer

    def ingest_many(self, batches: Sequence[Mapping[str, Any]]) -> Json:
        """Send batches together; the answer holds a receipt for each."""
        path = f"/v1/organizations/{self.organization_id}/telemetry/batches"
        body = {"protocol": "1.0", "batches": [_wire(batch) for batch in batches]}
        answer: Json = self.request("POST", path, body)
        return answer

    def query(
        self,
        stream_id: str,
        *,
        start: str,
        end: str,
        limit: int = 1000,
        order: str = "",
        after_epoch: str = "",
        after_sequence: str = "",
    ) -> Json:
        """Return a page of a stream, `{"items": [point, ...], "limit", "complete"}`.

        Args:
            start, end: Instants in RFC 3339, both included.
            order: `asc`, `desc`, or "" for the server's own.
            after_epoch, after_sequence: Skip the points at `start` up to this one; both or neither.
        """
        if bool(after_epoch) != bool(after_sequence):
            raise ValueError("after_epoch and after_sequence come together.")
        after = (after_epoch, after_sequence) if after_epoch else None
        return self._server().points(
            stream_id, start=start, end=end, limit=limit, order=order, after=after
        )

    def read_samples(
        self, stream_id: str, *, axis: Mapping[str, Any] | None = None, select: Mapping[str, Any]
    ) -> Json:
        """Return samples of a stream along an axis, `step` by default.

        Args:
            select: `{"mode": "latest", "limit": n}`, or mode `at`, `spread` or `index`.
        """
        chosen = axis or {"kind": "coordinate", "name": "step"}
        return self._server().samples(
            {"stream_id": stream_id, "axis": _wire(chosen), "select": _wire(select)}
        )

    # --- commands ---------------------------------------------------------------------------------

    def submit_command(self, request: Mapping[str, Any], *, idempotency_key: str) -> Json:
        """Give a command; the same key and request again return the same command."""
        return self._server().submit(_wire(request), idempotency_key)

    def decide_command(self, command: Mapping[str, Any], action: str) -> Json:
        """Approve or cancel a command: `approve` or `cancel`."""
        if action not in _DECISIONS:
            raise ValueError(f"action is approve or cancel, got {action!r}.")
        decide = self._server().approve if action == "approve" else self._server().cancel
        return decide(str(command["id"]), str(command["fingerprint"]))

    def get_command(self, command_id: str) -> Json:
        """Read a command."""
        return self._server().get_command(command_id)

    def claim(self, participant_id: str, epoch: str, *, wait_ms: int = 0) -> Json | None:
        """Wait for a command; None when there is none."""
        return self._server().claim(participant_id, epoch, wait_ms)

    def begin(self, command: Mapping[str, Any]) -> Json:
        """Ask for the right to apply a claimed command; nothing may change before."""
        return self._server().begin(*_lease(command))

    def renew(self, command: Mapping[str, Any]) -> Json:
        """Keep the lease of a claimed command."""
        return self._server().renew(*_lease(command))

    def report(self, command: Mapping[str, Any], result: Mapping[str, Any]) -> Json:
        """Say what became of a command."""
        return self._server().result(str(command["id"]), _wire(result))

    # --- artifacts --------------------------------------------------------------------------------

    def upload_file(
        self,
        path: str | os.PathLike[str],
        scope: Scope,
        *,
        idempotency_key: str,
        media_type: str = "application/octet-stream",
        part_size: int = PART_BYTES,
        provenance: Mapping[str, Any] | None = None,
        purpose: str = "general",
    ) -> Document:
        """Send a file in parts; the same key and bytes again return the same artifact.

        Raises:
            OSError: The file cannot be read.
        """
        source = Path(path)
        with open(source, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            size = file.tell()
            body = {
                "scope": _wire(scope),
                "name": source.name,
                "media_type": media_type,
                "size": str(size),
                "sha256": digest,
                "provenance": _wire(provenance or {"inputs": [], "coordinates": [], "labels": {}}),
                "purpose": purpose,
            }
            server = self._server()
            document = server.create_artifact(body, idempotency_key)
            if document["spec"].get("state") in _READY:
                return Document.parse(document)
            file.seek(0)
            parts: list[Json] = []
            while data := file.read(part_size):
                part_digest = hashlib.sha256(data).hexdigest()
                number = len(parts) + 1
                place = server.artifact_part(document["id"], number, len(data), part_digest)
                etag = server.put_part(place["url"], place["headers"], data)
                parts.append({"number": number, "etag": etag})
        return Document.parse(server.complete_artifact(document["id"], parts))

    def download_artifact(self, artifact_id: str) -> bytes:
        """Return the bytes of an artifact, compared with its digest.

        Raises:
            LaunchHelmError: Also `invalid_response`: the bytes are not those of the artifact.
        """
        import io

        from syncer.api.answers import ApiError

        server = self._server()
        expected = server.get_document(artifact_id)["spec"].get("sha256")
        into = io.BytesIO()
        server.download(server.artifact_url(artifact_id), into)
        data = into.getvalue()
        if expected and hashlib.sha256(data).hexdigest() != expected:
            raise ApiError("invalid_response", f"The bytes of {artifact_id} have another digest.")
        return data

    def download_checkpoint(self, artifact_id: str, into: str | os.PathLike[str]) -> Path:
        """Bring a checkpoint into a directory, its shards too; return what `load_checkpoint` takes.

        Each file is compared with its digest. After a failure the same call gets what is missing.

        Args:
            artifact_id: The value of the metric `checkpoint`.

        Raises:
            StorageError: The directory cannot be written.
        """
        from launchhelm import _client_checkpoint

        return _client_checkpoint.download(self._server(), artifact_id, Path(into).absolute())


def _lease(command: Mapping[str, Any]) -> tuple[str, str, str]:
    return str(command["id"]), str(command["lease_id"]), str(command["epoch"])


def _wire(value: Any) -> Any:
    """Return the JSON of a record of `launchhelm.models`, or of a mapping."""
    wire = getattr(value, "wire", None)
    return wire() if callable(wire) else dict(value)
