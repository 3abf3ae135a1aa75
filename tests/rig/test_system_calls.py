"""What a recording process asks of the file system, seen by strace."""

from __future__ import annotations

import collections
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rig.writer import new_run
from tests.support.two_hosts import RIG

CALLS = (
    "openat,open,creat,mkdir,mkdirat,rename,renameat,renameat2,link,linkat,unlink,unlinkat,rmdir,"
    "stat,lstat,newfstatat,statx,access,faccessat,faccessat2,getdents64,readlink,"
    "pwrite64,write,pwritev,fsync,fdatasync,flock,fcntl,mmap,ftruncate,symlink,symlinkat"
)
_LINE = re.compile(r"^(?:\d+ +)?(\w+)\((.*)\) += (-?\d+)")
_PATH = re.compile(r'"([^"]*)"|<(/[^>]*)>')


def traced(tmp_path: Path, program: str) -> list[tuple[str, str, str]]:
    """Run a program under strace; return (call, its first path, its text) of each call in the run.

    The program gets the run directory as its argument and prints `mark` twice with a write to
    descriptor 2; calls between those two are returned.
    """
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed (Debian: strace)")
    run = new_run(tmp_path / "runs")
    script = tmp_path / "program.py"
    script.write_text(program)
    log = tmp_path / "trace"
    strace = ["strace", "-f", "-y", "-qq", "-s", "32", "-e", f"trace={CALLS}", "-o", str(log)]
    done = subprocess.run(
        [*strace, sys.executable, str(script), str(run), str(RIG.parents[1])],
        capture_output=True,
        text=True,
        timeout=100,
    )
    if "ptrace" in done.stderr:
        pytest.skip(f"strace cannot trace here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    lines = log.read_text(errors="replace").splitlines()
    marks = [number for number, line in enumerate(lines) if '"mark' in line and "write(2" in line]
    assert len(marks) == 2, marks
    found = []
    for line in lines[marks[0] : marks[1]]:
        match = _LINE.match(line)
        path = _PATH.search(match[2]) if match else None
        if match and path:
            found.append((match[1], path[1] or path[2], line))
    return [entry for entry in found if str(run) in entry[2]]


HEAD = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from launchhelm._recorder import Recorder
from launchhelm.records import WriterId
from tests.rig.writer import opening

writer = WriterId(0, 1, "0000000a")
"""


def test_a_flush_asks_for_one_write_and_one_sync_and_nothing_else(tmp_path: Path) -> None:
    """No lock, no name, no mapping: the cost of a logging rank on a shared file system."""
    calls = traced(
        tmp_path,
        HEAD
        + """
recorder = Recorder(Path(sys.argv[1]), writer, opening(writer), flush_s=3600)
recorder.start()
recorder.append("m", {"loss": 1.0}, step=0)
recorder.flush(30)
os.write(2, b"mark")
for step in range(1, 501):
    recorder.append("m", {"loss": 1 / step, "lr": 0.1}, step=step)
    if step % 50 == 0:
        recorder.flush(30)
os.write(2, b"mark")
recorder.close("finished", "", 30)
""",
    )
    counts = collections.Counter(call for call, _, _ in calls)
    assert counts == {"pwrite64": 10, "fsync": 10}


def test_an_idle_rank_only_writes_its_heartbeat(tmp_path: Path) -> None:
    """One write and one sync a beat, and no metadata operation."""
    calls = traced(
        tmp_path,
        HEAD
        + """
recorder = Recorder(Path(sys.argv[1]), writer, opening(writer), heartbeat_s=0.5)
recorder.start()
journal = next(Path(sys.argv[1], "data").iterdir())
def grown(size):
    deadline = time.monotonic() + 30
    while os.stat(journal).st_size <= size and time.monotonic() < deadline:
        time.sleep(0.05)
    return os.stat(journal).st_size
size = grown(os.stat(journal).st_size)
os.write(2, b"mark")
for _ in range(4):
    size = grown(size)
os.write(2, b"mark")
recorder.close("finished", "", 30)
""",
    )
    ours = [call for call, _, _ in calls if call not in ("stat", "newfstatat")]  # The test's own.
    counts = collections.Counter(ours)
    assert set(counts) == {"pwrite64", "fsync"}
    assert 3 <= counts["pwrite64"] <= 6 and 3 <= counts["fsync"] <= 6


def test_a_whole_run_maps_no_file_takes_no_lock_and_opens_no_database_for_writing(
    tmp_path: Path,
) -> None:
    """From the first record to sealed segments: SQLite works in memory only."""
    calls = traced(
        tmp_path,
        HEAD
        + """
os.write(2, b"mark")
recorder = Recorder(Path(sys.argv[1]), writer, opening(writer), segment_bytes=20_000)
recorder.start()
for step in range(1000):
    recorder.append("m", {"loss": float(step), "note": "x"}, step=step)
    if step % 100 == 99:
        recorder.flush(30)
recorder.close("finished", "", 30)
os.write(2, b"mark")
""",
    )
    names = {call for call, _, _ in calls}
    assert not names & {"flock", "mmap", "symlink", "symlinkat", "link", "linkat", "ftruncate"}
    assert [line for call, _, line in calls if call == "fcntl" and "LK" in line] == []
    opened = [line for call, _, line in calls if call in ("openat", "open") and ".db" in line]
    for line in opened:
        assert "O_RDONLY" in line or "/.r00000" in line, line  # Sealed ones are made by rename.
    sides = [line for _, _, line in calls if re.search(r"\.db-(wal|shm|journal)", line)]
    assert [line for line in sides if "ENOENT" not in line] == []
    renames = [line for call, _, line in calls if call.startswith("rename")]
    assert renames, "nothing was sealed"
