"""Artifacts of a run on a real server: with the points that name them, and in a bad hour."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from launchhelm.store import media
from syncer.api.client import Client
from tests.support.pushing import WrittenRun, push_all, pushing, runs_on
from tests.support.runs import TurnedClock, running
from tests.support.v1_server import V1Server, v1_server


class Gate(httpx.HTTPTransport):
    """Passes requests on, but for those that a test keeps back."""

    def __init__(self) -> None:
        super().__init__()
        self.refuse: Callable[[httpx.Request], bool] = lambda request: False
        self.puts = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.puts += request.method == "PUT"
        if self.refuse(request):
            request.read()
            return httpx.Response(503, text="<html>no</html>")
        return super().handle_request(request)


def is_put(request: httpx.Request) -> bool:
    return request.method == "PUT"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[V1Server]:
    with v1_server(tmp_path_factory.mktemp("far")) as server:
        yield server


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def client(server: V1Server, gate: Gate) -> Iterator[Client]:
    with Client(server.url, server.organization, server.key, transport=gate) as client:
        yield client


def keep(run: WrittenRun, data: bytes, id_: str, *, step: int, name: str = "") -> None:
    """Do what `run.artifact` does."""
    stored = media.put(run.directory, [data])
    body: dict[str, Any] = {"id": id_, "name": "model.pt", "media_type": "a/b"}
    body |= {"size": stored.size, "sha256": stored.sha256, "purpose": "general"}
    run.add("art", body, step=step)
    if name:
        run.add("m", {name: id_}, step=step)


def values(client: Client, run_id: str, name: str) -> list[Any]:
    """Return the values of a stream in order."""
    return [
        point["value"]
        for run in runs_on(client, run_id)
        for stream in client.list_documents("stream", run["scope"]["project_id"], run["id"])
        if stream["spec"]["name"] == name
        for point in client.all_points(stream["id"])
    ]


def artifacts(client: Client, run_id: str, into: Path) -> dict[str, bytes]:
    """Return the bytes of every artifact that is ready, by the server's id."""
    found = {}
    for run in runs_on(client, run_id):
        scope = run["scope"]
        for document in client.list_documents("artifact", scope["project_id"], run["id"]):
            if document["spec"]["state"] == "ready":
                with into.open("wb") as file:
                    client.download(client.artifact_url(document["id"]), file)
                found[document["id"]] = into.read_bytes()
    return found


def test_what_a_script_kept_is_fetched_from_the_server_by_the_point_that_names_it(
    tmp_path: Path, client: Client
) -> None:
    source = tmp_path / "model.bin"
    with running(tmp_path / "runs", name="kept") as run:
        for step in range(3):
            source.write_bytes(b"state %d" % step)
            run.checkpoint(source, step=step)
            run.log({"loss": 0.5}, step=step)
        source.unlink()
    with pushing(run.directory, client) as push:
        assert push_all(push)[-1].done
    named = values(client, run.run_id, "checkpoint")
    found = artifacts(client, run.run_id, tmp_path / "download")
    assert [found[id_] for id_ in named] == [b"state 0", b"state 1", b"state 2"]
    assert len(values(client, run.run_id, "loss")) == 3


def test_an_artifact_without_a_point_is_not_forgotten_by_a_syncer_that_ends_early(
    tmp_path: Path, client: Client, gate: Gate
) -> None:
    run = WrittenRun(tmp_path)
    keep(run, b"state", "ours", step=0)
    run.log(range(5))
    gate.refuse = is_put
    with pushing(run.directory, client) as push:
        assert push.acquire()
        while not gate.puts:
            push.step(0.1)
    assert len(values(client, run.run_id, "loss")) == 5
    gate.refuse = lambda request: False
    with pushing(run.directory, client) as push:
        assert push_all(push)[-1].done
    assert list(artifacts(client, run.run_id, tmp_path / "download").values()) == [b"state"]


def test_a_store_that_is_away_holds_no_point_back_and_leaves_the_run_open(
    tmp_path: Path, client: Client, gate: Gate
) -> None:
    clock = TurnedClock()
    run = WrittenRun(tmp_path)
    keep(run, b"state", "ours", step=0, name="checkpoint")
    gate.refuse = is_put
    with pushing(run.directory, client, clock=clock) as push:
        for first in range(0, 50, 10):
            run.log(range(first, first + 10))
            assert push.acquire()
            while push.step(0.0).points or (not push.problems and gate.puts <= first // 10):
                clock.turn(10.0)
        assert len(values(client, run.run_id, "loss")) == 50
        run.end()
        for _ in range(100):
            clock.turn(10.0)
            assert push.acquire()
            if push.step(0.0).done:  # One that has just tried again says so in the next slice.
                break
        else:
            raise AssertionError("it goes round and round")
        assert "an artifact is not sent" in push.problems[0]
        assert not push.finish_if_ended()
        assert values(client, run.run_id, "checkpoint") == []
        gate.refuse = lambda request: False
        while push.problems or not push.step(0.0).done:
            clock.turn(10.0)
            assert push.acquire()
            push.step(0.0)
        assert push.finish_if_ended()
    (named,) = values(client, run.run_id, "checkpoint")
    assert artifacts(client, run.run_id, tmp_path / "download") == {named: b"state"}


def test_a_file_that_is_damaged_costs_its_artifact_and_its_point_and_is_told(
    tmp_path: Path, client: Client
) -> None:
    run = WrittenRun(tmp_path)
    keep(run, b"good", "first", step=0, name="checkpoint")
    keep(run, b"bad!", "second", step=1, name="checkpoint")
    keep(run, b"last", "third", step=2, name="checkpoint")
    run.log(range(3))
    (path,) = (it for it in (run.directory / "media").iterdir() if it.read_bytes() == b"bad!")
    path.chmod(0o600)
    path.write_bytes(b"BAD!")
    with pushing(run.directory, client) as push:
        reports = push_all(push)
        assert reports[-1].done
        assert sum(report.refused for report in reports) == 2
        state = push.state
    assert state is not None
    ((id_, size, why),) = state.lost_artifacts
    assert (id_, size) == ("second", 4) and "damaged" in why
    assert [aside.why for aside in state.aside] == ["The artifact that it names was set aside."]
    found = artifacts(client, run.run_id, tmp_path / "download")
    assert [found[id_] for id_ in values(client, run.run_id, "checkpoint")] == [b"good", b"last"]
    assert len(values(client, run.run_id, "loss")) == 3


def test_artifacts_sent_alone_are_known_to_a_later_whole_pass(
    tmp_path: Path, client: Client, gate: Gate
) -> None:
    run = WrittenRun(tmp_path)
    keep(run, b"state", "ours", step=0, name="checkpoint")
    with pushing(run.directory, client, only={"media"}) as push:
        assert push_all(push)[-1].done
    assert values(client, run.run_id, "checkpoint") == []
    with pushing(run.directory, client) as push:
        assert push_all(push)[-1].done
    (named,) = values(client, run.run_id, "checkpoint")
    assert artifacts(client, run.run_id, tmp_path / "download") == {named: b"state"}
    assert gate.puts == 1
