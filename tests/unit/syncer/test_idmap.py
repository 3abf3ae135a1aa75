"""Documents of a run are created once, however often answers are lost, and found again by label."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from launchhelm._ids import new_id
from launchhelm.errors import ConfigError, Conflict, NotFound
from launchhelm.records import WriterId
from launchhelm.store.manifest import load_manifest
from launchhelm.store.reader import Reader
from syncer.api import wire
from syncer.api.answers import ApiError
from syncer.api.client import Client
from syncer.facts import Facts
from syncer.idmap import IdMap
from syncer.mapping import Sample, samples
from syncer.naming import RUN_LABEL, STREAM_LABEL, WRITER_LABEL, StreamKey
from tests.support.reading import RunBuilder, WriterBuilder
from tests.support.v1_server import v1_server

ORGANIZATION = "11111111-1111-4111-8111-111111111111"


class FakeServer(httpx.BaseTransport):
    """Keeps documents in memory; loses or refuses what a test asks for.

    Attributes:
        requests: (method, last part of the path, kind) of each call.
        lost: Kinds of which the next create happens, but is never answered.
        held: Kinds of which the next create is answered with an error and happens only later.
        forbidden: (method, kind) that the key may not do.
    """

    def __init__(self) -> None:
        self.documents: dict[str, dict[str, Any]] = {}
        self.requests: list[tuple[str, str, str]] = []
        self.lost: list[str] = []
        self.held: list[str] = []
        self.forbidden: set[tuple[str, str]] = set()
        self._late: list[dict[str, Any]] = []

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [document for document in self.documents.values() if document["kind"] == kind]

    def count(self, method: str, kind: str) -> int:
        return sum(it[0] == method and it[2] == kind for it in self.requests)

    def add(self, kind: str, spec: dict[str, Any], **place: str) -> str:
        """Create a document as somebody else would."""
        scope = {"organization_id": ORGANIZATION, **place}
        return str(self._create({"kind": kind, "scope": scope, "spec": spec})["id"])

    def come_through(self) -> None:
        """Let the creates happen that were held up."""
        for document in self._late:
            self._create(document)
        self._late = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        last = request.url.path.rpartition("/")[2]
        body = json.loads(request.read() or b"null")
        if request.method == "GET" and last == "documents":
            return self._list(request.url.params)
        if request.method == "GET":
            found = self.documents.get(last)
            self.requests.append(("GET", last, found["kind"] if found else ""))
            if ("GET", found["kind"] if found else "project") in self.forbidden:
                return _error(403, "forbidden")
            return httpx.Response(200, json=found) if found else _error(404, "not_found")
        if request.method == "PATCH":
            return self._update(last, body)
        wanted = body["documents"] if last == "document-batches" else [body]
        kind = wanted[0]["kind"]
        self.requests.append(("POST", last, kind))
        if ("POST", kind) in self.forbidden:
            return _error(403, "forbidden")
        if kind in self.held:
            self.held.remove(kind)
            self._late += wanted
            return _error(503, "unavailable")
        try:
            made = [self._create(document) for document in wanted]
        except _Refused as refused:
            return refused.answer
        if kind in self.lost:
            self.lost.remove(kind)
            raise httpx.ReadError("connection cut")
        return httpx.Response(200, json={"documents": made} if last != "documents" else made[0])

    def _create(self, wanted: dict[str, Any]) -> dict[str, Any]:
        place = len(self.documents)
        at = f"2026-11-30T07:00:00.{place:06d}Z"
        if not place:
            at = "2026-11-30T07:00:00Z"  # Some write no fraction where it is zero.
        document = {"id": new_id(), "revision": "1", "created_at": at, "updated_at": at, **wanted}
        self.documents[document["id"]] = document
        return document

    def _update(self, id_: str, body: dict[str, Any]) -> httpx.Response:
        document = self.documents[id_]
        self.requests.append(("PATCH", id_, document["kind"]))
        if body["expected_revision"] != document["revision"]:
            return _error(409, "conflict")
        document["revision"] = str(int(document["revision"]) + 1)
        document["spec"] = body["spec"]
        return httpx.Response(200, json=document)

    def _list(self, params: httpx.QueryParams) -> httpx.Response:
        kind = params["kind"]
        self.requests.append(("GET", "documents", kind))
        if ("GET", kind) in self.forbidden:
            return _error(403, "forbidden")
        found = [
            document
            for document in reversed(self.of(kind))  # The order means nothing.
            for scope in (document["scope"],)
            if params["project_id"] in ("", scope.get("project_id"))
            if params["run_id"] in ("", scope.get("run_id"))
        ]
        start = int(params["cursor"] or 0)
        after = start + int(params["limit"])
        more = str(after) if after < len(found) else ""
        return httpx.Response(200, json={"items": found[start:after], "next_cursor": more})


class _Refused(Exception):
    """Ends a call with an answer."""

    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer


def _error(status: int, code: str) -> httpx.Response:
    document = {"error": {"code": code, "message": code, "retryable": status >= 500}}
    return httpx.Response(status, json=document)


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


@pytest.fixture
def client(server: FakeServer) -> Iterator[Client]:
    with Client("http://127.0.0.1:1", ORGANIZATION, "key", transport=server) as client:
        yield client


@pytest.fixture
def run(tmp_path: Path) -> RunBuilder:
    return RunBuilder(tmp_path)


def facts_of(run: RunBuilder) -> Facts:
    return Facts.read(run.directory, load_manifest(run.directory))


def idmap_of(run: RunBuilder, client: Client, project: str = "tests", **more: Any) -> IdMap:
    return IdMap(client, project, facts_of(run), **more)


def started(writer: WriterBuilder, world_size: int = 1) -> WriterBuilder:
    writer.record("ev", {"type": "start", "world_size": world_size}, step=None)
    writer.flush()
    return writer


def keys(count: int, writer: WriterId | None = None) -> list[StreamKey]:
    writer = writer or WriterId(0, 1, "9f3a2c1d")
    return [StreamKey(writer, f"metric/{number}", "number") for number in range(count)]


# --- once -----------------------------------------------------------------------------------------


def test_a_new_run_gets_its_documents_and_asks_for_each_once(
    run: RunBuilder, client: Client, server: FakeServer
) -> None:
    writer = started(run.writer()).writer
    idmap = idmap_of(run, client)

    streams = idmap.streams(keys(3, writer))
    assert idmap.streams(keys(3, writer)) == streams
    (project,), (document,) = server.of("project"), server.of("run")
    (participant,) = server.of("participant")

    assert project["spec"]["name"] == "tests"
    assert document["scope"] == {"organization_id": ORGANIZATION, "project_id": project["id"]}
    assert participant["scope"] == {**document["scope"], "run_id": document["id"]}
    assert participant["spec"]["name"] == "rank-0"
    assert participant["spec"]["role"] == "trainer"
    assert participant["spec"]["labels"][WRITER_LABEL] == str(writer)
    assert [id_ for id_, _ in streams.values()] == [it["id"] for it in server.of("stream")]
    assert all(it["spec"]["participant_id"] == participant["id"] for it in server.of("stream"))
    assert server.count("POST", "stream") == 1
    for kind in ("project", "run", "participant"):
        assert server.count("POST", kind) == 1


def test_another_process_finds_what_is_there(
    run: RunBuilder, client: Client, server: FakeServer
) -> None:
    first = idmap_of(run, client).streams(keys(3))
    before = len(server.documents)

    again = idmap_of(run, client)

    assert again.streams(keys(3)) == first
    assert len(server.documents) == before
    assert len(again.streams(keys(5))) == 5
    assert len(server.documents) == before + 2


def test_ids_that_were_found_before_cost_no_request(
    run: RunBuilder, client: Client, server: FakeServer
) -> None:
    first = idmap_of(run, client)
    streams = first.streams(keys(2))
    server.requests.clear()

    again = idmap_of(run, client)
    again.seed(
        project_id=first.project_id(),
        run_id=first.run(),
        participants=first.participants,
        streams=first.known_streams,
    )

    assert again.streams(keys(2)) == streams
    assert server.requests == []


@pytest.mark.parametrize("kind", ["project", "run", "participant", "stream"])
def test_a_create_whose_answer_was_lost_is_matched_at_the_next_call(
    kind: str, run: RunBuilder, client: Client, server: FakeServer
) -> None:
    server.lost = [kind]
    idmap = idmap_of(run, client)
    with pytest.raises(ApiError):
        idmap.streams(keys(3))

    streams = idmap.streams(keys(3))

    assert sorted(id_ for id_, _ in streams.values()) == sorted(
        it["id"] for it in server.of("stream")
    )
    assert [len(server.of(it)) for it in ("project", "run", "participant")] == [1, 1, 1]


@pytest.mark.parametrize("kind", ["run", "participant", "stream"])
def test_of_two_documents_the_oldest_is_ours_for_everybody(
    kind: str, run: RunBuilder, client: Client, server: FakeServer
) -> None:
    """The first create comes through late, when a second one is on its way."""
    server.held = [kind]
    idmap = idmap_of(run, client)
    with pytest.raises(ApiError):
        idmap.streams(keys(1))
    create = server._create

    def late_then(wanted: dict[str, Any]) -> dict[str, Any]:
        server._create = create  # type: ignore[method-assign]
        server.come_through()
        return create(wanted)

    def when_due(wanted: dict[str, Any]) -> dict[str, Any]:
        return late_then(wanted) if wanted["kind"] == kind else create(wanted)

    server._create = when_due  # type: ignore[method-assign]

    (stream,) = idmap.streams(keys(1)).values()

    oldest = {it: server.of(it)[0]["id"] for it in ("run", "participant", "stream")}
    assert len(server.of(kind)) == 2
    assert (idmap.run(), stream[0]) == (oldest["run"], oldest["stream"])
    assert idmap.participants == {keys(1)[0].writer: oldest["participant"]}
    assert idmap_of(run, client).streams(keys(1)) == idmap.streams(keys(1))


def test_many_streams_are_created_in_requests_that_any_server_takes(
    run: RunBuilder, client: Client, server: FakeServer
) -> None:
    writer = WriterId(0, 1, "9f3a2c1d")
    axes = ("step", *(f"axis-{number}" for number in range(31)))
    wide = [StreamKey(writer, f"{number}" + "x" * 900, "number", axes) for number in range(1500)]

    streams = idmap_of(run, client).streams([*keys(2500), *wide])

    assert len(streams) == 4000
    assert len(server.of("stream")) == 4000
    assert len({it["spec"]["labels"][STREAM_LABEL] for it in server.of("stream")}) == 4000
    assert idmap_of(run, client).streams([*keys(2500), *wide]) == streams


def test_a_unit_that_was_defined_goes_with_the_stream(
    run: RunBuilder, client: Client, server: FakeServer
) -> None:
    writer = run.writer()
    writer.record("def", {"name": "metric/0", "kind": "number", "axes": ["step"], "unit": "nats"})
    writer.flush()

    idmap_of(run, client).streams(keys(2))

    assert [it["spec"].get("unit") for it in server.of("stream")] == ["nats", None]


# --- project --------------------------------------------------------------------------------------


def test_a_project_is_found_by_its_id(run: RunBuilder, client: Client, server: FakeServer) -> None:
    id_ = server.add("project", {"name": "elsewhere"})

    assert idmap_of(run, client, id_).project_id() == id_
    assert server.count("GET", "run") == 0


def test_an_id_that_is_no_project_is_refused(
    run: RunBuilder, client: Client, server: FakeServer
) -> None:
    for id_ in (new_id(), server.add("run", {"name": "r"})):
        with pytest.raises(NotFound, match="no project with the id"):
            idmap_of(run, client, id_).project_id()
    assert server.count("POST", "project") == 0


def test_the_run_says_its_project_where_nobody_else_does(
    run: RunBuilder, client: Client, server: FakeServer
) -> None:
    told = load_manifest(run.directory).project_id
    with pytest.raises(NotFound):
        idmap_of(run, client, "").project_id()

    server.documents[told] = {**_project("tests"), "id": told}

    assert idmap_of(run, client, "").project_id() == told


def test_several_projects_of_one_name_are_refused_with_their_ids(
    run: RunBuilder, client: Client, server: FakeServer
) -> None:
    ids = [server.add("project", {"name": "tests"}) for _ in range(2)]

    with pytest.raises(Conflict) as caught:
        idmap_of(run, client).project_id()

    assert all(id_ in caught.value.message for id_ in ids)
    assert "LAUNCHHELM_PROJECT" in caught.value.remedy


def test_two_syncers_that_create_one_project_at_once_agree_on_the_oldest(
    run: RunBuilder, client: Client, server: FakeServer
) -> None:
    first = idmap_of(run, client).project_id()
    server.add("project", server.documents[first]["spec"])

    assert idmap_of(run, client).project_id() == first


def test_a_project_that_somebody_creates_meanwhile_is_used(
    run: RunBuilder, client: Client, server: FakeServer
) -> None:
    """A server that allows a name once refuses the second create with a conflict."""
    create = server._create

    def taken(wanted: dict[str, Any]) -> dict[str, Any]:
        server._create = create  # type: ignore[method-assign]
        server.add("project", {"name": "tests"})
        raise _Refused(_error(409, "conflict"))

    server._create = taken  # type: ignore[method-assign]

    assert idmap_of(run, client).project_id() == server.of("project")[0]["id"]


def test_a_project_is_not_created_where_that_is_not_wanted(
    run: RunBuilder, client: Client, server: FakeServer
) -> None:
    with pytest.raises(NotFound, match="no project called 'tests'"):
        idmap_of(run, client, create_project=False).project_id()
    assert server.documents == {}


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_key_that_knows_only_its_project_must_be_given_the_id(
    method: str, run: RunBuilder, client: Client, server: FakeServer
) -> None:
    id_ = server.add("project", {"name": "mine"})
    server.forbidden = {(method, "project")}

    with pytest.raises(ConfigError) as caught:
        idmap_of(run, client).project_id()

    assert "LAUNCHHELM_PROJECT" in caught.value.remedy
    assert idmap_of(run, client, id_).project_id() == id_


def test_another_trouble_of_the_server_is_no_trouble_of_the_key(
    run: RunBuilder, client: Client, server: FakeServer
) -> None:
    server.held = ["project"]

    with pytest.raises(ApiError) as caught:
        idmap_of(run, client).project_id()

    assert caught.value.status == 503


def _project(name: str) -> dict[str, Any]:
    return {
        "kind": "project",
        "scope": {"organization_id": ORGANIZATION},
        "revision": "1",
        "spec": {"name": name},
        "created_at": "2026-01-01T00:00:00Z",
        "updated_at": "2026-01-01T00:00:00Z",
    }


# --- updates --------------------------------------------------------------------------------------


def test_an_update_writes_what_changed_once(
    run: RunBuilder, client: Client, server: FakeServer
) -> None:
    writer = started(run.writer())
    idmap = idmap_of(run, client)
    idmap.run()
    assert not idmap.update_run()

    writer.record("desc", {"notes": "better"})
    writer.close()
    writer.flush()
    later = idmap_of(run, client)

    assert later.update_run()
    assert not later.update_run()
    (document,) = server.of("run")
    assert document["spec"]["state"] == "closed"
    assert document["spec"]["labels"]["launchhelm.notes"] == "better"
    assert document["spec"]["labels"][RUN_LABEL] == run.run_id
    assert document["revision"] == "2"


# --- the real server ------------------------------------------------------------------------------


class CutAnswers(httpx.HTTPTransport):
    """Passes requests on, and loses the answers to the first creates of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.cut: list[str] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        creates = request.method == "POST" and "/document" in request.url.path
        body = json.loads(request.read()) if creates else {}
        answer = super().handle_request(request)
        kind = body.get("kind") or (body.get("documents") or [{}])[0].get("kind", "")
        if creates and kind not in self.cut:
            self.cut.append(kind)
            answer.close()
            raise httpx.ReadError("connection cut")
        return answer


