"""A command from the command line lands in a real process, and its answer comes back."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from launchhelm.records import Command
from launchhelm.store import inbox
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


TRAINER = """
import pathlib, sys, time
import torch
import launchhelm.torch as lht

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with lht.init("quickstart", name="trainer", state_dir=sys.argv[1]) as tr:
    tr.watch(model, optimizer, controls=("lr", "stop", "pause"))
    step = 0
    while not tr.stop_requested and not pathlib.Path(sys.argv[1], "stop").exists():
        optimizer.zero_grad()
        loss = model(torch.ones(2, 2)).square().mean()
        loss.backward()
        optimizer.step()
        tr.step(step=step, loss=loss)
        time.sleep(0.01)
        step += 1
"""


@contextmanager
def running(script: str, root: Path, cli: Cli, *words: str, control: str) -> Iterator[None]:
    """Run a script until the block is over; begin once it offers a control."""
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(root), *words], cwd=REPOSITORY, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 60
        while control not in cli("control", "latest", "list").out:
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.05)
        yield
    finally:
        (root / "stop").touch()
        process.wait(timeout=30)


@pytest.fixture
def training(root: Path, cli: Cli) -> Iterator[None]:
    """Run the loop until the test is over."""
    with running(LOOP, root, cli, control="set_rate"):
        yield


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


OPEN = ("waiting", "taken", "claimed", "applying")

RESUMED = """
import pathlib, sys, time
import launchhelm

root, resume = sys.argv[1:]
run = launchhelm.init("quickstart", name="again", state_dir=root, resume=resume)

@run.command("after_step")
def set_rate(rate: float):
    pathlib.Path(root, "acted").touch()

while not pathlib.Path(root, "stop").exists():
    run.sync("after_step", step=0)
    time.sleep(0.01)
run.finish(close_run=False)
"""


def test_what_is_cancelled_between_two_attempts_never_acts(root: Path, cli: Cli) -> None:
    def attempt(resume: str) -> AbstractContextManager[None]:
        (root / "stop").unlink(missing_ok=True)
        return running(RESUMED, root, cli, resume, control="set_rate")

    def ledger() -> dict[str, str]:
        return {it["id"]: it["state"] for it in cli("control", "again", "log", "--json").lines}

    with attempt(""):
        pass
    directory = Path(cli("show", "again", "--json").document["directory"])
    inbox.send(directory, Command("c1", "set_rate", {"rate": 0.5}))
    ran = cli("control", "again", "cancel", "c1", "--timeout=0.1")
    assert ran.code == 8 and "before it acts" in ran.err
    with attempt("again"):
        deadline = time.monotonic() + 30
        while (states := ledger())["c1"] in OPEN:
            assert time.monotonic() < deadline, states
            time.sleep(0.1)
    assert states["c1"] == "cancelled"
    assert not (root / "acted").exists()


def test_a_pause_is_seen_and_a_command_acts_in_the_step_of_the_pause(root: Path, cli: Cli) -> None:
    with running(TRAINER, root, cli, control="pause"):
        paused = cli("control", "trainer", "pause", "--json", "--timeout", "60").document
        assert paused["state"] == "applied", paused
        step = int(paused["applied_at"]["step"])
        deadline = time.monotonic() + 60
        while f"paused at step {step:,}" not in cli("ls").out:
            assert time.monotonic() < deadline, cli("ls").out
            time.sleep(0.1)
        assert f"paused at step {step:,}" in cli("show", "trainer").out
        ran = cli("control", "trainer", "lr", "scale=0.5", f"--at-step={step}", "--timeout=60")
        assert ran.out == f"Applied at step {step:,}, lr 0.1 -> 0.05\n", ran.err
        assert "has passed" not in ran.err
        assert cli("control", "trainer", "resume", "--timeout=60").code == 0
        while "paused" in cli("ls").out:
            assert time.monotonic() < deadline, cli("ls").out
            time.sleep(0.1)
        assert cli("ls", "--json").document["state"] == "running"
