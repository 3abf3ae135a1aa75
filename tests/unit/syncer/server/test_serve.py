"""The serving process: where it listens, how it stops, its keys and its backup."""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from launchhelm.cli import main
from launchhelm.errors import ConfigError, Conflict
from syncer.server import data, serve
from syncer.server.serve import LOOPBACK, Address, Service
from tests.support.v1_server import V1Server, kill, start, stop, v1_process, v1_server


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """Return the JSON documents printed since the last look."""
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "127.0.0.2", "192.168.1.5", "node1"])
def test_plain_http_is_for_loopback_only(host: str) -> None:
    with pytest.raises(ConfigError, match="plain text"):
        Address(host=host).check()
    Address(host=host, insecure=True).check()
    Address(host=host, certificate="c", private_key="k").check()
    for loopback in LOOPBACK:
        Address(host=loopback).check()
    with pytest.raises(ConfigError, match="together"):
        Address(certificate="c").check()


def test_a_taken_port_and_a_missing_certificate_are_said_plainly(tmp_path: Path) -> None:
    with v1_server(tmp_path / "a") as running:
        state = data.open_server(tmp_path / "b")
        port = httpx.URL(running.url).port or 0
        with pytest.raises(ConfigError, match="Address already in use"):
            Service(state, Address(port=port)).serve_until_stopped()
        missing = str(tmp_path / "none.pem")
        with pytest.raises(ConfigError, match="No such file"):
            Service(
                state, Address(port=0, certificate=missing, private_key=missing)
            ).serve_until_stopped()
        state.database.close()


def test_answers_do_not_wait_for_acknowledgements() -> None:
    """asyncio turns Nagle's algorithm off for sockets that say TCP, which a plain one does not."""
    listener = serve._listen(Address(port=0))
    with listener:
        assert listener.proto == socket.IPPROTO_TCP


def test_a_directory_is_served_by_one_process(tmp_path: Path) -> None:
    with v1_server(tmp_path) as running:
        state = data.open_server(running.data)
        with pytest.raises(Conflict, match="Another process serves"):
            Service(state, Address(port=0)).serve_until_stopped()
        state.database.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_parked_claims_and_the_process_with_0(
    tmp_path: Path, number: signal.Signals
) -> None:
    with v1_process(tmp_path) as server:
        rank = server.participant(server.run())["id"]
        body = {"instance_id": "cccccccc-cccc-4ccc-8ccc-cccccccccccc", "safe_points": ["lht"]}
        server.post(f"participants/{rank}/sessions", body)
        claims = [claim(server, rank) for _ in range(3)]
        # The connection of this one comes after theirs: once it is answered they were taken.
        assert httpx.get(f"{server.url}/v1/me").status_code == 401
        assert stop(server, number) == 0
        for each in claims:
            answer = each.getresponse()
            assert (answer.status, json.load(answer).get("command")) == (200, None)
            each.close()


def claim(server: V1Server, rank: str) -> http.client.HTTPConnection:
    """Send a claim that waits long, and do not read its answer yet."""
    url = httpx.URL(server.url)
    connection = http.client.HTTPConnection(url.host, url.port or 0, timeout=20)
    path = f"/v1/organizations/{server.organization}/participants/{rank}/commands"
    body = json.dumps({"epoch": "1", "wait_ms": 19_000})
    connection.request("POST", path, body, {"Authorization": f"Bearer {server.key}"})
    return connection


def test_what_was_answered_survives_a_kill(tmp_path: Path) -> None:
    with v1_process(tmp_path) as server:
        run = server.run()
        kill(server)
        start(server)
        assert server.get(f"documents/{run['id']}") == run


