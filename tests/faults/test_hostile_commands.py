"""Files in a run's inbox that claim to come from a server, while a syncer speaks for that run.

The run refuses what its owner did not put there, a server believes only the lease that it gave, and
neither holds up the commands that were really given.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launchhelm._ids import new_id
from launchhelm.records import Command
from launchhelm.store.inbox import encode
from launchhelm.store.layout import CommandName, parse_command
from syncer.commands import Origin
from syncer.state import server_hex
from tests.support.commanding import Desk, Training, training, wait
from tests.support.sync_command import SyncCommand, lease_of
from tests.support.v1_server import PROJECT, V1Server, v1_server

NOBODY = 65534
is_root = os.geteuid() == 0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[V1Server]:
    with v1_server(tmp_path / "far") as it:
        yield it


@pytest.fixture
def sync(tmp_path: Path, server: V1Server) -> SyncCommand:
    return SyncCommand(
        tmp_path, server.url, server.key, {"LAUNCHHELM_PROJECT": PROJECT}, lease_of(0.5)
    )


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


def origin(desk: Desk, far: V1Server, id_: str = "", **changes: str) -> Origin:
    """Return what a file says that claims to come from this server; nothing of it was granted."""
    made = Origin(
        server=server_hex(far.url, far.organization),
        id=id_ or new_id(),
        epoch=desk.session(desk.leader())["epoch"],
        lease=new_id(),
        fingerprint="sha256:" + "0" * 64,
        participant=desk.leader(),
        expires_at="2999-01-01T00:00:00Z",
    )
    return replace(made, **changes)


def forge(job: Training, origin: Origin, lr: float, *, owner: int = -1) -> str:
    """Put such a file into the inbox and return its id."""
    command = Command(origin.id, "set_lr", {"lr": lr}, server=origin.field())
    hidden = job.directory / "control" / f".forged.{origin.id}"
    hidden.write_bytes(encode(command))
    hidden.chmod(0o640)
    os.chown(hidden, owner, -1)
    hidden.rename(hidden.with_name(str(CommandName(0, origin.id))))
    return origin.id


def test_files_that_claim_to_come_from_a_server_hold_nothing_up_and_are_nothing_there(
    server: V1Server, sync: SyncCommand, root: Path, job: Training, desk: Desk
) -> None:
    """What the run's owner put there is a command of this host, whatever it claims."""
    owner = NOBODY if is_root else -1
    with sync.watching(root):
        desk.capability("set_lr")
        claims: list[dict[str, str]] = [
            {},
            {"participant": new_id()},
            {"epoch": "999", "lease": "\x1b[2J\r\nX: y" + "l" * 2_000, "fingerprint": ""},
            {"expires_at": "yesterday", "lease": ""},
            {"server": "0123456789abcdef"},
            {"participant": "../../keys"},
        ]
        forged = [forge(job, origin(desk, server, **it), 9.0, owner=owner) for it in claims]
        own = forge(job, origin(desk, server), 8.0)
        wait(lambda: set(job.outcomes()) >= {*forged, own}, "their outcomes")
        real = desk.submit("set_lr", {"lr": 0.5})
        assert desk.ended(real)["execution"] == "applied"
    expected = [8.0, 0.5] if is_root else [*[9.0] * len(claims), 8.0, 0.5]
    assert job.applied == expected
    outcomes = job.outcomes()
    assert all(len(each) == 1 for each in outcomes.values())
    if is_root:
        assert {outcomes[it][0].code for it in forged} == {"not_permitted"}
    job.end()
    ended = sync.once(root)
    assert ended.code == 0, ended.err
    for id_ in (*forged, own):
        assert server.call("GET", f"commands/{id_}").status_code == 404
    assert desk.run()["spec"]["state"] == "closed"


@pytest.mark.parametrize("claim", ["nothing", "another request"])
def test_a_command_whose_id_somebody_used_in_the_run_is_rejected_and_never_called_applied(
    server: V1Server,
    sync: SyncCommand,
    root: Path,
    job: Training,
    desk: Desk,
    claim: str,
) -> None:
    with sync.watching(root):
        desk.capability("set_lr")
        desk.session(desk.leader())
    real = desk.submit("set_lr", {"lr": 0.5})
    used = origin(desk, server, real["id"])
    if claim == "nothing":
        used = replace(used, server="0123456789abcdef")
    forge(job, used, 9.0)
    wait(lambda: real["id"] in job.outcomes(), "the forged one to be applied")
    with sync.watching(root):
        ended = desk.ended(real)
        assert (ended["execution"], ended["failure_code"]) == ("rejected", "id_taken")
        assert desk.ended(desk.submit("set_lr", {"lr": 0.25}))["execution"] == "applied"
    assert job.applied == [9.0, 0.25]
    assert desk.get(real)["execution"] == "rejected"
    assert all(len(each) == 1 for each in job.outcomes().values())


def age(path: Path) -> None:
    os.utime(path, (1.0, 1.0))


def give_away(path: Path) -> None:
    os.chown(path, NOBODY, -1)


def link(path: Path) -> None:
    os.link(path, path.parent.parent / "second")


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


@pytest.mark.parametrize(
    ("tamper", "code", "is_replaced"),
    [
        (age, "expired", True),
        (link, "not_permitted", False),
        (damage, "malformed", False),
        pytest.param(
            give_away,
            "not_permitted",
            True,
            marks=pytest.mark.skipif(not is_root, reason="only root can give files away"),
        ),
    ],
)
def test_a_delivered_command_that_the_run_refuses_is_rejected_on_the_server_with_the_reason(
    sync: SyncCommand,
    root: Path,
    job: Training,
    desk: Desk,
    tamper: Callable[[Path], None],
    code: str,
    is_replaced: bool,
) -> None:
    """Another syncer reports it too, except where the file cannot be read any more."""
    with sync.watching(root) as first:
        desk.capability("set_lr")
        job.process.send_signal(signal.SIGSTOP)
        real = desk.submit("set_lr", {"lr": 0.5})
        path = wait(lambda: delivered(job, real), "the command in the inbox")
        tamper(path)
        if is_replaced:
            first.kill()
        job.process.send_signal(signal.SIGCONT)
        wait(lambda: job.outcomes(), "the refusal")
        with sync.watching(root):
            ended = desk.ended(real)
    assert (ended["execution"], ended["failure_code"]) == ("rejected", code)
    assert job.applied == []
    [outcome] = job.outcomes()[real["id"]]
    assert outcome.code == code and outcome.message


def delivered(job: Training, command: dict[str, Any]) -> Path | None:
    """Return the file of a command that waits in the inbox."""
    for path in (job.directory / "control").iterdir():
        name = parse_command(path.name)
        if name is not None and name.command == command["id"] and name.taken_by is None:
            return path
    return None
