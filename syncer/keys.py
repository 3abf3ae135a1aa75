"""One key for each participant, asked for once per process of ours and kept in memory alone."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from launchhelm._clock import Clock
from syncer.api.answers import ApiError
from syncer.api.client import Client

KEY_LIFE_S: Final = 7 * 86_400.0
KEY_RENEW_S: Final = 6 * 86_400.0
YOUNG_S: Final = 15.0
"""A key that was refused and is younger than this is not made anew."""

_NO_KEYS: Final = (400, 403, 404, 405, 422)
"""Answers of a server that makes no keys, or not for this one: the first key will do."""

_ACTIONS: Final = (
    "participant.connect",
    "telemetry.write",
    "document.create",
    "document.read",
    "document.list",
    "document.update",
    "artifact.write",
    "artifact.download",
    "command.claim",
    "command.report",
)


@dataclass(slots=True)
class Keys:
    """The keys of a run's participants. Thread-safe: at worst a key is made twice.

    Methods may raise ApiError where they ask the server.
    """

    client: Client
    clock: Clock
    _known: dict[str, tuple[str | None, float]] = field(default_factory=dict)

    def token(self, participant: str, scope: Mapping[str, str], name: str = "worker") -> str | None:
        """Return the bearer for what one participant says; None means the first key.

        Args:
            participant: Its id on the server.
            scope: Of its run.
            name: Of a key that has to be made.
        """
        now = self.clock.monotonic()
        known = self._known.get(participant)
        if known is not None and now - known[1] <= KEY_RENEW_S:
            return known[0]
        try:
            token = self.client.create_key(self._body(participant, scope, name)) or None
        except ApiError as error:
            if error.status not in _NO_KEYS:
                raise
            token = None
        self._known[participant] = (token, now)
        return token

    def drop(self, participant: str) -> bool:
        """Forget a refused bearer; False when it was the first key, or has only just been made."""
        known = self._known.get(participant)
        if known is None or known[0] is None or self.clock.monotonic() - known[1] < YOUNG_S:
            return False
        self._known.pop(participant, None)
        return True

    def _body(self, participant: str, scope: Mapping[str, str], name: str) -> dict[str, object]:
        until = datetime.datetime.fromtimestamp(self.clock.wall() + KEY_LIFE_S, datetime.UTC)
        return {
            "name": name,
            "participant_id": participant,
            "expires_at": until.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "grants": [
                {
                    "effect": "allow",
                    "scope": dict(scope),
                    "actions": list(_ACTIONS),
                    "kinds": ["*"],
                    "resources": ["*"],
                    "bounds": {},
                }
            ],
        }
