"""The control exchange of one trainer: the machine of `_protocol`, carried out on real links.

`Trainer.step` calls `on_call` once, on every rank. Between due calls that compares two integers and
returns. At a due call the machine says what to do, one action after the other, and this module does
it: collectives through `_collective`, changes through the Plant, records through the Desk. Only the
calling thread is involved; the recorder's thread reads `Progress` and nothing else.

Nothing but DivergedStateError leaves `on_call`: any failure of our own ends control, not training.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from launchhelm._clock import SYSTEM_CLOCK, Clock
from launchhelm._wording import diverged_text
from launchhelm.controls.assign import sets_all
from launchhelm.controls.decide import unexpected
from launchhelm.records import Command
from launchhelm.torch._collective import Links
from launchhelm.torch._comparison import Comparison
from launchhelm.torch._doubt import settle
from launchhelm.torch._errors import DivergedStateError
from launchhelm.torch._messages import (
    INLINE_BYTES,
    NEVER,
    Action,
    Applied,
    Apply,
    Await,
    Cause,
    Check,
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
    Verdict,
    Warn,
)
from launchhelm.torch._pace import Pace
from launchhelm.torch._peers import LinkLost
from launchhelm.torch._protocol import Machine
from launchhelm.torch._roles import ControlStatus, Desk, Plant, Progress
from launchhelm.torch._task import Task, text_of
from launchhelm.torch._wire import MAX_BODY_BYTES, pack, pack_row, unpack, unpack_row

RECORD_LIMIT_S: Final = 5.0
"""After this, a command whose `applying` record is not durable is refused."""

MOST_AT_ONCE: Final = 64
"""So many commands act at one call of `step`; those that are left go on from the next exchange."""


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
        self._tick = self._pace.ticks.append
        self._task: Task | None = None
        self._phase_before = ""
        self._told: set[str] = set()
        self._call = 0
        self._step = 0
        self._followed = (0, 0)
        self.holds: Callable[[], bool] = lambda: False
        """Whether the next call may be long in coming, or not come, as commands want it."""
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
                self._show_off(links.why)
        self._show()

    @property
    def speaks(self) -> bool:
        """Whether people hear of news from this rank: the lowest of those that are left."""
        gone = self._machine.cause.ranks if self._machine.cause else ()
        return self._machine.rank == min(set(range(self._machine.size)) - set(gone), default=0)

    def on_call(self, step: int) -> None:
        """Do what is due at this call of `Trainer.step`. Every rank, once per call.

        Costs about a microsecond where nothing is due.

        Raises:
            DivergedStateError: A command did not end alike on all ranks.
        """
        self._call = call = self._call + 1
        self._step = step
        self._tick(self._now())
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
            self._tell(f"Leaving the control exchange failed: {text_of(error)}.")
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
                self._show_off(cause.text)
            raise
        finally:
            self._show()

    def _fail(self, error: Exception) -> None:
        """End control after a mistake of our own, by the rules for a lost exchange."""
        cause = Cause("internal", (), f"internal error: {text_of(error)}")
        try:
            self._run(self._machine.lose(cause))
        except DivergedStateError:
            raise
        except Exception as again:  # Then without the rules.
            self._machine.on, self._machine.cause = False, cause
            self._show_off(cause.text)
            self._tell(f"Control is off: {text_of(again)}.")

    def _run(self, action: Action) -> None:
        """Carry out actions until the call is over."""
        while True:
            if isinstance(action, Go):
                if action.issue is not None:
                    self._issue(action.issue)
                elif action.expect and self._links is not None:
                    self._links.expect()
                return
            if isinstance(action, Raise):
                raise self._error(action.verdict)
            action = self._machine.feed(self._carry_out(action))

    def _carry_out(self, action: Action) -> Result:
        try:
            match action:
                case Await():
                    return self._await()
                case Follow():
                    return self._follow(action)
                case Share():
                    return self._share(action)
                case Gather():
                    return self._gather(action)
                case Check():
                    return replace(self._under_way.check(self._step), more=self._has_more())
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
                    return self._under_way.restore()
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
        is_inline = packet.kind in (Kind.COMMAND, Kind.NEXT) and packet.size <= INLINE_BYTES
        body = self._under_way.body if is_inline else b""
        self._links.issue(pack(replace(packet, step=self._step), body))

    def _await(self) -> Packet | Lost:
        assert self._links is not None
        start = time.perf_counter()
        data = self._links.receive()
        wait_ms = (time.perf_counter() - start) * 1e3
        self.status.last_wait_ms = wait_ms
        self._progress.exchange_wait_ms = wait_ms
        self._progress.step_time_ms = self._pace.usual() * 1e3
        packet, body = unpack(data) or (None, b"")
        if packet is None:
            return Lost(Cause("serial", (), "the coordinator speaks another version"))
        self._links.seen[0] = packet.step
        if body and not self._machine.coordinator:
            self._task = Task(self._plant, body)
        return packet

    def _follow(self, action: Follow) -> Packet | Lost:
        assert self._links is not None
        if action.issue is not None:
            self._issue(action.issue)
        else:
            self._links.expect()
        return self._await()

    def _share(self, action: Share) -> Result:
        assert self._links is not None
        if self._machine.coordinator:
            self._links.share(self._under_way.body, action.size)
        else:
            self._task = Task(self._plant, self._links.share(None, action.size))
        return None

    def _gather(self, action: Gather) -> tuple[Row, ...]:
        assert self._links is not None
        handler = f"in {self._under_way.name}" if action.handler else ""
        packed = self._links.gather(pack_row(action.row), handler=handler)
        rows = tuple(map(unpack_row, packed))
        self._links.seen.update((rank, row.step) for rank, row in enumerate(rows))
        return rows

    def _apply(self, action: Apply) -> Applied:
        task = self._under_way
        if action.handler:
            self._enter(f"in {task.name}")
        try:
            return replace(task.apply(self._step, action.handler), more=self._has_more())
        finally:
            self._done()

    # With the desk, on the coordinator.

    def _look(self, action: Look) -> Looked:
        if action.follows:
            return self._look_on()
        machine, is_regular = self._machine, self._pace.is_regular(self._call, self._step)
        # Where steps rise by one per call, a command for a later step travels early.
        first = self._desk.upcoming(self._step) if is_regular and self._desk is not None else None
        if action.under_way:
            return self._look_again(self._under_way, is_regular, first)
        if not machine.on:
            return Looked(self._take(NEVER))  # Also what is for a later step: it is refused now.
        size = self._take(0 if first is None else self._lead() + 1)
        if size is not None:
            self._prepare()
        if self._links is None or not machine.on:
            return Looked(size)  # Every call is due; there is no pace.
        interval, drift, compare = self._interval(first, machine.due), None, False
        if size is None:
            drift, compare = self._compared.found(), self._compared.is_due
        return Looked(size, False, False, interval, self._pace.soon(), compare, drift)

    def _look_again(self, task: Task, is_regular: bool, next_step: int | None) -> Looked:
        """Look whether the record of the command under way is durable, and its step near."""
        self._prepare()
        durable = task.ticket is not None and task.ticket.durable
        overdue = not durable and self._now() - task.recorded_at > RECORD_LIMIT_S
        calls = self._calls_to(task.first_step)
        if calls > 0 and not is_regular:
            durable = False  # It was taken early, and now its step must come first.
        changed = self._changed(task) if durable else None
        if self._links is None:
            return Looked(None, durable, overdue, at=self._call + calls, refusal=changed)
        at = self._call + calls
        interval = self._interval(next_step, self._machine.apply_at(at))
        soon = self._pace.soon()
        if calls > 0:
            soon = max(1, min(soon, calls - 2))
        return Looked(None, durable, overdue, interval, soon, at=at, refusal=changed)

    def _look_on(self) -> Looked:
        """Take a command that follows the one that has just ended, and say when it acts."""
        size = self._take(self._reach(), recorded=True)
        call, first = self._call, None
        if size is not None:
            assert self._desk is not None
            self._followed = (self._call, self._followed[1] + 1)
            self._record()
            call += max(0, self._calls_to(self._under_way.first_step))
            self._prepare()
        if self._desk is not None and self._pace.is_regular(self._call, self._step):
            first = self._desk.upcoming(self._step)
        return Looked(size, interval=self._interval(first, call), at=call)

    def _has_more(self) -> bool:
        """Whether a command can follow the one under way without an exchange of its own."""
        if self._desk is None or not self._machine.coordinator:
            return False
        if self._followed[0] != self._call:
            self._followed = (self._call, 0)
        has_room = self._followed[1] + 1 < MOST_AT_ONCE
        return has_room and self._desk.follows(self._step + self._reach())

    def _prepare(self) -> None:
        """Have those recorded that may follow the command under way."""
        assert self._desk is not None
        self._desk.prepare(max(self._step, self._under_way.first_step or 0) + self._reach())

    def _reach(self) -> int:
        """Return how many steps ahead is too soon for an exchange of a command's own."""
        is_regular = self._pace.is_regular(self._call, self._step)
        return self._lead() + 1 if is_regular and not self.holds() else 0

    def _changed(self, task: Task) -> Verdict | None:
        """Refuse a command about to be announced if a value is not what its sender expects."""
        if task.command is None or not task.command.expected:
            return None
        text = unexpected(task.command.expected, self._plant.values())
        return Verdict("rejected", "changed_meanwhile", text) if text else None

    def _lead(self) -> int:
        """Return how many calls after its announcement a command can surely be applied."""
        every = self._machine.every
        return 2 * every if every else self._pace.lead()

    def _interval(self, step: int | None, call: int) -> int:
        """Return the calls from one to the next exchange, in time for a command for that step."""
        if self._machine.every:
            return 0
        interval = self._pace.next_interval()
        if step is None:
            return interval
        spare = self._call + self._calls_to(step) - self._lead() - call
        return min(interval, max(spare, self._pace.soon()))

    def _calls_to(self, step: int | None) -> int:
        """Return in how many calls that step comes, if steps go on rising by one per call."""
        return 0 if step is None else step - self._step

    def _take(self, ahead: int, *, recorded: bool = False) -> int | None:
        if self._desk is None:
            return None
        try:
            command = self._desk.take(self._step, ahead, recorded=recorded)
        except Exception as error:  # The ranks wait for a packet, with or without a command in it.
            self._tell(f"The next command could not be taken: {text_of(error)}.")
            return None
        if command is None:
            return None
        self._task = Task.of(command, self._plant)
        size = len(self._task.body)
        refusal = self._vain(command, size)
        if refusal is None:
            return size
        self._conclude(refusal)
        return None

    def _vain(self, command: Command, size: int) -> Verdict | None:
        """Refuse a command of which this rank alone knows that it cannot end alike on all."""
        if size > MAX_BODY_BYTES:
            text = f"The command has {size:,} bytes; at most {MAX_BODY_BYTES:,} can be sent."
            return Verdict("rejected", "too_large", text)
        apart = self._comparison.diverged if self._comparison is not None else {}
        if command.name not in apart or sets_all(command.payload):
            return None
        text = (
            f"{diverged_text(command.name, apart[command.name])}, and would still differ after "
            "this. First set it to one value for all groups."
        )
        return Verdict("rejected", "diverged", text)

    def _record(self) -> Result:
        task = self._under_way
        assert self._desk is not None and task.command is not None
        task.recorded_at = self._now()
        task.ticket = self._desk.applying(task.command, self._step)
        return None

    def _conclude(self, verdict: Verdict) -> Result:
        task = self._under_way
        assert self._desk is not None and task.command is not None
        hosts = {rank: self._host(rank) for rank, _ in verdict.failures}
        outcome = task.outcome(verdict, self._step, hosts, self._machine.size)
        try:
            self._desk.conclude(task.command, outcome)
            if outcome.state == "applied" and self._comparison is not None:
                self._comparison.agreed(task.name)
        except Exception as error:  # The other ranks must still learn what became of it.
            self._tell(f"The outcome of {task.name!r} could not be recorded: {text_of(error)}.")
        return None

    @property
    def _under_way(self) -> Task:
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
        self._show_off(action.cause.text)
        after = "A command was under way" if action.in_doubt else "Training goes on"
        self._tell(
            f"Control is off from step {self._step} on: {action.cause.text}. {after}; "
            "later commands are refused."
        )
        return None

    def _show_off(self, why: str) -> None:
        self.status.on, self.status.why = False, why
        self._progress.control_off = why
        # No exchange measures them any more; the pace shows between heartbeats.
        self._progress.step_time_ms = self._progress.exchange_wait_ms = None

    def _settle(self, action: Settle) -> Settled:
        assert self._links is not None
        return settle(self._links, action, self._machine.cause.ranks if self._machine.cause else ())

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
