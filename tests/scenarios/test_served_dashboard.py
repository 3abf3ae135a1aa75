"""The dashboard of `launchhelm serve` beside that of `launchhelm ui` over the same runs."""

from __future__ import annotations

import base64
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

import launchhelm
from tests.support.commanding import Desk, training
from tests.support.dashboard import Dashboard
from tests.support.sync_command import SyncCommand
from tests.support.v1_calls import World
from tests.support.v1_server import PROJECT, V1Server, v1_process

LIMIT_S = 60.0
STEPS = 3000
SPIKE, LOST = 1234, 77
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


class Served:
    """Asks the dashboard of a server with a key."""

    def __init__(self, server: V1Server, key: str | None = None) -> None:
        self._server = server
        self._key = server.key if key is None else key

    def ask(self, path: str, body: Any = None, **headers: str) -> httpx.Response:
        sent = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        return self._server.http.request(
            "GET" if body is None else "POST",
            f"{self._server.url}/ui{path}",
            json=body,
            headers={**sent, **{name.replace("_", "-"): value for name, value in headers.items()}},
        )

    def get(self, path: str, **query: Any) -> Any:
        answer = self.ask(f"/api/1/{path}?{urlencode(query, doseq=True)}")
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[V1Server]:
    with v1_process(tmp_path / "far") as it:
        yield it


def made_run(root: Path, name: str = "first") -> launchhelm.Run:
    """Make a run with a spike, a NaN, words, console lines and a command's outcome."""
    run = launchhelm.init(
        PROJECT, name=name, state_dir=str(root), config={"lr": 0.1, "seed": 2**60}, tags=["a"]
    )
    for step in range(STEPS):
        loss = 100.0 if step == SPIKE else math.nan if step == LOST else 1 / (step + 1)
        run.log({"train/loss": loss, "accuracy": step / STEPS}, step=step)
    run.log({"verdict": "good"}, step=STEPS)
    run.finish()
    return run


def until(look: Callable[[], Any], what: str) -> Any:
    """Wait until something is there, and return it."""
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        found = look()
        if found:
            return found
        time.sleep(0.2)
    raise AssertionError(f"{what} did not come")


def keys(server: V1Server, *words: str) -> str:
    """Look after keys as an operator does, and return what was said."""
    command = [sys.executable, "-m", "launchhelm", "serve", "keys", *words, "--json"]
    done = subprocess.run(
        [*command, "--data", str(server.data)], check=True, capture_output=True, text=True
    )
    return done.stdout


def make_key(server: V1Server, actions: list[str], project: str, name: str = "viewer") -> str:
    """Make a key for one project."""
    scope = {"organization_id": server.organization, "project_id": project}
    grant = {"effect": "allow", "actions": actions, "scope": scope}
    made = server.post("keys", {"name": name, "grants": [grant]})
    return str(made["token"])


LOOKING = ["document.read", "document.list", "artifact.download"]


def test_a_synced_run_is_answered_as_its_directory_is(tmp_path: Path, server: V1Server) -> None:
    root = tmp_path / "runs"
    run = made_run(root)
    sync = SyncCommand(tmp_path, server.url, server.key)
    assert sync.once(root).code == 0
    near, far = Dashboard(root), Served(server)

    (here,), (there,) = near.get("runs")["runs"], far.get("runs")["runs"]
    same = ("id", "name", "project", "tags", "state", "step", "ranks", "attempt")
    assert {name: there[name] for name in same} == {name: here[name] for name in same}
    assert there["last"]["name"] == "train/loss" and here["last"]["name"] == "train/loss"
    assert (there["path"], there["owner"]) == ("", "")

    here, there = near.get(f"runs/{run.run_id}"), far.get(f"runs/{run.run_id}")
    also = ("id", "name", "project", "tags", "config", "state", "state_text", "step", "world_size")
    assert {name: there[name] for name in also} == {name: here[name] for name in also}
    assert there["losses"] == here["losses"]

    for px in (64, 4000):
        path, query = f"runs/{run.run_id}/series", {"name": ["train/loss", "accuracy"], "px": px}
        here, there = near.get(path, **query), far.get(path, **query)
        assert there == here
        (loss, _) = there["series"]
        assert (SPIKE, 100.0) in zip(loss["x"], loss["y"], strict=True)
        assert loss["odd"] == [{"x": LOST, "nan": 1}]

    here, there = near.get(f"runs/{run.run_id}/metrics"), far.get(f"runs/{run.run_id}/metrics")
    assert there == here
    rows = far.get(f"runs/{run.run_id}/processes")
    assert rows["rows"][0][rows["columns"].index("state")] == "ended"
    assert set(rows["not_reported"]) == {"phase_s", "step_ms", "wait_ms"}
    assert "not_here" in far.get("sync")
    assert far.get("info")["mode"] == "server"


