"""A server is restored from its backup, and the run directories make up for what it lost."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

import launchhelm
from syncer.server import data
from tests.support.pushing import assert_same, local_points, server_points
from tests.support.v1_server import V1Server, v1_server


def _finished(root: Path, name: str) -> Path:
    with launchhelm.init("quickstart", name=name, state_dir=root) as run:
        for step in range(50):
            run.log({"loss": 1 / (step + 1)}, step=step)
    return run.directory


def _sync(server: V1Server, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAUNCHHELM_URL", server.url)
    monkeypatch.setenv("LAUNCHHELM_API_KEY", server.key)
    command = [sys.executable, "-m", "launchhelm", "sync", str(root)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_runs_that_were_synced_and_closed_are_sent_again_to_a_restored_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "runs"
    runs = [_finished(root, "before the backup")]
    with v1_server(tmp_path / "served") as server:
        _sync(server, root, monkeypatch)
        assert server.state is not None
        data.backup(server.state, tmp_path / "backup")
        runs.append(_finished(root, "after it"))
        _sync(server, root, monkeypatch)
    shutil.rmtree(server.data)
    (tmp_path / "backup").rename(server.data)
    with v1_server(tmp_path / "served", port=httpx.URL(server.url).port or 0) as restored:
        _sync(restored, root, monkeypatch)
        with restored.client() as client:
            for directory in runs:
                assert_same(local_points(directory), server_points(client, directory.name))
