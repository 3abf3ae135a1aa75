"""The dashboard of `launchhelm serve` beside that of `launchhelm ui` over the same runs."""

from __future__ import annotations

import math
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
from tests.support.v1_server import PROJECT, V1Server, v1_process

LIMIT_S = 60.0
STEPS = 3000
SPIKE, LOST = 1234, 77


class Served:
    """Asks the dashboard of a server with a key."""

    def __init__(self, server: V1Server, key: str | None = None) -> None:
        self._server = server
        self._key = server.key if key is None else key

    def ask(
        self, path: str, body: Any = None, **headers: str
    ) -> httpx.Response:
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


def make_key(server: V1Server, actions: list[str], project: str) -> str:
    """Make a key for one project."""
    scope = {"organization_id": server.organization, "project_id": project}
    grant = {"effect": "allow", "actions": actions, "scope": scope}
    made = server.post("keys", {"name": "viewer", "grants": [grant]})
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
    same = ("id", "name", "project", "tags", "config", "state", "state_text", "step", "world_size")
    assert {name: there[name] for name in same} == {name: here[name] for name in same}
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
