"""The endpoints that say where a key belongs."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from syncer.api import routes as paths
from syncer.server import accounts
from syncer.server.caller import Caller
from syncer.server.endpoint import endpoint
from syncer.server.state import Server


def routes() -> list[Route]:
    """Return the endpoints of this module."""
    return [
        Route(paths.ORGANIZATIONS, endpoint(_list), methods=["GET"]),
        Route(paths.ME, endpoint(_me), methods=["GET"]),
    ]


def _list(server: Server, caller: Caller, request: Request, body: object) -> dict[str, Any]:
    with server.database.read() as connection:
        found = accounts.organization(connection, caller.organization)
    told = {"generation": server.generation}
    items = [{"id": found.id, "name": found.name, **told}] if found else []
    return {"items": items, "next_cursor": ""}


def _me(server: Server, caller: Caller, request: Request, body: object) -> dict[str, Any]:
    return {
        "account_id": caller.key_id,
        "organization_id": caller.organization,
        "project_id": caller.project_id,
        "run_id": caller.run_id,
        "participant_id": caller.participant_id,
        "actions": sorted(caller.actions),
    }
