"""What `sync` and `status` say of a pass to a real server."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from launchhelm.cli import main
from syncer.server import accounts
from syncer.server.caller import READING
from tests.support.reading import RunBuilder
from tests.support.runs import running
from tests.support.v1_server import V1Server, v1_server


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[V1Server]:
    for name in ("API_KEY_FILE", "ORGANIZATION", "PROJECT", "SYNC", "CA_BUNDLE"):
        monkeypatch.delenv(f"LAUNCHHELM_{name}", raising=False)
    monkeypatch.setenv("LAUNCHHELM_STATE_DIR", str(tmp_path / "state"))
    with v1_server(tmp_path / "far") as it:
        monkeypatch.setenv("LAUNCHHELM_URL", it.url)
        monkeypatch.setenv("LAUNCHHELM_API_KEY", it.key)
        yield it


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "runs"
    path.mkdir()
    return path


Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(root: Path, capsys: pytest.CaptureFixture[str]) -> Call:
    def act(verb: str, *words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([verb, str(root), *words])
        said = capsys.readouterr()
        return code, said.out, said.err

    return act


def document(call: Call, *words: str) -> dict[str, Any]:
    (line,) = call(*words, "--json")[1].splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


@pytest.mark.usefixtures("server")
def test_artifacts_are_counted_beside_points(root: Path, call: Call) -> None:
    with running(root, project="quickstart", name="kept") as run:
        run.log({"loss": 1.0})
        run.artifact(b"weights", name="weights")
        run.artifact(b"more", name="weights")
    code, out, _ = call("sync")
    assert code == 0
    assert "FILES" in out and "and 2 files sent" in out
    assert document(call, "sync")["files"] == 0, "sent once"


@pytest.mark.usefixtures("server")
def test_the_first_value_that_was_set_aside_is_named(root: Path, call: Call) -> None:
    writer = RunBuilder(root).writer()
    writer.metrics(1, loss=1.0, essay="x" * 600_000)
    writer.flush()
    code, _, err = call("sync")
    assert code == 3
    assert "1 values were set aside" in err and "the first of them 'essay': " in err


@pytest.mark.usefixtures("server")
def test_a_run_of_which_parts_were_sent_is_partly_synced(root: Path, call: Call) -> None:
    with running(root, project="quickstart") as run:
        run.log({"loss": 1.0})
    assert call("sync", "--only", "metrics")[0] == 0
    assert document(call, "status")["state"] == "partly synced"
    assert "up to " in call("status")[1]
    assert call("sync")[0] == 0
    assert document(call, "status")["state"] == "synced"


@pytest.mark.usefixtures("server")
def test_a_run_whose_state_was_lost_is_known_to_be_synced_after_the_next_pass(
    root: Path, call: Call
) -> None:
    with running(root, project="quickstart") as run:
        run.log({"loss": 1.0})
    assert call("sync")[0] == 0
    shutil.rmtree(run.directory / "sync")
    assert call("sync")[0] == 0
    said = document(call, "status")
    assert said["state"] == "synced" and said["synced_at"]


def test_a_run_that_is_in_another_project_is_said_to_stay_there(
    server: V1Server, root: Path, call: Call
) -> None:
    with running(root, project="first", name="early") as run:
        run.log({"loss": 1.0})
    assert call("sync", "--project", "first")[0] == 0
    assert "stays there" not in call("sync", "--project", "first")[2]
    with running(root, project="first", name="late") as run:
        run.log({"loss": 1.0})

    code, _, err = call("sync", "--project", "second")

    assert code == 0
    assert "early: in the project 'first'" in err and "stays there" in err and "late" not in err
    with server.client() as client:
        ids = {it["spec"]["name"]: it["id"] for it in client.list_documents("project")}
    assert "early: in the project" in call("sync", "--project", ids["second"])[2]


def test_a_key_that_only_reads_is_a_refused_key_also_for_a_single_run(
    server: V1Server, root: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(root, project="quickstart") as run:
        run.log({"loss": 1.0})
    assert server.state is not None
    with server.state.database.write() as connection:
        _, key = accounts.create_key(
            connection,
            name="reader",
            organization_id=server.organization,
            grants=[accounts.Grant("", "", READING)],
            now=server.state.clock.wall(),
        )
    monkeypatch.setenv("LAUNCHHELM_API_KEY", key)
    code, _, err = call("sync")
    assert code == 5 and "refuses the key" in err, err


@pytest.mark.usefixtures("server")
def test_an_organisation_that_nobody_knows_is_a_wrong_setting_and_no_deleted_run(
    root: Path, call: Call
) -> None:
    with running(root, project="quickstart") as run:
        run.log({"loss": 1.0})
    assert call("sync")[0] == 0
    code, _, err = call("sync", "--organization", "0f6b7c1e-4f7a-4c1d-9a52-0a8b7f3d2c11")
    assert code == 2 and "is unknown on" in err and "deleted" not in err
