"""The client of the v1 API on real sockets: what it sends, what it believes, when it gives up."""

from __future__ import annotations

import gzip
import io
import json
import logging
import shutil
import socket
import ssl
import subprocess
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from launchhelm.errors import ConfigError
from syncer.api import answers
from syncer.api.answers import ApiError
from syncer.api.client import Client
from syncer.api.wire import WireError

ORG = "11111111-1111-4111-8111-111111111111"
ID = "22222222-2222-4222-8222-222222222222"
KEY = "lh_secret_0123456789"
DOCUMENT = {"id": ID, "kind": "run", "revision": "1", "scope": {}, "spec": {}}


@dataclass
class Seen:
    """One request as it came over the socket."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Answer:
    """What the server says; bytes go out as they are."""

    body: Any = field(default_factory=dict)
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Server:
    """A server that answers by a function and keeps what it saw."""

    url: str
    seen: list[Seen]


@contextmanager
def serving(
    reply: Callable[[Seen], Answer], context: ssl.SSLContext | None = None
) -> Iterator[Server]:
    seen: list[Seen] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length)
            request = Seen(self.command, self.path, dict(self.headers.items()), body)
            seen.append(request)
            answer = reply(request)
            raw = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body)
            data = raw if isinstance(raw, bytes) else raw.encode()
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PATCH = do_PUT = do_CONNECT = handle_any

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            pass  # A client that hangs up is what some tests are about.

    server = Quiet(("127.0.0.1", 0), Handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    scheme, host = ("https", "localhost") if context else ("http", "127.0.0.1")
    try:
        yield Server(f"{scheme}://{host}:{server.server_port}", seen)
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


@contextmanager
def talking(behave: Callable[[socket.socket, threading.Event], None]) -> Iterator[str]:
    """Serve raw sockets: `behave` gets each connection, and an event that says to stop."""
    over = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))
    threads = []

    def one(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            behave(connection, over)

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threads.append(threading.Thread(target=one, args=(connection,), daemon=True))
            threads[-1].start()

    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        over.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for thread in [accepting, *threads]:
            thread.join(10)


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def failing(call: Callable[[], Any]) -> ApiError:
    with pytest.raises(ApiError) as raised:
        call()
    return raised.value


# Keys ---------------------------------------------------------------------------------------------


def test_the_key_goes_into_one_header_and_nowhere_else(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    body = {"error": {"code": f"bad {KEY}", "message": f"The key {KEY} is unknown."}}
    with serving(lambda _: Answer(body, 401)) as server, Client(server.url, ORG, KEY) as client:
        error = failing(lambda: client.get_document(ID))
        assert server.seen[0].headers["Authorization"] == f"Bearer {KEY}"
        shown = [repr(client), str(client), str(error), repr(error), error.code, error.message]
        shown += traceback.format_exception(error)
    assert error.status == 401 and error.message == "The key *** is unknown."
    assert KEY not in "".join(shown)
    assert KEY not in caplog.text


def test_an_error_of_the_network_holds_no_request_and_so_no_key() -> None:
    with talking(lambda connection, _: connection.close()) as url:
        client = Client(url, ORG, KEY)
        error = failing(lambda: client.heartbeat(ID, "1"))
        client.close()
    assert error.code == "transport" and error.retryable
    assert error.__cause__ is None and error.__context__ is None


def test_another_token_takes_the_place_of_the_key_for_one_call() -> None:
    with serving(lambda _: Answer(DOCUMENT)) as server, Client(server.url, ORG, KEY) as client:
        client.get_document(ID, token="worker")
        client.get_document(ID)
    assert [seen.headers["Authorization"] for seen in server.seen] == [
        "Bearer worker",
        f"Bearer {KEY}",
    ]


@pytest.mark.parametrize("key", ["two words", "line\nend", "schlüssel"])
def test_a_key_that_cannot_be_a_header_is_refused_without_showing_it(key: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Client("https://example.org", ORG, key)
    assert key not in str(raised.value)


def test_a_server_may_give_a_key_or_none() -> None:
    given = iter([{"token": "worker-key"}, {}, {"token": ""}, {"token": "a b"}])
    with (
        serving(lambda _: Answer(next(given))) as server,
        Client(server.url, ORG, KEY) as client,
    ):
        assert client.create_key({}) == "worker-key"
        assert client.create_key({}) == ""
        assert client.create_key({}) == ""
        assert failing(lambda: client.create_key({})).code == "invalid_response"


# What is not followed, not kept -------------------------------------------------------------------


def test_a_redirect_is_an_error_and_never_followed() -> None:
    away = Answer({}, 307, {"Location": "/elsewhere"})
    with serving(lambda _: away) as server, Client(server.url, ORG, KEY) as client:
        error = failing(lambda: client.get_document(ID))
    assert (error.code, error.status, error.retryable) == ("http_error", 307, False)
    assert len(server.seen) == 1


def test_cookies_are_not_kept() -> None:
    baked = Answer(DOCUMENT, 200, {"Set-Cookie": "session=1; Path=/"})
    with serving(lambda _: baked) as server, Client(server.url, ORG, KEY) as client:
        client.get_document(ID)
        client.get_document(ID)
    assert not any("Cookie" in seen.headers for seen in server.seen)


def test_an_address_may_have_a_prefix() -> None:
    with (
        serving(lambda _: Answer(DOCUMENT)) as server,
        Client(server.url + "/hub/", ORG, KEY) as client,
    ):
        client.get_document(ID)
    assert server.seen[0].path == f"/hub/v1/organizations/{ORG}/documents/{ID}"


@pytest.mark.parametrize("identity", ["", "a", "../keys", f"{ID}/x", f"{ID}\n", "{" + ID + "}"])
def test_an_id_that_is_no_uuid_never_becomes_a_path(identity: str) -> None:
    with Client("https://example.org", ORG, KEY) as client, pytest.raises(WireError):
        client.get_document(identity)


# Limits -------------------------------------------------------------------------------------------


def test_a_server_that_never_answers_is_given_up() -> None:
    def silent(connection: socket.socket, over: threading.Event) -> None:
        over.wait(30)

    with talking(silent) as url, Client(url, ORG, KEY, timeout_s=0.2) as client:
        started = time.monotonic()
        error = failing(lambda: client.heartbeat(ID, "1"))
    assert error.code == "transport" and error.status == 0 and error.retryable
    assert "did not answer in time" in error.message
    assert time.monotonic() - started < 10


def test_a_server_that_drips_its_answer_is_given_up() -> None:
    """Each byte comes in time; all of them together do not."""

    def dripping(connection: socket.socket, over: threading.Event) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        while not over.wait(0.02):
            connection.sendall(b" ")

    with talking(dripping) as url, Client(url, ORG, KEY, timeout_s=0.2) as client:
        started = time.monotonic()
        error = failing(lambda: client.heartbeat(ID, "1"))
    assert error.code == "transport" and error.retryable and "as a whole" in error.message
    assert time.monotonic() - started < 10


def test_a_server_that_reads_no_body_is_given_up() -> None:
    def deaf(connection: socket.socket, over: threading.Event) -> None:
        over.wait(30)

    with talking(deaf) as url, Client(url, ORG, KEY, timeout_s=0.2) as client:
        error = failing(lambda: client.ingest(b"x" * (16 << 20)))
    assert error.code == "transport" and error.retryable


def test_an_answer_that_is_cut_off_may_be_asked_for_again() -> None:
    def cut(connection: socket.socket, over: threading.Event) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")

    with talking(cut) as url, Client(url, ORG, KEY) as client:
        error = failing(lambda: client.heartbeat(ID, "1"))
    assert error.code == "transport" and error.retryable


def test_what_is_no_http_at_all_is_an_error_of_the_network() -> None:
    def strange(connection: socket.socket, over: threading.Event) -> None:
        connection.recv(65536)
        connection.sendall(b"SSH-2.0-OpenSSH\r\n" * 10)

    with talking(strange) as url, Client(url, ORG, KEY) as client:
        error = failing(lambda: client.heartbeat(ID, "1"))
    assert error.code == "transport"


def test_an_answer_of_eight_mebibytes_is_read_and_one_byte_more_is_not() -> None:
    sizes = iter([8 << 20, (8 << 20) + 1])
    head = json.dumps({**DOCUMENT, "x": ""}).encode()

    def large(_: Seen) -> Answer:
        return Answer(head[:-2] + b"x" * (next(sizes) - len(head)) + b'"}')

    with serving(large) as server, Client(server.url, ORG, KEY) as client:
        client.get_document(ID)
        error = failing(lambda: client.get_document(ID))
    assert (error.code, error.status, error.retryable) == ("response_too_large", 0, False)


def test_an_endless_answer_is_refused_while_it_is_read() -> None:
    def endless(connection: socket.socket, over: threading.Event) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while not over.is_set():
            connection.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")

    with talking(endless) as url, Client(url, ORG, KEY) as client:
        assert failing(lambda: client.heartbeat(ID, "1")).code == "response_too_large"


def test_a_small_answer_that_unpacks_to_a_large_one_is_refused() -> None:
    packed = gzip.compress(b" " * (64 << 20))
    bomb = Answer(packed, 200, {"Content-Encoding": "gzip"})
    with serving(lambda _: bomb) as server, Client(server.url, ORG, KEY) as client:
        assert failing(lambda: client.get_document(ID)).code == "response_too_large"


def test_a_packed_answer_is_unpacked() -> None:
    packed = Answer(gzip.compress(json.dumps(DOCUMENT).encode()), 200, {"Content-Encoding": "gzip"})
    with serving(lambda _: packed) as server, Client(server.url, ORG, KEY) as client:
        assert client.get_document(ID) == DOCUMENT


def test_a_claim_waits_as_long_as_it_asked_for_and_a_little_more() -> None:
    def late(connection: socket.socket, over: threading.Event) -> None:
        connection.recv(65536)
        over.wait(0.6)
        connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 16\r\n\r\n{"command":null}')

    with talking(late) as url, Client(url, ORG, KEY, timeout_s=0.2) as client:
        assert client.claim(ID, "1", 300) is None
        assert failing(lambda: client.claim(ID, "1")).code == "transport"


# Meaning ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"Retry-After": "2"}, 2.0),
        ({"Retry-After": "0"}, 0.0),
        ({"Retry-After": "-5"}, 0.0),
        ({"Retry-After": "1e999"}, None),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "soon"}, None),
        ({}, None),
        ({"Retry-After": "Thu, 01 Jan 2026 00:00:30 GMT"}, 10.0),
        (
            {
                "Retry-After": "Thu, 01 Jan 2026 00:00:30 GMT",
                "Date": "Thu, 01 Jan 2026 00:00:05 GMT",
            },
            25.0,
        ),
        ({"Retry-After": "Thu, 01 Jan 2015 00:00:00 GMT"}, 0.0),
        ({"Retry-After": "Thu, 99 Jan 2026 99:00:00 GMT"}, None),
    ],
)
def test_a_server_says_how_long_to_wait_in_seconds_or_by_a_date(
    headers: dict[str, str], expected: float | None
) -> None:
    at = 1_767_225_620.0  # 20 seconds into 2026.
    assert answers.retry_after(headers, now=at) == expected


def test_the_wait_that_a_server_asks_for_reaches_the_caller() -> None:
    busy = {"error": {"code": "rate_limited", "message": "later", "retryable": True}}
    with (
        serving(lambda _: Answer(busy, 429, {"Retry-After": "7"})) as server,
        Client(server.url, ORG, KEY) as client,
    ):
        error = failing(lambda: client.ingest(b"{}"))
    assert (error.code, error.retryable, error.retry_after_s) == ("rate_limited", True, 7.0)


def test_the_words_of_a_server_are_shown_as_one_short_plain_line() -> None:
    told = "first\nsecond\x1b[31m red\t" + "x" * 10_000
    body = {"error": {"code": "conflict", "message": told}}
    with serving(lambda _: Answer(body, 409)) as server, Client(server.url, ORG, KEY) as client:
        error = failing(lambda: client.get_document(ID))
    assert error.message.isprintable() and len(error.message) <= 500
    assert error.message.startswith("first second [31m red xxx")


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b"[1]",
        b"null",
        b'"text"',
        b"\xff\xfe",
        b'{"id": 7}',
        b"9" * 10_000,
        json.dumps({**DOCUMENT, "spec": []}).encode(),
        json.dumps({**DOCUMENT, "revision": 1}).encode(),
    ],
)
def test_an_answer_of_a_strange_shape_is_an_error_of_ours(body: bytes) -> None:
    with serving(lambda _: Answer(body)) as server, Client(server.url, ORG, KEY) as client:
        assert failing(lambda: client.get_document(ID)).code == "invalid_response"


def test_a_session_without_an_epoch_is_none() -> None:
    with serving(lambda _: Answer({})) as server, Client(server.url, ORG, KEY) as client:
        assert failing(lambda: client.connect(ID, ID)).code == "invalid_response"
        assert failing(lambda: client.heartbeat(ID, "1", step=3)).code == "invalid_response"
    assert json.loads(server.seen[1].body) == {"epoch": "1", "step": "3"}


def test_what_cannot_be_sent_is_refused_before_a_request_is_made() -> None:
    with serving(lambda _: Answer(DOCUMENT)) as server, Client(server.url, ORG, KEY) as client:
        with pytest.raises(WireError):
            client.create_document("run", client.scope(), {"x": float("nan")})
        assert not server.seen


def test_a_scope_leaves_out_what_is_empty() -> None:
    with Client("https://example.org", ORG, KEY) as client:
        assert client.scope() == {"organization_id": ORG}
        assert client.scope(ID, ID) == {"organization_id": ORG, "project_id": ID, "run_id": ID}


def test_an_unknown_organisation_is_asked_for_first() -> None:
    found = {"items": [{"id": ORG, "name": "lab"}]}
    with serving(lambda _: Answer(found)) as server, Client(server.url, "", KEY) as client:
        with pytest.raises(ConfigError, match="organisation"):
            client.get_document(ID)
        assert client.organizations() == [{"id": ORG, "name": "lab"}]


# Lists --------------------------------------------------------------------------------------------


def query(seen: Seen) -> dict[str, str]:
    pairs = seen.path.partition("?")[2].split("&")
    return {name: text for name, _, text in (pair.partition("=") for pair in pairs)}


def test_a_list_is_followed_to_its_end() -> None:
    pages = {"": ("b", 2), "b": ("c", 1), "c": ("", 1)}

    def reply(seen: Seen) -> Answer:
        cursor, count = pages[query(seen)["cursor"]]
        return Answer({"items": [DOCUMENT] * count, "next_cursor": cursor})

    with serving(reply) as server, Client(server.url, ORG, KEY) as client:
        assert len(list(client.list_documents("stream", ID, ID))) == 4
    assert [query(seen)["cursor"] for seen in server.seen] == ["", "b", "c"]


def test_a_list_that_goes_round_in_circles_ends() -> None:
    with (
        serving(lambda _: Answer({"items": [DOCUMENT], "next_cursor": "again"})) as server,
        Client(server.url, ORG, KEY) as client,
    ):
        assert len(list(client.list_documents("run"))) == 2


def test_smaller_pages_are_asked_for_where_large_ones_are_refused() -> None:
    def reply(seen: Seen) -> Answer:
        if int(query(seen)["limit"]) > 100:
            return Answer({"error": {"code": "validation", "message": "limit"}}, 400)
        return Answer({"items": None})

    with serving(reply) as server, Client(server.url, ORG, KEY) as client:
        assert not list(client.list_documents("run"))
        assert not list(client.list_documents("run"))
    assert [query(seen)["limit"] for seen in server.seen] == ["1000", "100", "100"]


def test_created_documents_come_back_one_for_each() -> None:
    counts = iter([2, 1])
    with (
        serving(lambda _: Answer({"documents": [DOCUMENT] * next(counts)})) as server,
        Client(server.url, ORG, KEY) as client,
    ):
        wanted = [{"kind": "stream", "scope": {}, "spec": {}}] * 2
        assert client.create_documents(wanted) == [DOCUMENT, DOCUMENT]
        assert failing(lambda: client.create_documents(wanted)).code == "invalid_response"


def stored(count: int, per_instant: int) -> list[dict[str, Any]]:
    return [
        {
            "observed_at": f"2026-01-01T00:00:00.{index // per_instant:06d}Z",
            "coordinates": [],
            "value": index,
            "epoch": "1",
            "sequence": str(index),
        }
        for index in range(count)
    ]


def paging(points: list[dict[str, Any]], *, skips: bool = True) -> Callable[[Seen], Answer]:
    """Answer pages as the contract has it; without `skips` the last point is not skipped."""

    def reply(seen: Seen) -> Answer:
        asked = query(seen)
        start = asked["from"].replace("%3A", ":")
        after = int(asked["after_sequence"]) if skips and "after_sequence" in asked else -1
        rest = [
            point
            for point in points
            if point["observed_at"] > start
            or (point["observed_at"] == start and int(point["sequence"]) > after)
        ]
        page = rest[: int(asked["limit"])]
        return Answer({"items": page, "complete": len(page) == len(rest)})

    return reply


@pytest.mark.parametrize("count", [0, 1, 999, 1000, 1001, 2500])
@pytest.mark.parametrize("per_instant", [1, 700, 5000])
def test_every_point_of_a_stream_is_read_once(count: int, per_instant: int) -> None:
    points = stored(count, per_instant)
    with serving(paging(points)) as server, Client(server.url, ORG, KEY) as client:
        assert list(client.all_points(ID)) == points


def test_a_server_that_repeats_points_makes_none_twice() -> None:
    points = stored(1500, 3)
    with serving(paging(points, skips=False)) as server, Client(server.url, ORG, KEY) as client:
        assert list(client.all_points(ID)) == points


def test_a_server_that_gives_the_same_page_for_ever_is_left() -> None:
    same = Answer({"items": stored(1000, 1000), "complete": False})
    with serving(lambda _: same) as server, Client(server.url, ORG, KEY) as client:
        assert len(list(client.all_points(ID))) == 1000
    assert len(server.seen) == 2


# Objects ------------------------------------------------------------------------------------------


def test_a_part_is_sent_to_its_address_without_a_key() -> None:
    with (
        serving(lambda _: Answer(b"", 200, {"ETag": '"abc"'})) as server,
        Client(server.url, ORG, KEY) as client,
    ):
        data = bytes(range(256)) * 4096
        assert client.put_part(server.url + "/o?sig=1", {"x-amz-acl": "private"}, data) == '"abc"'
    (seen,) = server.seen
    assert seen.body == data and seen.headers["x-amz-acl"] == "private"
    assert "Authorization" not in seen.headers
    assert "X-LaunchHelm-Protocol" not in seen.headers
    assert "Transfer-Encoding" not in seen.headers


@pytest.mark.parametrize("answer", [Answer(b"", 200), Answer(b"", 403, {"ETag": "x"})])
def test_a_part_that_is_not_taken_may_be_sent_again(answer: Answer) -> None:
    with serving(lambda _: answer) as server, Client(server.url, ORG, KEY) as client:
        error = failing(lambda: client.put_part(server.url, {}, b"x"))
    assert error.code == "upload_failed" and error.retryable


def test_a_part_whose_fate_is_unknown_may_be_sent_again() -> None:
    with (
        talking(lambda connection, _: connection.close()) as url,
        Client(url, ORG, KEY) as client,
    ):
        error = failing(lambda: client.put_part(url, {}, b"x" * 1000))
    assert error.code == "upload_uncertain" and error.retryable


def test_headers_of_a_server_cannot_split_a_request() -> None:
    with (
        serving(lambda _: Answer(b"", 200, {"ETag": "x"})) as server,
        Client(server.url, ORG, KEY) as client,
    ):
        error = failing(lambda: client.put_part(server.url, {"a": "b\r\nc: d"}, b"x"))
    assert error.code == "upload_uncertain" and not server.seen


def test_an_object_is_read_into_a_file_up_to_a_limit() -> None:
    with serving(lambda _: Answer(b"x" * 100)) as server, Client(server.url, ORG, KEY) as client:
        into = io.BytesIO()
        assert client.download(server.url, into) == 100
        assert into.getvalue() == b"x" * 100
        error = failing(lambda: client.download(server.url, io.BytesIO(), max_bytes=99))
        assert error.code == "response_too_large"
    assert "Authorization" not in server.seen[0].headers


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org/x",
        "http://127.0.0.1\\@example.org/x",
        "https://example.org:1@example.org/x",
        "https://example.org:0/x",
        "https://example.org /x",
        "file:///etc/passwd",
        "",
    ],
)
def test_nothing_goes_to_an_address_that_is_not_safe(url: str) -> None:
    with Client("https://example.org", ORG, KEY) as client:
        assert failing(lambda: client.put_part(url, {}, b"x")).code == "insecure_upload"
        assert failing(lambda: client.download(url, io.BytesIO())).code == "insecure_download"


def test_an_address_for_a_part_is_checked_for_its_shape() -> None:
    bodies = iter([{"url": 7}, {"url": "u", "headers": {"a": 1}}, {"url": "u"}])
    with (
        serving(lambda _: Answer(next(bodies))) as server,
        Client(server.url, ORG, KEY) as client,
    ):
        assert failing(lambda: client.artifact_part(ID, 1, 5, "0")).code == "invalid_response"
        assert failing(lambda: client.artifact_part(ID, 1, 5, "0")).code == "invalid_response"
        assert client.artifact_part(ID, 1, 5, "0") == {"url": "u", "headers": {}}


# Proxies and authorities --------------------------------------------------------------------------


def test_a_proxy_of_the_environment_is_used_and_named_when_it_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = Answer(b"no", 503)
    with serving(lambda _: refused) as proxy:
        address = proxy.url.replace("//", "//user:word@")
        monkeypatch.setenv("HTTPS_PROXY", address)
        with Client("https://server.example.org", ORG, KEY) as client:
            error = failing(lambda: client.get_document(ID))
        assert proxy.seen[0].method == "CONNECT"
        assert proxy.seen[0].path == "server.example.org:443"
    assert error.code == "transport" and error.retryable
    assert "server.example.org" in error.message and proxy.url[7:] in error.message
    assert "word" not in error.message
    assert KEY not in str(proxy.seen)


def test_what_goes_to_this_host_never_passes_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key would go to the proxy in plain text."""
    with serving(lambda _: Answer(DOCUMENT)) as proxy, serving(lambda _: Answer(DOCUMENT)) as here:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        for url in (here.url, here.url.replace("127.0.0.1", "localhost")):
            with Client(url, ORG, KEY) as client:
                client.get_document(ID)
    assert len(here.seen) == 2 and not proxy.seen


