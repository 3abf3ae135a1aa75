"""The coordinator's desk: commands wait here between the inbox and the loop.

Two threads meet here. The recorder's thread calls `poll`: it takes files out of the inbox, records
them as claimed and puts them in the queue. The thread of the training loop calls `take`,
`applying` and `conclude`; none of them does any I/O. `_lock` guards the queue and the states, is
held for a few dictionary operations only, and no other lock is taken under it except the
recorder's own.

Nothing is acted on twice: a file is claimed by rename, the claim and then `applying` are durable
before anything changes, and what an earlier coordinator left open is closed as rejected (it had
not begun) or unknown (it had).
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from launchhelm._clock import SYSTEM_CLOCK, Clock
from launchhelm._ids import new_id
from launchhelm._left_commands import LeftCommands
from launchhelm.controls import decide, orders
from launchhelm.controls.schema import require
from launchhelm.controls.undo import Change, Changes
from launchhelm.models import Capability, Document, Scope, timestamp
from launchhelm.records import (
    CANCEL,
    FINAL_STATES,
    FREEZE,
    ORDERS,
    REAPPLY,
    UNFREEZE,
    Command,
    Outcome,
)
from launchhelm.store.claims import Ledger
from launchhelm.store.inbox import Arrival, Inbox
from launchhelm.store.layout import CommandName
from launchhelm.values.names import require_name

CLAIM_WHILE_PASSED_S: Final = 60.0
"""Commands are claimed only while the loop passed a control point this recently."""

FRESH_POLL_S: Final = 15.0
"""A command is handed out only while the inbox was looked at this recently, so that a process that
was frozen first learns whether a newer attempt has taken over."""

AHEAD_S: Final = 60.0
"""A scheduled command is taken about so long before its step. Until then it stays in the inbox,
where the next attempt finds it."""

SLOW_LISTING_S: Final = 0.25
MAX_POLL_S: Final = 5.0
MAX_QUEUE: Final = 256
"""More commands than these wait in the inbox: the loop looks through the queue at each control
point."""

MAX_PREPARED: Final = 64
"""So many commands for steps have their `applying` record before it is their turn."""

MAX_SAFE_POINTS: Final = 64


class Ticket(Protocol):
    """A record on its way to the disk."""

    @property
    def durable(self) -> bool:
        """Whether the record survives a crash of this machine."""
        ...

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is durable; False when it is not yet."""
        ...


class Records(Protocol):
    """What the desk needs of the recorder."""

    @property
    def faults(self) -> Counter[str]:
        """Failures of ours by component."""
        ...

    def append(self, kind: str, body: Mapping[str, Any], *, step: int | None = None) -> bool:
        """Append an ordinary record."""
        ...

    def append_urgent(
        self, kind: str, body: Mapping[str, Any], *, step: int | None = None
    ) -> Ticket:
        """Append a record that is never dropped and flushed at once."""
        ...


Validate = Callable[[Mapping[str, Any]], object]
"""Raises to reject a payload."""


@dataclass(slots=True)
class _Offer:
    """A registered capability."""

    capability: Capability
    document: Document
    validate: Validate | None


@dataclass(slots=True)
class _Held:
    """A command that this process has claimed and not concluded."""

    command: Command
    file: CommandName
    owner: str
    claimed: Ticket
    claimed_at: float
    age_s: float
    state: str = "claimed"
    applying: Ticket | None = None
    """Of its `applying` record, where that was begun before its turn."""

    def waited_s(self, now: float) -> float:
        return self.age_s + now - self.claimed_at


