"""The processes of an attempt: one row each, from the head and the tail of the newest file.

A look costs one open, one short read and one close per participant whose file grew, whatever the
size of the file, so that 512 of them are a matter of milliseconds.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from launchhelm.errors import StorageError
from launchhelm.records import MetricValue, Record, WriterId
from launchhelm.store.journal import (
    lines_backwards,
    number_and_kind,
    opened,
    opening,
    record_of,
)
from launchhelm.store.layout import DATA, SegmentName
from launchhelm.store.reader import has_vanished, list_segments
from launchhelm.store.sealed import sealed_glance
from launchhelm.views.liveness import (
    AWAITED_S,
    BEAT_S,
    LATE_S,
    SILENT_S,
    Age,
    Observer,
    age_by_files,
    process_is_gone,
)

SEARCH_BYTES: Final = 8 << 20
"""How far back from the end of a journal a heartbeat is searched for."""

METRICS_BYTES: Final = 256 << 10
"""How far back the coordinator's newest metrics are searched for, beyond two heartbeats."""

_LISTINGS: Final = 4

_OVERLAP_BYTES: Final = 8 << 10
"""A line that was cut at the last look begins before its end."""

TAIL_KINDS: Final = frozenset({"hb", "close", "ev"})
_FRONT_TOLERANCE: Final = 2


@dataclass(frozen=True, slots=True)
class ParticipantView:
    """One process, as its own files show it.

    Args:
        state: A word of `RANK_STATES`.
        step: Last finished step known; None before the first.
        phase: As of the last heartbeat: `training`, `waiting at step 12,480`, `in eval`, ...;
            "" once it has ended.
        phase_s: How long it had been in that phase then; None once it has ended.
        age: Since its counter last moved.
        lag: Steps behind the front, beyond what the front, or this process, may have done since
            the last heartbeat of this process; None while either is unknown, and once it has ended.
        end: State of its end record: finished, error, interrupted, terminated, preempted;
            `terminated` also when it was told to end and nothing is heard of it any more;
            `gone` when the process no longer exists and left none; "" while it goes on.
        reason: Why it ended.
        closes_run: Its end record says that the run is complete; a coordinator's counts.
        lost: Records that it had to give up.
        storage_errors: Failed writes so far.
        faults: Faults of our own, by component, as far as its newest records tell.
        last_at: Its own wall clock at its newest record; shown only.
        control_off: Why it takes no commands any more, as its heartbeat says; "" while it does.
        awaited: Nothing is heard of it, while the others are heard of and get no further.
        problem: Why nothing is known of it although it has files, "" otherwise.
    """

    writer: WriterId
    rank: int
    attempt: int
    state: str
    host: str
    pid: int | None
    local_rank: int | None
    group_rank: int | None
    world_size: int | None
    step: int | None
    phase: str
    phase_s: float | None
    age: Age
    lag: int | None
    end: str = ""
    reason: str = ""
    closes_run: bool = False
    lost: int = 0
    storage_errors: int = 0
    faults: Mapping[str, int] = field(default_factory=dict)
    exchange_wait_ms: float | None = None
    step_time_ms: float | None = None
    counter: int | None = None
    started_at: float | None = None
    last_at: float | None = None
    ended_at: float | None = None
    id: str = ""
    name: str = ""
    role: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    control_off: str = ""
    problem: str = ""
    awaited: bool = False

    @property
    def has_end_record(self) -> bool:
        """Whether it said itself that it ended; `end` is our judgement otherwise."""
        return self.ended_at is not None


