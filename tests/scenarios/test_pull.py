"""Commands given on a server, from there into a run that trains, and their outcomes back."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from syncer.api.answers import ApiError
from syncer.server import lifecycle
from tests.support.commanding import Desk, Training, training, wait
from tests.support.sync_command import SyncCommand, lease_of
from tests.support.v1_server import PROJECT, V1Server, v1_server


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


@pytest.fixture
def job(tmp_path: Path, root: Path) -> Iterator[Training]:
    with training(root, tmp_path / "said") as it:
        yield it


@pytest.fixture
def desk(server: V1Server, job: Training) -> Iterator[Desk]:
    it = Desk(server, job.directory.name)
    yield it
    it.close()


def test_a_command_given_on_the_server_is_applied_and_its_outcome_comes_back(
    sync: SyncCommand, root: Path, job: Training, desk: Desk
) -> None:
    with sync.watching(root):
        command = desk.submit("set_lr", {"lr": 0.5})
        ended = desk.ended(command)
    assert ended["execution"] == "applied" and ended["decided_by"] == "participant"
    assert ended["result"] == {"lr": [0.5]}
    assert [place["axis"] for place in ended["applied_at"]] == ["step"]
    assert job.applied == [0.5]
    (outcomes,) = job.outcomes().values()
    assert [it.state for it in outcomes] == ["applied"]
    assert outcomes[0].issued_by == sync.url


def test_thirty_commands_are_visible_as_applied_soon(
    sync: SyncCommand, root: Path, job: Training, desk: Desk
) -> None:
    took = []
    with sync.watching(root):
        desk.capability("set_lr")
        for number in range(30):
            command = desk.submit("set_lr", {"lr": float(number)})
            began = time.monotonic()
            assert desk.ended(command)["execution"] == "applied"
            took.append(time.monotonic() - began)
    assert job.applied == [float(number) for number in range(30)]
    took.sort()
    print(f"submit to applied: median {took[15]:.3f} s, maximum {took[-1]:.3f} s")
    assert took[15] < 1.5


KILL = """
import os, signal
from syncer.api.client import Client
from syncer.intents import Intents

def kill(kind, name, before):
    real = getattr(kind, name)
    def dying(self, *arguments, **options):
        if before:
            os.kill(os.getpid(), signal.SIGKILL)
        answer = real(self, *arguments, **options)
        if answer is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer
    setattr(kind, name, dying)

"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "execution", "code"),
    [
        ("kill(Client, 'claim', before=False)", "applied", ""),
        ("kill(Intents, 'promise', before=False)", "rejected", "runtime_restart"),
        ("kill(Client, 'begin', before=False)", "rejected", "runtime_restart"),
        ("kill(Intents, 'deliver', before=False)", "applied", ""),
        ("kill(Client, 'result', before=True)", "applied", ""),
        ("kill(Client, 'result', before=False)", "applied", ""),
    ],
)
def test_a_syncer_killed_between_two_steps_leaves_one_outcome_and_no_second_application(
    monkeypatch: pytest.MonkeyPatch,
    sync: SyncCommand,
    root: Path,
    job: Training,
    desk: Desk,
    place: str,
    execution: str,
    code: str,
) -> None:
    if "claim" in place:
        monkeypatch.setattr(lifecycle, "LEASE_S", 3.0)
    sync.change = lease_of(0.5)
    with sync.watching(root, change=KILL + place) as killed:
        command = desk.submit("set_lr", {"lr": 0.5})
        assert killed.wait(60) == -signal.SIGKILL
    with sync.watching(root):
        wait(lambda: desk.get(command)["execution"] == execution, f"{execution} after a kill")
        other = desk.submit("set_lr", {"lr": 0.25})
        assert desk.ended(other)["execution"] == "applied"
    ended = desk.get(command)
    assert (ended["execution"], ended["failure_code"]) == (execution, code)
    assert job.applied == ([0.5, 0.25] if execution == "applied" else [0.25])
    assert all(len(outcomes) == 1 for outcomes in job.outcomes().values())
    control = job.directory / "control"
    wait(lambda: not list(control.iterdir()), "an empty inbox")
    assert not server_flags(desk)


def server_flags(desk: Desk) -> list[object]:
    """Return the contradictions that the server noticed."""
    events = desk.client.events().get("items", [])
    return [it for it in events if "contradiction" in str(it)]


