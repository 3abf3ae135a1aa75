"""`launchhelm.Client`: what local runs answer, and what becomes of everything else."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import launchhelm
from launchhelm import Client, LaunchHelmError, models
from launchhelm.errors import StorageError
from launchhelm.run import Run
from launchhelm.store import media
from launchhelm.store.layout import MEDIA
from tests.support.cli_runs import MadeRun
from tests.support.runs import running
from tests.support.v1_server import v1_server

ORGANIZATION = "11111111-1111-4111-8111-111111111111"
ELSEWHERE = "22222222-2222-4222-8222-222222222222"
ALWAYS = {"start": "1970-01-01T00:00:00Z", "end": "2261-01-01T00:00:00Z"}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAUNCHHELM_DIR", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


@pytest.fixture
def client(root: Path) -> Iterator[Client]:
    with Client("https://launchhelm.example", "", ORGANIZATION) as it:
        yield it


@pytest.fixture
def run(root: Path) -> Iterator[Run]:
    with running(root, name="first", config={"lr": 0.1}, tags=["a"]) as it:
        for step in range(5):
            it.log({"loss": 1 / (step + 1), "count": 2**60 + step}, step=step)
        it.text("notes", "hello", step=1)
        yield it


def streams(client: Client, run: Run, **filters: Any) -> dict[str, Any]:
    """Return the streams of a run by name."""
    page = client.list_documents(
        kind="stream", project_id=run.project_id, run_id=run.run_id, **filters
    )
    return {it["spec"]["name"]: it for it in page["items"]}


@pytest.mark.parametrize(
    ("url", "organization"),
    [
        ("https" + "://user:secret@launchhelm.example", ORGANIZATION),
        ("https://launchhelm.example/?a=b", ORGANIZATION),
        ("https://launchhelm.example/#top", ORGANIZATION),
        ("http://launchhelm.example", ORGANIZATION),
        ("launchhelm.example", ORGANIZATION),
        ("https://launchhelm.example", "lab"),
    ],
)
def test_an_address_or_organisation_that_cannot_be_meant_is_a_value_error(
    url: str, organization: str
) -> None:
    with pytest.raises(ValueError):
        Client(url, "key", organization)


def test_a_script_reads_back_what_it_logged_without_a_server(client: Client, run: Run) -> None:
    found = streams(client, run)
    assert found.keys() == {"loss", "count", "notes"}
    assert found["notes"]["spec"]["presentation"] == {"renderer": "text"}
    (participant,) = client.list_documents(run_id=run.run_id, kind="participant")["items"]
    assert participant["id"] == run.participant.id == found["loss"]["spec"]["participant_id"]

    page = client.query(found["loss"]["id"], **ALWAYS, limit=2)
    assert [item["value"] for item in page["items"]] == [1.0, 0.5] and not page["complete"]
    assert page["items"][1]["coordinates"] == [{"axis": "step", "value": "1"}]
    count = client.query(found["count"]["id"], **ALWAYS, limit=1)["items"][0]["value"]
    assert count == {"$number": "integer", "value": str(2**60)}
    samples = client.read_samples(found["notes"]["id"], select={"mode": "latest", "limit": 16})
    assert (samples["renderer"], samples["complete"]) == ("text", True)
    assert samples["points"][0]["value"] == {"text": "hello"}


def test_documents_of_a_run_are_read_by_their_ids(client: Client, run: Run) -> None:
    artifact = run.artifact(b"weights", name="w", step=3)
    made = client.get_document(artifact.id)
    assert (made.kind, made.spec["sha256"]) == ("artifact", artifact.spec["sha256"])
    assert client.download_artifact(artifact.id) == b"weights"
    about = client.get_document(run.run_id)
    assert (about.spec["name"], about.spec["state"]) == ("first", "open")
    assert about.spec["parameters"] == {"lr": 0.1}
    assert about.spec["labels"]["launchhelm.tags"] == '["a"]'
    for document in client.list_documents(run_id=run.run_id)["items"]:
        assert client.get_document(document["id"]).wire() == document
    run.finish()
    assert client.get_document(run.run_id).spec["state"] == "closed"


def test_pages_go_on_where_the_one_before_ended(client: Client, run: Run) -> None:
    whole = client.list_documents(run_id=run.run_id)
    assert whole["next_cursor"] == ""
    found, cursor = [], ""
    while True:
        page = client.list_documents(run_id=run.run_id, limit=2, cursor=cursor)
        found += page["items"]
        cursor = page["next_cursor"]
        if not cursor:
            break
    assert found == whole["items"]
    with pytest.raises(ValueError, match="cursor"):
        client.list_documents(run_id=run.run_id, cursor="x")


def test_what_is_logged_later_and_by_other_processes_is_seen(client: Client, root: Path) -> None:
    other = MadeRun(root, "other", ranks=2)
    for rank, journal in enumerate(other.journals):
        journal.add("m", {"loss": float(rank)}, step=1)
    listed = client.list_documents(kind="stream", run_id=other.run_id)["items"]
    assert [it["spec"]["participant_id"] for it in listed] == ["p0", "p1"]
    ids = [it["id"] for it in listed]
    assert [client.query(id_, **ALWAYS)["items"][0]["value"] for id_ in ids] == [0.0, 1.0]
    other.journals[1].add("m", {"loss": 7.0}, step=2)
    newest = client.query(ids[1], **ALWAYS, order="desc", limit=1)["items"]
    assert newest[0]["value"] == 7.0
    runs = client.list_documents(kind="run", project_id=other_project(client, other))["items"]
    assert [it["id"] for it in runs] == [other.run_id]


def other_project(client: Client, run: MadeRun) -> str:
    return client.get_document(run.run_id).scope.project_id


def test_an_open_run_is_found_wherever_it_is(client: Client, tmp_path: Path) -> None:
    with running(tmp_path / "far" / "away") as run:
        run.log({"loss": 1.0}, step=0)
        assert streams(client, run).keys() == {"loss"}


def test_the_bytes_of_media_are_those_that_the_items_name(client: Client, run: Run) -> None:
    png = bytes.fromhex("89504e470d0a1a0a") + b"rest"
    run.image("frames", png, media_type="image/png", step=1)
    frames = streams(client, run)["frames"]["id"]
    samples = client.read_samples(frames, select={"mode": "latest", "limit": 1})
    ((id_, where),) = samples["media"].items()
    assert where["state"] == "ready" and where["url"].startswith("file://")
    assert client.download_artifact(id_) == png


def test_bytes_that_are_damaged_or_gone_are_an_error_and_never_wrong(
    client: Client, run: Run
) -> None:
    artifact = run.artifact(b"weights")
    path = media.path_of(run.directory, artifact.spec["sha256"])
    path.chmod(0o600)
    path.write_bytes(b"wrong")
    with pytest.raises(StorageError, match="damaged"):
        client.download_artifact(artifact.id)
    path.unlink()
    with pytest.raises(StorageError):
        client.download_artifact(artifact.id)
    assert (run.directory / MEDIA).exists()


def test_a_run_that_cannot_be_read_hides_no_other(client: Client, run: Run, root: Path) -> None:
    (root / "broken").mkdir()
    (root / "broken" / "run.json").write_text("{")
    (root / "empty").mkdir()
    assert client.get_document(run.run_id).id == run.run_id


def test_without_a_key_what_no_local_run_has_is_offline_and_says_what_to_do(
    client: Client, root: Path
) -> None:
    with pytest.raises(LaunchHelmError) as caught:
        client.query(ELSEWHERE, **ALWAYS)
    error = caught.value
    assert (error.code, error.retryable) == ("offline", True)
    assert ELSEWHERE in error.message and str(root) in error.kept and error.remedy
    with pytest.raises(LaunchHelmError) as caught:
        client.create_document("run", launchhelm.Scope(ORGANIZATION), {})
    assert caught.value.code == "offline"


def test_a_server_that_nobody_can_reach_is_a_transport_error(root: Path) -> None:
    with (
        Client("http://127.0.0.1:9", "key", ORGANIZATION, timeout=2) as client,
        pytest.raises(LaunchHelmError) as caught,
    ):
        client.get_document(ELSEWHERE)
    assert (caught.value.code, caught.value.retryable) == ("transport", True)
    assert caught.value.kept and caught.value.remedy


def test_what_no_local_run_has_comes_from_the_server(tmp_path: Path, run: Run) -> None:
    with v1_server(tmp_path / "far") as server:
        far = server.run("far away")
        with Client(server.url, server.key, server.organization) as client:
            assert client.get_document(far["id"]).spec["name"] == "far away"
            assert client.get_document(run.run_id).spec["name"] == "first"
            listed = client.list_documents(kind="run", project_id=server.project)["items"]
            assert [it["id"] for it in listed] == [far["id"]]
            with pytest.raises(LaunchHelmError) as caught:
                client.get_document(ELSEWHERE)
            assert (caught.value.code, caught.value.status) == ("not_found", 404)
            with pytest.raises(ValueError):
                client.get_document("no id")


def test_without_the_package_that_speaks_http_local_runs_are_read_and_the_line_is_said(
    run: Run, root: Path
) -> None:
    run.finish()
    program = f"""
