"""Runs that are sent while they train, once and again, and after they were killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launchhelm.store.reader import Reader
from tests.support.reading import Logger, RunBuilder, wait_for
from tests.support.runs import running
from tests.support.scripted_server import Asked, ScriptedServer
from tests.support.sync_command import (
    REPOSITORY,
    SyncCommand,
    assert_single,
    points,
    run_documents,
    run_states,
    steps,
)
from tests.support.v1_server import PROJECT, V1Server, v1_server

FLUSH_S = 0.25
STEP_S = 0.02

TRAIN = f"""
import itertools, os, sys, time
import launchhelm

run = launchhelm.init("quickstart", name="live", state_dir=sys.argv[1], config={{"lr": 0.1}})
if sys.argv[2:] == ["die"]:
    os.kill(os.getpid(), 9)
for step in itertools.count():
    run.log({{"loss": step / 2}}, step=step)
    os.write(1, b".")
    time.sleep({STEP_S})
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[V1Server]:
    with v1_server(tmp_path / "far") as it:
        yield it


@pytest.fixture
def sync(tmp_path: Path, server: V1Server) -> SyncCommand:
    return SyncCommand(tmp_path, server.url, server.key, {"LAUNCHHELM_PROJECT": PROJECT})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "runs"
    path.mkdir()
    return path


def train(root: Path, said: Path, *words: str) -> subprocess.Popen[bytes]:
    """Start a training that leaves a byte in a file for each step that it logged."""
    with said.open("wb") as file:
        return subprocess.Popen(
            [sys.executable, "-c", TRAIN, str(root), *words],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            stdout=file,
            stderr=subprocess.DEVNULL,
        )


def test_a_pass_over_a_live_run_sends_all_but_the_last_flush_interval(
    tmp_path: Path, server: V1Server, sync: SyncCommand, root: Path
) -> None:
    said = tmp_path / "said"
    job = train(root, said)
    try:
        wait_for(lambda: said.stat().st_size > 60)
        logged = said.stat().st_size
        done = sync.once(root)
        assert job.poll() is None, "the training did not go on"
    finally:
        job.kill()
        job.wait()
    found = steps(points(server, "loss"))
    assert done.code == 0 and done.points >= len(found) > 0
    assert found == list(range(len(found)))
    assert len(found) >= logged - FLUSH_S / STEP_S
    assert run_states(server) == {"live": "open"}


def test_each_pass_asks_the_server_to_take_what_is_new_and_nothing_twice(
    tmp_path: Path, server: V1Server, sync: SyncCommand, root: Path
) -> None:
    with (
        ScriptedServer(server.url) as far,
        running(root, project="quickstart", name="rounds") as run,
    ):
        sync.url = far.url
        for number in range(4):
            for step in range(100 * number, 100 * (number + 1)):
                run.log({"loss": 1.0}, step=step)
            run.flush(delivered=False)
            assert sync.once(root).points == 100 + (number == 0)  # And the start of the run.
        brought = [identity for asked in far.telemetry for identity in asked.identities]
    assert len(brought) == len(set(brought)) == 401


def test_a_run_is_closed_on_the_server_once_and_only_after_it_finished(
    tmp_path: Path, server: V1Server, sync: SyncCommand, root: Path
) -> None:
    with ScriptedServer(server.url) as far:
        sync.url = far.url
        with running(root, project="quickstart", name="live") as run:
            for step in range(3):
                run.log({"loss": 1.0}, step=step)
                run.flush(delivered=False)
                assert sync.once(root).code == 0
                assert run_states(server) == {"live": "open"}
        assert not [asked for asked in far.seen if closes(asked)]
        assert sync.once(root).code == 0
        assert sync.once(root).code == 0
        assert len([asked for asked in far.seen if closes(asked)]) == 1
    assert run_states(server) == {"live": "closed"}


def closes(asked: Asked) -> bool:
    """Whether a request says of a run that it is over."""
    if asked.method not in ("PATCH", "PUT", "POST") or asked.is_telemetry or not asked.body:
        return False
    body = asked.json
    is_closed: bool = body.get("spec", {}).get("state") == "closed"
    return is_closed or ("close_run" in body and body["close_run"] != "never")


