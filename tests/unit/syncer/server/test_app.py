"""Every answer is JSON, limits are told and not felt as a cut, the bell loses no ring."""

from __future__ import annotations

import asyncio
import http.client
import logging
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launchhelm.errors import StorageError
from syncer.server import documents
from syncer.server.database import MIGRATIONS, Database
from syncer.server.errors import ServerError
from syncer.server.rate import Rates
from syncer.server.state import Limits, Wake
from tests.support.v1_server import HandClock, V1Server, v1_server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[V1Server]:
    with v1_server(tmp_path, limits=Limits(body_bytes=1_048_700)) as running:
        yield running


def raw(server: V1Server, data: bytes, method: str = "POST", path: str = "documents") -> Any:
    """Send bytes as they are; return status and JSON."""
    url = f"{server.url}/v1/organizations/{server.organization}/{path}"
    headers = {"Authorization": f"Bearer {server.key}", "Content-Type": "application/json"}
    answer = server.http.request(method, url, content=data, headers=headers)
    assert answer.headers["content-type"] == "application/json"
    return answer.status_code, answer.json()


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/", 404, "not_found"),
        ("GET", "/v2/organizations", 404, "not_found"),
        ("GET", "/v1/organizations/", 404, "not_found"),
        ("POST", "/v1/me", 405, "method_not_allowed"),
        ("DELETE", "documents", 405, "method_not_allowed"),
        ("POST", "exports", 404, "not_found"),
        ("GET", "/v1/public/documents", 404, "not_found"),
    ],
)
def test_what_is_not_served_is_said_in_json(
    server: V1Server, method: str, path: str, status: int, code: str
) -> None:
    answer = server.call(method, path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert (error["code"], error["retryable"]) == (code, False)
    assert isinstance(error["message"], str)
    assert (status == 405) == ("allow" in answer.headers)


@pytest.mark.parametrize(
    "data",
    [
        b"x",
        b"[]",
        b"null",
        b"\xff",
        b"\xef\xbb\xbf{}",
        b'{"a": NaN}',
        b'{"a": -Infinity}',
        b'{"a": 1e999}',
        b'{"a": 1, "a": 2}',
        b'{"a": "\\ud800"}',
        b'{"a": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"a": ' + b"9" * 5000 + b"}",
    ],
    ids=lambda data: data[:16].decode("latin-1"),
)
def test_a_body_that_is_no_strict_json_object_is_refused(server: V1Server, data: bytes) -> None:
    status, answer = raw(server, data)
    assert (status, answer["error"]["code"]) == (400, "validation")


def test_an_empty_body_is_an_empty_object(server: V1Server) -> None:
    status, answer = raw(server, b"")
    assert (status, answer["error"]["message"]) == (400, "kind must be a word.")


def test_a_body_over_the_limit_is_told_so_and_the_connection_lives_on(server: V1Server) -> None:
    for size in (1_048_701, 8_000_000):
        status, answer = raw(server, b" " * size)
        assert (status, answer["error"]["code"]) == (413, "too_large")
        assert answer["error"]["retryable"] is False
    assert server.get("/v1/me")["organization_id"] == server.organization
    assert raw(server, b" " * 1_048_698 + b"{}")[0] == 400


def test_a_body_without_a_length_is_limited_too(server: V1Server) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(20):
            yield b" " * 100_000

    url = f"{server.url}/v1/organizations/{server.organization}/documents"
    headers = {"Authorization": f"Bearer {server.key}"}
    assert server.http.post(url, content=chunks(), headers=headers).status_code == 413


def test_a_request_that_ends_early_changes_nothing(server: V1Server) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    connection.putrequest("POST", f"/v1/organizations/{server.organization}/documents")
    connection.putheader("Authorization", f"Bearer {server.key}")
    connection.putheader("Content-Length", "1000")
    connection.endheaders(b'{"kind": "run"')
    connection.close()
    assert server.get("documents")["items"] == [server.get(f"documents/{server.project}")]


def test_our_own_failure_is_a_500_that_tells_nothing_but_the_log_does(
    server: V1Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*arguments: object) -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(documents, "find", broken)
    with caplog.at_level(logging.ERROR):
        answer = server.call("GET", f"documents/{server.project}")
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal"
    assert "secret" not in answer.text
    assert "ZeroDivisionError" in caplog.text
    assert server.key not in caplog.text


def test_a_database_that_refuses_is_unavailable_and_asked_again(
    server: V1Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(documents, "find", full)
    answer = server.call("GET", f"documents/{server.project}")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    assert answer.json()["error"] == {
        "code": "unavailable",
        "message": "The database did not accept it: database or disk is full.",
        "retryable": True,
    }


def test_too_many_requests_of_a_key_are_told_to_wait(tmp_path: Path) -> None:
    clock = HandClock()
    limits = Limits(requests_per_s=2, burst=3)
    with v1_server(tmp_path, clock=clock, limits=limits) as server:
        assert [server.call("GET", "/v1/me").status_code for _ in range(4)] == [200] * 3 + [429]
        answer = server.call("GET", "/v1/me")
        assert answer.headers["Retry-After"] == "1"
        error = answer.json()["error"]
        assert (error["code"], error["retryable"]) == ("rate_limited", True)
        other = server.call("GET", "/v1/me", key=server.project_key)
        assert other.status_code == 200
        clock.now += 0.5
        assert [server.call("GET", "/v1/me").status_code for _ in range(2)] == [200, 429]


def test_a_bucket_says_how_long_and_forgets_keys_that_rest() -> None:
    clock = HandClock()
    rates = Rates(0.1, 1, clock)
    rates.take("a")
    with pytest.raises(ServerError) as refused:
        rates.take("a")
    assert refused.value.retry_after_s == 10
    for number in range(10_001):
        rates.take(f"k{number}")
    rates.take("a")
    unlimited = Rates(0.0, 1, clock)
    for _ in range(1000):
        unlimited.take("a")


def test_many_clients_at_once_write_without_losing_anything(server: V1Server) -> None:
    def work(number: int) -> None:
        for index in range(5):
            server.document("note", server.scope, name=f"{number}.{index}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    names = {each["spec"]["name"] for each in server.get("documents", kind="note")["items"]}
    assert names == {f"{number}.{index}" for number in range(8) for index in range(5)}


def test_a_ring_between_looking_and_waiting_is_not_missed() -> None:
    wake = Wake()

    async def scene() -> list[bool]:
        seen = wake.count("p")
        wake.notify("p")
        missed = await wake.wait("p", 30, seen=seen)
        silent = await wake.wait("p", 0.01, seen=wake.count("p"))
        thread = threading.Timer(0.05, wake.notify, ("p",))
        thread.start()
        rung = await wake.wait("p", 30)
        thread.join()
        wake_other = asyncio.create_task(wake.wait("q", 30))
        await asyncio.sleep(0)
        wake.notify("p")
        wake.close()
        ended = await wake_other
        after = await wake.wait("q", 30)
        return [missed, silent, rung, ended, after]

    assert asyncio.run(scene()) == [True, False, True, False, False]
    assert wake.closed


def test_a_write_that_fails_leaves_nothing_and_the_next_one_works(tmp_path: Path) -> None:
    database = Database(tmp_path / "d.sqlite3")
    with pytest.raises(ZeroDivisionError), database.write() as connection:
        connection.execute("INSERT INTO organizations VALUES ('a', 'a', 1)")
        raise ZeroDivisionError
    with database.write() as connection:
        connection.execute("INSERT INTO organizations VALUES ('b', 'b', 1)")
    with database.read() as connection:
        assert [row["id"] for row in connection.execute("SELECT id FROM organizations")] == ["b"]
    database.close()


def test_a_transaction_that_need_not_be_durable_leaves_the_next_one_durable(tmp_path: Path) -> None:
    database = Database(tmp_path / "d.sqlite3")

    def synchronous(connection: sqlite3.Connection) -> int:
        return int(connection.execute("PRAGMA synchronous").fetchone()[0])

    normal, full = 1, 2
    with pytest.raises(ZeroDivisionError), database.write(durable=False) as connection:
        assert synchronous(connection) == normal
        raise ZeroDivisionError
    with database.write() as connection:
        assert synchronous(connection) == full
    database.close()


def test_a_reader_sees_one_moment_and_cannot_write(tmp_path: Path) -> None:
    database = Database(tmp_path / "d.sqlite3")
    count = "SELECT count(*) FROM organizations"
    with database.read() as reader:
        assert reader.execute(count).fetchone()[0] == 0
        with database.write() as connection:
            connection.execute("INSERT INTO organizations VALUES ('a', 'a', 1)")
        assert reader.execute(count).fetchone()[0] == 0
        with pytest.raises(sqlite3.OperationalError):
            reader.execute("DELETE FROM organizations")
    with database.read() as reader:
        assert reader.execute(count).fetchone()[0] == 1
    database.close()


def test_a_database_is_durable_before_it_answers(tmp_path: Path) -> None:
    database = Database(tmp_path / "d.sqlite3")
    with database.write() as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
        assert connection.execute("PRAGMA synchronous").fetchone()[0] == 2
    database.close()


def test_an_older_database_is_migrated_and_a_newer_one_refused(tmp_path: Path) -> None:
    path = tmp_path / "d.sqlite3"
    older = sqlite3.connect(path)
    older.executescript(f"{MIGRATIONS[0]}; PRAGMA user_version = 1")
    older.close()
    Database(path).close()
    again = sqlite3.connect(path)
    assert again.execute("PRAGMA user_version").fetchone()[0] == len(MIGRATIONS)
    again.execute("PRAGMA user_version = 99")
    again.close()
    with pytest.raises(StorageError, match="has format 99"):
        Database(path)
    path.write_bytes(b"no database at all, and longer than a header" * 100)
    with pytest.raises(StorageError, match="cannot be opened"):
        Database(path)


def test_a_migration_that_fails_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "d.sqlite3"
    Database(path).close()
    broken = (*MIGRATIONS, "CREATE TABLE extra (x); CREATE TABLE organizations (x);")
    monkeypatch.setattr("syncer.server.database.MIGRATIONS", broken)
    with pytest.raises(StorageError):
        Database(path)
    look = sqlite3.connect(path)
    assert look.execute("PRAGMA user_version").fetchone()[0] == len(MIGRATIONS)
    assert not look.execute("SELECT 1 FROM sqlite_master WHERE name = 'extra'").fetchall()
    look.close()
