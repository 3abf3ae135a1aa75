"""Who may not ask the dashboard, and what it never does for anybody."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
import threading
from pathlib import Path

import pytest

from launchhelm.errors import ConfigError
from launchhelm.store import media
from launchhelm.ui.request import MAX_BODY_BYTES
from launchhelm.ui.serve import MAX_SOCKET_PATH, Service
from tests.support.cli_runs import MadeRun, commands_in
from tests.support.dashboard import TOKEN, Dashboard, raw, serving
from tests.support.reading import RunBuilder, as_nobody, tree

ROUTES = ("info", "runs", "sync", "changes", "stream")
OF_A_RUN = (
    *("", "/metrics", "/series", "/processes", "/skew", "/commands", "/controls"),
    *("/console", "/media", "/files"),
)
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@pytest.fixture
def run(tmp_path: Path) -> MadeRun:
    root = tmp_path / "runs"
    root.mkdir()
    return MadeRun(root).train()


@pytest.fixture
def ui(run: MadeRun) -> Dashboard:
    return Dashboard(run.path.parent)


def addresses(run: MadeRun) -> list[str]:
    return [*ROUTES, *(f"runs/{run.run_id}{tail}" for tail in OF_A_RUN), f"blobs/{'a' * 64}"]


# --- who asks -------------------------------------------------------------------------------------


def test_no_token_no_data(run: MadeRun, ui: Dashboard) -> None:
    for address in addresses(run):
        answer = ui.ask("GET", f"/api/1/{address}", Authorization=None)
        assert answer.status == 401, address
        assert run.run_id.encode() not in answer.data and b"ddp-run" not in answer.data
    for given in ("Bearer", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x"):
        assert ui.ask("GET", "/api/1/info", Authorization=given).status == 401, given
    answer = ui.ask("POST", f"/api/1/runs/{run.run_id}/commands", b"{}", Authorization=None)
    assert answer.status == 401


def test_after_ten_wrong_tokens_no_more_are_compared_and_the_right_one_still_counts(
    ui: Dashboard,
) -> None:
    answers = [ui.ask("GET", "/api/1/info", Authorization=f"Bearer {n}").status for n in range(12)]
    assert answers == [401] * 10 + [429] * 2
    assert ui.ask("GET", "/api/1/info").status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.2", "10.0.0.1:80", "", "[::2]:80"]
)
def test_a_foreign_host_is_refused_everywhere(run: MadeRun, ui: Dashboard, host: str) -> None:
    for path in ("/", "/api/1/info", f"/run/{run.run_id}", "/static/x"):
        assert ui.ask("GET", path, Host=host).status == 421, path


def test_a_host_by_any_port_or_of_a_given_name_is_accepted(run: MadeRun) -> None:
    ui = Dashboard(run.path.parent, hosts=["portal.example"])
    for host in ("localhost", "LOCALHOST:7843", "127.0.0.1:1", "[::1]:9", "portal.example"):
        assert ui.ask("GET", "/api/1/info", Host=host).status == 200, host


def test_a_foreign_origin_is_refused(run: MadeRun, ui: Dashboard) -> None:
    foreign = ("http://evil.example", "null", "http://localhost:9", "https://localhost:1234.evil")
    for origin in foreign:
        for method, path in (("GET", "info"), ("POST", f"runs/{run.run_id}/commands")):
            answer = ui.ask(method, f"/api/1/{path}", b"{}", Origin=origin)
            assert (answer.status, answer.code) == (403, "foreign_origin"), origin
    for site in ("cross-site", "same-site"):
        assert ui.ask("GET", "/api/1/info", Sec_Fetch_Site=site).status == 403
    own = ui.ask("GET", "/api/1/info", Origin="http://localhost:1234", Sec_Fetch_Site="same-origin")
    assert own.status == 200


def test_a_form_of_another_page_cannot_command(run: MadeRun, ui: Dashboard) -> None:
    body = b'{"name": "lr", "input": {"scale": 0.5}, "id": "12345678"}'
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None):
        answer = ui.ask("POST", f"/api/1/runs/{run.run_id}/commands", body, Content_Type=kind)
        assert answer.status == 415, kind
    assert commands_in(run.path) == []


def test_every_answer_carries_the_policy_and_asks_for_no_cookie(
    run: MadeRun, ui: Dashboard
) -> None:
    answers = [ui.ask("GET", path) for path in ("/", "/nothing", "/api/1/info", "/api/1/x")]
    answers.append(ui.ask("GET", "/api/1/info", Authorization=None))
    for answer in answers:
        policy = answer.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self';"), policy
        assert "frame-ancestors 'none'" in policy and "unsafe" not in policy
        assert HEADERS.items() <= answer.headers.items()
        assert not any(name.lower().startswith("access-control") for name in answer.headers)
        assert "Set-Cookie" not in answer.headers


# --- paths ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/static/../../../../etc/passwd",
        "/static//etc/passwd",
        "/static/..\\..\\secret",
        "/api/1/blobs/../../../secret",
        "/api/1/blobs/..",
        "/api/1/runs/../../secret",
        "/api/1/runs/../secret/files",
        "/../secret",
        "/secret",
        "/api/1/runs/\0",
    ],
)
def test_no_path_from_a_client_is_opened(tmp_path: Path, ui: Dashboard, path: str) -> None:
    (tmp_path / "secret").write_text("top secret")
    answer = ui.ask("GET", path)
    assert answer.status == 404, (path, answer.data)
    assert b"top secret" not in answer.data and b"root:" not in answer.data


def test_a_link_out_of_the_run_is_not_followed(tmp_path: Path, run: MadeRun, ui: Dashboard) -> None:
    secret = tmp_path / "secret"
    secret.write_text("top secret")
    (run.path / "media").mkdir()
    (run.path / "media" / ("a" * 64)).symlink_to(secret)
    other = tmp_path / "elsewhere"
    RunBuilder(other).writer(0).flush()
    (run.path.parent / "link").symlink_to(next(other.iterdir()))
    assert ui.ask("GET", f"/api/1/blobs/{'a' * 64}").status == 404
    assert [each["id"] for each in ui.get("runs")["runs"]] == [run.run_id]
    assert str(secret) not in str(ui.get(f"runs/{run.run_id}/files"))


def test_an_artifact_cannot_run_script(run: MadeRun, ui: Dashboard) -> None:
    """What is shown is what the bytes are; a page, a script or a picture with scripts is none."""
    png = b"\x89PNG\r\n\x1a\n" + b"0" * 20
    stored = media.put(run.path, [png])
    shown = ui.ask("GET", f"/api/1/blobs/{stored.sha256}")
    assert shown.headers["Content-Type"] == "image/png" and shown.data == png
    for data in (b"<html><script>alert(1)</script>", b"<svg onload=alert(1)>", b"GIF89"):
        stored = media.put(run.path, [data])
        answer = ui.ask("GET", f"/api/1/blobs/{stored.sha256}")
        assert answer.headers["Content-Type"] == "application/octet-stream"
        assert answer.headers["Content-Disposition"].startswith("attachment")
        assert answer.headers["Content-Security-Policy"] == "sandbox"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_a_run_named_like_a_script_is_text(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    root.mkdir()
    name = "<script>alert(1)</script>\u202eexe\x1b[2J"
    run = MadeRun(root, name).train()
    answer = Dashboard(root).ask("GET", "/api/1/runs")
    assert answer.headers["Content-Type"] == "application/json"
    said = answer.document["runs"][0]["name"]
    assert said == "<script>alert(1)</script>\\u202eexe\\x1b[2J" and run.run_id


# --- the wire -------------------------------------------------------------------------------------


def request(head: str, body: bytes = b"") -> bytes:
    lines = [head, "Host: localhost", f"Authorization: Bearer {TOKEN}", "Connection: close"]
    return "\r\n".join(lines).encode() + b"\r\n" + body


def test_what_is_ambiguous_or_too_large_is_refused(tmp_path: Path, run: MadeRun) -> None:
    with serving(run.path.parent, tmp_path / "private") as service:
        assert service.port is not None
        get = "GET /api/1/info HTTP/1.1"
        cases = {
            request(get, b"\r\n"): 200,
            request("PUT /api/1/info HTTP/1.1", b"\r\n"): 405,
            request(f"GET /{'x' * 9000} HTTP/1.1", b"\r\n"): 414,
            request(get, b"X: " + b"y" * 40_000 + b"\r\n\r\n"): 431,
            request(get, b"Host: evil.example\r\n\r\n"): 400,
            request(get, b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"): 400,
            request(get, b"Content-Length: -1\r\n\r\n"): 400,
            request(get, b"Content-Length: 0\r\nContent-Length: 5\r\n\r\n"): 400,
            request(get, b"Broken header\r\n\r\n"): 400,
            request("GET http://evil.example/ HTTP/1.1", b"\r\n"): 400,
            b"nonsense\r\n\r\n": 400,
            b"GET / HTTP/1.1\r\n\r\n": 400,
        }
        for data, status in cases.items():
            answer = raw(service.port, data)
            assert answer.split(b" ", 2)[1:2] == [str(status).encode()], (data[:80], answer[:80])


def test_a_form_of_ten_megabytes_is_refused_and_costs_no_memory(
    tmp_path: Path, run: MadeRun
) -> None:
    with serving(run.path.parent, tmp_path / "private") as service:
        assert service.port is not None
        size = 10 << 20
        head = request(
            f"POST /api/1/runs/{run.run_id}/commands HTTP/1.1",
            f"Content-Type: application/json\r\nContent-Length: {size}\r\n\r\n".encode(),
        )
        answer = raw(service.port, head + b"x" * size)
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert raw(service.port, request("GET /api/1/info HTTP/1.1", b"\r\n")).startswith(
            b"HTTP/1.1 200"
        )
    body = b'{"name": "' + b"x" * MAX_BODY_BYTES + b'"}'
    for address in ("commands", "commands/check", "commands/replay"):
        path = f"/api/1/runs/{run.run_id}/{address}"
        assert Dashboard(run.path.parent).ask("POST", path, body).status == 413, address
    assert commands_in(run.path) == []


def test_a_replay_is_asked_for_like_any_command(run: MadeRun, ui: Dashboard) -> None:
    path, body = f"/api/1/runs/{run.run_id}/commands/replay", b'{"ledger": ""}'
    assert ui.ask("POST", path, body).status == 200
    assert ui.ask("POST", path, body, Authorization=None).status == 401
    assert ui.ask("POST", path, body, Origin="https://elsewhere.example").status == 403
    assert ui.ask("POST", path, body, Content_Type="text/plain").status == 415
    assert ui.ask("GET", path).status == 404


def test_a_socket_is_private_from_the_first_instant(
    tmp_path: Path, run: MadeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looked at right after `bind`, before anything else is done with it."""
    folder = tmp_path / "private"
    folder.mkdir(mode=0o700)
    seen: list[int] = []
    bind = socket.socket.bind

    def looking(self: socket.socket, address: object) -> None:
        bind(self, address)  # type: ignore[arg-type]
        if isinstance(address, str):
            seen.append(stat.S_IMODE(os.lstat(address).st_mode))

    monkeypatch.setattr(socket.socket, "bind", looking)
    before = os.umask(0)
    try:
        service = Service(Dashboard(run.path.parent).app, port=None, socket_path=folder / "a.sock")
    finally:
        os.umask(before)
    service.close()
    assert seen == [0o600]
    assert not (folder / "a.sock").exists()


