"""One run of a server as a run directory, made anew at each start and kept up from then on.

The directory is a cache: it lies under the data directory, is waited for by no disk, is left out of
backups and may be deleted. What a server does not hold (phases, values of controls before the first
command, files of the job's host) is not in it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final  # Any: JSON values.

from launchhelm.records import FINAL_STATES, Command, Outcome, WriterId
from launchhelm.store import inbox, layout
from launchhelm.store.layout import CommandName
from launchhelm.store.line import special
from launchhelm.store.manifest import Attempt, Manifest, create_run, write_durably
from launchhelm.store.segment import seal
from launchhelm.store.writer import JournalWriter
from syncer.labels import GROUP, NOTES, SUMMARY, TAGS
from syncer.mirror.people import Person, opening, people
from syncer.mirror.records import Made, Stream, joined, made, plain_value, value_of
from syncer.naming import EVENTS, NAME_LABEL, RUN_LABEL
from syncer.runindex import labels_of
from syncer.server import documents, held, lifecycle
from syncer.server.documents import Document
from syncer.server.held import BEFORE, LAST, Given, Place, Point
from syncer.server.state import Server

SLICE_POINTS: Final = 20_000
"""Points that are read at once."""

GRACE_S: Final = 20.0
"""For so long after its end a command's own record, which says more, is waited for."""

WORLD_LABEL: Final = "launchhelm.offline.world_size"
_FIRST_EVENTS: Final = 20
_STATES: Final = {"failed": "outcome_unknown"}


