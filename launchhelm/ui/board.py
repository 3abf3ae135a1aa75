"""All runs under the roots, looked at as rarely as their state allows, and the ones that are open.

One board serves all viewers. A run is found by its id among those that were listed; nothing that a
client says becomes a path.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from launchhelm import _wording, views
from launchhelm._clock import SYSTEM_CLOCK, Clock
from launchhelm.errors import ConfigError, LaunchHelmError
from launchhelm.records import Command, WriterId
from launchhelm.store import inbox, layout
from launchhelm.ui._answers_console import Console
from launchhelm.ui._answers_processes import Beats
from launchhelm.ui.glances import Glances
from launchhelm.ui.request import Problem
from launchhelm.views.curves import Curves
from launchhelm.views.liveness import Observer
from launchhelm.views.participants import Watch
from launchhelm.views.plan import may_send
from launchhelm.views.runs import owner_of, run_directories, summarise

LIST_S: Final = 10.0
LIVE_S: Final = 2.0
IDLE_S: Final = 30.0
"""How often roots are listed, runs that live are looked at, and those that do not."""

FRESH_S: Final = 0.5
"""An open run is not looked at again within this time."""

NEVER: Final = -1e9
"""Before any clock began: what was looked at then is looked at again at once."""

MAX_OPEN: Final = 16
NOTHING_SENT: Final = "Nothing was sent, nothing changed."
_LIVE: Final = frozenset({"starting", "running"})


@dataclass(slots=True)
class Place:
    """One directory under a root."""

    directory: Path
    summary: views.RunSummary | None = None
    token: tuple[int, ...] = ()
    looked_at: float = -1e9
    watches: dict[WriterId, Watch] = field(default_factory=dict)


@dataclass(slots=True)
class OpenRun:
    """A run that somebody looks at. Use it within `lock`."""

    view: views.RunView
    curves: Curves
    opened_at: float = 0.0
    console: Console = field(default_factory=Console)
    beats: Beats = field(default_factory=Beats)
    lock: threading.RLock = field(default_factory=threading.RLock)
    looked_at: float = NEVER
    share: float = 1.0
    """How much of its points is there; less than all while a server's run is being copied."""


