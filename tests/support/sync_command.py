"""`launchhelm sync` as a process of its own, and what a server has afterwards.

sync = SyncCommand(tmp_path, url=server.url, key=server.key)
done = sync.once(runs)                          # one pass, to its end
with sync.watching(runs) as process: ...        # killed at the end of the block
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from launchhelm.store.layout import parse_writer
from syncer.naming import RUN_LABEL, STREAM_LABEL, WRITER_LABEL, StreamKey
from tests.support.v1_server import V1Server

REPOSITORY = Path(__file__).resolve().parents[2]
LIMIT_S = 60.0

QUICK = """
from syncer import push, retry, service
retry._FIRST_BACKOFF_S = 0.05
service.UNREACHABLE_S, service.BUSY_S, service.HELD_S = 1.0, 5.0, 0.1
"""
"""Waits are shorter than in life, and nothing else is different."""


def lease_of(seconds: float) -> str:
    """Return a change that makes leases lapse after so long."""
    return (
        f"from syncer.push import RunPush\nRunPush.__init__.__kwdefaults__['lease_s'] = {seconds}\n"
    )


@dataclass(frozen=True)
class Synced:
    """How a pass ended, and what it said."""

    code: int
    out: str
    err: str

    @property
    def runs(self) -> dict[str, dict[str, Any]]:
        """What became of each run, by its title."""
        return {it["name"]: it for it in map(json.loads, self.out.splitlines())}

    @property
    def points(self) -> int:
        """Points that were sent, of all runs."""
        return sum(it["points"] for it in self.runs.values())


@dataclass
class SyncCommand:
    """How syncers are started: where, with which key, in which surroundings.

    Args:
        path: Holds the folder of states that have no place in their run.
        key: In the environment; "" for none.
        change: Python that a process executes first, see QUICK.
    """

    path: Path
    url: str
    key: str
    environment: dict[str, str] = field(default_factory=dict)
    change: str = ""

    def once(self, *words: object, verb: str = "sync", change: str = "", **options: Any) -> Synced:
        """Make one pass, or let another verb do its work, and return how it ended.

        Args:
            options: Of `subprocess.run`; the user, for example.
        """
        done = subprocess.run(
            self._words([verb, "--json", *words], change),
            cwd=self.path,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            **options,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return Synced(done.returncode, done.stdout, done.stderr)

    def start(
        self, *words: object, change: str = "", output: int | IO[Any] = subprocess.PIPE
    ) -> subprocess.Popen[str]:
        """Start a pass and do not wait for it.

        Args:
            output: Where it says what it says.
        """
        return subprocess.Popen(
            self._words(["sync", "--json", *words], change),
            cwd=self.path,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            text=True,
        )

    @contextlib.contextmanager
    def watching(self, *words: object, change: str = "") -> Iterator[subprocess.Popen[str]]:
        """Let a syncer work for good; it is gone at the end of the block."""
        process = self.start("--watch", *words, change=change)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def _words(self, words: list[object], change: str) -> list[str]:
        given = list(map(str, words))
        change = self.change + change
        if not change:
            return [sys.executable, "-m", "launchhelm", *given]
        main = "\nimport sys\nfrom launchhelm.cli import main\nsys.exit(main(sys.argv[1:]))\n"
        return [sys.executable, "-c", change + main, *given]

    def _environment(self) -> dict[str, str]:
        inherited = {k: it for k, it in os.environ.items() if not k.startswith("LAUNCHHELM_")}
        given = {
            "LAUNCHHELM_URL": self.url,
            "LAUNCHHELM_API_KEY": self.key,
            "LAUNCHHELM_STATE_DIR": str(self.path / "state"),
            "PYTHONPATH": str(REPOSITORY),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        return {**inherited, **{k: it for k, it in given.items() if it}, **self.environment}


@dataclass(frozen=True)
class Point:
    """A point as the server has it; step is -1 where it has none."""

    run: str
    writer: str
    name: str
    seq: int
    step: int
    value: Any


def points(server: V1Server, *names: str) -> list[Point]:
    """Return every point that a server has, in no order; of some names, or of all."""
    with server.client() as client:
        runs = {
            it["id"]: (it["spec"].get("labels") or {}).get(RUN_LABEL, "")
            for it in client.list_documents("run")
        }
        found = []
        for stream in client.list_documents("stream"):
            spec = stream["spec"]
            if names and spec["name"] not in names:
                continue
            key = StreamKey.parse(spec["labels"][STREAM_LABEL])
            for point in client.all_points(stream["id"]):
                steps = [it["value"] for it in point["coordinates"] if it["axis"] == "step"]
                found.append(
                    Point(
                        runs[stream["scope"]["run_id"]],
                        str(key.writer),
                        spec["name"],
                        int(point["sequence"]),
                        int(steps[0]) if steps else -1,
                        point["value"],
                    )
                )
    return found


def assert_single(found: list[Point]) -> None:
    """Check that no point is there twice."""
    identities = [(it.run, it.writer, it.name, it.seq) for it in found]
    assert len(identities) == len(set(identities))


def steps(found: list[Point], *, attempt: int = 0) -> list[int]:
    """Return the steps of some points in order, of one attempt or of all."""
    return sorted(it.step for it in found if attempt in (0, attempt_of(it)))


def attempt_of(point: Point) -> int:
    """Return the attempt that a point was logged in."""
    writer = parse_writer(point.writer)
    assert writer is not None
    return writer.attempt


def run_documents(server: V1Server) -> list[Mapping[str, Any]]:
    """Return what the server has of runs."""
    with server.client() as client:
        return list(client.list_documents("run"))


def run_states(server: V1Server) -> dict[str, str]:
    """Return the state of each run, by its title; a title that is there twice fails the test."""
    found = run_documents(server)
    states = {it["spec"]["name"]: str(it["spec"]["state"]) for it in found}
    assert len(states) == len(found), "a run is there twice"
    return states


def writers(server: V1Server) -> list[Mapping[str, Any]]:
    """Return the labels of every process that a server knows."""
    with server.client() as client:
        found = [it["spec"]["labels"] for it in client.list_documents("participant")]
    return sorted(found, key=lambda labels: str(labels[WRITER_LABEL]))