class Watch:
    """Follows one writer by the head and the tail of its files."""

    def __init__(self, writer: WriterId) -> None:
        self.writer = writer
        self.opening: dict[str, Any] = {}
        self.beat: Record | None = None
        self.earlier_beat: Record | None = None
        self.close: Record | None = None
        self.metrics: dict[str, MetricValue] = {}
        self._metrics_seq = -1
        self.faults: dict[str, int] = {}
        self.step: int | None = None
        self.last_at: float | None = None
        self.age = Age(0.0, by_host_clock=True)
        self.problem = ""
        self._newest_seq = -1
        self._number = 0
        self._size = -1
        self._torn = False
        self._modified_at: float | None = None

    def look(self, directory: Path, files: Mapping[int, set[bool]], observer: Observer) -> None:
        """Take in what is new. Never raises for what it finds; see `problem`."""
        self.problem = ""
        for _ in range(_LISTINGS):
            try:
                self._look_into(directory, files)
                break
            except StorageError as error:
                self.problem = error.message
                break
            except OSError as error:
                if not has_vanished(error):
                    self.problem = f"{self.writer} cannot be read: {error.strerror}"
                    break
                # It was sealed just now; the same segment has another name.
                with contextlib.suppress(OSError):
                    files = list_segments(directory).get(self.writer, files)
        before_s = age_by_files(observer.clock, self.last_at, self._modified_at)
        token = (self._newest_seq, self._number, self._size)
        self.age = observer.observe(self.writer, token, before_s=before_s)

    def _look_into(self, directory: Path, files: Mapping[int, set[bool]]) -> None:
        number = max(files)
        is_new = number != self._number
        if self.close is not None and not is_new:
            return
        self._look_at(directory, number, files)
        # In a segment that was just begun the last heartbeat is in the one before.
        for earlier in sorted(files, reverse=True)[1:3] if is_new else ():
            if not self._knows_enough():
                self._look_at(directory, earlier, files, whole=True)

    def _look_at(
        self, directory: Path, number: int, files: Mapping[int, set[bool]], *, whole: bool = False
    ) -> None:
        name = SegmentName(self.writer, number, sealed=True in files[number])
        path = directory / DATA / str(name)
        if name.sealed:
            if whole or (number, 0) != (self._number, self._size):
                self._look_at_sealed(path)
            if not whole:
                self._number, self._size = number, 0
                self._modified_at = None
            return
        with opened(path) as (descriptor, size):
            known = (self._number, self._size)
            if size and (whole or self._torn or (number, size) != known):
                start = self._size if number == self._number and self._size <= size else 0
                self._look_at_tail(descriptor, size, start)
            if not whole:
                self._number, self._size = number, size
                self._modified_at = os.fstat(descriptor).st_mtime

    def _knows_enough(self) -> bool:
        is_known = self.beat is not None or self.close is not None
        return is_known and bool(self.metrics or self.writer.rank)

    def _look_at_tail(self, descriptor: int, size: int, start: int) -> None:
        if not self.opening:
            self.opening = opening(descriptor) or {}
        self._torn = os.pread(descriptor, 1, size - 1) != b"\n"
        beats = searched = 0
        metrics = False
        for line in lines_backwards(descriptor, size, start=max(0, start - _OVERLAP_BYTES)):
            known = number_and_kind(line)
            self._torn |= known is None and not searched
            searched += len(line) + 1
            if known is None or (known[1] == "m" and metrics):
                continue
            if known[1] == "m" or known[1] in TAIL_KINDS:
                metrics |= known[1] == "m"
                beats += known[1] == "hb"
                record = record_of(self.writer, line)
                if record is not None:
                    self._take(record)
            # A coordinator that makes no steps beats on; its newest metrics are further back.
            wants_metrics = self.writer.rank == 0 and not (metrics or self.metrics)
            if searched > (METRICS_BYTES if beats >= 2 else SEARCH_BYTES):
                break
            if beats >= 2 and not wants_metrics:
                break

    def _look_at_sealed(self, path: Path) -> None:
        wants_newest = self.writer.rank == 0 and self._metrics_seq < 0 and not self.metrics
        glance = sealed_glance(path, TAIL_KINDS, with_newest=wants_newest)
        self.opening = self.opening or dict(glance.meta.opening)
        self.metrics = self.metrics or glance.newest
        for record in glance.records:
            self._take(record)

    def _take(self, record: Record) -> None:
        """Take in a record; they come in any order, and some twice."""
        if record.seq > self._newest_seq:
            self._newest_seq = record.seq
            self.last_at = record.at
        if record.step is not None and (self.step is None or record.step > self.step):
            self.step = record.step
        if record.kind == "hb":
            if self.beat is None or record.seq > self.beat.seq:
                self.beat, self.earlier_beat = record, self.beat
            elif record.seq < self.beat.seq and (
                self.earlier_beat is None or record.seq > self.earlier_beat.seq
            ):
                self.earlier_beat = record
        elif record.kind == "close":
            self.close = record
        elif record.kind == "m" and record.seq > self._metrics_seq:
            self.metrics, self._metrics_seq = dict(record.body), record.seq
        elif record.kind == "ev" and record.body.get("type") == "fault":
            component = str(record.body.get("component", ""))
            count = record.body.get("count", 1)
            if isinstance(count, int):
                self.faults[component] = max(count, self.faults.get(component, 0))

    @property
    def beat_step(self) -> int | None:
        """The step of the newest heartbeat or, after the end, the last one."""
        if self.close is not None and self.close.step is not None:
            return self.close.step
        return self.beat.step if self.beat is not None else self.step

    @property
    def waits(self) -> bool:
        """Whether it waited for other ranks at its newest heartbeat."""
        return self.beat is not None and is_waiting(str(self.beat.body.get("phase", "")))

    @property
    def stands(self) -> bool:
        """Whether it waits for others, or should have made a step between two heartbeats."""
        if self.beat is None or self.earlier_beat is None or self.step is None:
            return self.waits
        is_slow = _number(self.beat, "step_time_ms") >= 1000 * self.beat_interval_s()
        return self.waits or (self.steps_per_s() == 0 and not is_slow)

    def steps_per_s(self) -> float:
        """Steps per second between the two newest heartbeats, by the writer's monotonic clock."""
        if self.beat is None:
            return 0.0
        if self.earlier_beat is not None:
            took = _number(self.beat, "mono") - _number(self.earlier_beat, "mono")
            done = (self.beat.step or 0) - (self.earlier_beat.step or 0)
            if took > 0 and done >= 0:
                return done / took
        step_time_ms = _number(self.beat, "step_time_ms")
        return 1000.0 / step_time_ms if step_time_ms > 0 else 0.0

    def beat_interval_s(self) -> float:
        """How old a heartbeat may be before the next one can be read."""
        announced = [self.opening.get("hb_s"), self.opening.get("flush_s")]
        given = [each for each in announced if isinstance(each, int | float)]
        return float(sum(given)) if given else BEAT_S


