"""The one background thread of a process, and the door to it: records in, durability out.

Callers of `append`, on any thread, only leave an entry in the buffer. The thread numbers, encodes
and writes; it also beats, and runs the callbacks given to `every`. Plain attributes go from the
training thread to this one (`progress`) and back (`dropped`, `last_error`); no lock is shared.
"""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from time import sleep
from typing import Any, Final

from launchhelm._buffer import Buffer, Ticket
from launchhelm._clock import SYSTEM_CLOCK, Clock
from launchhelm._drain import BARRIER, Drain
from launchhelm._faults import Faults
from launchhelm._overflow import Overflow
from launchhelm.errors import ConfigError
from launchhelm.records import WriterId
from launchhelm.store import layout
from launchhelm.store.mount import is_network
from launchhelm.store.writer import JournalWriter

__all__ = ["Progress", "Recorder", "Ticket"]

LOCAL_FLUSH_S: Final = 0.25
NETWORK_FLUSH_S: Final = 1.0
FIRST_BEAT_S: Final = 1.0
"""The first beats come sooner, at twice the distance each, so that a start can be watched."""

_BACKLOG_RECORDS: Final = 2000
_FAULT_REST_S: Final = 0.1
_LONGEST_SLEEP_S: Final = 60.0


@dataclass(slots=True)
class Progress:
    """What the training thread tells the heartbeat, by plain assignment.

    Args:
        step: Last finished step.
        phase: `starting`, `training`, `waiting at step N`, `in eval`, ...
        phase_since: Monotonic time at which the phase began.
        exchange_wait_ms: Median wait in recent control exchanges, None when not known.
        step_time_ms: Median step time, None when not known.
        sync: When data last went up and commands were last asked for, and why not, as the sync
            thread of this process tells; {} without one.
        ending: Why this process is about to end, when it was told to; "" otherwise.
        control_off: Why this rank takes no commands any more; "" while it does.
    """

    step: int | None = None
    phase: str = "starting"
    phase_since: float = 0.0
    exchange_wait_ms: float | None = None
    step_time_ms: float | None = None
    sync: Mapping[str, Any] = field(default_factory=dict)  # Any: JSON.
    ending: str = ""
    control_off: str = ""


