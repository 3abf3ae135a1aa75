"""The loop over runs: a slice for each in turn, so that none keeps the others waiting.

Live runs come first, then the newest; where both are due, each kind gets half of the time. What
concerns the whole server (it is busy, out of reach, or refuses the key) holds all runs; what
concerns one run stops that run only. Only runs that may still grow keep anything open.

One thread turns the loop. `stop` and `wake` may be called from any, and the plain attributes of
`Service` and `Work` may be read from any. Whoever uses the push of a run holds its `Work.lock`; the
threads of the pulse never wait for it.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from launchhelm._clock import SYSTEM_CLOCK, Clock
from launchhelm._settings import STATE_DIR
from launchhelm.errors import ConfigError, LaunchHelmError
from syncer import retry, status
from syncer.api.answers import ApiError
from syncer.discover import (
    INTERVAL_S,
    Discovery,
    Place,
    changed_lately,
    data_mark,
    is_growing,
    stretched,
)
from syncer.pulse import Pulse
from syncer.work import FAILED_S, SLICE_S, Hold, Pull, Push, Queue, Report, Work

HEARTBEAT_S: Final = 15.0
PULSE_S: Final = HEARTBEAT_S - 2.0
"""Before the slices come to it, so that these need not wait for the answers."""
NEWS_S: Final = 1.0
"""What can be commanded is told so soon, and a coordinator that moves is noticed."""

LONGEST_IDLE_S: Final = 120.0
_SHARE_OF_SILENCE: Final = 10.0
"""A run is looked at again after a tenth of the time for which it has not grown."""

HELD_S: Final = 5.0
"""How often a run is asked for that another syncer holds."""
HELD_LIMIT_S: Final = 130.0
"""A pass waits so long for such a run: a syncer that died loses its lease within that time."""

MAX_FAILED_S: Final = 960.0

UNREACHABLE_S: Final = 30.0
"""A pass ends when the server has not answered for so long; a service goes on."""
BUSY_S: Final = 60.0
"""A pass ends when the server has answered nothing but "later" for so long ..."""
ASKED_S: Final = 300.0
"""... and for so long when it said itself how long to wait."""

REFUSALS: Final = 3
"""A pass ends when the key is refused for so many runs before it was accepted for one."""

MAX_OPEN: Final = 64
"""Runs that stand still and are kept open between two looks."""
STILL_S: Final = 120.0
"""A run that has not moved for so long stands still. Closing one that moves would not end: opened
again, it has to be seen to move before anything is said of it."""

EVENT_GAP_S: Final = 0.5
"""File events bring a look forward, but no closer to the one before."""

_LEAST_S: Final = 0.001
"""A slice counts for so long at least."""

SHARE: Final = 0.4
"""Of the loop's time that the live runs may take together; many are looked at more rarely."""
CROWDED_S: Final = 12.0
"""The longest pause between two looks at a run for that reason."""

_log = logging.getLogger("launchhelm")


