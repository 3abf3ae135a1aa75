"""Requests that mean harm, over real sockets: refused in order, and nothing else happens."""

from __future__ import annotations

import logging
import re
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

import httpx
import pytest

from syncer.api import routes
from tests.support.v1_calls import DATA, Call, World
from tests.support.v1_server import V1Server, v1_server

STRANGER = "99999999-9999-4999-8999-999999999999"
ROUTES = sorted(value for name, value in vars(routes).items() if name.isupper() and name[0] != "_")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[V1Server, World]]:
    with v1_server(tmp_path_factory.mktemp("hostile")) as server:
        world = World.on(server)
        yield server, world
        world.close()


@pytest.fixture
def world(served: tuple[V1Server, World], caplog: pytest.LogCaptureFixture) -> Iterator[World]:
    """The world; a traceback in the server's log fails whatever test caused it."""
    caplog.set_level(logging.WARNING)
    yield served[1]
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []


def refused(answer: httpx.Response, *statuses: int) -> None:
    """Check that this is an error document with one of these statuses."""
    assert answer.status_code in statuses, (answer.status_code, answer.text[:300])
    error = answer.json()["error"]
    assert isinstance(error["code"], str) and isinstance(error["message"], str)
    assert isinstance(error["retryable"], bool)


def files(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}


def test_the_list_of_calls_leaves_no_endpoint_out(world: World) -> None:
    assert sorted({call.name for call in world.calls()}) == ROUTES
    for call in world.calls():
        answer = world.send(call)
        assert answer.status_code < 300 or answer.status_code in (400, 409), call.name


# --- keys -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer " + "x" * 10_000,
        "Basic dXNlcjpwYXNz",
        "Bearer ' OR 1=1 --",
        "bearer " + STRANGER,
    ],
)
def test_without_a_good_key_nothing_is_told_and_nothing_done(
    world: World, authorization: str | None
) -> None:
    for call in world.calls():
        headers = {**call.headers}
        if authorization is not None:
            headers["Authorization"] = authorization
        answer = world.send(call.but(headers=headers, key=None))
        refused(answer, 401)
        assert world.run not in answer.text


def test_a_key_is_never_repeated_in_an_answer(world: World) -> None:
    secret = "lh_" + uuid.uuid4().hex
    for call in world.calls():
        assert secret not in world.send(call.but(key=secret)).text


def test_another_organisation_in_the_path_is_refused(world: World) -> None:
    for call in world.calls():
        if world.organization in call.path:
            path = call.path.replace(world.organization, STRANGER)
            refused(world.send(call.but(path=path)), 403, 404)


# --- scopes ---------------------------------------------------------------------------------------


def narrow_key(world: World) -> str:
    """Return the key of a participant of the run."""
    answer = world.send(Call("", "POST", f"{world.org}/keys", world.key_body()))
    return str(answer.json()["token"])


def elsewhere(world: World) -> World:
    """Return another run in another project of the same server."""
    spec = {"name": f"other-{uuid.uuid4()}", "labels": {}}
    scope = {"organization_id": world.organization}
    body = {"kind": "project", "scope": scope, "spec": spec}
    made = world.send(Call("", "POST", f"{world.org}/documents", body)).json()
    return World(world.url, world.organization, made["id"], world.key)


def test_a_narrow_key_reaches_nothing_of_another_project(world: World) -> None:
    key = narrow_key(world)
    other = elsewhere(world)
    for call in other.calls():
        if call.name in (routes.ME, routes.ORGANIZATIONS):
            continue
        answer = world.send(call.but(key=key))
        if call.name == routes.EVENTS and answer.status_code < 300:
            assert other.run not in answer.text
            continue
        if call.name == routes.TELEMETRY_BATCHES and answer.status_code < 300:
            assert {it["status"] for it in answer.json()["receipts"]} == {"rejected"}
            continue
        if call.name == routes.DOCUMENTS and call.method == "GET" and answer.status_code < 300:
            assert answer.json()["items"] == []
            continue
        refused(answer, 403, 404)
    other.close()


def test_a_key_cannot_make_one_with_more_rights(world: World) -> None:
    key = narrow_key(world)
    path = f"{world.org}/keys"
    for grant in (
        {"scope": {"organization_id": world.organization}},
        {"scope": {"organization_id": world.organization, "project_id": world.project}},
        {"actions": ["*"]},
        {"actions": ["key.create"]},
        {"effect": "deny"},
        {"scope": {**world.scope, "run_id": STRANGER}},
    ):
        answer = world.send(Call("", "POST", path, world.key_body(**grant), key=key))
        refused(answer, 400, 403, 404)


