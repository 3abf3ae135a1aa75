"""Runs on their way to a real server: while they train, afterwards, and when the way is bad."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import launchhelm
from launchhelm.cli import main
from syncer.api import connection as api
from syncer.connection import Connection
from syncer.discover import Discovery
from syncer.server import accounts
from syncer.service import Service
from syncer.settings import KeySource, Target
from tests.support.cli_runs import MadeRun
from tests.support.runs import TurnedClock, running, until
from tests.support.v1_server import V1Server, v1_server

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[V1Server]:
    with v1_server(tmp_path / "far") as it:
        monkeypatch.setenv("LAUNCHHELM_URL", it.url)
        monkeypatch.setenv("LAUNCHHELM_API_KEY", it.key)
        yield it


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("URL", "API_KEY", "API_KEY_FILE", "ORGANIZATION", "PROJECT", "SYNC"):
        monkeypatch.delenv(f"LAUNCHHELM_{name}", raising=False)
    monkeypatch.setenv("LAUNCHHELM_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "runs"
    path.mkdir()
    return path


Sync = Callable[..., tuple[int, list[dict[str, Any]]]]


@pytest.fixture
def sync(root: Path, capsys: pytest.CaptureFixture[str]) -> Sync:
    """Make one pass as a shell does; returns the exit code and a document per run."""

    def call(*words: str) -> tuple[int, list[dict[str, Any]]]:
        capsys.readouterr()
        code = main(["sync", *(words or (str(root),)), "--json"])
        return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return call


def series(server: V1Server, name: str) -> list[int]:
    """Return the sequence numbers of every point of a metric, of all its streams."""
    with server.client() as client:
        streams = list(client.list_documents("stream"))
        return sorted(
            int(point["sequence"])
            for stream in streams
            if stream["spec"]["name"] == name
            for point in client.all_points(stream["id"])
        )


def run_states(server: V1Server) -> dict[str, str]:
    with server.client() as client:
        found = client.list_documents("run")
        return {it["spec"]["name"]: it["spec"]["state"] for it in found}


@contextmanager
def black_hole() -> Iterator[str]:
    """Accept connections and never answer."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def refusing() -> str:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{unused.getsockname()[1]}"


# --- passes over a live run -----------------------------------------------------------------------


def test_ten_passes_over_a_live_run_send_each_record_once(
    server: V1Server, root: Path, sync: Sync
) -> None:
    with running(root, project="quickstart", name="live") as run:
        for round_number in range(10):
            for _ in range(100):
                run.log({"loss": 1.0})
            run.flush(delivered=False)
            code, (document,) = sync()
            assert code == 0
            # The start of the run goes with the first.
            assert document["points"] == 100 + (round_number == 0)
            assert run_states(server) == {"live": "open"}
    assert sync()[0] == 0

    counted = Counter(series(server, "loss"))
    assert len(counted) == 1000 and set(counted.values()) == {1}
    assert run_states(server) == {"live": "closed"}
    code, (document,) = sync()
    assert (code, document["points"], document["batches"]) == (0, 0, 0)


def test_a_run_is_on_the_server_before_its_first_step(
    server: V1Server, root: Path, sync: Sync
) -> None:
    with running(root, project="quickstart", name="young", config={"lr": 0.1}):
        assert sync()[0] == 0
        assert run_states(server) == {"young": "open"}


# --- bad runs among good ones ---------------------------------------------------------------------


