"""The inbox: who may put what there, who takes it, and what is refused unread."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from launchhelm.errors import ConfigError, StorageError
from launchhelm.records import Command, WriterId
from launchhelm.store import inbox
from launchhelm.store.inbox import MAX_COMMAND_BYTES, Inbox, decode, encode
from launchhelm.store.layout import CommandName
from launchhelm.store.manifest import Attempt, take_attempt
from tests.support.runs import TurnedClock, empty_run, send

FIRST = WriterId(0, 1, "0000000a")
SECOND = WriterId(0, 2, "0000000b")

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return empty_run(tmp_path)


def names(run: Path) -> list[str]:
    return sorted(os.listdir(run / "control"))


def put(run: Path, id_: str, data: bytes) -> Path:
    path = run / "control" / str(CommandName(0, id_))
    path.write_bytes(data)
    return path


def test_a_command_survives_its_file() -> None:
    command = Command(
        id="c1",
        name="lr",
        payload={"lr": 0.5, "note": "é"},
        issued_by="ann",
        issued_at=12.5,
        reason="too high",
        revision=7,
        for_attempt=2,
        first_step=10,
        last_step=20,
        expected={"lr": [1.0]},
        valid_s=60.0,
        server={"id": "c1", "epoch": "3"},
    )
    assert decode(encode(command)) == command


def test_a_short_command_takes_its_defaults() -> None:
    command = decode(b'{"cmd":"c","kind":"lr","args":{}}')
    assert command == Command(id="c", name="lr", payload={})
    assert command.valid_s == 3600.0


def test_sending_twice_leaves_one_command(run: Path) -> None:
    for _ in range(2):
        send(run, "lr", {"lr": 0.1}, id="c1")
    assert [
        (name.command, command and command.payload) for name, command in inbox.waiting(run)
    ] == [("c1", {"lr": 0.1})]
    assert len(names(run)) == 1


def test_a_command_that_is_too_large_is_refused_by_the_sender(run: Path) -> None:
    with pytest.raises(ValueError, match="65,536"):
        send(run, "lr", {"text": "x" * MAX_COMMAND_BYTES})
    assert names(run) == []


def test_sending_to_a_run_that_is_gone_says_so(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="was not sent"):
        send(tmp_path / "gone", "lr", {})


@needs_root
def test_sending_without_permission_says_who_to_ask(run: Path) -> None:
    os.seteuid(65534)
    try:
        with pytest.raises(ConfigError, match="may not control"):
            send(run, "lr", {})
    finally:
        os.seteuid(0)


def test_a_file_is_taken_by_rename_and_removed_when_asked(run: Path) -> None:
    command = send(run, "lr", {"lr": 0.1})
    mine = Inbox(run, FIRST)
    [arrival] = mine.poll(may_claim=True).arrivals
    assert arrival.command == command
    assert names(run) == [str(CommandName(0, command.id, FIRST))]
    assert mine.poll(may_claim=True).arrivals == []
    assert mine.remove(arrival.name)
    assert names(run) == []


def test_commands_come_by_revision_then_by_age(run: Path) -> None:
    for index, (id_, revision) in enumerate([("b", 0), ("a", 0), ("d", 1), ("c", 2)]):
        send(run, "lr", {}, id=id_, revision=revision)
        path = run / "control" / str(CommandName(revision, id_))
        os.utime(path, (1_000 + index, 1_000 + index))
    taken = Inbox(run, FIRST).poll(may_claim=True).arrivals
    assert [arrival.name.command for arrival in taken] == ["b", "a", "d", "c"]


def test_nothing_is_taken_while_the_loop_passes_no_control_point(run: Path) -> None:
    send(run, "lr", {})
    assert Inbox(run, FIRST).poll(may_claim=False).arrivals == []
    assert names(run)[0].startswith("new.")


def test_what_has_waited_too_long_is_taken_all_the_same(run: Path) -> None:
    """Its age is counted by the file server's clock at first sight, by our own from then on."""
    clock = TurnedClock()
    send(run, "lr", {}, id="old", valid_s=3600, issued_at=1e11)
    send(run, "lr", {}, id="new", valid_s=3600, issued_at=0)
    path = run / "control" / str(CommandName(0, "old"))
    before = path.stat().st_mtime - 3000
    os.utime(path, (before, before))
    mine = Inbox(run, FIRST, clock=clock)
    assert mine.poll(may_claim=False).arrivals == []
    clock.turn(700)
    [arrival] = mine.poll(may_claim=False).arrivals
    assert arrival.name.command == "old"
    assert arrival.age_s == pytest.approx(3700, abs=30)


def test_a_newer_attempt_takes_over(run: Path) -> None:
    send(run, "lr", {})
    for _ in range(2):
        take_attempt(run, Attempt(0, 0, {}, 0.0, 1, "here"))
    look = Inbox(run, FIRST).poll(may_claim=True)
    assert look.superseded
    assert look.arrivals == []
    [arrival] = Inbox(run, SECOND).poll(may_claim=True).arrivals
    assert arrival.name.taken_by == SECOND


