"""What a run shows on its way to a server: from two ranks, in parts, and when the way is bad."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy
import pytest

from launchhelm import Image, Run, views
from launchhelm.cli import main
from launchhelm.store import media
from launchhelm.views import samples
from syncer.api.client import Client
from tests.support.jobs import run_job, torchrun
from tests.support.journals import only_run, series
from tests.support.pushing import WrittenRun, push_all, pushing, runs_on
from tests.support.runs import running
from tests.support.v1_server import V1Server, v1_server

PIXELS = numpy.linspace(0, 1, 4 * 6 * 3).reshape(4, 6, 3)
EVER = {"start": "1970-01-01T00:00:00Z", "end": "2261-01-01T00:00:00Z"}

JOB = """
import sys
import numpy, torch
import torch.distributed as dist
import launchhelm, launchhelm.torch as lht

dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.Linear(2, 1)
trainer = lht.init("quickstart", name="pictures", state_dir=sys.argv[1], log_ranks="all")
trainer.watch(model, torch.optim.SGD(model.parameters(), lr=0.1))
for step in range(3):
    loss = model(torch.ones(1, 2)).mean()
    loss.backward()
    trainer.step(step, loss=loss)
    trainer.run.image("frames", torch.full((8, 8, 3), (rank * 3 + step) / 8), step=step)
    trainer.run.image("same", torch.zeros(4, 4), step=step, fold=rank)
    trainer.run.histogram("weights", model.weight, step=step)