def test_a_socket_in_a_shared_directory_or_of_a_long_name_is_refused(
    tmp_path: Path, run: MadeRun
) -> None:
    app = Dashboard(run.path.parent).app
    open_to_all = tmp_path / "shared"
    open_to_all.mkdir()
    open_to_all.chmod(0o755)
    with pytest.raises(ConfigError, match="open to others"):
        Service(app, port=None, socket_path=open_to_all / "a.sock")
    with pytest.raises(ConfigError, match=f"{MAX_SOCKET_PATH} bytes"):
        Service(app, port=None, socket_path=tmp_path / ("x" * 120))


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
def test_another_user_cannot_connect(tmp_path: Path, run: MadeRun) -> None:
    with serving(run.path.parent, tmp_path / "private") as service:
        path, port = str(service.socket_path), service.port

        def try_both() -> dict[str, object]:
            said: dict[str, object] = {}
            with socket.socket(socket.AF_UNIX) as there:
                try:
                    there.connect(path)
                    said["socket"] = "connected"
                except OSError as error:
                    said["socket"] = type(error).__name__
            with socket.create_connection(("127.0.0.1", port or 0), timeout=30) as there:
                there.sendall(b"GET /api/1/runs HTTP/1.1\r\nHost: localhost\r\n\r\n")
                said["tcp"] = there.recv(64).decode()
            return said

        said = as_nobody(try_both)
    assert said["socket"] == "PermissionError"
    assert str(said["tcp"]).startswith("HTTP/1.1 401 ")


