"""One method for each endpoint of a v1 server. Nothing is retried here.

Every method takes `token`, a bearer to use instead of the client's own key, and raises ApiError
when the call failed, WireError when what should be sent is not acceptable.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, Final, Self  # Any: JSON values.

import httpx

from launchhelm.errors import ConfigError
from syncer.api import routes
from syncer.api.answers import ApiError
from syncer.api.connection import Connection, Trust
from syncer.api.limits import (
    MAX_DOCUMENTS_PER_BATCH,
    MAX_PAGE,
    MAX_PART_BYTES,
    PAGE,
    POINTS_PAGE,
    PROTOCOL,
)
from syncer.api.origin import check_id, check_organization, check_origin
from syncer.api.wire import encode

Json = dict[str, Any]

USER_AGENT: Final = "launchhelm-offline"
CLAIM_GRACE_S: Final = 6.0
MAX_PAGES: Final = 100_000
MAX_OBJECT_BYTES: Final = 10_000 * MAX_PART_BYTES
FIRST: Final = "1970-01-01T00:00:00Z"
LAST: Final = "2261-01-01T00:00:00Z"

_BEARER: Final = re.compile(r"[!-~]+")


class Client:
    """A v1 server as seen with one key. Thread-safe; a context manager.

    Args:
        origin: The server's address, HTTPS unless it is this host; a path prefix is allowed.
        organization: Id of the organisation; "" until `organizations` has told it.
        key: The bearer.
        ca_bundle: PEM file that replaces the system's authorities.
        verify: False believes any server. Never a default.
        timeout_s: Limit of each step of a call; a whole call takes at most five of them.
        transport: Takes the place of the network, in tests.

    Raises:
        ConfigError: The address, the organisation, the key or the CA bundle cannot be used.
    """

    def __init__(
        self,
        origin: str,
        organization: str,
        key: str,
        *,
        ca_bundle: str = "",
        verify: bool = True,
        timeout_s: float = 30.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.origin = check_origin(origin)
        self.organization = check_organization(organization) if organization else ""
        if key and _BEARER.fullmatch(key) is None:
            raise ConfigError(
                "The API key holds characters that no key has.",
                remedy="Look for spaces or line ends in LAUNCHHELM_API_KEY or its file.",
            )
        self._key = key
        self._page = MAX_PAGE
        self._connection = Connection(
            self.origin,
            Trust(ca_bundle, verify=verify),
            timeout_s=timeout_s,
            transport=transport,
        )

    def __repr__(self) -> str:
        return f"Client({self.origin!r}, {self.organization!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection."""
        self._connection.close()

    def scope(self, project_id: str = "", run_id: str = "") -> dict[str, str]:
        """Return where a document lives; empty parts are left out."""
        parts = {
            "organization_id": self.organization,
            "project_id": project_id,
            "run_id": run_id,
        }
        return {name: value for name, value in parts.items() if value}

    # Organisations and documents.

    def organizations(self, *, token: str | None = None) -> list[Json]:
        """List the organisations that the key knows."""
        return list(self._pages(routes.ORGANIZATIONS, {}, token))

    def list_documents(
        self, kind: str, project_id: str = "", run_id: str = "", *, token: str | None = None
    ) -> Iterator[Json]:
        """Yield the documents of a kind, page by page; an empty filter filters nothing."""
        filters = {"kind": kind, "project_id": project_id, "run_id": run_id}
        for item in self._pages(self._path(routes.DOCUMENTS), filters, token):
            yield _document(item)

    def document_pages(
        self, kind: str, project_id: str = "", *, cursor: str | None = None
    ) -> Iterator[tuple[str, list[Json]]]:
        """Yield pages of documents, each after the cursor that asks for it again.

        Args:
            kind: Of the documents.
            project_id: Where they live; "" means everywhere.
            cursor: Go on there, in small pages. None lists all.
        """
        filters = {"kind": kind, "project_id": project_id, "run_id": ""}
        for at, items in self._sheets(self._path(routes.DOCUMENTS), filters, cursor=cursor):
            yield at, [_document(item) for item in items]

    def create_document(
        self, kind: str, scope: Mapping[str, str], spec: Json, *, token: str | None = None
    ) -> Json:
        """Create a document. Not idempotent: a lost answer may leave one behind."""
        body = {"kind": kind, "scope": dict(scope), "spec": spec}
        return _document(self._post(self._path(routes.DOCUMENTS), body, token))

    def create_documents(
        self, documents: Sequence[Json], *, token: str | None = None
    ) -> list[Json]:
        """Create 1 to 1024 documents `{"kind", "scope", "spec"}`, all or none, in order."""
        assert 1 <= len(documents) <= MAX_DOCUMENTS_PER_BATCH
        answer = self._post(
            self._path(routes.DOCUMENT_BATCHES), {"documents": list(documents)}, token
        )
        made = answer.get("documents")
        if not isinstance(made, list) or len(made) != len(documents):
            raise _invalid("The answer does not hold one document for each that was sent.")
        return [_document(item) for item in made]

    def get_document(
        self, document_id: str, revision: str = "", *, token: str | None = None
    ) -> Json:
        """Read a document, the newest revision unless one is named."""
        path = self._path(routes.DOCUMENT, document_id)
        params = {"revision": revision} if revision else None
        return _document(self._get(path, params, token))

    def update_document(
        self, document_id: str, expected_revision: str, spec: Json, *, token: str | None = None
    ) -> Json:
        """Replace a document's whole spec; code `conflict` when the revision has moved."""
        body = {"expected_revision": expected_revision, "spec": spec}
        path = self._path(routes.DOCUMENT, document_id)
        return _document(_object(self._call("PATCH", path, token, body=encode(body))))

    def create_key(self, body: Json, *, token: str | None = None) -> str:
        """Ask for a key and return it; "" means to stay with the one in use."""
        made = self._post(self._path(routes.KEYS), body, token).get("token")
        if not made:
            return ""
        if not isinstance(made, str) or _BEARER.fullmatch(made) is None:
            raise _invalid("The server made a key that cannot be used.")
        return made

    # Sessions.

    def connect(
        self,
        participant_id: str,
        instance_id: str,
        safe_points: Sequence[str] = (),
        *,
        attempt_id: str = "",
        token: str | None = None,
    ) -> Json:
        """Open a session and return it; its `epoch` fences every earlier one."""
        body: Json = {"instance_id": instance_id, "safe_points": list(safe_points)}
        if attempt_id:
            body["attempt_id"] = attempt_id
        return _session(self._post(self._path(routes.SESSIONS, participant_id), body, token))

    def heartbeat(
        self,
        participant_id: str,
        epoch: str,
        *,
        step: int | str | None = None,
        safe_points: Sequence[str] | None = None,
        token: str | None = None,
    ) -> Json:
        """Say that a participant lives; code `conflict` means that it is fenced.

        Args:
            participant_id: The participant.
            epoch: Of its session.
            step: Last finished step; only for a server that lists `heartbeat.step`.
            safe_points: The complete set, when it has grown.
            token: Another bearer.
        """
        body: Json = {"epoch": epoch}
        if safe_points is not None:
            body["safe_points"] = list(safe_points)
        if step is not None:
            body["step"] = str(step)
        return _session(self._post(self._path(routes.HEARTBEAT, participant_id), body, token))

    def end_session(
        self,
        participant_id: str,
        epoch: str,
        close_run: str = "never",
        *,
        token: str | None = None,
    ) -> Json:
        """End a session; `when_idle` closes the run if nobody else of it is connected."""
        body = {"epoch": epoch, "close_run": close_run}
        return self._post(self._path(routes.SESSION_END, participant_id), body, token)

    def session(self, participant_id: str, *, token: str | None = None) -> Json:
        """Read where a participant's newest session stands; an extension that only our server has.

        `epoch` and `state_revision` are what a command must name.
        """
        return _session(self._get(self._path(routes.SESSION, participant_id), None, token))

    # Telemetry.

    def ingest(
        self,
        body: bytes,
        *,
        token: str | None = None,
        on_sent: Callable[[], object] = lambda: None,
    ) -> Json:
        """Send a grouped request, as `wire.request` makes it; `wire.receipts` reads the answer.

        Args:
            body: The request.
            token: Another bearer.
            on_sent: Called when the network has taken the body, and only the answer is to come.
        """
        path = self._path(routes.TELEMETRY_BATCHES)
        return _object(self._call("POST", path, token, body=body, on_sent=on_sent))

    def ingest_single(self, batch: bytes, *, token: str | None = None) -> Json:
        """Send one batch to a server that does not know grouped requests."""
        return _object(self._call("POST", self._path(routes.TELEMETRY), token, body=batch))

    def points(
        self,
        stream_id: str,
        *,
        start: str = FIRST,
        end: str = LAST,
        limit: int = POINTS_PAGE,
        order: str = "asc",
        after: tuple[str, str] | None = None,
        token: str | None = None,
    ) -> Json:
        """Read one page of a stream.

        Args:
            stream_id: The stream.
            start: First instant, included.
            end: Last instant, included.
            limit: Points at most.
            order: `asc`, `desc`, or "" for the server's own.
            after: Epoch and sequence up to which the points at `start` are skipped.
            token: Another bearer.
        """
        params = {"from": start, "to": end, "limit": str(limit)}
        if order:
            params["order"] = order
        if after is not None:
            params["after_epoch"], params["after_sequence"] = after
        return self._get(self._path(routes.POINTS, stream_id), params, token)

    def all_points(self, stream_id: str, *, token: str | None = None) -> Iterator[Json]:
        """Yield every point of a stream once, oldest first."""
        start, after = FIRST, None
        at_start: set[tuple[str, str]] = set()  # Points seen at `start`, should they come again.
        for _ in range(MAX_PAGES):
            page = self.points(stream_id, start=start, after=after, token=token)
            items = page.get("items") or []
            if not isinstance(items, list):
                raise _invalid("A page of points holds no list.")
            new = 0
            for item in items:
                observed_at, identity = _point_key(item)
                if observed_at != start:
                    start = observed_at
                    at_start.clear()
                if identity not in at_start:
                    at_start.add(identity)
                    after = identity
                    new += 1
                    yield item
            if not new or (len(items) < POINTS_PAGE and page.get("complete") is not False):
                return

    def samples(self, body: Json, *, token: str | None = None) -> Json:
        """Read samples of a stream."""
        return self._post(self._path(routes.SAMPLES), body, token)

    # Artifacts.

    def create_artifact(
        self, body: Json, idempotency_key: str, *, token: str | None = None
    ) -> Json:
        """Announce an artifact; state `ready` or `verifying` means that it is there already."""
        path = self._path(routes.ARTIFACTS)
        return _document(self._post(path, body, token, idempotency_key=idempotency_key))

    def artifact_part(
        self, artifact_id: str, number: int, size: int, sha256: str, *, token: str | None = None
    ) -> Json:
        """Return the signed `url`, and `headers`, for one part; parts count from 1."""
        body = {"number": number, "size": str(size), "sha256": sha256}
        answer = self._post(self._path(routes.ARTIFACT_PARTS, artifact_id), body, token)
        headers = answer.get("headers") or {}
        if not isinstance(answer.get("url"), str) or not _is_text_map(headers):
            raise _invalid("The answer names no address for a part.")
        return {"url": answer["url"], "headers": headers}

    def put_part(self, url: str, headers: Mapping[str, str], data: bytes | memoryview) -> str:
        """Send the bytes of one part and return its ETag, verbatim. No key is sent along."""
        return self._connection.put(url, headers, data)

    def complete_artifact(
        self, artifact_id: str, parts: Sequence[Json], *, token: str | None = None
    ) -> Json:
        """Put the parts `{"number", "etag"}` together."""
        path = self._path(routes.ARTIFACT_COMPLETE, artifact_id)
        return _document(self._post(path, {"parts": list(parts)}, token))

    def artifact_url(self, artifact_id: str, *, token: str | None = None) -> str:
        """Return the signed address of an artifact's bytes."""
        answer = self._get(self._path(routes.ARTIFACT_DOWNLOAD, artifact_id), None, token)
        if not isinstance(answer.get("url"), str):
            raise _invalid("The answer names no address.")
        return str(answer["url"])

    def download(
        self,
        url: str,
        into: BinaryIO,
        *,
        max_bytes: int = MAX_OBJECT_BYTES,
        least_rate: float = 0.0,
    ) -> int:
        """Read a signed address into a file; return the bytes written. The caller checks the
        digest. No key is sent along.

        Args:
            least_rate: Bytes in a second at which `max_bytes` may still come; 0 for any small file.
        """
        return self._connection.get(url, into, max_bytes=max_bytes, least_rate=least_rate)

    # Commands.

    def claim(
        self, participant_id: str, epoch: str, wait_ms: int = 0, *, token: str | None = None
    ) -> Json | None:
        """Wait for a command and return it, or None."""
        body: Json = {"epoch": epoch}
        if wait_ms:
            body["wait_ms"] = wait_ms
        answer = self._post(
            self._path(routes.CLAIM, participant_id),
            body,
            token,
            read_timeout_s=wait_ms / 1000 + CLAIM_GRACE_S if wait_ms else None,
        )
        command = answer.get("command")
        return None if command is None else _object(command)

    def begin(
        self, command_id: str, lease_id: str, epoch: str, *, token: str | None = None
    ) -> Json:
        """Ask for the right to apply a claimed command. Nothing may change before it is given."""
        body = {"lease_id": lease_id, "epoch": epoch}
        return self._post(self._path(routes.COMMAND_BEGIN, command_id), body, token)

    def renew(
        self, command_id: str, lease_id: str, epoch: str, *, token: str | None = None
    ) -> Json:
        """Keep the lease of a claimed command."""
        body = {"lease_id": lease_id, "epoch": epoch}
        return self._post(self._path(routes.COMMAND_RENEW, command_id), body, token)

    def result(self, command_id: str, body: Json, *, token: str | None = None) -> Json:
        """Report what became of a command."""
        return self._post(self._path(routes.COMMAND_RESULT, command_id), body, token)

    def get_command(self, command_id: str, *, token: str | None = None) -> Json:
        """Read a command."""
        return self._get(self._path(routes.COMMAND, command_id), None, token)

    def run_commands(self, run_id: str, *, token: str | None = None) -> Iterator[Json]:
        """Yield the commands of a run, oldest first; an extension that only our server has."""
        return self._pages(self._path(routes.RUN_COMMANDS, run_id), {}, token)

    def submit(self, body: Json, idempotency_key: str, *, token: str | None = None) -> Json:
        """Give a command. The same key and body again return the same command."""
        path = self._path(routes.COMMANDS)
        return self._post(path, body, token, idempotency_key=idempotency_key)

    def approve(self, command_id: str, fingerprint: str, *, token: str | None = None) -> Json:
        """Approve a command that waits for approval."""
        path = self._path(routes.COMMAND_APPROVE, command_id)
        return self._post(path, {"fingerprint": fingerprint}, token)

    def cancel(self, command_id: str, fingerprint: str, *, token: str | None = None) -> Json:
        """Cancel a command that nobody has claimed."""
        path = self._path(routes.COMMAND_CANCEL, command_id)
        return self._post(path, {"fingerprint": fingerprint}, token)

    def events(self, cursor: str = "0", limit: int = PAGE, *, token: str | None = None) -> Json:
        """Read a page of the organisation's event log."""
        params = {"cursor": cursor, "limit": str(limit)}
        return self._get(self._path(routes.EVENTS), params, token)

    # How a call is made.

    def request(
        self,
        method: str,
        path: str,
        data: Any = None,
        *,
        idempotency_key: str = "",
        params: Mapping[str, str] | None = None,
        read_timeout_s: float | None = None,
        token: str | None = None,
    ) -> Any:
        """Call any path of the API and return the decoded JSON; `data` None sends no body."""
        return self._call(
            method,
            path,
            token,
            params=params,
            body=None if data is None else encode(data),
            idempotency_key=idempotency_key,
            read_timeout_s=read_timeout_s,
        )

    def _path(self, route: str, identity: str | None = None) -> str:
        organization = check_organization(self.organization)
        if identity is None:
            return route.format(org=organization)
        return route.format(org=organization, id=check_id(identity))

    def _get(self, path: str, params: Mapping[str, str] | None, token: str | None) -> Json:
        return _object(self._call("GET", path, token, params=params))

    def _post(
        self,
        path: str,
        body: Json,
        token: str | None,
        *,
        idempotency_key: str = "",
        read_timeout_s: float | None = None,
    ) -> Json:
        return _object(
            self._call(
                "POST",
                path,
                token,
                body=encode(body),
                idempotency_key=idempotency_key,
                read_timeout_s=read_timeout_s,
            )
        )

    def _call(
        self,
        method: str,
        path: str,
        token: str | None,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        idempotency_key: str = "",
        read_timeout_s: float | None = None,
        on_sent: Callable[[], object] = lambda: None,
    ) -> Any:
        headers = {
            "X-LaunchHelm-Protocol": PROTOCOL,
            "User-Agent": USER_AGENT,
            "Content-Type": "application/json",
        }
        bearer = self._key if token is None else token
        if bearer:
            headers["Authorization"] = f"Bearer {bearer}"
        if idempotency_key:
            headers["Idempotency-Key"] = idempotency_key
        return self._connection.call(
            method,
            path,
            headers=headers,
            params=params,
            body=body,
            read_timeout_s=read_timeout_s,
            secret=bearer,
            on_sent=on_sent,
        )

    def _pages(self, path: str, filters: Mapping[str, str], token: str | None) -> Iterator[Json]:
        """Yield the items of a list."""
        for _, items in self._sheets(path, filters, token=token):
            yield from items

    def _sheets(
        self,
        path: str,
        filters: Mapping[str, str],
        *,
        cursor: str | None = None,
        token: str | None = None,
    ) -> Iterator[tuple[str, list[Json]]]:
        """Follow the cursors of a list. Larger pages are tried first, since they are fewer."""
        list_page = self._list if cursor is None else self._small
        cursor = cursor or ""
        seen = {"", cursor}
        for _ in range(MAX_PAGES):
            page = list_page(path, {**filters, "cursor": cursor}, token)
            items = page.get("items") or []
            if not isinstance(items, list):
                raise _invalid("A page holds no list.")
            yield cursor, [_object(item) for item in items]
            cursor = page.get("next_cursor") or ""
            if not isinstance(cursor, str):
                raise _invalid("A cursor is not text.")
            if cursor in seen:
                return
            seen.add(cursor)

    def _list(self, path: str, params: Mapping[str, str], token: str | None) -> Json:
        if self._page > PAGE:
            try:
                return self._get(path, {**params, "limit": str(self._page)}, token)
            except ApiError as error:
                if error.status not in (400, 422):
                    raise
        answer = self._small(path, params, token)
        self._page = PAGE  # Only now is it known that the size of the page was at fault.
        return answer

    def _small(self, path: str, params: Mapping[str, str], token: str | None) -> Json:
        return self._get(path, {**params, "limit": str(PAGE)}, token)


