"""Commands given on a server, from there into a run that trains, and their outcomes back."""

from __future__ import annotations

import getpass
import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from launchhelm.records import Command
from launchhelm.store.inbox import send
from launchhelm.store.reader import Reader
from syncer.api.answers import ApiError
from syncer.server import lifecycle
from tests.support.commanding import KILL, Desk, Training, training, wait, wait_for_run
from tests.support.ranks import Ranks, Tell
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
    assert outcomes[0].issued_by == f"{ended['submitted_by']} by way of {sync.url}"


def test_thirty_commands_are_visible_as_applied_soon(
    sync: SyncCommand, root: Path, job: Training, desk: Desk
) -> None:
    took = []
    with sync.watching(root):
        desk.capability("set_lr")
        for number in range(30):
            began = time.monotonic()
            command = desk.submit("set_lr", {"lr": float(number)})
            assert desk.ended(command)["execution"] == "applied"
            took.append(time.monotonic() - began)
    assert job.applied == [float(number) for number in range(30)]
    took.sort()
    print(f"submit to applied: median {took[15]:.3f} s, maximum {took[-1]:.3f} s")
    assert took[15] < 1.5


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
            wait(lambda: sync_of(job), "a heartbeat that tells of syncing")
            job.end()
            assert desk.ended(commands[1])["execution"] == "applied"
            assert desk.run()["spec"]["state"] == "closed"
        finally:
            desk.close()


def sync_of(job: Training) -> bool:
    """Whether a heartbeat said when data went up and commands were asked for."""
    for beat in Reader(job.directory, kinds=("hb",)).poll():
        said = beat.body.get("sync") or {}
        if said.get("sent_at") and said.get("asked_at") and isinstance(said["why"], str):
            return True
    return False


def controlled(rank: int, size: int, tell: Tell, root: str, end: str) -> dict[str, Any]:
    """Train on all ranks until told to end; rank 1 cannot set the gain to 0.25."""
    import torch
    import torch.distributed as dist

    import launchhelm.torch as lht
    from launchhelm.torch import Tunable

    if rank == 1:
        set_value = Tunable.take

        def fail(self: Tunable, value: object) -> None:
            set_value(self, value)
            if value == 0.25:
                raise RuntimeError("this rank had bad luck")

        Tunable.take = fail  # type: ignore[method-assign]
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.1)
    trainer = lht.init("quickstart", state_dir=root)
    trainer.watch(None, optimizer)  # type: ignore[arg-type]
    trainer.tunable("gain", 0.5)
    rates: list[float] = []
    diverged = 0
    is_over = torch.zeros(1)
    while not is_over:
        try:
            trainer.step(loss=1.0)
        except lht.DivergedStateError:
            diverged = 1
            break
        rate = optimizer.param_groups[0]["lr"]
        if not rates or rates[-1] != rate:
            rates.append(rate)
        time.sleep(0.005)
        is_over += os.path.exists(end)
        dist.all_reduce(is_over)
    trainer.finish()
    return {"rates": rates, "diverged": diverged}


def test_commands_land_on_all_ranks_and_a_partial_failure_is_told_as_what_it_is(
    tmp_path: Path, server: V1Server, sync: SyncCommand, root: Path
) -> None:
    with (
        Ranks(controlled, 2, root=str(root), end=str(tmp_path / "end")) as ranks,
        sync.watching(root),
    ):
        desk = Desk(server, wait_for_run(root).name)
        try:
            halved = desk.submit("lr", {"scale": 0.5}, safe_point="lht")
            applied = desk.ended(halved)
            misfit = desk.submit("lr", {"lr": 0.0}, safe_point="lht")
            rejected = desk.ended(misfit)
            luckless = desk.submit("set_gain", {"value": 0.25}, safe_point="lht")
            ended = ranks.wait()
            unknown = desk.ended(luckless)
        finally:
            desk.close()
    assert [one.code for one in ended] == [0, 0], ended
    assert [one.value["rates"] for one in ended] == [[0.1, 0.05]] * 2
    assert applied["execution"] == "applied" and applied["applied_on"] == {"count": 2, "of": 2}
    assert applied["result"]["new"] and applied["result"]["old"], applied["result"]
    assert [place["axis"] for place in applied["applied_at"]] == ["step"]
    assert (rejected["execution"], rejected["failure_code"]) == ("rejected", "local_validation")
    assert unknown["execution"] == "outcome_unknown"
    assert unknown["failure_code"] == "DivergedStateError"
    assert unknown["applied_on"] == {"count": 1, "of": 2}
    assert [one.value["diverged"] for one in ended] == [1, 1]