def test_on_the_real_server_every_lost_create_is_found_again(
    run: RunBuilder, tmp_path: Path
) -> None:
    started(run.writer())
    transport = CutAnswers()
    with (
        v1_server(tmp_path) as real,
        Client(real.url, real.organization, real.key, transport=transport) as client,
    ):
        idmap = idmap_of(run, client, "of my own")
        streams: dict[StreamKey, tuple[str, str]] = {}
        for _ in range(5):
            try:
                streams = idmap.streams(keys(3))
            except ApiError as error:
                assert error.retryable
        project, run_id = idmap.project_id(), idmap.run()

        assert transport.cut == ["project", "run", "participant", "stream"]
        assert [it["id"] for it in client.list_documents("run", project)] == [run_id]
        found = [it["id"] for it in client.list_documents("stream", project, run_id)]
        assert sorted(found) == sorted(id_ for id_, _ in streams.values())
        assert len(list(client.list_documents("participant", project, run_id))) == 1
        assert idmap_of(run, client, "of my own").streams(keys(3)) == streams
        assert not idmap.update_run()


def test_on_the_real_server_a_key_of_one_project_needs_its_id(
    run: RunBuilder, tmp_path: Path
) -> None:
    with (
        v1_server(tmp_path) as real,
        Client(real.url, real.organization, real.project_key) as client,
    ):
        with pytest.raises(ConfigError, match="may not look up or create"):
            idmap_of(run, client, "another one").project_id()
        idmap = idmap_of(run, client, real.project)

        assert len(idmap.streams(keys(2))) == 2
        assert idmap.project_id() == real.project


