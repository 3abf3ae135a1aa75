"""A real server for tests: uvicorn on a free loopback port, as a thread or as a process.

Both kinds use the same folder below `path`, so that a test may stop one, start another on it, and
find organisation, project and keys as they were.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from launchhelm._clock import SYSTEM_CLOCK, Clock
from syncer.api.client import Client
from syncer.server import accounts, data
from syncer.server.accounts import EVERY_ACTION, Grant
from syncer.server.serve import Address, Service
from syncer.server.state import Limits, Server

ORGANIZATION = "lab"
PROJECT = "quickstart"
_REPOSITORY = Path(__file__).resolve().parents[2]
_DEADLINE_S = 30.0
_MAIN = "\nimport sys\nfrom launchhelm.cli import main\nsys.exit(main(sys.argv[1:]))\n"


class HandClock:
    """A clock that moves when a test says so."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self.now = now

    def wall(self) -> float:
        """Seconds since the epoch."""
        return self.now

    def monotonic(self) -> float:
        """The same, which never goes back as long as the test does not."""
        return self.now


@dataclass
class V1Server:
    """One server that accepts requests.

    Args:
        organization: Id; also project, whose name is PROJECT.
        key: May do everything in the organisation.
        project_key: May do everything in the project.
        data: The data directory.
        state: The server itself, when it is a thread of this process.
        change: Python that a process executes first.
    """

    organization: str
    project: str
    key: str
    project_key: str
    data: Path
    url: str = ""
    state: Server | None = None
    process: subprocess.Popen[str] | None = None
    change: str = ""
    http: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=_DEADLINE_S))

    @property
    def scope(self) -> dict[str, str]:
        """The scope of a run."""
        return {"organization_id": self.organization, "project_id": self.project}

    def client(self, key: str | None = None) -> Client:
        """Return a client of ours; close it."""
        return Client(self.url, self.organization, self.key if key is None else key)

    def call(
        self, method: str, path: str, body: Any = None, *, key: str | None = None
    ) -> httpx.Response:
        """Send one request; a path without /v1 lies below the organisation."""
        if not path.startswith("/"):
            path = f"/v1/organizations/{self.organization}/{path}"
        headers = {"Authorization": f"Bearer {self.key if key is None else key}"}
        return self.http.request(method, self.url + path, json=body, headers=headers)

    def get(self, path: str, **query: str | int) -> Any:
        """Get a path that must succeed, and return its JSON."""
        answer = self.call("GET", str(httpx.URL(path, params=query) if query else path))
        assert answer.status_code < 300, answer.text
        return answer.json()

    def post(self, path: str, body: Any, *, key: str | None = None) -> Any:
        """Post a body that must be accepted, and return the JSON of the answer."""
        answer = self.call("POST", path, body, key=key)
        assert answer.status_code < 300, answer.text
        return answer.json()

    def document(self, kind: str, scope: dict[str, str], **spec: Any) -> dict[str, Any]:
        """Create a document."""
        made: dict[str, Any] = self.post("documents", {"kind": kind, "scope": scope, "spec": spec})
        return made

    def run(self, name: str = "r1") -> dict[str, Any]:
        """Create an open run."""
        return self.document("run", self.scope, name=name, state="open", labels={})

    def participant(self, run: dict[str, Any], name: str = "rank-0") -> dict[str, Any]:
        """Create a participant of a run."""
        scope = {**run["scope"], "run_id": run["id"]}
        return self.document("participant", scope, name=name, role="trainer", labels={})


@contextlib.contextmanager
def v1_server(
    path: Path, *, clock: Clock = SYSTEM_CLOCK, limits: Limits | None = None, port: int = 0
) -> Iterator[V1Server]:
    """Serve from a thread of this process."""
    known = _prepared(path)
    state = data.open_server(known.data, clock=clock, limits=limits)
    accepting = threading.Event()

    def ready(url: str) -> None:
        known.url = url
        accepting.set()

    service = Service(state, Address(port=port), ready)
    thread = threading.Thread(target=service.serve_until_stopped, name="v1-server", daemon=True)
    thread.start()
    try:
        assert accepting.wait(_DEADLINE_S), "the server does not accept"
        known.state = state
        with known.http:
            yield known
    finally:
        service.should_exit = True
        thread.join(_DEADLINE_S)
        assert not thread.is_alive(), "the server does not stop"
        state.database.close()


@contextlib.contextmanager
def v1_process(path: Path, *options: str, change: str = "") -> Iterator[V1Server]:
    """Serve from a process of its own, which `kill` and `start` may end and begin again.

    Args:
        options: Of `launchhelm serve`.
        change: Python that each process executes first.
    """
    known = _prepared(path)
    known.change = change
    start(known, *options)
    try:
        with known.http:
            yield known
    finally:
        if known.process is not None and known.process.poll() is None:
            known.process.kill()
        _reap(known)


def start(server: V1Server, *options: str) -> None:
    """Start the process; again on the port that it had before, when there was one."""
    port = httpx.URL(server.url).port if server.url else 0
    server.process = subprocess.Popen(
        [
            sys.executable,
            *(("-c", server.change + _MAIN) if server.change else ("-m", "launchhelm")),
            "serve",
            "--json",
            *("--data", str(server.data), "--port", str(port or 0)),
            *options,
        ],
        env={**os.environ, "PYTHONPATH": str(_REPOSITORY)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.process.stdout is not None
    server.url = str(json.loads(server.process.stdout.readline())["url"])


def stop(server: V1Server, number: int = signal.SIGTERM) -> int:
    """Send a signal and return the exit status."""
    assert server.process is not None
    server.process.send_signal(number)
    return _reap(server)


def kill(server: V1Server) -> None:
    """End the process as a lost power supply would end it."""
    stop(server, signal.SIGKILL)


def _reap(server: V1Server) -> int:
    if server.process is None:
        return 0
    status = server.process.wait(_DEADLINE_S)
    assert server.process.stdout is not None
    server.process.stdout.close()
    server.process = None
    return status


def _prepared(path: Path) -> V1Server:
    """Make organisation, project and keys, or read what an earlier call made."""
    directory, notes = path / "server", path / "server-keys.json"
    if not notes.exists():
        state = data.open_server(directory)
        made = data.initialise(state, ORGANIZATION, PROJECT)
        with state.database.write() as connection:
            _, key = accounts.create_key(
                connection,
                name="tests",
                organization_id=made.organization_id,
                grants=[Grant("", "", frozenset({EVERY_ACTION}))],
                now=state.clock.wall(),
            )
        state.database.close()
        notes.write_text(
            json.dumps(
                {
                    "organization": made.organization_id,
                    "project": made.project_id,
                    "key": key,
                    "project_key": made.token,
                }
            ),
            "utf-8",
        )
    return V1Server(data=directory, **json.loads(notes.read_text("utf-8")))
