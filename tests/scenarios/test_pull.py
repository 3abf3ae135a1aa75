"""Commands given on a server, from there into a run that trains, and their outcomes back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commanding import Desk, Training, training
from tests.support.sync_command import SyncCommand
from tests.support.v1_server import PROJECT, V1Server, v1_server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[V1Server]:
    with v1_server(tmp_path / "far") as it:
        yield it


@pytest.fixture
def sync(tmp_path: Path, server: V1Server) -> SyncCommand:
    return SyncCommand(tmp_path, server.url, server.key, {"LAUNCHHELM_PROJECT": PROJECT})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "runs"
    path.mkdir()
    return path


@pytest.fixture
def job(tmp_path: Path, root: Path) -> Iterator[Training]:
    with training(root, tmp_path / "said") as it:
        yield it


@pytest.fixture
def desk(server: V1Server, job: Training) -> Iterator[Desk]:
    it = Desk(server, job.directory.name)
    yield it
    it.close()


def test_a_command_given_on_the_server_is_applied_and_its_outcome_comes_back(
    sync: SyncCommand, root: Path, job: Training, desk: Desk
) -> None:
    with sync.watching(root):
        command = desk.submit("set_lr", {"lr": 0.5})
        ended = desk.ended(command)
    assert ended["execution"] == "applied" and ended["decided_by"] == "participant"
    assert ended["result"] == {"lr": [0.5]}
    assert [place["axis"] for place in ended["applied_at"]] == ["step"]
    assert job.applied == [0.5]
    (outcomes,) = job.outcomes().values()
    assert [it.state for it in outcomes] == ["applied"]
    assert outcomes[0].issued_by == sync.url


def test_thirty_commands_are_visible_as_applied_soon(
    sync: SyncCommand, root: Path, job: Training, desk: Desk
) -> None:
    took = []
    with sync.watching(root):
        desk.capability("set_lr")
        for number in range(30):
            command = desk.submit("set_lr", {"lr": float(number)})
            began = time.monotonic()
            assert desk.ended(command)["execution"] == "applied"
            took.append(time.monotonic() - began)
    assert job.applied == [float(number) for number in range(30)]
    took.sort()
    print(f"submit to applied: median {took[15]:.3f} s, maximum {took[-1]:.3f} s")
    assert took[15] < 1.5
