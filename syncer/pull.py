"""Commands of one server on their way into one run, each applied at most once and answered.

1. Claimed: the server has given the command to us under a lease. Stopped here: the lease lapses,
   and the server, which saw no `begin`, offers it again.
2. The intent is durable: a hidden file with all that is needed to report the command. The run does
   not look at it. Stopped here: whoever holds the run next renames it to a refused intent, reports
   `rejected`, `runtime_restart`, and removes it. That is the truth whether or not `begin` came
   through, because nothing was delivered.
3. `begin` was granted; only then is the intent renamed to the run's inbox. A holder that was
   stopped in between and wakes up finds its intent gone, since a rename has one winner, and
   delivers nothing.
   - Refused `begin` (an answer of the server's own, 4xx): refused intent, `begin_rejected`.
   - No certain answer (transport, 5xx, 429): the command is read. `applying` under our lease means
     granted, `claimed` that it may be asked for again. While neither can be had nothing is
     delivered, and before the lease can lapse the intent is refused as `begin_uncertain`. The
     official client says `outcome_unknown` there; here `rejected` is known to be true, and a server
     takes any word of the participant on what it has as applying, or as unknown because the lease
     lapsed.
4. Delivered: the run's own. It takes the file by rename, records `claimed`, then `applying`, then
   one final state, and knows an id that comes again. We renew the lease and watch the records.
5. Any syncer reports what the records say, from the origin that came with the command, if the
   server has a command of that id and fingerprint: it takes any word, and anybody can write a
   file. Reporting twice is harmless. A command that the server offers again although the run knows
   it is answered with what the run says, under the new lease; it is never delivered again. Where
   the id was used by another command it is rejected: the run takes an id once.
6. The coordinator is over (end record, process gone, or silent for long after the command's own
   end) and left no final word: what it had not taken is withdrawn by rename and `rejected`; taken
   and not `applying`, it was not applied: `rejected`; else `outcome_unknown`. While a newer
   coordinator lives it has the last word instead.

A server that forgets (a restored backup) may offer what it was told the end of. What we remember of
that is answered as rejected if the run has no record of it, and never delivered.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol  # Any: JSON of the API.

from launchhelm._clock import SYSTEM_CLOCK, Clock
from launchhelm.records import Command
from launchhelm.store import layout
from launchhelm.store.layout import CommandName
from launchhelm.views import SILENT_S
from syncer import commands, retry
from syncer.api.answers import ApiError
from syncer.api.client import Client
from syncer.commandcalls import CommandCalls
from syncer.commands import Origin, Voice
from syncer.intents import Intent, Intents, Listing
from syncer.keys import Keys
from syncer.outcomes import Outcomes
from syncer.presence import Coordinator

CLAIM_S: Final = 10.0
"""How long one claim waits; rank 0 may end at any moment, and nothing can be taken back."""

RENEW_S: Final = 15.0
BEGIN_S: Final = 40.0
"""A `begin` must be certain within this time of the claim, well before its lease lapses."""

OFFER_S: Final = 5.0
"""How long an offer may be known to others and not to us."""

LATE_S: Final = 120.0
"""How long after a command's own end a silent run is waited for."""

LIST_S: Final = 1.0
QUICK_S: Final = 0.1
SLOW_S: Final = 2.0
IDLE_S: Final = 1.0
REST_S: Final = 5.0
TROUBLE_S: Final = 60.0

_log = logging.getLogger("launchhelm")


class Speaker(Protocol):
    """What is needed of the push of the same run; attributes are read from any thread."""

    keys: Keys

    @property
    def voice(self) -> Voice | None: ...
    @property
    def coordinator(self) -> Coordinator | None: ...
    @property
    def extensions(self) -> frozenset[str]: ...
    @property
    def silence(self) -> str: ...
    @property
    def is_replaced(self) -> bool:
        """Whether another syncer has taken over; looks at the lease."""
        ...

    @property
    def scope(self) -> Mapping[str, str]:
        """Of the run on the server; empty before it is there."""
        ...

    @property
    def reported(self) -> frozenset[str]:
        """Commands whose outcome the server has."""
        ...

    def note_reported(self, command: str) -> None:
        """Remember one more."""
        ...

    def note_asked(self, why: str, asked_at: float | None = None) -> None:
        """Leave word when commands were asked for, and why not."""
        ...

    def look(self) -> None:
        """Bring `coordinator` up to date; for the thread of the push alone."""
        ...


