"""The control exchange of one rank as a pure machine: results in, actions out.

No torch, no clock, no disk, no thread. `_exchange` carries out the actions on a gloo group;
tests/unit/lht/test_exchange_model.py carries them out in every possible order and proves that no
order dead-locks and that ranks never disagree silently.

How a command travels (D is a due call, known to all ranks beforehand):

    call D-1   all           begin to send or receive the packet of D, without waiting:
                             "command 7, 83 bytes"
    call D     all           await it (a long body follows), check it, gather the votes
               coordinator   records `applying`, without waiting
    call E-1   all           likewise; once that record is durable: "apply 7 at call E+1"
    call E     all           await that
    call E+1   all           snapshot, apply, read back; gather the results; all right: done.
                             Otherwise everyone restores and gathers once more.

The apply call is later than E+1 for a command that waits for a step to come; such a command starts
early, so that it can be applied just then.

Several commands for one step, or for steps close to each other, do not wait for exchanges of their
own. Rank 0 has their records written beforehand, and says in its row of the results (or of votes
that refuse) that another one follows. Then, in the same call:

    call E+1   all           packet, at once: "command 8, 83 bytes, next; apply it at call A"
                             check it, gather the votes
               all           where A is this call: apply, and so on; else go on training until A

With that packet a command is announced; an accepting vote is the last word on it.

A rank is in doubt while it cannot exclude that others apply a command it has agreed to: a peer from
its accepting vote until the result, the coordinator from issuing the apply packet, or from its
vote on a command that follows another. When the exchange is lost, doubt decides: without doubt,
control goes off and training goes on; in doubt, the rank takes back what it changed, asks the store
for the coordinator's word ("never announced" ends the doubt), and otherwise raises
DivergedStateError.

Between commands the ranks compare what they hold now and then: COMPARE is followed by a broadcast
of the coordinator's digest, which costs no answer. A rank that holds something else writes it to
the store; the coordinator reads that before its next packets, and DRIFT tells every rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from launchhelm.torch._judge import (
    judge_results,
    judge_roll_back,
    judge_votes,
    refusal,
)
from launchhelm.torch._messages import (
    INLINE_BYTES,
    NEVER,
    Action,
    Applied,
    Apply,
    Await,
    Cause,
    Check,
    Checked,
    Compare,
    Conclude,
    Follow,
    Gather,
    Go,
    Kind,
    Look,
    Looked,
    Lost,
    Off,
    Packet,
    Raise,
    Record,
    Report,
    Restore,
    Result,
    Row,
    Settle,
    Settled,
    Share,
    Status,
    Verdict,
    Warn,
)


@dataclass(slots=True)
class Machine:
    """One rank's part in the exchange.

    `begin` starts a call and returns the first action, `feed` takes its result and returns the
    next, until Go or Raise ends the call. `wake` is the next call at which anything is to do; the
    caller need not `begin` the calls before it. All fields are immutable values, so a copy of the
    fields is a copy of the machine.

    Args:
        rank: Group rank; 0 is the coordinator.
        size: Ranks of the group. One rank needs no exchange and uses the same code.
        every: Calls between exchanges, 0 to let the coordinator pace them.
        proceed: on_partial_failure="continue".
        strict: on_divergence="raise".
        leader: How messages name rank 0.
    """

    rank: int
    size: int
    every: int = 0
    proceed: bool = False
    strict: bool = False
    leader: str = "rank 0"

    call: int = 0
    step: int = 0
    due: int = 0
    serial: int = 0
    issued: bool = False
    """Whether the broadcast of the next packet is under way."""
    follows: bool = False
    """Coordinator: whether a broadcast follows the packet issued last."""
    on: bool = True
    finished: bool = False
    cause: Cause | None = None
    command: int = 0
    """Number of the command under way, else of the last one."""
    stage: str = ""
    """Of the command under way: offered, accepted, or nothing."""
    body: int = 0
    handler: bool = False
    doubt: bool = False
    apply_call: int = NEVER
    announced: int = NEVER
    """The apply call of a command that follows another, while it is being agreed on."""
    refusal: Verdict | None = None
    """Coordinator: what a REJECT that is under way means."""
    never: bool = False
    """Coordinator: the last command was certainly applied nowhere."""
    changed: bool = False
    applied: bool = False
    verdict: Verdict | None = None
    """What was found while a roll-back is under way."""
    divergence: Verdict | None = None
    """Set for good once DivergedStateError was raised."""
    then: str = ""
    """Which method takes the next result."""

    def __post_init__(self) -> None:
        # The first due call is the second one, so that the first call can issue its packet.
        self.due = max(self.every, 2)

    @property
    def coordinator(self) -> bool:
        """Whether this rank leads."""
        return self.rank == 0

    @property
    def wake(self) -> int:
        """The next call at which there is something to do."""
        if self.finished:
            return NEVER
        if self.divergence is not None:
            return self.call + 1
        if not self.on:
            return self.call + 1 if self.coordinator else NEVER
        if self.size == 1:
            every = max(self.every, 1)
            return (self.call // every + 1) * every
        return min(self.due if self.issued else self.due - 1, self.apply_call)

    def begin(self, call: int, step: int) -> Action:
        """Start the call of that number, which is at least `wake`."""
        self.call, self.step = call, step
        if self.finished:
            return Go()
        if self.divergence is not None:
            return Raise(self.divergence)
        if not self.on or self.size == 1:
            return self._look() if self.coordinator else Go()
        if call == self.due:
            return self._do(Await(), "packet")
        return self._apply() if call == self.apply_call else self._end()

    def feed(self, result: Result) -> Action:
        """Take the result of the last action and say what comes next."""
        if isinstance(result, Lost):
            return self._lost(result.cause)
        # The name of a method is data, so that a machine can be copied and compared.
        action: Action = getattr(self, "_after_" + self.then)(result)
        return action

    def lose(self, cause: Cause) -> Action:
        """Stop because of something outside the protocol, in whatever state."""
        return self._lost(cause)

    def finish(self, step: int = 0) -> Action:
        """Leave after that step. No collective: only Conclude, Settle and Go follow."""
        self.step = step
        was_on, self.finished = self.on and self.divergence is None, True
        if not self.coordinator or not was_on:
            return Go()
        if self.doubt and self.size > 1:
            return self._do(Settle(self.command, before=self.apply_call), "left_in_doubt")
        if self.stage:
            return self._conclude(_ENDED, "ended")
        return self._say_never("closing") if self.never else self._after_closing(None)

    # A packet and what it asks for.

    def _after_packet(self, packet: Packet) -> Action:
        if packet.serial != self.serial:
            return self._lost(_confused(f"packet {packet.serial} came instead of {self.serial}"))
        self.serial += 1
        self.issued = False
        self.due = packet.next_due
        if packet.kind is Kind.NEXT:
            if packet.apply_call < self.call:
                return self._lost(_confused(f"call {packet.apply_call} has passed"))
            self.announced = packet.apply_call
        if packet.kind in (Kind.COMMAND, Kind.NEXT):
            self.command, self.body, self.stage = packet.command, packet.size, "offered"
            if packet.size > INLINE_BYTES:
                return self._do(Share(packet.size), "shared")
            return self._after_shared(None)
        if packet.kind is Kind.CLOSING:
            text = f"{self.leader} left after step {packet.size} (finished)"
            return self._lost(Cause("left", (0,), text))
        if packet.kind is Kind.IDLE:
            return self._end()
        if packet.kind is Kind.COMPARE:
            return self._do(Compare(), "compared")
        if packet.kind is Kind.DRIFT:
            return self._do(Report(packet.size), "reported")
        if packet.command != self.command or self.stage != "accepted":
            return self._lost(_confused(f"unknown command {packet.command} was announced"))
        if packet.kind is Kind.REJECT:
            return self._resolved(self.refusal or _NOT_STORED)
        if packet.apply_call <= self.call:
            return self._lost(_confused(f"call {packet.apply_call} has passed"))
        self.apply_call = packet.apply_call
        return self._end()

    def _after_compared(self, _: None) -> Action:
        self.follows = False
        return self._end()

    def _after_reported(self, verdict: Verdict) -> Action:
        self.follows = False
        if not self.strict:
            return self._end()
        self.divergence = verdict
        return Raise(verdict)

    def _after_shared(self, _: None) -> Action:
        return self._do(Check(), "checked")

    def _after_checked(self, checked: Checked) -> Action:
        if self.size == 1:
            if checked.text:
                return self._resolved(refusal([(0, checked.text)], self.size), checked.more)
            self.handler = checked.handler
            return self._record() if self.announced == NEVER else self._agreed()
        status = Status.FAILED if checked.text else Status.OK
        # Whoever has the votes on a command that follows another applies it.
        follows = not self.coordinator or self.announced < NEVER
        self.doubt = follows and status is Status.OK
        row = Row(status, self.call, self.step, int(checked.handler), checked.text, checked.more)
        return self._do(Gather(row), "votes")

    def _after_votes(self, rows: tuple[Row, ...]) -> Action:
        refusal = judge_votes(rows)
        if refusal is not None:
            return self._resolved(refusal, rows[0].more)
        self.stage = "accepted"
        self.handler = bool(rows[0].digest)
        if self.announced < NEVER:
            return self._agreed()
        return self._record() if self.coordinator else self._end()

    def _agreed(self) -> Action:
        """Every rank has accepted a command that follows another: it acts at its call."""
        self.stage, at = "accepted", self.announced
        self.announced = NEVER
        if at > self.call and self.size == 1:
            return Go()  # It looks at every call whether the step has come.
        self.doubt, self.apply_call = True, at
        return self._apply() if at <= self.call else self._end()

    def _record(self) -> Action:
        self.stage = "accepted"
        return self._do(Record(), "recorded")

    def _after_recorded(self, _: None) -> Action:
        return self._end()

    # Applying, and taking back.

    def _apply(self) -> Action:
        self.apply_call = NEVER
        return self._do(Apply(self.handler), "applied")

    def _after_applied(self, applied: Applied) -> Action:
        self.changed = applied.changed
        self.applied = applied.status is Status.OK
        row = Row(applied.status, self.call, self.step, applied.digest, applied.text, applied.more)
        return self._gather(row, "results")

    def _after_results(self, rows: tuple[Row, ...]) -> Action:
        verdict = judge_results(rows)
        if verdict.state != "outcome_unknown":
            return self._resolved(verdict, rows[0].more)
        self.verdict = verdict
        if self.handler:
            return self._diverged(verdict)
        if self.changed:
            return self._do(Restore(), "restored")
        return self._after_restored("")

    def _after_restored(self, text: str) -> Action:
        self.changed = False
        status = Status.FAILED if text else Status.OK
        return self._gather(Row(status, self.call, self.step, text=text), "all_restored")

    def _after_all_restored(self, rows: tuple[Row, ...]) -> Action:
        assert self.verdict is not None
        return self._diverged(judge_roll_back(self.verdict, rows))

    def _diverged(self, verdict: Verdict) -> Action:
        self.verdict = verdict
        self._clear()
        return self._conclude(verdict, "diverged") if self.coordinator else self._tell()

    def _after_diverged(self, _: None) -> Action:
        return self._tell()

    def _tell(self) -> Action:
        assert self.verdict is not None
        verdict, self.verdict = self.verdict, None
        if self.proceed:
            return self._do(Warn(verdict), "ended_call")
        self.divergence = verdict
        return Raise(verdict)

    # The end of a command and of a call.

    def _resolved(self, verdict: Verdict, more: bool = False) -> Action:
        """The command ended the same way on all ranks; `more`: another one follows at once."""
        self._clear()
        self.never = verdict.state != "applied"
        if self.coordinator:
            return self._conclude(verdict, "next" if more else "ended_call")
        return self._do(Follow(), "packet") if more else self._end()

    def _after_next(self, _: None) -> Action:
        return self._do(Look(under_way=False, follows=True), "looked_on")

    def _after_looked_on(self, looked: Looked) -> Action:
        """Hand on the command that follows, or say that there is none after all."""
        every = self.every or 1
        at = -(-max(looked.at, self.call) // every) * every
        next_due = at + (self.every or looked.interval)
        if looked.size is None:
            if self.size == 1:
                return self._end()
            return self._do(Follow(Packet(self.serial, Kind.IDLE, next_due)), "packet")
        self.command += 1
        self.stage, self.never = "offered", False
        if self.size == 1:
            self.announced = at
            return self._do(Check(), "checked")
        packet = Packet(self.serial, Kind.NEXT, next_due, self.command, looked.size, apply_call=at)
        return self._do(Follow(packet), "packet")

    def _clear(self) -> None:
        self.stage, self.doubt, self.apply_call, self.announced = "", False, NEVER, NEVER
        self.changed = self.applied = False
        self.refusal = None

    def _after_ended_call(self, _: None) -> Action:
        return self._end()

    def _end(self) -> Action:
        if not self.on or self.size == 1 or self.issued or self.call + 1 < self.due:
            return Go()
        if self.coordinator:
            return self._look()
        self.issued = True
        return Go(expect=True)

    def _look(self) -> Action:
        return self._do(Look(self.stage == "accepted"), "looked")

    def _after_looked(self, looked: Looked) -> Action:
        if not self.on:
            assert self.cause is not None
            refusal = Verdict("rejected", self.cause.code, f"Control is off: {self.cause.text}.")
            return Go() if looked.size is None else self._conclude(refusal, "refused")
        if self.size == 1:
            return self._after_looked_alone(looked)
        packet = self._packet(looked)
        self.issued, self.follows = True, packet.kind in (Kind.COMPARE, Kind.DRIFT)
        return Go(issue=packet)

    def _after_refused(self, _: None) -> Action:
        return Go()

    def _packet(self, looked: Looked) -> Packet:
        """Say at the due call that comes next what this rank knows now."""
        due, serial = self.due, self.serial
        interval, soon = self.every or looked.interval, self.every or looked.soon
        if self.stage == "accepted":
            self.refusal = looked.refusal
            if looked.durable and looked.refusal is None:
                self.doubt = True
                self.apply_call = at = self.apply_at(looked.at)
                return Packet(serial, Kind.APPLY, at + interval, self.command, apply_call=at)
            if looked.overdue or looked.refusal is not None:
                return Packet(serial, Kind.REJECT, due + interval, self.command)
            return Packet(serial, Kind.IDLE, due + soon)
        if looked.size is not None:
            self.command += 1
            self.stage, self.never = "offered", False
            return Packet(serial, Kind.COMMAND, due + soon, self.command, looked.size)
        if looked.drift is not None:
            return Packet(serial, Kind.DRIFT, due + interval, size=looked.drift)
        if looked.compare:
            return Packet(serial, Kind.COMPARE, due + interval)
        return Packet(serial, Kind.IDLE, due + interval)

    def apply_at(self, wanted: int) -> int:
        """Return the call for an apply that the next packet announces; always a later one."""
        every = self.every or 1
        return max(self.due + every, -(-wanted // every) * every)

    def _after_looked_alone(self, looked: Looked) -> Action:
        if self.stage == "accepted":
            if self.call < looked.at and looked.durable:
                return Go()
            if looked.refusal is not None:
                return self._resolved(looked.refusal)
            if looked.durable:
                self.doubt = True
                return self._apply()
            return self._resolved(_NOT_STORED) if looked.overdue else Go()
        if looked.size is None:
            return Go()
        self.command += 1
        self.stage, self.never = "offered", False
        return self._do(Check(), "checked")

    # Losing the exchange, and leaving.

    def _lost(self, cause: Cause) -> Action:
        self.on, self.cause = False, cause
        return self._do(Off(cause, self.doubt), "off")

    def _after_off(self, _: None) -> Action:
        if self.doubt:
            return self._do(Restore(), "undone") if self.changed else self._settle(self.applied)
        if self.coordinator and self.stage:
            assert self.cause is not None
            said = self.cause.text
            message = f"{said[:1].upper()}{said[1:]}."
            return self._conclude(Verdict("rejected", self.cause.code, message), "ended")
        self._clear()
        return self._say_never()

    def _after_undone(self, text: str) -> Action:
        assert self.cause is not None
        self.changed = False
        if text:
            failures = (self.verdict.failures if self.verdict else ()) + ((self.rank, text),)
            self.verdict = Verdict(
                "outcome_unknown", "DivergedStateError", failures=failures, applied_on=None
            )
        return self._settle(self.applied)

    def _settle(self, applied: bool) -> Action:
        # Whoever has applied knows that it was announced; only the coordinator then waits, to
        # count the others' reports.
        wait = self.coordinator or not applied
        return self._do(Settle(self.command, applied=applied, wait=wait), "settled")

    def _after_settled(self, settled: Settled) -> Action:
        assert self.cause is not None
        if settled.never and not self.applied and not self.coordinator:
            self._clear()
            return Go()
        text = f"RankGone: {self.cause.text}"
        failures = self.verdict.failures if self.verdict else ()
        gone = self.cause.ranks or (self.rank,)
        failures += tuple((rank, text) for rank in gone if rank not in dict(failures))
        return self._diverged(
            Verdict(
                "outcome_unknown",
                "DivergedStateError",
                f"The exchange was lost while the command was being applied: {self.cause.text}.",
                failures=tuple(sorted(failures)),
                applied_on=self.verdict.applied_on if self.verdict else settled.applied_on,
                rolled_back=False,
                consistent=False,
            )
        )

    def _after_ended(self, _: None) -> Action:
        self._clear()
        self.never = True
        return self._say_never()

    def _say_never(self, then: str = "said") -> Action:
        """End the doubt of peers that did not see how the last command was refused."""
        if self.size == 1 or not self.never:
            return Go()
        return self._do(Settle(self.command, never=True, wait=False), then)

    def _after_said(self, _: Settled) -> Action:
        return Go()

    def _after_closing(self, _: Settled | None) -> Action:
        # Only with no command or comparison under way: the peers' next operation is then sure to
        # be the broadcast of a packet. Gloo ends the process where sizes differ.
        if self.size == 1 or self.follows:
            return Go()
        serial = self.serial + 1 if self.issued else self.serial
        return Go(issue=Packet(serial, Kind.CLOSING, NEVER, size=self.step))

    def _after_left_in_doubt(self, settled: Settled) -> Action:
        unknown = Verdict(
            "outcome_unknown",
            "run_ended",
            "Rank 0 finished between announcing the command and applying it.",
            consistent=False,
        )
        self._clear()
        return self._conclude(_ENDED if settled.never else unknown, "refused")

    def _conclude(self, verdict: Verdict, then: str) -> Action:
        return self._do(Conclude(verdict), then)

    def _gather(self, row: Row, then: str) -> Action:
        if self.size == 1:
            self.then = then
            return self.feed((row,))
        return self._do(Gather(row, self.handler), then)

    def _do(self, action: Action, then: str) -> Action:
        self.then = then
        return action


_NOT_STORED: Final = Verdict(
    "rejected",
    "storage_unavailable",
    "The run directory did not accept the record of it in time.",
)
_ENDED: Final = Verdict("rejected", "run_ended", "The run ended before it could be applied.")


def _confused(what: str) -> Cause:
    return Cause("serial", (), f"the ranks do not follow the same sequence: {what}")
