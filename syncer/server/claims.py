"""The participant's side of commands: claim, begin, renew, report.

A claim is parked in the event loop and costs no thread. It looks again whenever the bell of its
participant rings: for a new command, a new safe point, a newer epoch, or the session's end.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.routing import Route

from launchhelm._ids import new_id
from syncer.api import routes as paths
from syncer.api import wire
from syncer.server import documents, events, ledger, lifecycle, moves, sessions
from syncer.server.caller import Caller, canonical_id
from syncer.server.endpoint import endpoint
from syncer.server.errors import conflict, validation
from syncer.server.ledger import Entry
from syncer.server.lifecycle import Execution, Life, Said
from syncer.server.state import Server

MAX_FAILURE_CODE: Final = 128
_DIGITS: Final = re.compile(r"0|[1-9][0-9]{0,17}")

JSONObject = dict[str, Any]  # Any: JSON of the API.


def routes() -> list[Route]:
    """Return the endpoints of this module."""
    return [
        # What is refused here is raised in the middle of a training loop, so no rate limit applies.
        Route(paths.COMMAND_BEGIN, endpoint(begin, limited=False), methods=["POST"]),
        *(
            Route(path, endpoint(function), methods=["POST"])
            for path, function in (
                (paths.CLAIM, claim),
                (paths.COMMAND_RENEW, renew),
                (paths.COMMAND_RESULT, report),
            )
        ),
    ]


async def claim(server: Server, caller: Caller, request: Request, body: JSONObject) -> JSONObject:
    """Hand out the participant's next command, waiting up to `wait_ms` for one."""
    participant_id = canonical_id(request.path_params["id"])
    epoch = _epoch(body)
    wait_ms = body.get("wait_ms", 0)
    if isinstance(wait_ms, bool) or not isinstance(wait_ms, int) or wait_ms < 0:
        raise validation("wait_ms is a number of milliseconds.")
    ends_at = server.clock.monotonic() + min(wait_ms, wire.MAX_CLAIM_WAIT_MS) / 1000
    await run_in_threadpool(_may_claim, server, caller, participant_id, epoch)
    while True:
        seen = server.wake.count(participant_id)
        look = await run_in_threadpool(_offer, server, participant_id, epoch)
        left = ends_at - server.clock.monotonic()
        if look.command is not None or look.over or left <= 0 or server.wake.closed:
            return {"command": look.command}
        await server.wake.wait(participant_id, min(left, look.again_in_s), seen=seen)
        if await request.is_disconnected():
            return {"command": None}  # Who hung up must not be given a command.


def begin(server: Server, caller: Caller, request: Request, body: JSONObject) -> JSONObject:
    """Note that the handler may run from now on."""
    return _lease(server, caller, request, body, "begun", lifecycle.begin)


def renew(server: Server, caller: Caller, request: Request, body: JSONObject) -> JSONObject:
    """Prolong a lease."""
    return _lease(server, caller, request, body, "renewed", lifecycle.renew)


def report(server: Server, caller: Caller, request: Request, body: JSONObject) -> JSONObject:
    """Take the result of a command; see `lifecycle.report` for what becomes of it."""
    said = _said(body)
    now = server.clock.wall()
    with server.database.write() as connection:
        entry = _of_participant(connection, caller, request)
        entry = ledger.settled(connection, entry, now)
        life, flag = lifecycle.report(entry.life, said)
        if flag:
            facts = {
                "organization_id": entry.organization_id,
                "run_id": entry.request["scope"]["run_id"],
                "participant_id": entry.participant_id,
                "command_id": entry.id,
                "outcome": said.outcome,
                "reason": flag,
            }
            events.note(connection, "command_contradiction", facts)
        if life != entry.life or flag:
            revision = ""
            if life.execution == "applied" and entry.life.execution != "applied":
                revision = str(
                    sessions.advance_state(connection, entry.participant_id, entry.epoch)
                )
            entry = ledger.advance(
                connection,
                entry,
                life,
                f"reported {said.outcome}",
                now,
                note=flag,
                resulting_state_revision=revision,
            )
        answer = moves.shown(entry, now)
    # What waits for another state revision cannot be carried out any more.
    server.wake.notify(entry.participant_id)
    return answer


@dataclass(frozen=True)
class _Look:
    """What a claim found: a command, or that there will be none, or when to look again."""

    command: JSONObject | None = None
    over: bool = False
    again_in_s: float = lifecycle.LEASE_S


