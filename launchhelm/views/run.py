"""One run, opened for reading: refreshed step by step, never written to."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from launchhelm import _wording
from launchhelm._clock import SYSTEM_CLOCK, Clock
from launchhelm.errors import NotFound, StorageError
from launchhelm.records import Command, Record, WriterId
from launchhelm.store import inbox, layout
from launchhelm.store.cursor import Cursor
from launchhelm.store.layout import CommandName
from launchhelm.store.manifest import Attempt, Manifest, load_manifest
from launchhelm.store.manifest import attempts as load_attempts
from launchhelm.store.reader import Gap, Listing, Reader, list_segments
from launchhelm.values.coordinates import axes_text
from launchhelm.views import rich
from launchhelm.views.attempts import Span, span
from launchhelm.views.commands import CommandView
from launchhelm.views.copied import copied_attempt
from launchhelm.views.fold import FOLDED_KINDS, Fold
from launchhelm.views.liveness import Age, Observer, age_by_files
from launchhelm.views.participants import ParticipantView, Watch, newest_attempt, table
from launchhelm.views.points import Point, Selection
from launchhelm.views.series import Series, kind_of
from launchhelm.views.state import RunState, run_state

MAX_HISTORY: Final = 10_000
_COORDINATOR: Final = frozenset({0})
_POLL_S: Final = 1.0
_MEASURED_FILES: Final = 1000
"""Each is asked for its size, which takes a moment on a network file system."""


@dataclass(frozen=True, slots=True)
class AttemptView:
    """One launch of the run.

    Args:
        started_at: By its coordinator's clock; shown only.
        last_step: The highest step known of it; None while there is none.
        end: End state of its coordinator; "" while there is no end record.
        reason: Why it ended.
    """

    number: int
    restart_count: int
    started_at: float | None
    world_size: int | None
    host: str
    launch: Mapping[str, str]
    labels: Mapping[str, str]
    resumed_from: int | None
    ranks_seen: int
    last_step: int | None
    end: str
    reason: str


@dataclass(frozen=True, slots=True)
class Losses:
    """What is missing, and what went wrong with ourselves, over the newest attempt.

    Args:
        records: Given up by writers, by their own count.
        gaps: Numbers that do not exist in the coordinators' files, of any attempt.
        storage_errors: Failed writes.
        faults: Faults of our own, by component.
    """

    records: int
    gaps: tuple[Gap, ...]
    storage_errors: int
    faults: Mapping[str, int]

    def __bool__(self) -> bool:
        return bool(self.records or self.gaps or self.storage_errors or self.faults)

    def texts(self) -> list[str]:
        """Say each of it in words."""
        said = []
        if self.records:
            said.append(f"{self.records:,} records given up by their writers")
        if self.gaps:
            lost = sum(gap.last - gap.first + 1 for gap in self.gaps)
            said.append(f"{lost:,} records of rank 0 missing: {_wording.plain(self.gaps[0].why)}")
        if self.storage_errors:
            said.append(f"{self.storage_errors:,} writes refused by storage")
        said += [f"fault in {_wording.plain(name)} x{n:,}" for name, n in self.faults.items()]
        return said


def open_run(
    path: Path | str, *, observer: Observer | None = None, clock: Clock = SYSTEM_CLOCK
) -> RunView:
    """Open a run directory for reading, and look at it once.

    Raises:
        NotFound: There is no run at that path.
        StorageError: It cannot be read, or is of a newer format.
    """
    view = RunView(Path(path), observer or Observer(clock))
    view.refresh()
    return view


class RunView:
    """A run as its directory shows it. Use `open_run`; one view belongs to one thread.

    Only the coordinator's records are read whole, metric lines excepted; of every other process
    the head and the tail of its newest file. Metrics are read when they are asked for.
    """

    def __init__(self, directory: Path, observer: Observer) -> None:
        self.directory = directory.absolute()
        self.observer = observer
        try:
            self.manifest: Manifest = load_manifest(self.directory)
        except FileNotFoundError:
            raise NotFound(
                f"There is no run directory at {directory}.",
                remedy=f"A run directory has a {layout.MANIFEST}; `launchhelm ls` lists your runs.",
            ) from None
        except OSError as error:
            raise StorageError(f"{directory} cannot be read: {error.strerror}.") from error
        self.attempts: list[AttemptView] = []
        self.participants: list[ParticipantView] = []
        self.state = RunState("starting", "starting")
        self._clock = observer.clock
        self._copied_attempt = copied_attempt(self.directory)
        self._fold = Fold(self.directory)
        self._reader = self.reader(kinds=FOLDED_KINDS, ranks=_COORDINATOR)
        self._series = Series(self.directory)
        self._listing: Listing = {}
        self._watches: dict[Any, Watch] = {}
        self._ends: dict[int, Record] = {}
        self._spans: dict[WriterId, Span] = {}
        self._attempt_names: list[str] = []
        self._attempt_files: dict[int, Attempt] = {}
        self._inbox: list[tuple[CommandName, Command | None]] = []
        self._problems: dict[str, str] = {}

    # --- looking ------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Look again; costs only what has changed. Never raises for what it finds: `problems`."""
        self._listing = self._try("data", lambda: list_segments(self.directory), self._listing)
        for record in self._reader.poll():
            self._fold.take(record)
            if record.kind == "close":
                self._ends[record.writer.attempt] = record
        self._inbox = self._try("inbox", lambda: inbox.waiting(self.directory), [])
        self._refresh_attempts()
        self._refresh_participants()

    def _try(self, key: str, look: Callable[[], Any], otherwise: Any) -> Any:
        try:
            value = look()
        except FileNotFoundError:
            return otherwise  # Not visible yet, or made by an older version.
        except OSError as error:
            self._problems[key] = f"{error.filename or key} cannot be read: {error.strerror}"
            return otherwise
        self._problems.pop(key, None)
        return value

    def _refresh_attempts(self) -> None:
        names = self._try(
            "attempts", lambda: sorted(os.listdir(self.directory / layout.ATTEMPTS)), []
        )
        if names != self._attempt_names:
            self._attempt_names = names
            self._attempt_files = {each.number: each for each in load_attempts(self.directory)}

    def _refresh_participants(self) -> None:
        newest = self.attempt
        for writer in self._listing:
            if writer.attempt == newest and writer not in self._watches:
                self._watches[writer] = Watch(writer)
        for writer, files in self._listing.items():
            if writer.attempt == newest:
                self._watches[writer].look(self.directory, files, self.observer)
        current = [watch for watch in self._watches.values() if watch.writer.attempt == newest]
        is_copy = 0 < newest <= self._copied_attempt
        self.participants = table(current, is_copy=is_copy)
        now = self._clock.wall()
        still = self.observer.observe(
            ("listing", self.directory),
            len(self._listing),
            before_s=age_by_files(self._clock, self.started_at, None),
        )
        self.attempts = self._attempt_views()
        self.state = run_state(
            self.participants,
            world_size=self.world_size,
            started_at=self.started_at,
            created_at=self.manifest.created_at,
            now=now,
            still=still,
            no_step=self.observer.observe(("front", self.directory), (newest, self.step)),
            is_copy=is_copy,
        )

    def _attempt_views(self) -> list[AttemptView]:
        writers: dict[int, set[int]] = {}
        for writer in self._listing:
            writers.setdefault(writer.attempt, set()).add(writer.rank)
        return [
            self._attempt_view(number, len(writers.get(number, ())))
            for number in sorted({*self._attempt_files, *writers})
        ]

    def _attempt_view(self, number: int, ranks_seen: int) -> AttemptView:
        known = self._attempt_files.get(number)
        end = self._ends.get(number)
        last_step = end.step if end is not None else None
        if number == self.attempt:
            last_step = self.step
        return AttemptView(
            number=number,
            restart_count=known.restart_count if known else max(0, number - 1),
            started_at=known.started_at if known else None,
            world_size=known.world_size if known else None,
            host=known.host if known else "",
            launch=known.launch if known else {},
            labels=known.labels if known else {},
            resumed_from=known.resumed_from if known else None,
            ranks_seen=ranks_seen,
            last_step=last_step,
            end=str(end.body.get("state", "")) if end else "",
            reason=str(end.body.get("reason", "")) if end else "",
        )

    def spans(self) -> dict[int, Span]:
        """Return which steps each attempt logged; those of older ones are read once."""
        found = {}
        for writer, files in self._listing.items():
            if writer.rank == 0:
                known = self._spans.get(writer)
                if known is None or writer.attempt == self.attempt:
                    known = self._spans[writer] = span(self.directory, writer, files)
                found[writer.attempt] = known
        return found

    # --- identity -----------------------------------------------------------------------------

    @property
    def run_id(self) -> str:
        """The run's id, whatever its directory is called now."""
        return self.manifest.run_id

    @property
    def name(self) -> str:
        """The title, as described last."""
        return str(self._fold.described.values.get("name") or self.manifest.name)

    @property
    def project(self) -> str:
        """The project's name."""
        return self.manifest.project

    @property
    def config(self) -> dict[str, Any]:
        """The configuration as given at the start."""
        return dict(self.manifest.config)

    @property
    def group(self) -> str:
        """The group, as described last; "" for none."""
        return str(self._described("group", ""))

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags, as described last."""
        return tuple(self._described("tags", ()))

    @property
    def notes(self) -> str:
        """The notes, as described last."""
        return str(self._described("notes", ""))

    def _described(self, name: str, default: Any) -> Any:
        return self._fold.described.values.get(name, self.manifest.extra.get(name, default))

    @property
    def attempt(self) -> int:
        """Number of the newest attempt that has a file or is on record; 0 for none."""
        return max(newest_attempt(self._listing), *self._attempt_files, 0)

    @property
    def world_size(self) -> int | None:
        """Processes of the newest attempt; None when nobody said."""
        known = self._attempt_files.get(self.attempt)
        if known is not None:
            return known.world_size
        sizes = [row.world_size for row in self.participants if row.world_size is not None]
        stored = self.manifest.extra.get("world_size")
        return sizes[0] if sizes else stored if isinstance(stored, int) else None

    @property
    def started_at(self) -> float:
        """When the newest attempt began, by its coordinator's clock; shown only."""
        known = self._attempt_files.get(self.attempt)
        return known.started_at if known is not None else self.manifest.created_at

    # --- state --------------------------------------------------------------------------------

    @property
    def step(self) -> int | None:
        """The front: the highest step that a process of the newest attempt shows."""
        steps = [row.step for row in self.participants if row.step is not None]
        return max(steps, default=None)

    @property
    def missing(self) -> list[int]:
        """Ranks that the world size promises and that have no file."""
        seen = {row.rank for row in self.participants}
        return [rank for rank in range(self.world_size or 0) if rank not in seen]

    @property
    def coordinator(self) -> ParticipantView | None:
        """Rank 0 of the newest attempt."""
        found = [row for row in self.participants if row.rank == 0]
        return found[-1] if found else None

    @property
    def age(self) -> Age | None:
        """Since any process of the newest attempt last moved."""
        return min((row.age for row in self.participants), key=lambda a: a.seconds, default=None)

    @property
    def capabilities(self) -> dict[str, dict[str, Any]]:
        """What the run may be commanded, as it registered it, by name."""
        return self._fold.capabilities

    @property
    def controls(self) -> dict[str, Any]:
        """The newest word on the values that controls have, and on the pace of the exchange."""
        said = self._fold.controls
        if said.get("control") == "off" or self.state.is_over:
            return said
        off = next((row.control_off for row in self.participants if row.control_off), "")
        if self.is_leaderless:
            off = off or "rank 0 is gone"
        return {**said, "control": "off", "why": off} if off else said

    @property
    def is_leaderless(self) -> bool:
        """Whether rank 0, which takes commands, has ended, and the run goes on without it."""
        leader = self.coordinator
        return leader is not None and bool(leader.end) and not self.state.is_over

    @property
    def commands(self) -> list[CommandView]:
        """Every command ever given to the run, and those that wait in its inbox."""
        return self._fold.ledger.views(self._inbox)

    def command(self, id_: str) -> CommandView | None:
        """Return one command by its id; None when neither record nor inbox knows it."""
        return next((each for each in self.commands if each.id == id_), None)

    @property
    def events(self) -> Sequence[Record]:
        """The coordinator's events, oldest first, at most the last thousand."""
        return tuple(self._fold.events)

    @property
    def summary(self) -> dict[str, Any]:
        """Summary values."""
        return self._fold.summary

    @property
    def kept(self) -> dict[str, Any] | None:
        """State kept for a resume."""
        return self._fold.kept

    @property
    def losses(self) -> Losses:
        """What is missing, and what went wrong with ourselves."""
        faults: dict[str, int] = {}
        for row in self.participants:
            for component, count in row.faults.items():
                faults[component] = faults.get(component, 0) + count
        return Losses(
            records=sum(row.lost for row in self.participants),
            gaps=tuple(self._reader.gaps),
            storage_errors=sum(row.storage_errors for row in self.participants),
            faults=faults,
        )

    @property
    def files(self) -> tuple[int, int | None]:
        """Number and bytes of artifacts and media; None for the bytes of very many."""
        try:
            with os.scandir(self.directory / layout.MEDIA) as found:
                entries = [entry for entry in found if not entry.name.startswith(".")]
            if len(entries) > _MEASURED_FILES:
                return len(entries), None
            return len(entries), sum(entry.stat().st_size for entry in entries)
        except OSError:
            return 0, 0  # There are none, or nothing can be said.

    @property
    def problems(self) -> list[str]:
        """What cannot be read now, one sentence each."""
        watched = [watch.problem for watch in self._watches.values() if watch.problem]
        said = [*self._problems.values(), *self._reader.problems, *watched, *self._series.problems]
        for writer, number in self._reader.holes.items():
            said.append(
                f"{writer}: record {number} is not here although later ones are; "
                "a copy made while the run wrote looks like that, and so does a slow file system"
            )
        return list(dict.fromkeys(said))

    # --- metrics ------------------------------------------------------------------------------

    def metrics(self) -> list[str]:
        """Return the names of all metrics, of every rank and attempt, sorted."""
        return sorted({*self._series.names(), *self._fold.definitions.values})

    def kinds_by_writer(self) -> dict[WriterId, dict[str, str]]:
        """Return, for each process start, its metrics and the kind of their values."""
        return self._series.names_by_writer()

    def metric(self, name: str) -> dict[str, Any] | None:
        """Return {"kind", "axes", "unit"} of a metric; None when there is none of that name."""
        defined = self._fold.definitions.values.get(name, {})
        # The coordinator nearly always knows; every other rank's files cost a look each.
        latest = self._series.latest(Selection(name, ranks=_COORDINATOR))
        if latest is None:
            latest = self._series.latest(Selection(name))
        if latest is None and self._shows(name):
            latest = rich.latest(self, Selection(name))
        kind = defined.get("kind")
        if kind is None and latest is not None:
            kind = kind_of(latest.value)
        if kind is None:
            kind = self._series.names().get(name)
        if kind is None:
            return None
        axes = defined.get("axes") or (latest.axes if latest is not None else ())
        named = ["step", *(axis for axis in axes if axis != "step")]
        return {"kind": kind, "axes": named, "unit": str(defined.get("unit", ""))}

    def latest(self, name: str, *, rank: int | None = None, **axes: object) -> Point | None:
        """Return the newest point of a metric in its newest attempt; None when there is none.

        Raises:
            ValueError, TypeError: An axis has no such name, or is no coordinate.
        """
        return self._series.latest(_selection(name, rank, None, None, axes))

    def history(
        self,
        name: str,
        *,
        limit: int = 1000,
        step_from: int | None = None,
        step_to: int | None = None,
        rank: int | None = None,
        all_attempts: bool = False,
        **axes: object,
    ) -> list[Point]:
        """Return points in order of step: the last `limit`, or the first ones inside a window.

        Per step the newest attempt that has one is shown; `all_attempts` shows all.

        Raises:
            ValueError: `limit` is not 1 to 10,000, the window is reversed, or an axis is bad.
            TypeError: A bound is no integer.
        """
        if isinstance(limit, bool) or not isinstance(limit, int):
            raise TypeError(f"limit is an integer, got {limit!r}")
        if not 1 <= limit <= MAX_HISTORY:
            raise ValueError(f"limit is 1 to {MAX_HISTORY:,}, got {limit}")
        selection = _selection(name, rank, step_from, step_to, axes)
        return self._series.history(selection, limit, all_attempts=all_attempts)

    def latest_rich(self, name: str, *, rank: int | None = None, **axes: object) -> Point | None:
        """Return the newest text, medium, table or histogram, as `latest` returns a scalar.

        Raises:
            ValueError, TypeError: As `latest`.
        """
        selection = _selection(name, rank, None, None, axes)
        return rich.latest(self, selection) if self._shows(name) else None

    def history_rich(
        self,
        name: str,
        *,
        limit: int = 1000,
        step_from: int | None = None,
        step_to: int | None = None,
        rank: int | None = None,
        **axes: object,
    ) -> list[Point]:
        """Return texts, media, tables or histograms, as `history` returns scalars.

        Raises:
            ValueError, TypeError: As `history`.
        """
        selection = _selection(name, rank, step_from, step_to, axes)
        return rich.history(self, selection, limit) if self._shows(name) else []

    def _shows(self, name: str) -> bool:
        """Whether there is something to look at under a name, which need not be read for that."""
        return self._series.names().get(name) == "object"

    def points(
        self,
        name: str,
        *,
        step_from: int | None = None,
        step_to: int | None = None,
        rank: int | None = None,
        all_attempts: bool = False,
        **axes: object,
    ) -> Iterator[Point]:
        """Yield every point of a metric, attempt by attempt and rank by rank, as it was written."""
        selection = _selection(name, rank, step_from, step_to, axes)
        return self._series.points(selection, all_attempts=all_attempts)

    # --- records ------------------------------------------------------------------------------

    def reader(
        self,
        cursor: Cursor | None = None,
        *,
        kinds: Collection[str] | None = None,
        ranks: Collection[int] | None = None,
    ) -> Reader:
        """Return a reader of the run's records, for whoever follows them."""
        return Reader(self.directory, cursor, clock=self._clock, kinds=kinds, ranks=ranks)

    def follow(
        self,
        *,
        kinds: Collection[str] | None = None,
        ranks: Collection[int] | None = None,
        cursor: Cursor | None = None,
        interval_s: float = _POLL_S,
        sleep: Callable[[float], None] = time.sleep,
    ) -> Iterator[list[Record]]:
        """Yield the new records of each look, for ever; an empty list says that nothing came.

        Goes on across sealed segments and into new attempts.
        """
        reader = self.reader(cursor, kinds=kinds, ranks=ranks)
        while True:
            yield reader.poll()
            sleep(interval_s)


def _selection(
    name: str,
    rank: int | None,
    step_from: int | None,
    step_to: int | None,
    axes: Mapping[str, object],
) -> Selection:
    for bound in (step_from, step_to):
        if bound is not None and (isinstance(bound, bool) or not isinstance(bound, int)):
            raise TypeError(f"A step bound is an integer, got {bound!r}")
    if step_from is not None and step_to is not None and step_from > step_to:
        raise ValueError(f"The window is reversed: from {step_from} to {step_to}")
    ranks = None if rank is None else frozenset({rank})
    return Selection(name, axes_text(axes), ranks, step_from, step_to)
