"""What does logging 10 scalars cost? Ours beside JSON lines and sqlite3, in one run, interleaved.

    python -m benchmarks.logging
    python -m benchmarks.logging --rounds 9 --root /shared/somewhere

Each figure is the median over the rounds of a fresh process each. Prints a markdown table.

- p50, p99: microseconds in the caller, back to back and with one call each 5 ms.
- CPU: of the whole process tree, per call, from start to a clean end (sealing included), less that
  of the same process without a call.
- durable points/s: from the first call until all is flushed.
- bytes/point: of the journal (or file), and after a clean end.
- first log: seconds from the start of the process to the return of the first call.
- memory: growth of the resident set in MiB, from before the import to after the flush.
- lost: of 2,000 calls, when the process kills itself right after the last one.

`without orjson` hides that optional encoder, which is what a plain installation has.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCALARS = 10
BURST_CALLS = 20_000
PACED_CALLS = 400
PACE_S = 0.005
KILLED_CALLS = 2_000

Log = Callable[[dict[str, float], int], object]


@dataclass
class Subject:
    """A tracker in this process: how to log, flush and end."""

    log: Log
    flush: Callable[[], object]
    end: Callable[[], object]


def json_lines(root: Path) -> Subject:
    """The leanest thing that could be called a tracker."""
    file = open(root / "log.jsonl", "w")  # noqa: SIM115  Closed by `end`.

    def log(values: dict[str, float], step: int) -> None:
        file.write(json.dumps({"step": step, "t": time.time(), **values}) + "\n")

    return Subject(log, file.flush, file.close)


def sqlite_rows(root: Path) -> Subject:
    """One transaction per call."""
    connection = sqlite3.connect(root / "log.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("CREATE TABLE point (name TEXT, step INTEGER, value REAL)")

    def log(values: dict[str, float], step: int) -> None:
        connection.execute("BEGIN")
        rows = [(name, step, value) for name, value in values.items()]
        connection.executemany("INSERT INTO point VALUES (?, ?, ?)", rows)
        connection.execute("COMMIT")

    return Subject(log, lambda: None, connection.close)


def recorder(root: Path) -> Subject:
    """The recorder alone, without the checks of `Run.log`."""
    from launchhelm._recorder import Recorder
    from launchhelm.records import WriterId

    ours = Recorder(root / "run", WriterId(0, 1, "00000000"), {})
    ours.start()
    return Subject(
        lambda values, step: ours.append("m", values, step=step),
        lambda: ours.flush(60),
        lambda: ours.close("finished", "", 60),
    )


def run_log(root: Path) -> Subject:
    """What a user calls."""
    import launchhelm

    run = launchhelm.init("benchmark", state_dir=root)
    return Subject(
        lambda values, step: run.log(values, step=step),
        lambda: run.flush(delivered=False, timeout=60),
        run.finish,
    )


SUBJECTS: Mapping[str, Callable[[Path], Subject]] = {
    "Run.log": run_log,
    "Run.log without orjson": run_log,
    "recorder without orjson": recorder,
    "JSON lines": json_lines,
    "sqlite3": sqlite_rows,
}


# --- in the child ---------------------------------------------------------------------------------


def resident_mib() -> float:
    """Resident set of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def size_bytes(root: Path) -> int:
    """All bytes below a directory."""
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())


def timed(log: Log, rows: list[dict[str, float]], pause_s: float) -> list[float]:
    """Call `log` for every row; return the seconds that each call took."""
    clock = time.perf_counter
    took = []
    for step, row in enumerate(rows):
        before = clock()
        log(row, step)
        took.append(clock() - before)
        if pause_s:
            time.sleep(pause_s)
    return took


