"""What `Client` answers from run directories: their documents, in the shapes of the v1 API.

Ids are those that scripts see: of runs, participants and artifacts as they were recorded, of
streams as `views.samples` makes them. None of them is one of a server's.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final  # Any: JSON values.

from launchhelm._settings import DIRECTORY
from launchhelm.errors import LaunchHelmError, StorageError
from launchhelm.models import NIL, Document, Scope, timestamp
from launchhelm.records import WriterId
from launchhelm.store import journal, media
from launchhelm.store.layout import DATA, SegmentName, default_root
from launchhelm.store.reader import Reader, list_segments
from launchhelm.store.sealed import sealed_meta
from launchhelm.values.media import PENDING
from launchhelm.views import RunView, open_run, samples
from launchhelm.views.runs import run_directories

FLUSH_WAIT_S: Final = 2.0
"""Reads wait this long for the own buffer; then they show what is on disk."""


_QUICK: Final = ("run", "participant", "artifact")
KINDS: Final = (*_QUICK, "stream")


class LocalRuns:
    """The runs that this process sees. Thread-safe: one question at a time.

    Runs are looked for among those that this process has open, then under LAUNCHHELM_DIR and
    ./runs, the newest first; what a run said is remembered until a file of it changes.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._runs: dict[Path, _LocalRun] = {}

    @property
    def roots(self) -> list[Path]:
        """Where runs are looked for, beside those that are open."""
        return list(dict.fromkeys([default_root(DIRECTORY.read()), Path("runs").absolute()]))

    def document(self, id_: str) -> Document | None:
        """Return a document by its id; None when no local run has it."""
        with self._lock:
            runs = list(self._all())
            for kinds in (_QUICK, ("stream",)):  # Streams cost a look into every file.
                for run in runs:
                    for kind in kinds:
                        if id_ in run.documents(kind):
                            return run.documents(kind)[id_]
        return None

    def page(
        self, *, kind: str, project_id: str, run_id: str, cursor: str, limit: int
    ) -> dict[str, Any] | None:
        """Return a page of documents; None when no local run has that id or project.

        Raises:
            ValueError: A bad limit, or a cursor that no page had.
        """
        if type(limit) is not int or limit < 1:
            raise ValueError(f"limit is a positive integer, got {limit!r}.")
        with self._lock:
            meant = [run for run in self._all() if run.is_meant(project_id, run_id)]
            if not meant or not (project_id or run_id):
                return None
            if cursor and not (cursor.isascii() and cursor.isdecimal()):
                raise ValueError(f"{cursor!r} is the cursor of no local page.")
            items = [
                document.wire()
                for run in sorted(meant, key=lambda run: run.view.run_id)
                for each in ((kind,) if kind else KINDS)
                for document in run.documents(each).values()
            ]
        first = int(cursor or 0)
        last = first + limit
        return {
            "items": items[first:last],
            "next_cursor": str(last) if last < len(items) else "",
        }

    def query(self, stream_id: str, **arguments: Any) -> dict[str, Any] | None:
        """Answer as `views.samples.query`; None when no local run has the stream."""
        with self._lock:
            run = self._having("stream", stream_id)
            return None if run is None else samples.query(run.view, stream_id, **arguments)

    def read_samples(self, stream_id: str, **arguments: Any) -> dict[str, Any] | None:
        """Answer as `views.samples.read_samples`; None when no local run has the stream."""
        with self._lock:
            run = self._having("stream", stream_id)
            return None if run is None else samples.read_samples(run.view, stream_id, **arguments)

    def artifact(self, id_: str) -> bytes | None:
        """Return the bytes of an artifact, or of a medium by the id that its item names; None when
        no local run has it.

        Raises:
            StorageError: Its bytes are not on disk any more, or damaged.
        """
        with self._lock:
            if id_.startswith(PENDING):
                digest = id_.removeprefix(PENDING)
                places = [run.view.directory for run in self._all()]
                here = [place for place in places if media.path_of(place, digest).exists()]
                return media.read(here[0], digest) if here else None
            run = self._having("artifact", id_)
            return None if run is None else media.read(run.view.directory, run.digest(id_))

    def file(self, id_: str) -> Path | None:
        """Return where the bytes of an artifact lie; None when no local run has it.

        Raises:
            StorageError: They are not on disk any more.
        """
        with self._lock:
            run = self._having("artifact", id_)
            if run is None:
                return None
            path = media.path_of(run.view.directory, run.digest(id_))
        if not path.is_file():
            raise StorageError(
                f"{path} is not there any more.",
                remedy="Look for a copy of the run directory, or on the server that it was synced "
                "to.",
            )
        return path

    def _having(self, kind: str, id_: str) -> _LocalRun | None:
        return next((run for run in self._all() if id_ in run.documents(kind)), None)

    def _all(self) -> Iterator[_LocalRun]:
        """Yield every run once; one that cannot be read is passed over."""
        for directory in dict.fromkeys([*_open_here(), *_below(self.roots)]):
            try:
                run = self._runs.get(directory)
                if run is None:
                    run = self._runs[directory] = _LocalRun(directory)
                run.refresh()
            except (LaunchHelmError, OSError):
                self._runs.pop(directory, None)
                continue
            yield run


