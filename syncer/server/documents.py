"""Documents: created, read, replaced under a revision, listed; every old revision is kept.

Scope and spec come back exactly as they came, because clients compare them; only the spelling of
the organisation's id is the caller's own.
"""

from __future__ import annotations

import base64
import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, Final  # Any: specs are JSON of any shape.

from starlette.requests import Request
from starlette.routing import Route

from launchhelm._ids import new_id
from syncer.api import routes as paths
from syncer.api import wire
from syncer.server.accounts import EVERY_ACTION
from syncer.server.caller import Caller, canonical_id
from syncer.server.endpoint import endpoint
from syncer.server.errors import conflict, forbidden, not_found, validation
from syncer.server.state import Server

SCHEMA: Final = """
CREATE TABLE documents (
    place INTEGER PRIMARY KEY AUTOINCREMENT,  -- the order of creation
    id TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL,
    organization_id TEXT NOT NULL,
    project_id TEXT NOT NULL,                 -- '' where the scope has none
    run_id TEXT NOT NULL,
    scope TEXT NOT NULL,                      -- as it came, spelling included
    revision INTEGER NOT NULL,
    spec TEXT NOT NULL,
    created_at REAL NOT NULL,
    updated_at REAL NOT NULL
);
CREATE INDEX documents_by_kind ON documents(organization_id, kind);
CREATE INDEX documents_by_project ON documents(project_id, kind);
CREATE INDEX documents_by_run ON documents(run_id, kind);
CREATE TABLE old_revisions (
    id TEXT NOT NULL,
    revision INTEGER NOT NULL,
    spec TEXT NOT NULL,
    updated_at REAL NOT NULL,
    PRIMARY KEY (id, revision)
) WITHOUT ROWID;
"""

_PAGE_BYTES: Final = wire.MAX_ANSWER_BYTES * 3 // 4
"""A page ends early here: clients refuse a longer answer."""

Document = dict[str, Any]
"""id, kind, organization_id, project_id, run_id (as stored, '' for none), scope and spec (as they
came), revision (int), created_at, updated_at (seconds)."""


def routes() -> list[Route]:
    """Return the endpoints of this module."""
    return [
        Route(paths.DOCUMENTS, endpoint(_list), methods=["GET"]),
        Route(paths.DOCUMENTS, endpoint(_create), methods=["POST"]),
        Route(paths.DOCUMENT_BATCHES, endpoint(_create_many), methods=["POST"]),
        Route(paths.DOCUMENT, endpoint(_read), methods=["GET"]),
        Route(paths.DOCUMENT, endpoint(_update), methods=["PATCH"]),
    ]


def get(connection: sqlite3.Connection, document_id: str) -> Document | None:
    """Return the newest revision of a document, in whatever organisation."""
    row = connection.execute(
        "SELECT * FROM documents WHERE id = ?", (canonical_id(document_id),)
    ).fetchone()
    return _document(row) if row else None


def find(
    connection: sqlite3.Connection, caller: Caller, document_id: str, kind: str = ""
) -> Document:
    """Return a document of the caller's organisation that the caller may read.

    Raises:
        ServerError: 404 `not_found`: it does not exist, is of another kind, or is out of reach.
    """
    document = get(connection, document_id)
    if (
        document is None
        or (kind and document["kind"] != kind)
        or document["organization_id"] != caller.organization
        or not caller.may("document.read", reach(document))
    ):
        raise not_found(f"There is no {kind or 'document'} {document_id}.")
    return document


def reach(document: Document) -> dict[str, str]:
    """Return the scope that rights are compared with: a project or run lies within itself."""
    kind = document["kind"]
    return {
        "organization_id": document["organization_id"],
        "project_id": document["id"] if kind == "project" else document["project_id"],
        "run_id": document["id"] if kind == "run" else document["run_id"],
    }


def insert(
    connection: sqlite3.Connection,
    caller: Caller,
    kind: Any,
    scope: Any,
    spec: Any,
    now: float,
    *,
    action: str = "document.create",
) -> Document:
    """Create a document inside a transaction and return it.

    Args:
        kind: A word; scope and spec: objects. All three as they came, checked here.
        action: What the caller needs the right to.

    Raises:
        ServerError: 400 for a wrong shape, 403 without the right, 404 for a project or run that
            does not exist, 409 for a project whose name is taken.
    """
    if not isinstance(kind, str) or not kind:
        raise validation("kind must be a word.")
    if not isinstance(spec, dict):
        raise validation("spec must be an object.")
    place = place_of(scope)
    caller.require(action, place)
    if canonical_id(place["organization_id"]) != caller.organization:
        raise validation("scope.organization_id is not the organisation of the path.")
    project_id, run_id = _parents(connection, caller, place)
    document = _new(kind, caller.organization, scope, spec, now)
    document.update(project_id=project_id, run_id=run_id)
    if kind == "project":
        _refuse_second_name(connection, document)
    _store(connection, document)
    return document