def test_bad_runs_are_listed_and_all_others_are_sent(
    server: V1Server, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = [MadeRun(root, f"good-{n}").train().end() for n in range(7)]
    damaged, empty = MadeRun(root, "damaged").train().path, MadeRun(root, "empty").train().path
    (damaged / "run.json").write_text('{"format": 1', "utf-8")
    (empty / "data" / "r00000-a001-00000000.00001.jsonl").unlink()
    (empty / "data" / "r00000-a001-00000000.00001.db").touch()
    nothing = root / launchhelm.init("x", state_dir=root.parent / "other").run_id
    nothing.mkdir()

    code = main(["sync", str(root)])

    said = capsys.readouterr()
    assert code == 3
    assert all(str(path) in said.err for path in (damaged, empty, nothing))
    assert {f"good-{n}" for n in range(7)} <= set(run_states(server))
    assert len(series(server, "train/loss")) == len(good)


def test_a_run_that_was_deleted_on_the_server_is_asked_for_once_and_again_when_told_to(
    server: V1Server, root: Path, sync: Sync
) -> None:
    gone = MadeRun(root, "gone").train()
    assert sync()[0] == 0
    with server.client() as client:
        (run,) = client.list_documents("run")
    assert server.state is not None
    with server.state.database.write() as connection:
        connection.execute("DELETE FROM documents WHERE id = ?", (run["id"],))
    gone.journals[0].add("m", {"train/loss": 2.0}, step=401)
    MadeRun(root, "other").train()

    code, documents = sync()
    states = {it["name"]: it["state"] for it in documents}

    assert code == 3 and states == {"gone": "skipped", "other": "sent"}
    code, documents = sync()
    assert code == 3 and {it["name"]: it["state"] for it in documents}["gone"] == "skipped"
    code, documents = sync("--retry-skipped", str(root))
    assert code == 0 and set(run_states(server)) == {"gone", "other"}


# --- the key --------------------------------------------------------------------------------------


def test_a_replaced_key_file_is_picked_up_within_a_minute(
    server: V1Server, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the key is refused there is a try a minute, and nothing is lost."""
    state = server.state
    assert state is not None
    with state.database.write() as database:
        key_id, first = accounts.create_key(
            database,
            name="first",
            organization_id=server.organization,
            grants=[accounts.Grant("", "", frozenset({accounts.EVERY_ACTION}))],
            now=state.clock.wall(),
        )
    file = tmp_path / "key"
    file.write_text(first, "utf-8")
    run = MadeRun(root, "keyed").train()
    clock = TurnedClock(at=0.0)
    asked_at: list[float] = []
    call = api.Connection.call

    def counted(self: api.Connection, *arguments: Any, **more: Any) -> Any:
        asked_at.append(clock.at)
        return call(self, *arguments, **more)

    monkeypatch.setattr(api.Connection, "call", counted)
    events = [(100.0, "revoke"), (250.0, "replace"), (400.0, "stop")]

    def wait(seconds: float) -> None:
        clock.turn(seconds)
        while events and clock.at >= events[0][0]:
            event = events.pop(0)[1]
            if event == "revoke":
                with state.database.write() as database:
                    accounts.revoke_key(database, key_id, state.clock.wall())
                run.journals[0].add("m", {"train/loss": 2.0}, step=401)
            elif event == "replace":
                file.write_text(server.key, "utf-8")
            else:
                service.stop()

    connection = Connection(Target(server.url, KeySource(str(file))), clock=clock)
    service = Service(
        Discovery([root], clock=clock),
        connection.open_push,
        connect=connection.connect,
        watch=True,
        clock=clock,
        wait=wait,
    )
    with connection:
        service.run()

    refused = next(at for at in asked_at if at >= 100.0)
    assert len([at for at in asked_at if refused <= at < refused + 59.0]) <= 2
    assert [at for at in asked_at if 250.0 <= at < 250.0 + 61.0]
    assert len(series(server, "train/loss")) == 2
    written = b"".join(path.read_bytes() for path in root.rglob("*") if path.is_file())
    assert first.encode() not in written and server.key.encode() not in written


def test_a_wrong_key_ends_a_pass_with_its_own_code(
    server: V1Server, root: Path, sync: Sync, monkeypatch: pytest.MonkeyPatch
) -> None:
    MadeRun(root).train()
    monkeypatch.setenv("LAUNCHHELM_API_KEY", "lh_nobody_knows_this_one")
    assert sync()[0] == 5


# --- beside the training --------------------------------------------------------------------------


def test_a_run_uploads_itself_when_asked_to(server: V1Server, root: Path) -> None:
    with running(root, project="quickstart", name="itself", sync=True) as run:
        for _ in range(500):
            run.log({"loss": 1.0})
        run.flush(timeout=60.0)
        assert len(series(server, "loss")) == 500
        assert run.runtime.last_transport_error is None
        run.log({"loss": 2.0})
    assert len(series(server, "loss")) == 501
    assert run_states(server) == {"itself": "closed"}


def test_without_being_asked_no_socket_is_opened_and_the_first_line_says_how(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LAUNCHHELM_API_KEY", "k")
    monkeypatch.setattr(socket, "socket", None)
    with running(root, project="quickstart") as run:
        run.log({"loss": 1.0})
        run.flush(delivered=False)
    said = capsys.readouterr().err
    assert "not uploading" in said
    assert "launchhelm sync" in said and "LAUNCHHELM_SYNC=1" in said
    assert "launchhelm-syncer" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize("server_url", ["black hole", "refused"])
def test_a_server_that_is_not_there_costs_neither_steps_nor_the_end(
    server_url: str, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with black_hole() as hole:
        monkeypatch.setenv("LAUNCHHELM_URL", hole if server_url == "black hole" else refusing())
        monkeypatch.setenv("LAUNCHHELM_API_KEY", "k")
        run = launchhelm.init("quickstart", state_dir=root, name="lonely", sync=True)
        for _ in range(1000):
            run.log({"loss": 1.0})
        started = time.monotonic()
        run.finish()
        took_s = time.monotonic() - started
    said = capsys.readouterr().err
    assert took_s < 12.0
    assert "records of 'lonely' are not on" in said
    assert f"launchhelm sync {run.directory}" in said


def test_flush_warns_once_where_the_server_is_not_there(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LAUNCHHELM_URL", refusing())
    monkeypatch.setenv("LAUNCHHELM_API_KEY", "k")
    with running(root, project="quickstart", sync=True) as run:
        run.log({"loss": 1.0})
        run.flush()
        run.flush()
        assert len([it for it in caplog.records if "durable on disk" in it.getMessage()]) == 1
        monkeypatch.setenv("LAUNCHHELM_STRICT_DELIVERY", "1")
        with pytest.raises(TimeoutError, match="no server has it"):
            run.flush(timeout=1.0)


def test_without_httpx_there_is_one_warning_and_training_goes_on(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "httpx" else find(name)
    )
    monkeypatch.setenv("LAUNCHHELM_SYNC", "1")
    with running(root, project="quickstart") as run:
        assert run.log({"loss": 1.0})
    assert len([it for it in caplog.records if "pip install" in it.getMessage()]) == 1


def test_what_a_dead_network_left_is_sent_by_a_later_pass(
    tmp_path: Path, root: Path, sync: Sync, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAUNCHHELM_URL", refusing())
    monkeypatch.setenv("LAUNCHHELM_API_KEY", "k")
    with running(root, project="quickstart", name="later", sync=True) as run:
        for _ in range(300):
            run.log({"loss": 1.0})
    with v1_server(tmp_path / "far") as server:
        monkeypatch.setenv("LAUNCHHELM_URL", server.url)
        monkeypatch.setenv("LAUNCHHELM_API_KEY", server.key)
        assert sync()[0] == 0
        assert Counter(Counter(series(server, "loss")).values()) == {1: 300}
        assert run_states(server) == {"later": "closed"}


# --- as a service ---------------------------------------------------------------------------------


def test_a_service_sends_a_live_run_and_stops_on_sigterm(server: V1Server, root: Path) -> None:
    made = MadeRun(root, "watched").train()
    process = subprocess.Popen(
        [sys.executable, "-m", "syncer", str(root), "--json"],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until(lambda: len(series(server, "train/loss")) == 1, timeout_s=60.0)
        made.journals[0].add("m", {"train/loss": 2.0}, step=401)
        until(lambda: len(series(server, "train/loss")) == 2, timeout_s=60.0)
        process.terminate()
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert json.loads(out.splitlines()[-1])["name"] == "watched"