@dataclass(slots=True)
class _Hand:
    """A command that was delivered and has no outcome yet; it may act until `until`, our clock."""

    origin: Origin
    since: float
    until: float
    renewed_at: float


class RunPull:
    """Claims the commands of one run and reports what became of them.

    `start` lets a thread do all of it; without one, `settle` reports what is known. Everything but
    the waiting for a claim happens under `_busy`.

    Args:
        run_directory: The run.
        client: The server.
        push: Of the same run, with the lease.
        server: Its name, of `state.server_hex`.
        clock: Whose monotonic time decides.
        wait: Sleeps for so many seconds or until stopped; tests turn their clock instead.
    """

    def __init__(
        self,
        run_directory: Path,
        client: Client,
        push: Speaker,
        server: str,
        *,
        clock: Clock = SYSTEM_CLOCK,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        self.trouble = ""
        self.asked_at: float | None = None
        """Wall clock at which commands were asked for last."""
        self._directory = run_directory
        self._client = client
        self._push = push
        self._server = server
        self._clock = clock
        self._calls = CommandCalls(client, push, clock, self._sleep)
        self._intents = Intents(run_directory)
        self._outcomes = Outcomes(run_directory, server, clock)
        self._reported = set(push.reported)
        self._ended: list[str] = []
        self._hands: dict[str, _Hand] = {}
        self._foreign: set[str] = set()
        self._genuine: set[tuple[str, str]] = set()
        self._listing = Listing([], [])
        self._listed_at = float("-inf")
        self._looked_at = float("-inf")
        self._tries = 0
        self._busy = threading.Lock()
        self._wakes = threading.Event()
        self._wait = wait or self._wakes.wait
        self._is_stopped = False
        self._thread: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        """Whether a thread is at work."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="launchhelm-pull", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Claim nothing any more. A claim that waits may still be given a command, and delivers it:
        nobody else is given it before its lease has lapsed."""
        self._is_stopped = True
        self._wakes.set()

    def settle(self) -> bool:
        """Report what is known now; True when nothing is left to report. On the push's thread.

        Raises:
            ApiError: The server cannot be told now.
            OSError: The run cannot be read or written.
        """
        if not self._busy.acquire(blocking=False):
            return False  # The thread is at it.
        try:
            if not self._push.scope:
                return False
            self._push.look()
            self._round(fresh=True)
            return not (self._ended or self._hands or self._ours())
        finally:
            self._busy.release()

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_stopped:
            try:
                wait_s = self.turn()
                self._tries = 0
                if not self._has_lapsed:  # Else nothing was asked since.
                    self.trouble = ""
            except ApiError as error:
                wait_s = self._advised(error)
            except OSError as error:
                self.trouble = f"{error.filename or self._directory}: {error.strerror or error}"
                wait_s = REST_S
            except Exception as error:  # Ours; the run and the others go on.
                _log.exception("Commands of %s are not asked for.", self._directory)
                self.trouble = f"our failure, {type(error).__name__}: {error}"
                wait_s = TROUBLE_S
            self._note()
            self._sleep(wait_s)

    def _note(self) -> None:
        if not self._is_stopped:
            self._push.note_asked(self._obstacle(), self.asked_at)

    @property
    def _has_lapsed(self) -> bool:
        """Whether nobody has seen the coordinator move for as long as commands are claimed."""
        voice = self._push.voice
        return voice is not None and self._clock.monotonic() >= voice.until - 1.0

    def _obstacle(self) -> str:
        """Say why nothing is asked for now, or would have no effect; "" when all is well."""
        said = self._push.silence or self.trouble
        if not said and self._hands:
            id_ = next(iter(self._hands))
            said = f"at the last look command {id_} was under way, and the next one waits for it"
        return said or ("the run was not looked at for a minute" if self._has_lapsed else "")

    def _sleep(self, seconds: float) -> None:
        if not self._is_stopped:
            self._wait(seconds)

    def _advised(self, error: ApiError) -> float:
        advice = retry.decide(error, tries=self._tries)
        self._tries += 1
        self.trouble = advice.why
        if isinstance(advice, retry.Wait | retry.PauseForKey):
            return advice.seconds
        return min(TROUBLE_S, 2.0**self._tries)

    def turn(self) -> float:
        """Do what is to be done once; return how long to wait."""
        voice = self._push.voice
        now = self._clock.monotonic()
        may_rest = not (self._hands or self._ended) and now - self._looked_at < REST_S
        if voice is None and may_rest:
            return IDLE_S
        with self._busy:
            if not self._push.scope:
                return IDLE_S
            self._round()
            if self._hands:
                return self._pace(self._clock.monotonic() - now)
        if voice is None or not self._may_claim(voice):
            return IDLE_S
        asked = self._clock.monotonic()
        wait_s = min(CLAIM_S, voice.until - asked)
        self.asked_at = self._clock.wall()
        self._note()
        command = self._calls.claim(voice, wait_s)
        self.asked_at = self._clock.wall()
        if command is None:
            # A server that does not hold a claim must not be asked without a pause.
            took_s = self._clock.monotonic() - asked
            return 0.0 if took_s > wait_s / 2 else IDLE_S
        voice = self._knowing(command, voice)
        with self._busy:
            self._take(command, voice)
        return 0.0

    def _knowing(self, command: Mapping[str, Any], voice: Voice) -> Voice:
        """Return a voice of the same process that knows what a command is for, if there is one.

        While the claim waited, more may have been offered. Whoever gives commands sees an offer a
        moment before it is in our voice, which is therefore waited for.
        """
        wanted = commands.capability_of(command)
        deadline = self._clock.monotonic() + OFFER_S
        while wanted not in voice.offers and self._clock.monotonic() < deadline:
            newest = self._push.voice
            if self._is_stopped or newest is None or newest.session != voice.session:
                break
            if newest is voice:
                self._sleep(QUICK_S)
            voice = newest
        return voice

    def _pace(self, took_s: float) -> float:
        """How long until the records are looked at again: a change is seen soon, but neither a
        long wait nor slow storage is paid for."""
        since = min(hand.since for hand in self._hands.values())
        waited_s = self._clock.monotonic() - since
        return max(QUICK_S, min(SLOW_S, max(waited_s / 20, 4 * took_s)))

    def _may_claim(self, voice: Voice) -> bool:
        """Whether the run can still apply what it is given."""
        if self._is_stopped or self._has_lapsed or self._ours() or self._push.is_replaced:
            return False
        numbers = map(layout.parse_attempt, os.listdir(self._directory / layout.ATTEMPTS))
        return max((number or 0 for number in numbers), default=0) <= voice.writer.attempt

    # --- what there is ----------------------------------------------------------------------------

    def _round(self, *, fresh: bool = False) -> None:
        """Look, report, renew; nothing where another syncer does so by now."""
        coordinator = self._push.coordinator  # First: what it recorded before its end is then read.
        now = self._looked_at = self._clock.monotonic()
        self._ended += self._outcomes.refresh()
        if fresh or now - self._listed_at >= LIST_S:
            self._listing = self._intents.list()
            self._listed_at = now
            self._adopt(now)
        is_busy = self._ended or self._hands or self._listing.intents
        if is_busy and self._push.is_replaced:
            return
        self._refuse_leftovers()
        self._report()
        for id_, hand in list(self._hands.items()):
            if self._is_over(coordinator, hand):
                self._conclude(id_, hand)
        self._renew(coordinator, now)

    def _adopt(self, now: float) -> None:
        """Take in hand what an earlier holder delivered and the run has not ended."""
        for name in self._listing.commands:
            if name.command in self._hands or name.command in self._foreign:
                continue
            command = self._intents.read(name)
            if command is None:
                continue  # Taken at this moment, perhaps.
            origin = self._origin_in(command)
            if origin is None:
                self._foreign.add(name.command)
            elif name.command not in self._reported:
                self._hold(origin, now)
        for id_, known in self._outcomes.known.items():
            if known.outcome is None and id_ not in self._hands and id_ not in self._reported:
                self._hold(known.origin, now)

    def _hold(self, origin: Origin, now: float, *, valid_s: float | None = None) -> None:
        """Take a command in hand that the run has and has not ended."""
        known = self._outcomes.known.get(origin.id)
        if known is None or known.outcome is None:
            if valid_s is None:
                until = commands.instant(origin.expires_at)
                valid_s = max(0.0, until - self._clock.wall()) if until is not None else 0.0
            self._hands[origin.id] = _Hand(origin, now, now + valid_s, float("-inf"))
            self._outcomes.expected[origin.id] = origin

    def _origin(self, name: Intent | CommandName) -> Origin | None:
        """Read where a file's command comes from; None when it is no concern of ours."""
        command = self._intents.read(name)
        return self._origin_in(command) if command is not None else None

    def _origin_in(self, command: Command) -> Origin | None:
        origin = Origin.parse(command.server, self._server)
        return origin if origin is not None and origin.id == command.id else None

    def _ours(self) -> list[tuple[Intent, Origin]]:
        """Return the intents of this server in the last listing."""
        found = ((it, self._origin(it)) for it in self._listing.intents)
        return [(intent, origin) for intent, origin in found if origin is not None]

    def _refuse_leftovers(self) -> None:
        """Report the intents that were never delivered, and see to it that they never will be."""
        for intent, origin in self._ours():
            self._give_up(intent, origin)
            self._listing.intents.remove(intent)

    def _give_up(self, intent: Intent, origin: Origin) -> None:
        """Report an intent as refused, unless it turns out to have been delivered."""
        refused = intent if intent.refused else self._intents.refuse(intent, "runtime_restart")
        if refused is not None:
            self._report_refused(refused, origin)

    def _report_refused(self, intent: Intent, origin: Origin) -> None:
        if self._has_it(origin):
            # It was delivered under an earlier lease, so the run's own word counts.
            self._hold(origin, self._clock.monotonic())
        else:
            self._say(origin, commands.rejected(origin, intent.refused))
            self._hands.pop(origin.id, None)
        self._intents.drop(intent)

    def _has_it(self, origin: Origin) -> bool:
        """Whether a command is in the run. It records what it took before the file goes."""
        listed = any(name.command == origin.id for name in self._intents.list().commands)
        self._ended += self._outcomes.refresh()
        return listed or origin.id in self._outcomes.known

    # --- from the server to the run ---------------------------------------------------------------

    def _take(self, command: Mapping[str, Any], voice: Voice) -> None:
        """Deliver a claimed command, or say why not."""
        started = self._clock.monotonic()
        origin = commands.origin_of(command, self._server)
        if origin is None:
            return  # Nothing to answer to.
        self._genuine.add((origin.id, origin.fingerprint))
        if self._is_known(origin):
            return
        now = commands.server_time(command, voice, self._clock.wall())
        code = commands.refusal(command, voice, now)
        coordinator = self._push.coordinator
        if coordinator is not None and (coordinator.end or coordinator.writer != voice.writer):
            code = "run_ended"
        if code:
            self._say(origin, commands.rejected(origin, code))
            return
        request = command["request"]
        made = commands.inbox_command(
            request,
            voice.offers[request["capability"]["id"]],
            origin,
            voice.writer,
            issued_by=commands.issuer(command, self._client.origin),
            now=now,
        )
        try:
            intent = self._intents.promise(made)
        except OSError as error:
            _log.warning("A command cannot be put into %s: %s", self._directory, error)
            self._say(origin, commands.rejected(origin, "inbox_unavailable"))
            return
        self._listed_at = float("-inf")
        code = self._calls.begin(origin, started + BEGIN_S, lambda: self._is_stopped)
        if code:
            refused = self._intents.refuse(intent, code)
            if refused is not None:
                self._report_refused(refused, origin)
        elif self._intents.deliver(intent):
            self._hold(origin, started, valid_s=made.valid_s)
            self._hands[origin.id].renewed_at = self._clock.monotonic()

    def _is_known(self, origin: Origin) -> bool:
        """Answer a command that is offered again, under its new lease."""
        id_ = origin.id
        known = self._outcomes.known.get(id_)
        listing = self._intents.list()
        there = [name for name in listing.commands if name.command == id_]
        other = self._used_by(id_, there)
        if other is not None and other != origin.fingerprint:
            self._say(origin, commands.rejected(origin, "id_taken"))
            return True
        if known is not None and known.outcome is not None:
            known.origin = origin
            self._reported.discard(id_)
            self._ended.append(id_)
            self._report()
            return True
        if known is not None or id_ in self._hands:
            self._hold(origin, self._clock.monotonic())
            return True
        if id_ in self._reported:
            self._say(origin, commands.rejected(origin, "runtime_restart"))
            return True
        for intent in listing.intents:
            if intent.command == id_ and self._origin(intent) is not None:
                self._give_up(intent, origin)  # Somebody else was at it.
                return True
        if there:
            self._hold(origin, self._clock.monotonic())
            return True
        return False

    def _used_by(self, id_: str, there: list[CommandName]) -> str | None:
        """Return the fingerprint of the command that has this id in the run; None when none has.

        It is "" for a local one. The run takes an id once, whoever used it.
        """
        known = self._outcomes.known.get(id_)
        if known is not None:
            return known.origin.fingerprint
        if id_ in self._outcomes.others:
            return ""
        for command in filter(None, map(self._intents.read, there)):
            origin = self._origin_in(command)
            return origin.fingerprint if origin is not None else ""
        return None

    # --- from the run to the server ---------------------------------------------------------------

    def _report(self) -> None:
        """Tell the server every outcome that it does not have."""
        while self._ended:
            id_ = self._ended[0]
            known = self._outcomes.known[id_]
            if id_ not in self._reported and known.outcome is not None:
                hand = self._hands.get(id_)
                origin = hand.origin if hand is not None else known.origin
                extensions = self._push.extensions
                self._say(origin, commands.result(known.outcome, origin, extensions=extensions))
            self._hands.pop(id_, None)
            self._ended.pop(0)

    def _is_over(self, coordinator: Coordinator | None, hand: _Hand) -> bool:
        """Whether nobody will say any more what became of a command."""
        if coordinator is None or self._outcomes.holes:
            return False
        if coordinator.end:
            return True
        is_late = self._clock.monotonic() > hand.until + LATE_S
        return is_late and not self._moves(coordinator)

    def _moves(self, coordinator: Coordinator | None) -> bool:
        now = self._clock.monotonic()
        moved_at = coordinator.moved_at if coordinator is not None else None
        return moved_at is not None and now - moved_at < SILENT_S

    def _conclude(self, id_: str, hand: _Hand) -> None:
        """End a command of which the run has said its last word."""
        known = self._outcomes.known.get(id_)
        if known is not None and known.outcome is not None:
            return  # It waits to be reported.
        self._listing = self._intents.list()
        names = [name for name in self._listing.commands if name.command == id_]
        waiting = [name for name in names if name.taken_by is None]
        if known is None and waiting:
            refused = self._intents.withdraw(waiting[0], "run_ended")
            if refused is not None:
                self._report_refused(refused, hand.origin)
            return
        was_begun = known.state == "applying" if known is not None else not names
        said = commands.unknown if was_begun else commands.rejected
        self._say(hand.origin, said(hand.origin, "runtime_restart"))
        self._hands.pop(id_, None)

    def _renew(self, coordinator: Coordinator | None, now: float) -> None:
        """Keep the leases of what the run may still act on."""
        if coordinator is not None and not self._moves(coordinator):
            return
        for hand in self._hands.values():
            if now - hand.renewed_at < RENEW_S:
                continue
            self._calls.renew(hand.origin)
            hand.renewed_at = now

    def _say(self, origin: Origin, body: dict[str, Any]) -> None:
        """Report a result, if the command is one of the server's and not only says so."""
        key = (origin.id, origin.fingerprint)
        if key in self._genuine or self._calls.has_given(origin):
            self._genuine.add(key)
            self._calls.result(origin, body)
        self._reported.add(origin.id)
        self._push.note_reported(origin.id)
