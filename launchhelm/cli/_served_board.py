"""The runs of a server as a dashboard's board: what one key may see, and control."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any, Final

from launchhelm import views
from launchhelm._clock import Clock
from launchhelm.records import CANCEL, ORDERS, Command, WriterId
from launchhelm.ui.board import FRESH_S, NOTHING_SENT, Board, OpenRun
from launchhelm.ui.board import Place as BoardPlace
from launchhelm.ui.request import Problem
from launchhelm.views.liveness import Age, Observer
from syncer.api import wire
from syncer.mirror.shelf import Kept, Shelf
from syncer.server import accounts, commands, documents, ledger, sessions
from syncer.server.caller import Caller
from syncer.server.errors import ServerError
from syncer.server.submission import MAX_REASON

UPDATE_S: Final = 1.0
"""For so long one look may bring a mirror up to date; the next one goes on."""

WATCHED_S: Final = 60.0
"""A run's mirror is kept up for so long after somebody opened it last."""

_NO_STEPS: Final = "A server passes no steps on; leave it empty, or use the run's own dashboard."
_NO_ORDERS: Final = "A server cannot freeze controls; `launchhelm control` on the run's host can."
_NO_REPLAY: Final = (
    "A server passes no steps on, so no ledger is replayed from here; "
    "`launchhelm control RUN replay OTHER` does it where the run lies."
)


class HeardOf(Observer):
    """Ages by when the server last heard of a process, on the server's own clock."""

    def __init__(self, clock: Clock, shelf: Shelf) -> None:
        super().__init__(clock)
        self._shelf = shelf

    def observe(self, key: Hashable, token: Hashable, *, before_s: float = 0.0) -> Age:
        """Return the age of a process; of other things as any observer does."""
        heard = self._shelf.heard_at(key) if isinstance(key, WriterId) else None
        if heard is None:
            return super().observe(key, token, before_s=before_s)
        at, by_host_clock = heard
        return Age(max(0.0, self.clock.wall() - at), by_host_clock)