def test_a_document_cannot_be_put_where_its_maker_has_no_right(world: World) -> None:
    key = narrow_key(world)
    other = elsewhere(world)
    for scope in (
        {"organization_id": world.organization},
        {"organization_id": STRANGER, "project_id": world.project},
        {"organization_id": world.organization, "project_id": other.project},
        {**world.scope, "run_id": other.run},
        {**world.scope, "project_id": other.project},
        {"organization_id": world.organization, "run_id": world.run},
    ):
        body = {"kind": "stream", "scope": scope, "spec": {"name": "x"}}
        for bearer in ("", key):
            if (
                bearer == ""
                and scope.get("run_id") is None
                and scope["organization_id"] != STRANGER
            ):
                continue  # The key of the organisation may.
            refused(
                world.send(Call("", "POST", f"{world.org}/documents", body, key=bearer)),
                *(400, 403, 404),
            )
    other.close()


# --- fingerprints and signatures ------------------------------------------------------------------


@pytest.mark.parametrize("fingerprint", ["", "0" * 64, None, 0, [], {}, True, "A" * 100_000])
@pytest.mark.parametrize("verb", ["approve", "cancel"])
def test_a_forged_fingerprint_decides_nothing(world: World, verb: str, fingerprint: object) -> None:
    path = f"{world.org}/commands/{world.command}"
    before = world.send(Call("", "GET", path)).json()
    refused(world.send(Call("", "POST", f"{path}/{verb}", {"fingerprint": fingerprint})), 400, 409)
    assert world.send(Call("", "GET", path)).json() == before


def test_a_signed_address_is_good_for_exactly_what_it_says(world: World) -> None:
    address, artifact = world.signed_part()
    path, _, query = address.partition("?")
    facts = dict(parse_qsl(query))
    url = world.url + path

    def put(where: str, said: dict[str, str], data: bytes = DATA) -> httpx.Response:
        return world.http.put(f"{where}?{urlencode(said)}", content=data)

    for name, value in facts.items():
        for forged in ("", value + "0", "0", "../../x", value[:-1]):
            refused(put(url, {**facts, name: forged}), 403)
        refused(put(url, {it: text for it, text in facts.items() if it != name}), 403)
    refused(put(url, {**facts, "more": "1"}), 403)
    refused(put(url.replace("/parts/1", "/parts/2"), facts), 403)
    refused(put(url.replace(artifact, world.artifact), facts), 403)
    refused(world.http.get(f"{url}?{urlencode(facts)}"), 404, 405)
    refused(put(url, facts, DATA[:-1]), 400)
    refused(put(url, facts, DATA + b"x"), 413)
    refused(put(url, facts, b"x" * len(DATA)), 400)
    assert put(url, facts).status_code < 300
    refused(world.send(Call("", "GET", f"{world.org}/artifacts/{artifact}/download")), 409)


def test_an_artifact_is_only_ready_when_all_its_bytes_are_there(world: World) -> None:
    _, artifact = world.signed_part()
    path = f"{world.org}/artifacts/{artifact}/complete"
    wrong: list[object] = [[], [{"number": 1, "etag": '"x"'}], [{}], "x", None, [{"number": 2}] * 3]
    for parts in wrong:
        refused(world.send(Call("", "POST", path, {"parts": parts})), 400)


# --- paths ----------------------------------------------------------------------------------------

ESCAPES = (
    "../../../../etc/passwd",
    "..%2f..%2f..%2fetc%2fpasswd",
    "%2e%2e/%2e%2e/etc/passwd",
    "/etc/passwd",
    "..\\..\\etc\\passwd",
    "%00",
    "%ff%fe",
    "'; DROP TABLE documents; --",
    "x" * 5000,
)


@pytest.mark.parametrize("escape", ESCAPES)
def test_no_name_leads_out_of_the_data_folder(
    served: tuple[V1Server, World], world: World, escape: str
) -> None:
    server, _ = served
    outside = files(server.data.parent) - {
        name for name in files(server.data.parent) if name.startswith(server.data.name)
    }
    for call in world.calls():
        for id_ in (world.run, world.participant, world.stream, world.command, world.artifact):
            if id_ in call.path:
                answer = world.send(call.but(path=call.path.replace(id_, escape)))
                assert answer.status_code in (400, 403, 404, 405), (call.name, answer.text[:200])
                assert "root:" not in answer.text
    for path in (f"/v1/objects/{escape}", f"/v1/objects/{escape}/parts/1", f"/{escape}"):
        for method in ("GET", "PUT"):
            answer = world.http.request(method, world.url + path, content=b"x")
            assert answer.status_code in (400, 403, 404, 405), path
            assert "root:" not in answer.text
    now = {name for name in files(server.data.parent) if not name.startswith(server.data.name)}
    assert now == outside


@pytest.mark.parametrize("name", ["../../x", "/etc/passwd", "a\x00b", "\ud7ff", "‮", "con"])
def test_names_in_bodies_are_only_text(
    served: tuple[V1Server, World], world: World, name: str
) -> None:
    server, _ = served
    before = {it for it in files(server.data) if "incoming" not in it}
    body = {
        "scope": world.scope,
        "name": name,
        "media_type": name,
        "size": "3",
        "sha256": "0" * 64,
        "purpose": name,
    }
    headers = {"Idempotency-Key": uuid.uuid4().hex}
    answer = world.send(Call("", "POST", f"{world.org}/artifacts", body, headers=headers))
    assert answer.status_code in (200, 201, 400)
    for digest in ("../../x", "0" * 63, "0" * 65, "A" * 64, "", 5, None):
        refused(
            world.send(Call("", "POST", f"{world.org}/artifacts", {**body, "sha256": digest})), 400
        )
    assert {it for it in files(server.data) if "incoming" not in it} == before