class _LocalRun:
    """One run, and its documents as of the last look."""

    def __init__(self, directory: Path) -> None:
        self.view: RunView = open_run(directory)
        self._known: dict[str, dict[str, Document]] = {}
        self._token: object = None

    def is_meant(self, project_id: str, run_id: str) -> bool:
        """Whether a filter admits this run."""
        manifest = self.view.manifest
        return run_id in ("", manifest.run_id) and project_id in ("", manifest.project_id)

    def digest(self, artifact: str) -> str:
        """Return the digest of one of its artifacts."""
        return str(self.documents("artifact")[artifact].spec["sha256"])

    def refresh(self) -> None:
        """Look again, if a file has changed."""
        with os.scandir(self.view.directory / DATA) as entries:
            token = sorted((entry.name, entry.stat().st_size) for entry in entries)
        if token != self._token:
            self.view.refresh()
            self._known = {}
            self._token = token

    def documents(self, kind: str) -> dict[str, Document]:
        """Return the documents of one of KINDS by id; of another kind there are none."""
        if kind not in self._known:
            make = {
                "run": self._run,
                "participant": self._participants,
                "stream": self._streams,
                "artifact": self._artifacts,
            }.get(kind)
            self._known[kind] = {each.id: each for each in make()} if make else {}
        return self._known[kind]

    def _document(self, id_: str, kind: str, spec: dict[str, Any], at: float) -> Document:
        manifest = self.view.manifest
        organization = str(manifest.extra.get("organization") or NIL)
        scope = Scope(organization, manifest.project_id, manifest.run_id)
        return Document(id_, kind, scope, "1", spec, timestamp(at), timestamp(at))

    def _run(self) -> Iterator[Document]:
        view = self.view
        extra = view.manifest.extra
        labels = {name: str(extra.get(name, "")) for name in ("python", "argv", "git")}
        labels |= {"host": view.manifest.host, "group": view.group, "notes": view.notes}
        labels["tags"] = json.dumps(list(view.tags)) if view.tags else ""
        labels["summary"] = json.dumps(view.summary, sort_keys=True) if view.summary else ""
        spec: dict[str, Any] = {
            "name": view.name,
            "state": "closed" if view.state.is_closed else "open",
            "labels": {f"launchhelm.{name}": text for name, text in labels.items() if text},
        }
        if view.config:
            spec["parameters"] = view.config
        yield self._document(view.run_id, "run", spec, view.manifest.created_at)

    def _participants(self) -> Iterator[Document]:
        for opening in self._openings().values():
            said = opening.get("participant") or {}
            labels = dict(said.get("labels") or {})
            spec = {"name": said.get("name"), "role": said.get("role", ""), "labels": labels}
            at = opening.get("t")
            at = at if isinstance(at, int | float) else self.view.manifest.created_at
            if said.get("id"):
                yield self._document(str(said["id"]), "participant", spec, at)

    def _streams(self) -> Iterator[Document]:
        openings = self._openings()
        for stream in samples.streams(self.view):
            said = openings.get(stream.writer, {}).get("participant") or {}
            spec = {**stream.spec, "participant_id": str(said.get("id", ""))}
            yield self._document(stream.id, "stream", spec, self.view.manifest.created_at)

    def _artifacts(self) -> Iterator[Document]:
        for record in Reader(self.view.directory, kinds=("art",)).poll():
            body = record.body
            if not isinstance(body.get("id"), str) or not isinstance(body.get("sha256"), str):
                continue
            step = {} if record.step is None else {"step": str(record.step)}
            places = [{"axis": axis, "value": it} for axis, it in {**step, **record.axes}.items()]
            spec = {
                **{name: value for name, value in body.items() if name != "id"},
                "size": str(body.get("size", "")),
                "state": "ready",
                "provenance": {"inputs": [], "coordinates": places, "labels": {}},
            }
            yield self._document(body["id"], "artifact", spec, record.at)

    def _openings(self) -> dict[WriterId, Mapping[str, Any]]:
        """Return what each process said of itself at its start; one that cannot be read is left
        out.
        """
        found: dict[WriterId, Mapping[str, Any]] = {}
        for writer, files in list_segments(self.view.directory).items():
            number = min(files)
            name = SegmentName(writer, number, sealed=True in files[number])
            path = self.view.directory / DATA / str(name)
            with contextlib.suppress(OSError, StorageError):
                if name.sealed:
                    found[writer] = sealed_meta(path).opening
                    continue
                with journal.opened(path) as (descriptor, _):
                    found[writer] = journal.opening(descriptor) or {}
        return found


def _open_here() -> list[Path]:
    """Return the directories of this process's runs, and hand over what they have not written."""
    module = sys.modules.get("launchhelm.run")
    runs = sorted(module._runs, key=lambda run: str(run.run_id)) if module is not None else []
    for run in runs:
        # Where storage does not answer, what is there already can still be read.
        with contextlib.suppress(TimeoutError):
            run.recorder.flush(FLUSH_WAIT_S)
    return [run.directory for run in reversed(runs)]


def _below(roots: list[Path]) -> Iterator[Path]:
    for root in roots:
        with contextlib.suppress(LaunchHelmError):
            yield from reversed(list(run_directories(root)))