def test_a_rename_that_was_answered_twice_is_noticed_in_the_listing(run: Path) -> None:
    command = send(run, "lr", {})
    mine = Inbox(run, FIRST)
    path = run / "control"
    os.rename(path / str(CommandName(0, command.id)), path / str(CommandName(0, command.id, FIRST)))
    for _ in range(2):
        taken = [arrival.command for arrival in mine.poll(may_claim=True).arrivals]
        assert taken == ([command] if _ == 0 else [])


def test_of_two_coordinators_one_gets_each_file(run: Path) -> None:
    for index in range(60):
        send(run, "lr", {}, id=f"c{index:02d}")
    taken: dict[WriterId, list[str]] = {FIRST: [], SECOND: []}
    start = threading.Barrier(2)

    def take(writer: WriterId) -> None:
        mine = Inbox(run, writer)
        start.wait()
        for _ in range(3):
            for arrival in mine.poll(may_claim=True).arrivals:
                taken[writer].append(arrival.name.command)

    threads = [threading.Thread(target=take, args=(writer,)) for writer in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken[FIRST] + taken[SECOND]) == [f"c{index:02d}" for index in range(60)]


def refused(run: Path, **arguments: object) -> tuple[str, str]:
    """Take the one file there is; return the code of its refusal and its message."""
    [arrival] = Inbox(run, FIRST, **arguments).poll(may_claim=True).arrivals  # type: ignore[arg-type]
    assert arrival.code
    return arrival.code, arrival.message


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[1]",
        b'{"cmd":"c1","kind":"lr","args":{},"format":2}',
        b'{"cmd":"c1","kind":"L R","args":{}}',
        b'{"cmd":"c1","kind":"lr","args":[]}',
        b'{"cmd":"c1","kind":"lr","args":{"lr":NaN}}',
        b'{"cmd":"c1","kind":"lr","args":{"text":"\\ud800"}}',
        b'{"cmd":"c1","kind":"lr","args":{},"valid_s":-1}',
        b'{"cmd":"c1","kind":"lr","args":{},"first_step":1.5}',
        b'{"cmd":"c1","kind":"lr","args":{},"first_step":true}',
        b'{"cmd":"other","kind":"lr","args":{}}',
        b'{"cmd":"c1","kind":"lr","args":{"n":' + b"9" * 5000 + b"}}",
        b'{"cmd":"c1","kind":"lr","args":' + b'{"a":' * 20_000 + b"1" + b"}" * 20_001,
        json.dumps({"cmd": "c1", "kind": "lr", "args": {"x": "x" * MAX_COMMAND_BYTES}}).encode(),
        b"\0" * 100,
    ],
    ids=lambda data: data[:40].decode("ascii", "replace"),
)
def test_a_file_that_is_no_command_is_refused_and_named(run: Path, data: bytes) -> None:
    put(run, "c1", data)
    code, message = refused(run)
    assert code == "malformed"
    assert message


@pytest.mark.parametrize(
    "make",
    [
        lambda path: os.symlink("/etc/hostname", path),
        os.mkfifo,
        os.mkdir,
    ],
    ids=["link", "pipe", "directory"],
)
def test_what_is_no_plain_file_is_never_waited_for(run: Path, make: Callable[[Path], None]) -> None:
    make(run / "control" / str(CommandName(0, "c1")))
    assert refused(run)[0] == "malformed"


@needs_root
def test_a_command_of_another_user_is_refused(run: Path) -> None:
    send(run, "lr", {}, id="c1")
    os.chown(run / "control" / str(CommandName(0, "c1")), 65534, -1)
    code, message = refused(run)
    assert code == "not_permitted"
    assert "may not control" in message


@needs_root
def test_a_listed_user_may_control(run: Path) -> None:
    send(run, "lr", {}, id="c1")
    os.chown(run / "control" / str(CommandName(0, "c1")), 65534, -1)
    [arrival] = Inbox(run, FIRST, accept_uids=[65534]).poll(may_claim=True).arrivals
    assert arrival.command is not None and not arrival.code


@needs_root
@pytest.mark.parametrize(("mode", "may"), [(0o2770, True), (0o770, False), (0o2750, False)])
def test_members_of_the_group_may_control_a_shared_inbox(run: Path, mode: int, may: bool) -> None:
    """`nobody` is a member of `nogroup`, its own first group."""
    send(run, "lr", {}, id="c1")
    os.chown(run / "control" / str(CommandName(0, "c1")), 65534, -1)
    os.chown(run / "control", 0, 65534)
    (run / "control").chmod(mode)
    [arrival] = Inbox(run, FIRST).poll(may_claim=True).arrivals
    assert (not arrival.code) == may


def test_a_link_to_somebody_elses_file_is_not_their_word(run: Path) -> None:
    send(run, "lr", {}, id="c1")
    os.link(run / "control" / str(CommandName(0, "c1")), run / "elsewhere")
    assert refused(run)[0] == "not_permitted"


def test_names_that_are_not_ours_stay(run: Path) -> None:
    for name in (".new.x", "new.1.c.json", "README", "got.00000000000000000000.c.json"):
        (run / "control" / name).write_text("?")
    before = names(run)
    look = Inbox(run, FIRST).poll(may_claim=True)
    assert (look.arrivals, look.strangers) == ([], [])
    assert names(run) == before
