"""Keys: who may do what, for how long, and that nobody can read them back."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from syncer.server import accounts, data
from syncer.server.accounts import Grant
from tests.support.v1_server import HandClock, V1Server, v1_server

WORKER = [
    "participant.connect",
    "telemetry.write",
    "document.create",
    "document.read",
    "document.list",
    "document.update",
    "artifact.write",
    "artifact.download",
    "command.claim",
    "command.report",
]
WEEK_S = 7 * 86_400


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def server(tmp_path: Path, clock: HandClock) -> Iterator[V1Server]:
    with v1_server(tmp_path, clock=clock) as running:
        yield running


def request_for(
    server: V1Server, participant: dict[str, Any], actions: list[str] | None = None, **rest: Any
) -> dict[str, Any]:
    """Return what a client sends to POST keys."""
    assert server.state is not None
    ends = datetime.fromtimestamp(server.state.clock.wall() + WEEK_S, UTC)
    grant = {
        "effect": "allow",
        "scope": participant["scope"],
        "actions": actions or WORKER,
        "kinds": ["*"],
        "resources": ["*"],
        "bounds": {},
    }
    return {
        "name": "logger",
        "participant_id": participant["id"],
        "expires_at": ends.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "grants": [grant],
        **rest,
    }


def worker_key(server: V1Server, participant: dict[str, Any], **rest: Any) -> str:
    return str(server.post("keys", request_for(server, participant, **rest))["token"])


def status(server: V1Server, method: str, path: str, body: Any = None, *, key: str) -> Any:
    answer = server.call(method, path, body, key=key)
    return answer.status_code, answer.json().get("error", {}).get("code", "")


def connect(server: V1Server, participant: dict[str, Any], key: str) -> Any:
    body = {"instance_id": "cccccccc-cccc-4ccc-8ccc-cccccccccccc", "safe_points": []}
    return status(server, "POST", f"participants/{participant['id']}/sessions", body, key=key)


def beat(server: V1Server, participant: dict[str, Any], key: str) -> Any:
    path = f"participants/{participant['id']}/heartbeat"
    return status(server, "POST", path, {"epoch": "1"}, key=key)


def test_requests_without_a_valid_key_are_unauthorized(server: V1Server) -> None:
    head, _, secret = server.key.rpartition("_")
    for key in ("x", f"{head}_{secret[:-1]}", f"{head}_", f"{server.key}x", "lhk_zz_y"):
        assert status(server, "GET", "documents", key=key) == (401, "unauthorized"), key
    answer = server.http.get(f"{server.url}/v1/me")
    assert answer.status_code == 401 and answer.headers["WWW-Authenticate"] == "Bearer"
    basic = {"Authorization": f"Basic {server.key}"}
    assert server.http.get(f"{server.url}/v1/me", headers=basic).status_code == 401


def test_a_key_says_where_it_belongs(server: V1Server) -> None:
    items = server.get("/v1/organizations")["items"]
    assert server.state is not None
    told = {"generation": server.state.generation}
    assert items == [{"id": server.organization, "name": "lab", **told}]
    me = server.call("GET", "/v1/me", key=server.project_key).json()
    assert me["organization_id"] == server.organization
    assert me["project_id"] == server.project
    assert len(me["account_id"]) == 36


def test_another_organisation_is_unknown_or_forbidden(server: V1Server) -> None:
    assert server.state is not None
    with server.state.database.write() as connection:
        other = accounts.create_organization(connection, "other", 1.0)
    unknown = "/v1/organizations/00000000-0000-4000-8000-000000000000/documents"
    assert status(server, "GET", unknown, key=server.key) == (404, "not_found")
    theirs = f"/v1/organizations/{other}/documents"
    assert status(server, "GET", theirs, key=server.key) == (403, "forbidden")
    nonsense = "/v1/organizations/x/documents"
    assert status(server, "GET", nonsense, key=server.key) == (404, "not_found")


def test_only_a_digest_of_a_key_is_kept(server: V1Server) -> None:
    worker = worker_key(server, server.participant(server.run()))
    stored = b"".join(each.read_bytes() for each in server.data.glob("*") if each.is_file())
    for key in (server.key, server.project_key, worker):
        secret = key.split("_", 2)[-1]
        assert len(secret) > 20
        assert secret.encode() not in stored
    assert (server.data / data.DATABASE).stat().st_mode & 0o077 == 0
    assert server.data.stat().st_mode & 0o077 == 0


def test_a_worker_key_does_all_that_its_participant_needs(server: V1Server) -> None:
    run = server.run()
    rank = server.participant(run)
    key = worker_key(server, rank)
    assert connect(server, rank, key)[0] == 200
    assert beat(server, rank, key)[0] == 200
    stream = {"kind": "stream", "scope": rank["scope"], "spec": {"name": "m"}}
    assert status(server, "POST", "documents", stream, key=key)[0] == 200
    assert status(server, "POST", "document-batches", {"documents": [stream]}, key=key)[0] == 200
    update = {"expected_revision": "1", "spec": {**run["spec"], "state": "open"}}
    assert status(server, "PATCH", f"documents/{run['id']}", update, key=key)[0] == 200
    end = {"epoch": "1", "close_run": "when_idle"}
    assert status(server, "POST", f"participants/{rank['id']}/session/end", end, key=key)[0] == 200


def test_a_worker_key_reads_its_project_and_writes_its_run(server: V1Server) -> None:
    mine, other = server.run("mine"), server.run("other")
    key = worker_key(server, server.participant(mine))
    assert status(server, "GET", f"documents/{other['id']}", key=key)[0] == 200
    assert status(server, "GET", f"documents/{server.project}", key=key)[0] == 200
    path = f"documents?kind=run&project_id={server.project}"
    listed = server.call("GET", path, key=key).json()["items"]
    assert [each["spec"]["name"] for each in listed] == ["mine", "other"]
    scope = {**server.scope, "run_id": other["id"]}
    stream = {"kind": "stream", "scope": scope, "spec": {}}
    assert status(server, "POST", "documents", stream, key=key) == (403, "forbidden")
    update = {"expected_revision": "1", "spec": {}}
    path = f"documents/{other['id']}"
    assert status(server, "PATCH", path, update, key=key) == (403, "forbidden")
    run = {"kind": "run", "scope": server.scope, "spec": {}}
    assert status(server, "POST", "documents", run, key=key) == (403, "forbidden")


def test_a_worker_key_speaks_for_its_own_participant_only(server: V1Server) -> None:
    run = server.run()
    mine, other = server.participant(run, "rank-0"), server.participant(run, "rank-1")
    key = worker_key(server, mine)
    assert connect(server, other, key) == (403, "forbidden")
    assert connect(server, mine, key)[0] == 200


def test_a_project_key_sees_its_project_only(server: V1Server) -> None:
    top = {"organization_id": server.organization}
    other = server.document("project", top, name="other")
    theirs = server.document("run", {**top, "project_id": other["id"]}, name="r", state="open")
    key = server.project_key
    seen = server.call("GET", "documents?kind=project", key=key).json()["items"]
    assert [each["id"] for each in seen] == [server.project]
    assert server.call("GET", "documents?kind=run", key=key).json()["items"] == []
    for hidden in (other, theirs):
        path = f"documents/{hidden['id']}"
        assert status(server, "GET", path, key=key) == (404, "not_found")
    scope = {**top, "project_id": other["id"]}
    run = {"kind": "run", "scope": scope, "spec": {}}
    assert status(server, "POST", "documents", run, key=key) == (403, "forbidden")
    project = {"kind": "project", "scope": top, "spec": {"name": "third"}}
    assert status(server, "POST", "documents", project, key=key) == (403, "forbidden")


def test_a_key_gives_away_no_right_that_it_lacks(server: V1Server) -> None:
    run, other = server.run(), server.run("other")
    rank = server.participant(run)
    maker_body = request_for(server, rank, [*WORKER, "key.create"])
    maker = server.post("keys", maker_body)["token"]
    assert status(server, "POST", "keys", request_for(server, rank), key=maker)[0] == 200
    for change in (
        {"actions": ["command.submit"]},
        {"actions": ["*"]},
        {"scope": {**server.scope, "run_id": other["id"]}},
        {"scope": server.scope},
        {"scope": {"organization_id": server.organization}},
        {"scope": {"organization_id": "00000000-0000-4000-8000-000000000000"}},
    ):
        body = request_for(server, rank)
        body["grants"][0].update(change)
        assert status(server, "POST", "keys", body, key=maker) == (403, "forbidden"), change
    someone = request_for(server, server.participant(run, "rank-1"))
    assert status(server, "POST", "keys", someone, key=maker) == (403, "forbidden")
    plain = worker_key(server, rank)
    assert status(server, "POST", "keys", request_for(server, rank), key=plain)[0] == 403


def test_a_key_lives_no_longer_than_its_maker(server: V1Server, clock: HandClock) -> None:
    rank = server.participant(server.run())
    maker = server.post("keys", request_for(server, rank, [*WORKER, "key.create"]))["token"]
    clock.now += WEEK_S - 60
    key = server.call("POST", "keys", request_for(server, rank), key=maker).json()["token"]
    assert status(server, "GET", "documents", key=key)[0] == 200
    clock.now += 61
    assert status(server, "GET", "documents", key=key)[0] == 401


def test_a_grant_that_could_not_be_enforced_is_refused(server: V1Server) -> None:
    rank = server.participant(server.run())
    changes: list[dict[str, Any]] = [
        {"effect": "deny"},
        {"kinds": ["stream"]},
        {"resources": [rank["id"]]},
        {"bounds": {"bytes": "1"}},
        {"actions": []},
        {"actions": "*"},
        {"scope": None},
    ]
    for change in changes:
        body = request_for(server, rank)
        body["grants"][0].update(change)
        assert status(server, "POST", "keys", body, key=server.key) == (400, "validation"), change
    wholes: list[dict[str, Any]] = [
        {"grants": []},
        {"grants": None},
        {"expires_at": "tomorrow"},
        {"expires_at": "2001-01-01T00:00:00Z"},
        {"expires_at": "2030-01-01T00:00:00"},
        {"expires_at": 3},
        {"name": 3},
        {"participant_id": 3},
    ]
    for rest in wholes:
        body = request_for(server, rank, **rest)
        assert status(server, "POST", "keys", body, key=server.key) == (400, "validation"), rest


def test_a_worker_key_lives_as_long_as_its_participant_is_heard_of(
    server: V1Server, clock: HandClock
) -> None:
    """The client makes one key for a week and then trains for a month."""
    rank = server.participant(server.run())
    key = worker_key(server, rank)
    assert connect(server, rank, key)[0] == 200
    for _ in range(10):
        clock.now += WEEK_S / 2
        assert beat(server, rank, key) == (200, "")
    clock.now += WEEK_S - 1
    assert beat(server, rank, key) == (200, "")
    clock.now += WEEK_S + 1
    assert beat(server, rank, key) == (401, "unauthorized")


def test_without_a_session_a_worker_key_ends_when_it_said(
    server: V1Server, clock: HandClock
) -> None:
    key = worker_key(server, server.participant(server.run()))
    clock.now += WEEK_S - 1
    assert status(server, "GET", "documents", key=key)[0] == 200
    clock.now += 2
    assert status(server, "GET", "documents", key=key) == (401, "unauthorized")


def test_a_revoked_key_and_those_that_it_made_end_at_once(server: V1Server) -> None:
    assert server.state is not None
    rank = server.participant(server.run())
    worker = server.call("POST", "keys", request_for(server, rank), key=server.project_key).json()
    other = worker_key(server, rank)
    with server.state.database.write() as connection:
        maker = accounts.find_key(connection, server.project_key, 1.0)
        assert maker is not None
        assert accounts.revoke_key(connection, maker.id, 2.0) == 2
        assert accounts.revoke_key(connection, maker.id, 3.0) == 0
    for key in (server.project_key, worker["token"]):
        assert status(server, "GET", "documents", key=key) == (401, "unauthorized")
    assert status(server, "GET", "documents", key=other)[0] == 200


def test_a_rotated_key_has_another_token_and_its_workers_go_on(server: V1Server) -> None:
    assert server.state is not None
    rank = server.participant(server.run())
    worker = server.call("POST", "keys", request_for(server, rank), key=server.project_key).json()
    with server.state.database.write() as connection:
        key = accounts.find_key(connection, server.project_key, 1.0)
        assert key is not None
        token = accounts.rotate_key(connection, key.id)
    assert status(server, "GET", "documents", key=server.project_key)[0] == 401
    assert status(server, "GET", "documents", key=token)[0] == 200
    assert connect(server, rank, worker["token"])[0] == 200


def test_a_key_that_only_reads_changes_nothing(server: V1Server) -> None:
    assert server.state is not None
    run = server.run()
    with server.state.database.write() as connection:
        _, key = accounts.create_key(
            connection,
            name="dashboard",
            organization_id=server.organization,
            grants=[Grant("", "", frozenset({"document.read", "document.list"}))],
            now=1.0,
        )
    assert status(server, "GET", f"documents/{run['id']}", key=key)[0] == 200
    body = {"kind": "run", "scope": server.scope, "spec": {}}
    assert status(server, "POST", "documents", body, key=key) == (403, "forbidden")
