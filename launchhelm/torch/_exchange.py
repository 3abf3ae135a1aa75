"""The control exchange of one trainer: the machine of `_protocol`, carried out on real links.

`Trainer.step` calls `on_call` once, on every rank. Between due calls that compares two integers and
returns. At a due call the machine says what to do, one action after the other, and this module does
it: collectives through `_collective`, changes through the Plant, records through the Desk. Only the
calling thread is involved; the recorder's thread reads `Progress` and nothing else.

Nothing but DivergedStateError leaves `on_call`: any failure of our own ends control, not training.
"""

from __future__ import annotations

import json
import statistics
import struct
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from launchhelm._clock import SYSTEM_CLOCK, Clock
from launchhelm.records import Command, Outcome
from launchhelm.torch._collective import PACKET_INTEGERS, LinkLost, Links
from launchhelm.torch._comparison import Comparison
from launchhelm.torch._errors import DivergedStateError
from launchhelm.torch._messages import (
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
    digest,
)
from launchhelm.torch._protocol import (
    Machine,
)

MAX_BODY_BYTES: Final = 64 << 10
MAX_TEXT_BYTES: Final = 256
RECORD_LIMIT_S: Final = 5.0
"""After this, a command whose `applying` record is not durable is refused."""
WORD_LIMIT_S: Final = 5.0
"""How long a peer in doubt waits for the coordinator's word after the exchange was lost."""
REPORT_LIMIT_S: Final = 3.0
LEAVE_LIMIT_S: Final = 2.0
_MAGIC: Final = 0x4C48
_ROW: Final = struct.Struct(f"<qqqqq{MAX_TEXT_BYTES}s")


class Ticket(Protocol):
    """A record on its way to the disk."""

    @property
    def durable(self) -> bool:
        """Whether it has arrived."""
        ...


class Desk(Protocol):
    """Where the coordinator gets commands and files what became of them. No method waits."""

    def take(self, step: int) -> Command | None:
        """Return the next command that may be applied now, if any."""
        ...

    def applying(self, command: Command, step: int) -> Ticket:
        """Begin to write the record that must be durable before anything changes."""
        ...

    def conclude(self, command: Command, outcome: Outcome) -> None:
        """File the one final outcome."""
        ...


class Plant(Protocol):
    """The controls of this rank. Every method runs on the thread that calls `Trainer.step`."""

    def kind(self, name: str) -> Literal["state", "handler"]:
        """Say whether the control is state, which can be taken back, or runs a handler."""
        ...

    def check(self, name: str, payload: Mapping[str, Any], step: int) -> str | None:
        """Say why the command does not fit ("" or None when it does). Changes nothing."""
        ...

    def snapshot(self, name: str, payload: Mapping[str, Any]) -> object:
        """Return what `restore` needs to undo `apply` exactly."""
        ...

    def apply(self, name: str, payload: Mapping[str, Any], step: int) -> Mapping[str, Any]:
        """Change the state and return the result for the outcome. May raise anything."""
        ...

    def note(self, name: str) -> str:
        """Say what people should know of what `apply` just did, "" for nothing."""
        ...

    def read_back(self, name: str, payload: Mapping[str, Any]) -> str:
        """Return the values now in effect as canonical text; "" when ranks may differ."""
        ...

    def restore(self, snapshot: object) -> None:
        """Undo `apply`, also one that failed half way."""
        ...

    def changes(self, name: str, snapshot: object) -> Mapping[str, Any]:
        """Return {"value": {"old": ..., "new": ...}} for the outcome, after `apply`."""
        ...

    def values(self) -> Mapping[str, Any]:
        """Return what all controls hold now, by name; JSON, to be equal on all ranks."""
        ...


class Progress(Protocol):
    """What the heartbeat shows of this rank."""

    phase: str
    phase_since: float
    exchange_wait_ms: float | None
    step_time_ms: float | None


@dataclass(slots=True)
class ControlStatus:
    """The state of the exchange, for the `ctl` record and the status view.

    `diverged` is {name: {rank: value}} of values that differ between ranks.
    """

    on: bool = True
    why: str = ""
    serial: int = 0
    next_due_call: int = 0
    calls_per_exchange: int = 1
    last_wait_ms: float = 0.0
    diverged: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(slots=True)