def of_run(
    connection: sqlite3.Connection, run_id: str, kind: str, *, after: int = 0
) -> list[Document]:
    """Return the documents of a kind in a run, in the order of creation, from a place on."""
    rows = connection.execute(
        "SELECT * FROM documents WHERE run_id = ? AND kind = ? AND place > ? ORDER BY place",
        (run_id, kind, after),
    )
    return list(map(_document, rows))


def of_organization(
    connection: sqlite3.Connection, organization_id: str, kind: str
) -> list[Document]:
    """Return all documents of a kind, in the order of creation."""
    rows = connection.execute(
        "SELECT * FROM documents WHERE organization_id = ? AND kind = ? ORDER BY place",
        (organization_id, kind),
    )
    return list(map(_document, rows))


def project_named(connection: sqlite3.Connection, organization_id: str, name: str) -> str:
    """Return the id of a project by its exact name, or ""."""
    row = connection.execute(
        "SELECT id FROM documents WHERE organization_id = ? AND kind = 'project'"
        " AND json_extract(spec, '$.name') = ?",
        (organization_id, name),
    ).fetchone()
    return str(row[0]) if row else ""


def create_project(
    connection: sqlite3.Connection, organization_id: str, name: str, now: float
) -> str:
    """Make a project on behalf of the server's operator and return its id."""
    scope = {"organization_id": organization_id}
    document = _new("project", organization_id, scope, {"name": name, "labels": {}}, now)
    _store(connection, document)
    return str(document["id"])


def replace(
    connection: sqlite3.Connection, document: Document, spec: Mapping[str, Any], now: float
) -> Document:
    """Give a document its next revision inside a transaction and return it; the old one stays."""
    updated = {**document, "spec": spec, "revision": document["revision"] + 1, "updated_at": now}
    if document["kind"] == "project":
        _refuse_second_name(connection, updated)
    connection.execute(
        "INSERT INTO old_revisions SELECT id, revision, spec, updated_at FROM documents"
        " WHERE id = ?",
        (document["id"],),
    )
    connection.execute(
        "UPDATE documents SET revision = ?, spec = ?, updated_at = ? WHERE id = ?",
        (updated["revision"], _text(spec), now, document["id"]),
    )
    return updated


def place_of(scope: Any) -> dict[str, str]:
    """Check the shape of a scope and return its three ids, '' for those that it lacks.

    Raises:
        ServerError: 400.
    """
    if not isinstance(scope, dict):
        raise validation("scope must be an object.")
    place = {name: scope.get(name) or "" for name in ("organization_id", "project_id", "run_id")}
    if not all(isinstance(value, str) for value in place.values()):
        raise validation("The ids of a scope must be texts.")
    if not place["organization_id"]:
        raise validation("scope.organization_id is missing.")
    if place["run_id"] and not place["project_id"]:
        raise validation("scope.run_id needs scope.project_id beside it.")
    return place


def envelope(document: Document, caller: Caller) -> dict[str, Any]:
    """Return a document as the caller is told."""
    return {
        "id": document["id"],
        "kind": document["kind"],
        "scope": {**document["scope"], "organization_id": caller.organization_id},
        "revision": str(document["revision"]),
        "spec": document["spec"],
        "created_at": wire.timestamp(document["created_at"]),
        "updated_at": wire.timestamp(document["updated_at"]),
    }


def _create(
    server: Server, caller: Caller, request: Request, body: dict[str, Any]
) -> dict[str, Any]:
    with server.database.write() as connection:
        document = _insert_one(connection, caller, body, server.clock.wall())
    return envelope(document, caller)


def _create_many(
    server: Server, caller: Caller, request: Request, body: dict[str, Any]
) -> dict[str, Any]:
    wanted = body.get("documents")
    limit = wire.MAX_DOCUMENTS_PER_BATCH
    if not isinstance(wanted, list) or not 1 <= len(wanted) <= limit:
        raise validation(f"documents must be a list of 1 to {limit}.")
    now = server.clock.wall()
    with server.database.write() as connection:
        made = [_insert_one(connection, caller, each, now) for each in wanted]
    return {"documents": [envelope(document, caller) for document in made]}


def _read(server: Server, caller: Caller, request: Request, body: object) -> dict[str, Any]:
    with server.database.read() as connection:
        document = find(connection, caller, request.path_params["id"])
        wanted = request.query_params.get("revision", "")
        if wanted and wanted != str(document["revision"]):
            document = _older(connection, document, _whole(wanted, "revision"))
    return envelope(document, caller)


def _update(
    server: Server, caller: Caller, request: Request, body: dict[str, Any]
) -> dict[str, Any]:
    expected, spec = body.get("expected_revision"), body.get("spec")
    if not isinstance(expected, str) or not isinstance(spec, dict):
        raise validation("expected_revision must be a decimal text, spec an object.")
    with server.database.write() as connection:
        document = find(connection, caller, request.path_params["id"])
        caller.require("document.update", reach(document))
        if expected != str(document["revision"]):
            raise conflict(f"The revision is {document['revision']}, not {expected[:20]}.")
        updated = replace(connection, document, spec, server.clock.wall())
    return envelope(updated, caller)


