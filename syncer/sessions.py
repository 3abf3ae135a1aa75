"""The sessions of a run's processes on a server: one each, opened when first needed, kept alive
while the process itself moves, ended when it has ended.

Only what moved on our own clock is passed on as a heartbeat; a number in a file proves nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final  # Any: JSON values.

from launchhelm._clock import Clock
from launchhelm.records import WriterId
from launchhelm.views import SILENT_S, ParticipantView
from syncer.api.answers import ApiError
from syncer.api.client import Client
from syncer.idmap import IdMap
from syncer.keys import Keys

BEAT_S: Final = 15.0
EARLY_S: Final = 3.0
"""A little early rather than a whole interval late: callers come by every 15 s, about."""
STEP_EXTENSION: Final = "heartbeat.step"

_OF_ONE: Final = (403, 404, 410)
"""Answers that concern one participant, and keep no other from being heard of."""


@dataclass(slots=True)
class _Speaker:
    """What we know of one process and its place on the server."""

    session: dict[str, Any] | None = None
    seen: tuple[int | None, float | None] | None = None
    moved_at: float | None = None
    beat_at: float = float("-inf")
    is_fenced: bool = False
    is_over: bool = False
    safe_points: frozenset[str] = frozenset()


@dataclass(slots=True)
class Sessions:
    """Speaks for the processes of one run; belongs to one thread.

    Every method may raise ApiError where it asks the server.
    """

    client: Client
    ids: IdMap
    clock: Clock
    keys: Keys
    _speakers: dict[WriterId, _Speaker] = field(default_factory=dict)

    def token(self, writer: WriterId) -> str | None:
        """Return the bearer for what one participant says; None means the first key."""
        name = f"rank-{writer.rank}"
        return self.keys.token(self.ids.participant(writer), self.ids.scope(), name)

    def drop_token(self, writer: WriterId) -> bool:
        """Forget a refused bearer; False when it was the first key, or has only just been made."""
        return self.keys.drop(self.ids.participant(writer))

    def epoch(self, writer: WriterId) -> str:
        """Return the epoch of the session of a process, which is opened where there is none."""
        return str(self._session(writer)["epoch"])

    def session(self, writer: WriterId) -> Mapping[str, Any] | None:
        """Return the session of a process as the server told it last, None while none is live."""
        speaker = self._of(writer)
        return None if speaker.is_fenced or speaker.is_over else speaker.session

    @property
    def extensions(self) -> frozenset[str]:
        """What the server understands beyond the API, as far as a session has told."""
        told = (it.session.get("extensions") or () for it in self._speakers.values() if it.session)
        return frozenset(str(name) for names in told for name in names)

    def moved_at(self, writer: WriterId) -> float | None:
        """Return when a process was last seen to move, None when it never was."""
        return self._of(writer).moved_at

    def beat(
        self,
        rows: Iterable[ParticipantView],
        safe_points: Mapping[WriterId, Collection[str]] | None = None,
    ) -> None:
        """Pass on the heartbeats of those that moved, and end the sessions of the others that have
        ended.

        Args:
            rows: The processes as their files show them.
            safe_points: Where those that take commands take them; new ones are told at once.
        """
        now = self.clock.monotonic()
        failed: ApiError | None = None
        for row in rows:
            speaker = self._of(row.writer)
            # A record of any kind is as good a sign as the counter of the heartbeats.
            seen = (row.counter, row.last_at)
            if seen != speaker.seen:
                # What is seen for the first time may be years old.
                speaker.moved_at = now if speaker.seen is not None else None
                speaker.seen = seen
            wanted = frozenset((safe_points or {}).get(row.writer, ()))
            try:
                if row.end:
                    self.end(row.writer)
                elif self._is_due(speaker, now, wanted):
                    self._beat(row, speaker, now, wanted)
            except ApiError as error:
                if error.status not in _OF_ONE:
                    raise
                failed = failed or error
        if failed is not None:
            raise failed

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

    def _is_due(self, speaker: _Speaker, now: float, wanted: frozenset[str]) -> bool:
        moved = speaker.moved_at is not None and now - speaker.moved_at < SILENT_S
        is_time = now - speaker.beat_at >= BEAT_S - EARLY_S or not wanted <= speaker.safe_points
        return moved and not speaker.is_fenced and is_time

    def _beat(
        self, row: ParticipantView, speaker: _Speaker, now: float, wanted: frozenset[str]
    ) -> None:
        session = self._session(row.writer)
        step = row.step if STEP_EXTENSION in (session.get("extensions") or ()) else None
        is_new = not wanted <= speaker.safe_points
        try:
            speaker.session = self.client.heartbeat(
                self.ids.participant(row.writer),
                str(session["epoch"]),
                step=step,
                safe_points=sorted(wanted) if is_new else None,
                token=self.token(row.writer),
            )
            speaker.safe_points |= wanted
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
