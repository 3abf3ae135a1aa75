"""Checkpoints in shards on a real server: killed on the way there, and brought back from it."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

import launchhelm
from launchhelm import LaunchHelmError
from launchhelm.store.layout import CHECKPOINTS
from launchhelm.views.whole import missing_files
from syncer.api.client import Client
from syncer.shardlist import list_of, only_here
from tests.support.pushing import WrittenRun, push_all, pushing, runs_on, spawn_pusher
from tests.support.shards import contents, lay_shards, shard
from tests.support.v1_server import V1Server, v1_server

SIZES = [300_000, 1, 70_000]


class Gate(httpx.HTTPTransport):
    """Passes requests on, but for those that a test answers itself."""

    def __init__(self) -> None:
        super().__init__()
        self.answer: Callable[[httpx.Request], httpx.Response | None] = lambda request: None
        self.gets: list[str] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if request.method == "GET" and "/objects/" in request.url.path:
            self.gets.append(request.url.path)
        return self.answer(request) or super().handle_request(request)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[V1Server]:
    with v1_server(tmp_path_factory.mktemp("far")) as server:
        yield server


@pytest.fixture
def client(server: V1Server) -> Iterator[Client]:
    with Client(server.url, server.organization, server.key) as client:
        yield client


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def reader(
    server: V1Server, gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[launchhelm.Client]:
    """A client that sees no local run."""
    monkeypatch.setenv("LAUNCHHELM_DIR", str(tmp_path / "nothing"))
    monkeypatch.chdir(tmp_path)
    key, organization = server.key, server.organization
    with launchhelm.Client(server.url, key, organization, transport=gate) as reader:
        yield reader


@pytest.fixture
def run(tmp_path: Path) -> WrittenRun:
    return WrittenRun(tmp_path / "far from here")


def saved(run: WrittenRun, sizes: list[int]) -> tuple[Path, dict[str, Any]]:
    """Do what a sharded save does; return the directory of the shards and the record's body."""
    parts, body = lay_shards(run.directory, sizes)
    run.add("art", body, step=7)
    run.add("m", {"checkpoint": body["id"]}, step=7)
    return parts, body


def documents(client: Client, run_id: str) -> list[dict[str, Any]]:
    return [
        document
        for run in runs_on(client, run_id)
        for document in client.list_documents("artifact", run["scope"]["project_id"], run["id"])
    ]


def named(client: Client, run_id: str) -> list[str]:
    """Return the values of the metric `checkpoint`."""
    return [
        str(point["value"])
        for run in runs_on(client, run_id)
        for stream in client.list_documents("stream", run["scope"]["project_id"], run["id"])
        if stream["spec"]["name"] == "checkpoint"
        for point in client.all_points(stream["id"])
    ]


def sent(run: WrittenRun, client: Client) -> str:
    """Send all of a run; return the server's id of its one checkpoint."""
    with pushing(run.directory, client) as push:
        assert push_all(push)[-1].done
    (id_,) = named(client, run.run_id)
    return id_


def test_a_checkpoint_comes_back_as_the_directory_that_it_was(
    run: WrittenRun, tmp_path: Path, client: Client, reader: launchhelm.Client
) -> None:
    parts, body = saved(run, SIZES)
    into = tmp_path / "back"
    path = reader.download_checkpoint(sent(run, client), into)
    assert path == into / "media" / body["sha256"]
    assert path.read_bytes() == (run.directory / "media" / body["sha256"]).read_bytes()
    assert contents(into / CHECKPOINTS) == contents(run.directory / CHECKPOINTS)
    assert contents(into / CHECKPOINTS / parts.name) == contents(parts)
    assert len(documents(client, run.run_id)) == len(SIZES) + 3


