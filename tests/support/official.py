"""The official SDK as a black box: scripts that use it, in their own environment, against us."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import httpx

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-official" / "bin" / "python"
SERVE = [sys.executable, "-m", "launchhelm", "serve"]
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


class ServerProcess:
    """`launchhelm serve` in a process of its own, which may be killed and started again.

    Args:
        directory: For its data and its log.
    """

    def __init__(self, directory: Path) -> None:
        self.data = directory / "data"
        self._log = directory / "server.log"
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        made = json.loads(self._verb("init", "--json"))
        self.organization, self.key = made["organization_id"], made["token"]
        self._process: subprocess.Popen[bytes] | None = None
        self.http = httpx.Client(
            base_url=f"{self.url}/v1/organizations/{self.organization}/",
            headers={"Authorization": f"Bearer {self.key}"},
            timeout=30,
        )
        self.start()

    def start(self) -> None:
        """Start it and wait until it answers."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*SERVE, "--data", str(self.data), "--port", str(self.port)],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        eventually(self._answers)

    def kill(self) -> None:
        """End it as a crash would."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(10)

    def close(self) -> str:
        """Stop it as an operator would, and return its log."""
        self.http.close()
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(20)
        finally:
            self._process.kill()
        return self._log.read_text("utf-8")

    def get(self, path: str, **params: str) -> Json:
        """Ask for something of the organisation."""
        return self._said(self.http.get(path, params=params))

    def post(self, path: str, body: object, **headers: str) -> Json:
        """Send something to the organisation."""
        return self._said(self.http.post(path, json=body, headers=headers))

    def documents(self, kind: str, run: str) -> list[Json]:
        """List the documents of a run."""
        project = self.get(f"documents/{run}")["scope"]["project_id"]
        params = {"kind": kind, "project_id": project, "run_id": run, "limit": "1000"}
        return list(self.get("documents", **params)["items"])

    def command(
        self, run: str, capability: str, value: object, *, epoch: str = "1", state: str = "0"
    ) -> str:
        """Submit a command to the newest capability of that name and return its id.

        Args:
            epoch: The live epoch of its participant.
            state: The state revision that the command expects.
        """
        found = [
            each for each in self.documents("capability", run) if each["spec"]["name"] == capability
        ][-1]
        answer = self.post(
            "commands",
            {
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
            **{"Idempotency-Key": uuid.uuid4().hex},
        )
        return str(answer["id"])

    def outcome(self, command: str, *, decided_by: str = "") -> Json:
        """Wait until a command has ended, by whoever or by this one, and return it."""

        def ended() -> Json:
            answer = self.get(f"commands/{command}")
            by = answer.get("decided_by")
            return answer if by and by == (decided_by or by) else None

        return eventually(ended)

    def _verb(self, *arguments: str) -> str:
        done = subprocess.run(
            [*SERVE, *arguments, "--data", str(self.data)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text("utf-8")
        with contextlib.suppress(httpx.TransportError):
            return self.http.get(f"{self.url}/v1/me").status_code == 200
        return False

    @staticmethod
    def _said(answer: httpx.Response) -> Json:
        assert answer.status_code < 300, answer.text
        return answer.json()


class Driver:
    """One script of tests/contract/official, running.

    Args:
        script: Its name without the suffix.
        directory: Its working directory, where the SDK keeps its state.
    """

    def __init__(
        self,
        server: ServerProcess,
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
        try:
            line = self._said.get(timeout=timeout_s)
        except queue.Empty:
            line = ""
        assert line, f"no {event!r}; stderr:\n{self._errors.read_text('utf-8')}"
        facts = json.loads(line)
        assert facts["event"] == event, line
        return facts

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