# --- looking and controlling ----------------------------------------------------------------------


def test_reading_does_not_allow_controlling(run: MadeRun) -> None:
    ui = Dashboard(run.path.parent, read_only=True)
    body = {"id": "12345678", "name": "lr", "input": {"scale": 0.5}}
    answer = ui.post(f"runs/{run.run_id}/commands", body)
    assert (answer.status, answer.code) == (403, "not_permitted")
    assert ui.post(f"runs/{run.run_id}/commands/x/cancel", {}).status == 403
    rights = ui.get(f"runs/{run.run_id}")["rights"]
    assert rights == {"can_control": False, "reason": "this dashboard is read-only (--read-only)"}
    assert commands_in(run.path) == []


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
def test_a_read_only_run_of_another_user_is_fully_viewable_in_the_dashboard() -> None:
    with tempfile.TemporaryDirectory() as folder:  # Below tmp_path nobody else may enter.
        root = Path(folder)
        run = MadeRun(root).train()
        for path in [root, *root.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        before = tree(root)
        ui = Dashboard(root)

        def look() -> dict[str, object]:
            said: dict[str, object] = {}
            for each in addresses(run):
                if "blobs" not in each and each != "stream":
                    query = "name=train/loss" if each.endswith("series") else ""
                    said[each] = ui.ask("GET", f"/api/1/{each}", query=query).status
            body = {"id": "12345678", "name": "lr", "input": {"scale": 0.5}, "confirmed": True}
            said["command"] = ui.post(f"runs/{run.run_id}/commands", body).status
            said["reason"] = ui.get(f"runs/{run.run_id}")["rights"]["reason"]
            return said

        said = as_nobody(look)
        assert said.pop("command") == 403
        assert "is owned by root, mode 0755" in str(said.pop("reason"))
        assert set(said.values()) == {200}, said
        assert tree(root) == before


def test_nothing_is_written_by_looking(run: MadeRun, ui: Dashboard) -> None:
    before = tree(run.path.parent)
    for each in addresses(run):
        if "stream" not in each:
            ui.ask("GET", f"/api/1/{each}", query="name=train/loss")
    ui.post(f"runs/{run.run_id}/commands/check", {"name": "lr", "input": {"scale": 0.5}})
    assert tree(run.path.parent) == before


def test_connections_over_the_limit_are_turned_away_and_the_rest_served(
    tmp_path: Path, run: MadeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launchhelm.ui.serve.MAX_CONNECTIONS", 2)
    with serving(run.path.parent, tmp_path / "private") as service:
        assert service.port is not None
        held = [socket.create_connection(("127.0.0.1", service.port)) for _ in range(2)]
        for each in held:  # A first request, so that both are known to be taken in.
            each.sendall(b"GET /api/1/info HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert each.recv(9) == b"HTTP/1.1 "
        assert raw(service.port, b"").startswith(b"HTTP/1.1 503 ")
        for each in held:
            each.close()
        done = threading.Event()
        for _ in range(200):
            if raw(service.port, request("GET /api/1/info HTTP/1.1", b"\r\n"))[9:12] == b"200":
                done.set()
                break
        assert done.is_set()
