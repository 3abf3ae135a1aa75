"""How many points a second the server takes, and how long a receipt takes.

    python -m benchmarks.ingest
    python -m benchmarks.ingest --clients 8 --points 400000 --directory /some/disk

Starts `launchhelm serve` in a process of its own and pushes from client processes that wait for one
receipt before they send the next request, each for a participant with ten streams. Bodies are
encoded before the clock runs. Clients and server share the machine's cores. Prints a Markdown
table; "paging" reads everything of one stream back, ten thousand points at a time.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, Final  # Any: JSON values.
from urllib.parse import urlsplit

import psutil

from launchhelm._ids import new_id
from syncer.api import routes, wire
from syncer.server import data

STREAMS: Final = 10
START: Final = 1_800_000_000.0
_PATIENCE_S: Final = 600.0


@dataclass(frozen=True)
class Load:
    """What each request holds.

    Args:
        batches: Of one request, one per stream in turn.
        points: Of one batch.
    """

    batches: int
    points: int

    @property
    def text(self) -> str:
        """Say it in words."""
        plural = "es" if self.batches > 1 else ""
        return f"{self.batches} batch{plural} of {self.points:,} points"


LOADS: Final = (Load(1, 1000), Load(10, 100), Load(10, 10), Load(7, 1000))


@dataclass(frozen=True)
class Target:
    """Where to push."""

    url: str
    organization: str
    project: str
    key: str


class Caller:
    """One connection, so plain that the time is the server's."""

    def __init__(self, target: Target) -> None:
        self._target = target
        parts = urlsplit(target.url)
        self._connection = http.client.HTTPConnection(str(parts.hostname), parts.port)
        self._headers = {
            "Authorization": f"Bearer {target.key}",
            "Content-Type": "application/json",
        }

    def call(self, method: str, path: str, body: bytes = b"", **names: str) -> bytes:
        """Send a request that must succeed and return the body of its answer."""
        where = path.format(org=self._target.organization, **names)
        self._connection.request(method, where, body, self._headers)
        answer = self._connection.getresponse()
        text = answer.read()
        assert answer.status < 300, text
        return text

    def post(self, path: str, body: Any, **names: str) -> Any:
        """Post JSON."""
        return json.loads(self.call("POST", path, json.dumps(body).encode(), **names))

    def create(self, kind: str, scope: dict[str, str], **spec: Any) -> str:
        """Create a document and return its id."""
        made = self.post(routes.DOCUMENTS, {"kind": kind, "scope": scope, "spec": spec})
        return str(made["id"])


def push(
    target: Target, number: int, load: Load, requests: int, start: Barrier, results: Queue[Any]
) -> None:
    """Be one client; the others do not wait for one that failed."""
    try:
        results.put(pushed(target, number, load, requests, start))
    except BaseException:
        start.abort()
        results.put(None)
        raise


def pushed(
    target: Target, number: int, load: Load, requests: int, start: Barrier
) -> tuple[float, float, list[float], str]:
    """Connect, encode, wait for the others, push; return begin, end, waits, and a stream."""
    caller = Caller(target)
    scope = {"organization_id": target.organization, "project_id": target.project}
    scope["run_id"] = caller.create("run", scope, name=f"r{number}", state="open", labels={})
    participant = caller.create("participant", scope, name=f"rank-{number}", role="trainer")
    session = {"instance_id": new_id(), "safe_points": []}
    epoch = caller.post(routes.SESSIONS, session, id=participant)["epoch"]
    streams = [
        caller.create(
            "stream",
            scope,
            name=f"metric/{each}",
            participant_id=participant,
            value_schema={"type": "number"},
            axes=["step"],
        )
        for each in range(STREAMS)
    ]
    bodies = []
    for request in range(requests):
        batches = []
        for place in range(load.batches):
            round_, stream = divmod(request * load.batches + place, STREAMS)
            points = [
                wire.point(wire.timestamp(START + n / 10), [("step", str(n))], 1 / (n + 1), n)
                for n in range(round_ * load.points, (round_ + 1) * load.points)
            ]
            batches.append(
                wire.batch(str(uuid.uuid4()), streams[stream], "1", epoch, participant, points)
            )
        bodies.append(wire.request(batches))
    start.wait(_PATIENCE_S)
    began = time.monotonic()
    taken = []
    for body in bodies:
        sent = time.perf_counter()
        receipts = json.loads(caller.call("POST", routes.TELEMETRY_BATCHES, body))["receipts"]
        taken.append(time.perf_counter() - sent)
        assert all(receipt["status"] == "accepted" for receipt in receipts), receipts
    return began, time.monotonic(), taken, streams[0]


