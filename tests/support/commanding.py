"""Commands given on a server to a run that trains here, and what became of them.

with training(root, said) as job, sync.watching(root):
    desk = Desk(server, run_id)
    command = desk.submit("set_lr", {"lr": 0.5})
    assert desk.ended(command)["execution"] == "applied"
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from launchhelm.records import FINAL_STATES, Outcome
from launchhelm.store.layout import parse_writer
from launchhelm.store.reader import Reader
from syncer.api import wire
from syncer.api.answers import ApiError
from syncer.api.client import Client
from syncer.naming import CAPABILITY_LABEL, RUN_LABEL, WRITER_LABEL
from tests.support.v1_server import V1Server

REPOSITORY = Path(__file__).resolve().parents[2]
LIMIT_S = 60.0
T = TypeVar("T")
ENDED = ("applied", "rejected", "cancelled", "failed", "outcome_unknown")

TRAIN = """
import itertools, json, os, sys, time
import launchhelm

root, said, step_s = sys.argv[1:4]
run = launchhelm.init("quickstart", name="commanded", state_dir=root)
out = open(said, "a", buffering=1)

@run.command("after_step")
def set_lr(lr: float) -> dict:
    out.write(json.dumps(lr) + "\\n")
    while lr < 0:
        time.sleep(1.0)
    return {"lr": [lr]}

@run.command("never")
def set_never(lr: float) -> None:
    out.write("never\\n")

for step in itertools.count():
    run.log({"loss": 1.0}, step=step)
    if not os.path.exists(said + ".hold"):
        run.sync("after_step", step=step)
    if os.path.exists(said + ".end"):
        break
    time.sleep(float(step_s))
run.finish()
"""

KILL = """
import os, signal, time
from syncer.api.client import Client
from syncer.intents import Intents

def die():
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1.0)  # Another thread may be the first to learn of it.

def kill(kind, name, before):
    real = getattr(kind, name)
    def dying(self, *arguments, **options):
        if before:
            die()
        answer = real(self, *arguments, **options)
        if answer is not None:
            die()
        return answer
    setattr(kind, name, dying)

