"""SIGTERM, and SIGKILL two seconds later: what is on disk by then."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO

import pytest

import launchhelm
from tests.support.journals import records

ROOT = Path(__file__).resolve().parents[2]
GRACE_S = 2.0

SCRIPT = """
import sys, time
sys.path.insert(0, {root!r})
import launchhelm
run = launchhelm.init("p", state_dir="runs", handle_signals={handles})
print(run.directory, flush=True)
step = 0
try:
    while True:
        run.log({{"loss": 1.0}}, step=step)
        print(step, flush=True)
        step += 1
        time.sleep(0.002)
except SystemExit:
    print("the script's own handler ran", flush=True)
"""


def preempted(tmp_path: Path, *, handles: bool, after_steps: int = 150) -> tuple[Path, int, int]:
    """Run the script, send SIGTERM and after the grace SIGKILL.

    Returns the run directory, the newest step logged, and the number it exited with.
    """
    code = SCRIPT.format(root=str(ROOT), handles=handles)
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert child.stdout is not None
    with child, child.stdout as out:
        directory = Path(out.readline().strip())
        last = _read_until(out, after_steps)
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            child.kill()
        last = max([last, *(int(line) for line in out if line.strip().isdigit())])
    return directory, last, child.returncode


def _read_until(out: IO[str], step: int) -> int:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        last = int(out.readline())
        if last >= step:
            return last
    raise TimeoutError(f"the script did not come to step {step}")


@pytest.mark.parametrize("handles", [True, False])
def test_a_preempted_process_leaves_what_it_logged(tmp_path: Path, handles: bool) -> None:
    """With handling, all of it and the reason; without, at most one flush interval is missing."""
    directory, last, status = preempted(tmp_path, handles=handles)
    # Either way the signal does in the end what it did before.
    assert status == -signal.SIGTERM
    steps = [record.step for record in records(directory, "m")]
    assert steps == list(range(len(steps)))
    ends = [dict(record.body) for record in records(directory, "close")]
    if handles:
        assert len(steps) >= last + 1
        assert [(end["state"], end["reason"]) for end in ends] == [("terminated", "SIGTERM")]
    else:
        assert ends == []
        # The interval is 0.25 s on a local disk; a loaded machine may log late, never more.
        assert len(steps) >= last - 0.25 / 0.002 - 25


def test_handling_signals_off_the_main_thread_is_refused_with_the_reason(tmp_path: Path) -> None:
    said: list[str] = []

    def start() -> None:
        try:
            launchhelm.init("p", state_dir=tmp_path / "runs", handle_signals=True)
        except ValueError as error:
            said.append(str(error))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert len(said) == 1 and "main thread" in said[0]