def test_a_data_directory_may_be_named_from_where_the_server_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As its default is: `./launchhelm-server`."""
    run = made_run(tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    with v1_process(Path("far")) as server:
        assert SyncCommand(tmp_path, server.url, server.key).once(tmp_path / "runs").code == 0
        assert Served(server).get(f"runs/{run.run_id}")["name"] == "first"
        assert not Served(server).get(f"runs/{run.run_id}/commands")["commands"]


def test_a_command_from_the_page_is_applied_and_stands_in_both_ledgers(
    tmp_path: Path, server: V1Server
) -> None:
    root = tmp_path / "runs"
    sync = SyncCommand(tmp_path, server.url, server.key)
    with training(root, tmp_path / "said") as job, sync.watching(root):
        desk = Desk(server, job.directory.name)
        desk.capability("set_lr")
        desk.session(desk.leader())
        desk.close()
        page, run = Served(server), f"runs/{job.directory.name}"
        assert page.get(run)["rights"] == {"can_control": True, "reason": ""}
        until(lambda: page.get(run)["state"] == "running", "a run that runs")
        controls = page.get(f"{run}/controls")
        assert {each["name"] for each in controls["controls"]} == {"set_lr", "set_never"}
        assert not controls["refusal"], controls

        body = {"name": "set_lr", "input": {"lr": 0.5}, "first_step": None, "last_step": None}
        checked = page.ask(f"/api/1/{run}/commands/check", body).json()
        assert checked["valid"] and not checked["guards"], checked
        scheduled = page.ask(f"/api/1/{run}/commands/check", {**body, "first_step": 9}).json()
        assert not scheduled["valid"] and "first_step" in scheduled["fields"]
        frozen = page.ask(f"/api/1/{run}/commands/check", {"name": "run:freeze", "input": {}})
        assert not frozen.json()["valid"]
        assert "passes no steps on" in page.get(f"{run}/commands")["no_replay"]
        replayed = page.ask(f"/api/1/{run}/commands/replay", {"run": job.directory.name})
        assert (replayed.status_code, replayed.json()["error"]["code"]) == (409, "no_replay")

        sent = {**body, "id": "page-command-1", "reason": "it is too low", "confirmed": True}
        first, again = (page.ask(f"/api/1/{run}/commands", sent) for _ in range(2))
        assert (first.status_code, again.status_code) == (201, 200), (first.text, again.text)
        id_ = first.json()["id"]
        assert again.json()["id"] == id_

        def ended() -> Any:
            found = {each["id"]: each for each in page.get(f"{run}/commands")["commands"]}
            return found[id_] if found[id_]["state"] == "applied" else None

        far = until(ended, "the outcome")
        assert job.applied == [0.5]
        near = Dashboard(root)
        (here,) = near.get(f"{run}/commands")["commands"]
        same = ("id", "name", "input", "reason", "state", "text", "applied_step", "applied_on")
        assert {name: far[name] for name in same} == {name: here[name] for name in same}
        assert far["via"] == "server" and far["applied_step"] is not None

        # One that nobody takes waits, and can be taken back.
        waiting = {"name": "set_never", "input": {"lr": 1.0}, "id": "page-command-2"}
        answer = page.ask(f"/api/1/{run}/commands", {**waiting, "confirmed": True})
        assert answer.status_code == 201, answer.text
        until(lambda: page.get("runs")["runs"][0]["pending"], "a command that waits")
        taken_back = answer.json()["id"]
        cancelled = page.ask(f"/api/1/{run}/commands/{taken_back}/cancel", {})
        states = {each["id"]: each["state"] for each in page.get(f"{run}/commands")["commands"]}
        if cancelled.status_code == 201:
            assert states[taken_back] == "cancelled"
        else:
            assert cancelled.status_code == 409 and states[taken_back] in ("claimed", "applying")

        columns = page.get(f"{run}/processes")["columns"]
        (row,) = page.get(f"{run}/processes")["rows"]
        shown = dict(zip(columns, row, strict=True))
        assert shown["state"] == "ok" and shown["step"] > 0 and shown["beat_s"] < 60.0
        steps = page.get(run)["step"]
        until(lambda: page.get(run)["step"] > steps, "more steps")
        events = page.ask(f"/api/1/changes?watch={job.directory.name}")
        assert events.status_code == 200


def test_a_key_sees_its_own_project_and_nobody_else_sees_anything(
    tmp_path: Path, server: V1Server
) -> None:
    root = tmp_path / "runs"
    run = made_run(root)
    other = server.document("project", {"organization_id": server.organization}, name="other")
    assert SyncCommand(tmp_path, server.url, server.key).once(root).code == 0
    mine = Served(server, make_key(server, LOOKING, server.project))
    stranger = Served(server, make_key(server, LOOKING, other["id"]))
    leaving = Served(server, make_key(server, LOOKING, server.project, name="leaving"))
    nobody, wrong = Served(server, ""), Served(server, f"lhk_{'0' * 32}_{'a' * 43}")
    path = f"runs/{run.run_id}"

    assert [each["id"] for each in mine.get("runs")["runs"]] == [run.run_id]
    assert mine.get(path)["rights"] == {
        "can_control": False,
        "reason": "This key may look and not control",
    }
    sent = {"name": "lr", "input": {}, "id": "page-command-1", "confirmed": True}
    assert mine.ask(f"/api/1/{path}/commands", sent).status_code == 403
    assert stranger.get("runs")["runs"] == []
    for below in ("", "/metrics", "/series?name=accuracy", "/commands", "/processes", "/files"):
        assert stranger.ask(f"/api/1/{path}{below}").status_code == 404
    assert stranger.ask(f"/api/1/changes?watch={run.run_id}").status_code == 404
    for key in (nobody, wrong):
        for below in ("info", "runs", path, f"{path}/series?name=accuracy", "sync", "changes"):
            answer = key.ask(f"/api/1/{below}")
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "no_token")

    (key_id,) = (
        json.loads(line)["id"]
        for line in keys(server, "list", "--all").splitlines()
        if json.loads(line)["name"] == "leaving"
    )
    assert leaving.ask("/api/1/runs").status_code == 200
    keys(server, "revoke", key_id)
    assert leaving.ask("/api/1/runs").status_code == 401

    shell = nobody.ask("/")
    assert shell.status_code == 200 and "/ui/static/" in shell.text
    assert "default-src 'none'" in shell.headers["Content-Security-Policy"]
    assert nobody.ask("/static/%2e%2e/app.js").status_code == 404
    for header in ({"Origin": "https://evil.example"}, {"Sec_Fetch_Site": "cross-site"}):
        assert mine.ask("/api/1/runs", **header).status_code == 403
    assert mine.ask("/api/1/runs", Origin=server.url).status_code == 200
    assert server.call("GET", "/v1/me").status_code == 200


def test_console_media_files_attempts_and_words_come_as_far_as_a_server_has_them(
    tmp_path: Path, server: V1Server
) -> None:
    root = tmp_path / "runs"
    (tmp_path / "kept.txt").write_text("bytes to keep")
    run = launchhelm.init(PROJECT, name="rich", state_dir=str(root))
    run.console("a line for the page")
    run.define("loss", unit="nats")
    for step in range(20):
        run.log({"loss": 2.0 - step / 100, "ok": True, "big": 2**70, "label": "nan"}, step=step)
    run.text("note", "what was seen", step=1)
    run.image("sample", PNG, step=1, media_type="image/png")
    run.artifact(tmp_path / "kept.txt")
    run.finish(close_run=False)
    run = launchhelm.init(PROJECT, state_dir=str(root), resume=run.run_id)
    for step in range(15, 40):
        run.log({"loss": 1.0, "system.cpu": 0.5}, step=step)
    run.summary({"best": 1.0})
    run.finish()
    sync = SyncCommand(tmp_path, server.url, server.key)
    assert sync.once(root).code == 0
    near, far, path = Dashboard(root), Served(server), f"runs/{run.run_id}"

    here, there = near.get(path), far.get(path)
    same = ("summary", "git", "python", "argv", "host", "state_text", "losses", "tabs")
    assert {name: there[name] for name in same} == {name: here[name] for name in same}
    assert there["created_at"] == pytest.approx(here["created_at"], abs=0.01)
    fields = ("number", "world_size", "resumed_from", "first_step", "last_step", "end", "text")
    for ours, theirs in zip(here["attempts"], there["attempts"], strict=True):
        assert {name: theirs[name] for name in fields} == {name: ours[name] for name in fields}

    for part in ("metrics", "console"):
        assert far.get(f"{path}/{part}") == near.get(f"{path}/{part}")
    names = {"name": ["loss", "ok", "big", "system.cpu"]}
    for more in ({}, {"attempt": 1}):
        assert far.get(f"{path}/series", **names, **more) == near.get(
            f"{path}/series", **names, **more
        )
    here, there = near.get(f"{path}/media"), far.get(f"{path}/media")
    for one in (*here["items"], *there["items"]):
        one.pop("id", None)  # The server has its own.
    assert there == here
    assert far.ask(f"/api/1/blobs/{there['items'][1]['digest']}").content == PNG

    (here,), (there,) = near.get(f"{path}/files")["files"], far.get(f"{path}/files")["files"]
    assert {**there, "id": ""} == {**here, "id": ""}
    assert far.get(f"{path}/files")["own"] == []
    assert far.ask(f"/api/1/blobs/{there['digest']}").content == b"bytes to keep"
    other = server.document("project", {"organization_id": server.organization}, name="other")
    stranger = Served(server, make_key(server, LOOKING, other["id"]))
    assert stranger.ask(f"/api/1/blobs/{there['digest']}").status_code == 404


PARTS = ("", "/metrics", "/commands", "/controls", "/console", "/media", "/files", "/processes")


def test_a_run_of_another_client_is_shown_and_its_command_is_followed(server: V1Server) -> None:
    world = World.on(server)
    page, path = Served(server), f"runs/{world.run}"
    (row,) = page.get("runs")["runs"]
    assert (row["id"], row["name"], row["ranks"]) == (world.run, "r", 1)
    for part in PARTS:
        page.get(f"{path}{part}")
    (metric,) = page.get(f"{path}/metrics")["metrics"]
    (curve,) = page.get(f"{path}/series", name="loss")["series"]
    assert metric["name"] == "loss" and curve["exact"] and len(curve["y"]) == metric_points(world)
    (command,) = page.get(f"{path}/commands")["commands"]
    assert (command["id"], command["state"], command["can_cancel"]) == (
        world.command,
        "waiting",
        True,
    )
    assert "not approved yet" in command["reason"]
    known = server.get(f"commands/{world.command}")
    server.post(f"commands/{world.command}/approve", {"fingerprint": known["fingerprint"]})
    (command,) = until(
        lambda: [
            each
            for each in page.get(f"{path}/commands")["commands"]
            if "not approved" not in each["reason"]
        ],
        "the approval",
    )
    assert command["state"] == "waiting"
    claim = {"epoch": world.epoch, "wait_ms": 0}
    assert server.post(f"participants/{world.participant}/commands", claim)["command"]
    until(
        lambda: page.get(f"{path}/commands")["commands"][0]["state"] == "claimed",
        "the claim in the ledger",
    )
    world.close()


def metric_points(world: World) -> int:
    return len(world._telemetry()["batches"][0]["points"])


def test_documents_that_hold_anything_break_no_page(server: V1Server) -> None:
    odd: list[Any] = [None, 7, "text", [1], {"a": [None]}]
    for value in odd:
        scope = {**server.scope}
        run = server.document("run", scope, name=value, labels=value, parameters=value, state=value)
        inside = {**scope, "run_id": run["id"]}
        person = server.document("participant", inside, name=value, labels=value, role=value)
        for kind in ("stream", "capability", "artifact"):
            server.document(
                kind,
                inside,
                name=value,
                labels=value,
                participant_id=person["id"],
                value_schema=value,
                presentation=value,
                axes=value,
                unit=value,
                safe_points=value,
                input_schema=value,
                provenance=value,
            )
            server.document(kind, inside, participant_id=value, name="n", labels={"x": value})
    page = Served(server)
    rows = page.get("runs")["runs"]
    assert len(rows) == len(odd)
    for row in rows:
        for part in PARTS:
            page.get(f"runs/{row['id']}{part}")
