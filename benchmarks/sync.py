"""How fast a finished run goes to a server, and how much memory that takes.

    python -m benchmarks.sync
    python -m benchmarks.sync --rounds 5 --directory /some/disk
    python -m benchmarks.sync --large

`launchhelm sync` of a run directory, as a whole process, against the official SDK's own uploader,
in turns in one run against one `launchhelm serve` on the same machine. The uploader sends what it
spooled while the server was away: its clock runs from `init(resume=...)` to the end of `flush`,
without the start of Python and imports. Where .venv-official is missing, only ours is measured.
--large sends one run of ten times the points. Prints Markdown tables.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final  # Any: JSON values.

import psutil

from benchmarks import generate
from syncer.api.client import Client
from syncer.server import data

METRICS: Final = 20
_ROOT: Final = Path(__file__).resolve().parent.parent
_OFFICIAL: Final = _ROOT / ".venv-official" / "bin" / "python"
_UPLOADER: Final = _ROOT / "benchmarks" / "_official_sync.py"
_EVENTS: Final = 2
"""A run's start and end are points too."""


@dataclass
class Hosted:
    """A server of our own that can go away and come back under the same address."""

    directory: Path
    url: str = ""
    process: subprocess.Popen[str] | None = None

    def __post_init__(self) -> None:
        server = data.open_server(self.directory)
        self.made = data.initialise(server, "lab", "benchmark")
        server.database.close()

    def start(self) -> None:
        """Answer requests."""
        port = self.url.rpartition(":")[2] or "0"
        command = ["serve", "--json", "--data", str(self.directory), "--port", port]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "launchhelm", *command], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.url = str(json.loads(self.process.stdout.readline())["url"])

    def stop(self) -> None:
        """Be away."""
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            self.process.communicate()
            self.process = None

    @property
    def environment(self) -> dict[str, str]:
        """The settings that lead here."""
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith("LAUNCHHELM_")
        }
        return inherited | {
            "LAUNCHHELM_URL": self.url,
            "LAUNCHHELM_API_KEY": self.made.token,
            "LAUNCHHELM_ORGANIZATION": self.made.organization_id,
        }

    @property
    def cpu_s(self) -> float:
        """CPU time of the server so far."""
        assert self.process is not None
        return sum(psutil.Process(self.process.pid).cpu_times()[:2])

    def points_of(self, run: str) -> int:
        """Count what has arrived, by reading it back."""
        with Client(self.url, self.made.organization_id, self.made.token) as client:
            document = client.get_document(run)
            project = document["scope"]["project_id"]
            streams = list(client.list_documents("stream", project_id=project, run_id=run))
            return sum(1 for stream in streams for _ in client.all_points(stream["id"]))


@contextmanager
def hosted(directory: Path) -> Iterator[Hosted]:
    """Serve for as long as the block runs."""
    server = Hosted(directory)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@dataclass(frozen=True)
class Sent:
    """One run that has arrived.

    Args:
        memory: Resident MB, at equal parts of the way.
        peak: The most, in MB.
    """

    points: int
    wall_s: float
    cpu_s: float
    server_cpu_s: float
    memory: tuple[float, ...] = ()
    peak: float = 0.0

    @property
    def rate(self) -> float:
        """Points a second."""
        return self.points / self.wall_s


