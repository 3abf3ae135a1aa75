"""One run on its way to one server, so that every point arrives exactly once.

1. Durable in this order: the lease file; what the holder before us knew, read after that and
   written anew; then per request its intent (stream, records, epoch, id, digest), a listing that
   shows our lease as the newest, the request, and, with the next intent, that it was stored.
2. A kill before the intent: nothing was sent. After it, before the answer is durable: the successor
   finds the intent and sends exactly those bytes under that id first; a server keeps an id once.
3. A replaced holder that wakes up either listed before the new lease was made, so its intent was
   durable and its successor sent the same bytes; or it lists after, sees the new lease, and stops.
4. A lost or garbled answer leaves the intent: the same is sent again. An answer that comes twice or
   names strangers is no answer.
5. A stream has one batch on its way at a time, in order, so what a server has of it has no hole.
6. State that is deleted, damaged, a copy, or older than the token on the run's document: the
   server is read back stream by stream, what it has counts as sent, and a new token shuts out who
   holds the old one. A holder looks for lease and state before each request and stops without.
7. Records that cannot be read again are never replaced by a guess: their stream waits, named.

Not covered by ids alone: two syncers at work at the same moment on two copies of a directory. The
token is looked at every minute; within it, only a server that knows points by stream, epoch and
sequence (ours does) keeps them single.

The steps of 1 to 7 are in delivery.py; here are the lease and the slices. What is said beside
points is in presence.py.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final  # Any: changes of the state.

from launchhelm import _settings
from launchhelm._clock import SYSTEM_CLOCK, Clock
from launchhelm.errors import LaunchHelmError
from launchhelm.store.layout import parse_writer
from launchhelm.store.manifest import load_manifest
from syncer import retry
from syncer.api import wire
from syncer.api.answers import ApiError
from syncer.api.client import Client
from syncer.artifacts import Artifacts
from syncer.asking import Asking
from syncer.capabilities import Capabilities
from syncer.commands import Voice
from syncer.delivery import Delivery, Lost, Tally
from syncer.facts import Facts
from syncer.idmap import IdMap
from syncer.inflight import Outbox
from syncer.intake import Intake, Restriction
from syncer.keys import Keys
from syncer.lease import LEASE_S, Lease
from syncer.presence import Coordinator, Presence
from syncer.runindex import RunIndex
from syncer.sessions import Sessions
from syncer.state import Journal, State, find_place, open_journal, server_hex, write_acked

SLICE_S: Final = 1.0
SAVE_S: Final = 30.0
"""How often the cursor and acked.json are written while points are sent."""

_GONE: Final = (404, 410)


@dataclass(frozen=True, slots=True)
class Report:
    """What one slice did.

    Args:
        points: Confirmed by the server; also bytes, batches.
        refused: Values that were set aside.
        pending_hint: Points that are known to wait.
        done: Everything durable now is on the server, as far as it was asked for.
        stopped: Why it does not go on, in one sentence; "" while it does.
        error: The server's failure, where that is the reason.
        advice: What follows from it for others; `Wait` and `PauseForKey` concern the whole server.
    """

    points: int = 0
    bytes: int = 0
    batches: int = 0
    refused: int = 0
    pending_hint: int = 0
    done: bool = False
    stopped: str = ""
    error: ApiError | None = None
    advice: retry.Advice | None = None


class RunPush:
    """Sends one run to one server. One thread; nothing here raises for what a server does.

    Call `acquire`, then `step` until it is done, now and then `heartbeat`, in the end
    `finish_if_ended` and `close`.

    Args:
        run_directory: The run.
        client: The server and organisation.
        project: Id or name of the project there; "" means the run's own.
        runs: What is known of the server's runs, shared by all that use the client.
        only: Parts to send, of `intake.PARTS`; empty means all.
        since: Leave out what was recorded before, by the clock of its writer.
        clock: Whose monotonic time decides.
        progress: Called with the report of the slice so far after each request.
        retry_skipped: Forget that the server said it will not take this run; one that was deleted
            there is sent anew.
        state_root: Where the state is if the run cannot be written; the setting by default.
        lease_s: How long a lease holds without its holder.
        generation: Name of the server's line of history, where it says one.

    Attributes:
        keys: Those of the participants.
    """

    def __init__(
        self,
        run_directory: Path,
        client: Client,
        *,
        project: str = "",
        runs: RunIndex | None = None,
        only: Collection[str] = frozenset(),
        since: float | None = None,
        clock: Clock = SYSTEM_CLOCK,
        progress: Callable[[Report], object] | None = None,
        retry_skipped: bool = False,
        state_root: Path | None = None,
        lease_s: float = LEASE_S,
        generation: str = "",
    ) -> None:
        self.directory = run_directory
        self.place: Path | None = None
        self.keys = Keys(client, clock)
        self._presence = Presence(run_directory, clock)
        self._asking = Asking(clock)
        self._told: deque[str] = deque()
        self._client = client
        self._project = project
        self._runs = runs
        self._restriction = Restriction(frozenset(only), since)
        self._clock = clock
        self._progress = progress
        self._retry_skipped = retry_skipped
        self._state_root = state_root
        self._lease_s = lease_s
        self._generation = generation
        self._lease: Lease | None = None
        self._delivery: Delivery | None = None
        self._is_done = False
        self._saved_at = float("-inf")
        self._saved_cursor: str | None = None
        self._failures = 0
        self._not_before = 0.0
        self._refusal: Report | None = None

    @property
    def state(self) -> State | None:
        """What is remembered; None without the lease."""
        return self._delivery.state if self._delivery is not None else None

    @property
    def holder(self) -> str:
        """Who else has the lease, as seen at the last `acquire`."""
        return self._lease.holder if self._lease is not None else ""

    @property
    def is_replaced(self) -> bool:
        """Whether the lease is not ours any more: taken over, or given back. For any thread.

        Raises:
            OSError: The lease cannot be looked at.
        """
        lease = self._lease
        return lease is not None and not lease.still_mine()

    @property
    def problems(self) -> list[str]:
        """What of the run cannot be read, or sent, now, one sentence each."""
        return self._delivery.problems if self._delivery is not None else []

    @property
    def scope(self) -> dict[str, str]:
        """Where the run's documents are; empty before it was found on the server."""
        state = self.state
        return self._client.scope(state.project, state.run) if state and state.run else {}

    @property
    def reported(self) -> frozenset[str]:
        """Commands whose outcome the server has, as far as we remember."""
        state = self.state
        return frozenset(state.reported) if state is not None else frozenset()

    def note_reported(self, command: str) -> None:
        """Remember, from any thread, that the server has a command's outcome."""
        self._told.append(command)

    # --- the lease --------------------------------------------------------------------------------

    def acquire(self) -> bool:
        """Take or keep the lease; False while another syncer holds it.

        Raises:
            OSError, StorageError: The run, or the place of its state, cannot be used.
        """
        if self._lease is None:
            self.place = self._find_place()
            self._lease = Lease(self.place, self._clock, lease_s=self._lease_s)
        epoch = self._lease.try_acquire()
        if self._delivery is not None and self._delivery.epoch != epoch:
            self._delivery.journal.close()
            self._delivery = self._presence.voice = None
        if epoch is None:
            return False
        if self._delivery is None:
            try:
                self._delivery = self._take_over(epoch, self._lease)
            except BaseException:
                self._lease.release()
                raise
        self._lease.renew()
        return True

    def close(self) -> None:
        """Write down what waits and give the lease back. Asks the server nothing."""
        if self._delivery is not None:
            with contextlib.suppress(OSError):  # Then some is looked at once more.
                self._save(self._delivery, is_last=True)
        self._let_go()

    def _let_go(self) -> None:
        """Forget what is in memory. What is durable is taken up again under a new lease."""
        self._presence.voice = None
        delivery, self._delivery = self._delivery, None
        if delivery is not None:
            delivery.journal.close()
        if self._lease is not None:
            self._lease.release()

    def _find_place(self) -> Path:
        return find_place(
            self.directory,
            load_manifest(self.directory).run_id,
            self._client.origin,
            self._client.organization,
            state_root=self._state_root or Path(_settings.STATE_DIR.read()).expanduser(),
        )

    def _take_over(self, epoch: int, lease: Lease) -> Delivery:
        assert self.place is not None
        manifest = load_manifest(self.directory)
        client, clock = self._client, self._clock
        journal = open_journal(
            self.place,
            epoch,
            run_id=manifest.run_id,
            origin=client.origin,
            org=client.organization,
        )
        self._forgive(journal)
        self._notice_restore(journal)
        state = journal.state
        facts = Facts.read(self.directory, manifest, clock=clock)
        ids = IdMap(client, self._project, facts, runs=self._runs)
        if state.run:
            ids.seed(
                project_id=state.project,
                run_id=state.run,
                participants={
                    writer: id_
                    for text, id_ in state.participants.items()
                    if (writer := parse_writer(text)) is not None
                },
            )
        artifacts = Artifacts(
            client,
            self.directory,
            ids.scope,
            known=state.artifacts,
            remember=lambda ours, theirs: journal.write({"artifacts": {ours: theirs}}),
            clock=clock,
        )
        outbox = Outbox()
        intake = Intake(
            self.directory, state, outbox, facts, artifacts, self._restriction, clock=clock
        )
        self._is_done, self._saved_cursor = False, None
        self._presence.begin()
        return Delivery(
            directory=self.directory,
            server=server_hex(client.origin, client.organization),
            client=client,
            clock=clock,
            lease=lease,
            epoch=epoch,
            journal=journal,
            outbox=outbox,
            facts=facts,
            ids=ids,
            sessions=Sessions(client, ids, clock, self.keys),
            capabilities=Capabilities(ids, facts),
            artifacts=artifacts,
            intake=intake,
            told=self._tell,
        )

    def _notice_restore(self, journal: Journal) -> None:
        """Rely on nothing that a server confirmed before it went back to a backup."""
        known = journal.state.generation
        if self._generation and self._generation != known:
            if known:
                journal.write({"run": ""})
            journal.write({"generation": self._generation})

    def _forgive(self, journal: Journal) -> None:
        verdict = journal.state.verdict
        if verdict is not None and self._retry_skipped:
            journal.write({"verdict": None})
            if verdict.get("status") in _GONE:
                journal.write({"run": ""})

    # --- a slice ----------------------------------------------------------------------------------

    def step(self, limit_s: float = SLICE_S) -> Report:
        """Send for about so long. What was begun is finished by the next call."""
        delivery = self._delivery
        if delivery is None:
            return Report(stopped="Another syncer is at work on it.")
        verdict = delivery.state.verdict
        if verdict is not None:
            why = str(verdict.get("why"))
            advice = retry.SkipRun(int(verdict.get("status", 0)), why)
            return Report(stopped=why, advice=advice)
        if self._refusal is not None and self._clock.monotonic() < self._not_before:
            return self._refusal
        delivery.tally = Tally()
        self._refusal, self._is_done = None, False
        try:
            self._work(delivery, limit_s)
            self._failures = 0
            return self._report(delivery, stopped=delivery.held if self._is_done else "")
        except ApiError as error:
            return self._failed(delivery, error)
        except LaunchHelmError as error:
            return self._report(delivery, stopped=error.message)
        except wire.WireError as error:
            return self._report(delivery, stopped=f"A document of it cannot be sent: {error}")
        except Lost as reason:
            self._let_go()
            return self._report(delivery, stopped=str(reason))
        except OSError as error:
            # What is in memory may be ahead of what is durable.
            self._let_go()
            where = error.filename or self.place
            return self._report(delivery, stopped=f"{where}: {error.strerror or error}")

    def _work(self, delivery: Delivery, limit_s: float) -> None:
        deadline = self._clock.monotonic() + limit_s
        while True:
            delivery.lease.renew()
            is_at_end = delivery.fill(deadline)
            if delivery.ready:
                delivery.send()
            elif is_at_end and not self._send_artifacts(delivery, deadline):
                # An artifact that finds no way is a problem, and no reason to go round and round.
                artifacts = delivery.artifacts
                self._is_done = not artifacts.pending or bool(artifacts.stopped)
                break
            if self._clock.monotonic() >= deadline:
                break
        self._save(delivery, is_last=self._is_done)
        if self._is_done:
            self._presence.describe(delivery)

    def _send_artifacts(self, delivery: Delivery, deadline: float) -> bool:
        """Send some of what artifacts wait; False when there is nothing to do now."""
        if not delivery.artifacts.pending:
            return False
        now = self._clock.monotonic()
        left_s, wait_s = max(0.0, deadline - now), delivery.artifacts.due_at - now
        if wait_s > 0:
            time.sleep(min(wait_s, left_s))  # Else the caller would turn without a pause.
            return False
        delivery.send_artifacts(left_s)
        return True

    def _failed(self, delivery: Delivery, error: ApiError) -> Report:
        """Decide what follows from a failure of the server, and remember what will not change."""
        advice = retry.decide(error, tries=self._failures)
        if isinstance(advice, retry.SkipRun) and advice.status == 404 and self._is_there(delivery):
            advice = retry.Fatal(f"The server does not know what it was asked for: {error.message}")
        self._failures += 1
        change: dict[str, Any] = {"error": advice.why}
        if isinstance(advice, retry.SkipRun):
            at = self._clock.wall()
            change["verdict"] = {"status": advice.status, "why": advice.why, "at": at}
        with contextlib.suppress(OSError):  # Then it is asked once more.
            delivery.journal.later(change)
            delivery.journal.flush()
        report = self._report(delivery, stopped=advice.why, error=error, advice=advice)
        if isinstance(advice, retry.Wait | retry.PauseForKey):
            self._not_before = self._clock.monotonic() + advice.seconds
            self._refusal = Report(
                pending_hint=report.pending_hint, stopped=advice.why, error=error, advice=advice
            )
        return report

    def _is_there(self, delivery: Delivery) -> bool:
        """Whether the run's document can be read, whatever was not found."""
        try:
            return bool(delivery.state.run and self._client.get_document(delivery.state.run))
        except LaunchHelmError:
            return False

    def _tell(self) -> None:
        if self._progress is not None and self._delivery is not None:
            self._progress(self._report(self._delivery))

    def _report(
        self,
        delivery: Delivery,
        *,
        stopped: str = "",
        error: ApiError | None = None,
        advice: retry.Advice | None = None,
    ) -> Report:
        tally = delivery.tally
        return Report(
            points=tally.points,
            bytes=tally.bytes,
            batches=tally.batches,
            refused=tally.refused,
            pending_hint=delivery.pending,
            done=self._is_done and not stopped,
            stopped=stopped,
            error=error,
            advice=advice,
        )

    def _save(self, delivery: Delivery, *, is_last: bool) -> None:
        """Write down how far we are, for the next holder and for people."""
        while self._told:
            delivery.journal.later({"reported": [self._told.popleft()]})
        now = self._clock.monotonic()
        if not is_last and now - self._saved_at < SAVE_S:
            return
        cursor = delivery.cursor
        is_late = now - self._saved_at >= 2 * SAVE_S
        delivery.may_read_ahead = is_last or is_late or not delivery.pending
        if not delivery.may_read_ahead:
            return  # A slice will soon end with nothing under way.
        name = self._restriction.cursor
        is_new = cursor is not None and cursor != self._saved_cursor
        if is_new and name is not None:
            delivery.journal.later({"cursors": {name: cursor}})
            self._saved_cursor = cursor
        delivery.journal.flush()
        self._saved_at = now
        if is_new or not is_last:
            self._say_acked(delivery)

    def _say_acked(self, delivery: Delivery) -> None:
        assert self.place is not None
        state = delivery.state
        write_acked(
            self.place,
            {
                "server": self._client.origin,
                "organization": self._client.organization,
                "run": state.run,
                "points": state.points,
                "refused": state.aside_count,
                "done": self._is_done and not delivery.problems,
                "closed": state.is_closed,
                "problem": state.error,
                "at": self._clock.wall(),
            },
        )

    # --- what is said beside points ---------------------------------------------------------------

    @property
    def voice(self) -> Voice | None:
        """For whom commands may be claimed now; with the next two, see `Presence`."""
        return self._presence.voice

    @property
    def coordinator(self) -> Coordinator | None:
        """The newest rank 0."""
        return self._presence.coordinator

    @property
    def extensions(self) -> frozenset[str]:
        """What the server understands beyond the API."""
        return self._presence.extensions

    @property
    def silence(self) -> str:
        """Why no command can have an effect now."""
        return self._presence.silence

    def note_asked(self, why: str, asked_at: float | None = None) -> None:
        """Leave word, from any thread, when commands were asked for, and why not; see `Asking`."""
        delivery, place = self._delivery, self.place
        if delivery is not None and place is not None:
            self._asking.note(place, delivery.epoch, why, asked_at=asked_at)

    @property
    def has_news(self) -> bool:
        """Whether something is to be said to whoever gives commands, before the next heartbeat."""
        return self._delivery is not None and self._presence.has_news(self._delivery)

    def heartbeat(self, *, commands: bool = False) -> None:
        """Pass on the heartbeats of processes whose own moved; call it every 15 s.

        A failure is left for `step` to meet.

        Args:
            commands: Also publish what may be commanded, and keep `voice` as it should be.
        """
        delivery = self._speaking()
        if delivery is None or self._clock.monotonic() < self._not_before:
            return
        try:
            delivery.lease.renew()
            if delivery.lease.still_mine():
                say = self._presence.speak if commands else self._presence.beat
                say(delivery)
        except ApiError as error:
            self._presence.silence = retry.decide(error).why
        except (LaunchHelmError, OSError, wire.WireError) as error:
            self._presence.silence = str(error)
        if commands and self._presence.silence:
            self.note_asked(self._presence.silence)

    def look(self) -> None:
        """Bring `coordinator` up to date without a word to the server."""
        delivery = self._speaking()
        if delivery is not None:
            self._presence.look(delivery)

    def finish_if_ended(self) -> bool:
        """Close the run on the server once it is complete here and all of it is there.

        True when it is closed. A failure is left for the next call.
        """
        delivery = self._speaking()
        if delivery is None:
            return False
        if delivery.state.is_closed:
            return True
        all_sent = self._is_done and self._restriction.is_whole and not delivery.intake.held
        if not all_sent or delivery.problems or not delivery.facts.is_complete:
            return False
        try:
            if self._presence.close_run(delivery):
                self._say_acked(delivery)
                return True
        except ApiError as error:
            self._failed(delivery, error)
        except (LaunchHelmError, OSError):
            pass  # The next call tries again.
        return False

    def _speaking(self) -> Delivery | None:
        """Return the delivery of a run that is on the server and may be spoken for."""
        delivery = self._delivery
        if delivery is None or delivery.state.verdict is not None or not delivery.state.run:
            return None
        return delivery