class Recorder:
    """Bounded, never in the way: records go in on any thread and become durable on one.

    Args:
        run_directory: The run; made absolute.
        writer: This process start.
        opening: Facts of the participant for the `open` line.
        overflow: What a full buffer does: "block" waits up to 5 s in all while storage accepts
            nothing, then gives up the oldest; "drop_new" refuses the new record; "raise" raises.
        clock: Time.
        heartbeat_s: Seconds between heartbeats.
        flush_s: Seconds from an append to durability; None chooses by the file system.
        buffer_bytes: Estimated memory of waiting records.
        buffer_records: Waiting metric records, console lines and rich values.
        segment_bytes: Size of the first segment; each further one is twice as large.
        max_segment_bytes: Size of the largest.
    """

    def __init__(
        self,
        run_directory: Path,
        writer: WriterId,
        opening: Mapping[str, Any],
        *,
        overflow: str = "block",
        clock: Clock = SYSTEM_CLOCK,
        heartbeat_s: float = 15.0,
        flush_s: float | None = None,
        buffer_bytes: int = 64 << 20,
        buffer_records: int = 100_000,
        segment_bytes: int = 8 << 20,
        max_segment_bytes: int = 32 << 20,
    ) -> None:
        self.run_directory = run_directory.absolute()
        self.writer_id = writer
        self.progress = Progress(phase_since=clock.monotonic())
        self.late = 0
        self._wall = clock.wall
        self._monotonic = clock.monotonic
        self._heartbeat_s = heartbeat_s
        if flush_s is None:
            flush_s = NETWORK_FLUSH_S if is_network(self.run_directory) else LOCAL_FLUSH_S
        self._flush_s = flush_s
        self._buffer = Buffer(max_bytes=buffer_bytes, max_records=buffer_records)
        self._put = self._buffer.put
        self._faults = Faults(self._note_fault)
        self._overflow = Overflow(overflow, self._buffer, self._warn_full)
        journal = JournalWriter(
            self.run_directory / layout.DATA,
            writer,
            {"hb_s": heartbeat_s, "flush_s": flush_s, **opening},
            clock=clock,
            segment_bytes=segment_bytes,
            max_segment_bytes=max_segment_bytes,
        )
        self._drain = Drain(self._buffer, journal, self._faults, clock)
        self._thread: threading.Thread | None = None
        self._wakes: SimpleQueue[None] = SimpleQueue()
        self._idle = False
        self._accepting = False
        self._inert = False
        self._closing: Ticket | None = None
        self._ended = Ticket()
        self._flush_due: float | None = None
        self._beats = itertools.count(1)
        self._beat_due = 0.0
        self._beat_pause_s = min(FIRST_BEAT_S, heartbeat_s)
        self._announced = ("", "")
        self._told_phase = ""
        self._callbacks: list[_Callback] = []

    @property
    def dropped(self) -> int:
        """Records given up or refused so far."""
        return self._buffer.lost

    @property
    def is_closed(self) -> bool:
        """Whether the end of this process is on record, durably."""
        return self._closing is not None and self._closing.durable

    @property
    def pending(self) -> int:
        """Records that are not durable yet."""
        return len(self._buffer) + self._drain.pending

    @property
    def last_error(self) -> str | None:
        """Why storage does not accept writes now; None while it does."""
        return self._drain.last_error

    @property
    def faults(self) -> Counter[str]:
        """Failures inside, by component."""
        return self._faults.counts

    def start(self) -> None:
        """Open the first segment, durable on return, and start the thread.

        Raises:
            ConfigError: The run directory cannot be written.
        """
        try:
            (self.run_directory / layout.DATA).mkdir(parents=True, exist_ok=True)
            self._drain.open()
        except OSError as error:
            raise ConfigError(
                f"{self.run_directory} cannot be written: {error.strerror or error}.",
                remedy="Make room or permissions there, or set LAUNCHHELM_DIR elsewhere.",
            ) from error
        self._beat_due = self._monotonic() + self._beat_pause_s
        self._accepting = True
        self._thread = threading.Thread(target=self._loop, name="launchhelm-recorder", daemon=True)
        self._thread.start()
        _live.add(self)

    # --- called by any thread ---------------------------------------------------------------------

    def append(
        self,
        kind: str,
        body: Mapping[str, Any],
        *,
        step: int | None = None,
        axes: Mapping[str, str] | None = None,
        at: float | None = None,
    ) -> bool:
        """Leave one record in the buffer; no I/O and no JSON. The body must not change afterwards.

        Returns:
            False if this record was dropped: buffer full, recorder closed, or a forked child.

        Raises:
            BufferFull: overflow="raise" and the buffer is full.
        """
        if at is None:
            at = self._wall()
        if not self._accepting:
            self._count_late()
            return False
        if not self._put(kind, body, step, axes, at):
            self._rouse()
            return self._overflow.put(kind, body, step, axes, at)
        if self._idle:
            self._rouse()
        return True

    def append_urgent(
        self,
        kind: str,
        body: Mapping[str, Any],
        *,
        step: int | None = None,
        axes: Mapping[str, str] | None = None,
    ) -> Ticket:
        """Leave a record that is never dropped and is flushed at once; return its ticket."""
        ticket = Ticket()
        if self._accepting:
            self._buffer.put_kept(kind, body, step, axes, self._wall(), ticket)
            self.wake()
        else:
            self._count_late()
        return ticket

    def flush(self, timeout_s: float) -> None:
        """Wait until everything appended before this call is durable.

        Raises:
            TimeoutError: Storage has not accepted it in time; it stays in the buffer.
        """
        if self._inert or self._thread is None:
            return
        ticket = self._closing
        if ticket is None:
            ticket = Ticket()
            self._buffer.put_kept(BARRIER, {}, None, None, 0.0, ticket)
            self.wake()
        if threading.current_thread() is self._thread:
            self._faults.guard("flush", self._drain.run)
        if not ticket.wait(timeout_s):
            raise TimeoutError(
                f"The run directory has not accepted everything within {timeout_s:g} s"
                + (f" ({self.last_error})." if self.last_error else ".")
                + " It is kept in memory and tried again."
            )

    def every(self, interval_s: float, callback: Callable[[], float | None]) -> None:
        """Run a callback on the recorder's thread; it may return its next interval in seconds."""
        self._callbacks.append(_Callback(interval_s, callback, self._monotonic() + interval_s))
        self.wake()

    def announce(self, ending: str) -> None:
        """Write down at once that this process was told to end, whatever becomes of it.

        Takes no lock, so that a signal handler may call it.
        """
        if not self.progress.ending:
            self.progress.ending = ending
            self.wake()

    def beat_soon(self) -> None:
        """Write a heartbeat at once: what the loop does now is worth knowing sooner than usual."""
        self._beat_due = min(self._beat_due, self._monotonic())
        self.wake()

    def wake(self) -> None:
        """Let the thread look for urgent records and due callbacks."""
        self._wakes.put(None)

    def close(self, state: str, reason: str, timeout_s: float, *, close_run: bool = True) -> bool:
        """Write the close record, make everything durable, seal what time allows; idempotent.

        Starts no thread. Later appends are counted as late and discarded.

        Returns:
            Whether everything is durable.
        """
        if self._inert or self._thread is None:
            return True
        deadline = self._monotonic() + timeout_s
        if self._closing is None:
            body = {"state": state, "reason": reason, "close_run": close_run}
            self._accepting = False
            ticket = self._closing = Ticket()
            self._buffer.put_kept("close", body, self.progress.step, None, self._wall(), ticket)
        self.wake()
        if not self._thread.is_alive() and not self._closing.durable:
            self._faults.guard("flush", self._drain.run)
        durable = self._closing.wait(timeout_s)
        self._ended.wait(max(0.0, deadline - self._monotonic()))
        return durable

    def _rouse(self) -> None:
        self._idle = False
        self._wakes.put(None)

    def _count_late(self) -> None:
        self.late += 1
        if self._inert:
            self._faults.warn(
                "fork",
                "This process was forked from one that records a run. It does not record: "
                "log in the parent, or start a run of its own with launchhelm.init().",
            )
        elif self._thread is not None:
            self._faults.warn("late", "Something was logged after finish(); it is discarded.")

    def _warn_full(self) -> None:
        self._faults.warn(
            "full",
            f"{self.run_directory} does not accept writes ({self.last_error or 'it hangs'}) and "
            "the buffer is full. Metric points are given up and counted. Training goes on.",
        )

    # --- the thread -------------------------------------------------------------------------------

    def _loop(self) -> None:
        while not self._ended.durable:
            if not self._faults.guard("recorder", self._turn):
                sleep(_FAULT_REST_S)
            if self._closing is not None and self._closing.durable:
                self._faults.guard("seal", self._drain.finish)
                self._ended.resolve()

    def _turn(self) -> None:
        """Sleep until something is due, then do it."""
        self._sleep()
        now = self._monotonic()
        self._run_callbacks(now)
        if now >= self._beat_due or self._has_news():
            self._beat(now)
        self._drain_if_due()

    def _sleep(self) -> None:
        due = min((callback.due for callback in self._callbacks), default=self._beat_due)
        due = min(due, self._beat_due)
        if self._drain.retry_at is not None:
            due = min(due, self._drain.retry_at)
        elif self._flush_due is not None:
            due = min(due, self._flush_due)
        else:
            self._idle = True
            if self._buffer:  # Appended between the last look and the line above.
                self._idle = False
                due = self._monotonic()
        try:
            self._wakes.get(timeout=min(max(0.0, due - self._monotonic()), _LONGEST_SLEEP_S))
            while True:
                self._wakes.get_nowait()
        except Empty:
            pass
        self._idle = False

    def _drain_if_due(self) -> None:
        now = self._monotonic()
        if self._flush_due is None and self._buffer:
            self._flush_due = now + self._flush_s
        if not self._buffer.is_urgent():
            retry_at = self._drain.retry_at
            due = self._flush_due if retry_at is None else retry_at
            if due is None or now < due:
                return
        wrote = self._drain.run()
        # Where one record came, another will: look again after the interval without being woken,
        # so that a steadily logging thread never makes a system call.
        pause_s = 0.0 if len(self._buffer) > _BACKLOG_RECORDS else self._flush_s
        self._flush_due = self._monotonic() + pause_s if wrote else None

    def _has_news(self) -> bool:
        """Whether the next heartbeat is worth knowing sooner.

        So is a handler that begins, and the end of whatever the last heartbeat said of one, or of a
        wait; a wait that begins is told when it lasts.
        """
        progress, phase = self.progress, self._told_phase
        if (progress.ending, progress.control_off) != self._announced:
            return True
        ends = progress.phase != phase and phase.startswith(("in ", "waiting"))
        return ends or (progress.phase != phase and progress.phase.startswith("in "))

    def _beat(self, now: float) -> None:
        # A beat that comes late is not made up for, and one that cannot be written is left out.
        self._beat_pause_s = min(2 * self._beat_pause_s, self._heartbeat_s)
        self._beat_due = max(self._beat_due + self._beat_pause_s, now)
        if self._beat_pause_s >= self._heartbeat_s:  # Four times a minute, not more.
            self._faults.guard("recorder", self._drain.check)
        progress, self._told_phase = self.progress, self.progress.phase
        body: dict[str, Any] = {
            "n": next(self._beats),
            "mono": round(now, 3),
            "phase": self._told_phase,
            "phase_s": round(max(0.0, now - progress.phase_since), 3),
        }
        for name in ("exchange_wait_ms", "step_time_ms"):
            value = getattr(progress, name)
            if value is not None:
                body[name] = round(value, 4)
        if progress.sync:
            body["sync"] = progress.sync
        self._announced = ending, control_off = progress.ending, progress.control_off
        if ending:
            body["ending"] = ending
        if control_off:
            body["control_off"] = control_off
        if self.dropped:
            body["lost"] = self.dropped
        if self.faults["storage"]:
            body["errors"] = self.faults["storage"]
        if self._drain.retry_at is None:
            self._buffer.put_kept("hb", body, progress.step, None, self._wall(), None)
            if self._flush_due is None:
                self._drain.run()

    def _run_callbacks(self, now: float) -> None:
        for callback in self._callbacks:
            if now >= callback.due:
                self._faults.guard("callback", callback.run)
                callback.due = self._monotonic() + callback.interval_s

    def _note_fault(self, component: str, error: str, count: int) -> None:
        body = {"type": "fault", "component": component, "error": error, "count": count}
        self._buffer.put_kept("ev", body, self.progress.step, None, self._wall(), None)

    def _become_inert(self) -> None:
        """In a forked child: nothing here may be used, written or waited for again."""
        self._inert = True
        self._accepting = False
        self._idle = False
        self._buffer.clear()
        self._faults.forget()


@dataclass(slots=True)
class _Callback:
    """Something to be done on the recorder's thread, and when."""

    interval_s: float
    call: Callable[[], float | None]
    due: float

    def run(self) -> None:
        interval_s = self.call()
        if interval_s is not None:
            self.interval_s = interval_s


_live: Final[weakref.WeakSet[Recorder]] = weakref.WeakSet()


def _after_fork() -> None:
    for recorder in tuple(_live):
        recorder._become_inert()
    _live.clear()


os.register_at_fork(after_in_child=_after_fork)