def measure(
    target: Target, server: psutil.Process, load: Load, *, clients: int, points: int
) -> tuple[str, str]:
    """Push with one kind of request and return a line of the table, and a stream to read."""
    requests = max(3, points // (clients * load.batches * load.points))
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(clients + 1)
    results: Queue[Any] = context.Queue()
    processes = [
        context.Process(target=push, args=(target, number, load, requests, start, results))
        for number in range(clients)
    ]
    for process in processes:
        process.start()
    start.wait(_PATIENCE_S)
    before = sum(server.cpu_times()[:2])
    found = [results.get(timeout=_PATIENCE_S) for _ in processes]
    assert all(found), "a client failed"
    cpu = sum(server.cpu_times()[:2]) - before
    for process in processes:
        process.join(_PATIENCE_S)
    wall = max(end for _, end, _, _ in found) - min(began for began, _, _, _ in found)
    sent = clients * requests * load.batches * load.points
    taken = sorted(seconds for _, _, each, _ in found for seconds in each)
    row = (
        load.text,
        f"{sent / wall:,.0f}",
        f"{clients * requests / wall:,.0f}",
        f"{statistics.median(taken) * 1000:.0f} ms",
        f"{taken[int(len(taken) * 0.99)] * 1000:.0f} ms",
        f"{taken[-1] * 1000:.0f} ms",
        f"{cpu / sent * 1e6:.1f} µs",
    )
    return "| " + " | ".join(row) + " |", found[0][3]


def paging(target: Target, stream: str) -> str:
    """Read a stream back and return a sentence."""
    caller = Caller(target)
    began = time.perf_counter()
    count, after = 0, ""
    while True:
        path = f"{routes.POINTS}?limit=10000{after}"
        page = json.loads(caller.call("GET", path, id=stream))
        count += len(page["items"])
        if page["complete"]:
            break
        last = page["items"][-1]
        after = f"&from={last['observed_at']}&after_epoch={last['epoch']}"
        after += f"&after_sequence={last['sequence']}"
    wall = time.perf_counter() - began
    began = time.perf_counter()
    for _ in range(100):
        caller.call("GET", f"{routes.POINTS}?limit=1&order=desc", id=stream)
    newest = (time.perf_counter() - began) / 100
    return (
        f"Paging: {count:,} points in {wall:.2f} s ({count / wall:,.0f}/s). "
        f"Newest point: {newest * 1000:.1f} ms a request."
    )


@contextlib.contextmanager
def serving(directory: Path) -> Iterator[tuple[Target, psutil.Process]]:
    """Run `launchhelm serve` on a new data directory."""
    server = data.open_server(directory)
    made = data.initialise(server, "lab", "benchmark")
    server.database.close()
    process = subprocess.Popen(
        [sys.executable, "-m", "launchhelm", "serve", "--json", "--data", directory, "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process:
        try:
            url = str(json.loads(process.stdout.readline())["url"])
            target = Target(url, made.organization_id, made.project_id, made.token)
            yield target, psutil.Process(process.pid)
        finally:
            process.send_signal(signal.SIGTERM)


def main() -> None:
    """Serve, push, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--points", type=int, default=800_000, help="of each line but small ones")
    parser.add_argument("--directory", type=Path, help="where to work; default a temporary one")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as name:
        print(f"{arguments.clients} clients, {os.cpu_count()} cores.\n")
        print("| a request | points/s | requests/s | p50 | p99 | max | server CPU a point |")
        print("| --- | --- | --- | --- | --- | --- | --- |")
        with serving(Path(name) / "server") as (target, server):
            streams = []
            for load in LOADS:
                share = min(1.0, load.batches * load.points / 1000)
                row, stream = measure(
                    target,
                    server,
                    load,
                    clients=arguments.clients,
                    points=int(arguments.points * share),
                )
                print(row, flush=True)
                streams.append(stream)
            print(f"\n{paging(target, streams[-1])}")
            stored = sum(path.stat().st_size for path in (Path(name) / "server").glob("launch*"))
            print(
                f"Database: {stored / 1e6:,.0f} MB. Server: {server.memory_info().rss / 1e6:,.0f}"
                " MB resident."
            )


if __name__ == "__main__":
    main()
