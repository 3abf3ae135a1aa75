"""What many live runs cost one syncer, and whether it keeps up with them.

    python -m benchmarks.live_runs
    python -m benchmarks.live_runs --runs 20 --seconds 60 --directory /some/disk

Simulated ranks (`_many_writers`) write into run directories in memory, since the disk of one
machine is none of many; the server's database is on a disk. `launchhelm sync --watch` and
`launchhelm serve` are the real ones, on the same machine. Measured after every rank was heard of
for the first time: the gap between two heartbeats of each rank as the server has them, processor
time and memory of each process, how old the newest point of random streams is, and commands to
random runs, from `submit` to `applied` as whoever sent them sees it. Halfway, a finished run of
many points comes in. Prints Markdown tables; exits with 1 when a mark is missed.
"""

from __future__ import annotations

import argparse
import os
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

import psutil

from benchmarks import generate
from benchmarks._from_server import LONGEST_S, client_of, offers, sent, watching
from benchmarks._many_writers import CONTROL, SAFE_POINT
from benchmarks.sync import METRICS, Hosted, hosted
from syncer.server import data

LATEST_S: Final = 30.0
CORES: Final = 1.0
MEGABYTES: Final = 400.0

_ROOT: Final = Path(__file__).resolve().parent.parent
_START_S: Final = 900.0
_LOOK_S: Final = 2.0
_SAMPLE: Final = 100


@dataclass
class Beats:
    """The heartbeats that the server has accepted, by participant: the newest, and the gaps."""

    database: Path
    seen: dict[str, float] = field(default_factory=dict)
    gaps: dict[str, float] = field(default_factory=dict)
    count: int = 0

    def look(self) -> None:
        """Take in what has come since the last look, which is shorter ago than two beats."""
        with closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True)) as connection:
            rows = list(connection.execute("SELECT participant_id, last_seen_at FROM sessions"))
        for participant, at in rows:
            before = self.seen.get(participant)
            if before is not None and at > before:
                self.gaps[participant] = max(self.gaps.get(participant, 0.0), at - before)
                self.count += 1
            self.seen[participant] = at

    def end(self, now: float, live: Collection[str]) -> None:
        """Count the time since the last beat as a gap too, and keep those of who lives."""
        self.gaps = {it: max(self.gaps.get(it, 0.0), now - self.seen[it]) for it in live}


@dataclass
class Cost:
    """Of one process, over the time that is measured."""

    name: str
    process: psutil.Process
    at_first: float = 0.0
    peak_mb: float = 0.0
    threads: int = 0

    def begin(self) -> None:
        """Measure from now on."""
        self.at_first = sum(self.process.cpu_times()[:2])

    def look(self) -> None:
        """Look at its memory."""
        self.peak_mb = max(self.peak_mb, self.process.memory_info().rss / 1e6)
        self.threads = max(self.threads, self.process.num_threads())

    def cores(self, seconds: float) -> float:
        """How many cores it kept busy."""
        return (sum(self.process.cpu_times()[:2]) - self.at_first) / seconds


class Sender(threading.Thread):
    """Gives commands to random runs, one after another."""

    def __init__(self, server: Hosted) -> None:
        super().__init__(name="sender", daemon=True)
        self.took: list[float] = []
        self.failed: list[str] = []
        self.over = threading.Event()
        self._client = client_of(server)
        self._offers = offers(self._client, CONTROL)

    def run(self) -> None:
        """Send until the end."""
        with self._client:
            while not self.over.wait(random.uniform(0.2, 1.0)):
                offer, given = random.choice(self._offers), {"lr": round(random.random(), 3)}
                command, took_s = sent(self._client, offer, given, SAFE_POINT)
                if command["execution"] == "applied":
                    self.took.append(took_s)
                else:
                    self.failed.append(f"{command['execution']}: {command.get('failure_code')}")


