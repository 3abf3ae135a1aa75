"""Checkpoints of two ranks: killed and resumed to the last bit, and refused on both together."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launchhelm.views import open_run
from tests.support.journals import final_outcomes, only_run, records, wait_until
from tests.support.ranks import Ranks, run_ranks

Tell = Callable[[str], None]

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 150.0
SAVED_AT, ENDS_AT = 6, 12

pytestmark = pytest.mark.timeout(4 * DEADLINE_S)


class Job:
    """A DDP training whose losses depend on the random state of each rank."""

    def __init__(self, rank: int, root: str, resume: str = "", *, size: int = 2) -> None:
        import torch

        import launchhelm.torch as lht

        torch.manual_seed(0)
        layers = [torch.nn.Linear(4, 8), torch.nn.Dropout(0.4), torch.nn.Linear(8, 1)]
        self.model: Any = torch.nn.Sequential(*layers)
        if size > 1:
            self.model = torch.nn.parallel.DistributedDataParallel(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 20)
        torch.manual_seed(100 + rank)
        self.tr = lht.init("saved", state_dir=root, resume=resume, collective_timeout_s=60.0)
        self.tr.watch(self.model, self.optimizer, self.schedule)
        self.level = self.tr.tunable("level", 1.0)

    def step(self) -> float:
        import torch

        loss = self.model(torch.randn(3, 4)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        self.tr.step(loss=loss)
        return float(loss)

    def seen(self) -> list[Any]:
        """Return what a load may change, in numbers."""
        import torch

        weights = [each.tolist() for each in self.model.parameters()]
        return [weights, torch.get_rng_state().tolist(), self.tr.global_step]


def said(call: Callable[[], object]) -> str:
    """Return the error that a call raises on this rank."""
    import launchhelm.torch as lht

    try:
        call()
    except lht.CheckpointError as error:
        return str(error)
    return ""


def killed(rank: int, size: int, tell: Any, root: str) -> None:
    """Train, be refused in every way, save, go on, and die without a word."""
    import torch
    import torch.distributed as dist

    job = Job(rank, root)
    out = Path(root) / f"{rank}.json"
    tr, good = job.tr, Path(root) / "good.pt"
    tell("started")
    is_over = torch.zeros(1)
    while not is_over:  # Both ranks must end this loop at the same step.
        job.step()
        is_over.fill_(tell.told("commanded", 2))
        dist.all_reduce(is_over, dist.ReduceOp.MIN)
    refused: dict[str, str] = {}
    before = job.seen()
    refused["extra"] = said(lambda: tr.save_checkpoint(extra={"it": object() if rank else 1}))
    refused["no dict"] = said(lambda: tr.save_checkpoint(extra=[1] if rank else {}))
    refused["directory"] = said(lambda: tr.save_checkpoint(root))
    refused["path"] = said(lambda: tr.save_checkpoint(Path(root) / "missing" / "x.pt"))
    words = [tr.save_checkpoint(good)]
    dist.broadcast_object_list(words)
    if rank == 0:
        whole = good.read_bytes()
        (Path(root) / "cut.pt").write_bytes(whole[: len(whole) // 2])
    tr.log_reduced({"wait": 1.0})
    refused["cut"] = said(lambda: tr.load_checkpoint(Path(root) / "cut.pt"))
    # A file that only one of the ranks can see.
    refused["elsewhere"] = said(lambda: tr.load_checkpoint(good if rank == 0 else "/nowhere.pt"))
    same = job.seen() == before
    tr.load_checkpoint(good)
    tr.load_checkpoint(words[0])
    losses = [job.step() for _ in range(SAVED_AT)]
    job.level.take(2.5)
    tr.save_checkpoint(Path(root) / "two-ranks.pt", extra={"rank": rank})
    at = tr.global_step
    losses += [job.step() for _ in range(SAVED_AT, ENDS_AT)]
    facts = {"refused": refused, "same": same, "losses": losses, "at": at, "run": tr.run.run_id}
    out.write_text(json.dumps(facts))
    os.kill(os.getpid(), signal.SIGKILL)


def resumed(rank: int, size: int, tell: Tell, root: str, run: str) -> dict[str, Any]:
    job = Job(rank, root, run)
    extra = job.tr.load_checkpoint("latest")
    at = job.tr.global_step
    losses = [job.step() for _ in range(SAVED_AT, ENDS_AT)]
    job.tr.save_checkpoint()
    job.tr.finish()
    return {"losses": losses, "at": at, "extra": extra, "level": job.level.value}


def test_a_killed_job_of_two_ranks_goes_on_to_the_last_bit(tmp_path: Path) -> None:
    """Before that: what is wrong on one rank is raised on both, and a command saves one."""
    root = str(tmp_path)
    with Ranks(killed, 2, root=root, deadline_s=DEADLINE_S) as ranks:
        ranks.wait_for(0, "started")
        run = only_run(tmp_path)
        wait_until(lambda: "checkpoint" in open_run(run).capabilities, "the control")
        words = ["control", str(run), "checkpoint", "--yes", "--timeout", "120s"]
        done = subprocess.run(
            [sys.executable, "-m", "launchhelm", *words],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        (ranks.directory / "0.told.commanded").touch()
        (ranks.directory / "1.told.commanded").touch()
        ended = ranks.wait()
    assert done.returncode == 0, done.stdout + done.stderr
    assert [each.code for each in ended] == [-signal.SIGKILL] * 2, ended
    facts = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]

    for rank in range(2):
        refused = facts[rank]["refused"]
        assert "rank 1: TypeError: extra['it'] is a builtins.object" in refused["extra"]
        assert "rank 1: TypeError: extra is of type list" in refused["no dict"]
        assert f"rank 0: ValueError: {root} is a directory" in refused["directory"]
        assert "rank 0: FileNotFoundError" in refused["path"]
        assert "rank 0: Unreadable" in refused["cut"]
        assert "rank 1: Unreadable: /nowhere.pt" in refused["elsewhere"]
        assert facts[rank]["same"]
    ((outcome,),) = final_outcomes(run).values()
    assert (outcome.state, outcome.applied_on, outcome.of) == ("applied", 2, 2)
    artifacts = {record.body["id"]: record for record in records(run, "art")}
    assert outcome.result is not None and outcome.result["artifact"] in artifacts
    assert artifacts[outcome.result["artifact"]].step == outcome.applied_at["step"]

    again = run_ranks(resumed, 2, root=root, run=facts[0]["run"], deadline_s=DEADLINE_S)
    for rank, each in enumerate(again):
        assert each.value["losses"] == facts[rank]["losses"][SAVED_AT:]
        assert (each.value["at"], each.value["level"]) == (facts[0]["at"], 2.5)
        assert each.value["extra"] == {"rank": 0}  # The coordinator's counts.
    # Its ranks had different losses: the random states were not those of one.
    assert again[0].value["losses"] != again[1].value["losses"]

    job = Job(0, str(tmp_path / "one"), size=1)
    job.tr.load_checkpoint(tmp_path / "two-ranks.pt")
    assert (job.tr.global_step, job.level.value) == (facts[0]["at"], 2.5)
    job.tr.finish()
    notices = [str(record.body.get("text")) for record in records(job.tr.run.directory, "ev")]
    assert any("saved on 2 ranks and this is a group of 1" in text for text in notices)


def leaving(rank: int, size: int, tell: Tell, root: str) -> str:
    job = Job(rank, root)
    job.step()
    if rank == 1:
        job.tr.finish()
        return ""
    return said(job.tr.save_checkpoint)


def test_saving_with_a_rank_that_has_left_fails_by_its_name(tmp_path: Path) -> None:
    ended = run_ranks(leaving, 2, root=str(tmp_path), deadline_s=DEADLINE_S)
    assert "rank 1" in ended[0].value and "left after step 1" in ended[0].value