def _may_claim(server: Server, caller: Caller, participant_id: str, epoch: int) -> None:
    with server.database.read() as connection:
        participant = documents.find(connection, caller, participant_id, "participant")
        caller.require("command.claim", documents.reach(participant), participant_id=participant_id)
        session = sessions.current(connection, participant_id)
        if session is None or session["epoch"] != epoch:
            raise conflict("This epoch is not live.")


def _offer(server: Server, participant_id: str, epoch: int) -> _Look:
    now = server.clock.wall()
    with server.database.read() as connection:
        session = sessions.current(connection, participant_id)
        if session is None or session["epoch"] != epoch:
            return _Look(over=True)
        open_ones = list(ledger.unfinished(connection, participant_id, epoch))
    # Parked claims are many and find nothing most of the time: only what may lead to something is
    # worth the one writer's time.
    if any(entry.life.execution == "queued" or _lapsed(entry.life, now) for entry in open_ones):
        with server.database.write() as connection:
            found = _take(connection, participant_id, epoch, now)
            if found is not None:
                return _Look(moves.shown(found, now))
    lapses = [
        entry.life.lease_until - now
        for entry in open_ones
        if entry.life.execution == "claimed" and entry.life.lease_until > now
    ]
    return _Look(again_in_s=min(lapses, default=lifecycle.LEASE_S))


def _take(
    connection: sqlite3.Connection, participant_id: str, epoch: int, now: float
) -> Entry | None:
    """Claim the first command that fits the session as it is in this transaction."""
    session = sessions.current(connection, participant_id)
    if session is None or session["epoch"] != epoch:
        return None
    for stored in ledger.unfinished(connection, participant_id, epoch):
        entry = ledger.settled(connection, stored, now)
        current = entry.request["expected_state_revision"] == str(session["state_revision"])
        if not lifecycle.may_claim(entry.life, now):
            continue
        if not current:
            moved = lifecycle.reject(entry.life, "state_revision_moved", now)
            ledger.advance(connection, entry, moved, "rejected", now)
        elif entry.request["safe_point"] in session["safe_points"]:
            life = lifecycle.claim(entry.life, new_id(), now)
            return ledger.advance(connection, entry, life, "claimed", now)
    return None


def _lapsed(life: Life, now: float) -> bool:
    return life.execution == "claimed" and lifecycle.may_claim(life, now)


def _lease(
    server: Server,
    caller: Caller,
    request: Request,
    body: JSONObject,
    event: str,
    change: Callable[[Life, str, float], Life],
) -> JSONObject:
    lease_id = body.get("lease_id")
    if not isinstance(lease_id, str):
        raise validation("lease_id is a text.")
    epoch = _epoch(body)
    now = server.clock.wall()
    with server.database.write() as connection:
        entry = _of_participant(connection, caller, request)
        if entry.epoch != epoch:
            raise conflict("The command belongs to another epoch.")
        entry = moves.move(connection, entry, event, now, lambda life: change(life, lease_id, now))
        return moves.shown(entry, now)


def _of_participant(connection: sqlite3.Connection, caller: Caller, request: Request) -> Entry:
    entry = moves.find(connection, caller, request)
    caller.require("command.report", entry.request["scope"], participant_id=entry.participant_id)
    return entry


def _said(body: Mapping[str, Any]) -> Said:
    """Read a result as kindly as possible: refusing one would stop its sender's heartbeats."""
    outcome = body.get("outcome")
    failure_code, places = body.get("failure_code"), body.get("applied_at")
    if outcome not in lifecycle.OUTCOMES:
        # Something happened there that we have no word for.
        outcome, failure_code = "outcome_unknown", failure_code or str(outcome)
    return Said(
        outcome=cast(Execution, outcome),  # It is one of OUTCOMES.
        failure_code=failure_code[:MAX_FAILURE_CODE] if isinstance(failure_code, str) else "",
        result=body.get("result"),
        applied_at=tuple(place for place in places if isinstance(place, dict))
        if isinstance(places, list)
        else (),
        applied_on=_applied_on(body.get("applied_on")),
    )


def _applied_on(value: Any) -> tuple[int, int] | None:
    """Read how many processes applied it; what is malformed was not reported."""
    if not isinstance(value, dict):
        return None
    count, of = value.get("count"), value.get("of")
    if isinstance(count, bool) or isinstance(of, bool):
        return None
    if not isinstance(count, int) or not isinstance(of, int):
        return None
    return (count, of) if 0 <= count <= of and 1 <= of < 1 << 31 else None


def _epoch(body: Mapping[str, Any]) -> int:
    text = body.get("epoch")
    if not isinstance(text, str) or not _DIGITS.fullmatch(text):
        raise validation("epoch is a decimal text.")
    return int(text)
