"""Who asks: the key behind a request, and what it may do.

A key holds grants: actions within an organisation, a project or a run. Reading reaches further
than writing: a grant on a run reads the whole project of that run, because clients look for runs
and streams there. A key that is bound to a participant speaks for no other one.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from starlette.requests import HTTPConnection

from syncer.server import accounts
from syncer.server.accounts import EVERY_ACTION, Grant
from syncer.server.errors import forbidden, not_found, unauthorized
from syncer.server.state import Server

READING: Final = frozenset({"document.read", "document.list", "artifact.download"})
"""Actions that reach the whole project. Points, commands and events are read as documents are."""

FOR_ITSELF: Final = frozenset(
    {"participant.connect", "telemetry.write", "command.claim", "command.report"}
)
"""Actions of a participant: connect, heartbeat and end; ingest; claim; begin, renew and result.
Others in use: document.create, document.update, artifact.write, key.create, command.submit, and
command.approve for approve and cancel."""


@dataclass(frozen=True)
class Caller:
    """The key of one request.

    Args:
        organization_id: In the spelling of the request's path, which answers must echo.
        organization: The same as it is stored.
        project_id: The one project of all grants, else "".
        run_id: The one run of all grants, else "".
        participant_id: The participant that the key is bound to, else "".
        actions: Every action of any grant.
        key_id: The key; also its own name.
        grants: What `require` looks at.
    """

    organization_id: str
    organization: str
    project_id: str
    run_id: str
    participant_id: str
    actions: frozenset[str]
    key_id: str
    key_name: str
    grants: tuple[Grant, ...]

    @property
    def name(self) -> str:
        """Name the key for people, so that it can be found in `launchhelm serve keys list`."""
        return f"{self.key_name} (key {self.key_id[:8]})"

    def may(self, action: str, scope: Mapping[str, str], *, participant_id: str = "") -> bool:
        """Decide whether the key may do it there, for that participant where there is one.

        Args:
            scope: `organization_id`, `project_id`, `run_id`; empty or missing ones mean the place
                above. For a project or a run itself, with its own id filled in.
        """
        organization = scope.get("organization_id", "")
        if organization and canonical_id(organization) != self.organization:
            return False
        bound = self.participant_id and action in FOR_ITSELF
        if bound and participant_id and canonical_id(participant_id) != self.participant_id:
            return False
        project_id = canonical_id(scope.get("project_id", ""))
        run_id = canonical_id(scope.get("run_id", ""))
        return any(_covers(grant, action, project_id, run_id) for grant in self.grants)

    def require(self, action: str, scope: Mapping[str, str], *, participant_id: str = "") -> None:
        """Raise unless the key may do it there.

        Raises:
            ServerError: 403 `forbidden`.
        """
        if not self.may(action, scope, participant_id=participant_id):
            raise forbidden(f"This key may not do {action} there.")

    def contains(self, wanted: Grant) -> bool:
        """Say whether one of the key's own grants holds all of another one.

        Stricter than `may`: a grant on a run reads the project, but cannot give that away whole.
        """
        return any(
            (EVERY_ACTION in own.actions or wanted.actions <= own.actions)
            and own.project_id in ("", wanted.project_id)
            and own.run_id in ("", wanted.run_id)
            for own in self.grants
        )


def canonical_id(text: str) -> str:
    """Return the stored spelling of a UUID; anything else stays as it is and matches nothing."""
    try:
        return str(uuid.UUID(text)) if len(text) == 36 else text
    except ValueError:
        return text


def authenticate(server: Server, request: HTTPConnection) -> Caller:
    """Find the key of a request, and check that the path's organisation is the key's.

    Raises:
        ServerError: 401 without a valid key; 404 or 403 for another organisation.
    """
    return caller_of(
        server, request.headers.get("authorization", ""), request.path_params.get("org")
    )


def caller_of(server: Server, authorization: str, spelled: str | None = None) -> Caller:
    """Find the key that an Authorization header holds.

    Args:
        spelled: The organisation as a path has it; None where there is none to be checked.

    Raises:
        ServerError: As `authenticate`.
    """
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise unauthorized("Send a key: Authorization: Bearer <key>.")
    with server.database.read() as connection:
        key = accounts.find_key(connection, token.strip(), server.clock.wall())
        if key is None:
            raise unauthorized("The key is unknown, expired or revoked.")
        spelled = key.organization_id if spelled is None else str(spelled)
        if canonical_id(spelled) != key.organization_id:
            if accounts.organization(connection, canonical_id(spelled)) is None:
                raise not_found("There is no such organisation.")
            raise forbidden("The key belongs to another organisation.")
    return Caller(
        organization_id=spelled,
        organization=key.organization_id,
        project_id=_only(grant.project_id for grant in key.grants),
        run_id=_only(grant.run_id for grant in key.grants),
        participant_id=key.participant_id,
        actions=frozenset[str]().union(*(grant.actions for grant in key.grants)),
        key_id=key.id,
        key_name=key.name,
        grants=key.grants,
    )


def _covers(grant: Grant, action: str, project_id: str, run_id: str) -> bool:
    if not ({action, EVERY_ACTION} & grant.actions):
        return False
    if grant.project_id and grant.project_id != project_id:
        return False
    return not grant.run_id or grant.run_id == run_id or action in READING


def _only(ids: Iterable[str]) -> str:
    different = set(ids)
    return different.pop() if len(different) == 1 else ""
