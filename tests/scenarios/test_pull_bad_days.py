"""Commands of a server on bad days of network, keys, clocks and processes."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launchhelm.records import Command
from launchhelm.store.inbox import send
from syncer.server import accounts
from tests.support.commanding import Desk, Training, training, wait
from tests.support.sync_command import REPOSITORY, SyncCommand, lease_of
from tests.support.v1_server import PROJECT, V1Server, v1_process, v1_server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[V1Server]:
    with v1_server(tmp_path / "far") as it:
        yield it


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "runs"
    path.mkdir()
    return path


@pytest.fixture
def job(tmp_path: Path, root: Path) -> Iterator[Training]:
    with training(root, tmp_path / "said") as it:
        yield it


@pytest.fixture
def desk(server: V1Server, job: Training) -> Iterator[Desk]:
    it = Desk(server, job.directory.name)
    yield it
    it.close()


def syncer(path: Path, server: V1Server, **options: Any) -> SyncCommand:
    return SyncCommand(path, server.url, server.key, {"LAUNCHHELM_PROJECT": PROJECT}, **options)


def test_a_server_that_falls_silent_with_a_command_under_way_delays_neither_steps_nor_the_end(
    tmp_path: Path, root: Path
) -> None:
    """It accepts connections and never answers, since its process is stopped."""
    with v1_process(tmp_path / "far") as server:
        settings = {
            "LAUNCHHELM_URL": server.url,
            "LAUNCHHELM_API_KEY": server.key,
            "LAUNCHHELM_PROJECT": PROJECT,
            "LAUNCHHELM_SYNC": "1",
        }
        with training(root, tmp_path / "said", environment=settings) as job:
            desk = Desk(server, job.directory.name)
            desk.capability("set_never")
            command = desk.submit("set_never", {"lr": 0.5}, safe_point="never")
            wait(lambda: desk.get(command)["execution"] == "applying", "the command in the run")
            assert server.process is not None
            server.process.send_signal(signal.SIGSTOP)
            send(job.directory, Command("local", "set_lr", {"lr": 0.25}))
            wait(lambda: job.applied == [0.25], "a local command")
            began = time.monotonic()
            job.end()
            took_s = time.monotonic() - began
            server.process.send_signal(signal.SIGCONT)
        assert took_s < 12.0
        [outcome] = job.outcomes()[command["id"]]
        assert (outcome.state, outcome.code) == ("rejected", "run_ended")
        assert syncer(tmp_path, server).once(root).code == 0
        ended = desk.ended(command)
        desk.close()
    assert (ended["execution"], ended["failure_code"]) == ("rejected", "run_ended")
    assert job.applied == [0.25]


def test_a_key_that_is_revoked_while_a_command_is_under_way_costs_no_command_and_doubles_none(
    tmp_path: Path, server: V1Server, root: Path, job: Training, desk: Desk
) -> None:
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
    settings = {"LAUNCHHELM_PROJECT": PROJECT, "LAUNCHHELM_API_KEY_FILE": str(file)}
    sync = SyncCommand(tmp_path, server.url, "", settings)
    sync.change = "from syncer import keys, retry\nretry.KEY_PAUSE_S, keys.YOUNG_S = 0.5, 0.0\n"
    with sync.watching(root):
        desk.capability("set_lr")
        job.hold()
        command = desk.submit("set_lr", {"lr": 0.5})
        wait(lambda: desk.get(command)["execution"] == "applying", "the command in the run")
        with state.database.write() as database:
            accounts.revoke_key(database, key_id, state.clock.wall())
        job.hold(False)
        wait(lambda: job.applied == [0.5], "the application")
        file.write_text(server.key, "utf-8")
        assert desk.ended(command)["execution"] == "applied"
        assert desk.ended(desk.submit("set_lr", {"lr": 0.25}))["execution"] == "applied"
    assert job.applied == [0.5, 0.25]
    written = b"".join(it.read_bytes() for it in root.rglob("*") if it.is_file())
    assert first.encode() not in written and server.key.encode() not in written


TOLD = """
import time
from syncer.api.connection import Connection
call = Connection.call

def told(self, method, path, *more, **options):
    with open({file!r}, "a") as out:
        out.write(method + " " + path + "\\n")
    return call(self, method, path, *more, **options)

Connection.call = told
"""


def test_a_syncer_that_was_stopped_with_a_command_in_hand_sends_nothing_once_it_was_replaced(
    tmp_path: Path, server: V1Server, root: Path, job: Training, desk: Desk
) -> None:
    sync = syncer(tmp_path, server, change=lease_of(0.5))
    log = tmp_path / "first"
    with sync.watching(root, change=TOLD.format(file=str(log))) as first:
        desk.capability("set_lr")
        job.hold()
        command = desk.submit("set_lr", {"lr": 0.5})
        wait(lambda: desk.get(command)["execution"] == "applying", "the command in the run")
        first.send_signal(signal.SIGSTOP)
        with sync.watching(root):
            job.hold(False)
            ended = desk.ended(command)
            assert ended["execution"] == "applied"
            said = len(log.read_text().splitlines())
            first.send_signal(signal.SIGCONT)
            assert desk.ended(desk.submit("set_lr", {"lr": 0.25}))["execution"] == "applied"
            sent = log.read_text().splitlines()[said:]
    assert job.applied == [0.5, 0.25]
    assert [len(each) for each in job.outcomes().values()] == [1, 1]
    assert desk.get(command)["history"] == ended["history"]
    assert [it for it in sent if it.startswith("POST")] == []


def test_a_silent_run_is_given_no_command_and_gets_it_when_it_moves_again(
    tmp_path: Path, server: V1Server, root: Path, job: Training, desk: Desk
) -> None:
    sync = syncer(tmp_path, server, change=lease_of(0.5))
    with sync.watching(root):
        desk.capability("set_lr")
        desk.session(desk.leader())
    job.process.send_signal(signal.SIGSTOP)
    command = desk.submit("set_lr", {"lr": 0.5})
    with sync.watching(root):
        wait(lambda: why_not(sync, root), "the reason in the status")
        assert desk.get(command)["execution"] == "queued"
        job.process.send_signal(signal.SIGCONT)
        assert desk.ended(command)["execution"] == "applied"
    assert job.applied == [0.5]


def why_not(sync: SyncCommand, root: Path) -> object:
    """Return why no command can act now, as `launchhelm status` says it."""
    return json.loads(sync.once(root, verb="status").out)["commands_why"]


@pytest.mark.parametrize("off_s", [3600.0, -3600.0])
def test_wrong_clocks_of_syncer_and_training_make_no_command_live_longer_or_shorter(
    tmp_path: Path, server: V1Server, root: Path, off_s: float
) -> None:
    wrong = f"import time\nright = time.time\ntime.time = lambda: right() + {off_s}\n"
    (tmp_path / "sitecustomize.py").write_text(wrong.replace("+ ", "- "))
    clocks = {"PYTHONPATH": f"{tmp_path}:{REPOSITORY}"}
    sync = syncer(tmp_path, server, change=wrong)
    with training(root, tmp_path / "said", environment=clocks) as job:
        desk = Desk(server, job.directory.name)
        with sync.watching(root):
            desk.capability("set_lr")
            job.hold()
            late = desk.submit("set_lr", {"lr": 0.5}, valid_s=3.0)
            ended = desk.ended(late)
            assert (ended["execution"], ended["failure_code"]) == ("rejected", "expired")
            job.hold(False)
            good = desk.submit("set_lr", {"lr": 0.25}, valid_s=60.0)
            assert desk.ended(good)["execution"] == "applied"
        desk.close()
        assert job.applied == [0.25]
