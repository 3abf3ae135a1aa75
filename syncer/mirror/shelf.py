"""The mirrors of one server: made where somebody looks, in a directory that begins empty."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from launchhelm.records import WriterId
from launchhelm.views import RunSummary
from syncer.mirror.run import Mirror
from syncer.mirror.summary import summarise
from syncer.naming import RUN_LABEL
from syncer.runindex import labels_of
from syncer.server import documents
from syncer.server.caller import Caller
from syncer.server.documents import Document
from syncer.server.state import Server

FOLDER: Final = "dashboard"
"""In the data directory, beside the database; no part of a backup."""


@dataclass(frozen=True, slots=True)
class Kept:
    """One run that a key may see.

    Args:
        shown_id: The run's own id; the server's where two runs have the same.
        directory: Where its mirror is, or would be.
    """

    run: Document
    shown_id: str
    project: str
    directory: Path


class Shelf:
    """All mirrors of a server, for every key; `runs` says what one of them may see."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.root = server.data.absolute() / FOLDER
        self._mirrors: dict[str, Mirror] = {}
        self._lock = threading.Lock()
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir(mode=0o700, exist_ok=True)

    def runs(self, caller: Caller) -> list[Kept]:
        """Return the runs that a key may read, oldest first."""
        with self.server.database.read() as connection:
            every = documents.of_organization(connection, caller.organization, "run")
            projects = documents.of_organization(connection, caller.organization, "project")
        names = {each["id"]: str(each["spec"].get("name", "")) for each in projects}
        ids = Counter(map(_own_id, every))
        found = []
        for run in every:
            if caller.may("document.read", documents.reach(run)):
                own = _own_id(run)
                shown = own if ids[own] == 1 else str(run["id"])
                directory = self.root / str(run["id"]) / shown
                found.append(Kept(run, shown, names.get(run["project_id"], ""), directory))
        return found

    def summary(self, kept: Kept) -> RunSummary:
        """Summarise a run without its mirror."""
        return summarise(
            self.server,
            kept.run,
            shown_id=kept.shown_id,
            project=kept.project,
            directory=kept.directory,
        )

    def mirror(self, kept: Kept) -> Mirror:
        """Return the mirror of a run; it is made, and holds nothing yet, on the first call."""
        id_ = str(kept.run["id"])
        with self._lock:
            found = self._mirrors.get(id_)
            if found is None:
                found = self._mirrors[id_] = Mirror(
                    self.server,
                    kept.run,
                    shown_id=kept.shown_id,
                    project=kept.project,
                    root=self.root / id_,
                )
            return found

    def heard_at(self, writer: WriterId) -> tuple[float, bool] | None:
        """Return when a process was last heard of; see `Mirror.heard_at`."""
        for mirror in list(self._mirrors.values()):
            heard = mirror.heard_at(writer)
            if heard is not None:
                return heard
        return None


def _own_id(run: Document) -> str:
    own = str(labels_of(run).get(RUN_LABEL) or run["id"])
    is_name = own.isascii() and own.replace("-", "").isalnum() and len(own) <= 64
    return own if is_name else str(run["id"])
