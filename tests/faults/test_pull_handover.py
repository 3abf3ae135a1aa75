"""Another syncer takes over in the middle of a command: the service, or the thread of rank 0."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from syncer.server import lifecycle
from tests.support.commanding import KILL, Desk, is_final, training, wait, wait_for_run
from tests.support.sync_command import QUICK, SyncCommand, lease_of
from tests.support.v1_server import PROJECT, V1Server, kill, start, v1_process, v1_server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

stress = pytest.mark.stress

CLAIM = "kill(Client, 'claim', before=False)"
PROMISE = "kill(Intents, 'promise', before=False)"
BEGIN = "kill(Client, 'begin', before=False)"
DELIVER = "kill(Intents, 'deliver', before=False)"
RESULT = "kill(Client, 'result', before=True)"

FORGETFUL = "from syncer import keys\nretry.KEY_PAUSE_S, keys.YOUNG_S = 0.2, 0.1\n"
"""Keys that the server has forgotten are made anew at once."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "runs"
    path.mkdir()
    return path


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[V1Server]:
    monkeypatch.setattr(lifecycle, "LEASE_S", 6.0)
    with v1_server(tmp_path / "far") as it:
        yield it


@pytest.fixture
def sync(tmp_path: Path, server: V1Server) -> SyncCommand:
    environment = {"LAUNCHHELM_PROJECT": PROJECT}
    return SyncCommand(tmp_path, server.url, server.key, environment, change=QUICK)


def start_number(count: int, server: V1Server, *, sync: bool) -> dict[str, str]:
    """Return the environment of the first start of a job, 0, or of a restart by its launcher."""
    return {
        "TORCHELASTIC_RUN_ID": "handed over",
        "TORCHELASTIC_RESTART_COUNT": str(count),
        "LAUNCHHELM_URL": server.url,
        "LAUNCHHELM_API_KEY": server.key,
        "LAUNCHHELM_PROJECT": PROJECT,
        "LAUNCHHELM_SYNC": "1" if sync else "0",
    }


@pytest.mark.parametrize(
    ("place", "execution", "code"),
    [
        pytest.param(CLAIM, "applied", "", id="claimed", marks=stress),
        pytest.param(PROMISE, "rejected", "runtime_restart", id="promised", marks=stress),
        pytest.param(BEGIN, "rejected", "runtime_restart", id="begun", marks=stress),
        pytest.param(DELIVER, "applied", "", id="in the inbox", marks=stress),
        pytest.param(RESULT, "applied", "", id="not reported", marks=stress),
    ],
)
def test_the_thread_of_rank_0_goes_on_where_the_service_was_killed(
    tmp_path: Path,
    server: V1Server,
    sync: SyncCommand,
    root: Path,
    place: str,
    execution: str,
    code: str,
) -> None:
    said = tmp_path / "said"
    with sync.watching(root, change=KILL + place) as killed:
        with training(root, said, environment=start_number(0, server, sync=False)) as first:
            desk = Desk(server, first.directory.name)
            desk.session(desk.capability("set_lr")["spec"]["participant_id"])
        # The service has the lease when the thread first asks for it.
        with training(
            root, said, environment=start_number(1, server, sync=True), change=QUICK
        ) as job:
            former = desk.leader()
            wait(lambda: desk.leader() != former, "the new rank 0")
            command = desk.submit("set_lr", {"lr": 0.5})
            assert killed.wait(60) == -signal.SIGKILL
            ended = desk.ended(command)
            other = desk.submit("set_lr", {"lr": 0.25})
            assert desk.ended(other)["execution"] == "applied"
            job.end()
    desk.close()
    assert (ended["execution"], ended["failure_code"]) == (execution, code)
    assert job.applied == ([0.5, 0.25] if execution == "applied" else [0.25])
    assert all(len(outcomes) == 1 for outcomes in job.outcomes().values())


@pytest.mark.parametrize(
    ("place", "ends"),
    [
        pytest.param(CLAIM, [("rejected", "session_ended")], id="claimed", marks=stress),
        pytest.param(
            PROMISE,
            [("rejected", "runtime_restart"), ("rejected", "session_ended")],
            id="promised",
            marks=stress,
        ),
        pytest.param(BEGIN, [("rejected", "runtime_restart")], id="begun", marks=stress),
        pytest.param(
            DELIVER,
            [("rejected", "run_ended"), ("rejected", "runtime_restart")],
            id="in the inbox",
        ),
        pytest.param(RESULT, [("applied", "")], id="not reported", marks=stress),
    ],
)
def test_a_service_goes_on_where_rank_0_was_killed_with_its_thread(
    tmp_path: Path,
    server: V1Server,
    sync: SyncCommand,
    root: Path,
    place: str,
    ends: list[tuple[str, str]],
) -> None:
    environment = start_number(0, server, sync=True)
    with training(root, tmp_path / "said", environment=environment, change=KILL + place) as job:
        desk = Desk(server, job.directory.name)
        with sync.watching(root):
            command = desk.submit("set_lr", {"lr": 0.5})
            assert job.process.wait(100) == -signal.SIGKILL
            ended = desk.ended(command)
    desk.close()
    assert (ended["execution"], ended["failure_code"]) in ends
    assert job.applied == ([0.5] if ended["execution"] == "applied" else [])
    assert not list((job.directory / "control").glob("new.*"))


@stress
def test_a_server_that_went_back_to_a_backup_hears_of_the_outcome_again(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    root.mkdir()
    with (
        v1_process(tmp_path / "far") as server,
        training(root, tmp_path / "said") as job,
    ):
        environment = {"LAUNCHHELM_PROJECT": PROJECT}
        sync = SyncCommand(tmp_path, server.url, server.key, environment, change=QUICK)
        sync.change += lease_of(0.5) + FORGETFUL
        desk = Desk(server, wait_for_run(root).name)
        with sync.watching(root):
            desk.session(desk.capability("set_lr")["spec"]["participant_id"])
        command = desk.submit("set_lr", {"lr": 0.5})
        kill(server)
        shutil.copytree(server.data, tmp_path / "backup")
        start(server)
        with sync.watching(root):
            assert desk.ended(command)["execution"] == "applied"
            kill(server)
            shutil.rmtree(server.data)
            shutil.copytree(tmp_path / "backup", server.data)
            start(server)
            assert desk.get(command)["execution"] in ("queued", "claimed", "applied")
            assert desk.ended(command)["execution"] == "applied"
            other = desk.submit("set_lr", {"lr": 0.25})
            # Streams that the server has forgotten hold all of the run up for a minute.
            wait(lambda: is_final(desk.get(other)), "the outcome of the next command", 300.0)
            assert desk.get(other)["execution"] == "applied"
        desk.close()
        assert job.applied == [0.5, 0.25]