def test_one_directory_is_one_run_from_any_path_and_with_its_memory_lost(
    tmp_path: Path, server: V1Server, sync: SyncCommand, root: Path
) -> None:
    run = RunBuilder(root, name="one")
    writer = run.writer()

    def log(first: int) -> None:
        for step in range(first, first + 50):
            writer.metrics(step, loss=1.0)
        writer.flush()

    log(0)
    assert sync.once(root).points == 50
    log(50)
    copied = tmp_path / "archive" / "copy"
    shutil.copytree(run.directory, copied)
    assert sync.once(copied).points == 50
    assert sync.once(root).points == 0
    shutil.rmtree(run.directory / "sync")
    assert sync.once(root).points == 0
    log(100)
    assert sync.once(root).points == 50

    assert len(run_documents(server)) == 1
    found = points(server, "loss")
    assert_single(found)
    assert steps(found) == list(range(150))


def test_a_job_killed_at_any_instant_is_sent_up_to_its_last_flush_and_stays_open(
    server: V1Server, sync: SyncCommand, root: Path
) -> None:
    runs = [RunBuilder(root, name=f"killed-{number}") for number in range(4)]
    for number, run in enumerate(runs):
        with Logger(run) as logger:
            wait_for(lambda run=run, number=number: count(run.directory) > 60 + 171 * number)
            logger.kill()
    done = sync.once(root)
    assert done.code == 0, done.err
    found = points(server, "loss")
    assert_single(found)
    for run in runs:
        sent = {it.step: it.value for it in found if it.run == run.run_id}
        assert sorted(sent) == list(range(count(run.directory)))
        assert all(value == step / 2 for step, value in sent.items())
    assert set(run_states(server).values()) == {"open"}


def count(directory: Path) -> int:
    """Count the steps that can be read."""
    return len([record for record in Reader(directory).poll() if record.kind == "m"])


def test_a_job_killed_right_after_init_is_on_the_server_with_config_and_world_size(
    tmp_path: Path, server: V1Server, sync: SyncCommand, root: Path
) -> None:
    job = train(root, tmp_path / "said", "die")
    assert job.wait(60) == -signal.SIGKILL
    assert sync.once(root).code == 0
    (document,) = run_documents(server)
    assert document["spec"]["name"] == "live"
    assert document["spec"]["parameters"] == {"lr": 0.1}
    assert document["spec"]["labels"]["launchhelm.offline.world_size"] == "1"


def test_a_network_that_comes_and_goes_costs_no_record(
    server: V1Server,
    sync: SyncCommand,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is lost in mid-run and again at the end; the last records go up by a later pass."""
    monkeypatch.setenv("LAUNCHHELM_API_KEY", server.key)
    with ScriptedServer(server.url) as far:
        monkeypatch.setenv("LAUNCHHELM_URL", far.url)
        sync.url = far.url
        with running(root, project="quickstart", name="patient", sync=True) as run:

            def log(first: int) -> None:
                for step in range(first, first + 200):
                    run.log({"loss": 1.0}, step=step)
                run.flush(delivered=False)

            log(0)
            wait_for(lambda: far.telemetry)
            far.close()
            log(200)
            far.open()
            before = len(far.telemetry)
            wait_for(lambda: len(far.telemetry) > before)
            far.close()
            log(400)
        far.open()
        done = sync.once(root)
        assert done.code == 0, done.err
        assert sync.once(root).points == 0
    found = points(server, "loss")
    assert_single(found)
    assert steps(found) == list(range(600))
    assert run_states(server) == {"patient": "closed"}


def test_without_a_syncer_nothing_piles_up_and_status_says_never(
    server: V1Server, sync: SyncCommand, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running(root, project="quickstart", name="alone") as run:
        run.log({"loss": 0.0}, step=0)
        run.flush(delivered=False)
        files = listing(root)
        for step in range(1, 10_000):
            run.log({"loss": 1.0}, step=step)
        run.flush(delivered=False)
        assert listing(root) == files
        assert status(sync, root)["state"] == "never synced"
        assert not [it for it in caplog.records if "sync" in it.getMessage()]
        assert sync.once(root).code == 0
        assert listing(root, but="sync") == files
        said = status(sync, root)
    assert said["state"] != "never synced" and said["synced_at"]
    assert len(points(server, "loss")) == 10_000


def listing(root: Path, *, but: str = "") -> list[str]:
    """List the files below a root, without those of one folder."""
    found = [path.relative_to(root) for path in root.rglob("*") if path.is_file()]
    return sorted(str(path) for path in found if but not in path.parts)


def status(sync: SyncCommand, root: Path) -> dict[str, object]:
    """Return what `launchhelm status` says of the one run."""
    document: dict[str, object] = json.loads(sync.once(root, verb="status").out)
    return document