class Service:
    """Sends runs to one server.

    Args:
        discovery: Where the runs are.
        open_push: Makes the push of one run.
        connect: Called before the first push, and again after the key was refused, to use the key
            as it is then. Pushes that were open are closed before and made anew.
        watch: Go on until stopped; else end when everything durable now is sent.
        open_pull: Makes what asks for the commands of one run, beside its push; None asks for none.
        settled: What files tell of a run before it is opened: None when it has to be, "" when it
            is closed and all of it was sent, else why it is skipped.
        note: Takes why a run could not be opened, "" once it could; only when that changes.
        on_slice: Called on the loop's thread after each slice.
        wait: Sleeps for so many seconds or until woken; tests turn their clock instead.
    """

    def __init__(
        self,
        discovery: Discovery,
        open_push: Callable[[Place], Push],
        *,
        connect: Callable[[], object] = lambda: None,
        watch: bool = False,
        open_pull: Callable[[Place, Push], Pull] | None = None,
        settled: Callable[[Place], str | None] = lambda place: None,
        note: Callable[[Place, str], object] = lambda place, why: None,
        on_slice: Callable[[Work], object] = lambda work: None,
        clock: Clock = SYSTEM_CLOCK,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        self.work: dict[Path, Work] = {}
        self.hold: Hold | None = None
        self.gave_up: Hold | None = None
        self.answered_at: float | None = None
        self.asking_since: float | None = None
        self._discovery = discovery
        self._open_push = open_push
        self._connect = connect
        self._watch = watch
        self._open_pull = open_pull
        self._settled = settled
        self._note = note
        self._on_slice = on_slice
        self._clock = clock
        self._live = Queue()
        self._others = Queue()
        self._ahead_s = 0.0  # By how much more time live runs had than the others.
        self._look_at = float("-inf")
        self._tries = 0
        self._refusals = 0
        self._refusal: Hold | None = None
        self._must_connect = True
        self._is_stopped = False
        self._event = threading.Event()
        self._wait = wait or self._sleep
        self._woken: dict[Path, bool] = {}
        self._live_count = 0
        self._pulse = Pulse(self._beat_beside, PULSE_S, clock)

    # --- from any thread --------------------------------------------------------------------------

    def stop(self) -> None:
        """End after the batch in hand."""
        self._is_stopped = True
        self._event.set()

    def wake(self, directory: Path, *, at_once: bool = False) -> None:
        """Look at one run soon, or for new runs when it is none that we know."""
        work = self.work.get(directory)
        if not at_once and work is not None and work.due <= self._soon(work):
            return  # Many events of one run turn the loop once.
        self._woken[directory] = at_once or self._woken.get(directory, False)
        self._event.set()

    # --- the loop ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Turn until all is sent, or until stopped; leaves nothing open."""
        try:
            while not self._is_stopped:
                wait_s = self._turn()
                if wait_s is None:
                    return
                if wait_s > 0:
                    self._wait(wait_s)
        finally:
            self._pulse.stop()
            for work in self.work.values():
                self._close(work)

    def _sleep(self, seconds: float) -> None:
        self._event.wait(seconds)
        if not self._is_stopped:
            self._event.clear()

    def _turn(self) -> float | None:
        """Do one thing; return how long to wait, or None when all is done."""
        now = self._clock.monotonic()
        if self.hold is not None and now < self.hold.until:
            return self.hold.until - now
        if now >= self._look_at:
            self._look()
        self._take_woken(now)
        work = self._next(now)
        if work is not None:
            self.asking_since = now
            was_live = work.is_live
            self._serve(work)
            self.asking_since = None
            took_s = max(_LEAST_S, self._clock.monotonic() - now)
            ahead_s = self._ahead_s + (took_s if was_live else -took_s)
            self._ahead_s = max(-SLICE_S, min(SLICE_S, ahead_s))
            self._on_slice(work)
            return None if self.gave_up else 0.0
        due = min(self._live.due, self._others.due, self._look_at)
        if due < float("inf"):
            return max(0.0, due - now)
        if self._refusal is not None and self.answered_at is None and not self._has_sent:
            # Too few runs for `REFUSALS`, but the key was good for none of them.
            self.gave_up = self._refusal
        return None

    def _look(self) -> None:
        places = self._discovery.look()
        now = self._clock.monotonic()
        self._look_at = now + self._discovery.interval_s if self._watch else float("inf")
        for directory in self.work.keys() - {place.directory for place in places}:
            work = self.work.pop(directory)
            work.due = float("inf")
            self._close(work)
        for place in places:
            if place.directory not in self.work:
                work = self.work[place.directory] = Work(place, grew_at=now)
                work.is_live = is_growing(place.directory)
                self._put(work, now)
        self._live_count = sum(work.is_live for work in self.work.values())

    def _take_woken(self, now: float) -> None:
        while self._woken:
            directory, at_once = self._woken.popitem()
            work = self.work.get(directory)
            if work is None:
                self._look_at = min(self._look_at, now + EVENT_GAP_S)
            elif work.state != "failed":
                soon = now if at_once else max(now, self._soon(work))
                if soon < work.due < float("inf"):
                    self._put(work, soon)

    def _soon(self, work: Work) -> float:
        """When an event of a run may have it looked at."""
        return work.served_at + max(EVENT_GAP_S, work.pause_s)

    def _put(self, work: Work, due: float) -> None:
        work.due = due
        (self._live if work.is_live else self._others).put(work)

    def _next(self, now: float) -> Work | None:
        """Take the next run that is due, of the kind that had less time."""
        queues = [self._live, self._others]
        if self._ahead_s > 0.0:
            queues.reverse()
        return queues[0].take(now) or queues[1].take(now)

    # --- one run ----------------------------------------------------------------------------------

    def _serve(self, work: Work) -> None:
        with work.lock:
            self._serve_alone(work)

    def _serve_alone(self, work: Work) -> None:
        started = work.served_at = self._clock.monotonic()
        try:
            if self._must_connect and not self._connected(work, started):
                return
            if self._needs_no_look(work):
                self._rest(work, 0.0)
                return
            if work.push is None:
                work.push = self._open_push(work.place)
                if changed_lately(work.place.directory, STILL_S):
                    work.moved_at = started
            if not work.push.acquire():
                self._stop_pull(work)
                self._held(work, work.push)
                return
            work.held_since = None
            self._slice(work, work.push)
        except ApiError as error:
            self._trouble(work, error, started)
        except LaunchHelmError as error:
            self._fail(work, f"{error.message} {error.remedy}".rstrip())
        except OSError as error:
            self._fail(work, _said_of(error, work.place.directory))
        except Exception as error:  # One bad run must not stop the others.
            _log.exception("Syncing %s failed; other runs go on.", work.place.directory)
            self._fail(work, f"our failure, {type(error).__name__}: {error}")

    def _needs_no_look(self, work: Work) -> bool:
        """Whether a run that is over is as it was, by one `stat`."""
        mark = data_mark(work.place.directory)
        if work.is_over:
            if mark == work.mark:
                return True
            work.is_over = False
            return False
        if work.served_before:
            return False
        work.served_before = True
        why = self._settled(work.place)
        if why is None:
            return False
        work.state, work.why = ("skipped", why) if why else ("sent", "")
        work.mark, work.is_over, work.is_live = mark, True, False
        return True

    def _slice(self, work: Work, push: Push) -> None:
        started = work.served_at
        self._beat(work, push, started)
        mark = data_mark(work.place.directory)
        files = _file_count(push)
        report = push.step(SLICE_S)
        self._count(work, report)
        work.files += max(0, _file_count(push) - files)
        if report.stopped:
            self._stopped(work, report, started)
            return
        # Nothing is wrong any more, or nothing is asked for.
        self._noted(work, "")
        self.hold, work.failed_s, work.why = None, FAILED_S, ""
        now = self._clock.monotonic()
        if not report.done:
            work.state = "sending"
            self._put(work, now)
            return
        is_settled = self._settle(work, push)
        if is_settled and push.finish_if_ended():
            self._answered()
            work.mark, work.is_over = mark, True
        elif not self._watch:
            # What it could not say to the server, a step says to us.
            report = push.step(0.0)
            self._count(work, report)
            if report.stopped:
                self._stopped(work, report, started)
                return
        is_first = work.caught_up_at == float("-inf")
        work.state, work.caught_up_at = "sent", started
        work.is_live = not work.is_over
        if push.problems:
            # What can be read is sent all the same.
            work.why = "; ".join(push.problems)
            work.state = "sent" if self._watch else "failed"
        if work.is_over or not self._watch:
            self._close(work)
        # What opening a run costs says nothing about the next look, and who began is awaited.
        self._rest(work, 0.0 if is_first else now - started)
        self._close_idle()

    def _beat(
        self, work: Work, push: Push, now: float, interval_s: float = HEARTBEAT_S - NEWS_S
    ) -> None:
        """Say who lives; where commands are asked for, also what may be commanded, and ask."""
        since = now - work.beat_at
        if self._open_pull is None or not self._watch:
            if since >= HEARTBEAT_S:
                work.beat_at = now
                push.heartbeat()
            return
        self._pulse.follow(work)
        if since >= interval_s or (since >= NEWS_S and push.has_news):
            work.beat_at = now
            push.heartbeat(commands=True)
        if push.voice is not None:
            if work.pull is None:
                work.pull = self._open_pull(work.place, push)
            if not work.pull.is_running:
                work.pull.start()

    def _beat_beside(self, work: Work) -> None:
        """Say who lives between two slices, on a thread of the pulse."""
        now = self._clock.monotonic()
        hold = self.hold
        if self._must_connect or (hold is not None and now < hold.until):
            return
        if work.lock.acquire(blocking=False):
            try:
                if work.push is not None:
                    self._beat(work, work.push, now, PULSE_S)
            finally:
                work.lock.release()

    def _settle(self, work: Work, push: Push) -> bool:
        """Have the outcomes of commands reported where no thread does it; False while some wait."""
        if self._open_pull is None:
            return True
        if work.pull is not None and work.pull.is_running and push.voice is not None:
            return False
        if work.pull is None:
            work.pull = self._open_pull(work.place, push)
        return work.pull.settle()

    def _count(self, work: Work, report: Report) -> None:
        work.points += report.points
        work.bytes += report.bytes
        work.batches += report.batches
        work.refused += report.refused
        work.pending = report.pending_hint
        if report.batches:
            self._answered()
            work.grew_at = self._clock.monotonic()
            if work.state == "sent":
                work.moved_at = work.grew_at

    def _rest(self, work: Work, took_s: float) -> None:
        """Look again after a while: later where nothing has come for long, or looking is slow."""
        if not self._watch:
            return
        now = self._clock.monotonic()
        work.pause_s = min(CROWDED_S, self._live_count * took_s / SHARE)
        idle_s = max(INTERVAL_S, (now - work.grew_at) / _SHARE_OF_SILENCE, work.pause_s)
        longest_s = LONGEST_IDLE_S
        if work.pull is not None and work.push is not None and work.push.voice is not None:
            # Whoever takes commands is heard of regularly, however little it says.
            longest_s = max(0.0, work.beat_at + HEARTBEAT_S - NEWS_S - now)
        self._put(work, now + min(longest_s, stretched(idle_s, took_s)))

    def _held(self, work: Work, push: Push) -> None:
        """Wait for the lease: a pass only until its holder is seen to live, or must have lapsed."""
        now = self._clock.monotonic()
        holder = status.holder(push.place) if push.place is not None else None
        if work.held_since is None:
            work.held_since, work.holder = now, holder.count if holder is not None else None
        moves = holder is not None and holder.count != work.holder
        work.state = "held"
        work.why = "another syncer is at work on it" + (f": host {holder.text}" if holder else "")
        if self._watch or not (moves or now - work.held_since >= HELD_LIMIT_S):
            self._put(work, now + HELD_S)
        else:
            work.state = "skipped"
            work.why += "; what is durable now is that syncer's to send"

    def _stop_pull(self, work: Work) -> None:
        pull, work.pull = work.pull, None
        if pull is not None:
            pull.stop()

    def _close(self, work: Work) -> None:
        with work.lock:
            self._close_alone(work)

    def _close_alone(self, work: Work) -> None:
        self._pulse.forget(work)
        self._stop_pull(work)
        push, work.push = work.push, None
        if push is None:
            return
        try:
            push.close()
        except Exception as error:  # What is left open is a lease, which lapses.
            _log.warning("Closing %s: %s", work.place.directory, error)

    def _close_idle(self) -> None:
        now = self._clock.monotonic()
        still = [
            work
            for work in self.work.values()
            if work.push is not None
            and (self._open_pull is None or work.push.voice is None)
            and now - work.moved_at >= STILL_S
        ]
        if len(still) > MAX_OPEN:
            self._close(min(still, key=lambda work: work.grew_at))

    # --- trouble ----------------------------------------------------------------------------------

    def _stopped(self, work: Work, report: Report, started: float) -> None:
        if report.error is not None:
            self._trouble(work, report.error, started, report.advice)
        elif work.push is not None and not work.push.acquire():
            self._held(work, work.push)
        else:
            self._fail(work, report.stopped)

    def _trouble(
        self, work: Work, error: ApiError, started: float, given: retry.Advice | None = None
    ) -> None:
        """Do what follows from an error of the server: for all runs, or for one.

        Args:
            given: What the push decided by its own failures; it waits no shorter than that.
        """
        advice = retry.decide(error, tries=self._tries)
        if isinstance(advice, retry.PauseForKey):
            self._refused_key(work, error.status, advice)
        elif isinstance(advice, retry.Wait):
            self._tries += 1
            kind = "busy" if error.status else "unreachable"
            limit_s = BUSY_S if error.status else UNREACHABLE_S
            if error.retry_after_s:
                limit_s = ASKED_S
            seconds = max(advice.seconds, given.seconds if isinstance(given, retry.Wait) else 0.0)
            self._hold(work, kind, seconds, advice.why, started, limit_s)
        elif isinstance(advice, retry.SkipRun):
            self._answered()
            self._skip(work, advice.why)
        else:
            self._answered()
            self._fail(work, advice.why)

    def _refused_key(self, work: Work, status: int, advice: retry.PauseForKey) -> None:
        self._must_connect = True
        self._refusals += 1
        accepted = self.answered_at is not None
        now = self._clock.monotonic()
        self._refusal = Hold(now + advice.seconds, now, advice.why, "key")
        if status == 403 and (accepted or (not self._watch and self._refusals < REFUSALS)):
            # The key is good, but not for this run.
            self._fail(work, advice.why)
        else:
            self._hold(work, "key", advice.seconds, advice.why, now, 0.0)

    def _hold(
        self, work: Work, kind: str, seconds: float, why: str, started: float, limit_s: float
    ) -> None:
        """Ask the server nothing for a while; a pass ends when that has lasted for too long."""
        now = self._clock.monotonic()
        if self.hold is not None and self.hold.kind == kind:
            started = self.hold.since
        self.hold = Hold(now + seconds, started, why, kind)
        self._noted(work, why)
        if not self._watch and now + seconds - started >= limit_s:
            self.gave_up = self.hold
        self._put(work, now + seconds)

    def _connected(self, work: Work, started: float) -> bool:
        """Connect with the key as it is now; what is open holds the one before.

        Raises:
            ApiError: As a slice would.
        """
        for each in self.work.values():
            self._close(each)
        try:
            self._connect()
        except ConfigError as error:
            why = f"{error.message} {error.remedy}".rstrip()
            self._hold(work, "config", FAILED_S, why, started, 0.0)
            return False
        self._must_connect = False
        return True

    def _noted(self, work: Work, why: str) -> None:
        """Note why a run is not opened; of one that is, its own state tells."""
        if why != work.noted and (not why or work.push is None):
            work.noted = why
            self._note(work.place, why)

    @property
    def _has_sent(self) -> bool:
        """Whether any run was found to be on the server by looking, not by what files tell."""
        return any(work.caught_up_at > float("-inf") for work in self.work.values())

    def _answered(self) -> None:
        self.hold, self._tries, self._refusals, self._refusal = None, 0, 0, None
        self.answered_at = self._clock.monotonic()

    def _skip(self, work: Work, why: str) -> None:
        """Leave a run alone until it has new files, or somebody asks again."""
        self._close(work)
        work.state, work.why = "skipped", why
        work.mark, work.is_over = data_mark(work.place.directory), True
        work.is_live = False
        self._rest(work, 0.0)

    def _fail(self, work: Work, why: str) -> None:
        """Try a run again after a while."""
        self._noted(work, why)
        self._close(work)
        work.state, work.why = "failed", why
        if self._watch:
            self._put(work, self._clock.monotonic() + work.failed_s)
            work.failed_s = min(MAX_FAILED_S, work.failed_s * 2)


def _file_count(push: Push) -> int:
    """Count the artifacts of a run that are on the server; a checkpoint in shards is one."""
    if push.state is None:
        return 0
    return sum(bool(theirs) and "/" not in ours for ours, theirs in push.state.artifacts.items())


def _said_of(error: OSError, directory: Path) -> str:
    where = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else None
    said = f"{where or directory}: {error.strerror or error}"
    if where is None or not where.is_relative_to(status.state_root()):
        return said
    return (
        f"{said}. {directory} cannot be written, and neither can {STATE_DIR.name}, where the "
        "syncer remembers such runs; set it to a folder that can"
    )