class Mirror:
    """The directory of one run. Any thread may use it; one does at a time.

    Args:
        run: Its document.
        shown_id: The id that it goes by here.
        project: Name of its project.
        root: Where its directory is made.

    Attributes:
        share: How much of the points is in it, from 0 to 1.
        told: Rises with whatever becomes known of a command.
    """

    def __init__(
        self, server: Server, run: Document, *, shown_id: str, project: str, root: Path
    ) -> None:
        self.run_id = str(run["id"])
        self.share = 0.0
        self.told = 0
        self.capabilities: dict[str, tuple[Person, Document]] = {}
        self._server = server
        self._lock = threading.Lock()
        self._people: dict[str, Person] = {}
        self._journals: dict[str, JournalWriter] = {}
        self._streams: dict[int, Stream] = {}
        self._read: dict[int, Place] = {}
        self._last_stream = self._last_capability = 0
        self._control_names: dict[str, str] = {}
        self._worlds: dict[int, int] = {}
        self._digests: dict[str, str] = {}
        self._beats: dict[str, tuple[Any, ...]] = {}
        self._heard: dict[WriterId, tuple[float, bool]] = {}
        self._ended: set[str] = set()
        self._said: dict[str, set[str]] = {}
        self._beaten = 0
        self._revision = 0
        self.directory = create_run(root, _manifest(run, shown_id, project))

    def heard_at(self, writer: WriterId) -> tuple[float, bool] | None:
        """Return when a process was last heard of, and whether only its own clock says so."""
        return self._heard.get(writer)

    def update(self, budget_s: float) -> None:
        """Bring the directory up to what the server holds, or as far as the time goes."""
        with self._lock:
            until = time.monotonic() + budget_s
            with self._server.database.read() as connection:
                self._take_documents(connection)
            while self._take_points() and time.monotonic() < until:
                pass
            with self._server.database.read() as connection:
                self._take_sessions(connection)
                self._take_commands(connection)
            self._flush()

    def _flush(self) -> None:
        for journal in self._journals.values():
            journal.flush()
            if journal.is_full and (complete := journal.rotate()) is not None:
                seal(complete)

    def _append(self, participant: str, made: Made) -> None:
        journal = self._journals.get(participant)
        self.told += made.kind in ("oc", "effect")
        if journal is not None:
            journal.append(made.kind, made.body, step=made.step, axes=made.axes, at=made.at)

    # --- documents --------------------------------------------------------------------------------

    def _take_documents(self, connection: sqlite3.Connection) -> None:
        run = documents.get(connection, self.run_id)
        assert run is not None, "documents are never deleted"
        fresh: list[Stream] = []
        for document in documents.of_run(
            connection, self.run_id, "stream", after=self._last_stream
        ):
            stream = Stream.of(document)
            self._streams[stream.series] = stream
            self._last_stream = stream.series
            fresh.append(stream)
        self._take_people(connection, run)
        for stream in fresh:
            if stream.unit:
                body = {"name": stream.name, "unit": stream.unit}
                at = self._server.clock.wall()
                self._append(stream.participant, Made(BEFORE, "def", at, None, {}, body))
        self._take_description(run)
        self._take_files(connection)
        for document in documents.of_run(
            connection, self.run_id, "capability", after=self._last_capability
        ):
            self._last_capability = document["place"]
            self._take_capability(document)

    def _take_people(self, connection: sqlite3.Connection, run: Document) -> None:
        fresh = [
            person
            for person in people(documents.of_run(connection, self.run_id, "participant"))
            if person.id not in self._people
        ]
        for person in fresh:
            self._people[person.id] = person
            self._heard.setdefault(person.writer, (person.created_at, False))
        for attempt in {each.writer.attempt for each in self._people.values()} - set(self._worlds):
            self._take_world(connection, run, attempt)
        for person in fresh:
            self._journals[person.id] = JournalWriter(
                self.directory / layout.DATA,
                person.writer,
                opening(person, self._worlds.get(person.writer.attempt)),
                clock=self._server.clock,
                durable=False,
            )

    def _take_world(self, connection: sqlite3.Connection, run: Document, attempt: int) -> None:
        """Find out how many processes an attempt has, as its coordinator or its document says."""
        labels = labels_of(run)
        size = labels.get(WORLD_LABEL) if attempt == 1 else None
        resumed_from, host, started_at = None, "", None
        for person in self._people.values():
            if person.writer.attempt != attempt or person.writer.rank:
                continue
            host, started_at = person.host, person.created_at
            for stream in self._streams.values():
                if stream.participant != person.id or stream.name != EVENTS:
                    continue
                for point in held.points(connection, stream.series, limit=_FIRST_EVENTS):
                    event = made(stream, point, str)
                    if event is not None and event.body.get("type") == "start":
                        size = event.body.get("world_size", size)
                        resumed_from = event.body.get("resumed_from")
                        started_at = event.at
        if not str(size).isdecimal() or started_at is None:
            return
        self._worlds[attempt] = int(str(size))
        launched = Attempt(
            number=attempt,
            restart_count=attempt - 1,
            launch={},
            started_at=started_at,
            world_size=self._worlds[attempt],
            host=host,
            resumed_from=resumed_from if isinstance(resumed_from, int) else None,
        )
        path = self.directory / layout.ATTEMPTS / layout.attempt_name(attempt)
        write_durably(path, json.dumps(launched.wire()).encode())

    def _take_description(self, run: Document) -> None:
        coordinator = self._coordinator()
        if coordinator is None:
            return
        if self._revision == run["revision"]:
            return
        self._revision = run["revision"]
        at = float(run["updated_at"])
        told = described(run)
        self._append(coordinator.id, Made(BEFORE, "desc", at, None, {}, told))
        summary = _summary(run)
        if summary:
            self._append(coordinator.id, Made(BEFORE, "sum", at, None, {}, summary))

    def _coordinator(self, attempt: int | None = None) -> Person | None:
        """Return rank 0 of the newest attempt, or of one."""
        found = [
            each
            for each in self._people.values()
            if each.writer.rank == 0 and attempt in (None, each.writer.attempt)
        ]
        return max(found, key=lambda each: each.writer.attempt, default=None)

    def _take_capability(self, document: Document) -> None:
        spec = document["spec"]
        person = self._people.get(str(spec.get("participant_id", "")))
        name = spec.get("name")
        if person is None or not isinstance(name, str):
            return
        self._control_names[str(document["id"])] = name
        known = self.capabilities.get(name)
        if known is None or known[0].writer.attempt <= person.writer.attempt:
            self.capabilities[name] = (person, document)
        hidden = ("participant_id", "labels")
        body = {key: value for key, value in spec.items() if key not in hidden}
        # Readers of a run directory rely on their kinds; on a server anybody writes them.
        points, schema = body.get("safe_points"), body.get("input_schema")
        body["safe_points"] = [str(it) for it in points] if isinstance(points, list) else []
        body["input_schema"] = schema if isinstance(schema, dict) else {}
        at = float(document["created_at"])
        self._append(
            person.id, Made(BEFORE, "cap", at, None, {}, {**body, "id": str(document["id"])})
        )

    def _take_files(self, connection: sqlite3.Connection) -> None:
        """Put the artifacts into the directory; the bytes of those in one part are linked."""
        for document in documents.of_run(connection, self.run_id, "artifact"):
            id_, spec = str(document["id"]), document["spec"]
            if id_ in self._digests:
                continue
            parts = held.files(self._server, connection, document)
            if not parts:
                continue
            digest = self._digests[id_] = str(spec.get("sha256", ""))
            if len(parts) == 1:
                folder = self.directory / layout.MEDIA
                folder.mkdir(mode=0o700, exist_ok=True)
                with contextlib.suppress(FileExistsError, FileNotFoundError):
                    os.link(parts[0], folder / digest)
            person = self._coordinator()
            if person is not None and spec.get("purpose") != "media":
                known = ("name", "media_type", "size", "sha256", "purpose")
                body = {"id": id_, **{name: spec[name] for name in known if name in spec}}
                body["size"] = int(str(spec.get("size") or 0))
                at = float(document["created_at"])
                made_by = spec.get("provenance")
                places = made_by.get("coordinates") if isinstance(made_by, dict) else None
                step = _coordinates(places if isinstance(places, list) else ()).get("step")
                step = step if isinstance(step, int) else None
                self._append(person.id, Made(BEFORE, "art", at, step, {}, body))

    # --- points -----------------------------------------------------------------------------------

    def _take_points(self) -> bool:
        """Take a portion of what is new; return whether there may be more.

        Of a process nothing is taken beyond where one of its streams was cut off: what has the same
        number there may belong to the same record.
        """
        per_stream = max(100, SLICE_POINTS // max(1, len(self._streams)))
        found: dict[str, list[tuple[Stream, list[Point]]]] = {}
        fronts: dict[str, Place] = {}
        with self._server.database.read() as connection:
            for series, stream in self._streams.items():
                after = self._read.get(series, BEFORE)
                points = held.points(connection, series, after, limit=per_stream)
                if points:
                    found.setdefault(stream.participant, []).append((stream, points))
                if len(points) == per_stream:
                    last = points[-1].place
                    fronts[stream.participant] = min(last, fronts.get(stream.participant, last))
        for participant, streams in found.items():
            front = fronts.get(participant, LAST)
            records: list[Made] = []
            for stream, points in streams:
                taken = [point for point in points if point.place <= front]
                if taken:
                    self._read[stream.series] = taken[-1].place
                each = (made(stream, point, self._digest) for point in taken)
                records += [record for record in each if record is not None]
            self._write(participant, records)
        self.share = self._measured() if fronts else 1.0
        return bool(fronts)

    def _measured(self) -> float:
        """Say how much of the points was read, by their numbers."""
        done = total = 1
        with self._server.database.read() as connection:
            for series in self._streams:
                newest = held.newest_points(connection, series)
                total += newest[0].place[1] + 1 if newest else 0
                done += self._read.get(series, BEFORE)[1] + 1
        return min(0.99, done / total)

    def _write(self, participant: str, records: Iterable[Made]) -> None:
        person = self._people.get(participant)
        for record in joined(list(records)):
            if record.kind == "close":
                self._ended.add(participant)
            if record.kind == "oc":
                states = self._said.setdefault(str(record.body["cmd"]), set())
                states.add(str(record.body.get("state")))
            self._append(participant, record)
            if person is not None and participant not in self._beats:
                self._heard[person.writer] = (record.at, True)

    def _digest(self, artifact: str) -> str:
        return self._digests.get(artifact, "")

    # --- who lives --------------------------------------------------------------------------------

    def _take_sessions(self, connection: sqlite3.Connection) -> None:
        for id_, session in held.newest_sessions(connection, self.run_id).items():
            person = self._people.get(id_)
            if person is None:
                continue
            token = (session["epoch"], session["last_seen_at"], session["step"])
            if token != self._beats.get(id_):
                self._beats[id_] = token
                seen_at = float(session["last_seen_at"])
                self._heard[person.writer] = (seen_at, False)
                if id_ not in self._ended:
                    step = session["step"]
                    at_step = float(session["step_at"] or seen_at)
                    self._beaten += 1
                    body: dict[str, Any] = {"n": self._beaten, "mono": at_step}
                    number = int(step) if step is not None and len(step) < 19 else None
                    self._append(id_, Made(BEFORE, "hb", seen_at, number, {}, body))
            if (
                session["end_reason"] == "finished"
                and not person.is_ours
                and id_ not in self._ended
            ):
                self._ended.add(id_)
                at = float(session["ended_at"])
                body = {"state": "finished"}
                self._append(id_, Made(BEFORE, "close", at, None, {}, body))

    # --- commands ---------------------------------------------------------------------------------

    def _take_commands(self, connection: sqlite3.Connection) -> None:
        now = self._server.clock.wall()
        for given in held.commands(connection, self.run_id, now):
            entry = given.entry
            name = CommandName(given.number, entry.id)
            path = self.directory / layout.CONTROL / str(name)
            said = self._said.setdefault(entry.id, set())
            if entry.life.execution in lifecycle.WAITING:
                if entry.life.execution not in said:
                    said.add(entry.life.execution)
                    self.told += 1
                    write_durably(path, inbox.encode(self._command(given)))
                continue
            if said.intersection(lifecycle.WAITING):
                said.difference_update(lifecycle.WAITING)
                path.unlink(missing_ok=True)
            self._tell(given, said, now)

    def _tell(self, given: Given, said: set[str], now: float) -> None:
        """Write down what the server knows of a command, where the run has not said so itself."""
        entry = given.entry
        person = self._people.get(entry.participant_id)
        if person is None or said & set(FINAL_STATES):
            return
        command = self._command(given)
        begun = Outcome(
            command=entry.id,
            state="claimed",
            name=command.name,
            payload=command.payload,
            issued_by=command.issued_by,
            reason=command.reason,
            server=command.server,
        )
        for line in given.history:
            state = str(line["execution"])
            if state in ("claimed", "applying") and state not in said:
                said.add(state)
                outcome = begun if state == "claimed" else begun.but(state=state)
                self._append(
                    person.id,
                    Made(BEFORE, "oc", float(line["at"]), None, {}, outcome.body()),
                )
        life = entry.life
        if life.execution in lifecycle.OPEN:
            return
        if person.is_ours and life.leases and now - entry.updated_at < GRACE_S:
            return
        ended = begun.but(
            state=_final(life),
            code=life.failure_code,
            result=life.result,
            applied_at=_coordinates(life.applied_at),
            applied_on=life.applied_on[0] if life.applied_on else None,
            of=life.applied_on[1] if life.applied_on else None,
        )
        said.add(ended.state)
        self._append(person.id, Made(BEFORE, "oc", entry.updated_at, None, {}, ended.body()))

    def _command(self, given: Given) -> Command:
        entry = given.entry
        request = entry.request
        payload = request["input"]
        reason = str(request.get("reason") or "")
        if entry.life.execution == "pending_approval":
            reason = f"{reason} (not approved yet)".strip()
        return Command(
            id=entry.id,
            name=self._control_names.get(str(request["capability"]["id"]), ""),
            payload=payload if isinstance(payload, dict) else {},
            issued_by=entry.submitted_by,
            issued_at=entry.created_at,
            reason=reason,
            revision=given.number,
            valid_s=max(0.0, entry.life.expires_at - entry.created_at),
            server={"id": entry.id},
        )


def _final(life: lifecycle.Life) -> str:
    if life.execution == "rejected" and life.failure_code == "expired":
        return "expired"
    return _STATES.get(life.execution, life.execution)


def _coordinates(applied_at: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in applied_at:
        text = str(each.get("value", ""))
        found[str(each.get("axis", ""))] = int(text) if text.isdecimal() else text
    return found


def _manifest(run: Document, shown_id: str, project: str) -> Manifest:
    spec = run["spec"]
    labels = labels_of(run)
    parameters = spec.get("parameters")
    extra: dict[str, Any] = {
        name: labels[f"launchhelm.{name}"]
        for name in ("python", "argv", "git")
        if labels.get(f"launchhelm.{name}")
    }
    told = described(run)
    return Manifest(
        run_id=shown_id,
        name=told.pop("name"),
        project=project,
        project_id=run["project_id"],
        created_at=created_at(run),
        created_by="",
        host=str(labels.get("launchhelm.host", "")),
        config=plain_value(parameters) if isinstance(parameters, dict) else {},
        extra={**extra, **told},
    )


def created_at(run: Document) -> float:
    """Return when a run began, which its own id tells; else when the server heard of it."""
    own = str(labels_of(run).get(RUN_LABEL, ""))
    try:
        known = uuid.UUID(own)
    except ValueError:
        return float(run["created_at"])
    return (known.int >> 80) / 1000 if known.version == 7 else float(run["created_at"])


def described(run: Document) -> dict[str, Any]:
    """Return what a run says of itself now: name, group, tags, notes."""
    spec = run["spec"]
    labels = labels_of(run)
    return {
        "name": str(labels.get(NAME_LABEL) or spec.get("name") or run["id"]),
        "group": str(labels.get(GROUP, "")),
        "tags": [str(tag) for tag in _parsed(labels.get(TAGS), list)],
        "notes": str(labels.get(NOTES, "")),
    }


def _summary(run: Document) -> dict[str, Any]:
    labels = labels_of(run)
    found = {}
    for name, value in _parsed(labels.get(SUMMARY), dict).items():
        known = value_of(value)
        found[name] = special(known) if isinstance(known, float) and known - known != 0 else known
    return found


def _parsed(text: Any, kind: type) -> Any:
    try:
        value = json.loads(str(text or ""))
    except ValueError:
        return kind()
    return value if isinstance(value, kind) else kind()
