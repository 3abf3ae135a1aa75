"""A sharded checkpoint that our syncer sent: the official SDK reads it, and a training goes on."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import launchhelm
from launchhelm.store.layout import CHECKPOINTS
from syncer.api.client import Client
from tests.support.journals import records
from tests.support.official import Driver, why_missing
from tests.support.pushing import push_all, pushing, runs_on
from tests.support.ranks import SHARDING, run_ranks
from tests.support.shards import contents
from tests.support.v1_server import v1_process

DEADLINE_S = 150.0
SAVED, LAST = 2, 5

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_missing()), reason=why_missing()),
    pytest.mark.timeout(2 * DEADLINE_S),
]

Tell = Callable[[str], None]


class Life:
    """A training on FSDP2, of which each rank draws its own data and drops its own units."""

    def __init__(self, rank: int, root: str) -> None:
        import torch
        from torch.distributed.fsdp import fully_shard

        import launchhelm.torch as lht

        torch.manual_seed(0)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(6, 5), torch.nn.Dropout(0.5), torch.nn.Tanh(), torch.nn.Linear(5, 3)
        )
        fully_shard(self.model[0])
        fully_shard(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        torch.manual_seed(100 + rank)
        self.tr = lht.init("life", state_dir=root)
        self.tr.watch(self.model, self.optimizer)

    def steps(self, count: int) -> list[str]:
        import torch

        losses = []
        for _ in range(count):
            self.optimizer.zero_grad()
            loss = self.model(torch.randn(8, 6)).square().sum()
            loss.backward()
            self.optimizer.step()
            self.tr.step(loss=loss)
            losses.append(loss.item().hex())
        return losses

    def state(self) -> list[Any]:
        """Return this rank's part of all that the optimizer and the model hold."""
        kept = [it.detach() for it in self.model.parameters()]
        kept += [
            it
            for each in self.optimizer.state.values()
            for it in each.values()
            if hasattr(it, "flatten")
        ]
        return [getattr(it, "_local_tensor", it).flatten().tolist() for it in kept]


def first(rank: int, size: int, tell: Tell, root: str) -> list[Any]:
    life = Life(rank, root)
    life.steps(SAVED)
    life.tr.save_checkpoint(sharded=True, extra={"epoch": 1})
    state = life.state()
    losses = life.steps(LAST - SAVED)
    life.tr.finish()
    return [state, losses, life.state()]


def again(rank: int, size: int, tell: Tell, root: str, path: str) -> list[Any]:
    life = Life(rank, root)
    life.steps(1)
    assert life.tr.load_checkpoint(path) == {"epoch": 1}
    assert life.tr.global_step == SAVED
    state = life.state()
    losses = life.steps(LAST - SAVED)
    life.tr.finish()
    return [state, losses, life.state()]


def test_the_official_sdk_reads_every_shard_and_two_ranks_go_on_from_what_the_server_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAUNCHHELM_DIR", str(tmp_path / "nothing"))  # No local run answers.
    monkeypatch.chdir(tmp_path)
    options: dict[str, Any] = {"deadline_s": DEADLINE_S, "imports": SHARDING}
    before = run_ranks(first, 2, root=str(tmp_path / "first"), **options)
    (directory,) = (tmp_path / "first").iterdir()
    (parts,) = (directory / CHECKPOINTS).iterdir()
    (record,) = records(directory, "art")
    with v1_process(tmp_path / "server") as server:
        with Client(server.url, server.organization, server.key) as client:
            with pushing(directory, client) as push:
                assert push_all(push)[-1].done
                assert push.state is not None
                checkpoint = push.state.artifacts[record.body["id"]]
            (run,) = runs_on(client, directory.name)
        project = run["scope"]["project_id"]
        driver = Driver(
            server, "sharded_read", run["id"], project, checkpoint, directory=tmp_path / "cwd"
        )
        try:
            own = driver.said("checkpoint")
            read = driver.said("shards")
            driver.ends()
        finally:
            driver.close()
        with launchhelm.Client(server.url, server.key, server.organization) as reader:
            path = reader.download_checkpoint(checkpoint, tmp_path / "back")

    assert (own["id"], own["fetched"]) == (checkpoint, record.body["sha256"])
    local = contents(parts)
    assert {"__0_0.distcp", "__1_0.distcp", ".metadata"} == local.keys()
    assert read["directory"] == parts.name
    digests = {name: sha256(data).hexdigest() for name, data in local.items()}
    assert read["shards"] == digests
    assert {it["name"]: it["sha256"] for it in read["listed"]} == digests
    assert contents(tmp_path / "back" / CHECKPOINTS) == contents(directory / CHECKPOINTS)

    after = run_ranks(again, 2, root=str(tmp_path / "again"), path=str(path), **options)
    for one, two in zip(before, after, strict=True):
        assert two.value == one.value
    assert before[0].value[0] != before[1].value[0], "each rank has a part of its own"
