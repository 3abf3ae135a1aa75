"""Syncers at work on one run, killed at random behind a bad network; and what the server has then.

storm = Storm(tmp_path, server, chaos, seed=1)
storming(storm, 10)        # so many rounds, a quiet end, and a look at the server
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launchhelm import Image
from launchhelm.records import Record
from launchhelm.store import media
from launchhelm.store.reader import Reader
from launchhelm.values.media import artifact_of
from syncer.api.client import Client
from syncer.mapping import Sample, samples
from syncer.naming import RUN_LABEL, STREAM_LABEL
from syncer.upload import ARTIFACT_LABEL
from tests.support.chaos import Chaos
from tests.support.reading import RunBuilder, WriterBuilder
from tests.support.v1_server import V1Server

ROOT = Path(__file__).resolve().parents[2]
LEASE_S = 1.0
REQUEST_BYTES = 16_000
START_S = 30.0

SYNCER = f"""
import sys
from syncer import inflight, retry, service
from syncer.push import RunPush


def default(function, old, new):
    function.__defaults__ = tuple(new if it == old else it for it in function.__defaults__)


# Waits are shorter and requests smaller than in life, so that much happens; else all is the same.
RunPush.__init__.__kwdefaults__["lease_s"] = {LEASE_S}
retry._FIRST_BACKOFF_S, retry.KEY_PAUSE_S = 0.02, 0.1
service.HELD_S, service.HELD_LIMIT_S = 0.1, 15.0
service.UNREACHABLE_S = service.BUSY_S = 5.0
default(service.Work.__init__, service.FAILED_S, 0.2)
service.INTERVAL_S, service.FAILED_S = 0.1, 0.2
default(inflight.Outbox.__init__, inflight.Outbox().max_bytes, {REQUEST_BYTES})

from launchhelm.cli import main

