"""What changed in the runs that somebody watches: one thread for all viewers, while there are any.

A look costs a few listings and one size of a file, whatever the run holds; files of other ranks
than the coordinator's are asked for their size once per heartbeat interval. Nothing is read: the
page fetches what it shows.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from launchhelm import views
from launchhelm.errors import LaunchHelmError
from launchhelm.store import layout
from launchhelm.store.layout import SegmentName
from launchhelm.store.reader import list_segments
from launchhelm.ui.board import Board
from launchhelm.ui.request import Problem

POLL_S: Final = 2.0
KEEP_ALIVE_S: Final = 15.0
WATCHED_S: Final = 45.0
"""A run is looked at for so long after somebody asked for it last."""

SYNC_S: Final = 10.0
SYNC_SHARE: Final = 0.005
SPARE: Final = 0.05
"""Of the time: for looks at syncing, which never end, and for what rows say beyond summaries."""

MAX_STREAMS: Final = 16
MAX_WATCHED: Final = 24
WHAT: Final = ("points", "beats", "commands", "console", "media", "attempts")


@dataclass(slots=True)
class _Watched:
    """One run, as it was at the last look."""

    directory: Path
    asked_at: float
    seen: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    beats_at: float = -1e9


class Scanner:
    """Counts versions of what it watches.

    Args:
        poll_s: Between two looks.
        sync: Returns the document of the sync page; None where nothing is known of syncing.
    """

    def __init__(
        self,
        board: Board,
        poll_s: float = POLL_S,
        sync: Callable[[], Mapping[str, Any]] | None = None,
    ) -> None:
        self._board = board
        self._clock = board.clock
        self._poll_s = poll_s
        self._sync = sync
        self._sync_at = -1e9
        self._boot = secrets.token_hex(4)
        self._version = 1
        self._watched: dict[str, _Watched] = {}
        self._list_version = 1
        self._list: Any = None
        self._streams: list[object] = []
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    # --- what viewers ask ---------------------------------------------------------------------

    def changes(self, watch: list[str], cursor: str) -> dict[str, Any] | None:
        """Return what changed since a cursor; None for nothing.

        A run that is not there, or not for whoever asks, is refused.
        """
        for id_ in filter(None, watch):
            self._board.find(id_)
        ids = self._watch(watch)
        if not self._is_scanning():
            self._look()
        with self._changed:
            return self._since(ids, cursor)

    def stream(self, watch: list[str], cursor: str) -> Iterator[bytes]:
        """Yield server-sent events for as long as somebody reads them.

        A viewer that went away is noticed at the next write only; where there are many streams,
        the oldest gives way, and a viewer of it comes again.
        """
        ids = self._watch(watch)
        me = object()
        with self._changed:
            self._streams.append(me)
            del self._streams[:-MAX_STREAMS]
        return self._events(me, watch, ids, cursor)

    def close(self) -> None:
        """End all streams at once."""
        with self._changed:
            self._streams.clear()
            self._changed.notify_all()

    def _events(self, me: object, watch: list[str], ids: list[str], cursor: str) -> Iterator[bytes]:
        try:
            self._start()
            first = f"{self._boot}.{self._version}"
            yield f'data: {{"cursor":"{cursor or first}"}}\n\n'.encode()
            cursor = cursor or first
            while me in self._streams:
                with self._changed:
                    found = self._since(ids, cursor)
                    if found is None:
                        self._changed.wait(KEEP_ALIVE_S)
                        found = self._since(ids, cursor)
                there = self._watch(watch)
                gone, ids = [id_ for id_ in ids if id_ not in there], there
                for id_ in gone:  # Whoever shows it looks, and hears that it is not there.
                    change = {"run": id_, "what": list(WHAT), "cursor": cursor}
                    yield f"data: {json.dumps(change)}\n\n".encode()
                if found is None:
                    yield b": still here\n\n"
                    continue
                cursor = found["cursor"]
                for change in found["changes"]:
                    yield f"data: {json.dumps(change)}\n\n".encode()
        finally:
            with self._changed:
                if me in self._streams:
                    self._streams.remove(me)

    def _since(self, ids: list[str], cursor: str) -> dict[str, Any] | None:
        boot, _, text = cursor.partition(".")
        known = int(text) if boot == self._boot and text.isascii() and text.isdigit() else 0
        now = f"{self._boot}.{self._version}"
        found: list[dict[str, Any]] = []
        for id_ in ids:
            watched = self._watched.get(id_)
            versions = watched.versions if watched is not None else {}
            what = [word for word in WHAT if versions.get(word, 0) > known]
            if what:
                found.append({"run": id_, "what": what, "cursor": now})
        if self._list_version > known:
            found.append({"run": "", "what": ["runs"], "cursor": now})
        return {"changes": found, "cursor": now} if found or known == 0 else None

    def _watch(self, ids: list[str]) -> list[str]:
        """Note that somebody watches these runs; return the whole ids of those that are there."""
        if len(ids) > MAX_WATCHED:
            raise Problem(400, "bad_query", f"At most {MAX_WATCHED} runs are watched.")
        now = self._clock.monotonic()
        whole = []
        for id_ in filter(None, ids):
            try:
                summary = self._board.find(id_)
            except Problem as problem:
                if problem.status == 404:
                    continue  # The page of it learns that from its own calls.
                raise
            address = self._board.address_of(summary.directory, summary.run_id)
            with self._changed:
                watched = self._watched.get(address)
                if watched is None:
                    watched = _Watched(summary.directory, now)
                    self._look_at(watched, now)
                    watched.versions = dict.fromkeys(WHAT, self._version)
                    self._watched[address] = watched
                watched.asked_at = now
            whole.append(address)
        return whole

    # --- looking ------------------------------------------------------------------------------

    def _is_scanning(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _start(self) -> None:
        with self._changed:
            if not self._is_scanning():
                self._thread = threading.Thread(
                    target=self._scan, name="launchhelm-scan", daemon=True
                )
                self._thread.start()

    def _scan(self) -> None:
        while True:
            with self._changed:
                if not self._streams:
                    self._thread = None
                    return
            self._look()
            threading.Event().wait(self._poll_s)

    def _look(self) -> None:
        """Look at everything that is watched, once."""
        runs, _ = self._board.look(self._poll_s)
        self._board.glances.look(runs, SPARE * self._poll_s)
        self._look_at_syncing()
        listed = [
            (run.run_id, run.state.word, run.step, run.pending, self._board.glances.of(run))
            for run in runs
        ] + [self._board.synced]
        now = self._clock.monotonic()
        with self._changed:
            self._watched = {
                id_: each for id_, each in self._watched.items() if now - each.asked_at < WATCHED_S
            }
            looks = {id_: self._look_at(each, now) for id_, each in self._watched.items()}
            changed = {id_: what for id_, what in looks.items() if what}
            if not changed and listed == self._list:
                return
            self._version += 1
            for id_, what in changed.items():
                self._watched[id_].versions.update(dict.fromkeys(what, self._version))
            if listed != self._list:
                self._list, self._list_version = listed, self._version
            self._changed.notify_all()

    def _look_at_syncing(self) -> None:
        """Note what of each run is on a server; the more runs there are, the more rarely."""
        start = self._clock.monotonic()
        if self._sync is None or start < self._sync_at:
            return
        found: dict[str, dict[str, str]] = {}
        try:
            for row in self._sync()["runs"]:
                said = _synced(row)
                known = found.get(row["id"])
                # Of several servers the one with a problem is told.
                if known is None or said["problem"]:
                    found[row["id"]] = said
        except (OSError, LaunchHelmError):
            return  # The sync page says what is the matter.
        finally:
            took_s = self._clock.monotonic() - start
            self._sync_at = start + max(SYNC_S, took_s / SYNC_SHARE)
        self._board.synced = found

    def _look_at(self, watched: _Watched, now: float) -> list[str]:
        """Look at one run, and return what changed since the last look."""
        is_beat_due = now - watched.beats_at >= views.BEAT_S
        seen = dict(watched.seen)
        seen.update(_glance(watched.directory, with_beats=is_beat_due))
        # Where a listing may miss one that came and went.
        seen["ledger"] = self._board.ledger_version(watched.directory)
        changed = [word for word in seen if seen[word] != watched.seen.get(word)]
        if "ledger" in changed:
            changed = [*(word for word in changed if word != "ledger"), "commands"]
        watched.seen = seen
        if is_beat_due:
            watched.beats_at = now
        if "points" in changed:
            # What a coordinator appends may be any of these; the page asks from its own cursor.
            changed += ["console", "media"]
        return changed


def _synced(row: Mapping[str, Any]) -> dict[str, str]:
    is_off = row["state"] == "never synced" and not row.get("server") and not row["problem"]
    text = "off" if is_off else str(row["state"])
    return {"state": str(row["state"]), "text": text, "problem": str(row["problem"])}


def _glance(directory: Path, *, with_beats: bool) -> dict[str, Any]:
    """Return what tells of changes, from listings and sizes alone."""
    try:
        listing = list_segments(directory)
    except OSError:
        return {}
    newest = max((writer.attempt for writer in listing), default=0)
    points: list[tuple[str, int]] = []
    beats: list[tuple[str, int]] = []
    for writer, files in listing.items():
        if writer.attempt == newest and (with_beats or not writer.rank):
            number = max(files)
            name = str(SegmentName(writer, number, True in files[number]))
            size = _size(directory / layout.DATA / name)
            (beats if writer.rank else points).append((name, size))
    seen: dict[str, Any] = {
        "points": sorted(points),
        "commands": _inbox(directory / layout.CONTROL),
        "attempts": (newest, len(listing), _names(directory / layout.ATTEMPTS)),
    }
    if with_beats:
        seen["beats"] = (sorted(beats), sorted(points))
    return seen


def _inbox(directory: Path) -> tuple[int, list[str]]:
    """Return what also changes when a file came and went between two looks."""
    try:
        changed = directory.stat().st_mtime_ns
    except OSError:
        changed = 0
    return changed, _names(directory)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1  # Sealed just now; the next listing has its new name.


def _names(directory: Path) -> list[str]:
    try:
        return sorted(name for name in os.listdir(directory) if not name.startswith("."))
    except OSError:
        return []