class CommandDesk:
    """Queue of commands per safe point, and the one place that records what became of them.

    Args:
        inbox: None on ranks that are not the coordinator; they register and never take.
        ledger: What earlier coordinators recorded.
        scope: For documents of capabilities.
        participant_id: Who offers them.
        attempt: This launch; commands for another one are refused.
        poll_s: Interval of `poll` while the file system answers quickly.
        report: Gets our own failures, with the component; the default only counts them.
    """

    def __init__(
        self,
        recorder: Records,
        *,
        scope: Scope,
        participant_id: str,
        attempt: int,
        inbox: Inbox | None = None,
        ledger: Ledger | None = None,
        poll_s: float = 0.5,
        report: Callable[[str, Exception], object] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._recorder = recorder
        self._report = report or self._count
        self._scope = scope
        self._participant_id = participant_id
        self._attempt = attempt
        self._inbox = inbox
        self._ledger = ledger
        self._base_poll_s = self._poll_s = poll_s
        self._clock = clock
        self._lock = threading.Lock()
        self._offers: dict[str, _Offer] = {}
        self._safe_points: set[str] = set()
        self._queue: list[_Held] = []
        self._in_hand: dict[str, _Held] = {}
        self._states: dict[str, str] = {}
        self._settled: list[tuple[CommandName, Ticket]] = []
        self._left = LeftCommands(ledger) if ledger is not None else None
        self._passed_at = -CLAIM_WHILE_PASSED_S
        self._polled_at = clock.monotonic()
        self._is_closed = False
        self._frozen: str | None = None if ledger is not None else ""
        self._changes: dict[str, Changes] = {}
        self._restored_at: dict[str, float] = {}
        self._paced: tuple[float, int] | None = None
        self._reach = 0
        self._pace: float | None = None
        self._step = 0
        self.paused = False
        """Set by a loop that waits at a control point on purpose; it still takes commands."""
        self.values: Callable[[], Mapping[str, Any]] = dict
        """Tells what controls hold now, for `expected`; called by the thread that takes."""

    # The loop's side.

    def register(self, capability: Capability, *, validate: Validate | None = None) -> Document:
        """Offer a capability; an earlier one of that name is replaced.

        Args:
            validate: Called with the payload by the thread that takes; raises to reject.

        Raises:
            ValueError: A bad name, no or bad safe points, or schemas that are not semantic.
        """
        require_name(capability.name, "name of a command")
        for safe_point in capability.safe_points:
            require_name(safe_point, "safe point")
        for schema in (
            capability.input_schema,
            capability.output_schema,
            capability.presentation,
        ):
            require(schema)
        now = timestamp(self._clock.wall())
        spec = capability.wire(self._participant_id)
        document = Document(new_id(), "capability", self._scope, "1", spec, now, now)
        with self._lock:
            self._offers[capability.name] = _Offer(capability, document, validate)
        if self._inbox is not None:
            self._recorder.append("cap", {"id": document.id, **spec})
        return document

    def advertise(self, safe_point: str) -> None:
        """Note that the loop services a safe point.

        Raises:
            TypeError: Not a string.
            ValueError: A bad name, or more than MAX_SAFE_POINTS of them.
        """
        if safe_point in self._safe_points:
            return
        require_name(safe_point, "safe point")
        if len(self._safe_points) >= MAX_SAFE_POINTS:
            raise ValueError(f"A participant has at most {MAX_SAFE_POINTS} safe points.")
        self._safe_points.add(safe_point)
        try:
            self._recorder.append("ev", {"type": "safe_point", "name": safe_point})
        except Exception as error:  # Protects the loop; only readers miss the name.
            self._report("recorder", error)

    def pending(self, safe_point: str) -> bool:
        """Whether a command waits for this safe point. No I/O."""
        self._passed_at = self._clock.monotonic()
        with self._lock:
            return any(
                held.claimed.durable and self._fits(held, safe_point) for held in self._queue
            )

    def take(
        self,
        safe_point: str,
        *,
        step: int | None = None,
        ahead: int = 0,
        recorded: bool = False,
    ) -> Command | None:
        """Return the next command that may act at this safe point now, or None. No I/O.

        Commands that may not act any more are concluded here; the caller must call `applying`
        and `conclude` for the one it gets.

        Args:
            ahead: Also return a command whose first step is at most so many steps away.
            recorded: Only one that `prepare` has recorded durably.
        """
        now = self._passed_at = self._clock.monotonic()
        if step is not None:
            self._step = step
            self._paced = self._paced or (now, step)
            self._reach = step + ahead
        if not self._queue or now - self._polled_at > FRESH_POLL_S:
            return None
        values = self._values_now()
        while True:
            with self._lock:
                held, judgement = self._next(
                    safe_point, step, ahead, now, values, recorded=recorded
                )
            if held is None:
                return None
            if judgement.state == decide.FIT:
                judgement = self._validate(held)
            if judgement.state == decide.FIT:
                return held.command
            self._refuse(held, judgement.state, judgement.code, judgement.message)

    def prepare(self, safe_point: str, step: int) -> None:
        """Begin the `applying` records of commands for steps up to this one. No I/O.

        They can then act one after the other, without waiting for storage in between. Until it is
        taken, such a command can still be cancelled, refused and expire.
        """
        if not self._queue:
            return
        with self._lock:
            wanted = [held for held in self._scheduled(safe_point, step) if held.claimed.durable]
            for held in wanted[:MAX_PREPARED]:
                if held.applying is None:
                    outcome = Outcome(held.command.id, "applying", name=held.command.name)
                    held.applying = self._recorder.append_urgent("oc", outcome.body())

    def follows(self, safe_point: str, step: int) -> bool:
        """Whether a command for a step up to this one waits that is recorded durably. No I/O."""
        if not self._queue:
            return False
        with self._lock:
            scheduled = self._scheduled(safe_point, step)
            return any(held.applying is not None and held.applying.durable for held in scheduled)

    def _scheduled(self, safe_point: str, step: int) -> list[_Held]:
        found = [
            held
            for held in self._queue
            if held.command.first_step is not None
            and held.command.first_step <= step
            and self._fits(held, safe_point)
        ]
        return sorted(found, key=_first_step)

    def admit(self, command: Command) -> None:
        """Record that a command of this process's own is taken. No I/O.

        It restores what somebody commanded, so that a freeze does not hold it up. The caller must
        call `applying` and `conclude`.
        """
        claimed = Outcome(
            command.id,
            "claimed",
            name=command.name,
            payload=command.payload,
            issued_by=command.issued_by,
            reason=command.reason,
            replays=command.replays,
        )
        self._recorder.append_urgent("oc", claimed.body())

    def upcoming(self, safe_point: str, step: int) -> int | None:
        """Return the earliest step after this one that a command waits for, if any. No I/O."""
        if not self._queue:
            return None
        with self._lock:
            firsts = [
                held.command.first_step for held in self._queue if self._fits(held, safe_point)
            ]
        return min((first for first in firsts if first is not None and first > step), default=None)

    def applying(self, command: Command, *, step: int | None = None) -> Ticket:
        """Record that a command is about to act; nothing changes before the ticket is durable."""
        with self._lock:
            held = self._in_hand.get(command.id)
            if held is not None:
                held.state = self._states[command.id] = "applying"
                if held.applying is not None:
                    return held.applying
        outcome = Outcome(command.id, "applying", name=command.name)
        return self._recorder.append_urgent("oc", outcome.body(), step=step)

    def conclude(self, command: Command, outcome: Outcome, *, step: int | None = None) -> None:
        """Record the final state of a command; a second one is counted and not recorded."""
        with self._lock:
            held = self._in_hand.pop(command.id, None)
            if self._states.get(command.id) in FINAL_STATES:
                self._recorder.faults["second outcome"] += 1
                return
            self._states[command.id] = outcome.state
            if outcome.state == "applied":
                change = Change.of(command.name, command.payload, outcome.changes)
                changes = self._changes.setdefault(command.name, Changes())
                changes.take(command.id, command.reverts, change)
                if held is None and command.issued_by == REAPPLY:
                    # What an earlier process was commanded stands again; the ledger knows what.
                    self._forget(command.name)
        full = outcome.but(
            command=command.id,
            name=command.name,
            issued_by=command.issued_by,
            owner=held.owner if held is not None else outcome.owner,
            reason=command.reason,
            server=command.server,
        )
        if step is None:
            at = full.applied_at.get("step")
            step = at if isinstance(at, int) else None
        ticket = self._recorder.append_urgent("oc", full.body(), step=step)
        if held is not None:
            with self._lock:
                self._settled.append((held.file, ticket))

    def restored(self, name: str) -> None:
        """Note that a restored state, not a command, has changed what a control holds. No I/O."""
        with self._lock:
            self._forget(name)

    def close(self) -> None:
        """Conclude what is still open, because no safe point will be passed any more."""
        with self._lock:
            self._is_closed = True
            self._in_hand.update((held.command.id, held) for held in self._queue)
            self._queue.clear()
            open_now = list(self._in_hand.values())
        for held in open_now:
            if held.state == "applying":
                self._refuse(held, "outcome_unknown", "run_ended", "The run ended meanwhile.")
            else:
                self._refuse(held, "rejected", "run_ended", "The run ended before its safe point.")

    # The recorder's side.

    def poll(self) -> float:
        """Look into the inbox once; returns the seconds until the next look. Never raises."""
        try:
            if self._inbox is not None and not self._is_closed:
                self._poll(self._inbox)
        except Exception as error:  # Guards the recorder's thread, which has records to write.
            self._report("command reader", error)
            self._poll_s = min(self._poll_s * 2, MAX_POLL_S)
        return self._poll_s

    def sweep(self) -> None:
        """Remove the files of commands whose outcome is durable."""
        if self._inbox is None:
            return
        with self._lock:
            settled = self._settled
            self._settled = []
        kept = [
            (file, ticket)
            for file, ticket in settled
            if not (ticket.durable and self._inbox.remove(file))
        ]
        with self._lock:
            self._settled += kept

    def _poll(self, inbox: Inbox) -> None:
        now = self._clock.monotonic()
        self.sweep()
        loops = self.paused or now - self._passed_at <= CLAIM_WHILE_PASSED_S
        may_claim = loops and len(self._queue) < MAX_QUEUE
        look = inbox.poll(
            may_claim=may_claim, holds_claims=bool(self._queue), up_to=self._near(now)
        )
        if look.superseded:
            self._withdraw()
        if look.arrivals:
            self._receive(look.arrivals, {name.command for name in look.strangers}, now)
        if look.strangers:
            self._resolve(look.strangers, inbox, now)
        self._expire(now)
        slow = look.took_s > SLOW_LISTING_S
        self._poll_s = min(self._poll_s * 2, MAX_POLL_S) if slow else self._base_poll_s
        self._polled_at = self._clock.monotonic()

    def _near(self, now: float) -> float:
        """Return the step that the loop may reach within AHEAD_S, or takes commands for already.

        Any step while its pace is unknown.
        """
        if self._paced is None:
            return math.inf
        at, step = self._paced
        if now - at >= 1.0:
            # What was fast a moment ago may be so again, after an evaluation for example.
            pace = (self._step - step) / (now - at)
            self._pace = max(pace, 0.9 * (self._pace or 0.0))
            self._paced = now, self._step
        if self._pace is None:
            return math.inf
        return max(self._reach, self._step + max(1.0, self._pace * AHEAD_S))

    def _receive(self, arrivals: list[Arrival], in_other_hands: set[str], now: float) -> None:
        """Record what came in: claimed, refused, or known already."""
        if self._ledger is not None:
            self._ledger.refresh()
            if self._frozen is None:
                self._frozen = self._ledger.frozen
        given = []
        for arrival in arrivals:
            id_ = arrival.name.command
            known = self._states.get(id_) or (self._ledger.state(id_) if self._ledger else "")
            if known or id_ in in_other_hands:
                self._note_repeat(arrival.name, known)
                continue
            command = arrival.command
            said = Outcome(id_, "claimed", owner=arrival.owner)
            if command is not None:
                said = said.but(
                    name=command.name,
                    payload=command.payload,
                    issued_by=command.issued_by,
                    reason=command.reason,
                    server=command.server,
                    first_step=command.first_step,
                    last_step=command.last_step,
                    reverts=command.reverts,
                    replays=command.replays,
                )
            if command is None or arrival.code:
                self._states[id_] = "rejected"
                refused = said.but(state="rejected", code=arrival.code, message=arrival.message)
                ticket = self._recorder.append_urgent("oc", refused.body())
                self._settled.append((arrival.name, ticket))
                continue
            ticket = self._recorder.append_urgent("oc", said.body())
            held = _Held(command, arrival.name, arrival.owner, ticket, now, arrival.age_s)
            with self._lock:
                self._states[id_] = "claimed"
                if command.name in ORDERS:
                    self._in_hand[id_] = held
                    given.append(held)
                else:
                    self._queue.append(held)
            if command.for_attempt not in (None, self._attempt):
                message = f"Meant for attempt {command.for_attempt}; this is {self._attempt}."
                self._drop(held, "rejected", "attempt_over", message)
        # Nothing of these arrivals can have begun: their claims are not durable yet.
        for held in given:
            self._carry_out(held, in_other_hands, now)

    def _carry_out(self, held: _Held, in_other_hands: set[str], now: float) -> None:
        """Conclude an order, which is about commands and needs no loop."""
        command = held.command
        judgement = orders.judge(command, held.waited_s(now), self._attempt)
        if judgement.state == decide.FIT and command.name == CANCEL:
            judgement = self._cancel(command, held.owner, in_other_hands, now)
        if judgement.state != decide.FIT:
            self._refuse(held, judgement.state, judgement.code, judgement.message)
            return
        message = orders.message(command, held.owner)
        if command.name in (FREEZE, UNFREEZE):
            self._frozen = message if command.name == FREEZE else ""
        self.conclude(command, Outcome(command.id, "applied", message=message, applied_on=1, of=1))

    def _cancel(
        self, order: Command, owner: str, in_other_hands: set[str], now: float
    ) -> decide.Judgement:
        """Take a command back that has not begun."""
        id_ = str(order.payload["id"])
        if id_ not in self._states and self._inbox is not None:
            arrival = self._inbox.fetch(id_)
            if arrival is not None:
                self._receive([arrival], in_other_hands, now)
        with self._lock:
            held = next((each for each in self._queue if each.command.id == id_), None)
        if held is not None:
            self._drop(held, "cancelled", "cancelled", orders.message(order, owner))
        state = self._states.get(id_) or (self._ledger.state(id_) if self._ledger else "")
        return orders.judge_cancel(state)

    def _note_repeat(self, name: CommandName, known: str) -> None:
        text = f"Command {name.command} arrived again; it is {known or 'in other hands'}."
        body = {"type": "notice", "about": "command", "cmd": name.command, "text": text}
        ticket = self._recorder.append_urgent("ev", body)
        if name.taken_by is not None:
            self._settled.append((name, ticket))

    def _expire(self, now: float) -> None:
        """Conclude what waited too long, also when the loop passes no safe point."""
        with self._lock:
            late = [held for held in self._queue if held.waited_s(now) > held.command.valid_s]
        for held in late:
            judgement = decide.judge(
                held.command, schema=None, step=None, waited_s=held.waited_s(now), values={}
            )
            self._drop(held, judgement.state, judgement.code, judgement.message)

    def _withdraw(self) -> None:
        """Give up the queue: a newer attempt has taken over, and this one acts no more."""
        with self._lock:
            waiting = list(self._queue)
        for held in waiting:
            self._drop(held, "rejected", "runtime_restart", "A newer attempt has taken over.")

    def _resolve(self, strangers: list[CommandName], inbox: Inbox, now: float) -> None:
        """Close what earlier coordinators left open; only the newest coordinator does."""
        if self._left is None:
            return
        for file, outcome in self._left.close(strangers, inbox, now, self._states):
            if outcome is None:
                self._note_repeat(file, self._states[file.command])
                continue
            self._states[file.command] = outcome.state
            self._settled.append((file, self._recorder.append_urgent("oc", outcome.body())))

    # Shared by both sides.

    def _count(self, component: str, error: Exception) -> None:
        del error
        self._recorder.faults[component] += 1

    def _drop(self, held: _Held, state: str, code: str, message: str) -> None:
        """Conclude a command out of the queue, unless the loop has just taken it."""
        with self._lock:
            if held not in self._queue:
                return
            self._queue.remove(held)
            self._in_hand[held.command.id] = held
        self._refuse(held, state, code, message)

    def _refuse(self, held: _Held, state: str, code: str, message: str) -> None:
        self.conclude(held.command, Outcome(held.command.id, state, code=code, message=message))

    def _fits(self, held: _Held, safe_point: str) -> bool:
        """Whether the safe point is this command's; a control that is not offered fits any."""
        offer = self._offers.get(held.command.name)
        return offer is None or safe_point in offer.capability.safe_points

    def _next(
        self,
        safe_point: str,
        step: int | None,
        ahead: int,
        now: float,
        values: Mapping[str, Any],
        *,
        recorded: bool,
    ) -> tuple[_Held | None, decide.Judgement]:
        """Move the first command that need not wait out of the queue, with what to do with it.

        In the order in which they came, but never one for a later step before one for an earlier.
        """
        for held in sorted(self._queue, key=_first_step):
            if not held.claimed.durable or not self._fits(held, safe_point):
                continue
            if recorded and (held.applying is None or not held.applying.durable):
                continue
            offer = self._offers.get(held.command.name)
            judgement = decide.judge(
                held.command,
                schema=offer.capability.input_schema if offer is not None else None,
                step=step,
                ahead=ahead,
                waited_s=held.waited_s(now),
                values=values,
                frozen=self._frozen or "",
                is_overtaken=self._is_overtaken(held),
            )
            if judgement.state != decide.WAIT:
                self._queue.remove(held)
                self._in_hand[held.command.id] = held
                return held, judgement
        return None, decide.Judgement(decide.WAIT)

    def _values_now(self) -> Mapping[str, Any]:
        """Ask what controls hold, if a command that waits expects something of that."""
        with self._lock:
            is_asked = any(held.command.expected for held in self._queue)
        try:
            return self.values() if is_asked else {}
        except Exception as error:  # A value that cannot be read is not what was expected.
            self._report("control values", error)
            return {}

    def _is_overtaken(self, held: _Held) -> bool:
        """Whether the command that this one undoes is not the last change of the control any more.

        One that was given after a state was restored takes that into account.
        """
        name, reverts = held.command.name, held.command.reverts
        if not reverts:
            return False
        if held.claimed_at <= self._restored_at.get(name, -math.inf):
            return True
        changes = self._changes.get(name)
        return changes is not None and not changes.may_undo(reverts)

    def _forget(self, name: str) -> None:
        self._changes.pop(name, None)
        self._restored_at[name] = self._clock.monotonic()

    def _validate(self, held: _Held) -> decide.Judgement:
        """Ask the control's own check, which is the user's code and runs without our lock."""
        offer = self._offers.get(held.command.name)
        if offer is not None and offer.validate is not None:
            try:
                offer.validate(held.command.payload)
            except Exception as error:  # Whatever it raises means no.
                text = str(error) or type(error).__name__
                return decide.Judgement("rejected", "local_validation", text)
        return decide.Judgement(decide.FIT)


def _first_step(held: _Held) -> float:
    first = held.command.first_step
    return -math.inf if first is None else first