class Board:
    """The runs of some roots.

    Args:
        roots: Directories of runs, or run directories themselves.
        read_only: Nobody may control from here.

    Attributes:
        names: What is shown, for people: the roots.
        absent: What a file is whose bytes are not in its run.
    """

    absent = "missing"

    def __init__(
        self, roots: Sequence[Path], *, read_only: bool = False, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.roots = [root.absolute() for root in roots]
        self.read_only = read_only
        self.names = [str(root) for root in self.roots]
        self.clock = clock
        self.glances = Glances(clock)
        self.synced: dict[str, dict[str, str]] = {}
        self._observer = Observer(clock)
        self._places: dict[Path, Place] = {}
        self._problems: dict[Path, str] = {}
        self._listed_at = -1e9
        self._open: OrderedDict[Path, OpenRun] = OrderedDict()
        self._copied: frozenset[str] = frozenset()
        self._lock = threading.RLock()

    # --- the list -----------------------------------------------------------------------------

    def look(self, budget_s: float = 1e9) -> tuple[list[views.RunSummary], int]:
        """Look at the runs whose turn it is.

        Args:
            budget_s: Ends early after this time; the next call goes on.

        Returns:
            All summaries so far, newest run first, and how many directories there are.
        """
        with self._lock:
            start = self.clock.monotonic()
            if start - self._listed_at >= LIST_S:
                self._list()
                self._listed_at = start
            due = [place for place in self._places.values() if self._is_due(place, start)]
            due.sort(key=lambda place: place.looked_at)
            for place in due:
                if self.clock.monotonic() - start > budget_s:
                    break
                self._look_at(place)
            found = [place.summary for place in self._places.values() if place.summary is not None]
            found.sort(key=lambda run: run.run_id, reverse=True)
            counts = Counter(run.run_id for run in found)
            self._copied = frozenset(id_ for id_, count in counts.items() if count > 1)
            waiting = sum(place.looked_at < 0 for place in self._places.values())
            return found, len(found) + waiting

    @property
    def problems(self) -> dict[Path, str]:
        """What looks like a run or a root and cannot be read, and why."""
        with self._lock:
            said = dict(self._problems)
            for place in self._places.values():
                if place.summary is not None and place.summary.problem:
                    said[place.directory] = place.summary.problem
            return said

    def _list(self) -> None:
        there: list[Path] = []
        self._problems.clear()
        for root in self.roots:
            if layout.MANIFEST in _names(root):
                there.append(root)
                continue
            try:
                there += run_directories(root)
            except LaunchHelmError as error:
                self._problems[root] = error.message
        self._places = {path: self._places.get(path) or Place(path) for path in there}

    def _is_due(self, place: Place, now: float) -> bool:
        summary = place.summary
        is_live = summary is not None and summary.state.word in _LIVE
        return now - place.looked_at >= (LIVE_S if is_live else IDLE_S)

    def _look_at(self, place: Place) -> None:
        first = place.looked_at < 0
        place.looked_at = self.clock.monotonic()
        summary = place.summary
        token = _token(place.directory)
        if not first and summary is None and token == place.token:
            return  # It is no run, and nothing has come into it.
        if summary is not None and summary.state.is_over and token == place.token:
            return
        place.token = token
        place.summary = summarise(place.directory, self._observer, place.watches)
        if place.summary is None or place.summary.state.is_over:
            place.watches.clear()

    def address_of(self, directory: Path, run_id: str) -> str:
        """Return how a page names a run: by its id, and of several copies of one, which it is."""
        if run_id not in self._copied:
            return run_id
        return f"{run_id}.{hashlib.sha256(os.fsencode(directory)).hexdigest()[:8]}"

    # --- what differs where runs are not this user's directories ----------------------------------

    def place_of(self, directory: Path) -> tuple[str, str]:
        """Return where a run lies and whose it is, for people; "" for what is not to be told."""
        return str(directory), owner_of(directory)

    def refusal(self, view: views.RunView) -> str:
        """Say why whoever looks may not control a run from here, "" when he may."""
        return _wording.READ_ONLY if self.read_only else may_send(view.directory)

    def misfits(self, command: Command) -> dict[str, str]:
        """Say by field what of a command cannot be sent from here, whatever the run."""
        return {}

    def no_replay(self) -> str:
        """Say why the ledger of another run cannot be given to one from here, "" when it can."""
        return ""

    def ledger_version(self, directory: Path) -> int:
        """Return a number that rises with each change of a run's ledger, where that is counted."""
        return 0

    def known_as(self, id_: str) -> str:
        """Return the id by which a run knows a command that was sent from here under one."""
        return id_

    def send(self, view: views.RunView, command: Command) -> str:
        """Send a command on its way, once for its id; return the id by which the run knows it.

        Raises:
            Problem: It was not sent.
        """
        try:
            inbox.send(view.directory, command)
        except ConfigError as error:
            raise Problem(
                403, "not_permitted", error.message, kept=NOTHING_SENT, remedy=error.remedy
            ) from error
        except ValueError as error:
            problem = Problem(422, "invalid", f"id: {error}", kept=NOTHING_SENT)
            problem.fields = {"id": str(error)}
            raise problem from None
        return command.id

    # --- one run ------------------------------------------------------------------------------

    def find(self, id_: str) -> views.RunSummary:
        """Return the run of an id, or of the only one that begins so.

        Raises:
            Problem: There is none, or several.
        """
        with self._lock:
            if not self._places:
                self.look()
            mine = self._with_id(id_)
            if not mine:
                self._listed_at = -1e9
                self.look()
                mine = self._with_id(id_)
        if not mine:
            raise Problem(404, "no_such_run", "There is no run of that id.", remedy="See the list.")
        if len(mine) > 1:
            text = f"{len(mine)} directories here hold a run whose id is or begins so."
            raise Problem(409, "ambiguous", text, remedy="Open it from the list.")
        return mine[0]

    def folders(self) -> list[Path]:
        """Return the directories of all runs, those that are open first."""
        with self._lock:
            if not self._places:
                self.look()
            first = [run.view.directory for run in reversed(self._open.values())]
            rest = [place.directory for place in self._places.values() if place.summary is not None]
            return list(dict.fromkeys([*first, *rest]))

    def _with_id(self, id_: str) -> list[views.RunSummary]:
        known = [place.summary for place in self._places.values() if place.summary is not None]
        same = [
            run for run in known if id_ in (run.run_id, self.address_of(run.directory, run.run_id))
        ]
        if same or len(id_) < 4:
            return same
        return [run for run in known if run.run_id.startswith(id_)]

    @contextlib.contextmanager
    def open(self, id_: str, *, fresh: bool = False) -> Iterator[OpenRun]:
        """Give a run to one thread, looked at not long ago, or now.

        Raises:
            Problem: There is no such run, or it cannot be read.
        """
        summary = self.find(id_)
        run = self._opened(summary)
        with run.lock:
            now = self.clock.monotonic()
            if fresh or now - run.looked_at >= FRESH_S:
                run.view.refresh()
                run.looked_at = self.clock.monotonic()
            yield run

    def _opened(self, summary: views.RunSummary) -> OpenRun:
        with self._lock:
            run = self._open.get(summary.directory)
            if run is None:
                try:
                    view = views.RunView(summary.directory, self._observer)
                except LaunchHelmError as error:
                    raise Problem(
                        503, "unreadable", error.message, kept=error.kept, remedy=error.remedy
                    ) from error
                run = OpenRun(view, Curves(summary.directory), self.clock.monotonic())
                self._open[summary.directory] = run
            self._open.move_to_end(summary.directory)
            while len(self._open) > MAX_OPEN:
                self._open.popitem(last=False)
            return run


def _names(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _token(directory: Path) -> tuple[int, ...]:
    """Return what changes whenever a file comes into a run, or goes."""
    token = []
    for path in (directory, directory / layout.DATA, directory / layout.CONTROL):
        try:
            token.append(path.stat().st_mtime_ns)
        except OSError:
            token.append(0)
    return tuple(token)