@contextmanager
def writing(root: Path, runs: int, ranks: int) -> Iterator[subprocess.Popen[str]]:
    """Have runs written for as long as the block runs."""
    words = ["benchmarks._many_writers", str(root), str(runs), str(ranks)]
    process = subprocess.Popen(
        [sys.executable, "-m", *words],
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.communicate()


def await_everyone(beats: Beats, count: int) -> None:
    """Wait until the server has heard twice of so many participants."""
    deadline = time.monotonic() + _START_S
    while len(beats.gaps) < count:
        if time.monotonic() > deadline:
            raise SystemExit(f"only {len(beats.gaps)} of {count} participants were heard of")
        time.sleep(_LOOK_S)
        beats.look()


def measure(
    costs: list[Cost], beats: Beats, seconds: float, halfway: Callable[[], object]
) -> float:
    """Look now and then for so long; return how long it was."""
    for each in costs:
        each.begin()
    began, is_first_half = time.monotonic(), True
    while (left_s := began + seconds - time.monotonic()) > 0:
        if is_first_half and left_s < seconds / 2:
            is_first_half = False
            halfway()
        time.sleep(min(_LOOK_S, left_s))
        beats.look()
        for each in costs:
            each.look()
    return time.monotonic() - began


def ages(server: Hosted, live: Collection[str]) -> list[float]:
    """Return how long ago the newest point of some random streams of live ranks was recorded."""
    with client_of(server) as client:
        streams = [
            each
            for each in client.list_documents("stream")
            if each["spec"]["name"] == "loss" and each["spec"]["participant_id"] in live
        ]
        found = []
        for stream in random.sample(streams, min(_SAMPLE, len(streams))):
            (newest,) = client.points(stream["id"], order="desc", limit=1)["items"]
            at = datetime.fromisoformat(newest["observed_at"]).timestamp()
            found.append(max(0.0, time.time() - at))
        return found


def of_sorted(values: list[float], share: float) -> float:
    """Return the value below which a share of sorted ones lies."""
    return values[min(len(values) - 1, int(share * len(values)))]


def report(
    costs: list[Cost], took_s: float, beats: Beats, sender: Sender, lags: list[float]
) -> bool:
    """Print the tables; return whether every mark was reached."""
    print("| process | cores | memory at most | threads |")
    print("| --- | --- | --- | --- |")
    for each in costs:
        cores = each.cores(took_s)
        print(f"| {each.name} | {cores:.2f} | {each.peak_mb:.0f} MB | {each.threads} |")
    gaps, took = sorted(beats.gaps.values()), sorted(sender.took)
    print("\n| | median | p99 | most | required |")
    print("| --- | --- | --- | --- | --- |")
    print(
        f"| longest gap between heartbeats of each of {len(gaps):,} ranks | "
        f"{statistics.median(gaps):.1f} s | {of_sorted(gaps, 0.99):.1f} s | {gaps[-1]:.1f} s | "
        f"{LATEST_S:.0f} s |"
    )
    print(
        f"| {len(took)} commands, submitted to seen as applied | {statistics.median(took):.2f} s | "
        f"{of_sorted(took, 0.99):.2f} s | {took[-1]:.2f} s | |"
    )
    lags.sort()
    print(
        f"| age of the newest point, {len(lags)} streams | {statistics.median(lags):.1f} s | "
        f"{of_sorted(lags, 0.99):.1f} s | {lags[-1]:.1f} s | |"
    )
    for why in sender.failed:
        print(f"\nA command was not applied: {why}.")
    syncer = costs[0]
    is_lean = syncer.cores(took_s) <= CORES and syncer.peak_mb <= MEGABYTES
    return is_lean and gaps[-1] <= LATEST_S and not sender.failed


def main() -> int:
    """Serve, write, sync, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--backlog", type=int, default=500_000, help="points of the finished run")
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--memory", type=Path, default=Path("/dev/shm"), help="for the runs")
    parser.add_argument("--directory", type=Path, help="for the server; default a temporary one")
    options = parser.parse_args()
    count = options.runs * options.ranks
    with (
        tempfile.TemporaryDirectory(dir=options.directory) as server_folder,
        tempfile.TemporaryDirectory(dir=options.memory) as root_folder,
        hosted(Path(server_folder) / "server") as server,
        writing(Path(root_folder) / "live", options.runs, options.ranks) as writer,
    ):
        root = Path(root_folder)
        later = generate.finished_run(root / "later", options.backlog // METRICS, metrics=METRICS)
        beats = Beats(server.directory / data.DATABASE)
        began = time.monotonic()
        with watching(server, root / "live") as syncer:
            await_everyone(beats, count)
            print(
                f"{options.runs} live runs of {options.ranks} ranks, 3 metrics a second each; all "
                f"were heard of after {time.monotonic() - began:.0f} s, then measured for "
                f"{options.seconds:.0f} s; halfway a run of {options.backlog:,} points comes in; "
                f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}.\n"
            )
            beats.gaps.clear()
            assert server.process is not None
            costs = [
                Cost("`launchhelm sync --watch`", psutil.Process(syncer.pid)),
                Cost("`launchhelm serve`", psutil.Process(server.process.pid)),
                Cost("the simulated ranks", psutil.Process(writer.pid)),
            ]
            sender = Sender(server)
            sender.start()
            live = set(beats.seen)
            took_s = measure(
                costs, beats, options.seconds, lambda: later.rename(root / "live" / later.name)
            )
            beats.look()
            beats.end(time.time(), live)
            sender.over.set()
            sender.join(LONGEST_S)
            is_reached = report(costs, took_s, beats, sender, ages(server, live))
    return 0 if is_reached else 1


if __name__ == "__main__":
    sys.exit(main())
