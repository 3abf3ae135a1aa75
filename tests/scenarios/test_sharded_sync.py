"""A sharded training sends its checkpoints while it trains, and is killed while it saves one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import launchhelm
from launchhelm.store.layout import CHECKPOINTS
from syncer.api.client import Client
from tests.support.journals import wait_until
from tests.support.pushing import push_all, pushing, runs_on
from tests.support.ranks import SHARDING, Ranks
from tests.support.shards import contents
from tests.support.v1_server import V1Server, v1_server

DEADLINE_S = 150.0

pytestmark = pytest.mark.timeout(2 * DEADLINE_S)

Tell = Callable[[str], None]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[V1Server]:
    with v1_server(tmp_path / "far") as server:
        yield server


def body(rank: int, size: int, tell: Tell, root: str) -> None:
    """Save, train on until told otherwise, save again, and be killed once the shards are there."""
    import torch
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.fsdp import fully_shard

    import launchhelm.torch as lht

    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.Linear(300, 3))
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    tr = lht.init("quickstart", name="sharded", state_dir=root, sync=True)
    tr.watch(model, optimizer)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(8, 300)).square().sum().backward()
        optimizer.step()
        tr.step()

    step()
    tr.save_checkpoint(sharded=True)
    tell("saved")
    stop = torch.zeros(1)
    while not stop.item():
        step()
        time.sleep(0.01)
        stop[0] = float(rank == 0 and Path(root, "stop").exists())
        torch.distributed.broadcast(stop, 0)
    tell("trained on")

    write = FileSystemWriter.write_data

    def dying(self: Any, *arguments: Any) -> Any:
        write(self, *arguments).wait()
        tell("dies")
        while not tell.told("dies", size):  # type: ignore[attr-defined]  # It is a Tell.
            time.sleep(0.01)
        os.kill(os.getpid(), 9)

    FileSystemWriter.write_data = dying  # type: ignore[assignment,method-assign]
    tr.save_checkpoint(sharded=True)


def checkpoints(client: Client, run_id: str) -> list[str]:
    """Return the values of the metric `checkpoint` on the server."""
    return [
        str(point["value"])
        for run in runs_on(client, run_id)
        for stream in client.list_documents("stream", run["scope"]["project_id"], run["id"])
        if stream["spec"]["name"] == "checkpoint"
        for point in client.all_points(stream["id"])
    ]


def test_shards_go_up_while_the_ranks_train_and_those_of_a_killed_save_never_do(
    tmp_path: Path, server: V1Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "runs"
    root.mkdir()
    settings = {
        "LAUNCHHELM_URL": server.url,
        "LAUNCHHELM_API_KEY": server.key,
        "LAUNCHHELM_ORGANIZATION": server.organization,
        "LAUNCHHELM_PROJECT": server.project,
    }
    with (
        Client(server.url, server.organization, server.key) as client,
        Ranks(
            body,
            2,
            deadline_s=DEADLINE_S,
            imports=SHARDING,
            environment=settings,
            root=str(root),
        ) as ranks,
    ):
        ranks.wait_for(0, "saved")
        (directory,) = [path for path in root.iterdir() if path.is_dir()]
        wait_until(lambda: checkpoints(client, directory.name), "a checkpoint", timeout_s=60)
        (root / "stop").touch()
        ranks.wait_for(1, "trained on")
        assert [one.code for one in ranks.wait()] == [-9, -9]

        whole, half = sorted(
            (directory / CHECKPOINTS).iterdir(), key=lambda path: not (path / ".metadata").exists()
        )
        assert sorted(contents(half)) == ["__0_0.distcp", "__1_0.distcp"]
        with pushing(directory, client, project=server.project, lease_s=1.0) as push:
            wait_until(push.acquire, "the lease of the dead")
            assert push_all(push)[-1].done
        (id_,) = checkpoints(client, directory.name)
        (run,) = runs_on(client, directory.name)
        documents = list(client.list_documents("artifact", run["scope"]["project_id"], run["id"]))
        assert len(documents) == 3 + 2, [it["spec"]["name"] for it in documents]

        monkeypatch.setenv("LAUNCHHELM_DIR", str(tmp_path / "nothing"))
        monkeypatch.chdir(tmp_path)
        with launchhelm.Client(server.url, server.key, server.organization) as reader:
            reader.download_checkpoint(id_, tmp_path / "back")
    assert contents(tmp_path / "back" / CHECKPOINTS / whole.name) == contents(whole)