def test_a_killed_syncer_is_followed_by_one_that_sends_the_rest(
    run: WrittenRun, tmp_path: Path, server: V1Server, client: Client, reader: launchhelm.Client
) -> None:
    parts, _ = saved(run, [50_000] * 30)
    kills = 0
    deadline = time.monotonic() + 120
    for count in (3, 15, 28):
        pusher = spawn_pusher(server, run.directory, tmp_path / "log", slice_s=0.05)
        while len(documents(client, run.run_id)) < count and pusher.poll() is None:
            assert time.monotonic() < deadline
        kills += pusher.poll() is None
        pusher.kill()
        pusher.wait()
        assert named(client, run.run_id) == [] or pusher.returncode == 0
    assert kills
    id_ = sent(run, client)
    states = [it["spec"]["state"] for it in documents(client, run.run_id)]
    assert states == ["ready"] * (30 + 3), "none is there twice"
    reader.download_checkpoint(id_, tmp_path / "back")
    assert contents(tmp_path / "back" / CHECKPOINTS / parts.name) == contents(parts)


def test_what_was_not_saved_to_the_end_is_not_sent(
    run: WrittenRun, client: Client, tmp_path: Path
) -> None:
    """A rank died while it wrote: there are shards, no index, and no record."""
    half = run.directory / CHECKPOINTS / "half"
    half.mkdir(parents=True)
    (half / shard(0)).write_bytes(b"x" * 1000)
    parts, _ = saved(run, SIZES)
    with pushing(run.directory, client) as push:
        assert push_all(push)[-1].done
        assert push.state is not None
        assert only_here(run.directory, push.state.artifacts) == f"{CHECKPOINTS}/half"
        shutil.rmtree(half)
        assert only_here(run.directory, push.state.artifacts) == ""
        (parts / "notes.txt").write_text("mine")
        assert only_here(run.directory, push.state.artifacts) == f"{CHECKPOINTS}/{parts.name}"
        (parts / "notes.txt").unlink()
        (parts / shard(9)).touch()  # Of a rank that had nothing to write.
        assert only_here(run.directory, push.state.artifacts) == ""
    there = {it["spec"]["name"] for it in documents(client, run.run_id)}
    assert not any("half" in name for name in there) and len(there) == len(SIZES) + 3


