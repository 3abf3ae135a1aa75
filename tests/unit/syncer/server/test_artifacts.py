"""Artifacts: parts, digests, signed addresses, and bytes that no browser runs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from starlette.requests import Request

from syncer.server import signing
from syncer.server.blobs import Blobs, Incoming
from syncer.server.errors import ServerError
from tests.support.telemetry_desk import START, Desk, desk

PIECES = [b"a" * 3000, b"b" * 2000, b"c"]


@pytest.fixture
def at(tmp_path: Path) -> Iterator[Desk]:
    with desk(tmp_path) as made:
        yield made


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def declared(at: Desk, data: bytes, **changes: Any) -> dict[str, Any]:
    return {
        "scope": at.scope,
        "name": "step-7.pt",
        "media_type": "application/octet-stream",
        "size": str(len(data)),
        "sha256": digest(data),
        "provenance": {"inputs": [], "coordinates": [], "labels": {}},
        "purpose": "general",
        **changes,
    }


def create(at: Desk, data: bytes, key: str = "", **changes: Any) -> httpx.Response:
    headers = {"Idempotency-Key": key} if key else {}
    return at.post("artifacts", declared(at, data, **changes), headers)


def made(at: Desk, data: bytes, **changes: Any) -> str:
    answer = create(at, data, **changes)
    assert answer.status_code == 200, answer.text
    artifact_id: str = answer.json()["id"]
    return artifact_id


def signed(at: Desk, artifact_id: str, number: int, data: bytes) -> str:
    answer = at.post(
        f"artifacts/{artifact_id}/parts",
        {"number": number, "size": str(len(data)), "sha256": digest(data)},
    )
    assert answer.status_code == 200, answer.text
    url: str = answer.json()["url"]
    return url


def put(at: Desk, url: str, data: bytes) -> httpx.Response:
    # A signed address needs no key.
    return at.asgi.run(at.asgi.http.put(url, content=data, headers={"Authorization": ""}))


def upload(at: Desk, artifact_id: str, pieces: list[bytes]) -> list[dict[str, Any]]:
    parts = []
    for number, piece in enumerate(pieces, 1):
        answer = put(at, signed(at, artifact_id, number, piece), piece)
        assert answer.status_code == 200, answer.text
        parts.append({"number": number, "etag": answer.headers["etag"]})
    return parts


def complete(at: Desk, artifact_id: str, parts: list[dict[str, Any]]) -> httpx.Response:
    return at.post(f"artifacts/{artifact_id}/complete", {"parts": parts})


def fetch(at: Desk, artifact_id: str) -> httpx.Response:
    url = at.get(f"artifacts/{artifact_id}/download").json()["url"]
    return at.asgi.run(at.asgi.http.get(url, headers={"Authorization": ""}))


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


@pytest.mark.parametrize("pieces", [PIECES, PIECES[:1], [b"x", b"x", b"x"]])
def test_what_was_sent_in_parts_is_read_as_one(at: Desk, pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    answer = create(at, data)
    document = answer.json()
    assert (document["kind"], document["spec"]["state"]) == ("artifact", "pending")
    done = complete(at, document["id"], upload(at, document["id"], pieces)).json()
    assert done["spec"] == {**document["spec"], "state": "ready"}
    assert done["spec"]["sha256"] == digest(data)
    assert at.get(f"documents/{document['id']}").json() == done
    assert fetch(at, document["id"]).content == data


def test_the_same_key_and_body_give_the_same_artifact(at: Desk) -> None:
    data = b"checkpoint"
    first = create(at, data, key="k")
    assert create(at, data, key="k").json() == first.json()
    done = complete(at, first.json()["id"], upload(at, first.json()["id"], [data])).json()
    assert create(at, data, key="k").json() == done
    assert create(at, data, key="other").json()["id"] != first.json()["id"]
    assert create(at, data).json()["id"] != create(at, data).json()["id"]


def test_the_same_key_with_another_body_is_a_conflict(at: Desk) -> None:
    create(at, b"one", key="k")
    assert code(create(at, b"two", key="k")) == (409, "conflict")


def test_a_part_may_be_signed_and_sent_again_and_the_last_counts(at: Desk) -> None:
    data = b"right"
    artifact_id = made(at, data)
    upload(at, artifact_id, [b"wrong"])
    url = signed(at, artifact_id, 1, data)
    tags = [put(at, url, data).headers["etag"] for _ in range(2)]
    assert tags[0] == tags[1]
    assert complete(at, artifact_id, [{"number": 1, "etag": tags[0]}]).status_code == 200
    assert fetch(at, artifact_id).content == data


def test_completing_twice_is_once(at: Desk) -> None:
    artifact_id = made(at, b"data")
    parts = upload(at, artifact_id, [b"data"])
    assert complete(at, artifact_id, parts).json() == complete(at, artifact_id, parts).json()


def test_a_part_with_other_bytes_than_declared_is_refused(at: Desk) -> None:
    artifact_id = made(at, b"data")
    url = signed(at, artifact_id, 1, b"data")
    assert code(put(at, url, b"DATA")) == (400, "validation")
    assert code(put(at, url, b"dat")) == (400, "validation")
    assert code(put(at, url, b"data and more")) == (413, "too_large")
    assert not list((at.server.artifacts / "incoming").iterdir())
    assert code(complete(at, artifact_id, [{"number": 1, "etag": "x"}])) == (400, "validation")


def test_parts_that_do_not_make_the_whole_are_refused(at: Desk) -> None:
    artifact_id = made(at, b"abcd")
    parts = upload(at, artifact_id, [b"ab", b"dc"])
    assert code(complete(at, artifact_id, parts)) == (400, "validation")
    assert code(complete(at, artifact_id, parts[:1])) == (400, "validation")
    assert code(complete(at, artifact_id, [])) == (400, "validation")
    assert code(complete(at, artifact_id, parts[1:])) == (400, "validation")
    assert code(complete(at, artifact_id, [*parts, {"number": 3, "etag": '"0"'}]))[0] == 400
    assert at.get(f"documents/{artifact_id}").json()["spec"]["state"] == "pending"
    assert code(at.get(f"artifacts/{artifact_id}/download")) == (409, "conflict")


def test_a_ready_artifact_does_not_change_any_more(at: Desk) -> None:
    artifact_id = made(at, b"data")
    url = signed(at, artifact_id, 1, b"DATA")
    complete(at, artifact_id, upload(at, artifact_id, [b"data"]))
    assert put(at, url, b"DATA").status_code == 200
    again = at.post(
        f"artifacts/{artifact_id}/parts", {"number": 1, "size": "4", "sha256": digest(b"DATA")}
    )
    assert code(again) == (409, "conflict")
    assert fetch(at, artifact_id).content == b"data"


def test_an_update_of_the_document_makes_nothing_ready(at: Desk) -> None:
    document = create(at, b"data").json()
    body = {"expected_revision": "1", "spec": {**document["spec"], "state": "ready"}}
    at.asgi.run(at.asgi.http.patch(at.path(f"documents/{document['id']}"), json=body))
    assert code(at.get(f"artifacts/{document['id']}/download")) == (409, "conflict")
    bare = at.document("artifact", {"name": "bare", "state": "ready"})
    assert code(at.get(f"artifacts/{bare}/download")) == (409, "conflict")


def test_bytes_are_never_run_by_a_browser(at: Desk) -> None:
    for media_type, told in (
        ("text/html", "application/octet-stream"),
        ("image/svg+xml", "application/octet-stream"),
        ("image/png", "image/png"),
    ):
        name = '../../<script>"\r\nX: 1/é.html'
        artifact_id = made(at, b"<script>", media_type=media_type, name=name)
        complete(at, artifact_id, upload(at, artifact_id, [b"<script>"]))
        headers = fetch(at, artifact_id).headers
        assert headers["content-type"] == told
        assert headers["content-disposition"] == "attachment; filename*=UTF-8''%C3%A9.html"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["content-security-policy"].startswith("sandbox")
        assert headers["content-length"] == "8"
        assert "x" not in headers


def test_no_text_of_a_client_is_in_a_path(at: Desk) -> None:
    artifact_id = made(at, b"data", name="../../../evil")
    complete(at, artifact_id, upload(at, artifact_id, [b"data"]))
    files = [path for path in at.server.artifacts.rglob("*") if path.is_file()]
    assert files == [at.server.artifacts / digest(b"data")[:2] / digest(b"data")]


def test_an_address_is_good_for_one_object_and_method_and_fifteen_minutes(at: Desk) -> None:
    artifact_id = made(at, b"data")
    complete(at, artifact_id, upload(at, artifact_id, [b"data"]))
    other = made(at, b"data")
    url: str = at.get(f"artifacts/{artifact_id}/download").json()["url"]
    http = at.asgi.http
    assert at.asgi.run(http.get(url)).status_code == 200
    assert at.asgi.run(http.put(url)).status_code in (404, 405)
    assert code(at.asgi.run(http.get(url.replace(artifact_id, other)))) == (403, "forbidden")
    assert code(at.asgi.run(http.get(url.partition("?")[0]))) == (403, "forbidden")
    late = url.replace("expires=1", "expires=2")
    assert code(at.asgi.run(http.get(late))) == (403, "forbidden")
    at.clock.now = START + 15 * 60
    assert at.asgi.run(http.get(url)).status_code == 200
    at.clock.now += 1
    assert code(at.asgi.run(http.get(url))) == (403, "forbidden")


def test_size_and_digest_of_a_part_are_signed_too(at: Desk) -> None:
    artifact_id = made(at, b"data")
    url = signed(at, artifact_id, 1, b"data")
    query = parse_qs(urlsplit(url).query)
    assert query["size"] == ["4"] and query["sha256"] == [digest(b"data")]
    assert code(put(at, url.replace("size=4", "size=5"), b"data!")) == (403, "forbidden")
    assert code(put(at, url.replace("/1?", "/2?"), b"data")) == (403, "forbidden")


def test_an_address_is_built_from_the_host_that_the_client_used(at: Desk) -> None:
    artifact_id = made(at, b"data")
    complete(at, artifact_id, upload(at, artifact_id, [b"data"]))
    forged = {
        "Host": "train.example:9000",
        "X-Forwarded-Host": "evil",
        "X-Forwarded-Proto": "https",
    }
    http = at.asgi.http
    answer = at.asgi.run(http.get(at.path(f"artifacts/{artifact_id}/download"), headers=forged))
    assert answer.json()["url"].startswith("http://train.example:9000/v1/objects/")
    odd = at.asgi.run(
        http.get(at.path(f"artifacts/{artifact_id}/download"), headers={"Host": "a/b"})
    )
    assert odd.status_code == 400


def asked(headers: dict[str, str], *, root_path: str = "") -> Request:
    return Request(
        {
            "type": "http",
            "method": "GET",
            "scheme": "http",
            "path": "/",
            "root_path": root_path,
            "query_string": b"",
            "server": ("10.0.0.1", 80),
            "headers": [(name.lower().encode(), text.encode()) for name, text in headers.items()],
        }
    )


def test_a_trusted_proxy_says_how_it_is_reached() -> None:
    headers = {
        "Host": "node.example:8000",
        "X-Forwarded-Proto": "https, http",
        "X-Forwarded-Host": "lab.example",
        "X-Forwarded-Prefix": "/helm/",
    }
    assert signing.origin(asked(headers), trust_proxy=True) == "https://lab.example/helm"
    assert signing.origin(asked(headers), trust_proxy=False) == "http://node.example:8000"
    local = asked({"Host": "[::1]:8000"}, root_path="/helm")
    assert signing.origin(local, trust_proxy=True) == "http://[::1]:8000/helm"
    for name, bad in (
        ("X-Forwarded-Host", "a b"),
        ("X-Forwarded-Proto", "javascript"),
        ("X-Forwarded-Prefix", "//evil"),
    ):
        with pytest.raises(ServerError):
            signing.origin(asked({**headers, name: bad}), trust_proxy=True)


@pytest.mark.parametrize(
    "change",
    [
        {"size": "0"},
        {"size": 4},
        {"sha256": "../etc"},
        {"sha256": "A" * 64},
        {"name": ""},
        {"name": "x" * 257},
        {"media_type": None},
        {"scope": {}},
    ],
)
def test_a_wrong_declaration_is_refused(at: Desk, change: dict[str, Any]) -> None:
    assert code(create(at, b"data", **change)) == (400, "validation")


@pytest.mark.parametrize(
    "change",
    [{"number": 0}, {"number": 10_001}, {"number": "1"}, {"size": "0"}, {"sha256": "x"}],
)
def test_a_wrong_part_is_refused(at: Desk, change: dict[str, Any]) -> None:
    body = {"number": 1, "size": "4", "sha256": digest(b"data"), **change}
    answer = at.post(f"artifacts/{made(at, b'data')}/parts", body)
    assert code(answer) == (400, "validation")


def test_rights_to_write_and_to_read_are_apart(at: Desk) -> None:
    artifact_id = made(at, b"data")
    complete(at, artifact_id, upload(at, artifact_id, [b"data"]))
    reader = {"Authorization": f"Bearer {at.make_key(['document.read', 'artifact.download'])}"}
    writer = {"Authorization": f"Bearer {at.make_key(['document.read', 'artifact.write'])}"}
    path = at.path(f"artifacts/{artifact_id}/download")
    assert at.asgi.run(at.asgi.http.get(path, headers=reader)).status_code == 200
    assert at.asgi.run(at.asgi.http.get(path, headers=writer)).status_code == 403
    assert at.post("artifacts", declared(at, b"data"), writer).status_code == 200
    assert at.post("artifacts", declared(at, b"data"), reader).status_code == 403


def test_lost_bytes_are_said_to_be_lost(at: Desk) -> None:
    artifact_id = made(at, b"data")
    complete(at, artifact_id, upload(at, artifact_id, [b"data"]))
    Blobs(at.server.artifacts).path(digest(b"data")).unlink()
    assert code(fetch(at, artifact_id)) == (404, "not_found")


def test_what_a_crash_left_half_received_goes_after_a_day(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    blobs.sweep(0.0)
    incoming = Incoming(blobs)
    incoming.add(b"half")
    (path,) = blobs.incoming.iterdir()
    age = path.stat().st_mtime
    blobs.sweep(age + 3600)
    assert path.exists()
    blobs.sweep(age + 25 * 3600)
    assert not path.exists()
    incoming.drop()
