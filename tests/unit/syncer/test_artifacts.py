"""Uploads of one run: what a server gets, what a failure costs, what is set aside."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from launchhelm.records import Record, WriterId
from launchhelm.store import media
from syncer import artifacts, upload
from syncer.api.answers import ApiError
from tests.support.far_artifacts import SCOPE, FarServer, send, uploads
from tests.support.runs import TurnedClock

WRITER = WriterId(0, 1, "0123abcd")
PART = 1000


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "PART_BYTES", PART)


def art(directory: Path, data: bytes, id_: str = "ours", seq: int = 3, **body: Any) -> Record:
    """Store bytes in a run and return the record that names them."""
    stored = media.put(directory, [data])
    said = {
        "id": id_,
        "name": "model.pt",
        "media_type": "a/b",
        "size": stored.size,
        "sha256": stored.sha256,
        "purpose": "general",
        **body,
    }
    return Record(WRITER, seq, "art", 0.0, 7, said, {"fold": "2"})


def error(code: str, status: int, **more: Any) -> ApiError:
    return ApiError(code, f"{code}.", status=status, **more)


def test_a_file_arrives_in_parts_with_what_the_record_says(tmp_path: Path) -> None:
    data = os.urandom(2 * PART + 1)
    server = FarServer()
    kept: list[tuple[str, str]] = []
    work = uploads(server, tmp_path, remember=lambda *entry: kept.append(entry))
    assert work.take(art(tmp_path, data)) is False
    assert send(work) == []
    assert server.whole["theirs-0"] == data
    assert server.calls == ["create", "sign", "put", "sign", "put", "sign", "put", "complete"]
    assert kept == [("ours", "theirs-0")]
    spec = server.documents["theirs-0"]["spec"]
    assert (spec["name"], spec["size"], spec["scope"]) == ("model.pt", str(len(data)), SCOPE)
    assert spec["provenance"] == {
        "inputs": [],
        "coordinates": [{"axis": "step", "value": "7"}, {"axis": "fold", "value": "2"}],
        "labels": {"launchhelm.offline.artifact": "ours"},
    }


def test_a_point_that_names_an_artifact_waits_for_it_and_gets_the_servers_id(
    tmp_path: Path,
) -> None:
    work = uploads(FarServer(), tmp_path)
    work.take(art(tmp_path, b"state"))
    point = Record(WRITER, 4, "m", 0.0, 7, {"checkpoint": "ours", "loss": 0.5, "note": "text"})
    assert work.resolved(point) is None
    send(work)
    resolved = work.resolved(point)
    assert resolved is not None
    assert resolved.body == {"checkpoint": "theirs-0", "loss": 0.5, "note": "text"}
    plain = Record(WRITER, 5, "m", 0.0, 8, {"loss": 0.5, "note": "text"})
    assert work.resolved(plain) is plain


def test_what_is_remembered_is_not_sent_again(tmp_path: Path) -> None:
    server = FarServer()
    record = art(tmp_path, b"state")
    work = uploads(server, tmp_path, known={"ours": "theirs-9"})
    assert work.take(record) is True
    assert not work.pending
    resolved = work.resolved(Record(WRITER, 4, "m", 0.0, 7, {"checkpoint": "ours"}))
    assert resolved is not None and resolved.body == {"checkpoint": "theirs-9"}
    assert server.calls == []


def test_with_all_memory_lost_the_same_document_is_found(tmp_path: Path) -> None:
    server = FarServer()
    record = art(tmp_path, b"state")
    for _ in range(2):
        work = uploads(server, tmp_path)
        work.take(record)
        send(work)
    assert list(server.documents) == ["theirs-0"]
    assert server.calls.count("put") == 1


@pytest.mark.parametrize("call", ["create", "sign", "put", "complete"])
@pytest.mark.parametrize(
    "failure",
    [
        error("transport", 0, retryable=True),
        error("http_error", 503, retryable=True),
        error("upload_failed", 403, retryable=True),
        error("unauthorized", 401),
        error("rate_limited", 429, retryable=True),
        error("conflict", 409),
    ],
    ids=lambda failure: failure.code,
)
def test_a_call_that_fails_once_costs_nothing(tmp_path: Path, call: str, failure: ApiError) -> None:
    def fail(name: str, number: int) -> None:
        if (name, number) == (call, 0):
            raise failure

    clock = TurnedClock()
    data = os.urandom(3 * PART)
    server = FarServer(fail)
    work = uploads(server, tmp_path, clock=clock)
    work.take(art(tmp_path, data))
    assert send(work, clock) == []
    assert server.whole == {"theirs-0": data}
    assert list(server.documents) == ["theirs-0"]


def test_an_answer_that_was_lost_after_the_work_is_found_done(tmp_path: Path) -> None:
    class Forgetful(FarServer):
        def complete_artifact(self, id_: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
            document = super().complete_artifact(id_, parts)
            if self.calls.count("complete") == 1:
                raise error("conflict", 409)
            return document

    server = Forgetful()
    work = uploads(server, tmp_path)
    work.take(art(tmp_path, b"state"))
    assert send(work) == []
    assert server.calls.count("put") == 1
    assert work.known == {"ours": "theirs-0"}


def test_the_server_as_a_whole_is_its_callers_business(tmp_path: Path) -> None:
    def fail(name: str, number: int) -> None:
        raise error("unauthorized", 401)

    work = uploads(FarServer(fail), tmp_path)
    work.take(art(tmp_path, b"state"))
    with pytest.raises(ApiError):
        for _ in range(3):
            work.step()
    assert work.pending == 1


def test_a_place_for_parts_that_fails_holds_nobody_else_up(tmp_path: Path) -> None:
    def fail(name: str, number: int) -> None:
        if name == "put" and number < 5:
            raise error("upload_uncertain", 0, retryable=True)

    clock = TurnedClock()
    server = FarServer(fail)
    work = uploads(server, tmp_path, clock=clock)
    work.take(art(tmp_path, b"state"))
    assert work.step() == []
    assert work.problem and work.due_at > clock.monotonic()
    calls = len(server.calls)
    work.step()
    assert len(server.calls) == calls  # It is not due.
    while server.calls.count("put") < artifacts.PATIENCE:
        assert not work.stopped
        clock.turn(1.0)
        assert work.step() == []
    assert work.stopped == work.problem
    assert send(work, clock) == []
    assert server.whole == {"theirs-0": b"state"}


def test_an_artifact_that_the_server_refuses_is_set_aside_with_its_words(tmp_path: Path) -> None:
    def fail(name: str, number: int) -> None:
        if name == "create" and number < artifacts.MAX_STARTS:
            raise ApiError("validation", "No such purpose.", status=400)

    kept: list[tuple[str, str]] = []
    server = FarServer(fail)
    work = uploads(server, tmp_path, remember=lambda *entry: kept.append(entry))
    work.take(art(tmp_path, b"state"))
    work.take(art(tmp_path, b"other", id_="second", seq=5))
    (aside,) = send(work)
    assert (aside.id, aside.size) == ("ours", 5)
    assert "No such purpose." in aside.why
    assert kept[0] == ("ours", "")
    assert work.known["second"]
    point = work.resolved(Record(WRITER, 4, "m", 0.0, 7, {"checkpoint": "ours", "loss": 1.0}))
    assert point is not None and point.body == {"checkpoint": None, "loss": 1.0}


def test_a_damaged_file_is_set_aside_before_anything_is_sent(tmp_path: Path) -> None:
    record = art(tmp_path, b"x" * (2 * PART))
    path = media.path_of(tmp_path, str(record.body["sha256"]))
    path.chmod(0o600)
    path.write_bytes(b"x" * (2 * PART - 1) + b"y")
    server = FarServer()
    work = uploads(server, tmp_path)
    work.take(record)
    (aside,) = send(work)
    assert "damaged" in aside.why
    assert server.calls == []


@pytest.mark.parametrize("how", ["missing", "short"])
def test_a_file_that_is_not_whole_yet_is_waited_for(tmp_path: Path, how: str) -> None:
    data = b"x" * (2 * PART)
    record = art(tmp_path, data)
    path = media.path_of(tmp_path, str(record.body["sha256"]))
    path.unlink()
    if how == "short":
        path.write_bytes(data[:-1])
    clock = TurnedClock()
    server = FarServer()
    work = uploads(server, tmp_path, clock=clock)
    work.take(record)
    for _ in range(int(artifacts.UNSEEN_S) - 5):
        assert work.step() == []
        clock.turn(1.0)
    assert work.problem
    media.put(tmp_path, [data])
    assert send(work, clock) == []
    assert server.whole == {"theirs-0": data}


def test_a_file_that_never_comes_is_set_aside(tmp_path: Path) -> None:
    record = art(tmp_path, b"state")
    media.path_of(tmp_path, str(record.body["sha256"])).unlink()
    clock = TurnedClock()
    work = uploads(FarServer(), tmp_path, clock=clock)
    work.take(record)
    (aside,) = send(work, clock)
    assert "cannot be read" in aside.why
    assert clock.monotonic() - 1000.0 <= artifacts.UNSEEN_S + 5


@pytest.mark.parametrize(
    "body",
    [{"sha256": "../run.json"}, {"size": 0}, {"size": "5"}, {"sha256": None}, {"size": 1 << 60}],
)
def test_a_record_that_names_no_file_of_ours_is_set_aside(
    tmp_path: Path, body: dict[str, Any]
) -> None:
    server = FarServer()
    work = uploads(server, tmp_path)
    work.take(art(tmp_path, b"state", **body))
    (aside,) = send(work)
    assert aside.why
    assert server.calls == []


@pytest.mark.parametrize("odd", ["ü", "a\nb", "\ud800", "x" * 5000, "a\0"])
@pytest.mark.parametrize("what", ["id", "media_type"])
def test_the_key_of_an_upload_is_one_that_a_header_can_carry(
    tmp_path: Path, what: str, odd: str
) -> None:
    purpose = "general" if what == "id" else upload.MEDIA
    record = art(tmp_path, b"state", **{what: odd, "purpose": purpose})
    key = upload.Artifact.parse(record).key("r")
    assert key.isascii() and key.isprintable() and len(key) < 1024
    assert key == upload.Artifact.parse(record).key("r")
    other = art(tmp_path, b"state", **{what: odd + "?", "purpose": purpose})
    assert key != upload.Artifact.parse(other).key("r")


def test_files_that_would_have_too_many_parts_get_larger_ones(tmp_path: Path) -> None:
    record = art(tmp_path, b"state", size=10_000 * PART + 1)
    assert upload.Artifact.parse(record).part_bytes == PART + 1


def test_memory_does_not_grow_with_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Sink(FarServer):
        def put_part(self, url: str, headers: Mapping[str, str], data: bytes) -> str:
            return '"e"'

        def complete_artifact(self, id_: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
            self.documents[id_]["spec"]["state"] = "ready"
            return self.documents[id_]

    monkeypatch.setattr(upload, "PART_BYTES", 1 << 20)
    peaks = []
    for mebibytes in (4, 40):
        record = art(tmp_path, os.urandom(1 << 20) * mebibytes)
        work = uploads(Sink(), tmp_path)
        work.take(record)
        tracemalloc.start()
        send(work)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + (1 << 20)