def child(name: str, mode: str, root: Path) -> None:
    """Measure one subject in one way; print the figures as JSON."""
    if "without orjson" in name:
        sys.modules["orjson"] = None  # type: ignore[assignment]  # Makes its import fail.
    chance = random.Random(0)
    counts = {"burst": BURST_CALLS, "paced": PACED_CALLS, "killed": KILLED_CALLS}
    names = [f"train/loss{number}" for number in range(SCALARS)]
    rows = [{name: chance.random() for name in names} for _ in range(counts.get(mode, 1))]
    before_mib = resident_mib()
    subject = SUBJECTS[name](root)
    if mode == "first":
        subject.log(rows[0], 0)
        print(time.clock_gettime(time.CLOCK_MONOTONIC), flush=True)
        subject.end()
        return
    if mode == "nothing":
        subject.end()
        print("{}")
        return
    start = time.perf_counter()
    took = timed(subject.log, rows, PACE_S if mode == "paced" else 0.0)
    if mode == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    subject.flush()
    durable_s = time.perf_counter() - start
    memory_mib = resident_mib() - before_mib
    bytes_open = size_bytes(root)
    subject.end()
    took.sort()
    points = len(rows) * SCALARS
    found = {
        "p50": took[len(took) // 2] * 1e6,
        "p99": took[len(took) * 99 // 100] * 1e6,
        "points_s": points / durable_s,
        "open": bytes_open / points,
        "ended": size_bytes(root) / points,
        "memory": memory_mib,
    }
    print(json.dumps(found))


def kept(name: str, root: Path) -> int:
    """Count the calls of a killed process that are on disk."""
    if name == "JSON lines":
        return (root / "log.jsonl").read_bytes().count(b"\n")
    if name == "sqlite3":
        with sqlite3.connect(root / "log.db") as connection:
            (count,) = connection.execute("SELECT count(*) FROM point").fetchone()
        connection.close()
        return int(count) // SCALARS
    return sum(path.read_bytes().count(b'"k":"m"') for path in root.rglob("*.jsonl"))


# --- in the parent --------------------------------------------------------------------------------


def measure(name: str, mode: str, root: Path) -> dict[str, float]:
    """Run one child; return its figures, with the CPU seconds of its process tree."""
    place = Path(tempfile.mkdtemp(dir=root))
    started = time.clock_gettime(time.CLOCK_MONOTONIC)
    command = [sys.executable, "-m", "benchmarks.logging", "--child", name, mode, str(place)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    said = process.stdout.read()
    process.stdout.close()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    try:
        if mode == "killed":
            return {"lost": KILLED_CALLS - kept(name, place)}
        if process.returncode:
            raise RuntimeError(f"{name}, {mode}: exit status {process.returncode}")
        if mode == "first":
            return {"first": float(said) - started}
        return {**json.loads(said), "cpu": usage.ru_utime + usage.ru_stime}
    finally:
        shutil.rmtree(place)


def collect(rounds: int, root: Path) -> dict[str, dict[str, float]]:
    """Measure every subject in every way, interleaved; return medians by subject."""
    samples: dict[str, dict[str, list[float]]] = {name: {} for name in SUBJECTS}
    for _ in range(rounds):
        for mode in ("burst", "nothing", "paced", "first", "killed"):
            for name in SUBJECTS:
                for key, value in measure(name, mode, root).items():
                    label = key if key in ("first", "lost") else f"{mode} {key}"
                    samples[name].setdefault(label, []).append(value)
    return {
        name: {label: statistics.median(values) for label, values in found.items()}
        for name, found in samples.items()
    }


def table(medians: Mapping[str, Mapping[str, float]]) -> str:
    """Render the medians as markdown, with ratios to JSON lines."""
    lines = [
        "| | back to back p50 / p99 us | each 5 ms p50 / p99 us | CPU per call us "
        "| durable points/s | bytes/point open, ended | first log s | memory MiB | lost of 2,000 |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, found in medians.items():
        cpu_us = (found["burst cpu"] - found["nothing cpu"]) / BURST_CALLS * 1e6
        lines.append(
            f"| {name} | {found['burst p50']:.1f} / {found['burst p99']:.0f} "
            f"| {found['paced p50']:.0f} / {found['paced p99']:.0f} | {cpu_us:.0f} "
            f"| {found['burst points_s']:,.0f} | {found['burst open']:.1f}, "
            f"{found['burst ended']:.1f} | {found['first']:.2f} | {found['burst memory']:.0f} "
            f"| {found['lost']:.0f} |"
        )
    base = medians["JSON lines"]
    lines += ["", "Times as long as JSON lines, p50 / p99, back to back; each 5 ms:", ""]
    for name, found in medians.items():
        pairs = [
            f"{found[f'{mode} p50'] / base[f'{mode} p50']:.2f} / "
            f"{found[f'{mode} p99'] / base[f'{mode} p99']:.2f}"
            for mode in ("burst", "paced")
        ]
        lines.append(f"- {name}: {pairs[0]}; {pairs[1]}")
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--root", type=Path, default=None, help="where to write; default: here")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options: Any = parser.parse_args()  # Any: argparse has no types.
    if options.child:
        name, mode, root = options.child
        child(name, mode, Path(root))
        return
    with tempfile.TemporaryDirectory(dir=options.root or Path.cwd()) as root:
        print(table(collect(options.rounds, Path(root))))


if __name__ == "__main__":
    main()
