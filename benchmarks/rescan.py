"""What it costs to look after 1,000 finished runs that are on the server already.

    python -m benchmarks.rescan
    python -m benchmarks.rescan --runs 200 --directory /some/disk

Sends the runs once, then passes over them again as a new process, then lets `launchhelm sync
--watch` settle and counts by strace which system calls it makes on the runs while nothing changes.
Prints a Markdown table. Needs strace for the last line.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import psutil

from benchmarks import generate
from benchmarks.sync import Hosted, hosted
from syncer.discover import INTERVAL_S

METRICS: Final = 5
STEPS: Final = 20
PASSES: Final = 3
_SETTLE_S: Final = 120.0
"""The first looks at so many runs take this long at most."""
_CALL: Final = re.compile(r"^\d+ +(\w+)\(")


def command(root: Path, *words: str) -> list[str]:
    """Return the command line of a sync."""
    return [sys.executable, "-m", "launchhelm", "sync", "--json", *words, str(root)]


def passed(server: Hosted, root: Path) -> tuple[float, float, float]:
    """Make one pass as a new process; return its seconds, its CPU seconds and the server's."""
    before, began = server.cpu_s, time.perf_counter()
    process = subprocess.Popen(
        command(root),
        env=server.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    wall_s = time.perf_counter() - began
    return wall_s, usage.ru_utime + usage.ru_stime, server.cpu_s - before


def calls_since(trace: Path, offset: int, root: str) -> tuple[Counter[str], int]:
    """Count the calls in a trace from a place on that name something below the root."""
    with trace.open("rb") as file:
        file.seek(offset)
        data = file.read()
    calls: Counter[str] = Counter()
    for line in data.decode(errors="replace").splitlines():
        match = _CALL.match(line)
        if match and root in line:
            calls[match[1]] += 1
    return calls, offset + len(data)


def settled(trace: Path, root: str) -> int:
    """Wait until a watching syncer opens no file any more; return the size of the trace."""
    deadline = time.monotonic() + _SETTLE_S
    offset = 0
    while time.monotonic() < deadline:
        time.sleep(2 * INTERVAL_S)
        calls, offset = calls_since(trace, offset, root)
        # A listing of the root opens it; everything else was to get to know the runs.
        if calls["newfstatat"] and calls["openat"] < 10:
            return offset
    raise AssertionError("it does not settle")


def watched(server: Hosted, root: Path, seconds: float) -> tuple[Counter[str], float, float]:
    """Watch runs in which nothing happens.

    Returns:
        Calls that name something below the root; CPU seconds in that time; resident MB.
    """
    trace = root.parent / "trace"
    strace = ["strace", "-f", "-y", "-qq", "-o", str(trace), "-e", "trace=%file,getdents64"]
    process = subprocess.Popen(
        [*strace, *command(root, "--watch")],
        env=server.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    offset = settled(trace, str(root))
    (syncer,) = psutil.Process(process.pid).children()
    before = sum(syncer.cpu_times()[:2])
    time.sleep(seconds)
    calls, _ = calls_since(trace, offset, str(root))
    cpu_s = sum(syncer.cpu_times()[:2]) - before
    memory = syncer.memory_info().rss / 1e6
    syncer.send_signal(signal.SIGTERM)
    process.wait()
    return calls, cpu_s, memory


def line(*cells: str) -> None:
    """Print a line of the table."""
    print("| " + " | ".join(cells) + " |", flush=True)


def middle(passes: Sequence[tuple[float, float, float]], place: int) -> str:
    """Say a median of some passes in seconds."""
    return f"{statistics.median(each[place] for each in passes):.2f} s"


def main() -> None:
    """Make the runs, send them, pass over them, watch them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=30.0, help="of watching")
    parser.add_argument("--directory", type=Path, help="where to work; default a temporary one")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as name:
        root = Path(name) / "runs"
        root.mkdir()
        for _ in range(arguments.runs):
            generate.finished_run(root, STEPS, metrics=METRICS)
        count = f"{arguments.runs:,}"
        with hosted(Path(name) / "server") as server:
            line("", "wall", "CPU", "server CPU")
            line("---", "---", "---", "---")
            first = [passed(server, root)]
            said = f"first pass over {count} runs of {STEPS * METRICS} points"
            line(said, *(middle(first, place) for place in range(3)))
            again = [passed(server, root) for _ in range(PASSES)]
            line("pass over the same, new process", *(middle(again, place) for place in range(3)))
            if shutil.which("strace") is None:
                print("\nWatching was not measured: strace is not installed.")
                return
            calls, cpu_s, memory = watched(server, root, arguments.seconds)
    looks = arguments.seconds / INTERVAL_S
    listed = ", ".join(f"{number:,} {call}" for call, number in calls.most_common())
    print(
        f"\nWatching them for {arguments.seconds:g} s while nothing changes: "
        f"{listed or 'no calls'}; {sum(calls.values()) / looks / arguments.runs:.2f} calls per "
        f"run and interval of {INTERVAL_S:g} s. {cpu_s:.2f} s of CPU under strace, {memory:.0f} MB "
        "resident."
    )


if __name__ == "__main__":
    main()
