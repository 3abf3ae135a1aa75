"""A sharded training that is killed goes on as if nothing had happened, also with fewer ranks."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launchhelm.views.whole import missing_files
from tests.support.journals import records
from tests.support.ranks import SHARDING, Ranks, run_ranks

DEADLINE_S = 150.0
Tell = Callable[[str], None]

pytestmark = pytest.mark.timeout(2 * DEADLINE_S)

SAVED, KILLED, LAST = 3, 6, 8


class Life:
    """A training of which each rank draws its own data and drops its own units."""

    def __init__(self, rank: int, root: str, **options: Any) -> None:
        import torch
        from torch.distributed.fsdp import fully_shard

        import launchhelm.torch as lht

        torch.manual_seed(0)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(6, 5), torch.nn.Dropout(0.5), torch.nn.Tanh(), torch.nn.Linear(5, 3)
        )
        if torch.distributed.is_initialized():
            fully_shard(self.model[0])
            fully_shard(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        torch.manual_seed(100 + rank)
        self.tr = lht.init("life", state_dir=root, **options)
        self.tr.watch(self.model, self.optimizer)

    def step(self) -> str:
        import torch

        self.optimizer.zero_grad()
        loss = self.model(torch.randn(8, 6)).square().sum()
        loss.backward()
        self.tr.clip_grad_norm_(1.0)
        self.optimizer.step()
        self.tr.step(loss=loss)
        return loss.item().hex()

    def weights(self) -> list[list[float]]:
        whole = (
            it.full_tensor() if hasattr(it, "full_tensor") else it for it in self.model.parameters()
        )
        return [it.detach().flatten().tolist() for it in whole]


def first(rank: int, size: int, tell: Tell, root: str) -> None:
    """Leave the losses of a whole life, then begin another one like it, to be killed."""
    whole = Life(rank, f"{root}/whole")
    losses = [whole.step() for _ in range(LAST)]
    Path(root, f"losses-{rank}.json").write_text(json.dumps([losses, whole.weights()]))
    whole.tr.finish()
    life = Life(rank, f"{root}/killed")
    for _ in range(SAVED):
        life.step()
    life.tr.save_checkpoint(extra={"epoch": 1})
    for _ in range(SAVED, KILLED):
        life.step()
    life.tr.run.flush(delivered=False)
    tell("to be killed")
    time.sleep(DEADLINE_S)


def second(rank: int, size: int, tell: Tell, root: str, run: str) -> list[Any]:
    life = Life(rank, f"{root}/killed", resume=run)
    assert life.tr.load_checkpoint("latest") == {"epoch": 1}
    assert life.tr.global_step == SAVED
    losses = [life.step() for _ in range(SAVED, LAST)]
    id_ = life.tr.save_checkpoint(sharded=True)
    assert (id_ is None) == (rank != 0)
    weights = life.weights()
    life.step()
    life.tr.load_checkpoint("latest")
    assert life.weights() == weights and life.tr.global_step == LAST
    life.tr.finish(close_run=False)
    return [losses, weights]


def full(rank: int, size: int, tell: Tell, root: str) -> list[Any]:
    """On rank 1 no file may grow while the shards are saved."""
    import resource

    import launchhelm.torch as lht

    life = Life(rank, root)
    life.step()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    said = ""
    # Not so small that the journals stop too.
    life.tr.run.flush(delivered=False)
    if rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, before[1]))
    try:
        life.tr.save_checkpoint(sharded=True)
    except lht.CheckpointError as error:
        said = error.message
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    left = [str(path) for path in Path(root).glob("*/checkpoints/*/*")]
    life.step()
    life.tr.save_checkpoint(sharded=True)
    life.tr.finish()
    return [said, left]


def test_shards_of_one_rank_that_do_not_fit_are_told_on_all_and_nothing_is_left(
    tmp_path: Path,
) -> None:
    root = str(tmp_path)
    ended = run_ranks(full, 2, deadline_s=DEADLINE_S, imports=SHARDING, root=root)
    for one in ended:
        said, _ = one.value
        assert "rank 1: OSError" in said and "File too large" in said and "rank 0" not in said
    assert ended[0].value[1] == [], "rank 0 removes the directory before it goes on"
    (made,) = tmp_path.glob("*/checkpoints/*")
    assert {path.name for path in made.iterdir()} == {".metadata", "__0_0.distcp", "__1_0.distcp"}


# The first attempt saves one whole copy, the second its shards; each is loaded by the next.


def test_a_sharded_training_goes_on_to_the_last_bit_after_a_kill_and_on_one_rank_too(
    tmp_path: Path,
) -> None:
    root = str(tmp_path)
    with Ranks(first, 2, deadline_s=DEADLINE_S, imports=SHARDING, root=root) as ranks:
        for rank in range(2):
            ranks.wait_for(rank, "to be killed")
        for rank in range(2):
            ranks.kill(rank)
        ranks.wait()
    (run,) = (tmp_path / "killed").iterdir()
    ended = run_ranks(second, 2, deadline_s=DEADLINE_S, imports=SHARDING, root=root, run=run.name)
    for rank, one in enumerate(ended):
        losses, weights = json.loads((tmp_path / f"losses-{rank}.json").read_text())
        assert one.value == [losses[SAVED:], weights]
    assert ended[0].value[0] != ended[1].value[0] and ended[0].value[1] == ended[1].value[1]

    # Who looks without torch knows the parts by their index.
    assert missing_files(run) == []
    (part,) = run.glob("checkpoints/*/__1_0.distcp")
    hidden = part.rename(tmp_path / "part")
    assert missing_files(run) == [f"{part.relative_to(run)}: No such file or directory"]
    hidden.rename(part)

    alone = Life(7, f"{root}/killed", resume=run.name)
    assert alone.tr.load_checkpoint("latest") == {} and alone.tr.global_step == LAST
    assert alone.weights() == weights
    alone.step()
    alone.tr.finish()
    said = [it.body["text"] for it in records(run, "ev", rank=0) if it.body["type"] == "notice"]
    assert any("saved on 2 ranks and this is a group of 1" in text for text in said), said