# --- bodies ---------------------------------------------------------------------------------------


def raw(world: World, path: str, data: bytes, **headers: str) -> httpx.Response:
    sent = {"Authorization": f"Bearer {world.key}", "Content-Type": "application/json", **headers}
    return world.http.post(world.url + path, content=data, headers=sent)


DEEP = b"[" * 100_000
BODIES = {
    "nothing like JSON": b"<xml/>",
    "not UTF-8": b'{"kind": "\xff\xfe"}',
    "UTF-16": '{"kind": "run"}'.encode("utf-16"),
    "a lone surrogate": b'{"kind": "\\ud800"}',
    "NaN": b'{"kind": NaN}',
    "infinite": b'{"kind": 1e99999}',
    "a number of a million digits": b'{"kind": ' + b"9" * 1_000_000 + b"}",
    "arrays without end": DEEP,
    "arrays that do end": DEEP + b"]" * 100_000,
    "objects without end": b'{"a":' * 100_000,
    "a million values": b"[" + b"0," * 1_000_000 + b"0]",
    "a list": b"[]",
    "null": b"null",
    "a text": b'"x"',
    "two documents": b"{}{}",
    "the same name twice": b'{"kind": "run", "kind": "stream"}',
    "cut off": b'{"kind": "run"',
    "a byte-order mark": b"\xef\xbb\xbf{}",
    "NUL bytes": b"\0" * 1000,
    "a very long name": b'{"' + b"k" * 1_000_000 + b'": 1}',
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_odd_bodies_are_refused_everywhere(world: World, body: bytes) -> None:
    for path in sorted({call.path for call in world.calls() if call.method == "POST"}):
        answer = raw(world, path, body)
        assert answer.status_code < 500, (path, answer.text[:300])
        if answer.status_code >= 300:
            refused(answer, 400, 404, 409, 413)
        else:
            assert answer.json() is not None


@pytest.mark.timeout(60)
def test_giant_bodies_are_refused_and_do_not_stay_in_memory(world: World) -> None:
    piece = b" " * (1 << 20)

    def endless() -> Iterator[bytes]:
        for _ in range(64):
            yield piece

    for path in (f"{world.org}/documents", f"{world.org}/telemetry/batches", f"{world.org}/keys"):
        headers = {"Authorization": f"Bearer {world.key}"}
        try:
            answer = world.http.post(world.url + path, content=endless(), headers=headers)
        except httpx.TransportError:
            continue  # It hung up in the middle, which is as good.
        refused(answer, 413)
    assert world.send(world.calls()[0]).status_code == 200


def test_a_compressed_bomb_is_not_unpacked(world: World) -> None:
    import gzip

    bomb = gzip.compress(b" " * (200 << 20))
    answer = raw(world, f"{world.org}/documents", bomb, **{"Content-Encoding": "gzip"})
    refused(answer, 400, 413, 415)


@pytest.mark.parametrize(
    "head",
    [
        "POST {path} HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n",
        "POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        "GET {path} HTTP/9.9\r\n\r\n",
        "\r\n\r\n\r\n",
        "GET  HTTP/1.1\r\n\r\n",
        "X" * 200_000 + "\r\n\r\n",
        "GET {path} HTTP/1.1\r\nHost: x\r\n" + "A: b\r\n" * 20_000 + "\r\n",
        "GET {path} HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    ],
)
def test_broken_http_is_answered_or_hung_up_on_and_the_next_one_served(
    world: World, head: str
) -> None:
    host, port = re.match(r"http://([^:]+):(\d+)", world.url).groups()  # type: ignore[union-attr]
    with socket.create_connection((host, int(port)), 10) as connection:
        connection.settimeout(5)
        try:
            connection.sendall(head.format(path=f"{world.org}/documents").encode())
            connection.shutdown(socket.SHUT_WR)
            got = connection.recv(1000)
        except TimeoutError:
            raise
        except OSError:  # It hung up, maybe before we were done.
            got = b""
        assert got == b"" or re.match(rb"HTTP/1.1 [1-4]", got), got
    assert world.send(world.calls()[0]).status_code == 200


def test_idle_connections_keep_nobody_out(world: World) -> None:
    host, port = re.match(r"http://([^:]+):(\d+)", world.url).groups()  # type: ignore[union-attr]
    idle = [socket.create_connection((host, int(port)), 10) for _ in range(100)]
    try:
        for connection in idle:
            connection.sendall(b"POST /v1/me HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
        assert world.send(world.calls()[0]).status_code == 200
    finally:
        for connection in idle:
            connection.close()


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "TRACE", "BREW"])
def test_other_methods_are_refused_in_json(world: World, method: str) -> None:
    for call in world.calls():
        answer = world.send(call.but(method=method, body=None))
        refused(answer, 404, 405)