trainer.finish()
dist.destroy_process_group()
"""


class Gate(httpx.HTTPTransport):
    """Passes requests on, but for those that a test keeps back."""

    def __init__(self) -> None:
        super().__init__()
        self.refuse: Callable[[httpx.Request], bool] = lambda request: False
        self.seen: Counter[str] = Counter()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.seen[request.url.path.rpartition("/")[2]] += 1
        if self.refuse(request):
            request.read()
            return httpx.Response(503, json={"error": {"code": "unavailable", "message": "later"}})
        return super().handle_request(request)


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


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with running(tmp_path / "runs", name="shown", project="quickstart") as run:
        yield run


@pytest.fixture
def sync(
    server: V1Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., dict[str, Any]]:
    """Make one pass as a shell does; returns the document of the one run."""
    monkeypatch.setenv("LAUNCHHELM_URL", server.url)
    monkeypatch.setenv("LAUNCHHELM_API_KEY", server.key)
    monkeypatch.setenv("LAUNCHHELM_STATE_DIR", str(tmp_path / "state"))

    def call(directory: Path, *options: str) -> dict[str, Any]:
        capsys.readouterr()
        code = main(["sync", str(directory), "--json", *options])
        out, err = capsys.readouterr()
        assert code == 0, err
        return dict(json.loads(out))

    return call


def artifacts(client: Client, run_id: str, into: Path) -> dict[str, bytes]:
    """Return the bytes of every artifact of a run on the server by id; all must be ready."""
    found = {}
    for run in runs_on(client, run_id):
        for document in client.list_documents("artifact", run["scope"]["project_id"], run["id"]):
            assert document["spec"]["state"] == "ready"
            with into.open("wb") as file:
                client.download(client.artifact_url(document["id"]), file)
            found[document["id"]] = into.read_bytes()
    return found


def points(client: Client, run_id: str, name: str) -> list[Any]:
    """Return the points of a metric on the server, of all its streams."""
    return [
        point
        for run in runs_on(client, run_id)
        for stream in client.list_documents("stream", run["scope"]["project_id"], run["id"])
        if stream["spec"]["name"] == name
        for point in client.all_points(stream["id"])
    ]


def shown(client: Client, run_id: str, name: str, into: Path) -> list[bytes]:
    """Return the bytes of the first medium of each point."""
    there = artifacts(client, run_id, into)
    items = [point["value"]["items"][0] for point in points(client, run_id, name)]
    return [there[item["source"]["artifact"]["id"]] for item in items]


def test_two_ranks_log_pictures_and_a_server_shows_each_of_them(
    tmp_path: Path, client: Client, gate: Gate, sync: Callable[..., dict[str, Any]]
) -> None:
    script, root, into = tmp_path / "job.py", tmp_path / "runs", tmp_path / "download"
    script.write_text(JOB)
    job = run_job(torchrun(2, script, root), tmp_path)
    assert job.code == 0, job.said
    directory = only_run(root)
    with_steps = series(directory, "train/loss", rank=0)
    assert [step for step, _ in with_steps] == [0, 1, 2]

    view = views.open_run(directory)
    local = {
        (stream.writer.rank, stream.name): samples.query(view, stream.id, **EVER)["items"]
        for stream in samples.streams(view)
        if stream.type == "object"
    }
    assert {key: len(items) for key, items in local.items()} == {
        (rank, name): 3 for rank in (0, 1) for name in ("frames", "same", "weights")
    }

    document = sync(directory)
    run_id = view.run_id
    there = artifacts(client, run_id, into)
    expected = {Image(numpy.full((8, 8, 3), n / 8)).blobs()[0].data for n in range(6)}
    expected |= {Image(numpy.zeros((4, 4))).blobs()[0].data}
    assert set(there.values()) == expected and len(there) == 7  # Equal bytes went up once.
    assert document["bytes"] > sum(map(len, expected))
    assert len(shown(client, run_id, "frames", into)) == 6
    assert shown(client, run_id, "same", into) == [Image(numpy.zeros((4, 4))).blobs()[0].data] * 6
    assert {point["coordinates"][1]["value"] for point in points(client, run_id, "same")} == {
        "0",
        "1",
    }
    assert len(points(client, run_id, "weights")) == 6
    assert sync(directory)["points"] == 0


def test_the_directory_and_the_server_answer_alike(
    run: Run, client: Client, server: V1Server
) -> None:
    """Every stream, page by page and as samples, but for the ids of artifacts."""
    item = run.upload_media(PIXELS, caption="c")
    for step in range(7):
        run.log({"loss": [1.5, float("nan"), 1e300, 2**60][step % 4], "ok": True}, step=step)
        run.image("frames", PIXELS * (step / 7), step=step, fold=step % 2)
        run.text("notes", f"ü {step}", step=step)
    run.log_table("table", [("a", "number"), ("m", "media")], [[float("nan"), item]])
    run.histogram("weights", [1.0, 2.0, float("inf")])
    run.console("a line")
    run.finish()
    with pushing(run.directory, client) as push:
        assert push_all(push)[-1].done
    view = views.open_run(run.directory)
    (document,) = runs_on(client, run.run_id)
    scope = document["scope"]
    theirs = {
        (it["spec"]["name"], it["spec"]["value_schema"]["type"]): it
        for it in client.list_documents("stream", scope["project_id"], document["id"])
        if not it["spec"]["name"].startswith("launchhelm/")
    }
    ours = {(stream.name, stream.type): stream for stream in samples.streams(view)}
    assert set(ours) == set(theirs) and len(ours) == 7
    selects: list[dict[str, Any]] = [
        {"mode": "latest", "limit": 3},
        {"mode": "at", "values": ["1", "4", "99"]},
        {"mode": "spread", "limit": 3, "window": {"from": "1", "to": "5"}},
        {"mode": "spread", "limit": 50},
        {"mode": "index", "limit": 2},
    ]
    for key, stream in ours.items():
        their = theirs[key]
        if key[0] != "frames":  # Whose axes are two streams' on a server, and one's here.
            assert stream.spec["axes"] == their["spec"]["axes"]
        assert stream.spec.get("presentation") == their["spec"].get("presentation")
        for select in selects:
            answer = samples.read_samples(view, stream.id, select=select)
            far = server.post(
                "telemetry/samples",
                {
                    "stream_id": their["id"],
                    "axis": {"kind": "coordinate", "name": "step"},
                    "select": select,
                },
            )
            assert comparable(answer) == comparable(far), (key, select)
        page = samples.query(view, stream.id, **EVER, limit=2)
        last = page["items"][-1]
        after = {"after_epoch": last["epoch"], "after_sequence": last["sequence"]}
        rest = samples.query(view, stream.id, start=last["observed_at"], end=EVER["end"], **after)
        assert page["complete"] == (not rest["items"]) and rest["complete"]
        far_items = list(client.all_points(their["id"]))
        assert comparable([*page["items"], *rest["items"]]) == comparable(far_items)
        back = samples.query(view, stream.id, **EVER, order="desc")["items"]
        assert comparable(back) == comparable(far_items[::-1])


def comparable(value: Any) -> Any:
    """Leave out what is another's by its nature: ids, addresses, and epochs."""
    if isinstance(value, dict):
        kept = {key: it for key, it in value.items() if key not in ("id", "stream_id", "epoch")}
        if "media" in kept:
            kept["media"] = sorted(it["state"] for it in kept["media"].values())
        return {key: comparable(it) for key, it in kept.items()}
    return [comparable(it) for it in value] if isinstance(value, list) else value


