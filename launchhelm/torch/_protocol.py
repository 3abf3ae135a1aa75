"""The control exchange of one rank as a pure machine: results in, actions out.

No torch, no clock, no disk, no thread. `_exchange` carries out the actions on a gloo group;
tests/unit/lht/test_exchange_model.py carries them out in every possible order and proves that no
order dead-locks and that ranks never disagree silently.

How a command travels (D is a due call, known to all ranks beforehand):

    call D-1   coordinator   issues the packet of D, without waiting: "command 7, 83 bytes"
    call D     all           await it, share the body, check it, gather the votes
               coordinator   records `applying`, without waiting
    call E-1   coordinator   once that record is durable: issues "apply 7 at call E+1"
    call E     all           await that
    call E+1   all           snapshot, apply, read back; gather the results; all right: done.
                             Otherwise everyone restores and gathers once more.

A rank is in doubt while it cannot exclude that others apply a command it has agreed to: a peer from
its accepting vote until the result, the coordinator from issuing the apply packet. When the
exchange is lost, doubt decides: without doubt, control goes off and training goes on; in doubt, the
rank takes back what it changed, asks the store for the coordinator's word ("never announced" ends
the doubt), and otherwise raises DivergedStateError.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeAlias

NEVER: Final = 1 << 62
"""A call that does not come."""


class Kind(IntEnum):
    """What a packet says."""

    IDLE = 0
    COMMAND = 1
    APPLY = 2
    REJECT = 3
    CLOSING = 4


class Status(IntEnum):
    """What a rank says in a gather."""

    OK = 0
    FAILED = 1
    EXPIRED = 2


@dataclass(frozen=True, slots=True)
class Packet:
    """What the coordinator tells all ranks at a due call.

    Args:
        serial: Rises by one with each packet; another number than expected ends control.
        kind: What it says.
        next_due: The due call after this one.
        command: Number of the command it is about, 0 when about none.
        size: Bytes of the command's body, for COMMAND.
        apply_call: Always later than the call at which this packet is awaited; for APPLY.
    """

    serial: int
    kind: Kind
    next_due: int
    command: int = 0
    size: int = 0
    apply_call: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """One rank's line in a gather: its vote, its result, or the success of its roll-back.

    `digest` is, in a vote, 1 for a handler and 0 for state; in a result, that of the values read
    back, 0 when they are not comparable. `text` is the error, or an excerpt of the values.
    """

    status: Status
    call: int
    step: int
    digest: int = 0
    text: str = ""


@dataclass(frozen=True, slots=True)
class Cause:
    """Why the exchange was lost.

    Args:
        kind: left, dead, timeout, broken, serial, internal, absent.
        ranks: The group ranks that are gone or silent, as far as known.
        text: One sentence for people.
    """

    kind: str
    ranks: tuple[int, ...]
    text: str

    @property
    def code(self) -> str:
        """The outcome code of commands that can no longer be applied."""
        return "rank_gone" if self.kind in ("left", "dead", "timeout", "broken") else "control_off"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a command, the same on every rank that knows it.

    Args:
        state: applied, rejected, expired or outcome_unknown.
        failures: (group rank, "Type: text"), in rank order.
        applied_on: Ranks that had applied it before any roll-back; None: not known.
        rolled_back: True or False after a failure, else None.
        consistent: Whether all ranks are known to hold equal values.
    """

    state: str
    code: str = ""
    message: str = ""
    failures: tuple[tuple[int, str], ...] = ()
    applied_on: int | None = None
    rolled_back: bool | None = None
    consistent: bool = True


# Results: what an action may be answered with.


@dataclass(frozen=True, slots=True)
class Lost:
    """The answer to any Await, Share or Gather that did not come about."""

    cause: Cause


