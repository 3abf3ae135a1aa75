"""The state of a run as one word and one sentence, from what its processes show."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from launchhelm import _wording
from launchhelm.records import STOP_COMMAND
from launchhelm.views.liveness import SILENT_S, Age
from launchhelm.views.participants import ParticipantView

RUN_STATES: Final = (
    "starting",
    "running",
    "no news",
    "finished",
    "failed",
    "stopped",
    "copy",
    "unreadable",
)
RANK_STATES: Final = tuple(_wording.RANK_MARKS)
PAUSED: Final = "paused"
"""Phase of a process that waits at a control point since it was told to."""

OVER: Final = frozenset({"finished", "failed", "stopped", "copy"})

_NO_STEP_S: Final = 60.0
_NEXT_STEP: Final = 1
"""So far others come that wait for a rank that ended."""
_NORMAL: Final = "finished"
_FAILED: Final = frozenset({"error", "failed", "gone"})
_LOST: Final = {"error": "failed", "failed": "failed", "gone": "gone"}
"""Of a rank without which the others go on."""
_UNNAMED: Final = {
    "preempted": "preemption",
    "terminated": "a signal",
    "interrupted": "an interrupt",
}
_ORDER: Final = ("failed", "gone", "silent", "late", "behind", "missing", "ended", "starting")


@dataclass(frozen=True, slots=True)
class RunState:
    """What is known of a run now.

    Args:
        word: One of RUN_STATES.
        text: The whole sentence.
        by_host_clock: It rests on ages that are not our own yet.
        is_closed: It finished for good; any other run may be resumed.
    """

    word: str
    text: str
    by_host_clock: bool = False
    is_closed: bool = False

    @property
    def is_over(self) -> bool:
        """Whether an end is on record, or this is a copy; `no news` is not an end."""
        return self.word in OVER

    def __str__(self) -> str:
        return self.text


def run_state(
    rows: Sequence[ParticipantView],
    *,
    world_size: int | None,
    seen: int | None = None,
    started_at: float,
    created_at: float,
    now: float,
    still: Age,
    no_step: Age | None = None,
    is_copy: bool = False,
) -> RunState:
    """Judge a run by the processes of its newest attempt.

    Args:
        rows: Those whose files were looked at; the coordinator's at least, where it has any.
        world_size: How many there should be; None when nobody said.
        seen: How many have files; None means as many as there are rows.
        started_at: When the attempt began, by its coordinator's clock; shown only.
        created_at: When the run began, its first attempt, by its creator's clock; shown only.
        now: Our wall clock, for ages that are shown.
        still: Since when nothing of the run has moved, for a run without any row.
        no_step: Since when the front has not moved; None when that is not known.
        is_copy: Nobody writes here any more, so an end on record is all that there is to judge.
    """
    seen = len({row.rank for row in rows}) if seen is None else seen
    over = _over(rows, created_at)
    if over is not None:
        endless = sorted({row.rank for row in rows if not row.end})
        if is_copy and over.word == "failed" and endless:
            text = f"{over.text}; {_wording.ranks_text(endless)} without an end record in this copy"
            return RunState("failed", text)
        return over
    front = max((row.step for row in rows if row.step is not None), default=None)
    if is_copy:
        return RunState("copy", _wording.copy_text(front))
    alive = [row for row in rows if row.state not in ("ended", "silent")]
    by_host_clock = any(row.age.by_host_clock for row in rows) if rows else still.by_host_clock
    if not alive:
        age = min((row.age for row in rows), key=lambda age: age.seconds, default=still)
        if age.seconds >= SILENT_S:
            text = _wording.no_news_text(age.seconds, *_last_written(rows))
            return RunState("no news", text, by_host_clock)
    problem = next((row.problem for row in rows if row.problem), "")
    if front is None and problem:
        return RunState("unreadable", _wording.unreadable_text(problem))
    if front is None or (world_size is not None and seen < world_size):
        since_s = max(0.0, now - started_at)
        text = _wording.starting_text(seen, world_size, since_s)
        return RunState("starting", text, by_host_clock=True)
    counts = Counter(_LOST.get(row.end, row.state) for row in rows)
    stuck_s = no_step.seconds if no_step is not None else 0.0
    # A process that is busy or paused makes no steps, and that is no exception.
    paused = [row.phase == PAUSED for row in alive]
    if counts["busy"] or stuck_s < _NO_STEP_S or any(paused):
        stuck_s = 0.0
    exceptions = {word: counts[word] for word in _ORDER if counts[word]}
    paused_at = front if paused and all(paused) else None
    text = _wording.running_text(exceptions, stuck_s or None, paused_at=paused_at)
    return RunState("running", text, by_host_clock)


def _over(rows: Sequence[ParticipantView], created_at: float) -> RunState | None:
    """Say how a run ended: an error on any rank, the coordinator's end, or the end of all."""
    ended = [row for row in rows if row.end]
    if _goes_on(rows):
        return None
    failed = [row for row in ended if row.end in ("error", "failed")]
    all_ended = bool(rows) and len(ended) == len(rows)
    coordinators = [row for row in ended if row.rank == 0 and row.end != "gone"]
    if not failed and not coordinators and all_ended:
        failed = [row for row in ended if row.end in _FAILED]
    if failed:
        bad = [row for row in ended if row.end != _NORMAL]
        gone = sorted({row.rank for row in bad if row.end == "gone"})
        if len(gone) > 1 and len(gone) == len({row.rank for row in bad}):
            # Which of them was killed first, and which then by its launcher, nobody wrote down.
            step = max((row.step for row in bad if row.step is not None), default=None)
            return RunState("failed", _wording.all_gone_text(gone, step))
        first = _cause(bad)
        text = _wording.failed_text(
            first.rank, first.step, _reason(first), on_record=first.has_end_record
        )
        others = [row for row in bad if row.end in ("error", "failed")]
        if first.end == "gone" and others:
            other = _cause(others)
            text += f"; then rank {other.rank}: {_wording.short_reason(_reason(other))}"
        return RunState("failed", text)
    if not coordinators and not all_ended:
        return None
    last = (coordinators or ended)[-1]
    if last.end == _NORMAL:
        lost = _lost_on_the_way(rows)
        if last.reason == STOP_COMMAND and not lost:
            text = _wording.stopped_text(last.reason, last.step)
            return RunState("stopped", text, is_closed=last.closes_run)
        took_s = max(0.0, last.ended_at - created_at) if last.ended_at is not None else None
        text = _wording.finished_text(took_s, lost)
        return RunState("finished", text, is_closed=last.closes_run)
    return RunState(
        "stopped", _wording.stopped_text(_reason(last), last.step, on_record=last.has_end_record)
    )