class Pace:
    """How many calls lie between two exchanges: about 0.5 s of training, found out carefully.

    The interval at most doubles, is at most 1,000, and times the slowest recent step stays below
    5 s, so that a training that suddenly slows down still listens.
    """

    target_s: float = 0.5
    limit_s: float = 5.0
    most: int = 1000
    soon_s: float = 0.02
    interval: int = 1
    steps_s: deque[float] = field(default_factory=lambda: deque(maxlen=64))
    _last: float | None = None

    def tick(self, now: float) -> None:
        """Note the time of one more call."""
        if self._last is not None:
            self.steps_s.append(now - self._last)
        self._last = now

    def rest(self) -> None:
        """Let the time until the next call count for nothing."""
        self._last = None

    @property
    def step_s(self) -> float:
        """The median of recent steps, in seconds."""
        return statistics.median(self.steps_s) if self.steps_s else 0.0

    def next_interval(self) -> int:
        """Decide the interval that follows the current one."""
        slowest_s = max(self.steps_s, default=self.limit_s)
        most = min(2 * self.interval, self.most, self.limit_s / max(slowest_s, 1e-9))
        self.interval = max(1, int(min(most, self.target_s / max(self.step_s, 1e-9))))
        return self.interval

    def soon(self) -> int:
        """Return the calls until the next exchange while a command is under way."""
        return max(1, min(self.interval, round(self.soon_s / max(self.step_s, 1e-9))))


@dataclass(slots=True)
class _Task:
    """The command under way, as every rank knows it."""

    body: bytes
    name: str
    payload: Mapping[str, Any]
    last_step: int | None
    command: Command | None = None
    ticket: Ticket | None = None
    recorded_at: float = 0.0
    snapshot: object = None
    result: Mapping[str, Any] | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, body: bytes, command: Command | None = None) -> _Task:
        """Read the body of a command."""
        value = json.loads(body)
        return cls(body, value["name"], value["payload"], value["last_step"], command)