def _ms_per_step(watch: Watch) -> float | None:
    steps_per_s = watch.steps_per_s()
    return 1000.0 / steps_per_s if steps_per_s > 0 else None


def _number(record: Record, name: str) -> float:
    value = record.body.get(name)
    return float(value) if isinstance(value, int | float) else 0.0


def newest_attempt(writers: Iterable[WriterId]) -> int:
    """Return the highest attempt that has a file, 0 when there is none."""
    return max((writer.attempt for writer in writers), default=0)


def table(watches: Iterable[Watch], *, is_copy: bool = False) -> list[ParticipantView]:
    """Judge each process beside the others; sorted by rank.

    Args:
        is_copy: These are files of a copy, so no process of this host tells of them.
    """
    rows = sorted(watches, key=lambda watch: (watch.writer.rank, watch.writer.token))
    steps = [watch.beat_step for watch in rows]
    front = max((step for step in steps if step is not None), default=None)
    pace = max((watch.steps_per_s() for watch in rows if watch.beat_step == front), default=0.0)
    ends = {watch.writer: _end(watch, is_copy) for watch in rows}
    awaited = _awaited([watch for watch in rows if not ends[watch.writer][0]])
    waiting = {watch.writer for watch in rows if watch.waits}
    made = []
    for watch in rows:
        end, reason = ends[watch.writer]
        lag = _lag(watch, front, pace, end)
        state = _state(watch, end, lag, awaited, waiting)
        row = _row(watch, state, lag, end, reason)
        made.append(replace(row, awaited=True) if watch.writer in awaited else row)
    return made


def is_waiting(phase: str) -> bool:
    """Whether a phase is that of a process that waits for others."""
    return phase.startswith("waiting")