def test_what_is_cancelled_or_expires_before_it_is_claimed_never_reaches_the_run(
    sync: SyncCommand, root: Path, job: Training, desk: Desk
) -> None:
    with sync.watching(root):
        desk.capability("set_lr")
        desk.session(desk.leader())
    cancelled = desk.submit("set_lr", {"lr": 0.5})
    late = desk.submit("set_lr", {"lr": 0.25}, valid_s=0.5)
    desk.client.cancel(cancelled["id"], cancelled["fingerprint"])
    wait(lambda: desk.get(late)["execution"] == "rejected", "the end of its validity")
    with sync.watching(root, change=lease_of(0.5)):
        good = desk.submit("set_lr", {"lr": 0.125})
        assert desk.ended(good)["execution"] == "applied"
    assert desk.get(cancelled)["execution"] == "cancelled"
    assert desk.get(late)["failure_code"] == "expired"
    assert job.applied == [0.125]
    assert list(job.outcomes()) == [good["id"]]


def test_while_one_command_waits_in_the_run_the_next_waits_on_the_server(
    sync: SyncCommand, root: Path, job: Training, desk: Desk
) -> None:
    with sync.watching(root):
        desk.capability("set_lr")
        job.hold()
        first = desk.submit("set_lr", {"lr": 0.5}, valid_s=4.0)
        wait(lambda: desk.get(first)["execution"] == "applying", "the first to be delivered")
        second = desk.submit("set_lr", {"lr": 0.25})
        ended = desk.ended(first)
        assert (ended["execution"], ended["failure_code"]) == ("rejected", "expired")
        wait(lambda: desk.get(second)["execution"] == "applying", "the second to be delivered")
        with pytest.raises(ApiError):
            desk.client.cancel(second["id"], second["fingerprint"])
        job.hold(False)
        assert desk.ended(second)["execution"] == "applied"
    assert job.applied == [0.25]


def test_another_syncer_reports_the_outcome_after_the_run_has_ended(
    sync: SyncCommand, root: Path, job: Training, desk: Desk
) -> None:
    sync.change = lease_of(0.5)
    with sync.watching(root, change=KILL + "kill(Intents, 'deliver', before=False)") as killed:
        command = desk.submit("set_lr", {"lr": 0.5})
        killed.wait(60)
    wait(lambda: job.applied, "the application")
    job.end()
    assert sync.once(root).code == 0
    ended = desk.get(command)
    assert (ended["execution"], ended["result"]) == ("applied", {"lr": [0.5]})
    assert desk.run()["spec"]["state"] == "closed"
    assert sync.once(root).code == 0
    assert len(desk.get(command)["history"]) == len(ended["history"])


@pytest.mark.parametrize(
    ("given", "holds", "stops", "execution", "code"),
    [
        (0.5, True, False, "rejected", "runtime_restart"),
        (0.5, False, True, "rejected", "run_ended"),
        (-1.0, False, False, "outcome_unknown", "runtime_restart"),
    ],
    ids=["taken", "not taken", "under way"],
)
def test_what_a_killed_process_left_open_is_answered_and_never_guessed(
    sync: SyncCommand,
    root: Path,
    job: Training,
    desk: Desk,
    given: float,
    holds: bool,
    stops: bool,
    execution: str,
    code: str,
) -> None:
    control = job.directory / "control"
    with sync.watching(root):
        desk.capability("set_lr")
        if holds:
            job.hold()
        if stops:
            job.process.send_signal(signal.SIGSTOP)
        command = desk.submit("set_lr", {"lr": given})
        word = "new" if stops else "got"
        wait(lambda: list(control.glob(f"{word}.*")), "the command in the run")
        if given < 0:
            wait(lambda: job.applied, "the handler to run")
        else:
            time.sleep(0.5)  # What it records of taking it is on the disk.
        job.process.kill()
        job.process.wait()
        ended = desk.ended(command)
    assert (ended["execution"], ended["failure_code"]) == (execution, code)
    assert not list(control.glob("new.*"))


def test_a_run_with_a_syncer_of_its_own_takes_commands_too(
    tmp_path: Path, server: V1Server, root: Path
) -> None:
    environment = {
        "LAUNCHHELM_URL": server.url,
        "LAUNCHHELM_API_KEY": server.key,
        "LAUNCHHELM_PROJECT": PROJECT,
        "LAUNCHHELM_SYNC": "1",
    }
    with training(root, tmp_path / "said", environment=environment) as job:
        desk = Desk(server, job.directory.name)
        try:
            commands = [desk.submit("set_lr", {"lr": 0.5})]
            assert desk.ended(commands[0])["execution"] == "applied"
            commands.append(desk.submit("set_lr", {"lr": 0.25}))
            wait(lambda: len(job.applied) == 2, "the second application")
            job.end()
            assert desk.ended(commands[1])["execution"] == "applied"
            assert desk.run()["spec"]["state"] == "closed"
        finally:
            desk.close()
