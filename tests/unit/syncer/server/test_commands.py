"""Commands over HTTP, from submit to result, without sockets and with a clock that tests move."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from syncer.api import wire
from syncer.server import accounts
from syncer.server.app import application
from syncer.server.database import Database
from syncer.server.state import Limits, Server
from tests.support.asgi import Asgi

START = 1_800_000_000.0
SCHEMA = {
    "revision": "1",
    "root": {
        "kind": "record",
        "renderer": "form",
        "fields": [
            {
                "name": "scale",
                "type": {
                    "kind": "scalar",
                    "scalar": "number",
                    "renderer": "numeric",
                    "bounds": {"min": "0"},
                },
            }
        ],
    },
}
OPAQUE = {"revision": "1", "root": {"kind": "opaque", "renderer": "generic"}}


class Hand:
    """A clock whose wall time stands until a test moves it."""

    def __init__(self) -> None:
        self.now = START

    def wall(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return time.monotonic()


class Desk:
    """One run with one participant, and both who commands it and who obeys."""

    def __init__(self, server: Server, clock: Hand, http: Asgi) -> None:
        self.server, self.clock, self.http = server, clock, http
        with server.database.write() as connection:
            self.organization = accounts.create_organization(connection, "default", START)
            _, key = accounts.create_key(
                connection,
                name="test",
                organization_id=self.organization,
                grants=[accounts.Grant("", "", frozenset({"*"}))],
                now=START,
            )
        http.http.headers["Authorization"] = f"Bearer {key}"
        self.scope = {"organization_id": self.organization}
        self.scope["project_id"] = self.document("project", {"name": "p", "labels": {}})
        self.scope["run_id"] = self.document("run", {"name": "r", "state": "open"})
        self.participant = self.document("participant", {"name": "rank-0", "role": "trainer"})
        self.capability = self.register()
        self.epoch = self.connect()

    def path(self, rest: str) -> str:
        return f"/v1/organizations/{self.organization}/{rest}"

    def post(
        self, path: str, body: object, headers: dict[str, str] | None = None, *, status: int = 200
    ) -> Any:
        answer = self.http.post(self.path(path), body, headers)
        assert answer.status_code == status, answer.text
        return answer.json()

    def document(self, kind: str, spec: dict[str, Any]) -> str:
        made = self.post("documents", {"kind": kind, "scope": self.scope, "spec": spec})
        return str(made["id"])

    def register(self, **fields: Any) -> str:
        spec = {
            "name": "lr",
            "input_schema": SCHEMA,
            "safe_points": ["lht"],
            "participant_id": self.participant,
            "requires_approval": False,
        }
        return self.document("capability", {**spec, **fields})

    def connect(self, *, safe_points: tuple[str, ...] = ("lht",)) -> str:
        body = {"instance_id": str(uuid.uuid4()), "safe_points": list(safe_points)}
        return str(self.post(f"participants/{self.participant}/sessions", body)["epoch"])

    def wanted(self, **changes: Any) -> dict[str, Any]:
        return {
            "scope": self.scope,
            "capability": {"id": self.capability, "kind": "capability"},
            "participant_id": self.participant,
            "epoch": self.epoch,
            "expected_state_revision": "0",
            "targets": [],
            "input": {"scale": 0.5},
            "safe_point": "lht",
            "expires_at": "2027-02-01T00:00:00Z",
            "reason": "halve the rate",
            **changes,
        }

    def submit(self, *, key: str = "", status: int = 200, **changes: Any) -> Any:
        headers = {"Idempotency-Key": key or uuid.uuid4().hex}
        return self.post("commands", self.wanted(**changes), headers, status=status)

    def claim(self, *, epoch: str = "", status: int = 200) -> Any:
        body = {"epoch": epoch or self.epoch}
        answer = self.post(f"participants/{self.participant}/commands", body, status=status)
        return answer.get("command") if status == 200 else answer

    def lease(self, verb: str, command: Any, *, lease_id: str = "", status: int = 200) -> Any:
        body = {
            "lease_id": lease_id or command["lease_id"],
            "epoch": command["request"]["epoch"],
        }
        return self.post(f"commands/{command['id']}/{verb}", body, status=status)

    def begun(self, **changes: Any) -> Any:
        self.submit(**changes)
        command = self.claim()
        self.lease("begin", command)
        return command

    def report(self, command: Any, outcome: str = "applied", **fields: Any) -> Any:
        body = {
            "lease_id": command.get("lease_id", ""),
            "epoch": command["request"]["epoch"],
            "outcome": outcome,
            "result": {"lr": [0.05]} if outcome == "applied" else None,
            "applied_at": [{"axis": "step", "value": "12"}] if outcome == "applied" else [],
            "failure_code": "",
            **fields,
        }
        return self.post(f"commands/{command['id']}/result", body)

    def get(self, command: Any) -> Any:
        answer = self.http.get(self.path(f"commands/{command['id']}"))
        assert answer.status_code == 200, answer.text
        return answer.json()

    def heartbeat(self, **fields: Any) -> Any:
        body = {"epoch": self.epoch, **fields}
        return self.post(f"participants/{self.participant}/heartbeat", body)

    def end(self) -> None:
        body = {"epoch": self.epoch, "close_run": "never"}
        self.post(f"participants/{self.participant}/session/end", body)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    clock = Hand()
    database = Database(tmp_path / "server.db", clock)
    server = Server(database, clock, tmp_path, b"s" * 32)
    with Asgi(application(server)) as http:
        yield Desk(server, clock, http)
    database.close()


# Submitting.


def test_a_command_is_delivered_as_its_fingerprint_says(desk: Desk) -> None:
    submitted = desk.submit()
    claimed = desk.claim()
    assert claimed["id"] == submitted["id"]
    assert claimed["execution"] == "claimed"
    assert claimed["fingerprint"] == wire.fingerprint(claimed["request"])
    # The revision was missing; a client refuses a command without it.
    assert claimed["request"] == desk.wanted(
        capability={"id": desk.capability, "kind": "capability", "revision": "1"}
    )


def test_the_same_key_returns_the_first_command_however_often_it_is_sent(desk: Desk) -> None:
    first = desk.submit(key="k")
    assert desk.submit(key="k")["id"] == first["id"]
    # Also later, when a fresh submission would be refused.
    desk.clock.now += 100 * 86400
    assert desk.submit(key="k")["id"] == first["id"]


def test_the_same_key_for_another_command_is_a_conflict(desk: Desk) -> None:
    desk.submit(key="k")
    assert desk.submit(key="k", input={"scale": 2}, status=409)["error"]["code"] == "conflict"


def test_a_command_without_a_key_is_refused(desk: Desk) -> None:
    assert desk.post("commands", desk.wanted(), status=400)["error"]["code"] == "validation"


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"input": {"scale": -1}}, 400),
        ({"input": {"scale": True}}, 400),
        ({"input": {"scale": 1, "other": 2}}, 400),
        ({"input": {}}, 400),
        ({"safe_point": ""}, 400),
        ({"safe_point": "elsewhere"}, 400),
        ({"expires_at": "2020-01-01T00:00:00Z"}, 400),
        ({"expires_at": "soon"}, 400),
        ({"epoch": "7"}, 409),
        ({"expected_state_revision": "1"}, 409),
        ({"participant_id": "55555555-5555-4555-8555-555555555555"}, 400),
        ({"capability": {"id": "55555555-5555-4555-8555-555555555555"}}, 404),
        ({"reason": 3}, 400),
        ({"targets": "all"}, 400),
        ({"scope": {}}, 400),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_command_that_could_not_be_carried_out_is_refused_at_once(
    desk: Desk, changes: dict[str, Any], status: int
) -> None:
    desk.submit(status=status, **changes)
    assert desk.claim() is None


def test_another_revision_of_the_capability_is_refused(desk: Desk) -> None:
    desk.submit(status=409, capability={"id": desk.capability, "revision": "2"})


def test_a_capability_that_takes_anything_takes_no_command(desk: Desk) -> None:
    opaque = desk.register(name="anything", input_schema=OPAQUE)
    desk.submit(status=400, capability={"id": opaque})


def test_a_command_without_a_canonical_form_is_refused(desk: Desk) -> None:
    desk.submit(status=400, input={"scale": 1e16})


# Approval and cancelling.


def test_a_command_that_needs_approval_is_offered_only_after_it(desk: Desk) -> None:
    capability = desk.register(requires_approval=True)
    command = desk.submit(capability={"id": capability})
    assert command["execution"] == "pending_approval"
    assert desk.claim() is None
    desk.post(f"commands/{command['id']}/approve", {"fingerprint": "00"}, status=409)
    body = {"fingerprint": command["fingerprint"]}
    assert desk.post(f"commands/{command['id']}/approve", body)["execution"] == "queued"
    assert desk.claim()["id"] == command["id"]


def test_a_command_can_be_cancelled_until_it_is_claimed(desk: Desk) -> None:
    first, second = desk.submit(), desk.submit()
    body = {"fingerprint": second["fingerprint"]}
    assert desk.post(f"commands/{second['id']}/cancel", body)["execution"] == "cancelled"
    assert desk.post(f"commands/{second['id']}/cancel", body)["execution"] == "cancelled"
    assert desk.claim()["id"] == first["id"]
    body = {"fingerprint": first["fingerprint"]}
    desk.post(f"commands/{first['id']}/cancel", body, status=409)
    assert desk.claim() is None


# Claiming.


def test_commands_are_offered_in_the_order_of_submission(desk: Desk) -> None:
    submitted = [desk.submit()["id"] for _ in range(3)]
    claimed = [desk.claim() for _ in range(3)]
    assert [command["id"] for command in claimed] == submitted
    assert len({command["lease_id"] for command in claimed}) == 3
    assert desk.claim() is None


def test_only_commands_of_an_advertised_safe_point_are_offered(desk: Desk) -> None:
    desk.epoch = desk.connect(safe_points=())
    desk.submit()
    assert desk.claim() is None
    desk.heartbeat(safe_points=["lht"])
    assert desk.claim() is not None


def test_a_command_that_expired_before_its_claim_is_rejected(desk: Desk) -> None:
    command = desk.submit()
    desk.clock.now += 100 * 86400
    desk.heartbeat()
    assert desk.claim() is None
    assert desk.get(command)["execution"] == "rejected"
    assert desk.get(command)["failure_code"] == "expired"


def test_a_command_for_a_state_that_is_gone_is_rejected_when_its_turn_comes(desk: Desk) -> None:
    first, second = desk.submit(), desk.submit()
    claimed = desk.claim()
    desk.lease("begin", claimed)
    assert desk.report(claimed)["resulting_state_revision"] == "1"
    assert desk.claim() is None
    assert desk.get(second)["failure_code"] == "state_revision_moved"
    assert desk.get(first)["execution"] == "applied"
    assert desk.heartbeat()["state_revision"] == "1"
    third = desk.submit(expected_state_revision="1")
    assert desk.claim()["id"] == third["id"]


def test_a_claimed_command_whose_lease_ran_out_is_offered_again(desk: Desk) -> None:
    desk.submit()
    first = desk.claim()
    desk.clock.now += 59
    assert desk.claim() is None
    desk.clock.now += 2
    second = desk.claim()
    assert second["id"] == first["id"]
    assert second["lease_id"] != first["lease_id"]


def test_a_command_whose_lease_ran_out_is_rejected_when_its_state_is_gone_by_then(
    desk: Desk,
) -> None:
    first, second = desk.submit(), desk.submit()
    assert desk.claim()["id"] == first["id"]
    claimed = desk.claim()
    assert claimed["id"] == second["id"]
    desk.lease("begin", claimed)
    desk.report(claimed)
    assert desk.get(first)["execution"] == "claimed"
    desk.clock.now += 61
    assert desk.claim() is None
    ended = desk.get(first)
    assert (ended["execution"], ended["failure_code"]) == ("rejected", "state_revision_moved")


def test_a_renewed_lease_keeps_a_command_from_being_offered_again(desk: Desk) -> None:
    desk.submit()
    command = desk.claim()
    for _ in range(8):
        desk.clock.now += 30
        desk.lease("heartbeat", command)
        assert desk.claim() is None


def test_a_begun_command_is_never_offered_again(desk: Desk) -> None:
    command = desk.begun()
    desk.clock.now += 3600
    desk.heartbeat()
    assert desk.claim() is None
    assert desk.get(command)["execution"] == "outcome_unknown"
    assert desk.get(command)["failure_code"] == "lease_lost"


def test_an_epoch_that_is_not_live_claims_nothing(desk: Desk) -> None:
    desk.claim(epoch="9", status=409)
    old = desk.epoch
    desk.epoch = desk.connect()
    desk.claim(epoch=old, status=409)
    desk.end()
    desk.claim(status=409)


# Beginning.


def test_begin_is_not_refused_after_a_claim_whatever_has_passed_since(desk: Desk) -> None:
    desk.submit(expires_at="2027-01-15T09:00:00Z")
    command = desk.claim()
    desk.clock.now += 100 * 86400
    desk.lease("begin", command)
    desk.lease("begin", command)
    assert desk.get(command)["execution"] == "applying"


def test_begin_is_not_refused_because_the_key_asks_too_often(desk: Desk) -> None:
    desk.submit()
    command = desk.claim()
    slow = replace(desk.server, limits=Limits(requests_per_s=1e-6, burst=1))
    with Asgi(application(slow)) as http:
        http.http.headers.update(desk.http.http.headers)
        desk.http = http
        desk.lease("heartbeat", command)
        assert desk.lease("heartbeat", command, status=429)["error"]["retryable"] is True
        desk.lease("begin", command)


def test_begin_with_a_foreign_lease_is_a_conflict(desk: Desk) -> None:
    desk.submit()
    command = desk.claim()
    desk.lease("begin", command, lease_id="foreign", status=409)
    desk.lease("begin", command)


def test_only_one_of_two_leases_may_begin(desk: Desk) -> None:
    desk.submit()
    first = desk.claim()
    desk.clock.now += 61
    second = desk.claim()
    desk.lease("begin", first)
    desk.lease("begin", second, status=409)
    desk.lease("heartbeat", second, status=409)
    desk.lease("heartbeat", first)


# Results.


def test_a_result_is_read_back_with_all_that_it_said(desk: Desk) -> None:
    command = desk.begun()
    desk.lease("heartbeat", command)
    desk.report(command, applied_on={"count": 512, "of": 512})
    read = desk.get(command)
    assert read["execution"] == "applied"
    assert read["result"] == {"lr": [0.05]}
    assert read["applied_at"] == [{"axis": "step", "value": "12"}]
    assert read["applied_on"] == {"count": 512, "of": 512}
    assert read["resulting_state_revision"] == "1"
    assert [line["event"] for line in read["history"]] == [
        "submitted",
        "claimed",
        "begun",
        "reported applied",
    ]


def test_who_submitted_approved_and_cancelled_is_kept(desk: Desk) -> None:
    careful = desk.register(requires_approval=True)
    command = desk.submit(capability={"id": careful, "kind": "capability"})
    for verb in ("approve", "cancel"):
        desk.post(f"commands/{command['id']}/{verb}", {"fingerprint": command["fingerprint"]})
    read = desk.get(command)
    name = read["submitted_by"]
    assert name.startswith("test (key ") and "submitted_by" not in read["request"]
    assert [(line["event"], line["by"]) for line in read["history"]] == [
        ("submitted", name),
        ("approved", name),
        ("cancelled", name),
    ]
    begun = desk.begun()
    assert begun["submitted_by"] == name, "whoever carries it out is told"
    assert [line["by"] for line in desk.get(begun)["history"]] == [name, "", ""]


def test_a_result_that_is_sent_twice_counts_once(desk: Desk) -> None:
    command = desk.begun()
    assert desk.report(command)["resulting_state_revision"] == "1"
    assert desk.report(command)["resulting_state_revision"] == "1"
    assert desk.heartbeat()["state_revision"] == "1"


@pytest.mark.parametrize(
    "applied_on",
    [{"count": 3, "of": 2}, {"count": -1, "of": 2}, {"count": True, "of": 1}, {"of": 0}, "2 of 2"],
)
def test_a_malformed_count_is_taken_as_not_reported(desk: Desk, applied_on: object) -> None:
    command = desk.begun()
    answer = desk.report(command, applied_on=applied_on)
    assert answer["execution"] == "applied"
    assert "applied_on" not in answer


def test_an_outcome_that_we_have_no_word_for_is_taken_as_unknown(desk: Desk) -> None:
    answer = desk.report(desk.begun(), "postponed")
    assert (answer["execution"], answer["failure_code"]) == ("outcome_unknown", "postponed")


def test_a_result_for_an_unknown_command_is_the_only_one_refused(desk: Desk) -> None:
    body = {"lease_id": "x", "epoch": "1", "outcome": "applied"}
    answer = desk.post(f"commands/{uuid.uuid4()}/result", body, status=404)
    assert answer["error"]["code"] == "not_found"


def test_the_workers_word_replaces_the_servers_guess_and_the_history_keeps_both(
    desk: Desk,
) -> None:
    command = desk.begun()
    desk.clock.now += 3600
    desk.epoch = desk.connect()  # Supersedes, so that the guess is stored.
    assert desk.get(command)["execution"] == "outcome_unknown"
    said = desk.report(command, "outcome_unknown", failure_code="runtime_restart")
    assert said["failure_code"] == "runtime_restart"
    events = [(line["event"], line["note"]) for line in desk.get(command)["history"]]
    assert events[-2:] == [
        ("settled", "lease_lost"),
        ("reported outcome_unknown", "runtime_restart"),
    ]


def test_applied_after_a_rejection_here_is_recorded_and_can_be_found_in_the_events(
    desk: Desk,
) -> None:
    desk.submit()
    command = desk.claim()
    desk.epoch = desk.connect()
    assert desk.get(command)["execution"] == "rejected"
    assert desk.report(command)["execution"] == "applied"
    assert "rejected here" in desk.get(command)["history"][-1]["note"]
    [event] = desk.http.get(desk.path("events")).json()["items"]
    assert event["kind"] == "command_contradiction"
    assert event["facts"]["command_id"] == command["id"]


def test_a_contradicting_second_result_is_answered_with_the_first(desk: Desk) -> None:
    command = desk.begun()
    desk.report(command, "outcome_unknown", failure_code="ValueError")
    assert desk.report(command)["execution"] == "outcome_unknown"
    assert desk.get(command)["failure_code"] == "ValueError"
    assert desk.get(command)["history"][-1]["note"]


# Epochs and ends.


def test_a_new_epoch_rejects_what_has_not_begun_and_doubts_what_has(desk: Desk) -> None:
    begun = desk.begun()
    desk.submit()
    claimed = desk.claim()
    queued = desk.submit()
    desk.epoch = desk.connect()
    assert desk.get(queued)["execution"] == "rejected"
    assert desk.get(queued)["failure_code"] == "epoch_superseded"
    assert desk.get(claimed)["execution"] == "rejected"
    assert desk.get(begun)["execution"] == "outcome_unknown"
    desk.lease("begin", claimed, status=409)
    assert desk.claim() is None


def test_the_end_of_a_session_rejects_what_has_not_begun_and_waits_for_what_has(
    desk: Desk,
) -> None:
    begun = desk.begun()
    queued = desk.submit()
    desk.end()
    assert desk.get(queued)["failure_code"] == "session_ended"
    assert desk.get(begun)["execution"] == "applying"
    desk.clock.now += 61
    assert desk.get(begun)["execution"] == "outcome_unknown"
    # A journal that is opened weeks later still has the last word.
    desk.clock.now += 30 * 86400
    assert desk.report(begun)["execution"] == "applied"


def test_commands_survive_a_restart_of_the_server(desk: Desk, tmp_path: Path) -> None:
    desk.submit()
    command = desk.claim()
    database = Database(tmp_path / "server.db", desk.clock)
    again = Server(database, desk.clock, tmp_path, b"s" * 32)
    with Asgi(application(again)) as http:
        http.http.headers.update(desk.http.http.headers)
        desk.http = http
        desk.lease("begin", command)
        assert desk.report(command)["execution"] == "applied"
    database.close()


# Parked claims.


async def _claim(desk: Desk, participant: str = "", wait_ms: int = 19_000) -> Any:
    answer = await desk.http.http.post(
        desk.path(f"participants/{participant or desk.participant}/commands"),
        json={"epoch": desk.epoch, "wait_ms": wait_ms},
    )
    assert answer.status_code == 200, answer.text
    return answer.json()["command"]


async def _parked(desk: Desk, count: int = 1) -> None:
    """Wait until that many claims wait."""
    async with asyncio.timeout(20):
        while sum(map(len, desk.server.wake._waiting.values())) < count:
            await asyncio.sleep(0.01)


def test_a_claim_without_a_command_is_held_for_as_long_as_it_asked(desk: Desk) -> None:
    began = time.monotonic()
    assert desk.http.run(_claim(desk, wait_ms=300)) is None
    assert time.monotonic() - began >= 0.3


@pytest.mark.parametrize("event", ["command", "approval", "safe point"])
def test_a_parked_claim_is_woken_by_what_makes_a_command_deliverable(
    desk: Desk, event: str
) -> None:
    if event == "safe point":
        desk.epoch = desk.connect(safe_points=())
        desk.submit()
    capability = desk.register(requires_approval=event == "approval")
    held = desk.submit(capability={"id": capability}) if event == "approval" else None

    async def scenario() -> Any:
        claim = asyncio.create_task(_claim(desk))
        await _parked(desk)
        if event == "command":
            await asyncio.to_thread(desk.submit)
        elif event == "safe point":
            await asyncio.to_thread(desk.heartbeat, safe_points=["lht"])
        elif held is not None:
            body = {"fingerprint": held["fingerprint"]}
            await asyncio.to_thread(desk.post, f"commands/{held['id']}/approve", body)
        return await asyncio.wait_for(claim, 5)

    assert desk.http.run(scenario())["execution"] == "claimed"


@pytest.mark.parametrize("event", ["end", "connect"])
def test_a_parked_claim_returns_when_its_epoch_is_over(desk: Desk, event: str) -> None:
    async def scenario() -> Any:
        claim = asyncio.create_task(_claim(desk))
        await _parked(desk)
        await asyncio.to_thread(getattr(desk, event))
        return await asyncio.wait_for(claim, 5)

    assert desk.http.run(scenario()) is None


def test_hundreds_of_claims_are_parked_at_once_and_one_command_wakes_one(desk: Desk) -> None:
    count = 300
    others = []
    for number in range(count - 1):
        made = desk.document("participant", {"name": f"p{number}", "role": "trainer"})
        body = {"instance_id": str(uuid.uuid4()), "safe_points": ["lht"]}
        desk.post(f"participants/{made}/sessions", body)
        others.append(made)

    async def scenario() -> Any:
        mine = asyncio.create_task(_claim(desk))
        rest = [asyncio.create_task(_claim(desk, each)) for each in others]
        await _parked(desk, count)
        # The pool is free for everybody else.
        await asyncio.wait_for(asyncio.to_thread(desk.heartbeat), 5)
        await asyncio.to_thread(desk.submit)
        command = await asyncio.wait_for(mine, 5)
        assert not any(task.done() for task in rest)
        desk.server.wake.close()
        assert await asyncio.gather(*rest) == [None] * len(rest)
        return command

    assert desk.http.run(scenario())["execution"] == "claimed"


# What a controller reads.


def _read(desk: Desk, path: str, *, status: int = 200) -> Any:
    answer = desk.http.get(desk.path(path))
    assert answer.status_code == status, answer.text
    return answer.json()


def test_a_session_tells_what_a_command_must_name(desk: Desk) -> None:
    command = desk.begun()
    desk.report(command)
    desk.heartbeat(step="412")
    desk.clock.now += 5
    session = _read(desk, f"participants/{desk.participant}/session")
    assert (session["epoch"], session["state_revision"]) == (desk.epoch, "1")
    assert (session["safe_points"], session["step"]) == (["lht"], "412")
    assert session["silent_s"] == 5
    assert session["run_id"] == desk.scope["run_id"]
    assert "ended_at" not in session
    desk.end()
    ended = _read(desk, f"participants/{desk.participant}/session")
    assert (ended["epoch"], ended["end_reason"]) == (desk.epoch, "finished")


def test_a_participant_that_never_connected_has_no_session_to_read(desk: Desk) -> None:
    other = desk.document("participant", {"name": "rank-1", "role": "trainer"})
    for path in (f"participants/{other}/session", f"participants/{desk.capability}/session"):
        assert _read(desk, path, status=404)["error"]["code"] == "not_found"


def test_the_commands_of_a_run_are_listed_page_by_page_with_their_histories(desk: Desk) -> None:
    expected = [desk.submit()["id"] for _ in range(5)]
    path, found, cursor = f"runs/{desk.scope['run_id']}/commands", [], ""
    while True:
        page = _read(desk, f"{path}?limit=2&cursor={cursor}")
        assert len(page["items"]) <= 2
        found += page["items"]
        cursor = page["next_cursor"]
        if not cursor:
            break
    assert [command["id"] for command in found] == expected
    assert found[0] == desk.get(found[0])
    assert found[0]["history"][0]["event"] == "submitted"


def test_a_run_lists_no_commands_of_another_run(desk: Desk) -> None:
    desk.submit()
    scope = {name: desk.scope[name] for name in ("organization_id", "project_id")}
    body = {"kind": "run", "scope": scope, "spec": {"name": "other", "state": "open"}}
    other = desk.post("documents", body)["id"]
    assert _read(desk, f"runs/{other}/commands") == {"items": [], "next_cursor": ""}
    _read(desk, f"runs/{desk.participant}/commands", status=404)


@pytest.mark.parametrize("query", ["cursor=x", "limit=0", "limit=-1", "cursor=" + "9" * 19])
def test_a_page_that_is_none_is_refused(desk: Desk, query: str) -> None:
    path = f"runs/{desk.scope['run_id']}/commands?{query}"
    assert _read(desk, path, status=400)["error"]["code"] == "validation"


# Who may.


def _worker(desk: Desk, participant: str) -> dict[str, str]:
    body = {
        "name": "logger",
        "participant_id": participant,
        "expires_at": "2027-02-01T00:00:00Z",
        "grants": [
            {
                "effect": "allow",
                "scope": desk.scope,
                "actions": [
                    "participant.connect",
                    "document.create",
                    "document.read",
                    "command.claim",
                    "command.report",
                ],
                "kinds": ["*"],
                "resources": ["*"],
                "bounds": {},
            }
        ],
    }
    return {"Authorization": f"Bearer {desk.post('keys', body)['token']}"}


def test_a_worker_key_obeys_for_its_own_participant_and_commands_nobody(desk: Desk) -> None:
    other = desk.document("participant", {"name": "rank-1", "role": "trainer"})
    mine, foreign = _worker(desk, desk.participant), _worker(desk, other)
    claims = f"participants/{desk.participant}/commands"
    body = {"epoch": desk.epoch}
    desk.post("commands", desk.wanted(), {"Idempotency-Key": "k", **mine}, status=403)
    desk.submit()
    desk.post(claims, body, foreign, status=403)
    command = desk.post(claims, body, mine)["command"]
    lease = {"lease_id": command["lease_id"], "epoch": desk.epoch}
    desk.post(f"commands/{command['id']}/begin", lease, foreign, status=403)
    desk.post(f"commands/{command['id']}/begin", lease, mine)
    result = {**lease, "outcome": "rejected", "failure_code": "local_validation"}
    desk.post(f"commands/{command['id']}/result", result, foreign, status=403)
    answer = desk.post(f"commands/{command['id']}/result", result, mine)
    assert answer["execution"] == "rejected"
