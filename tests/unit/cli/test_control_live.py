"""A command from the command line lands in a real process, and its answer comes back."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Cli

REPOSITORY = Path(__file__).parents[3]

LOOP = """
import pathlib, sys, time
import launchhelm

run = launchhelm.init("quickstart", name="loop", state_dir=sys.argv[1])

@run.command("after_step")
def set_rate(rate: float):
    if rate > 1:
        raise RuntimeError("too much")

step = 0
while not pathlib.Path(sys.argv[1], "stop").exists() and step < 5_000:
    run.log({"loss": 1.0}, step=step)
    run.sync("after_step", step=step)
    time.sleep(0.01)
    step += 1
run.finish()
"""


@pytest.fixture
def training(root: Path, cli: Cli) -> Iterator[None]:
    """Run the loop until the test is over."""
    process = subprocess.Popen(
        [sys.executable, "-c", LOOP, str(root)], cwd=REPOSITORY, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 30
        while "set_rate" not in cli("control", "latest", "list").out:
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.05)
        yield
    finally:
        (root / "stop").touch()
        process.wait(timeout=30)


def test_a_command_from_the_command_line_acts_in_a_running_process(
    training: None, root: Path, cli: Cli
) -> None:
    ran = cli("control", "loop", "set_rate", "rate=0.5", "--reason", "why not", "--timeout", "30")
    assert ran.code == 0
    assert ran.out.startswith("Applied at step ")
    ahead = cli("show", "loop", "--json").document["step"] + 50
    document = cli(
        "control", "loop", "set_rate", "rate=0.7", f"--at-step={ahead}", "--timeout=30", "--json"
    ).document
    assert int(document["applied_at"]["step"]) >= ahead
    expired = cli("control", "loop", "set_rate", "rate=0.7", "--last-step=1", "--timeout=30")
    assert expired.code == 6 and "nothing changed" in expired.out
    failed = cli("control", "loop", "set_rate", "rate=2", "--timeout=30")
    assert failed.code == 7 and failed.out.startswith("Outcome unknown")
    log = cli("control", "loop", "log", "--json").lines
    assert [line["state"] for line in log] == ["applied", "applied", "expired", "outcome_unknown"]
    assert log[0]["reason"] == "why not" and log[0]["owner"]
