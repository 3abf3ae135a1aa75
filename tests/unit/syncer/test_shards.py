"""A checkpoint in shards on its way: what a server gets of it, and of which it gets nothing."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launchhelm.records import Record, WriterId
from syncer import artifacts, upload
from syncer.api.answers import ApiError
from syncer.shardlist import only_here
from syncer.state import State
from tests.support.far_artifacts import FarServer, send, uploads
from tests.support.runs import TurnedClock
from tests.support.shards import contents, lay_shards, shard

WRITER = WriterId(0, 1, "0123abcd")
PART = 1000


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "PART_BYTES", PART)


def art(body: Mapping[str, Any], seq: int = 3) -> Record:
    return Record(WRITER, seq, "art", 0.0, 7, dict(body), {})


def names(server: FarServer) -> list[str]:
    """Return the names of the documents in the order in which they came to be whole."""
    return [str(server.documents[id_]["spec"]["name"]) for id_ in server.whole]


def test_shards_go_first_then_their_list_then_the_file_which_names_it(tmp_path: Path) -> None:
    parts, body = lay_shards(tmp_path, [2 * PART + 1, 5])
    server = FarServer()
    kept: dict[str, str] = {}
    work = uploads(server, tmp_path, remember=kept.__setitem__)
    assert work.take(art(body)) is False
    assert work.pending == 1
    assert send(work) == []
    assert names(server) == [
        "step-7.pt.shards/.metadata",
        "step-7.pt.shards/__0_0.distcp",
        "step-7.pt.shards/__1_0.distcp",
        "step-7.pt.shards.json",
        "step-7.pt",
    ]
    *_, list_id, own_id = server.whole
    labels = server.documents[own_id]["spec"]["provenance"]["labels"]
    assert labels["launchhelm.offline.shards"] == list_id
    assert kept[body["id"]] == own_id
    said = json.loads(server.whole[list_id])
    assert (said["format"], said["directory"]) == ("launchhelm.offline.shards/1", parts.name)
    assert said["checkpoint"]["sha256"] == body["sha256"]
    there = {each["name"]: server.whole[each["artifact"]] for each in said["files"]}
    assert there == contents(parts)
    for each in said["files"]:
        data = there[each["name"]]
        assert (each["size"], each["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
    assert all(
        document["spec"]["provenance"]["coordinates"] == [{"axis": "step", "value": "7"}]
        for document in server.documents.values()
    )
    point = work.resolved(Record(WRITER, 4, "m", 0.0, 7, {"checkpoint": body["id"]}))
    assert point is not None and point.body == {"checkpoint": own_id}


def test_a_checkpoint_that_is_whole_in_its_file_is_one_artifact(tmp_path: Path) -> None:
    parts, body = lay_shards(tmp_path, [5])
    path = tmp_path / "media" / body["sha256"]
    path.chmod(0o600)
    path.write_bytes(b"no archive")
    whole = {**body, "size": 10, "sha256": hashlib.sha256(b"no archive").hexdigest()}
    path.rename(path.with_name(whole["sha256"]))
    server = FarServer()
    work = uploads(server, tmp_path)
    work.take(art(whole))
    assert send(work) == []
    assert names(server) == ["step-7.pt"]
    assert only_here(tmp_path, work.known) == f"checkpoints/{parts.name}"


def test_who_takes_over_sends_what_the_one_before_had_not_sent(tmp_path: Path) -> None:
    """Wherever it ended: at each call to the server one syncer is killed."""
    _, body = lay_shards(tmp_path, [PART, 2 * PART])
    alone = FarServer()
    work = uploads(alone, tmp_path)
    work.take(art(body))
    send(work)
    for killed_at in range(len(alone.calls)):
        server = FarServer()
        state = State()

        def remember(ours: str, theirs: str, state: State = state) -> None:
            state.apply({"artifacts": {ours: theirs}})

        class Killed(Exception):
            pass

        def fail(call: str, _: int, server: FarServer = server, last: int = killed_at) -> None:
            if len(server.calls) == last + 1:
                raise Killed

        server.fail = fail
        work = uploads(server, tmp_path, remember=remember)
        work.take(art(body))
        with pytest.raises(Killed):
            send(work)
        whole = len(server.whole)
        work = uploads(server, tmp_path, remember=remember, known=state.artifacts)
        work.take(art(body))
        assert send(work) == []
        assert list(map(server.whole.get, server.whole)) == list(alone.whole.values())
        assert names(server) == names(alone)
        # What was complete, and known to be, is not sent once more.
        assert server.calls.count("complete") <= len(alone.whole) + 1, whole
        assert set(state.artifacts) == {body["id"], f"{body['id']}/shards"}


@pytest.mark.parametrize("how", ["gone", "short", "no index", "damaged index"])
def test_of_an_incomplete_checkpoint_nothing_is_sent(tmp_path: Path, how: str) -> None:
    parts, body = lay_shards(tmp_path, [PART, 2 * PART])
    {
        "gone": lambda: (parts / shard(1)).unlink(),
        "short": lambda: os.truncate(parts / shard(1), 2 * PART - 1),
        "no index": lambda: (parts / ".metadata").unlink(),
        "damaged index": lambda: os.truncate(parts / ".metadata", 20),
    }[how]()
    clock = TurnedClock()
    server = FarServer()
    work = uploads(server, tmp_path, clock=clock)
    work.take(art(body))
    (aside,) = send(work, clock)
    assert clock.monotonic() - 1000.0 >= artifacts.UNSEEN_S
    assert aside.id == body["id"] and "its shards are not all there" in aside.why
    assert server.calls == []
    point = work.resolved(Record(WRITER, 4, "m", 0.0, 7, {"checkpoint": body["id"]}))
    assert point is not None and point.body == {"checkpoint": None}
    assert only_here(tmp_path, work.known)


@pytest.mark.parametrize("name", ["ü", "a\nb", "a\0b", "\ud800", "..", "../../run.json", "/"])
def test_names_that_torch_never_gives_set_the_checkpoint_aside(tmp_path: Path, name: str) -> None:
    parts, body = lay_shards(tmp_path, [PART])
    entry = SimpleNamespace(relative_path=name, offset=0, length=1)
    (parts / ".metadata").write_bytes(pickle.dumps(SimpleNamespace(storage_data={0: entry})))
    for real in ("ü", "a\nb", "run.json"):
        (tmp_path / real).write_text("mine")
        if real != "run.json":
            (parts / real).write_text("mine")
    clock = TurnedClock()
    server = FarServer()
    work = uploads(server, tmp_path, clock=clock)
    work.take(art(body))
    (aside,) = send(work, clock)
    assert aside.why and server.calls == []


@pytest.mark.parametrize("said", ["", "../../elsewhere", "a\0b"])
def test_a_record_that_says_something_else_leads_nowhere(tmp_path: Path, said: str) -> None:
    _, body = lay_shards(tmp_path, [PART])
    clock = TurnedClock()
    server = FarServer()
    work = uploads(server, tmp_path, clock=clock)
    work.take(art({**body, "parts": said}))
    aside = send(work, clock)
    assert names(server) == ([] if said else ["step-7.pt"])
    assert bool(aside) is bool(said)


def test_a_shard_that_is_seen_late_is_waited_for(tmp_path: Path) -> None:
    parts, body = lay_shards(tmp_path, [PART, PART])
    late = (parts / shard(1)).rename(tmp_path / "late")
    clock = TurnedClock()
    server = FarServer()
    work = uploads(server, tmp_path, clock=clock)
    work.take(art(body))
    for _ in range(20):
        assert work.step() == []
        clock.turn(1.0)
    assert "its shards are not all there" in work.problem
    late.rename(parts / shard(1))
    assert send(work, clock) == []
    assert names(server)[-1] == "step-7.pt"


def test_one_that_is_removed_while_it_goes_up_is_never_announced(tmp_path: Path) -> None:
    parts, body = lay_shards(tmp_path, [PART, PART, PART])

    def fail(call: str, number: int) -> None:
        if (call, number) == ("complete", 1):
            shutil.rmtree(parts)

    clock = TurnedClock()
    server = FarServer(fail)
    work = uploads(server, tmp_path, clock=clock)
    work.take(art(body))
    (aside,) = send(work, clock)
    assert aside.id == body["id"] and "__1_0.distcp cannot be read" in aside.why
    assert all("shards/" in name for name in names(server))
    assert {it["spec"]["name"] for it in server.documents.values()} == set(names(server))


@pytest.mark.parametrize("what", ["file", "directory"])
def test_no_link_is_followed(tmp_path: Path, what: str) -> None:
    """A shard has no digest that would tell whose bytes they are."""
    parts, body = lay_shards(tmp_path, [PART])
    linked = parts / shard(0) if what == "file" else parts
    linked.rename(tmp_path / "elsewhere")
    linked.symlink_to(tmp_path / "elsewhere")
    clock = TurnedClock()
    server = FarServer()
    work = uploads(server, tmp_path, clock=clock)
    work.take(art(body))
    (aside,) = send(work, clock)
    assert "cannot be read" in aside.why
    assert not any("distcp" in name for name in names(server))


def test_a_shard_that_the_server_refuses_is_told_by_its_name(tmp_path: Path) -> None:
    _, body = lay_shards(tmp_path, [PART, PART])

    def fail(call: str, number: int) -> None:
        if call == "create" and number:
            raise ApiError("validation", "Too many.", status=400)

    server = FarServer(fail)
    work = uploads(server, tmp_path)
    work.take(art(body))
    (aside,) = send(work)
    assert aside.id == body["id"] and "Too many." in aside.why
    assert names(server) == ["step-7.pt.shards/.metadata"]


def test_what_comes_later_goes_up_between_two_shards(tmp_path: Path) -> None:
    _, first = lay_shards(tmp_path, [PART] * 3)
    _, second = lay_shards(tmp_path, [PART] * 2)
    server = FarServer()
    work = uploads(server, tmp_path)
    work.take(art(first))
    while len(server.whole) < 2:
        work.step(0.0)
    work.take(art({**second, "name": "step-9.pt"}, seq=5))
    small = tmp_path / "media" / hashlib.sha256(b"picture").hexdigest()
    small.write_bytes(b"picture")
    body = {"id": "p", "name": "picture", "size": 7, "sha256": small.name}
    work.take(art(body, seq=6))
    assert send(work) == []
    order = names(server)
    assert order.index("picture") <= 3
    assert order.index("step-7.pt") < order.index("step-9.pt.shards/.metadata")
    assert order[-1] == "step-9.pt"


def test_memory_does_not_grow_with_a_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Sink(FarServer):
        def put_part(self, url: str, headers: Mapping[str, str], data: bytes) -> str:
            return '"e"'

        def complete_artifact(self, id_: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
            self.documents[id_]["spec"]["state"] = "ready"
            return self.documents[id_]

    monkeypatch.setattr(upload, "PART_BYTES", 1 << 20)
    peaks = []
    for mebibytes in (4, 40):
        _, body = lay_shards(tmp_path, [mebibytes << 20])
        work = uploads(Sink(), tmp_path)
        work.take(art(body))
        tracemalloc.start()
        send(work)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + (1 << 20)
