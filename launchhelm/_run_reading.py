"""What `Run` reads back: this run, and its siblings under the same root, from their directories.

Everything goes through `launchhelm.views`, after the caller's own buffer has been flushed, so that
a process sees its own writes at once and others' within one flush interval.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from launchhelm.errors import ConfigError, Conflict, NotFound, StorageError
from launchhelm.models import timestamp
from launchhelm.values import check_axis, tagged

if TYPE_CHECKING:
    from launchhelm._recorder import Recorder
    from launchhelm._run_inert import NoRecorder
    from launchhelm.views import Point, RunState, RunSummary, RunView

FLUSH_WAIT_S: Final = 2.0
"""Reads wait this long for the own buffer; then they show what is on disk."""


class Reads:
    """The reading half of a Run. Reads keep working after `finish`, and on copies.

    Axes are Any because a coordinate may be an int, a float or text; views check each.
    """

    directory: Path
    run_id: str
    project: str
    name: str
    group: str
    recorder: Recorder | NoRecorder

    def latest(
        self, metric: str, *, run: str | None = None, rank: int | None = None, **axes: Any
    ) -> dict[str, Any] | None:
        """Return the newest point of a metric, over all ranks or of one; None when there is none.

        Returns:
            `{"value", "coordinates": {axis: text}, "observed_at"}`; a number that is not finite is
            `{"$number": "nonfinite", "value": "nan" | "inf" | "-inf"}`.

        Raises:
            ConfigError: No such run, or several.
            TypeError, ValueError: A bad axis.
        """
        with _lock:
            view = self._view(run)
            point = view.latest(metric, rank=rank, **axes)
            point = point or view.latest_rich(metric, rank=rank, **axes)
        return None if point is None else _shown(point)

    def history(
        self,
        metric: str,
        *,
        limit: int = 1000,
        step_from: int | None = None,
        step_to: int | None = None,
        run: str | None = None,
        rank: int | None = None,
        **axes: Any,
    ) -> list[dict[str, Any]]:
        """Return points of a metric in order of step, over all ranks or of one.

        Without a window the last `limit` points; with one the first `limit` inside it, bounds
        included.

        Raises:
            ConfigError: No such run, or several.
            TypeError, ValueError: A bad limit, window or axis.
        """
        with _lock:
            view = self._view(run)
            for read in (view.history, view.history_rich):
                points = read(
                    metric, limit=limit, step_from=step_from, step_to=step_to, rank=rank, **axes
                )
                if points:
                    break
        return [_shown(point) for point in points]

    def table(
        self, *metrics: str, run: str | None = None, axis: str = "step", limit: int = 1000
    ) -> list[dict[str, Any]]:
        """Join metrics on one axis: one row per coordinate, numeric order, no value invented.

        Raises:
            ConfigError: No such run, or several.
            TypeError, ValueError: No metric, or a bad limit or axis.
        """
        if not metrics:
            raise ValueError("table needs at least one metric.")
        columns = {metric: self.history(metric, limit=limit, run=run) for metric in metrics}
        return _joined(columns, axis)

    def compare(
        self, metric: str, *runs: str, axis: str = "step", limit: int = 1000
    ) -> list[dict[str, Any]]:
        """Join one metric of several runs on one axis, a column per title; "" is this run.

        Raises:
            ConfigError: No such run, or several.
            TypeError, ValueError: Fewer than two runs, or a bad limit or axis.
        """
        if len(runs) < 2:
            raise ValueError("compare needs at least two runs; '' is this one.")
        columns = {}
        for run in runs:
            with _lock:
                title = self._view(run).name
            columns[title] = self.history(metric, limit=limit, run=run)
        return _joined(columns, axis)

    def metrics(self, *, run: str | None = None) -> list[str]:
        """Return the names of all metrics, sorted.

        Raises:
            ConfigError: No such run, or several.
        """
        with _lock:
            return self._view(run).metrics()

    def metric(self, name: str, *, run: str | None = None) -> dict[str, Any] | None:
        """Return `{"kind", "axes", "unit"}` of a metric, None when there is none of that name.

        Raises:
            ConfigError: No such run, or several.
        """
        with _lock:
            return self._view(run).metric(name)

    def fetch(self, name: str, *, run: str | None = None) -> bytes:
        """Return the bytes of the newest artifact under a metric, or of its newest medium.

        Of several media in one value it is the first one that is no address.

        Raises:
            ConfigError: No such run, or several.
            ProtocolError: The metric has no point, or its newest value is neither.
            StorageError: The bytes are not on disk any more, or damaged.
        """
        from launchhelm.views import rich

        with _lock:
            return rich.fetch(self._view(run), name)

    def about(self, run: str = "") -> dict[str, Any]:
        """Return what a run says about itself.

        Raises:
            ConfigError: No such run, or several.
        """
        with _lock:
            view = self._view(run)
        extra = view.manifest.extra
        return {
            "name": view.name,
            "state": _open_or_closed(view.state),
            "group": view.group,
            "notes": view.notes,
            "tags": list(view.tags),
            "summary": view.summary,
            "config": view.config,
            "git": str(extra.get("git", "")),
            "host": view.manifest.host,
            "argv": str(extra.get("argv", "")),
        }

    def runs(self) -> list[str]:
        """Return the titles of this project's runs (of this group, when the run has one)."""
        return sorted(summary.name for summary in self._siblings())

    def statuses(self) -> list[tuple[str, str]]:
        """Return (title, `open` or `closed`) of the runs that `runs` names."""
        return sorted(
            (summary.name, _open_or_closed(summary.state)) for summary in self._siblings()
        )

    def _siblings(self) -> Iterator[RunSummary]:
        from launchhelm import views

        for summary in views.runs(self.directory.parent):
            if summary.project == self.project and self.group in ("", summary.group):
                yield summary

    def _view(self, run: str | None) -> RunView:
        """Return a fresh view of a run; call it with the lock held.

        Raises:
            ConfigError: No such run, or several.
        """
        from launchhelm import views  # Loads SQLite; scripts that only write never do.

        # Where storage does not answer, what is there already can still be read.
        with contextlib.suppress(TimeoutError):
            self.recorder.flush(FLUSH_WAIT_S)
        if not run or run in (self.run_id, self.name):
            directory = self.directory
        else:
            try:
                directory = views.find_run(self.directory.parent, run)
            except (NotFound, Conflict) as error:
                raise ConfigError(error.message, remedy=error.remedy) from error
        held = _views.get(directory)
        if held is None:
            while len(_views) >= _MAX_VIEWS:
                _views.pop(next(iter(_views)))
            try:
                held = _views[directory] = views.open_run(directory)
            except (NotFound, StorageError) as error:
                raise ConfigError(error.message, remedy=error.remedy) from error
        else:
            held.refresh()
        return held


# Views keep what they have read. One belongs to one thread at a time, so a lock goes with them.
_MAX_VIEWS: Final = 8
_views: Final[dict[Path, RunView]] = {}
_lock: Final = threading.RLock()


def _shown(point: Point) -> dict[str, Any]:
    return {
        "value": tagged(point.value),
        "coordinates": point.coordinates,
        "observed_at": timestamp(point.at),
    }


def _joined(columns: dict[str, list[dict[str, Any]]], axis: str) -> list[dict[str, Any]]:
    """Join columns of points on one axis; of two points at one coordinate the later stays."""
    from decimal import Decimal

    if axis != "step":
        check_axis(axis)
    rows: dict[Decimal, dict[str, Any]] = {}
    for title, points in columns.items():
        for point in points:
            text = point["coordinates"].get(axis)
            if text is not None:
                rows.setdefault(Decimal(text), {axis: text})[title] = point["value"]
    return [rows[position] for position in sorted(rows)]


def _open_or_closed(state: RunState) -> str:
    return "closed" if state.is_closed else "open"