def test_one_of_which_a_shard_is_lost_holds_back_nothing_but_itself(
    run: WrittenRun, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("syncer.artifacts.UNSEEN_S", 0.0)
    first, lost = saved(run, SIZES)
    (first / shard(0)).unlink()
    _, whole = saved(run, SIZES)
    run.log(range(5))
    with pushing(run.directory, client) as push:
        assert push_all(push)[-1].done
        state = push.state
        assert state is not None
        ((id_, _, why),) = state.lost_artifacts
        assert id_ == lost["id"]
        assert why == (
            "its shards are not all there: "
            f"checkpoints/{first.name}/__0_0.distcp: No such file or directory"
        )
        assert [it.why for it in state.aside] == ["The artifact that it names was set aside."]
        assert named(client, run.run_id) == [state.artifacts[whole["id"]]]
        assert list_of(lost["id"]) not in state.artifacts
        assert only_here(run.directory, state.artifacts) == f"checkpoints/{first.name}"


def test_who_asks_again_gets_only_what_is_missing(
    run: WrittenRun, tmp_path: Path, client: Client, gate: Gate, reader: launchhelm.Client
) -> None:
    parts, _ = saved(run, SIZES)
    id_, into = sent(run, client), tmp_path / "back"

    def third(request: httpx.Request) -> httpx.Response | None:
        return httpx.Response(503) if len(gate.gets) == 3 else None

    gate.answer = third
    with pytest.raises(LaunchHelmError):
        reader.download_checkpoint(id_, into)
    folder = into / CHECKPOINTS / parts.name
    assert [path.name for path in folder.iterdir()] == [shard(0)]
    gate.answer = lambda request: None
    gate.gets.clear()
    path = reader.download_checkpoint(id_, into)
    assert len(gate.gets) == len(SIZES) + 2  # The list, what is missing, and the file.
    assert contents(folder) == contents(parts)

    (folder / shard(1)).write_bytes(b"!")
    gate.gets.clear()
    assert reader.download_checkpoint(id_, into) == path
    assert len(gate.gets) == 2
    assert contents(folder) == contents(parts)


@pytest.mark.parametrize(
    "change",
    [
        {"directory": ".."},
        {"directory": "a/b"},
        {"files": [{"name": "../../evil", "size": 1, "sha256": "0" * 64, "artifact": "x"}]},
        {"files": [{"name": "a\0b", "size": 1, "sha256": "0" * 64, "artifact": "x"}]},
        {"files": [{"name": "/evil", "size": 1, "sha256": "0" * 64, "artifact": "x"}]},
        {"files": [{"name": "a", "size": 1, "sha256": "../evil", "artifact": "x"}]},
        {"files": [{"name": "a"}]},
        {"files": [3]},
        {"files": None},
        {"format": "launchhelm.offline.shards/2"},
    ],
)
def test_a_list_of_somebody_elses_making_leads_nowhere(
    run: WrittenRun,
    tmp_path: Path,
    client: Client,
    gate: Gate,
    reader: launchhelm.Client,
    change: dict[str, Any],
) -> None:
    saved(run, [5])
    id_, into = sent(run, client), tmp_path / "deep" / "back"
    own = client.get_document(id_)
    list_id = own["spec"]["provenance"]["labels"]["launchhelm.offline.shards"]
    good = reader.download_artifact(list_id)
    evil = json.dumps({**json.loads(good), **change}).encode()
    document = client.get_document(list_id)
    document["spec"] |= {"size": str(len(evil)), "sha256": sha256(evil).hexdigest()}

    def answer(request: httpx.Request) -> httpx.Response | None:
        if request.url.path.endswith(f"/documents/{list_id}"):
            return httpx.Response(200, json=document)
        return (
            httpx.Response(200, content=evil) if f"/objects/{list_id}" in str(request.url) else None
        )

    gate.answer = answer
    with pytest.raises(LaunchHelmError) as caught:
        reader.download_checkpoint(id_, into)
    assert caught.value.code == "invalid_response"
    assert not [path for path in (tmp_path / "deep").rglob("*") if path.is_file()]


def test_bytes_that_are_others_are_not_left_behind(
    run: WrittenRun, tmp_path: Path, client: Client, gate: Gate, reader: launchhelm.Client
) -> None:
    saved(run, [5])
    id_, into = sent(run, client), tmp_path / "back"

    def answer(request: httpx.Request) -> httpx.Response | None:
        wrong = len(gate.gets) == 2 and "/objects/" in request.url.path
        return httpx.Response(200, content=b"wrong") if wrong else None

    gate.answer = answer
    with pytest.raises(LaunchHelmError, match="are not those of the artifact"):
        reader.download_checkpoint(id_, into)
    assert not [path for path in into.rglob("*") if path.is_file()]


def test_a_place_that_cannot_be_written_is_told(
    run: WrittenRun, tmp_path: Path, client: Client, reader: launchhelm.Client
) -> None:
    saved(run, [5])
    (tmp_path / "back").write_text("a file")
    with pytest.raises(launchhelm.LaunchHelmError) as caught:
        reader.download_checkpoint(sent(run, client), tmp_path / "back")
    assert caught.value.code == "storage" and "the same call again" in caught.value.remedy


def test_one_of_a_local_run_is_where_it_is(
    run: WrittenRun, tmp_path: Path, reader: launchhelm.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, body = saved(run, [5])
    monkeypatch.setenv("LAUNCHHELM_DIR", str(run.directory.parent))
    path = reader.download_checkpoint(body["id"], tmp_path / "back")
    assert path == run.directory / "media" / body["sha256"]
    assert not (tmp_path / "back").exists() and missing_files(run.directory) == []
    os.unlink(path)
    with pytest.raises(launchhelm.errors.StorageError):
        reader.download_checkpoint(body["id"], tmp_path / "back")