class ServedBoard(Board):
    """Shows the runs that a key may read; asks for the key's rights at each look."""

    absent = "by the API only"

    def __init__(self, shelf: Shelf, caller: Caller) -> None:
        super().__init__([], clock=shelf.server.clock)
        self._observer = HeardOf(shelf.server.clock, shelf)
        self._shelf = shelf
        self._caller = caller
        self._kept: dict[Path, Kept] = {}
        self._updated: dict[Path, float] = {}
        self._wanted: dict[Path, float] = {}
        self._list()

    # --- the list ---------------------------------------------------------------------------------

    def look(self, budget_s: float = 1e9) -> tuple[list[views.RunSummary], int]:
        """Look at the runs whose turn it is, and keep up the mirrors that are looked at."""
        self._admit()
        found, expected = super().look(budget_s)
        now = self.clock.monotonic()
        for directory, wanted_at in list(self._wanted.items()):
            if now - wanted_at < WATCHED_S and directory in self._kept:
                self._update(self._kept[directory], budget_s)
            else:
                self._wanted.pop(directory, None)
        # Ids are no order here: a run may have come long after it was made.
        found.sort(key=lambda run: (run.created_at, run.run_id), reverse=True)
        return found, expected

    def _admit(self) -> None:
        """Refuse a key that has ended since it was checked: a stream lasts long."""
        server = self._shelf.server
        with server.database.read() as connection:
            key = accounts.key(connection, self._caller.key_id)
        if not key.valid(server.clock.wall()):
            raise Problem(401, "no_token", "The key has ended.", remedy="Enter another one.")

    def _list(self) -> None:
        self._kept = {kept.directory: kept for kept in self._shelf.runs(self._caller)}
        self._places = {path: self._places.get(path) or BoardPlace(path) for path in self._kept}
        self.names = sorted({kept.project for kept in self._kept.values()})

    def _look_at(self, place: BoardPlace) -> None:
        place.looked_at = self.clock.monotonic()
        kept = self._kept[place.directory]
        token = (int(kept.run["revision"]),)
        if place.summary is not None and place.summary.state.is_over and token == place.token:
            return
        place.token = token
        place.summary = self._shelf.summary(kept)

    def place_of(self, directory: Path) -> tuple[str, str]:
        """Tell neither: what lies on the server's disk is no place of the run."""
        return "", ""

    def folders(self) -> list[Path]:
        """Return the mirrors of runs that this key may see, as far as somebody opened them."""
        with self._lock:
            if not self._places:
                self.look()
            return [path for path in self._kept if path in self._updated]

    # --- one run ----------------------------------------------------------------------------------

    def find(self, id_: str) -> views.RunSummary:
        """Return the run of an id; its mirror is there afterwards."""
        self._admit()
        summary = super().find(id_)
        kept = self._kept[summary.directory]
        self._wanted[kept.directory] = self.clock.monotonic()
        if kept.directory not in self._updated:
            self._update(kept, UPDATE_S)
        return summary

    @contextlib.contextmanager
    def open(self, id_: str, *, fresh: bool = False) -> Iterator[OpenRun]:
        """Give a run to one thread, its mirror brought up to date not long ago, or now."""
        summary = self.find(id_)
        kept = self._kept[summary.directory]
        now = self.clock.monotonic()
        if fresh or now - self._updated[kept.directory] >= FRESH_S:
            self._update(kept, UPDATE_S)
        with super().open(id_, fresh=fresh) as run:
            run.share = self._shelf.mirror(kept).share
            yield run

    def _update(self, kept: Kept, budget_s: float) -> None:
        self._shelf.mirror(kept).update(min(budget_s, UPDATE_S))
        self._updated[kept.directory] = self.clock.monotonic()

    # --- controlling ------------------------------------------------------------------------------

    def refusal(self, view: views.RunView) -> str:
        """Say why the key may not control a run."""
        kept = self._kept[view.directory]
        if self._caller.may("command.submit", _scope(kept)):
            return ""
        return "This key may look and not control"

    def misfits(self, command: Command) -> dict[str, str]:
        """Refuse what the API of a server has no field for."""
        if command.name in ORDERS and command.name != CANCEL:
            return {"name": _NO_ORDERS}
        steps = {"first_step": command.first_step, "last_step": command.last_step}
        return {name: _NO_STEPS for name, step in steps.items() if step is not None}

    def send(self, view: views.RunView, command: Command) -> str:
        """Submit a command, as any client of the API; return the server's id of it."""
        kept = self._kept[view.directory]
        server = self._shelf.server
        try:
            if command.name == CANCEL:
                id_ = str(command.payload["id"])
                commands.take_back(server, self._caller, id_)
            else:
                answer = commands.give(
                    server, self._caller, self._key(command.id), self._request(kept, command)
                )
                id_ = str(answer["id"])
        except ServerError as error:
            raise Problem(error.status, error.code, error.message, kept=NOTHING_SENT) from error
        self._update(kept, UPDATE_S)
        return id_

    def no_replay(self) -> str:
        """Refuse what is about steps."""
        return _NO_REPLAY

    def ledger_version(self, directory: Path) -> int:
        """Return how many changes of commands the mirror has."""
        kept = self._kept.get(directory)
        return self._shelf.mirror(kept).told if kept is not None else 0

    def known_as(self, id_: str) -> str:
        """Return the server's id of a command that the page sent under one of its own."""
        with self._shelf.server.database.read() as connection:
            entry = ledger.find_by_key(connection, self._caller.organization, self._key(id_))
        return id_ if entry is None else entry.id

    def _key(self, id_: str) -> str:
        return f"dashboard:{self._caller.key_id}:{id_}"

    def _request(self, kept: Kept, command: Command) -> dict[str, Any]:
        offered = self._shelf.mirror(kept).capabilities.get(command.name)
        if offered is None:
            raise Problem(409, "refused", "The run does not offer that.", kept=NOTHING_SENT)
        person, capability = offered
        server = self._shelf.server
        with server.database.read() as connection:
            session = sessions.current(connection, person.id)
        if session is None:
            said = "Nobody takes commands for this run: its job is not connected."
            raise Problem(
                409, "refused", said, kept=NOTHING_SENT, remedy="Look whether its syncer runs."
            )
        offered_at = capability["spec"].get("safe_points")
        points = [str(point) for point in offered_at] if isinstance(offered_at, list) else []
        passed = [point for point in points if point in session["safe_points"]]
        return {
            "scope": _scope(kept),
            "capability": {"id": capability["id"], "kind": "capability"},
            "participant_id": person.id,
            "epoch": str(session["epoch"]),
            "expected_state_revision": str(session["state_revision"]),
            "targets": [],
            "input": dict(command.payload),
            "safe_point": next(iter([*passed, *points]), ""),
            "expires_at": wire.timestamp(server.clock.wall() + command.valid_s),
            "reason": command.reason[:MAX_REASON],
        }


def _scope(kept: Kept) -> dict[str, str]:
    return documents.reach(kept.run)