import sys
sys.modules["httpx"] = None
from launchhelm import Client, LaunchHelmError
client = Client("https://launchhelm.example", "key", {ORGANIZATION!r})
assert client.get_document({run.run_id!r}).spec["name"] == "first"
try:
    client.get_document({ELSEWHERE!r})
except LaunchHelmError as error:
    assert error.code == "offline" and "launchhelm-offline[sync]" in str(error), error
else:
    raise SystemExit("no error")
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(launchhelm.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", program], env=environment, timeout=60)
    assert done.returncode == 0


def test_what_administers_an_account_is_not_there_and_says_so(client: Client) -> None:
    with pytest.raises(AttributeError, match="hosted SDK"):
        client.create_export  # noqa: B018
    assert not hasattr(client, "plan_retention")


def test_wire_records_come_by_name_and_an_absent_one_says_so() -> None:
    select = models.SamplesSelect("latest", limit=3)
    assert select.wire() == {"mode": "latest", "limit": 3}
    assert models.SamplesSelect.parse(select.wire()) == select
    point = models.TelemetryPoint("2026-11-30T12:00:00Z", [models.Coordinate("step", "1")], 0.5)
    assert point.wire()["coordinates"] == [{"axis": "step", "value": "1"}]
    assert pickle.loads(pickle.dumps(select)) == select
    with pytest.raises(AttributeError):
        select.mode = "at"
    with pytest.raises(ImportError, match="Dashboard"):
        from launchhelm.models import Dashboard  # noqa: F401
    with pytest.raises(AttributeError, match="mapping"):
        models.Dashboard  # noqa: B018
