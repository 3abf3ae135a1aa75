"""The official SDK as a black box: scripts that use it, in their own environment, against us."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from tests.support.v1_server import V1Server

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-official" / "bin" / "python"
DRIVERS = ROOT / "tests" / "contract" / "official"

T = TypeVar("T")
Json = Any  # Whatever the API answers.


def why_missing() -> str:
    """Return "" when the official SDK can be run, else why its tests must be skipped."""
    if not PYTHON.exists():
        return (
            "THE OFFICIAL SDK IS NOT INSTALLED (.venv-official): our server was not tested with it"
        )
    return ""


def eventually(look: Callable[[], T], *, timeout_s: float = 20.0) -> T:
    """Return the first true answer, or fail with the last one."""
    ends_at = time.monotonic() + timeout_s
    while True:
        answer = look()
        if answer or time.monotonic() > ends_at:
            assert answer, f"still {answer!r} after {timeout_s:g} s"
            return answer
        time.sleep(0.02)


def documents(server: V1Server, kind: str, run: str) -> list[Json]:
    """List the documents of a run."""
    project = server.get(f"documents/{run}")["scope"]["project_id"]
    page = server.get("documents", kind=kind, project_id=project, run_id=run, limit=1000)
    return list(page["items"])


def command(
    server: V1Server,
    run: str,
    capability: str,
    value: object,
    *,
    epoch: str = "1",
    state: str = "0",
) -> str:
    """Submit a command to the newest capability of that name and return its id.

    Args:
        epoch: The live epoch of its participant.
        state: The state revision that the command expects.
    """
    found = [
        each for each in documents(server, "capability", run) if each["spec"]["name"] == capability
    ][-1]
    answer = server.http.post(
        f"{server.url}/v1/organizations/{server.organization}/commands",
        json={
            "scope": found["scope"],
            "capability": {"id": found["id"], "kind": "capability"},
            "participant_id": found["spec"]["participant_id"],
            "epoch": epoch,
            "expected_state_revision": state,
            "targets": [],
            "input": value,
            "safe_point": found["spec"]["safe_points"][0],
            "expires_at": "2100-01-01T00:00:00Z",
            "reason": "a test",
        },
        headers={"Authorization": f"Bearer {server.key}", "Idempotency-Key": uuid.uuid4().hex},
    )
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


def outcome(server: V1Server, command_id: str, *, decided_by: str = "") -> Json:
    """Wait until a command has ended, by whoever or by this one, and return it."""

    def ended() -> Json:
        answer = server.get(f"commands/{command_id}")
        by = answer.get("decided_by")
        return answer if by and by == (decided_by or by) else None

    return eventually(ended)


class Driver:
    """One script of tests/contract/official, running.

    Args:
        script: Its name without the suffix.
        directory: Its working directory, where the SDK keeps its state.
    """

    def __init__(
        self,
        server: V1Server,
        script: str,
        *arguments: str,
        directory: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("LAUNCHHELM_", "PYTHON"))
        }
        directory.mkdir(parents=True, exist_ok=True)
        self._errors = directory / f"{script}-{uuid.uuid4().hex[:8]}.err"
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [str(PYTHON), str(DRIVERS / f"{script}.py"), *arguments],
                cwd=directory,
                env={
                    **inherited,
                    "LAUNCHHELM_URL": server.url,
                    "LAUNCHHELM_API_KEY": server.key,
                    "LAUNCHHELM_ORGANIZATION": server.organization,
                    "OMP_NUM_THREADS": "1",
                    "GLOO_SOCKET_IFNAME": "lo",
                    **(environment or {}),
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._said: queue.Queue[str] = queue.Queue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def said(self, event: str, *, timeout_s: float = 60.0) -> Json:
        """Wait for the next thing that it says, which must be this event; return its facts."""
        facts = self.said_any(timeout_s=timeout_s)
        assert facts["event"] == event, facts
        return facts

    def said_any(self, *, timeout_s: float = 60.0) -> Json:
        """Wait for the next thing that it says, whatever it is; return its facts."""
        try:
            line = self._said.get(timeout=timeout_s)
        except queue.Empty:
            line = ""
        assert line, f"it says nothing more; stderr:\n{self._errors.read_text('utf-8')}"
        return json.loads(line)

    def tell(self, text: str = "go on") -> None:
        """Let a `wait` of the script return."""
        assert self._process.stdin is not None
        self._process.stdin.write(text + "\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait(10)

    def close(self) -> None:
        """Leave nothing of it behind."""
        self.kill()
        self._listener.join(10)
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()

    def ends(self, *, timeout_s: float = 60.0) -> None:
        """Wait for a good end."""
        code = self._process.wait(timeout_s)
        assert code == 0, self._errors.read_text("utf-8")

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said.put(line)
        self._said.put("")
