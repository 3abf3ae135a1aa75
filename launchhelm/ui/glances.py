"""What the list says of a run beyond its summary, looked for in spare time, newest runs first.

A run that has ended is looked at once. One that lives is looked at again after a heartbeat
interval, and then only what has come in since is read.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from launchhelm import views
from launchhelm._clock import Clock
from launchhelm.errors import StorageError
from launchhelm.records import WriterId
from launchhelm.store.reader import Listing, Reader, list_segments
from launchhelm.views.commands import Ledger
from launchhelm.views.liveness import Observer
from launchhelm.views.participants import Watch, newest_attempt, table
from launchhelm.views.trend import trend

AGAIN_S: Final = views.BEAT_S
NOT_WELL: Final = frozenset({"behind", "late", "silent", "missing"})


@dataclass(frozen=True, slots=True)
class Glance:
    """What is known so far.

    Args:
        trend: Of the metric that the list shows, in eight parts.
        unknown: Commands whose outcome nobody knows.
        not_well: Processes that stand out; None until they were looked at.
    """

    trend: list[float | None] | None = None
    unknown: int = 0
    not_well: int | None = None


@dataclass(slots=True)
class _Run:
    """One run between two looks."""

    reader: Reader | None
    glance: Glance = Glance()
    looked_at: float = -1e9
    token: object = None
    ledger: Ledger = field(default_factory=Ledger)
    watches: dict[WriterId, Watch] = field(default_factory=dict)


class Glances:
    """Keeps a glance of every run of a list."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._observer = Observer(clock)
        self._runs: dict[Path, _Run] = {}
        self._lock = threading.Lock()

    def of(self, run: views.RunSummary) -> Glance:
        """Return what is known of a run."""
        known = self._runs.get(run.directory)
        return known.glance if known is not None else Glance()

    def look(self, runs: Sequence[views.RunSummary], budget_s: float) -> bool:
        """Look at runs whose turn it is, for so long at most.

        Returns:
            Whether anything is known now that was not before.
        """
        if not self._lock.acquire(blocking=False):
            return False  # Somebody else is at it.
        try:
            return self._look(runs, budget_s)
        finally:
            self._lock.release()

    def _look(self, runs: Sequence[views.RunSummary], budget_s: float) -> bool:
        start = self._clock.monotonic()
        there = {run.directory for run in runs}
        for gone in self._runs.keys() - there:
            del self._runs[gone]
        due = [run for run in runs if self._is_due(run, start)]
        due.sort(key=lambda run: run.directory in self._runs)  # New ones first; a stable sort.
        is_news = False
        for run in due:
            if self._clock.monotonic() - start > budget_s:
                break
            is_news |= self._look_at(run, start)
        return is_news

    def _is_due(self, run: views.RunSummary, now: float) -> bool:
        known = self._runs.get(run.directory)
        if known is None:
            return not run.problem
        return now - known.looked_at >= AGAIN_S and (known.token != _token(run) or _is_live(run))

    def _look_at(self, run: views.RunSummary, now: float) -> bool:
        known = self._runs.get(run.directory)
        if known is None:
            reader = Reader(run.directory, kinds={"oc"}, ranks={0}, clock=self._clock)
            known = self._runs[run.directory] = _Run(reader)
        known.looked_at, known.token = now, _token(run)
        before = known.glance
        try:
            known.glance = self._seen(run, known)
        except (OSError, StorageError):
            # Not here yet, where runs come from elsewhere; or its own page says what is the matter.
            known.token = None
            return False
        return known.glance != before

    def _seen(self, run: views.RunSummary, known: _Run) -> Glance:
        listing = list_segments(run.directory)
        reader = known.reader or Reader(run.directory, kinds={"oc"}, ranks={0}, clock=self._clock)
        for record in reader.poll():
            known.ledger.take(record)
        unknown = sum(each.state == "outcome_unknown" for each in known.ledger.views())
        name = shown_metric(run)
        course = trend(run.directory, name) if name else None
        not_well = self._not_well(run, listing, known) if _is_live(run) else 0
        if run.state.is_over:
            # There are many of these, and none of them is read on.
            known.reader, known.ledger, known.watches = None, Ledger(), {}
        return Glance(course, unknown, not_well)

    def _not_well(self, run: views.RunSummary, listing: Listing, known: _Run) -> int:
        newest = newest_attempt(listing)
        current: dict[WriterId, Watch] = {}
        for writer, files in listing.items():
            if writer.attempt == newest:
                watch = current[writer] = known.watches.get(writer) or Watch(writer)
                watch.look(run.directory, files, self._observer)
        known.watches = current
        seen = {writer.rank for writer in current}
        missing = max(0, (run.world_size or 0) - len(seen))
        return missing + sum(row.state in NOT_WELL for row in table(current.values()))


def shown_metric(run: views.RunSummary) -> str:
    """Return the metric that the list shows of a run: the loss, else its first; "" for none."""
    name = next((each for each in views.LOSSES if each in run.metrics), "")
    return name or next(iter(run.metrics), "")


def _token(run: views.RunSummary) -> object:
    return run.state.word, run.step, run.pending, run.attempt


def _is_live(run: views.RunSummary) -> bool:
    return run.state.word in ("starting", "running")
