"""The sessions of a run's processes on a server: one each, opened when first needed, kept alive
while the process itself beats, ended when it has ended.

Each participant has a key of its own, asked for once per process of ours and kept in memory alone.
Only a heartbeat that moved on our own clock is passed on; a number in a file proves nothing.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final  # Any: JSON values.

from launchhelm._clock import Clock
from launchhelm.records import WriterId
from launchhelm.views import SILENT_S, ParticipantView
from syncer.api.answers import ApiError
from syncer.api.client import Client
from syncer.idmap import IdMap

BEAT_S: Final = 15.0
KEY_LIFE_S: Final = 7 * 86_400.0
KEY_RENEW_S: Final = 6 * 86_400.0
STEP_EXTENSION: Final = "heartbeat.step"

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
class _Speaker:
    """What we know of one process and its place on the server."""

    session: dict[str, Any] | None = None
    token: str | None = None
    token_at: float | None = None
    counter: int | None = None
    moved_at: float | None = None
    beat_at: float = float("-inf")
    is_fenced: bool = False
    is_over: bool = False


@dataclass(slots=True)
class Sessions:
    """Speaks for the processes of one run; belongs to one thread.

    Every method may raise ApiError where it asks the server.
    """

    client: Client
    ids: IdMap
    clock: Clock
    _speakers: dict[WriterId, _Speaker] = field(default_factory=dict)

    def token(self, writer: WriterId) -> str | None:
        """Return the bearer for what one participant says; None means the first key."""
        speaker = self._of(writer)
        now = self.clock.monotonic()
        if speaker.token_at is None or now - speaker.token_at > KEY_RENEW_S:
            try:
                speaker.token = self.client.create_key(self._key_body(writer)) or None
            except ApiError as error:
                if error.status not in _NO_KEYS:
                    raise
                speaker.token = None
            speaker.token_at = now
        return speaker.token

    def drop_token(self, writer: WriterId) -> bool:
        """Forget a refused bearer; False when it was the first key, or has only just been made."""
        speaker = self._of(writer)
        now = self.clock.monotonic()
        if speaker.token is None or speaker.token_at is None or now - speaker.token_at < BEAT_S:
            return False
        speaker.token_at = None
        return True

    def epoch(self, writer: WriterId) -> str:
        """Return the epoch of the session of a process, which is opened where there is none."""
        return str(self._session(writer)["epoch"])

    def beat(self, rows: Iterable[ParticipantView]) -> None:
        """Pass on the heartbeats of those whose own moved, and end the sessions of the others
        that have ended."""
        now = self.clock.monotonic()
        for row in rows:
            speaker = self._of(row.writer)
            if row.counter != speaker.counter:
                # The first sight of a counter may be years after it was written.
                speaker.moved_at = now if speaker.counter is not None else None
                speaker.counter = row.counter
            if row.end:
                self.end(row.writer)
            elif self._is_due(speaker, now):
                self._beat(row, speaker, now)

    def end(self, writer: WriterId, *, epoch: str = "") -> None:
        """End the session of a process that has ended, if we hold one.

        Args:
            writer: The process.
            epoch: Of a session that an earlier process of ours may have left open.
        """
        speaker = self._of(writer)
        if speaker.session is None and epoch:
            speaker.session = {"epoch": epoch}
        if speaker.session is None or speaker.is_over:
            return
        try:
            self.client.end_session(
                self.ids.participant(writer),
                str(speaker.session["epoch"]),
                close_run="never",
                token=self.token(writer),
            )
        except ApiError as error:
            if error.status not in (403, 404, 409):
                raise
        speaker.is_over = True

    @property
    def writers(self) -> list[WriterId]:
        """Those for whom a session is open."""
        return [
            writer
            for writer, speaker in self._speakers.items()
            if speaker.session is not None and not speaker.is_over
        ]

    def _is_due(self, speaker: _Speaker, now: float) -> bool:
        moved = speaker.moved_at is not None and now - speaker.moved_at < SILENT_S
        # A little early rather than a whole interval late.
        return moved and not speaker.is_fenced and now - speaker.beat_at >= BEAT_S - 1.0

    def _beat(self, row: ParticipantView, speaker: _Speaker, now: float) -> None:
        session = self._session(row.writer)
        step = row.step if STEP_EXTENSION in (session.get("extensions") or ()) else None
        try:
            speaker.session = self.client.heartbeat(
                self.ids.participant(row.writer),
                str(session["epoch"]),
                step=step,
                token=self.token(row.writer),
            )
        except ApiError as error:
            if error.code != "conflict" and error.status != 409:
                raise
            # Somebody opened a newer session or ended this one on purpose. Points still go up.
            speaker.is_fenced = True
        speaker.beat_at = now

    def _session(self, writer: WriterId) -> dict[str, Any]:
        speaker = self._of(writer)
        if speaker.session is None:
            # The same for the same process, so that the server gives the same session again.
            instance = str(uuid.uuid5(uuid.NAMESPACE_URL, f"launchhelm-offline {writer}"))
            speaker.session = self.client.connect(
                self.ids.participant(writer), instance, token=self.token(writer)
            )
        return speaker.session

    def _of(self, writer: WriterId) -> _Speaker:
        return self._speakers.setdefault(writer, _Speaker())

    def _key_body(self, writer: WriterId) -> dict[str, Any]:
        until = datetime.datetime.fromtimestamp(self.clock.wall() + KEY_LIFE_S, datetime.UTC)
        return {
            "name": f"rank-{writer.rank}",
            "participant_id": self.ids.participant(writer),
            "expires_at": until.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "grants": [
                {
                    "effect": "allow",
                    "scope": self.ids.scope(),
                    "actions": list(_ACTIONS),
                    "kinds": ["*"],
                    "resources": ["*"],
                    "bounds": {},
                }
            ],
        }
