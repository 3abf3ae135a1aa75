"""Which system calls does a rank make on its run directory while it idles, and while it logs?

    python -m benchmarks.idle
    python -m benchmarks.idle --seconds 60 --root /shared/somewhere

Needs strace. Idle: nothing is logged. Steady: 10 scalars each 20 ms. Both with the flush interval
of a network file system (1 s) and of a local one (0.25 s). Prints a markdown table of calls a
minute; metadata operations are those that name a path or list a directory.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

_BEGIN, _END = "/launchhelm-benchmark-begins", "/launchhelm-benchmark-ends"
_CALL = re.compile(r"^\d+ +(\w+)\(")
# fmt: off
_METADATA = frozenset((
    "open", "openat", "creat", "rename", "renameat", "renameat2", "unlink", "unlinkat",
    "mkdir", "mkdirat", "stat", "lstat", "newfstatat", "statx", "access", "faccessat",
    "faccessat2", "getdents64", "chmod", "fchmod", "fchmodat", "link", "linkat", "readlink",
    "readlinkat",
))
# fmt: on
_LOCKS = frozenset({"fcntl", "flock"})


def child(root: Path, logs: bool, seconds: float, flush_s: float) -> None:
    """Record for a while between two marks that strace shows."""
    from launchhelm._recorder import Recorder
    from launchhelm.records import WriterId

    recorder = Recorder(root, WriterId(0, 1, "00000000"), {}, flush_s=flush_s)
    recorder.start()
    values = {f"train/loss{number}": 0.1 for number in range(10)}
    time.sleep(2 * flush_s)
    Path(_BEGIN).exists()
    end = time.monotonic() + seconds
    step = 0
    while time.monotonic() < end:
        if logs:
            recorder.append("m", values, step=step)
            step += 1
        time.sleep(0.02)
    Path(_END).exists()
    recorder.close("finished", "", 10)


def count(root: Path, logs: bool, seconds: float, flush_s: float) -> Counter[str]:
    """Count the calls between the marks that name the run directory or a file in it."""
    trace = root / "trace"
    run = root / "run"
    run.mkdir()
    command = ["strace", "-f", "-y", "-qq", "-o", str(trace), "-e"]
    command += ["trace=%file,%desc,fsync,fdatasync", sys.executable, "-m", "benchmarks.idle"]
    command += ["--child", str(run), str(int(logs)), str(seconds), str(flush_s)]
    subprocess.run(command, check=True)
    calls: Counter[str] = Counter()
    inside = False
    for line in trace.read_text(errors="replace").splitlines():
        if _BEGIN in line or _END in line:
            inside = _BEGIN in line
        match = _CALL.match(line)
        if inside and match and str(run) in line:
            calls[match[1]] += 1
    return calls


def main() -> None:
    """Trace four times and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=31.0)
    parser.add_argument("--root", type=Path, default=None, help="where to write; default: here")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    options: Any = parser.parse_args()  # Any: argparse has no types.
    if options.child:
        root, logs, seconds, flush_s = options.child
        child(Path(root), logs == "1", float(seconds), float(flush_s))
        return
    print("| calls per minute | writes | fsyncs | metadata operations | locks | other |")
    print("| --- | --- | --- | --- | --- | --- |")
    for logs in (False, True):
        for flush_s in (1.0, 0.25):
            with tempfile.TemporaryDirectory(dir=options.root or Path.cwd()) as root:
                calls = count(Path(root), logs, options.seconds, flush_s)
            minutes = options.seconds / 60
            figures = [
                calls.pop("pwrite64", 0) + calls.pop("write", 0),
                calls.pop("fsync", 0) + calls.pop("fdatasync", 0),
                sum(calls.pop(name) for name in list(calls) if name in _METADATA),
                sum(calls.pop(name) for name in list(calls) if name in _LOCKS),
                sum(calls.values()),
            ]
            cells = " | ".join(f"{figure / minutes:.0f}" for figure in figures)
            print(f"| {'steady' if logs else 'idle'}, flush {flush_s:g} s | {cells} |")


if __name__ == "__main__":
    main()
