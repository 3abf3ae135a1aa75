"""Speaking for a run on a server, beside its points: its document, who lives, what may be
commanded, and its end.

What is said is read from the run's own files each time; a voice, and whether a process moves, last
no longer than this process.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from launchhelm import _wording
from launchhelm._clock import Clock
from launchhelm.records import WriterId
from launchhelm.store import layout
from launchhelm.store.layout import parse_writer
from launchhelm.store.manifest import node_of
from launchhelm.views import Observer, ParticipantView, RunView
from syncer.api.answers import ApiError
from syncer.commands import Voice
from syncer.delivery import Delivery
from syncer.facts import Facts

VOICE_S: Final = 60.0
"""Commands are claimed only while the coordinator was seen to move this recently."""

_UPDATES: Final = 5


@dataclass(frozen=True, slots=True)
class Coordinator:
    """The newest rank 0, as last seen.

    Args:
        writer: Its files.
        end: As of `ParticipantView`: "" while it goes on.
        moved_at: Monotonic time at which it was last seen to move; None: never.
    """

    writer: WriterId
    end: str
    moved_at: float | None


class Presence:
    """Speaks for one run; belongs to the thread of its push, which has the lease.

    Every method that takes a delivery may raise ApiError, OSError and WireError.

    Attributes:
        voice: For whom commands may be claimed now, and with what; None for nobody. Read by any
            thread, like the next two.
        coordinator: The newest rank 0; None while none was seen.
        extensions: What the server understands beyond the API.
        silence: Why no command can have an effect now, in a few words; "" when one may.
    """

    def __init__(self, run_directory: Path, clock: Clock) -> None:
        self.voice: Voice | None = None
        self.coordinator: Coordinator | None = None
        self.extensions: frozenset[str] = frozenset()
        self.silence = "nobody has looked yet"
        self._directory = run_directory
        self._clock = clock
        self._view: RunView | None = None
        self._offered = -1
        self._described = -1

    def begin(self) -> None:
        """Begin anew under a new lease: nothing is known to have been said."""
        self._offered = self._described = -1

    def has_news(self, delivery: Delivery) -> bool:
        """Whether something is to be said to whoever gives commands, before the next heartbeat."""
        if not delivery.facts.has_coordinator:
            return False
        return self.voice is None or delivery.facts.offered != self._offered

    # --- the document -----------------------------------------------------------------------------

    def describe(self, delivery: Delivery) -> None:
        """Bring the run's document up to date, and end the sessions of processes that ended."""
        if not delivery.state.run:
            delivery.enter()  # A run without a point is a run all the same.
        facts, state = delivery.facts, delivery.state
        # Of coordinators also those that an earlier process of ours spoke for: what still waits for
        # them on the server is answered by the end of their session, and by nothing else.
        for writer in {*delivery.sessions.writers, *facts.offering}:
            if self._is_over(facts, writer):
                delivery.sessions.end(writer, epoch=state.epochs.get(str(writer), ""))
        if self.voice is not None and facts.has_ended(self.voice.writer):
            self.voice = None
        if facts.version == self._described or not state.run or state.is_closed:
            return
        if node_of(self._directory):
            return  # Part of a run: whoever has run.json speaks for the whole.
        if facts.state == "closed":
            return  # `close_run` writes all of it, once that is certain.
        _update_run(delivery)
        self._described = facts.version

    def _is_over(self, facts: Facts, writer: WriterId) -> bool:
        """Whether a process has ended, or a newer attempt has taken over from it."""
        if facts.has_ended(writer) or writer.attempt < facts.attempt:
            return True
        leader = self.coordinator
        return leader is not None and leader.writer == writer and bool(leader.end)

    def close_run(self, delivery: Delivery) -> bool:
        """End the sessions and close the run on the server; False when it cannot be closed yet."""
        view = self._look()
        for row in view.participants:
            if row.end:
                delivery.facts.note_ended(row.writer)
        if not view.state.is_closed or delivery.facts.state != "closed":
            return False
        for writer, epoch in delivery.state.epochs.items():
            known = parse_writer(writer)
            if known is not None:
                delivery.sessions.end(known, epoch=epoch)
        if not delivery.lease.still_mine(delivery.journal.name):
            return False
        _update_run(delivery)
        delivery.journal.write({"closed": True})
        return True

    # --- who lives --------------------------------------------------------------------------------

    def beat(self, delivery: Delivery) -> None:
        """Pass on the heartbeats of processes whose own moved."""
        rows = self._look().participants
        delivery.sessions.beat(rows)
        self._note_leader(delivery, _leader(rows))

    def look(self, delivery: Delivery) -> None:
        """Bring `coordinator` up to date without a word to the server."""
        self._note_leader(delivery, _leader(self._look().participants))

    def speak(self, delivery: Delivery) -> None:
        """Say who lives, and what may be commanded while the coordinator does."""
        rows = self._look().participants
        leader = _leader(rows)
        offered = delivery.facts.offered
        sessions, capabilities = delivery.sessions, delivery.capabilities
        points = {leader.writer: capabilities.safe_points(leader.writer)} if leader else {}
        sessions.beat(rows, points)
        self._note_leader(delivery, leader)  # Before a voice, which is judged by it.
        session = sessions.session(leader.writer) if leader else None
        moved_at = sessions.moved_at(leader.writer) if leader else None
        if leader is None:
            silence = "no rank 0 was seen yet"
        elif leader.end:
            silence = f"rank 0 has ended: {leader.end}"
        elif self._is_superseded(leader.writer):
            silence = "a newer attempt has begun, and its rank 0 was not seen yet"
        elif moved_at is None:
            silence = "rank 0 was not seen to move yet"
        elif session is None:
            silence = "the server has closed rank 0's session, or somebody else has opened one"
        else:
            silence = ""
        if leader is None or session is None or moved_at is None or silence:
            self.voice, self.silence = None, silence
            return
        if str(leader.writer) not in delivery.state.epochs:
            # Whoever comes after us ends this session, once its process is over.
            delivery.journal.write(
                {
                    "participants": {str(leader.writer): delivery.ids.participant(leader.writer)},
                    "epochs": {str(leader.writer): str(session["epoch"])},
                }
            )
        self.voice = Voice(
            writer=leader.writer,
            participant=delivery.ids.participant(leader.writer),
            epoch=str(session["epoch"]),
            scope=delivery.ids.scope(),
            extensions=frozenset(map(str, session.get("extensions") or ())),
            offers=capabilities.publish(leader.writer),
            until=moved_at + VOICE_S,
        )
        self._offered = offered
        self.silence = self._obstacle(self.voice)

    def _obstacle(self, voice: Voice) -> str:
        """Say why a command would have no effect although somebody is there to take it."""
        late_s = self._clock.monotonic() - (voice.until - VOICE_S)
        if late_s >= VOICE_S:
            return f"rank 0 has not moved for {_wording.duration(late_s)}"
        controls = self._look().controls
        if controls.get("control") == "off":
            return f"control is off in the run: {controls.get('why') or 'no reason reported'}"
        return "" if voice.offers else "the run offers no controls"

    def _note_leader(self, delivery: Delivery, leader: ParticipantView | None) -> None:
        told = delivery.sessions.extensions
        if told and told != frozenset(delivery.state.extensions):
            delivery.journal.later({"extensions": sorted(told)})
        self.extensions = frozenset(delivery.state.extensions)
        if leader is not None:
            moved_at = delivery.sessions.moved_at(leader.writer)
            self.coordinator = Coordinator(leader.writer, leader.end, moved_at)

    def _is_superseded(self, writer: WriterId) -> bool:
        """Whether a newer attempt has begun, which may have no record yet."""
        numbers = map(layout.parse_attempt, os.listdir(self._directory / layout.ATTEMPTS))
        return any(number is not None and number > writer.attempt for number in numbers)

    def _look(self) -> RunView:
        if self._view is None:
            self._view = RunView(self._directory, Observer(self._clock))
        self._view.refresh()
        return self._view


def _update_run(delivery: Delivery) -> None:
    for _ in range(_UPDATES):
        try:
            delivery.ids.update_run()
            return
        except ApiError as error:
            if error.status != 409 and error.code != "conflict":
                raise
    # No word about the run itself, so not one to be remembered.
    raise ApiError("conflict", "The run's document changes too often.", retryable=True)


def _leader(rows: list[ParticipantView]) -> ParticipantView | None:
    """Return the newest coordinator."""
    leaders = [row for row in rows if row.rank == 0]
    return max(leaders, key=lambda row: (row.attempt, row.started_at or 0.0), default=None)