def _object(answer: Any) -> Json:
    if not isinstance(answer, dict):
        raise _invalid("The answer is not an object.")
    return answer


def _document(answer: Any) -> Json:
    """Check what all callers rely on, so that a strange answer is an ApiError, not a KeyError."""
    document = _object(answer)
    for name in ("id", "kind", "revision"):
        if not isinstance(document.get(name), str):
            raise _invalid(f"A document has no {name}.")
    for name in ("scope", "spec"):
        if not isinstance(document.get(name), dict):
            raise _invalid(f"A document has no {name}.")
    return document


def _session(answer: Json) -> Json:
    if not isinstance(answer.get("epoch"), str):
        raise _invalid("A session has no epoch.")
    return answer


def _point_key(item: Any) -> tuple[str, tuple[str, str]]:
    point = _object(item)
    key = point.get("observed_at"), point.get("epoch"), point.get("sequence")
    observed_at, epoch, sequence = key
    if not (isinstance(observed_at, str) and isinstance(epoch, str) and isinstance(sequence, str)):
        raise _invalid("A point has no time, epoch or sequence.")
    return observed_at, (epoch, sequence)


def _is_text_map(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(name, str) and isinstance(text, str) for name, text in value.items()
    )


def _invalid(message: str) -> ApiError:
    return ApiError("invalid_response", message)
