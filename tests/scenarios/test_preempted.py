"""Jobs that are preempted, requeued or restarted by their launcher go on as if undisturbed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launchhelm import views
from launchhelm.cli.documents import attempt_documents
from launchhelm.store.manifest import attempts
from tests.support.journals import only_run, records, series
from tests.support.ranks import Ended, Ranks

ROOT = Path(__file__).resolve().parents[2]
STEPS = 60
SAVED, DIES = 20, 30


def trains(
    rank: int, size: int, tell: Callable[[str], None], root: str, fate: str = ""
) -> dict[str, Any]:
    """Train; in the first attempt rank 1 is signalled or killed on the way."""
    import os
    import signal

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import launchhelm.torch as lht

    torch.manual_seed(rank)
    layers = [torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)
    tr = lht.init("preempted", state_dir=root, handle_signals="checkpoint", control_every=1)
    tr.watch(model, optimizer, scheduler)
    is_first = tr.run.attempt.number == 1
    if not is_first:
        tr.load_checkpoint("latest")
    while tr.global_step < STEPS and not tr.stop_requested:
        loss = model(torch.randn(8, 4)).square().mean()  # Every rank draws its own batches.
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        tr.step(loss=loss)
        if is_first and fate == "killed" and tr.global_step == SAVED:
            tr.save_checkpoint()
        if is_first and rank == 1 and tr.global_step == DIES and fate:
            os.kill(os.getpid(), signal.SIGTERM if fate == "signalled" else signal.SIGKILL)
    weights = torch.cat([each.detach().flatten() for each in model.parameters()])
    tr.finish()
    dist.destroy_process_group()
    return {"step": tr.global_step, "weights": [each.hex() for each in weights.tolist()]}


def job(root: Path, fate: str = "", **variables: str) -> list[Ended]:
    """Run the training on two ranks to its end, as a launcher with these variables would."""
    with Ranks(
        trains, 2, deadline_s=200.0, root=str(root), fate=fate, environment=variables
    ) as ranks:
        return ranks.wait()


def slurm(restarts: int, task: str = "") -> dict[str, str]:
    return {
        "SLURM_JOB_ID": "4711",
        "SLURM_ARRAY_TASK_ID": task,
        "SLURM_STEP_ID": "0",
        "SLURM_RESTART_COUNT": str(restarts),
    }


def elastic(restarts: int) -> dict[str, str]:
    return {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": str(restarts)}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The weights of a training that nobody disturbed."""
    ended = job(tmp_path_factory.mktemp("undisturbed"))
    assert [one.code for one in ended] == [0, 0], ended
    return ended[0].value["weights"]


@pytest.mark.timeout(600)
def test_a_requeued_job_goes_on_bit_for_bit_after_a_signal_on_one_rank(
    tmp_path: Path, undisturbed: Any
) -> None:
    """SLURM sends SIGTERM to rank 1 alone, and starts the job again under its id."""
    stopped = job(tmp_path, "signalled", **slurm(0, "3"))
    assert [one.code for one in stopped] == [0, 0], stopped
    (step,) = {one.value["step"] for one in stopped}
    assert DIES <= step < STEPS
    run = only_run(tmp_path)
    view = views.open_run(run)
    assert view.state.text == f"stopped by SIGTERM on rank 1 at step {step}"
    assert not view.state.is_closed
    assert [it.step for it in records(run, "art", rank=0)] == [step]

    ended = job(tmp_path, **slurm(1, "3"))
    assert [one.value["weights"] for one in ended] == [undisturbed, undisturbed]
    assert only_run(tmp_path) == run
    view = views.open_run(run)
    assert view.state.is_closed
    first, second = attempt_documents(view)
    assert (first["end"], first["reason"]) == ("terminated", "SIGTERM on rank 1")
    assert (second["restart_count"], second["resumed_from"]) == (1, 1)
    # It goes on where it ended: nothing is repeated and nothing is missing.
    assert (first["last_step"], second["first_step"], second["joins"]) == (step, step + 1, "")
    assert [it for it, _ in series(run, "train/loss")] == list(range(1, STEPS + 1))


def assert_repeated(run: Path) -> None:
    """Of a run whose second attempt began ten steps before the end of its first."""
    assert [it.restart_count for it in attempts(run)] == [0, 1]
    view = views.open_run(run)
    first, second = attempt_documents(view)
    last = first["last_step"]
    assert DIES - 1 <= last <= DIES
    assert (second["first_step"], second["joins"]) == (SAVED + 1, f"repeats 21 to {last}")
    # Both values of a repeated step are kept, and the newer one is shown.
    assert len(series(run, "train/loss")) == STEPS + last - SAVED
    shown = view.history("train/loss", limit=STEPS + 1)
    assert [point.step for point in shown] == list(range(1, STEPS + 1))
    assert {point.attempt for point in shown if (point.step or 0) > SAVED} == {2}


@pytest.mark.timeout(600)
def test_a_job_whose_rank_was_killed_is_one_run_that_repeats_what_was_lost(
    tmp_path: Path, undisturbed: Any
) -> None:
    """Rank 1 is killed ten steps after the checkpoint; the launcher starts all ranks anew."""
    killed = job(tmp_path, "killed", **elastic(0))
    assert [one.code for one in killed] == [1, -signal.SIGKILL]
    ended = job(tmp_path, **elastic(1))
    assert [one.value["weights"] for one in ended] == [undisturbed, undisturbed], ended
    assert_repeated(only_run(tmp_path))


UNDER_TORCHRUN = """
import os, sys
sys.path.insert(0, {root!r})
import torch.distributed as dist
from tests.scenarios.test_preempted import trains

dist.init_process_group("gloo")
trains(dist.get_rank(), 2, print, "runs", "killed")
"""


@pytest.mark.stress
@pytest.mark.timeout(900)
def test_torchrun_restarts_a_job_into_one_run(tmp_path: Path) -> None:
    """The same under the real launcher, which gives no variable away that the test has not."""
    (tmp_path / "train.py").write_text(UNDER_TORCHRUN.format(root=str(ROOT)))
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    done = subprocess.run(
        [sys.executable, *launcher, "--max-restarts=1", "train.py"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stderr
    assert_repeated(only_run(tmp_path / "runs"))