def _goes_on(rows: Sequence[ParticipantView]) -> bool:
    """Whether some rank has left those behind that ended badly, and still makes steps."""
    bad = [row.step or 0 for row in rows if row.end and row.end != _NORMAL]
    return bool(bad) and any(
        not row.end and row.state in ("ok", "busy") and (row.step or 0) > max(bad) + _NEXT_STEP
        for row in rows
    )


def _reason(row: ParticipantView) -> str:
    return row.reason or _UNNAMED.get(row.end, row.end)


def _cause(ended: Sequence[ParticipantView]) -> ParticipantView:
    """Return the process whose end came first, which is more likely the cause than a victim.

    A process that was killed without a word comes first, whatever the steps: the others fail
    because of it, unless it still wrote after one of them, on its host, had failed. Else the lowest
    step tells. At the same step times tell, but only between processes of one host; else an error
    comes before a signal, which a launcher sends to the others after an error.
    """
    failed = [row for row in ended if row.end in ("error", "failed")]
    killed = [row for row in ended if row.end == "gone" and not _outlived(row, failed)]
    if killed:
        return min(killed, key=lambda row: (row.last_at or 0.0, row.rank))

    def place(row: ParticipantView) -> tuple[bool, int]:
        return row.step is None, row.step or 0

    lowest = min(map(place, ended))
    tied = [row for row in ended if place(row) == lowest]
    tied.sort(key=lambda row: (row.end not in _FAILED, row.rank))
    if len({row.host for row in tied}) > 1:
        return tied[0]
    return min(tied, key=lambda row: row.ended_at or row.last_at or 0.0)


def _outlived(row: ParticipantView, failed: Sequence[ParticipantView]) -> bool:
    """Whether a process still wrote after another one of its host had failed."""
    ends = [each.ended_at for each in failed if each.host == row.host and each.ended_at is not None]
    return row.last_at is not None and row.last_at > min(ends, default=row.last_at)


def _lost_on_the_way(rows: Sequence[ParticipantView]) -> dict[int, str]:
    """Name the ranks of a finished run that did not finish: by rank, `gone` or how they ended."""
    lost: dict[int, str] = {}
    whole = {row.rank for row in rows if row.end == _NORMAL}
    for row in rows:
        word = row.end or (row.state if row.state == "silent" else "")
        if word and row.rank not in whole:
            lost[row.rank] = word
    return lost


def _last_written(rows: Sequence[ParticipantView]) -> tuple[str, str]:
    """Return the time of the newest record as its host's clock had it, and the host."""
    written = [row for row in rows if row.last_at is not None]
    if not written:
        return "", ""
    newest = min(written, key=lambda row: row.age.seconds)
    at = time.localtime(newest.last_at)
    same_day = at[:3] == time.localtime()[:3]
    return time.strftime("%H:%M" if same_day else "%Y-%m-%d %H:%M", at), newest.host
