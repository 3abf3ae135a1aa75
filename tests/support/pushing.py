"""Runs to push, and the comparison of what a server has with what a run directory says."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from launchhelm._ids import new_id, project_id_for
from launchhelm.records import WriterId
from launchhelm.store.manifest import Attempt, Manifest, create_run, take_attempt
from launchhelm.store.reader import Reader
from launchhelm.store.writer import JournalWriter
from syncer.api import wire
from syncer.api.client import Client
from syncer.mapping import Sample, samples
from syncer.naming import RUN_LABEL, STREAM_LABEL
from syncer.push import Report, RunPush

Point = tuple[str, int, str]
"""Label of the stream, sequence, canonical value."""


class WrittenRun:
    """A run directory that a test writes record by record, on the disk when the call returns."""

    def __init__(self, root: Path, *, ranks: int = 1, project: str = "quickstart") -> None:
        project_id = project_id_for("", project)
        manifest = Manifest(new_id(), "pushed", project, project_id, 1e9, "nobody", "nowhere")
        self.directory = create_run(root, manifest)
        self.run_id = manifest.run_id
        self.writers: list[JournalWriter] = []
        self.attempt(ranks)

    def attempt(self, ranks: int = 1) -> None:
        """Begin an attempt; `log` and the others go to it from now on."""
        taken = take_attempt(self.directory, Attempt(0, 0, {}, 1e9, ranks, "nowhere"))
        self.writers = [
            JournalWriter(
                self.directory / "data",
                WriterId(rank, taken.number, f"{taken.number:04d}{rank:04d}"),
                {"world": ranks, "rank": rank, "host": "nowhere", "hb_s": 15.0, "flush_s": 1.0},
            )
            for rank in range(ranks)
        ]
        for rank in range(ranks):
            self.add("ev", {"type": "start", "world_size": ranks}, rank=rank)

    def add(
        self, kind: str, body: dict[str, Any], *, step: int | None = None, rank: int = 0
    ) -> None:
        """Write one record."""
        self.writers[rank].append(kind, body, step=step)
        self.writers[rank].flush()

    def log(self, steps: range, *names: str, rank: int = 0) -> None:
        """Write one record of some metrics for each step."""
        for step in steps:
            body = dict.fromkeys(names or ("loss",), step + 0.25)
            self.writers[rank].append("m", body, step=step)
        self.writers[rank].flush()

    def end(self, state: str = "finished") -> None:
        """End every rank."""
        for rank, writer in enumerate(self.writers):
            self.add("close", {"state": state, "close_run": True}, rank=rank)
            writer.flush()

    def points(self) -> Counter[Point]:
        """Return every point that a server should have, with how often."""
        return local_points(self.directory)


def local_points(directory: Path) -> Counter[Point]:
    """Return every point of a run directory."""
    found: Counter[Point] = Counter()
    for record in Reader(directory).poll():
        for sample in samples(record, directory):
            if isinstance(sample, Sample):
                value = wire.parse(sample.data, exact=False)["value"]
                found[sample.key.label, sample.seq, _text(value)] += 1
    return found


def server_points(client: Client, run_id: str) -> Counter[Point]:
    """Return every point that a server has of a run, with how often."""
    found: Counter[Point] = Counter()
    for run in runs_on(client, run_id):
        scope = run["scope"]
        for stream in client.list_documents("stream", scope["project_id"], run["id"]):
            label = stream["spec"]["labels"][STREAM_LABEL]
            for point in client.all_points(stream["id"]):
                found[label, int(point["sequence"]), _text(point["value"])] += 1
    return found


def runs_on(client: Client, run_id: str) -> list[dict[str, Any]]:
    """Return the documents that a server has for a run."""
    every = client.list_documents("run")
    return [it for it in every if (it["spec"].get("labels") or {}).get(RUN_LABEL) == run_id]


def push_all(push: RunPush, *, slices: int = 1000) -> list[Report]:
    """Send until it is done or stops, with the lease."""
    assert push.acquire()
    reports = []
    for _ in range(slices):
        reports.append(push.step(0.5))
        if reports[-1].done or reports[-1].stopped:
            return reports
    raise AssertionError("the push does not end")


@contextmanager
def pushing(directory: Path, client: Client, **options: Any) -> Iterator[RunPush]:
    """Open a push and close it."""
    push = RunPush(directory, client, **options)
    try:
        yield push
    finally:
        push.close()


def assert_same(expected: Counter[Point], got: Counter[Point]) -> None:
    """Check that every point is there once, and say which is not."""
    missing, extra = expected - got, got - expected
    assert not missing and not extra, (
        f"missing {sum(missing.values())}: {list(missing)[:3]}, "
        f"too many {sum(extra.values())}: {list(extra)[:3]}"
    )


PUSHER = """
import sys
from pathlib import Path
from syncer.api.client import Client
from syncer.push import RunPush

url, organization, key, directory, lease_s, slice_s, log = sys.argv[1:]
client = Client(url, organization, key)
push = RunPush(Path(directory), client, lease_s=float(lease_s))
out = open(log, "a", buffering=1)
def say(word):
    out.write(word + "\\n")
import time
while not push.acquire():
    say("held")
    time.sleep(0.02)
say("mine")
push._progress = lambda report: say(f"sent {report.points}")
while True:
    report = push.step(float(slice_s))
    if report.stopped:
        say("stopped " + report.stopped)
        break
    if report.done:
        say("done")
        break
push.close()
"""


def spawn_pusher(
    server: Any, directory: Path, log: Path, *, lease_s: float = 0.3, slice_s: float = 0.5
) -> subprocess.Popen[bytes]:
    """Start a process that pushes a run; what it does stands in `log`, a word a line."""
    log.touch()
    arguments = [server.url, server.organization, server.key, directory, lease_s, slice_s, log]
    return subprocess.Popen(
        [sys.executable, "-c", PUSHER, *map(str, arguments)],
        cwd=Path(__file__).resolve().parents[2],
    )


def _text(value: Any) -> str:
    return wire.canonical(value).decode()