@dataclass(frozen=True, slots=True)
class Looked:
    """The coordinator's view at the end of a call.

    Args:
        size: Bytes of the body of a command that was just taken, None when there is none.
        durable: Whether the `applying` record of the command under way has reached the disk.
        overdue: Whether that took too long.
        interval: Calls until the next exchange when idle.
        soon: Calls until the next exchange while a command is under way.
    """

    size: int | None = None
    durable: bool = False
    overdue: bool = False
    interval: int = 1
    soon: int = 1


@dataclass(frozen=True, slots=True)
class Checked:
    """The answer to Check: why not ("" when it fits), and whether it is a handler."""

    text: str
    handler: bool = False


@dataclass(frozen=True, slots=True)
class Applied:
    """The answer to Apply. `changed`: there is a snapshot, so a roll-back is possible."""

    status: Status
    text: str = ""
    digest: int = 0
    changed: bool = False


@dataclass(frozen=True, slots=True)
class Settled:
    """The answer to Settle.

    Args:
        never: It is certain that no rank applies the command.
        applied_on: How many ranks reported that they had applied it; coordinator only.
    """

    never: bool
    applied_on: int | None = None


# Actions: what the machine wants done. Each but Go and Raise is answered by `feed`.


@dataclass(frozen=True, slots=True)
class Go:
    """The call is over. `issue`: first post this packet, without waiting for it."""

    issue: Packet | None = None


@dataclass(frozen=True, slots=True)
class Await:
    """Wait for the packet that is due. Answer: Packet or Lost."""


@dataclass(frozen=True, slots=True)
class Share:
    """Broadcast the command's body. Answer: None or Lost."""

    size: int


@dataclass(frozen=True, slots=True)
class Check:
    """Ask this rank's controls whether the command would fit. Answer: Checked."""


@dataclass(frozen=True, slots=True)
class Gather:
    """Exchange one row per rank. Answer: a tuple of rows in rank order, or Lost."""

    row: Row
    handler: bool = False


@dataclass(frozen=True, slots=True)
class Look:
    """Coordinator: see whether the record is durable (`under_way`), else take a command."""

    under_way: bool


@dataclass(frozen=True, slots=True)
class Record:
    """Coordinator: begin to write the `applying` record. Answer: None, at once."""


@dataclass(frozen=True, slots=True)
class Apply:
    """Snapshot, apply, read back, on this rank. Answer: Applied."""

    handler: bool


@dataclass(frozen=True, slots=True)
class Restore:
    """Put back the snapshot. Answer: "" or the error's text."""


@dataclass(frozen=True, slots=True)
class Conclude:
    """Coordinator: record the one final outcome. Answer: None."""

    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Settle:
    """Without the group: tell the store what this rank knows, and learn what it can.

    Args:
        command: Its number.
        never: Coordinator: publish that no rank may apply it.
        applied: This rank had applied it before taking it back.
        wait: Wait some seconds for the word of the others.
    """

    command: int
    never: bool = False
    applied: bool = False
    wait: bool = True
    before: int = NEVER
    """Finishing in doubt: `never` also holds if every other rank has left before this call."""


@dataclass(frozen=True, slots=True)
class Off:
    """Stop using the group, tell the others why through the store, and say so once."""

    cause: Cause
    in_doubt: bool = False


@dataclass(frozen=True, slots=True)
class Warn:
    """Warn of a divergence that the user chose to live with. Answer: None."""

    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Raise:
    """Raise DivergedStateError; this ends the call."""

    verdict: Verdict


