"""Keys that keys make: POST keys, with which each participant gets one of its own.

A key never gets a right that its maker lacks, nor a longer life. What we could not enforce
(grants on some kinds or resources only, denials, bounds) is refused rather than ignored.
"""

from __future__ import annotations

import sqlite3
from datetime import datetime
from typing import Any, Final  # Any: JSON values.

from starlette.requests import Request
from starlette.routing import Route

from syncer.api import routes as paths
from syncer.api import wire
from syncer.server import accounts, documents
from syncer.server.accounts import Grant
from syncer.server.caller import Caller, canonical_id
from syncer.server.endpoint import endpoint
from syncer.server.errors import forbidden, validation
from syncer.server.state import Server

MAX_GRANTS: Final = 16
MAX_ACTIONS: Final = 64

_EVERYTHING: Final[tuple[Any, ...]] = (None, [], ["*"])


def routes() -> list[Route]:
    """Return the endpoints of this module."""
    return [Route(paths.KEYS, endpoint(_create), methods=["POST"])]


def _create(
    server: Server, caller: Caller, request: Request, body: dict[str, Any]
) -> dict[str, Any]:
    """Make a key and return its token, once."""
    now = server.clock.wall()
    name = body.get("name") or "key"
    if not isinstance(name, str) or len(name) > wire.MAX_NAME:
        raise validation(f"name must be a text of at most {wire.MAX_NAME} characters.")
    grants = _grants(body.get("grants"), caller)
    lifetime_s = _lifetime(body.get("expires_at"), now)
    with server.database.write() as connection:
        participant_id = _participant(connection, caller, body.get("participant_id") or "")
        maker = accounts.key(connection, caller.key_id)
        if maker.expires_at is not None:
            left = maker.expires_at - now
            lifetime_s = left if lifetime_s is None else min(lifetime_s, left)
        key_id, token = accounts.create_key(
            connection,
            name=name,
            organization_id=caller.organization,
            grants=grants,
            now=now,
            participant_id=participant_id,
            maker_id=caller.key_id,
            lifetime_s=lifetime_s,
        )
    answer = {"id": key_id, "name": name, "token": token}
    if lifetime_s is not None:
        answer["expires_at"] = wire.timestamp(now + lifetime_s)
    return answer


def _grants(wanted: Any, caller: Caller) -> list[Grant]:
    if not isinstance(wanted, list) or not 1 <= len(wanted) <= MAX_GRANTS:
        raise validation(f"grants must be a list of 1 to {MAX_GRANTS}.")
    return [_grant(each, caller) for each in wanted]


def _grant(wanted: Any, caller: Caller) -> Grant:
    if not isinstance(wanted, dict):
        raise validation("A grant must be an object.")
    if wanted.get("effect", "allow") != "allow":
        raise validation("A grant can only allow.")
    if wanted.get("kinds") not in _EVERYTHING or wanted.get("resources") not in _EVERYTHING:
        raise validation('kinds and resources of a grant can only be ["*"].')
    if wanted.get("bounds"):
        raise validation("bounds of a grant can only be empty.")
    actions = wanted.get("actions")
    if (
        not isinstance(actions, list)
        or not 1 <= len(actions) <= MAX_ACTIONS
        or not all(isinstance(action, str) for action in actions)
    ):
        raise validation(f"actions must be a list of 1 to {MAX_ACTIONS} names.")
    scope = documents.place_of(wanted.get("scope"))
    grant = Grant(
        project_id=canonical_id(scope["project_id"]),
        run_id=canonical_id(scope["run_id"]),
        actions=frozenset(actions),
    )
    caller.require("key.create", scope)
    if not caller.contains(grant):
        raise forbidden("A key cannot give away a right that it does not have.")
    return grant


def _participant(connection: sqlite3.Connection, caller: Caller, wanted: Any) -> str:
    """Return whom the key is bound to: as asked for, and never another one than its maker."""
    if not isinstance(wanted, str):
        raise validation("participant_id must be a text.")
    if not wanted:
        return caller.participant_id
    participant_id: str = documents.find(connection, caller, wanted, "participant")["id"]
    if caller.participant_id not in ("", participant_id):
        raise forbidden("This key speaks for another participant.")
    return participant_id


def _lifetime(expires_at: Any, now: float) -> float | None:
    if expires_at is None:
        return None
    try:
        ends = datetime.fromisoformat(expires_at)
        left = ends.timestamp() - now if ends.tzinfo else 0.0
    except (TypeError, ValueError, OverflowError):
        raise validation("expires_at must be a time like 2026-01-01T00:00:00Z.") from None
    if left <= 0:
        raise validation(f"expires_at has passed; here it is {wire.timestamp(now)}.")
    return left