def _awaited(live: Sequence[Watch]) -> set[WriterId]:
    """Return those of which nothing is heard, while the others are heard of and go no further."""
    unheard = {watch.writer for watch in live if watch.age.seconds >= AWAITED_S}
    others = [watch for watch in live if watch.writer not in unheard]
    return unheard if others and all(watch.stands for watch in others) else set()


def _end(watch: Watch, is_copy: bool) -> tuple[str, str]:
    """Return how a process ended and why, "" while it goes on."""
    close = watch.close
    end, reason = "", ""
    if close is not None:
        end, reason = (
            str(close.body.get("state", "")) or "finished",
            str(close.body.get("reason", "")),
        )
    elif not is_copy and process_is_gone(watch.opening):
        end, reason = "gone", f"process {watch.opening.get('pid')} is gone and left no end record"
    announced = str(watch.beat.body.get("ending", "")) if watch.beat is not None else ""
    if announced and (end == "gone" or (not end and watch.age.seconds >= SILENT_S)):
        # It was told to end, and killed before it could say that it had.
        end, reason = "terminated", announced
    return end, reason


def _lag(watch: Watch, front: int | None, pace: float, end: str) -> int | None:
    if front is None or watch.beat_step is None:
        return None
    interval_s = watch.beat_interval_s()
    # A front that stands may have been reached by whoever was not heard of since.
    own = watch.steps_per_s() * max(interval_s, watch.age.seconds)
    reach = 0 if end else math.ceil(max(pace * interval_s, own))
    return max(0, front - watch.beat_step - reach)


def _row(watch: Watch, state: str, lag: int | None, end: str, reason: str) -> ParticipantView:
    opening, beat, close = watch.opening, watch.beat, watch.close
    said = opening.get("participant")
    facts: Mapping[str, Any] = said if isinstance(said, dict) else {}
    body: Mapping[str, Any] = beat.body if beat is not None else {}
    return ParticipantView(
        writer=watch.writer,
        rank=watch.writer.rank,
        attempt=watch.writer.attempt,
        state=state,
        host=str(opening.get("host", "")),
        pid=_integer(opening.get("pid")),
        local_rank=_integer(facts.get("local_rank")),
        group_rank=_integer(facts.get("group_rank")),
        world_size=_integer(opening.get("world")),
        step=watch.step,
        phase="" if end else str(body.get("phase", "")),
        phase_s=None if end else _float(body.get("phase_s")),
        age=watch.age,
        lag=None if end else lag,
        end=end,
        reason=reason,
        closes_run=close is not None and bool(close.body.get("close_run", True)),
        lost=_integer(body.get("lost")) or 0,
        storage_errors=_integer(body.get("errors")) or 0,
        faults=dict(watch.faults),
        exchange_wait_ms=_float(body.get("exchange_wait_ms")),
        step_time_ms=_float(body.get("step_time_ms")) or _ms_per_step(watch),
        counter=_integer(body.get("n")),
        started_at=_float(opening.get("t")),
        last_at=watch.last_at,
        ended_at=close.at if close is not None else None,
        id=str(facts.get("id", "")),
        name=str(facts.get("name", "")),
        role=str(facts.get("role", "")),
        labels=facts["labels"] if isinstance(facts.get("labels"), dict) else {},
        problem="" if beat or close or watch.step is not None else watch.problem,
        control_off="" if end else str(body.get("control_off", "")),
    )


def _state(
    watch: Watch, end: str, lag: int | None, awaited: Container[WriterId], waiting: set[WriterId]
) -> str:
    if end:
        return "ended"
    if watch.age.seconds >= SILENT_S:
        return "silent"
    if watch.age.seconds >= LATE_S or watch.writer in awaited:
        return "late"
    if watch.step is None:
        return "starting"
    if watch.waits:
        return "ok"  # Whoever waits holds nobody up.
    if watch.beat is not None and str(watch.beat.body.get("phase", "")).startswith("in "):
        return "busy"
    if lag is not None and (lag >= _FRONT_TOLERANCE or (lag and waiting and watch.stands)):
        return "behind"
    return "ok"


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _float(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