Action: TypeAlias = (
    Go | Await | Share | Check | Gather | Look | Record | Apply | Restore | Conclude | Settle
    | Off | Warn | Raise
)  # fmt: skip
Result: TypeAlias = (
    None | str | Packet | Lost | Looked | Checked | Applied | Settled | tuple[Row, ...]
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
    """

    rank: int
    size: int
    every: int = 0
    proceed: bool = False

    call: int = 0
    step: int = 0
    due: int = 0
    serial: int = 0
    issued: bool = False
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
        due = self.due - 1 if self.coordinator and not self.issued else self.due
        return min(due, self.apply_call)

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

    def finish(self) -> Action:
        """Leave. No collective: only Conclude, Settle and Go follow."""
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
        if packet.kind is Kind.COMMAND:
            self.command, self.body, self.stage = packet.command, packet.size, "offered"
            return self._do(Share(packet.size), "shared")
        if packet.kind is Kind.CLOSING:
            return self._lost(Cause("left", (0,), "rank 0 has finished"))
        if packet.kind is Kind.IDLE:
            return self._end()
        if packet.command != self.command or self.stage != "accepted":
            return self._lost(_confused(f"unknown command {packet.command} was announced"))
        if packet.kind is Kind.REJECT:
            return self._resolved(_NOT_STORED)
        if packet.apply_call <= self.call:
            return self._lost(_confused(f"call {packet.apply_call} has passed"))
        self.apply_call = packet.apply_call
        return self._end()

    def _after_shared(self, _: None) -> Action:
        return self._do(Check(), "checked")

    def _after_checked(self, checked: Checked) -> Action:
        if self.size == 1:
            if checked.text:
                return self._resolved(_refusal([(0, checked.text)], self.size))
            self.handler = checked.handler
            return self._record()
        status = Status.FAILED if checked.text else Status.OK
        self.doubt = not self.coordinator and status is Status.OK
        row = Row(status, self.call, self.step, int(checked.handler), checked.text)
        return self._do(Gather(row), "votes")

    def _after_votes(self, rows: tuple[Row, ...]) -> Action:
        refusal = judge_votes(rows)
        if refusal is not None:
            return self._resolved(refusal)
        self.stage = "accepted"
        self.handler = bool(rows[0].digest)
        return self._record() if self.coordinator else self._end()

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
        row = Row(applied.status, self.call, self.step, applied.digest, applied.text)
        return self._gather(row, "results")

    def _after_results(self, rows: tuple[Row, ...]) -> Action:
        verdict = judge_results(rows)
        if verdict.state != "outcome_unknown":
            return self._resolved(verdict)
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

    def _resolved(self, verdict: Verdict) -> Action:
        """The command ended the same way on all ranks."""
        self._clear()
        self.never = verdict.state != "applied"
        return self._conclude(verdict, "ended_call") if self.coordinator else self._end()

    def _clear(self) -> None:
        self.stage, self.doubt, self.apply_call = "", False, NEVER
        self.changed = self.applied = False

    def _after_ended_call(self, _: None) -> Action:
        return self._end()

    def _end(self) -> Action:
        if self.on and self.coordinator and self.size > 1 and self.call + 1 == self.due:
            return self._look()
        return Go()

    def _look(self) -> Action:
        return self._do(Look(self.stage == "accepted"), "looked")

    def _after_looked(self, looked: Looked) -> Action:
        if not self.on:
            assert self.cause is not None
            refusal = Verdict("rejected", self.cause.code, f"Control is off: {self.cause.text}.")
            return Go() if looked.size is None else self._conclude(refusal, "refused")
        if self.size == 1:
            return self._after_looked_alone(looked)
        self.issued = True
        return Go(issue=self._packet(looked))

    def _after_refused(self, _: None) -> Action:
        return Go()

    def _packet(self, looked: Looked) -> Packet:
        """Say at the due call that comes next what this rank knows now."""
        due, serial = self.due, self.serial
        interval, soon = self.every or looked.interval, self.every or looked.soon
        if self.stage == "accepted":
            if looked.durable:
                self.doubt = True
                self.apply_call = at = due + (self.every or 1)
                return Packet(serial, Kind.APPLY, at + interval, self.command, apply_call=at)
            if looked.overdue:
                return Packet(serial, Kind.REJECT, due + interval, self.command)
            return Packet(serial, Kind.IDLE, due + soon)
        if looked.size is not None:
            self.command += 1
            self.stage, self.never = "offered", False
            return Packet(serial, Kind.COMMAND, due + soon, self.command, looked.size)
        return Packet(serial, Kind.IDLE, due + interval)

    def _after_looked_alone(self, looked: Looked) -> Action:
        if self.stage == "accepted":
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
            message = f"Nothing was changed: {self.cause.text}."
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
        # Only with no command under way: the peers' next operation is then sure to be the
        # broadcast of a packet.
        if self.size == 1:
            return Go()
        serial = self.serial + 1 if self.issued else self.serial
        return Go(issue=Packet(serial, Kind.CLOSING, NEVER))

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


def judge_votes(rows: Sequence[Row]) -> Verdict | None:
    """Return why a command is refused, the same on every rank; None when all ranks accept."""
    if len({(row.call, row.step) for row in rows}) > 1:
        where = ", ".join(
            f"rank {rank} at step {row.step} (call {row.call})" for rank, row in enumerate(rows)
        )
        message = f"The ranks are not at the same step: {where}."
        return Verdict("rejected", "steps_differ", _shorten(message))
    failures = [(rank, row.text) for rank, row in enumerate(rows) if row.status is not Status.OK]
    if failures:
        return _refusal(failures, len(rows))
    if len({row.digest for row in rows}) > 1:
        return Verdict("rejected", "local_validation", "The ranks know different controls.")
    return None


def judge_results(rows: Sequence[Row]) -> Verdict:
    """Return what became of a command that all ranks tried to apply."""
    if all(row.status is Status.EXPIRED for row in rows):
        return Verdict("expired", "expired", "Its last step passed before it could be applied.")
    failures = [
        (rank, row.text or row.status.name.lower())
        for rank, row in enumerate(rows)
        if row.status is not Status.OK
    ]
    applied_on = len(rows) - len(failures)
    if not failures:
        # The values of most ranks are the norm; among equals, that of the lowest rank.
        usual = Counter(row.digest for row in rows).most_common(1)[0][0]
        failures = [
            (rank, f"ReadBack: holds {row.text}, unlike the other ranks")
            for rank, row in enumerate(rows)
            if row.digest != usual
        ]
        if not failures:
            return Verdict("applied", applied_on=applied_on)
        applied_on -= len(failures)
    return Verdict(
        "outcome_unknown",
        "DivergedStateError",
        f"Applied on {applied_on} of {len(rows)} ranks.",
        failures=tuple(failures),
        applied_on=applied_on,
        rolled_back=False,
        consistent=False,
    )


def judge_roll_back(verdict: Verdict, rows: Sequence[Row]) -> Verdict:
    """Complete a failed verdict by how the roll-back went on each rank."""
    stuck = [
        (rank, f"roll-back failed: {row.text}")
        for rank, row in enumerate(rows)
        if row.status is not Status.OK
    ]
    undone = not stuck
    tail = (
        "All ranks took it back; the state is consistent."
        if undone
        else f"It could not be taken back on rank {', '.join(str(rank) for rank, _ in stuck)}."
    )
    return Verdict(
        verdict.state,
        verdict.code,
        f"{verdict.message} {tail}",
        failures=tuple(sorted((*verdict.failures, *stuck))),
        applied_on=verdict.applied_on,
        rolled_back=undone,
        consistent=undone,
    )


_NOT_STORED: Final = Verdict(
    "rejected",
    "storage_unavailable",
    "The run directory did not accept the record of it in time; nothing was changed.",
)
_ENDED: Final = Verdict("rejected", "run_ended", "The run ended before it could be applied.")


def _refusal(failures: Sequence[tuple[int, str]], size: int) -> Verdict:
    texts = {text for _, text in failures}
    if len(failures) == size and len(texts) == 1:
        message = failures[0][1]
    else:
        message = "; ".join(f"rank {rank}: {text}" for rank, text in failures)
    return Verdict("rejected", "local_validation", _shorten(message), failures=tuple(failures))


def _confused(what: str) -> Cause:
    return Cause("serial", (), f"the ranks do not follow the same sequence: {what}")


def _shorten(message: str, limit: int = 2000) -> str:
    return message if len(message) <= limit else message[: limit - 3] + "..."
