"""Documents: created, read, replaced under a revision, listed; every old revision is kept."""

from __future__ import annotations

import json
import sqlite3
from typing import Any, Final

from starlette.routing import Route

from syncer.server.caller import Caller, canonical_id
from syncer.server.errors import not_found

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

Document = dict[str, Any]
"""id, kind, organization_id, project_id, run_id (as stored, '' for none), scope and spec (as they
came), revision (int), created_at, updated_at (seconds)."""


def routes() -> list[Route]:
    """Return the endpoints of this module."""
    return []


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


def _document(row: sqlite3.Row) -> Document:
    document = dict(row)
    document["scope"] = json.loads(row["scope"])
    document["spec"] = json.loads(row["spec"])
    return document
