"""Run directories under any number of roots, found by listing; file events only wake the poll.

A root is a run directory itself, a folder of runs, or a folder of folders of runs. Links are not
followed below a root, so that each run is found once. What is not there yet, or too short, may
still become visible on this host, and is called a problem only after a minute.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from launchhelm import _optional
from launchhelm._clock import SYSTEM_CLOCK, Clock
from launchhelm.errors import StorageError
from launchhelm.store import layout
from launchhelm.store.manifest import load_manifest
from launchhelm.store.mount import is_network
from launchhelm.store.reader import list_segments

PATIENCE_S: Final = 60.0
"""How long something may be missing or short: network file systems hide new files for so long."""

INTERVAL_S: Final = 2.0
SLOW_LISTING_S: Final = 0.25
LONGEST_INTERVAL_S: Final = 60.0
_SHARE_OF_TIME: Final = 20.0
"""Where looking is slow, at most one part in so many of the time is spent on it."""

EVENTS_S: Final = 10.0
MAX_EVENTS: Final = 1000
"""More events than this in that time cost more than they save."""

_RUN_PARTS: Final = frozenset({layout.DATA, layout.ATTEMPTS})
_DEEPEST: Final = 2
"""Runs lie in a root or one folder deeper."""


@dataclass(frozen=True, slots=True)
class Place:
    """A run and where it lies."""

    directory: Path
    run_id: str
    name: str
    project: str


@dataclass(slots=True)
class _Folder:
    """A directory that is no run: what it held when it was listed last."""

    changed_ns: int
    is_settled: bool
    folders: list[str]
    odd_files: list[str]
    has_run_parts: bool


class Discovery:
    """What lies under some roots, look by look. Keeps a few hundred bytes per run.

    Args:
        roots: Directories; a link given as a root is followed.
    """

    def __init__(self, roots: Sequence[Path], *, clock: Clock = SYSTEM_CLOCK) -> None:
        real = dict.fromkeys(Path(os.path.realpath(root)) for root in roots)
        # The deepest first: seen from a root above it, it may lie too deep to be looked into.
        self.roots = sorted(real, key=lambda root: -len(root.parts))
        self.interval_s = INTERVAL_S
        self._clock = clock
        self._places: dict[Path, Place] = {}
        self._folders: dict[Path, _Folder] = {}
        self._missing: dict[Path, tuple[float, str]] = {}

    def look(self) -> list[Place]:
        """List what there is now; the runs of which the identity can be read, newest first.

        Costs one listing per root, one `stat` per other folder, and for each new run a listing and
        its run.json. A known run costs nothing.
        """
        started = self._clock.monotonic()
        seen: dict[Path, Place] = {}
        met: set[Path] = set()
        for root in self.roots:
            self._visit(root, 0, seen, met)
        self._places = seen
        self._missing = {path: it for path, it in self._missing.items() if path in met}
        self._folders = {path: it for path, it in self._folders.items() if path in met}
        self.interval_s = stretched(INTERVAL_S, self._clock.monotonic() - started)
        # Run ids begin with their time.
        return sorted(seen.values(), key=lambda place: place.run_id, reverse=True)

    @property
    def waiting(self) -> dict[Path, str]:
        """What looks like a run and cannot be read, for less than a minute so far, and why."""
        return {path: why for path, (_, why) in self._missing.items() if not self._is_old(path)}

    @property
    def problems(self) -> dict[Path, str]:
        """What has looked like a run for a minute and cannot be read, and why."""
        return {path: why for path, (_, why) in self._missing.items() if self._is_old(path)}

    def _is_old(self, path: Path) -> bool:
        return self._clock.monotonic() - self._missing[path][0] >= PATIENCE_S

    def _visit(self, path: Path, depth: int, seen: dict[Path, Place], met: set[Path]) -> None:
        if path in met:
            return
        met.add(path)
        place = self._places.get(path)
        if place is not None and depth:
            seen[path] = place
            return
        try:
            folder = self._folder(path, always=not depth)
        except OSError as error:
            self._miss(path, f"{path} cannot be listed: {error.strerror or error}.")
            # A folder that is out of reach for a while takes no run out of the work.
            seen.update({it: run for it, run in self._places.items() if it.is_relative_to(path)})
            return
        if folder is None:
            self._read(path, seen)
            return
        if folder.has_run_parts or is_run_id(path.name):
            self._miss(path, f"{path} has no {layout.MANIFEST}.")
            return
        self._missing.pop(path, None)
        for name in folder.odd_files:
            met.add(path / name)
            self._miss(path / name, f"{path / name} is named like a run, but is a file.")
        if depth < _DEEPEST:
            for name in folder.folders:
                self._visit(path / name, depth + 1, seen, met)

    def _folder(self, path: Path, *, always: bool) -> _Folder | None:
        """List a directory unless it has not changed; None when it is a run."""
        known = self._folders.get(path)
        changed_ns = os.stat(path).st_mtime_ns
        if known is not None and known.changed_ns == changed_ns and known.is_settled and not always:
            return known
        folders, odd_files = [], []
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.name in (layout.MANIFEST, layout.NODES):
                    self._folders.pop(path, None)
                    return None
                if entry.name.startswith(".") or entry.is_symlink():
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.name)
                elif is_run_id(entry.name):
                    odd_files.append(entry.name)
        # A second change within one tick of the file system's clock leaves no mark: once more.
        is_settled = known is not None and known.changed_ns == changed_ns
        has_parts = _RUN_PARTS.issubset(folders)
        folder = _Folder(changed_ns, is_settled, folders, odd_files, has_parts)
        self._folders[path] = folder
        return folder

    def _read(self, path: Path, seen: dict[Path, Place]) -> None:
        known = self._places.get(path)
        try:
            manifest = load_manifest(path) if known is None else None
        except FileNotFoundError:
            self._miss(path, f"{path} has no {layout.MANIFEST}.")
        except StorageError as error:
            self._miss(path, error.message)
        except OSError as error:
            self._miss(path, f"{path} cannot be read: {error.strerror or error}.")
        else:
            self._missing.pop(path, None)
            if known is not None:
                seen[path] = known
            elif manifest is not None:
                seen[path] = Place(path, manifest.run_id, manifest.name, manifest.project)

    def _miss(self, path: Path, why: str) -> None:
        since, _ = self._missing.get(path, (self._clock.monotonic(), ""))
        self._missing[path] = (since, why)


def is_run_id(name: str) -> bool:
    """Whether a name is an id as runs have it."""
    try:
        return str(uuid.UUID(name)) == name
    except ValueError:
        return False


def stretched(interval_s: float, took_s: float) -> float:
    """Return the pause after a look that took so long: longer where storage is slow."""
    if took_s <= SLOW_LISTING_S:
        return interval_s
    return min(LONGEST_INTERVAL_S, max(interval_s, took_s * _SHARE_OF_TIME))


def data_mark(directory: Path) -> int:
    """Return what changes whenever a file of a run's data comes, goes or is sealed: one `stat`.

    A new attempt writes nothing before it has a file there. 0 while it cannot be seen.
    """
    try:
        return os.stat(directory / layout.DATA).st_mtime_ns
    except OSError:
        return 0


def is_growing(directory: Path) -> bool:
    """Whether a run has files that may still grow: it is live, or its job was killed."""
    try:
        listing = list_segments(directory)
    except OSError:
        return False
    return any(True not in files[max(files)] for files in listing.values())


def changed_lately(directory: Path, within_s: float) -> bool:
    """Whether the files of a run's data say so, by their server's clock and ours: a first guess."""
    try:
        with os.scandir(directory / layout.DATA) as entries:
            newest = max((entry.stat().st_mtime for entry in entries), default=0.0)
    except OSError:
        return False
    return time.time() - newest < within_s


class Wakeup:
    """Calls back when files change under local roots, where watchdog is installed; else never.

    Nothing depends on it: it only makes the next poll come earlier. It ends where so many files
    change that listening costs more than the polls that it brings forward.
    """

    def __init__(self, roots: Sequence[Path], wake: Callable[[Path], object]) -> None:
        self._observer: Any = None  # Any: watchdog is optional.
        local = [root for root in roots if not is_network(root)]
        observers = _optional.find("watchdog.observers") if local else None
        events = _optional.find("watchdog.events")
        if observers is None or events is None:
            return
        try:
            observer = observers.Observer()
            # Nothing else: its own first look at many runs would drown it in events of opening.
            kinds = [getattr(events, name) for name in _Events.CLASSES]
            for root in local:
                handler = _Events(wake, self.close)
                observer.schedule(handler, str(root), recursive=True, event_filter=kinds)
            observer.daemon = True
            observer.start()
        except Exception:  # No inotify, or too many directories: the poll sees everything.
            return
        self._observer = observer

    @property
    def is_on(self) -> bool:
        """Whether events arrive."""
        return self._observer is not None

    def close(self) -> None:
        """Stop listening."""
        if self._observer is not None:
            self._observer.stop()
            if self._observer is not threading.current_thread():
                self._observer.join(timeout=2.0)
            self._observer = None


class _Events:
    """What watchdog calls. Reading and what the syncer itself writes wake nobody."""

    CLASSES: Final = ("FileCreatedEvent", "FileModifiedEvent", "FileMovedEvent")

    def __init__(self, wake: Callable[[Path], object], end: Callable[[], object]) -> None:
        self._wake = wake
        self._end = end
        self._since = float("-inf")
        self._count = 0

    def dispatch(self, event: Any) -> None:  # Any: watchdog is optional.
        now = time.monotonic()
        if now - self._since > EVENTS_S:
            self._since, self._count = now, 0
        self._count += 1
        if self._count > MAX_EVENTS:
            self._end()
            return
        for directory in _runs_of(Path(os.fsdecode(event.src_path))):
            self._wake(directory)


def _runs_of(path: Path) -> Iterator[Path]:
    """Yield the run directory that a path in `data/` or `attempts/` belongs to, or a manifest's."""
    if path.parent.name in (layout.DATA, layout.ATTEMPTS):
        yield path.parent.parent
    elif path.name == layout.MANIFEST or path.name.startswith(f".{layout.MANIFEST}"):
        yield path.parent