def resident(pid: int) -> list[tuple[float, float]]:
    """Return the resident memory of a process now and at most so far, in MB; [] at its end.

    Not from `wait4`: its figure is at least what this process had when it started the other.
    """
    found = re.findall(r"Vm(?:RSS|HWM):\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return [(int(found[1]) / 1e3, int(found[0]) / 1e3)] if len(found) == 2 else []


def ours(server: Hosted, root: Path, points: int) -> Sent:
    """Send a run with `launchhelm sync`, from the start of its process to the end."""
    root.mkdir()
    generate.finished_run(root, points // METRICS, metrics=METRICS)
    before, began = server.cpu_s, time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "launchhelm", "sync", "--json", str(root)],
        env=server.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    samples: list[tuple[float, float]] = []
    while True:
        ended, status, usage = os.wait4(process.pid, os.WNOHANG)
        if ended:
            break
        samples += resident(process.pid)
        time.sleep(0.05)
    wall_s = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.stdout is not None
    with process.stdout as output:
        said: Any = json.loads(output.readline())
    assert process.returncode == 0 and said["points"] == points + _EVENTS, said
    parts = [samples[len(samples) * part // 5 - 1][0] for part in range(1, 6)]
    shutil.rmtree(root)
    return Sent(
        said["points"],
        wall_s,
        usage.ru_utime + usage.ru_stime,
        server.cpu_s - before,
        tuple(parts),
        samples[-1][1],
    )


@dataclass
class Spool:
    """What the official SDK recorded while the server was away."""

    directory: Path
    run: str
    points: int


def uploader(directory: Path, env: Mapping[str, str], *words: str) -> subprocess.Popen[str]:
    """Start the official SDK with a state directory of its own."""
    return subprocess.Popen(
        # Without the script's folder in the path: its neighbours have names of the library's.
        [str(_OFFICIAL), "-P", str(_UPLOADER), *words],
        cwd=directory,
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def heard(process: subprocess.Popen[str]) -> Any:  # Any: JSON.
    """Return the next thing that it says."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "the official SDK failed"
    return json.loads(line)


def spooled(server: Hosted, root: Path, count: int, points: int) -> list[Spool]:
    """Fill so many spools while the server is away, and kill who filled them."""
    steps = str(points // METRICS)
    opened = []
    for number in range(count):
        directory = root / f"official-{number}"
        directory.mkdir()
        process = uploader(directory, server.environment, "fill", steps, str(METRICS))
        opened.append((process, Spool(directory, heard(process)["run"], points)))
    server.stop()
    for process, _ in opened:
        assert process.stdin is not None
        process.stdin.write("go on\n")
        process.stdin.flush()
        heard(process)
        process.kill()
        process.communicate()
    server.start()
    return [spool for _, spool in opened]


def theirs(server: Hosted, spool: Spool) -> Sent:
    """Send a spool with the official SDK, and make sure that it arrived."""
    before = server.cpu_s
    process = uploader(spool.directory, server.environment, "send", spool.run)
    said = heard(process)
    process.communicate()
    server_cpu_s = server.cpu_s - before
    arrived = server.points_of(spool.run)
    assert arrived == spool.points, f"{arrived} of {spool.points} points arrived"
    # The first step went up before the server was away.
    return Sent(spool.points - METRICS, said["sent_s"], said["cpu_s"], server_cpu_s)


def row(what: str, sent: list[Sent]) -> str:
    """Return a line of the table, with medians."""

    def middle(values: Iterator[float]) -> float:
        return statistics.median(values)

    peak = max(each.peak for each in sent)
    cells = (
        what,
        f"{sent[0].points:,}",
        f"{middle(each.wall_s for each in sent):.2f} s",
        f"{middle(each.rate for each in sent):,.0f}",
        f"{middle(each.cpu_s / each.points for each in sent) * 1e6:.1f} µs",
        f"{middle(each.server_cpu_s / each.points for each in sent) * 1e6:.1f} µs",
        f"{peak:.0f} MB" if peak else "",
    )
    return "| " + " | ".join(cells) + " |"


def compare(server: Hosted, root: Path, *, rounds: int, points: int, few: int) -> None:
    """Send in turns and print the table and the ratios."""
    has_official = _OFFICIAL.exists()
    spools = spooled(server, root, rounds, few) if has_official else []
    large, small, official = [], [], []
    for number in range(rounds):
        if has_official:
            official.append(theirs(server, spools[number]))
        small.append(ours(server, root / "runs", few))
        large.append(ours(server, root / "runs", points))
    print("| | points | time | points/s | CPU a point | server CPU a point | memory |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    print(row("`launchhelm sync`, whole process", large))
    print(row("the same, a small run", small))
    if not has_official:
        print("\nThe official SDK is not installed (.venv-official).")
        return
    print(row("official SDK, `init` to `flush`", official))
    pairs = [
        (a.rate / c.rate, b.rate / c.rate) for a, b, c in zip(large, small, official, strict=True)
    ]
    of_large, of_small = (sorted(each) for each in zip(*pairs, strict=True))
    print(
        f"\nRatio of points/s in each round, ours to the official SDK's: {listed(of_large)}; "
        f"of the small run {listed(of_small)}."
    )


def listed(ratios: list[float]) -> str:
    """Say some ratios."""
    return ", ".join(f"{ratio:.1f}" for ratio in ratios)


def main() -> None:
    """Serve, send, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--few", type=int, default=100_000, help="of the small run and the spool")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--large", action="store_true", help="ten times the points, ours alone")
    parser.add_argument("--directory", type=Path, help="where to work; default a temporary one")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as name:
        root = Path(name)
        print(f"{METRICS} metrics a step, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}.\n")
        with hosted(root / "server") as server:
            if arguments.large:
                sent = ours(server, root / "runs", 10 * arguments.points)
                shown = ", ".join(f"{part:.0f}" for part in sent.memory)
                print(
                    f"{sent.points:,} points in {sent.wall_s:.0f} s ({sent.rate:,.0f}/s), resident "
                    f"at each fifth of the time {shown} MB, {sent.peak:.0f} MB at most."
                )
            else:
                compare(
                    server,
                    root,
                    rounds=arguments.rounds,
                    points=arguments.points,
                    few=arguments.few,
                )


if __name__ == "__main__":
    main()
