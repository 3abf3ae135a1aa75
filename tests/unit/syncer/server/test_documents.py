"""Documents come back as they came, keep their history, and are listed in the order of creation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from syncer.server import documents
from tests.support.v1_server import PROJECT, V1Server, v1_server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[V1Server]:
    with v1_server(tmp_path) as running:
        yield running


def refusal(server: V1Server, method: str, path: str, body: Any = None, **rest: Any) -> Any:
    """Return status and code of a request that must be refused."""
    answer = server.call(method, path, body, **rest)
    return answer.status_code, answer.json()["error"]["code"]


def test_a_document_has_all_seven_fields_and_its_first_revision(server: V1Server) -> None:
    run = server.run()
    assert set(run) == {"id", "kind", "scope", "revision", "spec", "created_at", "updated_at"}
    assert (run["kind"], run["revision"], run["scope"]) == ("run", "1", server.scope)
    assert server.get(f"documents/{run['id']}") == run


def test_a_spec_comes_back_as_it_came(server: V1Server) -> None:
    spec = {
        "z": 1,
        "a": [1.0, -0.0, 1e300, 0.1, 12345678901234567890, None, True, {}],
        "text": "é \u2028 \U0001f600 </script> \x01",
        "": {"deep": [[[[]]]]},
    }
    made = server.document("dashboard", server.scope)
    changed = server.call(
        "PATCH", f"documents/{made['id']}", {"expected_revision": "1", "spec": spec}
    ).json()
    assert repr(changed["spec"]) == repr(spec)
    assert repr(server.get(f"documents/{made['id']}")["spec"]) == repr(spec)


def test_the_organisation_is_spelled_as_the_caller_spells_it(server: V1Server) -> None:
    made = server.run()
    loud = server.organization.upper()
    assert loud != server.organization
    base = f"/v1/organizations/{loud}/documents"
    assert server.get(f"{base}/{made['id']}")["scope"]["organization_id"] == loud
    assert server.get(f"{base}?kind=run")["items"][0]["scope"]["organization_id"] == loud
    scope = {**server.scope, "organization_id": loud}
    answer = server.post(base, {"kind": "run", "scope": scope, "spec": {}})
    assert answer["scope"] == scope


def test_ids_of_a_scope_and_of_a_path_may_be_in_capitals(server: V1Server) -> None:
    run = server.run()
    scope = {**server.scope, "project_id": server.project.upper(), "run_id": run["id"].upper()}
    stream = server.document("stream", scope, name="m")
    assert stream["scope"] == scope
    assert server.get(f"documents/{stream['id'].upper()}") == stream
    page = server.get("documents", kind="stream", project_id=server.project, run_id=run["id"])
    assert page["items"] == [stream]


def test_an_update_needs_the_revision_and_keeps_the_old_one(server: V1Server) -> None:
    run = server.run()
    path = f"documents/{run['id']}"
    second = server.call("PATCH", path, {"expected_revision": "1", "spec": {"name": "b"}}).json()
    assert (second["revision"], second["spec"]) == ("2", {"name": "b"})
    body = {"expected_revision": "1", "spec": {"name": "c"}}
    assert refusal(server, "PATCH", path, body) == (409, "conflict")
    assert server.get(path) == second
    assert server.get(path, revision=1) == run
    assert server.get(path, revision=2) == second
    assert refusal(server, "GET", f"{path}?revision=3") == (404, "not_found")
    assert refusal(server, "GET", f"{path}?revision=x") == (400, "validation")


def test_many_are_created_in_order_or_not_at_all(server: V1Server) -> None:
    run = server.run()
    scope = {**server.scope, "run_id": run["id"]}
    wanted = [{"kind": "stream", "scope": scope, "spec": {"name": f"m{i}"}} for i in range(1024)]
    made = server.post("document-batches", {"documents": wanted})["documents"]
    assert [each["spec"]["name"] for each in made] == [f"m{i}" for i in range(1024)]
    broken = [*wanted[:3], {"kind": "stream", "scope": scope, "spec": "no object"}]
    body = {"documents": broken}
    assert refusal(server, "POST", "document-batches", body) == (400, "validation")
    with server.client() as client:
        found = list(client.list_documents("stream", server.project, run["id"]))
    assert [each["id"] for each in found] == [each["id"] for each in made]
    for count in (0, 1025):
        body = {"documents": [wanted[0]] * count}
        assert refusal(server, "POST", "document-batches", body) == (400, "validation")


def test_several_streams_may_have_one_name_but_projects_not(server: V1Server) -> None:
    run = server.run()
    scope = {**server.scope, "run_id": run["id"]}
    one, two = (server.document("stream", scope, name="train/loss") for _ in range(2))
    assert one["id"] != two["id"]
    assert server.run("r1")["id"] != run["id"]
    top = {"organization_id": server.organization}
    body = {"kind": "project", "scope": top, "spec": {"name": PROJECT}}
    assert refusal(server, "POST", "documents", body) == (409, "conflict")
    other = server.document("project", top, name="other")
    renamed = {"expected_revision": "1", "spec": {"name": PROJECT}}
    assert refusal(server, "PATCH", f"documents/{other['id']}", renamed) == (409, "conflict")
    described = {"expected_revision": "1", "spec": {"name": "other", "description": "d"}}
    assert server.call("PATCH", f"documents/{other['id']}", described).status_code == 200


def test_a_list_is_in_the_order_of_creation_and_continues_at_its_cursor(server: V1Server) -> None:
    made = [server.run(f"r{index}")["id"] for index in range(7)]
    seen, cursor = [], ""
    for _ in range(4):
        page = server.get("documents", kind="run", project_id="", run_id="", cursor=cursor, limit=2)
        seen.append([each["id"] for each in page["items"]])
        cursor = page["next_cursor"]
    assert seen == [made[0:2], made[2:4], made[4:6], made[6:7]]
    assert cursor == ""
    whole = server.get("documents", kind="run", limit=7)
    assert len(whole["items"]) == 7 and whole["next_cursor"] == ""


def test_a_page_has_at_most_a_thousand_and_stays_below_what_clients_read(
    server: V1Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    scope = server.scope
    for _ in range(2):
        wanted = [{"kind": "note", "scope": scope, "spec": {}}] * 600
        server.post("document-batches", {"documents": wanted})
    page = server.get("documents", kind="note", limit=5000)
    assert len(page["items"]) == 1000 and page["next_cursor"]
    monkeypatch.setattr(documents, "_PAGE_BYTES", 5_000)
    short = server.get("documents", kind="note", limit=1000)
    assert 1 <= len(short["items"]) < 20 and short["next_cursor"]


@pytest.mark.parametrize(
    "query", ["run_id=x", "limit=0", "limit=-1", "limit=x", "cursor=x", "cursor=cGxhY2U6eA"]
)
def test_a_list_that_makes_no_sense_is_refused(server: V1Server, query: str) -> None:
    assert refusal(server, "GET", f"documents?kind=run&{query}") == (400, "validation")


def test_wrong_shapes_are_refused_before_anything_is_stored(server: V1Server) -> None:
    good = {"kind": "run", "scope": server.scope, "spec": {}}
    elsewhere = {**server.scope, "organization_id": "00000000-0000-4000-8000-000000000000"}
    changes: list[tuple[dict[str, Any], tuple[int, str]]] = [
        ({"kind": ""}, (400, "validation")),
        ({"kind": 3}, (400, "validation")),
        ({"spec": None}, (400, "validation")),
        ({"scope": []}, (400, "validation")),
        ({"scope": {}}, (400, "validation")),
        ({"scope": {**server.scope, "project_id": 3}}, (400, "validation")),
        ({"scope": {"organization_id": server.organization, "run_id": "x"}}, (400, "validation")),
        ({"scope": elsewhere}, (403, "forbidden")),
        ({"scope": {**server.scope, "project_id": server.organization}}, (404, "not_found")),
        ({"scope": {**server.scope, "run_id": server.project}}, (404, "not_found")),
    ]
    for change, expected in changes:
        assert refusal(server, "POST", "documents", {**good, **change}) == expected, change
    assert server.get("documents", kind="run")["items"] == []
    missing = "documents/00000000-0000-4000-8000-000000000000"
    assert refusal(server, "GET", missing) == (404, "not_found")
    assert refusal(server, "GET", "documents/..%2f") == (404, "not_found")


def test_a_run_of_another_project_is_no_place(server: V1Server) -> None:
    other = server.document("project", {"organization_id": server.organization}, name="other")
    run = server.run()
    scope = {**server.scope, "project_id": other["id"], "run_id": run["id"]}
    body = {"kind": "stream", "scope": scope, "spec": {}}
    assert refusal(server, "POST", "documents", body) == (404, "not_found")
