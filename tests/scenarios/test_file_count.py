"""How many files a run is made of, whatever it logs and however often it is commanded."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import launchhelm
from launchhelm.store.layout import DATA
from tests.support.journals import final_outcomes
from tests.support.runs import send

STEPS = 20_000
NAMES = 2_000
COMMANDS = 20
ATTEMPTS = 2


@pytest.mark.slow
def test_files_grow_with_attempts_and_segments_not_with_steps_names_or_commands(
    tmp_path: Path,
) -> None:
    """One process, two attempts, each of 20,000 steps, 2,000 names and 20 commands."""
    run_id = ""
    for _ in range(ATTEMPTS):
        run = launchhelm.init("files", state_dir=tmp_path / "runs", resume=run_id)
        run_id = run.run_id
        run.command("after_step", name="set_lr")(_set_lr)
        for _ in range(COMMANDS):
            send(run.directory, "set_lr", {"lr": 0.5})
        for step in range(STEPS):
            run.log({f"name/{step % NAMES}": step, "loss": 1.0}, step=step)
        done = 0
        deadline = time.monotonic() + 60
        while done < COMMANDS and time.monotonic() < deadline:
            done += run.sync("after_step", step=STEPS)
        assert done == COMMANDS
        run.finish(close_run=False)

    files = [path for path in run.directory.rglob("*") if path.is_file()]
    segments = [path for path in files if path.parent.name == DATA]
    assert len(files) - len(segments) <= 10 + 4 * ATTEMPTS
    assert len(segments) <= 4 * ATTEMPTS
    outcomes = final_outcomes(run.directory)
    assert len(outcomes) == COMMANDS * ATTEMPTS
    assert all([outcome.state] == ["applied"] for [outcome] in outcomes.values())


def _set_lr(lr: float) -> None:
    pass
