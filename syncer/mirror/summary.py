"""One line about each run of a server, without reading its points: for a list of runs."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final  # Any: JSON values.

from launchhelm.views import RunSummary
from launchhelm.views.liveness import LATE_S, SILENT_S, Age
from launchhelm.views.participants import ParticipantView
from launchhelm.views.state import run_state
from syncer.mirror.people import Person, people
from syncer.mirror.records import Stream, made, plain_value, value_of
from syncer.mirror.run import WORLD_LABEL, created_at, described
from syncer.naming import EVENTS
from syncer.runindex import labels_of
from syncer.server import documents, held, lifecycle
from syncer.server.documents import Document
from syncer.server.sessions import Session
from syncer.server.state import Server

MAX_METRICS: Final = 100
_LAST_EVENTS: Final = 5
_FIRST_EVENTS: Final = 20


def summarise(
    server: Server, run: Document, *, shown_id: str, project: str, directory: Path
) -> RunSummary:
    """Summarise one run by its documents, its sessions, and the last point of a few streams."""
    now = server.clock.wall()
    with server.database.read() as connection:
        every = people(documents.of_run(connection, run["id"], "participant"))
        attempt = max((each.writer.attempt for each in every), default=0)
        newest = [each for each in every if each.writer.attempt == attempt]
        streams = list(map(Stream.of, documents.of_run(connection, run["id"], "stream")))
        sessions = held.newest_sessions(connection, run["id"])
        metrics, step = _metrics(connection, streams, newest)
        world = _world(connection, run, streams, newest, attempt)
        rows = [
            _row(connection, streams, each, sessions.get(each.id), now, step) for each in newest
        ]
        waiting, pending = _commands(connection, run["id"], now)
    spec = run["spec"]
    told = described(run)
    parameters = spec.get("parameters")
    ages = [row.age for row in rows]
    state = run_state(
        sorted(rows, key=lambda row: (row.rank, row.writer.token)),
        world_size=world,
        started_at=min((each.created_at for each in newest), default=run["created_at"]),
        created_at=created_at(run),
        now=now,
        still=Age(max(0.0, now - float(run["updated_at"]))),
    )
    coordinator = next((row for row in rows if row.rank == 0), None)
    return RunSummary(
        directory=directory,
        run_id=shown_id,
        name=told["name"],
        project=project,
        created_at=created_at(run),
        state=state,
        step=max((row.step for row in rows if row.step is not None), default=None),
        world_size=world,
        ranks_seen=len({row.rank for row in rows}),
        attempt=attempt,
        age=min(ages, key=lambda age: age.seconds, default=None),
        host=coordinator.host if coordinator is not None else "",
        group=told["group"],
        tags=tuple(told["tags"]),
        config=plain_value(parameters) if isinstance(parameters, dict) else {},
        metrics=metrics,
        waiting=0 if state.is_over else waiting,
        pending=0 if state.is_over else pending,
    )


def _row(
    connection: sqlite3.Connection,
    streams: list[Stream],
    person: Person,
    session: Session | None,
    now: float,
    step: int | None,
) -> ParticipantView:
    seen_at, by_host_clock = person.created_at, False
    if session is not None:
        seen_at = float(session["last_seen_at"])
        text = session["step"]
        beat = int(text) if text is not None and len(text) < 19 else None
        known = [each for each in (beat, step if person.writer.rank == 0 else None) if each]
        step = max(known, default=beat)
    elif person.writer.rank:
        step = None
    age_s = max(0.0, now - seen_at)
    end: Mapping[str, Any] = {}
    ended_at, last_step = None, None
    if session is None or session["ended_at"] is not None or age_s >= LATE_S:
        end, ended_at, last_step = _end(connection, streams, person, session)
    state = "ended" if end else "silent" if age_s >= SILENT_S else "late"
    if not end and age_s < LATE_S:
        state = "starting" if step is None else "ok"
    return ParticipantView(
        writer=person.writer,
        rank=person.writer.rank,
        attempt=person.writer.attempt,
        state=state,
        host=person.host,
        pid=person.pid,
        local_rank=person.local_rank,
        group_rank=None,
        world_size=None,
        step=last_step if last_step is not None else step,
        phase="",
        phase_s=None,
        age=Age(age_s, by_host_clock),
        lag=None,
        end=str(end.get("state") or "finished") if end else "",
        reason=str(end.get("reason", "")),
        closes_run=bool(end) and bool(end.get("close_run", True)),
        last_at=seen_at,
        ended_at=ended_at,
    )


def _end(
    connection: sqlite3.Connection,
    streams: list[Stream],
    person: Person,
    session: Session | None,
) -> tuple[Mapping[str, Any], float | None, int | None]:
    """Return the end record of a process, when it was made, and at which step."""
    for stream in streams:
        if stream.participant == person.id and stream.name == EVENTS:
            for point in held.newest_points(connection, stream.series, _LAST_EVENTS):
                record = made(stream, point, str)
                if record is not None and record.kind == "close":
                    return record.body, record.at, record.step
    if session is not None and session["end_reason"] == "finished" and not person.is_ours:
        return {"state": "finished"}, float(session["ended_at"]), None
    return {}, None, None


def _metrics(
    connection: sqlite3.Connection, streams: list[Stream], newest: list[Person]
) -> tuple[dict[str, Any], int | None]:
    """Return the last values of the coordinator's metrics, and the highest step among them."""
    coordinators = {each.id for each in newest if each.writer.rank == 0}
    mine = [each for each in streams if each.participant in coordinators]
    metrics: dict[str, Any] = {}
    steps: list[int] = []
    for stream in [each for each in mine if not each.holds_records][:MAX_METRICS]:
        for point in held.newest_points(connection, stream.series):
            value = value_of(point.value)
            record = made(stream, point, str)
            if value is not None and record is not None:
                metrics[stream.name] = value
                steps += [record.step] if record.step is not None else []
    return metrics, max(steps, default=None)


def _world(
    connection: sqlite3.Connection,
    run: Document,
    streams: list[Stream],
    newest: list[Person],
    attempt: int,
) -> int | None:
    size = labels_of(run).get(WORLD_LABEL) if attempt == 1 else None
    coordinators = {each.id for each in newest if each.writer.rank == 0}
    for stream in streams if size is None else ():
        if stream.participant in coordinators and stream.name == EVENTS:
            for point in held.points(connection, stream.series, limit=_FIRST_EVENTS):
                event = made(stream, point, str)
                if event is not None and event.body.get("type") == "start":
                    size = event.body.get("world_size")
    return int(str(size)) if str(size).isdecimal() else None


def _commands(connection: sqlite3.Connection, run_id: str, now: float) -> tuple[int, int]:
    states = [given.entry.life.execution for given in held.commands(connection, run_id, now)]
    waiting = sum(state in lifecycle.WAITING for state in states)
    return waiting, sum(state in lifecycle.OPEN for state in states)
