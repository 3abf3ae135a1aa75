"""A run that could not be opened for a server says so, at its end and in `status`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import launchhelm
from launchhelm import _attach
from launchhelm.cli import main
from syncer import status, trouble
from syncer.trouble import Trouble
from tests.support.cli_runs import MadeRun
from tests.support.scripted_server import ScriptedServer, refusal

SERVER = "https://far.example"


@pytest.fixture
def far() -> Iterator[ScriptedServer]:
    with ScriptedServer() as it:
        yield it


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("API_KEY_FILE", "ORGANIZATION", "PROJECT", "CA_BUNDLE"):
        monkeypatch.delenv(f"LAUNCHHELM_{name}", raising=False)
    monkeypatch.setenv("LAUNCHHELM_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("LAUNCHHELM_API_KEY", "the-key-that-must-not-be-shown")


def status_of(root: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    capsys.readouterr()
    assert main(["status", "--json", str(root)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    document = json.loads(line)
    assert isinstance(document, dict)
    return document


@pytest.mark.parametrize("kind", ["refused key", "nobody there", "silent"])
def test_the_last_line_of_a_run_and_status_name_the_reason(
    kind: str,
    far: ScriptedServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    far.script = lambda asked: refusal(401, "unauthorized")
    said = {
        "refused key": "refuses the key",
        "nobody there": "cannot be reached",
        "silent": "did not confirm it in time",
    }[kind]
    if kind == "nobody there":
        far.close()
    far.is_silent = kind == "silent"
    monkeypatch.setattr(_attach, "QUIET_S", 0.5)
    monkeypatch.setattr(_attach, "LET_GO_S", 0.2)
    monkeypatch.setenv("LAUNCHHELM_URL", far.url)
    run = launchhelm.init("lab", state_dir=tmp_path / "runs", name="lonely", sync=True)
    run.log({"loss": 1.0})
    run.finish()

    last = capsys.readouterr().err.splitlines()[-1]
    assert f"are not on {far.url} yet: " in last and said in last
    document = status_of(tmp_path / "runs", capsys)
    assert document["server"] == far.url and said in str(document["why"])
    assert document["state"] == "never synced" and document["synced_at"] is None
    for path in run.directory.rglob("*"):
        assert path.is_dir() or b"the-key-that-must-not-be-shown" not in path.read_bytes()


def test_a_note_goes_once_the_run_can_be_opened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = MadeRun(tmp_path / "runs").train()
    root = tmp_path / "state"
    for organization in ("", "lab"):
        noted = Trouble(SERVER, organization, "No key.", 5.0)
        trouble.write(run.path, run.run_id, noted, state_root=root)
    assert len(status.troubles(run.path, run.run_id)) == 2
    assert status.remembered(run.path, run.run_id) == [], "it is no state"

    trouble.clear(run.path, run.run_id, SERVER, "lab", state_root=root)

    assert status.troubles(run.path, run.run_id) == []
    assert status_of(tmp_path / "runs", capsys)["server"] is None


def test_a_damaged_note_is_none(tmp_path: Path) -> None:
    run = MadeRun(tmp_path).train()
    noted = Trouble(SERVER, "", "No key.", 5.0)
    trouble.write(run.path, run.run_id, noted, state_root=tmp_path / "state")
    (path,) = run.path.rglob(trouble.NAME)
    path.write_bytes(b"{")
    assert status.troubles(run.path, run.run_id) == []