def _list(server: Server, caller: Caller, request: Request, body: object) -> dict[str, Any]:
    query = request.query_params
    kind, project_id = query.get("kind", ""), canonical_id(query.get("project_id", ""))
    run_id = canonical_id(query.get("run_id", ""))
    if run_id and not project_id:
        raise validation("run_id needs project_id beside it.")
    limit = _whole(query.get("limit") or str(wire.PAGE), "limit")
    if limit < 1:
        raise validation("limit must be at least 1.")
    conditions = ["organization_id = ?"]
    values: list[object] = [caller.organization]
    for column, value in (("kind", kind), ("project_id", project_id), ("run_id", run_id)):
        if value:
            conditions.append(f"{column} = ?")
            values.append(value)
    if query.get("cursor"):
        conditions.append("place > ?")
        values.append(_cursor_place(query["cursor"]))
    visible = _visible_projects(caller)
    if visible is not None:
        marks = ", ".join("?" * len(visible))
        conditions.append(f"(project_id IN ({marks}) OR kind = 'project' AND id IN ({marks}))")
        values += [*visible, *visible]
    statement = f"SELECT * FROM documents WHERE {' AND '.join(conditions)} ORDER BY place LIMIT ?"
    items: list[dict[str, Any]] = []
    cursor, size = "", 0
    with server.database.read() as connection:
        place = 0
        for row in connection.execute(statement, (*values, min(limit, wire.MAX_PAGE) + 1)):
            size += len(row["spec"].encode()) + len(row["scope"]) + 512
            if items and (len(items) == min(limit, wire.MAX_PAGE) or size > _PAGE_BYTES):
                cursor = _cursor_at(place)
                break
            place = row["place"]
            items.append(envelope(_document(row), caller))
    return {"items": items, "next_cursor": cursor}


def _new(
    kind: str, organization_id: str, scope: dict[str, Any], spec: dict[str, Any], now: float
) -> Document:
    return {
        "id": new_id(),
        "kind": kind,
        "organization_id": organization_id,
        "project_id": "",
        "run_id": "",
        "scope": scope,
        "revision": 1,
        "spec": spec,
        "created_at": now,
        "updated_at": now,
    }


def _store(connection: sqlite3.Connection, document: Document) -> None:
    row = {**document, "scope": _text(document["scope"]), "spec": _text(document["spec"])}
    columns = ", ".join(row)
    marks = ", ".join(f":{name}" for name in row)
    connection.execute(f"INSERT INTO documents ({columns}) VALUES ({marks})", row)


def _insert_one(connection: sqlite3.Connection, caller: Caller, body: Any, now: float) -> Document:
    if not isinstance(body, dict):
        raise validation("A document must be an object.")
    return insert(connection, caller, body.get("kind"), body.get("scope"), body.get("spec"), now)


def _parents(
    connection: sqlite3.Connection, caller: Caller, place: Mapping[str, str]
) -> tuple[str, str]:
    """Return the stored ids of the project and run that a scope names, which must exist."""
    if not place["project_id"]:
        return "", ""
    project = find(connection, caller, place["project_id"], "project")
    if not place["run_id"]:
        return project["id"], ""
    run = find(connection, caller, place["run_id"], "run")
    if run["project_id"] != project["id"]:
        raise not_found(f"There is no run {place['run_id']} in that project.")
    return project["id"], run["id"]


def _refuse_second_name(connection: sqlite3.Connection, project: Document) -> None:
    """Clients find a project by its name and can open neither of two."""
    name = project["spec"].get("name")
    if isinstance(name, str):
        other = project_named(connection, project["organization_id"], name)
        if other not in ("", project["id"]):
            raise conflict("A project of that name exists.")


def _older(connection: sqlite3.Connection, document: Document, revision: int) -> Document:
    row = connection.execute(
        "SELECT * FROM old_revisions WHERE id = ? AND revision = ?", (document["id"], revision)
    ).fetchone()
    if row is None:
        raise not_found(f"The document has no revision {revision}.")
    return {
        **document,
        "revision": revision,
        "spec": json.loads(row["spec"]),
        "updated_at": row["updated_at"],
    }


def _visible_projects(caller: Caller) -> Sequence[str] | None:
    """Return the projects whose documents the caller may list; None: all of the organisation."""
    grants = [grant for grant in caller.grants if {"document.list", EVERY_ACTION} & grant.actions]
    if not grants:
        raise forbidden("This key may not do document.list.")
    projects = sorted({grant.project_id for grant in grants})
    return None if "" in projects else projects


def _cursor_at(place: int) -> str:
    return base64.urlsafe_b64encode(f"place:{place}".encode()).decode().rstrip("=")


def _cursor_place(cursor: str) -> int:
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        word, _, number = base64.urlsafe_b64decode(padded).decode("ascii").partition(":")
        if word != "place":
            raise ValueError
        return _whole(number, "cursor")
    except ValueError:
        raise validation("The cursor is none of ours.") from None


def _whole(text: str, name: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise validation(f"{name} must be a whole number.")
    return int(text)


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _document(row: sqlite3.Row) -> Document:
    document = dict(row)
    document["scope"] = json.loads(row["scope"])
    document["spec"] = json.loads(row["spec"])
    return document