def test_a_syncer_that_was_stopped_before_it_delivers_delivers_nothing_when_it_wakes(
    sync: SyncCommand, root: Path, job: Training, desk: Desk
) -> None:
    sync.change = lease_of(0.5)
    stop = KILL.replace("SIGKILL", "SIGSTOP") + "kill(Intents, 'deliver', before=True)"
    with sync.watching(root, change=stop) as stopped:
        command = desk.submit("set_lr", {"lr": 0.5})
        wait(lambda: state_of(stopped.pid) == "T", "the first to stop")
        with sync.watching(root):
            ended = desk.ended(command)
            assert (ended["execution"], ended["failure_code"]) == ("rejected", "runtime_restart")
            stopped.send_signal(signal.SIGCONT)
            other = desk.submit("set_lr", {"lr": 0.25})
            assert desk.ended(other)["execution"] == "applied"
    assert job.applied == [0.25]
    assert desk.get(command)["execution"] == "rejected"
    assert not server_flags(desk)


def state_of(pid: int) -> str:
    """Return the letter by which the kernel names what a process does."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_commands_of_a_server_and_of_this_host_are_ordered_by_the_run(
    sync: SyncCommand, root: Path, job: Training, desk: Desk
) -> None:
    with sync.watching(root):
        given = [desk.submit("set_lr", {"lr": 0.0})]
        for number in range(1, 5):
            local = Command(f"local-{number}", "set_lr", {"lr": float(number)})
            send(job.directory, local)
            assert desk.ended(given[-1])["execution"] == "applied"
            given.append(desk.submit("set_lr", {"lr": 10.0 * number}))
        assert desk.ended(given[-1])["execution"] == "applied"
        wait(lambda: len(job.applied) == 9, "all nine")
        job.end()
    outcomes = job.outcomes()
    locals_ = {f"local-{number}" for number in range(1, 5)}
    assert set(outcomes) == locals_ | {it["id"] for it in given}
    assert all([it.state for it in each] == ["applied"] for each in outcomes.values())
    assert sorted(job.applied) == [0.0, 1.0, 2.0, 3.0, 4.0, 10.0, 20.0, 30.0, 40.0]


def test_two_people_at_once_on_the_server_and_on_this_host_are_ordered_by_the_run_and_both_recorded(
    sync: SyncCommand, root: Path, job: Training, desk: Desk
) -> None:
    """Both type `launchhelm control` at the same time; the run decides who is first."""
    run = job.directory.name
    sync.environment["LAUNCHHELM_DIR"] = str(root)
    with sync.watching(root), ThreadPoolExecutor() as people:
        desk.capability("set_lr")
        job.hold()
        there = people.submit(
            sync.once, "--server", sync.url, run, "set_lr", "lr=0.5", verb="control"
        )
        here = people.submit(sync.once, run, "set_lr", "lr=0.25", verb="control")
        wait(lambda: len(list((job.directory / "control").glob("*.json"))) == 2, "both commands")
        job.hold(False)
        ended = [json.loads(each.result().out) for each in (there, here)]
        assert [each.result().code for each in (there, here)] == [0, 0]
    assert [it["state"] for it in ended] == ["applied", "applied"]

    ledger = [json.loads(line) for line in sync.once(run, "log", verb="control").out.splitlines()]
    assert {it["id"] for it in ledger} == {it["id"] for it in ended}
    ledger.sort(key=lambda it: it["applied_at"]["step"])
    assert [it["payload"]["lr"] for it in ledger] == job.applied, "in the order of the run"
    givers = {it["payload"]["lr"]: it["issued_by"] for it in ledger}
    assert givers[0.5] == f"{ended[0]['issued_by']} by way of {sync.url}"
    assert givers[0.25] == getpass.getuser()