class Exchange:
    """Brings commands to all ranks of a trainer at one call, and their outcomes back.

    Args:
        links: To the other ranks; None when this is the only one.
        desk: The coordinator's source of commands; None on the other ranks.
        plant: What the commands change.
        progress: Where the phase and the wait of the exchange are shown.
        notice: Told once when control goes off, and why.
        control_every: 1: paced, about every 0.5 s of training; more: every so many calls.
        on_partial_failure: `raise` or `continue`.
        on_divergence: What happens when ranks are found to hold different values between commands:
            `warn`, `raise` or `ignore`.
        timeout_s: Seconds to wait for a silent rank; default is what the links were made with.
        clock: Time for the pace and the limits.
    """

    def __init__(
        self,
        *,
        links: Links | None,
        desk: Desk | None,
        plant: Plant,
        progress: Progress,
        notice: Callable[[str], None],
        control_every: int = 1,
        on_partial_failure: str = "raise",
        on_divergence: str = "warn",
        timeout_s: float | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._links = links
        self._desk = desk
        self._plant = plant
        self._progress = progress
        self._notice = notice
        self._now = clock.monotonic
        self._pace = Pace()
        self._waits_ms: deque[float] = deque(maxlen=16)
        self._task: _Task | None = None
        self._phase_before = ""
        self._told: set[str] = set()
        self._call = 0
        self._step = 0
        self._machine = Machine(
            rank=links.rank if links else 0,
            size=links.size if links else 1,
            every=control_every if control_every > 1 else 0,
            proceed=on_partial_failure == "continue",
            strict=on_divergence == "raise",
            leader=f"rank {links.name_of(0)}" if links else "",
        )
        self._comparison: Comparison | None = None
        self.status = ControlStatus(calls_per_exchange=control_every)
        if links is not None:
            if timeout_s is not None:
                links.timeout_s = timeout_s
            links.where = lambda: (self._call, self._step)
            links.on_slow, links.on_done = self._slow, self._done
            self._comparison = Comparison(
                links, plant.values, self._now, notice, wanted=on_divergence != "ignore"
            )
            if not links.on:
                self._machine.on = False
                self._machine.cause = Cause("absent", (), links.why)
                self.status.on, self.status.why = False, links.why
        self._show()

    def on_call(self, step: int) -> None:
        """Do what is due at this call of `Trainer.step`. Every rank, once per call.

        Costs about a microsecond where nothing is due.

        Raises:
            DivergedStateError: A command did not end alike on all ranks.
        """
        self._call = call = self._call + 1
        self._step = step
        self._pace.tick(self._now())
        if call >= self._wake:
            self._serve(self._machine.begin(call, step))

    def idle(self, step: int, pause_s: float) -> None:
        """Wait a moment, then go on to the next call at which there is anything to do.

        For ranks that hold at one step: every rank calls it instead of `on_call`, until a command
        ends that. They stay at equal calls, and no rank waits long in a collective.

        Raises:
            DivergedStateError: As in `on_call`.
        """
        if not self._machine.issued:  # A peer may be waiting for what was issued.
            time.sleep(pause_s)
        self._pace.rest()
        if self._wake < NEVER:
            self._call, self._step = max(self._call + 1, self._wake), step
            self._serve(self._machine.begin(self._call, step))

    def finish(self, reason: str = "finished") -> None:
        """Leave. No collective, and at most 2 s; calls of `on_call` after it do nothing."""
        if self._machine.finished:
            return
        try:
            self._run(self._machine.finish(self._step))
            if self._links is not None:
                self._links.leave(self._step, self._call, reason)
                self._links.drop()
        except Exception as error:  # Leaving must not cost the training anything.
            self._tell(f"Leaving the control exchange failed: {_text(error)}.")
        self._show()

    def _serve(self, action: Action) -> None:
        try:
            self._run(action)
        except DivergedStateError:
            raise
        except Exception as error:  # Training is protected from our own mistakes.
            self._fail(error)
        except BaseException as error:
            # Ctrl-C inside a wait: the operation stays behind, so nothing may follow it.
            if self._links is not None and self._machine.on:
                self._machine.on = False
                cause = Cause("broken", (self._machine.rank,), f"{type(error).__name__} in step")
                self._machine.cause = cause
                self._links.break_off(cause)
            raise
        finally:
            self._show()

    def _fail(self, error: Exception) -> None:
        """End control after a mistake of our own, by the rules for a lost exchange."""
        cause = Cause("internal", (), f"internal error: {_text(error)}")
        try:
            self._run(self._machine.lose(cause))
        except DivergedStateError:
            raise
        except Exception as again:  # Then without the rules.
            self._machine.on, self._machine.cause = False, cause
            self._tell(f"Control is off: {_text(again)}.")

    def _run(self, action: Action) -> None:
        """Carry out actions until the call is over."""
        while True:
            if isinstance(action, Go):
                if action.issue is not None:
                    self._issue(action.issue)
                return
            if isinstance(action, Raise):
                raise self._error(action.verdict)
            action = self._machine.feed(self._carry_out(action))

    def _carry_out(self, action: Action) -> Result:
        try:
            match action:
                case Await():
                    return self._await()
                case Share():
                    return self._share(action)
                case Gather():
                    return self._gather(action)
                case Check():
                    return self._check()
                case Look():
                    return self._look(action)
                case Compare():
                    self._compared.compare()
                    return None
                case Report():
                    return self._compared.tell(action.size)
                case Record():
                    return self._record()
                case Apply():
                    return self._apply(action)
                case Restore():
                    return self._restore()
                case Conclude():
                    return self._conclude(action.verdict)
                case Settle():
                    return self._settle(action)
                case Off():
                    return self._off(action)
                case Warn():
                    return self._warn(action.verdict)
        except LinkLost as lost:
            return Lost(lost.cause)
        raise AssertionError(f"no such action: {action}")

    # On the group.

    def _issue(self, packet: Packet) -> None:
        assert self._links is not None
        self._links.issue(_pack(packet))

    def _await(self) -> Packet | Lost:
        assert self._links is not None
        start = time.perf_counter()
        integers = self._links.receive()
        wait_ms = (time.perf_counter() - start) * 1e3
        self._waits_ms.append(wait_ms)
        self.status.last_wait_ms = wait_ms
        self._progress.exchange_wait_ms = statistics.median(self._waits_ms)
        self._progress.step_time_ms = self._pace.step_s * 1e3
        packet = _unpack(integers)
        if packet is None:
            return Lost(Cause("serial", (), "the coordinator speaks another version"))
        return packet

    def _share(self, action: Share) -> Result:
        assert self._links is not None
        own = self._task.body if self._task and self._machine.coordinator else None
        body = self._links.share(own, action.size)
        if own is None:
            self._task = _Task.parse(body)
        return None

    def _gather(self, action: Gather) -> tuple[Row, ...]:
        assert self._links is not None
        handler = f"in {self._under_way.name}" if action.handler else ""
        rows = self._links.gather(_pack_row(action.row), handler=handler)
        return tuple(_unpack_row(row) for row in rows)

    # On this rank's controls.

    def _check(self) -> Checked:
        task = self._under_way
        try:
            handler = self._plant.kind(task.name) == "handler"
            return Checked(self._plant.check(task.name, task.payload, self._step) or "", handler)
        except Exception as error:  # A control's mistake is a refusal, not a crash.
            return Checked(_text(error))

    def _apply(self, action: Apply) -> Applied:
        task = self._under_way
        if task.last_step is not None and self._step > task.last_step:
            return Applied(Status.EXPIRED, f"Expired: step {self._step} is past {task.last_step}")
        changed = False
        try:
            if action.handler:
                self._enter(f"in {task.name}")
                task.result = self._plant.apply(task.name, task.payload, self._step)
                return Applied(Status.OK)
            task.snapshot = self._plant.snapshot(task.name, task.payload)
            changed = True
            task.result = self._plant.apply(task.name, task.payload, self._step)
            values = self._plant.read_back(task.name, task.payload)
            if self._desk is not None:
                task.changes = self._plant.changes(task.name, task.snapshot)
        except Exception as error:  # It may raise anything; the other ranks must hear of it.
            return Applied(Status.FAILED, _text(error), changed=changed)
        finally:
            self._done()
        return Applied(Status.OK, values, digest(values), changed)

    def _restore(self) -> str:
        task = self._under_way
        try:
            self._plant.restore(task.snapshot)
        except Exception as error:  # The other ranks must hear of it.
            return _text(error)
        return ""

    # With the desk, on the coordinator.

    def _look(self, action: Look) -> Looked:
        size, durable, overdue = None, False, False
        if action.under_way:
            task = self._under_way
            durable = task.ticket is not None and task.ticket.durable
            overdue = self._now() - task.recorded_at > RECORD_LIMIT_S
        elif self._desk is not None:
            size = self._take()
        if self._links is None or not self._machine.on:
            return Looked(size, durable, overdue, 1, 1)  # Every call is due; there is no pace.
        interval = self._pace.next_interval() if not self._machine.every else 0
        drift, compare = None, False
        if size is None and not action.under_way:
            drift, compare = self._compared.found(), self._compared.is_due
        return Looked(size, durable, overdue, interval, self._pace.soon(), compare, drift)

    def _take(self) -> int | None:
        assert self._desk is not None
        try:
            command = self._desk.take(self._step)
        except Exception as error:  # The ranks wait for a packet, with or without a command in it.
            self._tell(f"The next command could not be taken: {_text(error)}.")
            return None
        if command is None:
            return None
        body = json.dumps(
            {"name": command.name, "payload": command.payload, "last_step": command.last_step}
        ).encode()
        self._task = _Task.parse(body, command)
        if len(body) > MAX_BODY_BYTES:
            text = f"The command has {len(body):,} bytes; at most {MAX_BODY_BYTES:,} can be sent."
            self._conclude(Verdict("rejected", "too_large", text))
            return None
        return len(body)

    def _record(self) -> Result:
        task = self._under_way
        assert self._desk is not None and task.command is not None
        task.recorded_at = self._now()
        task.ticket = self._desk.applying(task.command, self._step)
        return None

    def _conclude(self, verdict: Verdict) -> Result:
        task = self._under_way
        assert self._desk is not None and task.command is not None
        final = verdict.state in ("applied", "outcome_unknown")
        outcome = Outcome(
            command=task.command.id,
            state=verdict.state,
            code=verdict.code,
            message=verdict.message
            or (self._plant.note(task.name) if verdict.state == "applied" else ""),
            name=task.name,
            result=task.result if verdict.state == "applied" else None,
            applied_at={"step": self._step} if verdict.state == "applied" else {},
            applied_on=verdict.applied_on,
            of=self._machine.size if final else None,
            rolled_back=verdict.rolled_back,
            changes=task.changes if final else {},
            failures=tuple((rank, self._host(rank), text) for rank, text in verdict.failures),
        )
        try:
            self._desk.conclude(task.command, outcome)
        except Exception as error:  # The other ranks must still learn what became of it.
            self._tell(f"The outcome of {task.name!r} could not be recorded: {_text(error)}.")
        return None

    @property
    def _under_way(self) -> _Task:
        assert self._task is not None
        return self._task

    @property
    def _compared(self) -> Comparison:
        assert self._comparison is not None
        return self._comparison

    # Losing the exchange.

    def _off(self, action: Off) -> Result:
        if self._links is not None:
            self._links.break_off(action.cause)
        self.status.on, self.status.why = False, action.cause.text
        after = "A command was under way" if action.in_doubt else "Training goes on"
        self._tell(
            f"Control is off from step {self._step} on: {action.cause.text}. {after}; "
            "later commands are refused."
        )
        return None

    def _settle(self, action: Settle) -> Settled:
        assert self._links is not None
        links, board, number = self._links, self._links.board, action.command
        if action.never:
            board.put(f"never/{number}", "1")
            return Settled(True)
        if action.before < NEVER:
            return Settled(_within(LEAVE_LIMIT_S, lambda: links.left_before(action.before)))
        if self._machine.coordinator:
            reports = {0: "1" if action.applied else "0"}
            missing = set(range(1, links.size)) - set(
                self._machine.cause.ranks if self._machine.cause else ()
            )

            def all_reported() -> bool:
                for rank in sorted(missing - set(reports)):
                    report = board.read(f"report/{number}/{rank}")
                    if report is not None:
                        reports[rank] = report
                return missing <= set(reports) or not board.alive

            _within(REPORT_LIMIT_S, all_reported)
            return Settled(False, applied_on=list(reports.values()).count("1"))
        board.put(f"report/{number}/{links.rank}", "1" if action.applied else "0")
        if not action.wait:
            return Settled(False)
        word = f"never/{number}"
        _within(WORD_LIMIT_S, lambda: board.read(word) is not None or not board.alive)
        return Settled(board.read(word) is not None)

    def _warn(self, verdict: Verdict) -> Result:
        warnings.warn(str(self._error(verdict)), RuntimeWarning, stacklevel=6)
        return None

    def _error(self, verdict: Verdict) -> DivergedStateError:
        drift = verdict.code == "drift"
        name = next(iter(self._compared.diverged), "") if drift else ""
        return DivergedStateError(
            name if drift else self._task.name if self._task else "",
            verdict.failures,
            applied_on=verdict.applied_on,
            of=self._machine.size,
            rolled_back=verdict.rolled_back,
            state_consistent=verdict.consistent,
            hosts=[self._host(rank) for rank, _ in verdict.failures],
            step=self._step,
            what=verdict.message if drift else "",
        )

    def _host(self, rank: int) -> str:
        hosts = self._links.hosts if self._links else ()
        return hosts[rank] if rank < len(hosts) else ""

    # What others may see.

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._notice(text)

    def _show(self) -> None:
        machine, status = self._machine, self.status
        self._wake = machine.wake
        if self._comparison is not None:
            status.diverged = self._comparison.diverged
        status.serial, status.next_due_call = machine.serial, machine.due
        if not machine.every:
            status.calls_per_exchange = self._pace.interval

    def _slow(self) -> None:
        self._enter(f"waiting at step {self._step}")

    def _enter(self, phase: str) -> None:
        if not self._phase_before:
            self._phase_before = self._progress.phase
        self._progress.phase, self._progress.phase_since = phase, self._now()

    def _done(self) -> None:
        if self._phase_before:
            self._progress.phase, self._progress.phase_since = self._phase_before, self._now()
            self._phase_before = ""


def _pack(packet: Packet) -> list[int]:
    return [
        _MAGIC, packet.serial, packet.kind, packet.next_due, packet.command, packet.size,
        packet.apply_call, 0,
    ]  # fmt: skip


def _unpack(integers: list[int]) -> Packet | None:
    assert len(integers) == PACKET_INTEGERS
    magic, serial, kind, next_due, command, size, apply_call, _ = integers
    if magic != _MAGIC or kind not in list(Kind):
        return None
    return Packet(serial, Kind(kind), next_due, command, size, apply_call)


def _pack_row(row: Row) -> bytes:
    # Cut in UTF-8, then drop what was cut in half.
    text = row.text.encode(errors="replace")[:MAX_TEXT_BYTES].decode(errors="ignore").encode()
    return _ROW.pack(row.status, row.call, row.step, row.digest, len(text), text)


def _unpack_row(data: bytes) -> Row:
    status, call, step, digest, size, text = _ROW.unpack(data)
    return Row(Status(status), call, step, digest, text[:size].decode())


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _within(limit_s: float, condition: Callable[[], bool]) -> bool:
    """Poll a condition of the board until it holds or the time is over."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