def test_it_serves_tls_where_it_is_asked_to(tmp_path: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs openssl to make a certificate")
    wanted = "req -x509 -nodes -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -days 2 -subj /CN=t"
    files = "-keyout key.pem -out cert.pem -addext subjectAltName=IP:127.0.0.1"
    subprocess.run(
        [openssl, *wanted.split(), *files.split()],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    options = ("--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem"))
    with v1_process(tmp_path, "--host", "0.0.0.0", *options) as server:
        assert httpx.URL(server.url).scheme == "https"
        url = server.url.replace("0.0.0.0", "127.0.0.1")
        headers = {"Authorization": f"Bearer {server.key}"}
        context = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
        answer = httpx.get(f"{url}/v1/me", headers=headers, verify=context)
        assert answer.json()["organization_id"] == server.organization


def test_the_first_start_makes_what_is_missing_and_says_so(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "launchhelm", "serve", "--port", "0", "--data", "here"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(__file__).parents[4])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stderr is not None
    with process:
        first = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        said = process.stderr.read()
    assert process.returncode == 0
    assert first.startswith("Serving http://127.0.0.1:") and first.endswith(" from here\n")
    assert "here is new" in said and "LAUNCHHELM_API_KEY=lhk_" in said


def test_a_new_directory_is_not_opened_to_a_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["serve", "--data", str(tmp_path / "new"), "--host", "0.0.0.0", "--insecure-http"]
    assert main(words) == 1
    assert "launchhelm serve init" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_start_that_comes_to_nothing_makes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = ["serve", "--data", str(tmp_path / "new")]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main([*at, "--port", str(taken.getsockname()[1])]) == 1
    said = capsys.readouterr().err
    assert "Address already in use" in said and "LAUNCHHELM_API_KEY" not in said

    missing = str(tmp_path / "none.pem")
    assert main([*at, "--port", "0", "--tls-cert", missing, "--tls-key", missing]) == 1
    assert f"--tls-cert {missing}: No such file" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_init_shows_a_key_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at = ("--data", str(tmp_path / "d"), "--json")
    assert main(["serve", "init", "--organization", "lab", "--project", "p", *at]) == 0
    (made,) = lines(capsys)
    assert made["organization"] == "lab" and made["token"].startswith("lhk_")
    assert main(["serve", "init", "--organization", "lab", "--project", "p", *at]) == 0
    (again,) = lines(capsys)
    assert again == {**made, "token": ""}
    assert main(["serve", "init", "--organization", "lab", "--project", "q", *at]) == 0
    (more,) = lines(capsys)
    assert more["organization_id"] == made["organization_id"]
    assert more["project_id"] != made["project_id"] and more["token"]


def test_keys_are_listed_made_rotated_and_revoked_while_serving(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with v1_server(tmp_path) as server:
        at = ("--data", str(server.data), "--json")
        assert main(["serve", "keys", "create", "--name", "ci", "--project", "p2", *at]) == 0
        (made,) = lines(capsys)
        assert server.call("GET", "/v1/me", key=made["token"]).json()["project_id"]
        assert main(["serve", "keys", "list", *at]) == 0
        listed = {row["name"]: row for row in lines(capsys)}
        assert listed["ci"]["rights"] == "all in project p2"
        assert listed["ci"]["state"] == "valid"
        assert made["token"] not in json.dumps(listed)
        assert main(["serve", "keys", "rotate", made["id"][:8], *at]) == 0
        (rotated,) = lines(capsys)
        assert server.call("GET", "/v1/me", key=made["token"]).status_code == 401
        assert server.call("GET", "/v1/me", key=rotated["token"]).status_code == 200
        assert main(["serve", "keys", "revoke", made["id"], *at]) == 0
        assert lines(capsys) == [{"id": made["id"], "ended": 1}]
        assert server.call("GET", "/v1/me", key=rotated["token"]).status_code == 401
        assert main(["serve", "keys", "rotate", made["id"], *at]) == 4
        assert main(["serve", "keys", "revoke", "nothing", *at]) == 4
        assert main(["serve", "keys", "list", *at]) == 0
        assert "ci" not in {row["name"] for row in lines(capsys)}
        assert main(["serve", "keys", "list", "--all", *at]) == 0
        assert {row["name"]: row["state"] for row in lines(capsys)}["ci"] == "revoked"


def test_a_key_made_for_reading_only_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with v1_server(tmp_path) as server:
        words = ["serve", "keys", "create", "--read-only", "--data", str(server.data), "--json"]
        assert main(words) == 0
        key = lines(capsys)[0]["token"]
        assert server.call("GET", "documents", key=key).status_code == 200
        body = {"kind": "run", "scope": server.scope, "spec": {}}
        assert server.call("POST", "documents", body, key=key).status_code == 403


def test_a_table_of_keys_is_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at = ("--data", str(tmp_path / "d"))
    assert main(["serve", "init", *at]) == 0
    assert "LAUNCHHELM_API_KEY=lhk_" in capsys.readouterr().out
    assert main(["serve", "keys", "list", *at]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == ["KEY", "NAME", "RIGHTS", "CREATED", "ENDS", "STATE"]
    assert "all in every project" in row and row.endswith("valid")


@pytest.mark.parametrize(
    "words",
    [
        ["nothing"],
        ["init", "x"],
        ["keys"],
        ["keys", "list", "x"],
        ["keys", "revoke"],
        ["backup"],
        ["--max-body", "1000"],
        ["--rate", "-1"],
    ],
)
def test_a_wrong_word_is_a_usage_error(words: list[str], tmp_path: Path) -> None:
    assert main(["serve", "--data", str(tmp_path / "d"), *words]) == 2
    assert not (tmp_path / "d").exists()


def test_what_needs_a_directory_says_that_there_is_none(tmp_path: Path) -> None:
    for words in (["keys", "list"], ["backup", str(tmp_path / "b")]):
        assert main(["serve", *words, "--data", str(tmp_path / "none")]) == 4
    assert not (tmp_path / "none").exists()


def test_a_backup_taken_while_serving_is_a_server_as_of_one_moment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "copy" / "server"
    with v1_server(tmp_path) as server:
        assert server.state is not None
        generation = server.state.generation
        run = server.run()
        (server.state.artifacts / "ab").mkdir()
        (server.state.artifacts / "ab" / "abcd").write_bytes(b"bytes")
        stopping = threading.Event()
        writer = threading.Thread(target=_keep_writing, args=(server, stopping))
        writer.start()
        try:
            words = ["serve", "backup", str(target), "--data", str(server.data), "--json"]
            assert main(words) == 0
        finally:
            stopping.set()
            writer.join()
        assert lines(capsys) == [{"backup": str(target), "files": 1}]
        assert main(words) == 4
    assert sorted(each.name for each in target.parent.iterdir()) == ["server"]
    copy = sqlite3.connect(target / data.DATABASE)
    assert copy.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    copy.close()
    assert (target / "artifacts" / "ab" / "abcd").read_bytes() == b"bytes"
    shutil.rmtree(server.data)
    target.rename(server.data)
    with v1_server(tmp_path) as restored:
        assert restored.get(f"documents/{run['id']}") == run
        assert restored.state is not None
        # Who was told by the original that all of a run is there must ask the copy again.
        assert restored.state.generation not in ("", generation)


def _keep_writing(server: V1Server, stopping: threading.Event) -> None:
    with httpx.Client() as http:
        while not stopping.is_set():
            body = {"kind": "note", "scope": server.scope, "spec": {}}
            url = f"{server.url}/v1/organizations/{server.organization}/documents"
            http.post(url, json=body, headers={"Authorization": f"Bearer {server.key}"})