def test_on_the_real_server_every_value_is_read_back(run: RunBuilder, tmp_path: Path) -> None:
    """Mapping, documents and points together, as a push does it."""
    writer = started(run.writer())
    values = {"a": -0.0, "b": 1e300, "c": 1 << 90, "d": True, "e": "naïve ☃", "f": 0.1, "g": 5}
    for step in range(40):
        writer.metrics(step, **values, same=float(step))
    writer.record("m", {"a": 2.5}, step=3, axes={"layer": "0.50"})
    writer.record("con", {"text": "hello", "stream": 0, "line": 0}, step=3)
    writer.close()
    writer.flush()
    made = [sample for it in Reader(run.directory).poll() for sample in samples(it)]
    by_stream: dict[StreamKey, list[Sample]] = {}
    for sample in made:
        assert isinstance(sample, Sample)
        by_stream.setdefault(sample.key, []).append(sample)
    with v1_server(tmp_path) as real, real.client() as client:
        idmap = idmap_of(run, client, real.project)
        streams = idmap.streams(by_stream)
        participant = idmap.participant(writer.writer)
        epoch = client.connect(participant, new_id())["epoch"]
        batches = [
            wire.batch(
                new_id(), *streams[key], epoch, participant, [sample.data for sample in of_stream]
            )
            for key, of_stream in by_stream.items()
        ]
        client.ingest(wire.request(batches))

        for key, of_stream in by_stream.items():
            got = sorted(client.all_points(streams[key][0]), key=lambda it: int(it["sequence"]))
            expected = [{**wire.parse(sample.data), "epoch": epoch} for sample in of_stream]
            # As text, since 0.0 equals -0.0.
            assert json.dumps(got, sort_keys=True) == json.dumps(expected, sort_keys=True)
        assert len(by_stream) == 11