"""
"""Changes a process so that it kills itself at a call: `kill(Client, 'begin', before=True)`."""


@dataclass
class Training:
    """A loop in a process of its own.

    Args:
        directory: Its run.
        said: A line for each application, written by the handler itself.
    """

    process: subprocess.Popen[bytes]
    directory: Path
    said: Path

    @property
    def applied(self) -> list[float]:
        """The values that were applied, in order, by every process of the run together."""
        return [json.loads(line) for line in self.said.read_text().splitlines()]

    def hold(self, on: bool = True) -> None:
        """Let the loop pass no control point, or again."""
        path = Path(f"{self.said}.hold")
        path.touch() if on else path.unlink()

    def end(self) -> None:
        """Let the loop end by itself, and wait for it."""
        Path(f"{self.said}.end").touch()
        assert self.process.wait(LIMIT_S) == 0

    def outcomes(self) -> dict[str, list[Outcome]]:
        """Return every final outcome that the run recorded, by command."""
        found: dict[str, list[Outcome]] = {}
        for record in Reader(self.directory, kinds=("oc",)).poll():
            outcome = Outcome.parse(record.body)
            if outcome.state in FINAL_STATES:
                found.setdefault(outcome.command, []).append(outcome)
        return found


@contextlib.contextmanager
def training(
    root: Path,
    said: Path,
    *,
    step_s: float = 0.005,
    environment: Mapping[str, str] | None = None,
    change: str = "",
) -> Iterator[Training]:
    """Train in a process of its own, which is gone at the end of the block.

    Args:
        change: Python that it executes first.
    """
    said.touch()
    process = subprocess.Popen(
        [sys.executable, "-c", change + TRAIN, str(root), str(said), str(step_s)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **(environment or {})},
        stdout=subprocess.DEVNULL,
    )
    try:
        yield Training(process, wait_for_run(root), said)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def wait_for_run(root: Path, limit_s: float = LIMIT_S) -> Path:
    """Wait until there is a run, and return its directory."""

    def found() -> Path | None:
        return next((it.parent for it in root.glob("*/run.json")), None)

    return wait(found, "a run", limit_s)


def wait(condition: Callable[[], T | None], what: str, limit_s: float = LIMIT_S) -> T:
    """Ask until the answer is true, and return it."""
    deadline = time.monotonic() + limit_s
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"waited too long for {what}"
        time.sleep(0.01)
    return answer


def is_final(command: Mapping[str, Any]) -> bool:
    """Whether somebody who knows has said what became of it."""
    return command["execution"] in ENDED and command.get("failure_code") != "lease_lost"


class Desk:
    """Whoever gives commands to one run, through the API alone."""

    def __init__(self, server: V1Server, run_id: str) -> None:
        self.client: Client = server.client()
        self._run_id = run_id

    def close(self) -> None:
        """Close the connections."""
        self.client.close()

    def run(self) -> dict[str, Any]:
        """Return the run's document."""

        def found() -> dict[str, Any] | None:
            every = self.client.list_documents("run")
            mine = [it for it in every if it["spec"]["labels"].get(RUN_LABEL) == self._run_id]
            return mine[0] if mine else None

        return wait(found, "the run on the server")

    def capability(self, name: str) -> dict[str, Any]:
        """Wait for the newest capability of that name of the newest coordinator."""
        run = self.run()

        def found() -> dict[str, Any] | None:
            mine = [
                it
                for it in self.client.list_documents(
                    "capability", run["scope"]["project_id"], run["id"]
                )
                if it["spec"]["name"] == name and CAPABILITY_LABEL in it["spec"]["labels"]
            ]
            leader = self.leader()
            mine = [it for it in mine if it["spec"]["participant_id"] == leader]
            return mine[-1] if mine else None

        return wait(found, f"the capability {name}")

    def leader(self) -> str:
        """Return the participant that is the newest coordinator, "" when there is none."""
        run = self.run()
        found = []
        for it in self.client.list_documents("participant", run["scope"]["project_id"], run["id"]):
            writer = parse_writer(it["spec"]["labels"].get(WRITER_LABEL, ""))
            if writer is not None and writer.rank == 0:
                found.append((writer.attempt, it["id"]))
        return max(found, default=(0, ""))[1]

    def session(self, participant: str) -> dict[str, Any]:
        """Return the live session of a participant: its epoch, and the state revision."""

        def found() -> dict[str, Any] | None:
            try:
                return self.client.session(participant)
            except ApiError as error:
                assert error.status in (404, 409), error
                return None

        return wait(found, "a session")

    def submit(
        self,
        name: str,
        given: dict[str, Any],
        *,
        safe_point: str = "after_step",
        valid_s: float = 3600.0,
        key: str = "",
    ) -> dict[str, Any]:
        """Give a command to the run as it is now."""
        capability = self.capability(name)
        participant = capability["spec"]["participant_id"]
        session = self.session(participant)
        body = {
            "scope": capability["scope"],
            "capability": {"id": capability["id"], "kind": "capability", "revision": "1"},
            "participant_id": participant,
            "epoch": session["epoch"],
            "expected_state_revision": session["state_revision"],
            "targets": [],
            "input": given,
            "safe_point": safe_point,
            "expires_at": wire.timestamp(time.time() + valid_s),
            "reason": "a test",
        }
        return self.client.submit(body, key or uuid.uuid4().hex)

    def get(self, command: dict[str, Any]) -> dict[str, Any]:
        """Return a command as it stands."""
        return self.client.get_command(command["id"])

    def ended(self, command: dict[str, Any], limit_s: float = LIMIT_S) -> dict[str, Any]:
        """Wait until a command has ended."""

        def found() -> dict[str, Any] | None:
            now = self.get(command)
            return now if now["execution"] in ENDED else None

        return wait(found, f"the end of a command: {self.get(command)}", limit_s)
