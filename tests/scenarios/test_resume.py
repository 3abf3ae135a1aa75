"""A run goes on: by name, by id, after a kill, by its launcher; and nothing of it is touched."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import launchhelm
from launchhelm import views
from launchhelm._run_open import Ask, open_run
from launchhelm.errors import Conflict, NotFound
from launchhelm.records import Participant
from launchhelm.store.manifest import attempts
from tests.support.journals import only_run, series
from tests.support.runs import TurnedClock, running

ROOT = Path(__file__).resolve().parents[2]

LOOP = """
import os, sys
sys.path.insert(0, {root!r})
import launchhelm
first, last = int(os.environ["FIRST"]), int(os.environ["LAST"])
run = launchhelm.init("p", name="looped", state_dir={runs!r}, resume=os.environ.get("RESUME", ""))
print(run.run_id, run.attempt.number, run.next_step, run.restored, flush=True)
for step in range(first, last):
    run.log({{"a": step + run.attempt.number / 10}}, step=step, epoch=step // 10)
run.flush(delivered=False)
if os.environ.get("END") == "kill":
    os.kill(os.getpid(), 9)
run.finish(close_run=False)
"""


def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(LOOP.format(root=str(ROOT), runs=str(tmp_path / "runs")))
    return path


def launch(path: Path, first: int, last: int, **variables: str) -> str:
    """Run the loop from this process, as a launcher would; return the first line it printed."""
    done = subprocess.run(
        [sys.executable, path.name],
        cwd=path.parent,
        env={**os.environ, "FIRST": str(first), "LAST": str(last), **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode in (0, -9), done.stderr
    return done.stdout.splitlines()[0]


def digests(directory: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (directory / "data").iterdir()
    }


def test_three_jobs_one_after_the_other_write_one_run(tmp_path: Path) -> None:
    path = script(tmp_path)
    run_id = launch(path, 0, 100).split()[0]
    directory = tmp_path / "runs" / run_id
    before = digests(directory)
    for number in (1, 2):
        first = 100 * number
        assert launch(
            path, first, first + 100, RESUME=run_id
        ) == f"{run_id} {number + 1} {first} " + (
            f"{{'step': '{first - 1}', 'epoch': '{(first - 1) // 10}'}}"
        )
    after = digests(directory)
    assert {name: after[name] for name in before} == before
    assert [step for step, _ in series(directory, "a")] == list(range(300))
    assert [attempt.resumed_from for attempt in attempts(directory)] == [None, 1, 2]


def test_repeated_steps_are_kept_and_the_newest_attempt_is_shown(tmp_path: Path) -> None:
    path = script(tmp_path)
    run_id = launch(path, 0, 13, END="kill").split()[0]
    launch(path, 10, 20, RESUME="looped")
    directory = tmp_path / "runs" / run_id
    assert len(series(directory, "a")) == 23
    view = views.open_run(directory)
    shown = view.history("a")
    assert [point.step for point in shown] == list(range(20))
    assert [point.attempt for point in shown] == [1] * 10 + [2] * 10
    assert len(view.history("a", all_attempts=True)) == 23


def test_a_killed_job_goes_on_after_its_highest_step(tmp_path: Path) -> None:
    path = script(tmp_path)
    run_id = launch(path, 0, 7, END="kill").split()[0]
    assert launch(path, 7, 8, RESUME=run_id).split()[1:3] == ["2", "7"]


def test_kept_state_comes_back_with_its_step(tmp_path: Path) -> None:
    with running(tmp_path) as first:
        first.log({"a": 1}, step=4)
        first.keep({"epoch": 2, "lr": [0.1]})
        first.log({"a": 1}, step=9)
        first.describe(name="renamed", tags=["x"])
        first.summary({"best": 0.5})
        first.finish(close_run=False)
    with running(tmp_path, resume="renamed") as second:
        assert second.run_id == first.run_id
        assert second.restored == {"epoch": 2, "lr": [0.1]}
        assert second.next_step == 5
        assert (second.name, second.tags) == ("renamed", ("x",))
        assert second.summary_values == {"best": 0.5}
        assert second.attempt.resumed_from == 1
        assert second.runtime.session["epoch"] == "2"


def test_a_new_run_beside_it_starts_with_nothing_of_it(tmp_path: Path) -> None:
    with running(tmp_path) as first:
        first.log({"a": 1}, step=9)
        first.keep({"epoch": 2})
        first.finish(close_run=False)
    with running(tmp_path) as other:
        assert (other.restored, other.next_step) == ({}, 0)
        assert other.run_id != first.run_id


def test_the_config_comes_back_with_its_types(tmp_path: Path) -> None:
    config = {"lr": 1e-3, "n": 3, "on": True, "nested": {"a": [1, 2.5, "x"]}}
    with running(tmp_path, config=config) as first:
        first.finish(close_run=False)
    with running(tmp_path, resume=first.run_id) as second:
        assert second.config == config


def test_what_cannot_be_resumed_is_told_apart(tmp_path: Path) -> None:
    def resume(what: str, project: str = "tests") -> None:
        launchhelm.init(project, resume=what, state_dir=tmp_path)

    with pytest.raises(NotFound):
        resume("nothing")
    with running(tmp_path, name="done") as done:
        pass
    with running(tmp_path, name="twin") as twin, running(tmp_path, name="twin"):
        twin.finish(close_run=False)
    with pytest.raises(Conflict, match="is closed"):
        resume("done")
    with pytest.raises(Conflict, match="is closed"):
        resume(done.run_id)
    with pytest.raises(Conflict, match="2 runs"):
        resume("twin")
    with pytest.raises(NotFound):
        resume(twin.run_id, project="another")
    assert len(attempts(done.directory)) == 1


def test_a_run_that_failed_can_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="bad"), running(tmp_path) as first, first:
        raise ValueError("bad")
    with running(tmp_path, resume=first.run_id) as second:
        assert second.attempt.number == 2


def elastic(restarts: int, run_id: str = "job") -> dict[str, str]:
    return {"TORCHELASTIC_RUN_ID": run_id, "TORCHELASTIC_RESTART_COUNT": str(restarts)}


def slurm(restarts: int, *, job: str = "77", task: str = "") -> dict[str, str]:
    return {
        "SLURM_JOB_ID": job,
        "SLURM_ARRAY_TASK_ID": task,
        "SLURM_STEP_ID": "0",
        "SLURM_RESTART_COUNT": str(restarts),
    }


def test_a_restart_by_the_launcher_is_an_attempt_of_its_run(tmp_path: Path) -> None:
    path = script(tmp_path)
    for restarts in range(3):
        launch(path, 10 * restarts, 10 * restarts + 10, END="kill", **elastic(restarts))
    directory = only_run(tmp_path / "runs")
    assert [attempt.restart_count for attempt in attempts(directory)] == [0, 1, 2]
    assert [step for step, _ in series(directory, "a")] == list(range(30))


def test_a_requeued_job_goes_on_and_array_tasks_never_share_a_run(tmp_path: Path) -> None:
    path = script(tmp_path)
    ids = {
        (task, restarts): launch(path, 0, 3, END="kill", **slurm(restarts, task=task)).split()
        for restarts in (0, 1)
        for task in ("1", "2")
    }
    assert ids["1", 0][0] == ids["1", 1][0]
    assert ids["2", 0][0] == ids["2", 1][0]
    assert ids["1", 0][0] != ids["2", 0][0]
    assert ids["1", 1][1:3] == ["2", "3"]
    [attempt] = attempts(tmp_path / "runs" / ids["1", 1][0])[1:]
    assert attempt.labels == {"next_step": "3"}
    assert attempt.launch["slurm"] == "77/1/0"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (elastic(0), elastic(0)),
        (elastic(0), elastic(1, "another")),
        (slurm(0), slurm(1, job="78")),
        (slurm(1), slurm(1)),
        ({}, slurm(1)),
        ({}, elastic(1)),
    ],
    ids=["first starts", "other launch", "other job", "same count", "no launcher", "no elastic"],
)
def test_whatever_is_no_restart_of_it_is_a_run_of_its_own(
    tmp_path: Path, first: dict[str, Any], second: dict[str, Any]
) -> None:
    path = script(tmp_path)
    ids = [launch(path, 0, 2, END="kill", **variables).split()[0] for variables in (first, second)]
    assert len(set(ids)) == 2


def test_a_restart_of_a_closed_run_is_a_new_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in slurm(0).items():
        monkeypatch.setenv(name, value)
    with running(tmp_path) as first:
        pass
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    with running(tmp_path) as second:
        assert second.run_id != first.run_id


def test_another_command_line_in_the_same_job_is_another_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in slurm(0).items():
        monkeypatch.setenv(name, value)
    with running(tmp_path) as first:
        first.finish(close_run=False)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    monkeypatch.setattr(sys, "argv", ["evaluate.py"])
    with running(tmp_path) as second:
        assert second.run_id != first.run_id


def test_jobs_that_start_in_the_same_instant_never_share_an_id(tmp_path: Path) -> None:
    clock = TurnedClock()
    here = Participant("p", "rank-0", "trainer", 0, 1, 0, 0, "here", os.getpid())
    ask = Ask.of("p", state_dir=tmp_path)
    opened = [open_run(ask, here, clock=clock) for _ in range(60)]
    assert len({each.manifest.run_id for each in opened}) == 60
    assert len(list(tmp_path.iterdir())) == 60