def test_a_picture_is_on_the_server_before_the_point_that_shows_it(
    run: Run, tmp_path: Path, client: Client, gate: Gate
) -> None:
    for step in range(5):
        run.log({"loss": 0.5}, step=step)
        run.image("frames", PIXELS * (step // 2 / 3), step=step)
    run.text("notes", "x")
    run.finish()
    # Parts find no way; everything that shows no picture does.
    gate.refuse = lambda request: request.method == "PUT"
    with pushing(run.directory, client) as push:
        assert push.acquire()
        while not gate.seen["complete"] and not push.problems:
            push.step(0.0)
            if len(points(client, run.run_id, "notes")) == 1 and gate.seen["parts"]:
                break
    assert len(points(client, run.run_id, "loss")) == 5
    assert points(client, run.run_id, "frames") == []

    # The first one is complete, and the syncer ends before the points.
    gate.refuse = lambda request: bool(gate.seen["complete"]) and "telemetry" in request.url.path
    with pushing(run.directory, client) as push:
        assert push.acquire()
        deadline = time.monotonic() + 60
        while not gate.seen["complete"]:
            push.step(0.0)
            assert time.monotonic() < deadline
    assert points(client, run.run_id, "frames") == []

    gate.refuse = lambda request: False
    with pushing(run.directory, client) as push:
        assert push_all(push)[-1].done
    into = tmp_path / "download"
    expected = [Image(PIXELS * (step // 2 / 3)).blobs()[0].data for step in range(5)]
    assert shown(client, run.run_id, "frames", into) == expected
    assert len(artifacts(client, run.run_id, into)) == 3


def test_whoever_has_lost_all_memory_sends_no_picture_and_no_point_twice(
    run: Run, tmp_path: Path, client: Client, gate: Gate
) -> None:
    for step in range(4):
        run.image("frames", PIXELS * (step / 4), step=step)
    run.flush(delivered=False)
    with pushing(run.directory, client) as push:
        assert push_all(push)[-1].done
    puts = gate.seen["complete"]
    assert puts == 4
    for path in sorted((run.directory / "sync").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    run.image("frames", PIXELS, step=4)
    run.flush(delivered=False)
    with pushing(run.directory, client) as push:
        assert push_all(push)[-1].done
    into = tmp_path / "download"
    assert len(shown(client, run.run_id, "frames", into)) == 5
    assert len(artifacts(client, run.run_id, into)) == 5
    assert gate.seen["complete"] == puts + 1


def test_parts_of_a_run_are_sent_alone(
    run: Run, tmp_path: Path, client: Client, sync: Callable[..., dict[str, Any]]
) -> None:
    run.log({"loss": 1.0})
    run.image("frames", PIXELS)
    run.text("notes", "x")
    run.flush(delivered=False)
    into = tmp_path / "download"
    sync(run.directory, "--only", "metrics")
    assert len(points(client, run.run_id, "loss")) == 1
    assert artifacts(client, run.run_id, into) == {}
    assert points(client, run.run_id, "notes") == []
    run.log({"loss": 0.5})
    run.flush(delivered=False)
    assert sync(run.directory, "--only", "media")["bytes"] > len(Image(PIXELS).blobs()[0].data)
    assert len(points(client, run.run_id, "loss")) == 1
    assert len(shown(client, run.run_id, "frames", into)) == 1
    assert len(points(client, run.run_id, "notes")) == 1
    sync(run.directory)
    assert len(points(client, run.run_id, "loss")) == 2
    assert len(points(client, run.run_id, "frames")) == 1


def test_a_pass_since_some_time_has_the_bytes_that_were_known_before(
    run: Run, tmp_path: Path, client: Client
) -> None:
    run.image("frames", PIXELS, step=0)
    run.flush(delivered=False)
    time.sleep(0.002)  # Records of the same millisecond are of one time.
    since = time.time()
    run.image("frames", PIXELS, step=1)
    run.finish()
    with pushing(run.directory, client, since=since) as push:
        assert push_all(push)[-1].done
    into = tmp_path / "download"
    assert shown(client, run.run_id, "frames", into) == [Image(PIXELS).blobs()[0].data]


def test_records_of_somebody_elses_making_cost_themselves_only(
    tmp_path: Path, client: Client
) -> None:
    run = WrittenRun(tmp_path / "runs")
    digest, outside = "0" * 64, "../" * 20 + "etc/"
    odd: list[dict[str, Any]] = [
        {"value": {"items": [{"source": {"artifact": {"id": f"pending:{digest}"}}}]}},
        {"value": {"items": [3, None, {"source": 3}], "rows": [3, [{"source": None}]]}},
        {"value": "x"},
        {"value": {"items": [{"source": {"artifact": {"id": f"pending:{outside}"}}}]}},
    ]
    files = [3, {"sha256": 3}, {"sha256": outside, "size": 1}, {"sha256": digest, "size": 0}]
    for body in odd:
        run.add("rich", {"name": "r", "renderer": "media", "files": files, **body}, step=0)
    run.add("rich", {"name": "r", "renderer": "hologram", "value": {}}, step=0)
    run.add("rich", {"name": "r", "renderer": "media", "value": {"items": []}}, step=1)
    run.add("m", {"loss": 1.0}, step=2)
    run.end()
    with pushing(run.directory, client) as push:
        assert push_all(push)[-1].done
        assert push.state is not None and push.state.aside_count == 4
    sent = [point["value"] for point in points(client, run.run_id, "r")]
    assert sent == [odd[1]["value"], {"items": []}]
    assert len(points(client, run.run_id, "loss")) == 1


def test_a_picture_whose_file_is_damaged_costs_its_points_and_no_others(
    run: Run, tmp_path: Path, client: Client
) -> None:
    for step in range(3):
        run.image("frames", PIXELS * (step / 3), step=step)
    run.rows("table", [{"a": 1, "m": Image(PIXELS * (1 / 3))}])
    run.finish()
    path = media.path_of(run.directory, Image(PIXELS * (1 / 3)).blobs()[0].hash)
    size = path.stat().st_size
    path.chmod(0o600)
    path.write_bytes(bytes(size))
    with pushing(run.directory, client) as push:
        assert push_all(push)[-1].done
        assert push.state is not None
        assert [it[2] for it in push.state.lost_artifacts] == [
            "its file is damaged: the bytes do not have the recorded digest"
        ]
        assert push.state.aside_count == 2
    into = tmp_path / "download"
    expected = [Image(PIXELS * (step / 3)).blobs()[0].data for step in (0, 2)]
    assert shown(client, run.run_id, "frames", into) == expected
    assert points(client, run.run_id, "table") == []
