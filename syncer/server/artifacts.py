"""Artifacts: declared, sent in parts to signed addresses, completed, and read at signed addresses.

The document of an artifact is for clients; what is really there, and whether it is ready, stands in
tables of its own, which no update of a document can reach.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any, Final, NamedTuple  # Any: JSON values.
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from syncer.api import routes as paths
from syncer.api.document import WireError, fingerprint
from syncer.api.limits import MAX_NAME, MAX_PART_BYTES, MAX_PARTS
from syncer.api.telemetry import timestamp
from syncer.server import documents, signing
from syncer.server.batch import integer
from syncer.server.blobs import PIECE_BYTES, Blobs, Incoming, is_sha256
from syncer.server.caller import Caller
from syncer.server.endpoint import endpoint, guarded
from syncer.server.errors import conflict, not_found, too_large, validation
from syncer.server.state import Server

SCHEMA: Final = """
CREATE TABLE artifacts (
    id TEXT PRIMARY KEY,          -- of the document
    size INTEGER NOT NULL,
    sha256 TEXT NOT NULL,
    ready INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE artifact_parts (     -- What arrived, the last one of each number.
    artifact_id TEXT NOT NULL,
    number INTEGER NOT NULL,
    size INTEGER NOT NULL,
    sha256 TEXT NOT NULL,         -- also the name of its file
    PRIMARY KEY (artifact_id, number)
) WITHOUT ROWID;
CREATE TABLE artifact_keys (      -- Idempotency-Key
    organization_id TEXT NOT NULL,
    key TEXT NOT NULL,
    fingerprint TEXT NOT NULL,    -- of the request's body
    artifact_id TEXT NOT NULL,
    PRIMARY KEY (organization_id, key)
) WITHOUT ROWID;
"""

PART: Final = "/v1/objects/{id}/parts/{number}"
OBJECT: Final = "/v1/objects/{id}"
"""Paths of signed addresses. They are ours alone: clients use what they are told."""

MAX_KEY: Final = 1024
_SHOWABLE: Final = frozenset(
    {
        *(f"image/{name}" for name in ("png", "jpeg", "webp", "gif", "avif")),
        *(f"audio/{name}" for name in ("wav", "mpeg", "ogg", "flac", "webm")),
        *(f"video/{name}" for name in ("mp4", "webm")),
    }
)
"""Media types that are told to a browser; none of them is run by it."""


class Part(NamedTuple):
    """One part that arrived."""

    number: int
    size: int
    sha256: str

    @property
    def etag(self) -> str:
        """Return the tag that the PUT was answered with."""
        return f'"{self.sha256}"'


def routes() -> list[Route]:
    """Return the endpoints of this module."""
    return [
        Route(paths.ARTIFACTS, endpoint(_create), methods=["POST"]),
        Route(paths.ARTIFACT_PARTS, endpoint(_sign_part), methods=["POST"]),
        Route(paths.ARTIFACT_COMPLETE, endpoint(_complete), methods=["POST"]),
        Route(paths.ARTIFACT_DOWNLOAD, endpoint(_sign_download), methods=["GET"]),
        Route(PART, guarded(_receive), methods=["PUT"]),
        Route(OBJECT, guarded(_send), methods=["GET"]),
    ]


def address(server: Server, request: Request, artifact_id: str) -> dict[str, str]:
    """Return where the bytes of a ready artifact can be read, and until when."""
    now = server.clock.wall()
    path = signing.sign(server.secret, "GET", OBJECT.format(id=artifact_id), now)
    return {
        "url": _origin(server, request) + path,
        "expires_at": timestamp(int(now) + signing.LIFETIME_S),
    }


def is_ready(connection: sqlite3.Connection, artifact_id: str) -> bool | None:
    """Say whether an artifact can be read; None when there is none of that id."""
    row = connection.execute("SELECT ready FROM artifacts WHERE id = ?", (artifact_id,)).fetchone()
    return bool(row["ready"]) if row else None


def _create(
    server: Server, caller: Caller, request: Request, body: dict[str, Any]
) -> dict[str, Any]:
    key = request.headers.get("idempotency-key", "")
    if len(key) > MAX_KEY:
        raise validation(f"Idempotency-Key may have {MAX_KEY} characters.")
    size, spec = _declared(body)
    try:
        said = fingerprint(body)
    except WireError as error:
        raise validation(f"The body is not acceptable: {error}") from None
    now = server.clock.wall()
    with server.database.write() as connection:
        earlier = connection.execute(
            "SELECT fingerprint, artifact_id FROM artifact_keys"
            " WHERE organization_id = ? AND key = ?",
            (caller.organization, key),
        ).fetchone()
        if earlier is not None:
            if earlier["fingerprint"] != said:
                raise conflict("This Idempotency-Key was used with another body.")
            found = documents.find(connection, caller, earlier["artifact_id"], "artifact")
            return documents.envelope(found, caller)
        made = documents.insert(
            connection, caller, "artifact", body.get("scope"), spec, now, action="artifact.write"
        )
        connection.execute(
            "INSERT INTO artifacts VALUES (?, ?, ?, 0)", (made["id"], size, spec["sha256"])
        )
        if key:
            connection.execute(
                "INSERT INTO artifact_keys VALUES (?, ?, ?, ?)",
                (caller.organization, key, said, made["id"]),
            )
    Blobs(server.artifacts).sweep(now)
    return documents.envelope(made, caller)


def _declared(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Check what a new artifact says of itself; return its size and its spec."""
    name = body.get("name")
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME:
        raise validation(f"name must be a text of 1 to {MAX_NAME} characters.")
    if not isinstance(body.get("media_type"), str):
        raise validation("media_type must be a text.")
    size = _number("size", body.get("size"))
    if not 1 <= size <= MAX_PARTS * MAX_PART_BYTES:
        raise validation("An artifact has at least one byte, and fits its parts.")
    if not is_sha256(body.get("sha256")):
        raise validation("sha256 must be 64 lower-case hex digits.")
    spec = {member: value for member, value in body.items() if member not in ("scope", "state")}
    return size, {**spec, "state": "pending"}


def _sign_part(
    server: Server, caller: Caller, request: Request, body: dict[str, Any]
) -> dict[str, Any]:
    number = body.get("number")
    if type(number) is not int or not 1 <= number <= MAX_PARTS:
        raise validation(f"number must be an integer from 1 to {MAX_PARTS}.")
    size = _number("size", body.get("size"))
    if not 1 <= size <= MAX_PART_BYTES:
        raise validation(f"A part may have 1 to {MAX_PART_BYTES:,} bytes.")
    if not is_sha256(body.get("sha256")):
        raise validation("sha256 must be 64 lower-case hex digits.")
    with server.database.read() as connection:
        artifact = _writable(connection, caller, request)
        if is_ready(connection, artifact["id"]):
            raise conflict("The artifact is ready; its parts do not change any more.")
    path = signing.sign(
        server.secret,
        "PUT",
        PART.format(id=artifact["id"], number=number),
        server.clock.wall(),
        {"size": str(size), "sha256": body["sha256"]},
    )
    return {"url": _origin(server, request) + path, "headers": {}}


async def _receive(server: Server, request: Request) -> Response:
    """Store one part that comes to a signed address."""
    query = dict(request.query_params)
    signing.check(server.secret, "PUT", _path(request), query, server.clock.wall())
    size, sha256 = int(query["size"]), query["sha256"]
    incoming = await run_in_threadpool(Incoming, Blobs(server.artifacts))
    try:
        pieces = bytearray()
        async for piece in request.stream():
            pieces += piece
            if incoming.size + len(pieces) > size:
                raise too_large(f"The part was declared with {size:,} bytes.")
            if len(pieces) >= PIECE_BYTES:
                await run_in_threadpool(incoming.add, bytes(pieces))
                pieces.clear()
        await run_in_threadpool(incoming.add, bytes(pieces))
        if (incoming.size, incoming.sha256) != (size, sha256):
            raise validation("The bytes of the part are not those that were declared.")
        part = Part(int(request.path_params["number"]), size, sha256)
        await run_in_threadpool(_keep, server, request.path_params["id"], part, incoming)
    finally:
        await run_in_threadpool(incoming.drop)
    return Response(b"{}", headers={"ETag": part.etag}, media_type="application/json")


def _keep(server: Server, artifact_id: str, part: Part, incoming: Incoming) -> None:
    incoming.keep()
    with server.database.write() as connection:
        # An artifact that became ready meanwhile stays as it is.
        connection.execute(
            "INSERT OR REPLACE INTO artifact_parts SELECT id, ?, ?, ? FROM artifacts"
            " WHERE id = ? AND NOT ready",
            (*part, artifact_id),
        )


def _complete(
    server: Server, caller: Caller, request: Request, body: dict[str, Any]
) -> dict[str, Any]:
    with server.database.read() as connection:
        document = _writable(connection, caller, request)
        artifact = connection.execute(
            "SELECT * FROM artifacts WHERE id = ?", (document["id"],)
        ).fetchone()
        parts = _parts(connection, document["id"])
    if artifact["ready"]:
        return documents.envelope(document, caller)
    named = _named(body.get("parts"))
    chosen = [part for part in parts if part.number <= len(named)]
    if [part.etag for part in chosen] != named:
        raise validation("The parts that are named are not those that arrived.")
    if sum(part.size for part in chosen) != artifact["size"]:
        raise validation("The parts together have another size than the artifact.")
    blobs = Blobs(server.artifacts)
    if not all(blobs.has(part.sha256, part.size) for part in chosen):
        raise validation("A part is not there any more; send all of them again.")
    # The digest of a single part was checked when it came.
    whole = chosen[0].sha256 if len(chosen) == 1 else blobs.sha256(p.sha256 for p in chosen)
    if whole != artifact["sha256"]:
        raise validation("The bytes together have another SHA-256 than the artifact.")
    return _finish(server, caller, document["id"], chosen)


def _finish(server: Server, caller: Caller, artifact_id: str, chosen: list[Part]) -> dict[str, Any]:
    with server.database.write() as connection:
        document = documents.get(connection, artifact_id)
        assert document is not None, "documents are never deleted"
        if not is_ready(connection, artifact_id):
            # Exactly what was verified, even if a part was replaced meanwhile.
            connection.execute("DELETE FROM artifact_parts WHERE artifact_id = ?", (artifact_id,))
            connection.executemany(
                "INSERT INTO artifact_parts VALUES (?, ?, ?, ?)",
                [(artifact_id, *part) for part in chosen],
            )
            connection.execute("UPDATE artifacts SET ready = 1 WHERE id = ?", (artifact_id,))
            spec = {**document["spec"], "state": "ready"}
            document = documents.replace(connection, document, spec, server.clock.wall())
    return documents.envelope(document, caller)


def _sign_download(
    server: Server, caller: Caller, request: Request, body: object
) -> dict[str, Any]:
    with server.database.read() as connection:
        document = documents.find(connection, caller, request.path_params["id"], "artifact")
        caller.require("artifact.download", documents.reach(document))
        if not is_ready(connection, document["id"]):
            raise conflict("The artifact is not complete.")
    return address(server, request, document["id"])


async def _send(server: Server, request: Request) -> Response:
    """Stream the bytes of an artifact; a browser may save or show them, but never runs them."""
    query = dict(request.query_params)
    signing.check(server.secret, "GET", _path(request), query, server.clock.wall())
    size, spec, pieces = await run_in_threadpool(_open, server, request.path_params["id"])
    media_type = spec.get("media_type")
    name = quote(str(spec.get("name", "")).replace("\\", "/").rpartition("/")[2], safe="")
    return StreamingResponse(
        pieces,
        media_type=media_type if media_type in _SHOWABLE else "application/octet-stream",
        headers={
            "Content-Length": str(size),
            "Content-Disposition": f"attachment; filename*=UTF-8''{name or 'artifact'}",
            "X-Content-Type-Options": "nosniff",
            "Content-Security-Policy": "sandbox; default-src 'none'",
            "Cache-Control": "no-store",
        },
    )


def _open(server: Server, artifact_id: str) -> tuple[int, dict[str, Any], Iterator[bytes]]:
    with server.database.read() as connection:
        document = documents.get(connection, artifact_id)
        if document is None or not is_ready(connection, artifact_id):
            raise not_found("There is no such artifact.")
        parts = _parts(connection, artifact_id)
    blobs = Blobs(server.artifacts)
    if not all(blobs.has(part.sha256, part.size) for part in parts):
        raise not_found("The bytes of the artifact are gone from the server's disk.")
    size = sum(part.size for part in parts)
    return size, document["spec"], blobs.pieces(part.sha256 for part in parts)


def _writable(
    connection: sqlite3.Connection, caller: Caller, request: Request
) -> documents.Document:
    """Return the document of an artifact that the caller may write, and that has bytes here."""
    document = documents.find(connection, caller, request.path_params["id"], "artifact")
    caller.require("artifact.write", documents.reach(document))
    if is_ready(connection, document["id"]) is None:
        raise conflict("That document was not made by POST artifacts; it has no bytes.")
    return document


def _parts(connection: sqlite3.Connection, artifact_id: str) -> list[Part]:
    found = connection.execute(
        "SELECT number, size, sha256 FROM artifact_parts WHERE artifact_id = ? ORDER BY number",
        (artifact_id,),
    )
    return [Part(*row) for row in found]


def _named(parts: Any) -> list[str]:
    """Return the tags of the parts that a completion names, in order from 1."""
    if not isinstance(parts, list) or not 1 <= len(parts) <= MAX_PARTS:
        raise validation(f"parts must be a list of 1 to {MAX_PARTS}.")
    tags = {}
    for part in parts:
        if not isinstance(part, dict) or not isinstance(part.get("etag"), str):
            raise validation("Each of parts must have a number and an etag.")
        tags[part.get("number")] = part["etag"]
    if any(number not in tags for number in range(1, len(parts) + 1)):
        raise validation("The numbers of parts must count from 1.")
    return [tags[number] for number in range(1, len(parts) + 1)]


def _number(name: str, value: Any) -> int:
    try:
        return integer(value)
    except (TypeError, ValueError):
        raise validation(f"{name} must be a decimal string.") from None


def _path(request: Request) -> str:
    """Return the path that was signed: the one that the router saw."""
    parameters = request.path_params
    template = PART if "number" in parameters else OBJECT
    return template.format(**parameters)


def _origin(server: Server, request: Request) -> str:
    return signing.origin(request, trust_proxy=server.trust_proxy)