raise SystemExit(main(sys.argv[1:]))
"""

PROJECT = "storm"
RANKS = 3
CHECKPOINT_STEPS = 25


_LOSSES = ("deleted", "deleted at work", "older memory")


def storming(storm: Storm, rounds: int) -> dict[str, int]:
    """Let a storm rage for so many rounds, end it, and check what the server has.

    Returns:
        What happened, and how often.
    """
    try:
        for _ in range(rounds):
            storm.round()
        storm.calm()
        return storm.check()
    finally:
        storm.close()


def value_of(rank: int, step: int) -> float:
    """What a rank logs as its loss."""
    return float("nan") if step % 50 == 49 else rank + 1 / (step + 1)


class Job:
    """A run that grows: three ranks with all kinds of records, artifacts, and restarts."""

    def __init__(self, root: Path) -> None:
        self.run = RunBuilder(root, world_size=RANKS)
        self.directory = self.run.directory
        self.step = 0
        self.artifacts: dict[str, bytes] = {}
        self.attempt = 1
        self._writers: list[WriterBuilder] = []
        self._begin()

    def write(self, steps: int) -> None:
        """Log some steps on every rank."""
        for _ in range(steps):
            for rank, writer in enumerate(self._writers):
                self._log(rank, writer)
            self.step += 1
        for writer in self._writers:
            writer.flush()

    def restart(self) -> None:
        """Begin a new attempt, as a launcher does; the old one leaves no end."""
        self.attempt = self.run.attempt(RANKS)
        self._begin()

    def seal(self, rank: int) -> None:
        """Let a rank seal its journal and begin another."""
        self._writers[rank].seal()

    def end(self) -> None:
        """End all ranks."""
        for writer in self._writers:
            writer.close(step=self.step)
            writer.flush()

    def _begin(self) -> None:
        self._writers = [self.run.writer(rank, attempt=self.attempt) for rank in range(RANKS)]
        for rank, writer in enumerate(self._writers):
            writer.record("ev", {"type": "start", "world_size": RANKS, "rank": rank})
            writer.flush()

    def _log(self, rank: int, writer: WriterBuilder) -> None:
        step = self.step
        writer.metrics(step, loss=value_of(rank, step), count=step, is_odd=step % 2 == 1)
        if step % 10 == rank:
            writer.beat(step)
            writer.record("con", {"text": f"step {step}", "stream": 0, "line": step}, step=step)
            writer.record("m", {"eval/acc": step / 7}, step=step, axes={"fold": str(rank)})
            writer.record("sys", {"system/cpu_percent": float(step % 100)})
            self._frame(writer, b"frame %d" % (step // 100))
        if rank == 0 and step % CHECKPOINT_STEPS == CHECKPOINT_STEPS - 1:
            self._checkpoint(writer, os.urandom(20_000))

    def _frame(self, writer: WriterBuilder, data: bytes) -> None:
        """Log a medium whose bytes other ranks and other steps have as well."""
        stored = media.put(self.directory, [data])
        medium = Image(data, media_type="image/png")
        body = {
            "name": "frames",
            "renderer": "media",
            "value": medium.value(),
            "files": [{"sha256": stored.sha256, "size": stored.size, "media_type": "image/png"}],
        }
        writer.record("rich", body, step=self.step)
        self.artifacts[f"pending:{stored.sha256}"] = data

    def _checkpoint(self, writer: WriterBuilder, data: bytes) -> None:
        stored = media.put(self.directory, [data])
        id_ = f"artifact-{self.attempt}-{self.step}"
        body = {
            "id": id_,
            "name": "model.pt",
            "media_type": "application/octet-stream",
            "size": stored.size,
            "sha256": stored.sha256,
            "purpose": "general",
        }
        writer.record("art", body, step=self.step)
        writer.metrics(self.step, checkpoint=id_)
        self.artifacts[id_] = data


class Storm:
    """One job, its syncers, and what is done to them.

    Args:
        deletes: Whether the syncers' memory is deleted, and replaced by older copies, too.
        work_s: How long a syncer works at most, until it is killed.
        requests: How many requests it makes at most until then; with memory lost, some more.
        finish_s: How long the last syncer may take.
    """

    def __init__(
        self,
        path: Path,
        server: V1Server,
        chaos: Chaos,
        *,
        seed: int,
        deletes: bool = True,
        work_s: float = 4.0,
        requests: int = 40,
        finish_s: float = 60.0,
    ) -> None:
        self.job = Job(path / "runs")
        self.server = server
        self.chaos = chaos
        self.counts: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._noise = random.Random(seed)  # Of what is asked for an uncertain number of times.
        self._path = path
        self._deletes = deletes
        self._work_s = work_s
        self._requests = requests
        self._finish_s = finish_s
        self._copy = path / "old-memory"
        self._log = (path / "syncers.log").open("ab")

    def close(self) -> None:
        """Close what is open."""
        self._log.close()

    @property
    def log(self) -> str:
        """What the syncers said."""
        return (self._path / "syncers.log").read_text("utf-8", "replace")

    def round(self) -> None:
        """Let the job write, one or two syncers work, and something happen to them."""
        choose = self._random
        self.job.write(choose.randint(1, 40))
        if choose.random() < 0.2:
            self.job.seal(choose.randrange(RANKS))
        if choose.random() < 0.1:
            self.job.restart()
        # One that watches is there to be killed; one that makes a pass may end by itself.
        working = [
            self._start(*choose.choice(((), ("--watch",), ("--watch",))))
            for _ in range(choose.choice((1, 1, 2)))
        ]
        if len(working) > 1:
            self.counts["competing"] += 1
        for syncer in working:
            # Who has no memory first asks the server for every stream that it has.
            more = 60 * self.job.attempt if self._deletes else 0
            self._work(syncer, choose.randint(0, self._requests + more))
            if choose.random() < 0.15 and self._deletes:
                self._delete("deleted at work")
            self._kill(syncer)
        if choose.random() < 0.5 and self._deletes:
            choose.choice((self._delete_all, self._go_back, self._keep_copy))()

    def _work(self, syncer: subprocess.Popen[bytes], requests: int) -> None:
        """Wait for a random moment of a syncer's work: by what was asked for, not by the clock.

        The time that it has at most runs from its first request: a slow start is no work.
        """
        before = self.chaos.requests
        deadline = time.monotonic() + START_S
        while syncer.poll() is None and time.monotonic() < deadline:
            if self.chaos.wait_for(before + min(requests, 1), 0.5):
                break
        deadline = time.monotonic() + self._work_s
        while syncer.poll() is None and time.monotonic() < deadline:
            if self.chaos.wait_for(before + requests, 0.5):
                return
            self.job.write(self._noise.randint(1, 10))

    def calm(self) -> None:
        """Let the job end and one syncer finish undisturbed."""
        self.counts["points in the storm"] = self.chaos.points
        self.job.end()
        self.chaos.calm()
        self.chaos.settle()
        deadline = time.monotonic() + self._finish_s
        while True:
            syncer = self._start()
            try:
                status = syncer.wait(max(1.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                status = -1
            finally:
                syncer.kill()
                syncer.wait()
            if status == 0:
                return
            assert time.monotonic() < deadline, f"status {status}:\n{self.log[-4000:]}"

    def check(self) -> dict[str, int]:
        """Check that the server has each point once, with its value; return what was counted."""
        expected = Counter(self._expected())
        with self.server.client() as client:
            found, artifacts = self._found(client)
        missing, doubled = expected - found, found - expected
        assert not missing, f"{missing.total()} missing, such as {list(missing)[:3]}"
        assert not doubled, f"{doubled.total()} twice or strange, such as {list(doubled)[:3]}"
        assert set(artifacts) == set(self.job.artifacts)
        return {
            "points": found.total(),
            "artifacts": len(artifacts),
            "taken under two ids": len(self.chaos.taken_twice),
            "faults": self.chaos.faults,
            "requests": self.chaos.requests,
            "memory lost": sum(self.counts[it] for it in _LOSSES),
            **self.counts,
        }

    # --- what is done -----------------------------------------------------------------------------

    def _start(self, *options: str) -> subprocess.Popen[bytes]:
        environment = {
            **{name: it for name, it in os.environ.items() if not name.startswith("LAUNCHHELM_")},
            "LAUNCHHELM_URL": self.chaos.url,
            "LAUNCHHELM_API_KEY": self.server.key,
            "LAUNCHHELM_ORGANIZATION": self.server.organization,
            "LAUNCHHELM_PROJECT": PROJECT,
            "LAUNCHHELM_STATE_DIR": str(self._path / "state"),
            "PYTHONPATH": str(ROOT),
        }
        self.counts["started"] += 1
        directory = str(self.job.directory)
        return subprocess.Popen(
            [sys.executable, "-c", SYNCER, "sync", directory, "--retry-skipped", *options],
            cwd=self._path,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )

    def _kill(self, syncer: subprocess.Popen[bytes]) -> None:
        if syncer.poll() is None:
            self.counts["killed"] += 1
            syncer.kill()
        syncer.wait()

    def _delete_all(self) -> None:
        self._delete("deleted")

    def _delete(self, what: str) -> None:
        self.counts[what] += 1
        shutil.rmtree(self.job.directory / "sync", ignore_errors=True)

    def _keep_copy(self) -> None:
        shutil.rmtree(self._copy, ignore_errors=True)
        if (self.job.directory / "sync").exists():
            shutil.copytree(self.job.directory / "sync", self._copy)

    def _go_back(self) -> None:
        if not self._copy.exists():
            self._keep_copy()
            return
        self._delete("older memory")
        shutil.copytree(self._copy, self.job.directory / "sync", dirs_exist_ok=True)

    # --- what should be, and what is --------------------------------------------------------------

    def _expected(self) -> list[tuple[str, int, str]]:
        found = []
        for record in Reader(self.job.directory).poll():
            for sample in samples(record, self.job.directory):
                assert isinstance(sample, Sample), sample
                found.append((sample.key.label, sample.seq, self._value(record, sample.key.name)))
        return found

    def _value(self, record: Record, name: str) -> str:
        """Say what a point's value must be; only what this job computes itself is compared."""
        if record.kind == "rich":
            return _text(artifact_of(record.body["value"]["items"][0]))
        value = record.body.get(name) if record.kind == "m" else None
        return _text(value) if value is not None else ""

    def _found(self, client: Client) -> tuple[Counter[tuple[str, int, str]], dict[str, str]]:
        runs = [
            document
            for document in client.list_documents("run", self._project(client))
            if document["spec"].get("labels", {}).get(RUN_LABEL) == self.job.run.run_id
        ]
        assert runs
        found: Counter[tuple[str, int, str]] = Counter()
        artifacts = self._artifacts(client, runs)
        ours = {theirs: id_ for id_, theirs in artifacts.items()}
        metrics = {"loss", "count", "is_odd", "eval/acc", "checkpoint", "frames"}
        for run in runs:
            scope = run["scope"]
            for stream in client.list_documents("stream", scope["project_id"], run["id"]):
                label = stream["spec"]["labels"][STREAM_LABEL]
                is_metric = stream["spec"]["name"] in metrics
                for point in client.all_points(stream["id"]):
                    value = point["value"]
                    if stream["spec"]["name"] == "frames":
                        value = artifact_of(value["items"][0])
                    if isinstance(value, str):
                        value = ours.get(value, value)
                    text = _text(value) if is_metric else ""
                    found[label, int(point["sequence"]), text] += 1
        return found, artifacts

    def _artifacts(self, client: Client, runs: list[dict[str, Any]]) -> dict[str, str]:
        """Return the server's ids by ours; every one that is ready must have the right bytes."""
        found: dict[str, str] = {}
        for run in runs:
            project = run["scope"]["project_id"]
            for document in client.list_documents("artifact", project, run["id"]):
                spec = document["spec"]
                media_id = f"pending:{spec['sha256']}"
                id_ = spec["provenance"]["labels"].get(ARTIFACT_LABEL, media_id)
                if document["spec"]["state"] != "ready":
                    continue
                assert id_ not in found, f"{id_} stands there twice"
                found[id_] = document["id"]
                path = self._path / "download"
                with path.open("wb") as file:
                    client.download(client.artifact_url(document["id"]), file)
                assert path.read_bytes() == self.job.artifacts[id_]
        return found

    @staticmethod
    def _project(client: Client) -> str:
        for document in client.list_documents("project"):
            if document["spec"]["name"] == PROJECT:
                return str(document["id"])
        raise AssertionError("the project was not made")


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return str(value.get("value"))
    return repr(value)