def test_a_proxy_that_makes_no_sense_is_an_error_of_the_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "gopher://proxy.example.org")
    with pytest.raises(ConfigError, match="HTTPS_PROXY"):
        Client("https://server.example.org", ORG, KEY)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a certificate for localhost, and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    command = f"{openssl} req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    command += " -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run([*command.split(), *files], check=True, capture_output=True, timeout=60)
    return folder


@pytest.fixture
def secure(certificate: Path) -> Iterator[Server]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    with serving(lambda _: Answer(DOCUMENT), context) as server:
        yield server


def test_a_server_of_an_unknown_authority_is_not_believed(secure: Server) -> None:
    with Client(secure.url, ORG, KEY) as client:
        error = failing(lambda: client.get_document(ID))
    assert error.code == "transport" and error.retryable
    assert "\n" not in error.message
    assert error.message.startswith(f"TLS with {secure.url[8:]} failed: self")
    assert "proxy: none" in error.message and "CA file: the system's" in error.message
    assert not secure.seen


def test_the_authority_of_a_bundle_is_believed(secure: Server, certificate: Path) -> None:
    bundle = str(certificate / "cert.pem")
    with Client(secure.url, ORG, KEY, ca_bundle=bundle) as client:
        assert client.get_document(ID) == DOCUMENT
    with Client(secure.url.replace("localhost", "127.0.0.1"), ORG, KEY, ca_bundle=bundle) as client:
        error = failing(lambda: client.get_document(ID))
    assert "TLS" in error.message and bundle in error.message


def test_any_server_is_believed_only_when_that_is_asked_for(secure: Server) -> None:
    with Client(secure.url, ORG, KEY, verify=False) as client:
        assert client.get_document(ID) == DOCUMENT


def test_a_bundle_that_cannot_be_read_is_an_error_of_the_settings(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("nothing")
    for bundle in (empty, tmp_path / "missing.pem", tmp_path):
        with pytest.raises(ConfigError, match="CA bundle"):
            Client("https://example.org", ORG, KEY, ca_bundle=str(bundle))
