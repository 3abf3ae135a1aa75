"""Whatever lies in the inbox: it changes nothing, it is told once, and training goes on."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launchhelm import _commands
from launchhelm.cli import main
from launchhelm.records import Command, Outcome, WriterId
from launchhelm.store import inbox
from launchhelm.store.inbox import (
    MAX_CLAIMS_PER_POLL,
    MAX_COMMAND_BYTES,
    MAX_DEPTH,
    MAX_LOOKS_PER_POLL,
    decode,
    encode,
)
from launchhelm.store.layout import CommandName
from tests.support.journals import final_outcomes, records
from tests.support.office import Office
from tests.support.runs import empty_run, running, send, until

NOBODY = 65534
GOOD = Command("c", "set_lr", {"lr": 0.5})
Make = Callable[[Path], object]

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")


def data(content: bytes) -> Make:
    """Make a file of these bytes."""
    return lambda path: path.write_bytes(content)


def command(**fields: Any) -> Make:
    """Make a file that reads as a command; `cmd` is the id of its name unless given."""

    def make(path: Path) -> None:
        id_ = path.name.split(".")[-2]
        path.write_bytes(encode(dataclasses.replace(GOOD, **{"id": id_, **fields})))

    return make


def body(text: str) -> Make:
    """Make a file of this JSON, with the id of its name for `ID`."""
    return lambda path: path.write_text(text.replace("ID", path.name.split(".")[-2]))


def aged(path: Path) -> None:
    command()(path)
    os.utime(path, (1.0, 1.0))


def listening(path: Path) -> None:
    """Make a socket; its name would be too long for `bind`."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as made:
        made.bind(f"{folder}/s")
        shutil.move(f"{folder}/s", path)


def linked(path: Path) -> None:
    command()(path)
    os.link(path, path.parent.parent / "elsewhere")


def given_away(path: Path) -> None:
    command()(path)
    os.chown(path, NOBODY, -1)


def nested(levels: int) -> bytes:
    return b'{"cmd":"c","kind":"set_lr","args":' + b'{"a":' * levels + b"1" + b"}" * levels + b"}"


ANSI = "\x1b[2J\x1b]0;owned\x07\r\n\u202e"
HOSTILE: dict[str, tuple[Make, str, str]] = {
    "text": (data(b"hello"), "malformed", "not JSON"),
    "empty": (data(b""), "malformed", "not JSON"),
    "half": (data(encode(GOOD)[:-9]), "malformed", "not JSON"),
    "zeros": (data(b"\0" * 4096), "malformed", "not JSON"),
    "bytes": (data(b'{"cmd":"\xff\xfe"}'), "malformed", "not JSON"),
    "utf16": (data(encode(GOOD).decode().encode("utf-16")), "malformed", "not JSON"),
    "nan": (body('{"cmd":"ID","kind":"set_lr","args":{"lr":NaN}}'), "malformed", "NaN"),
    "infinite": (body('{"cmd":"ID","kind":"set_lr","args":{"lr":1e999}}'), "malformed", "JSON"),
    "twice": (
        body('{"cmd":"ID","kind":"set_lr","args":{"lr":0.1},"args":{"lr":9}}'),
        "malformed",
        "twice",
    ),
    "surrogate": (body('{"cmd":"ID","kind":"set_lr","reason":"\\ud800"}'), "malformed", "JSON"),
    "nested": (data(nested(MAX_DEPTH)), "malformed", "nested deeper"),
    "bottomless": (data(nested(10_000)), "malformed", "not JSON"),
    "large": (data(b" " * 10_000_000), "malformed", "10,000,000 bytes"),
    "padded": (data(encode(GOOD) + b" " * MAX_COMMAND_BYTES), "malformed", "are allowed"),
    "list": (data(b"[1]"), "malformed", "not a JSON object"),
    "newer": (body('{"format":2,"cmd":"ID","kind":"set_lr"}'), "malformed", "format 2"),
    "kind": (
        body(json.dumps({"cmd": "ID", "kind": ANSI + "x" * 9_000})),
        "malformed",
        "not the name of a control",
    ),
    "step": (body('{"cmd":"ID","kind":"set_lr","first_step":1e400}'), "malformed", "JSON"),
    "huge": (body('{"cmd":"ID","kind":"set_lr","rev":' + "9" * 99 + "}"), "malformed", "64 bits"),
    "another": (command(id="other"), "malformed", "another id"),
    "claimed": (command(server={"id": "other"}), "malformed", "of a server"),
    "named": (command(server={"server": ANSI}), "malformed", "of a server"),
    "unknown": (
        command(name="set_nothing", issued_by=ANSI, reason=ANSI, payload={ANSI: ANSI}),
        "handler_unavailable_or_changed",
        "no control",
    ),
    "misfit": (command(payload={ANSI: 1}), "local_validation", "has no field"),
    "word": (command(payload={"lr": ANSI}), "local_validation", "must be a number"),
    "old": (aged, "expired", "within"),
    "late": (command(last_step=0), "expired", "step 0"),
    "attempt": (command(for_attempt=7), "attempt_over", "attempt 7"),
    "overtaken": (command(expected={"lr": [ANSI]}), "changed_meanwhile", "not known"),
    "pipe": (os.mkfifo, "malformed", "not a plain file"),
    "folder": (os.mkdir, "malformed", "not a plain file"),
    "socket": (listening, "malformed", "not a plain file"),
    "endless": (lambda path: os.symlink("/dev/zero", path), "malformed", "not a plain file"),
    "outside": (lambda path: os.symlink("/etc/passwd", path), "malformed", "not a plain file"),
    "nowhere": (lambda path: os.symlink("/none", path), "malformed", "not a plain file"),
    "loop": (lambda path: os.symlink(path.name, path), "malformed", "not a plain file"),
    "linked": (linked, "not_permitted", "second name"),
}
AS_ROOT: dict[str, tuple[Make, str, str]] = {
    "device": (
        lambda path: os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5)),
        "malformed",
        "not a plain file",
    ),
    "foreign": (given_away, "not_permitted", "may not control"),
}


def put(run: Path, id_: str, make: Make, *, order: int = 0) -> Path:
    """Put something into the inbox by a rename, as a sender does."""
    path = run / "control" / str(CommandName(order, id_))
    hidden = path.with_name(f".hidden.{id_}.json")
    make(hidden)
    hidden.rename(path)
    return path


def notices(run: Path) -> list[str]:
    return [it.body["text"] for it in records(run, "ev") if it.body["type"] == "notice"]


def test_nothing_in_the_inbox_changes_or_stops_a_training_and_each_is_told_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = {**HOSTILE, **(AS_ROOT if os.geteuid() == 0 else {})}
    rates: list[float] = []
    with running(tmp_path) as run:
        run.command("after_step", name="set_lr")(take_rate(rates))
        run.sync("after_step", step=10)
        for id_, (make, _, _) in cases.items():
            put(run.directory, id_, make)
        for name in (f"new.{0:020d}.{ANSI}.json", f"new.{0:020d}.a b.json", "new.1.c.json"):
            (run.directory / "control" / name).write_bytes(encode(GOOD))
        good = ""

        def is_over() -> bool:
            run.log({"loss": 1.0})
            run.sync("after_step", step=11)
            return bool(rates) if good else set(final_outcomes(run.directory)) >= set(cases)

        until(is_over, timeout_s=60)
        good = send(run.directory, "set_lr", {"lr": 0.25}).id
        until(is_over, timeout_s=60)
        assert not run.recorder.faults
    assert rates == [0.25]
    outcomes = final_outcomes(run.directory)
    assert set(outcomes) == {*cases, good}
    for id_, (_, code, word) in cases.items():
        [outcome] = outcomes[id_]
        assert (outcome.code, word in outcome.message) == (code, True), (id_, outcome)
        assert len(outcome.message) < 400
    assert notices(run.directory) == []
    left = sorted(it.name for it in (run.directory / "control").iterdir())
    assert [it.split(".")[2] for it in left if it.startswith("got.")] == ["folder"]
    assert len(left) == 4, left

    for words in (["control", str(run.directory), "log"], ["show", str(run.directory)]):
        assert main([*words, *(["--controls"] if words[0] == "show" else [])]) == 0
        shown = capsys.readouterr().out
        assert all(it.isprintable() for it in shown.split("\n"))
        for id_ in cases:
            [line] = [it for it in shown.split("\n") if it.endswith(f"  {id_}")]
            assert "Rejected, nothing changed" in line or "Expired" in line
        assert main([*words, "--json"]) == 0
        assert "\x1b" not in capsys.readouterr().out


def take_rate(rates: list[float]) -> Callable[[float], None]:
    def set_lr(lr: float) -> None:
        rates.append(lr)

    return set_lr


# --- again, and in another name -------------------------------------------------------------------


@pytest.fixture
def office(tmp_path: Path) -> Office:
    return Office(empty_run(tmp_path))


def settle(office: Office) -> None:
    """Look until nothing happens any more."""
    for _ in range(4):
        assert office.take() is None
        office.clock.turn(8)


def test_a_replay_changes_nothing_whatever_it_is_called_and_whenever_it_comes(
    office: Office,
) -> None:
    sent = send(office.run, "set_lr", {"lr": 0.5}, revision=5)
    snapshot = (office.run / "control" / str(CommandName(5, sent.id))).read_bytes()
    taken = office.take()
    assert taken is not None
    put(office.run, sent.id, data(snapshot), order=5)  # While it is under way.
    settle(office)
    office.desk.applying(taken, step=7)
    put(office.run, sent.id, data(snapshot), order=5)
    settle(office)
    office.desk.conclude(taken, Outcome(sent.id, "applied"), step=7)
    put(office.run, sent.id, data(snapshot), order=5)  # Afterwards.
    settle(office)
    put(office.run, sent.id, data(snapshot), order=9)  # Under another order.
    put(office.run, sent.id, data(b"?"), order=10)
    settle(office)
    following = Office(office.run, 2, office.clock)  # To the next attempt.
    put(office.run, sent.id, data(snapshot), order=5)
    settle(following)
    assert office.states(sent.id) == ["claimed", "applying", "applied"]
    assert len(notices(office.run)) == 6
    assert following.files() == []


def test_a_replay_of_what_is_under_way_leaves_its_file_for_whoever_has_to_close_it(
    office: Office,
) -> None:
    sent = send(office.run, "set_lr", {"lr": 0.5}, issued_by="ann")
    taken = office.take()
    assert taken is not None
    office.desk.applying(taken, step=7)
    put(office.run, sent.id, command(issued_by="eve"))
    settle(office)
    following = Office(office.run, 2, office.clock)  # The first one was killed.
    settle(following)
    outcome = following.outcome(sent.id)
    assert (outcome.state, outcome.code) == ("outcome_unknown", "runtime_restart")
    assert outcome.issued_by == "ann"
    assert following.files() == []


@pytest.mark.parametrize("attempt", [1, 9])
def test_a_file_in_the_name_of_another_process_never_ends_a_command_that_is_under_way(
    office: Office, attempt: int
) -> None:
    following = Office(office.run, 2, office.clock)
    sent = send(office.run, "set_lr", {"lr": 0.5})
    taken = following.take()
    assert taken is not None
    made_up = CommandName(0, sent.id, WriterId(0, attempt, "deadbeef"))
    (office.run / "control" / str(made_up)).write_bytes(encode(sent))
    settle(following)
    following.desk.applying(taken, step=7)
    settle(following)
    following.desk.conclude(taken, Outcome(sent.id, "applied"), step=7)
    settle(following)
    assert following.outcome(sent.id).state == "applied"
    assert len(notices(office.run)) == 1
    assert following.files() == []


@pytest.mark.parametrize("attempt", [1, 9])
def test_a_file_that_says_it_was_taken_is_refused_and_never_acted_on(
    office: Office, attempt: int
) -> None:
    following = Office(office.run, 2, office.clock)
    made_up = CommandName(0, "c", WriterId(3, attempt, "deadbeef"))
    (office.run / "control" / str(made_up)).write_bytes(encode(GOOD))
    settle(following)
    assert following.outcome("c").state == "rejected"
    assert following.files() == []


def test_a_file_in_my_own_name_is_judged_like_any_other(office: Office) -> None:
    for id_, content in (("good", encode(dataclasses.replace(GOOD, id="good"))), ("bad", b"?")):
        name = CommandName(0, id_, office.writer)
        (office.run / "control" / str(name)).write_bytes(content)
    taken = office.take()
    assert taken is not None and taken.id == "good"
    assert office.outcome("bad").code == "malformed"


def test_a_file_that_cannot_be_taken_stands_in_nobodys_way(office: Office) -> None:
    """A folder of that name is in the place where it would go."""
    for number in range(MAX_CLAIMS_PER_POLL + 1):
        name = CommandName(0, f"a{number:03d}", office.writer)
        (office.run / "control" / str(name)).mkdir()
        put(office.run, f"a{number:03d}", os.mkdir)
    sent = send(office.run, "set_lr", {"lr": 0.5}, id="z")
    for _ in range(6):
        taken = office.take()
        if taken is not None:
            break
    assert taken == sent
    outcomes = final_outcomes(office.run)
    assert len(outcomes) == MAX_CLAIMS_PER_POLL + 1
    assert {it.code for each in outcomes.values() for it in each} == {"malformed"}
    assert notices(office.run) == []


# --- other users ----------------------------------------------------------------------------------


@needs_root
@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_in_an_inbox_that_all_may_write_others_are_refused_and_named(
    tmp_path: Path, mode: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:  # That user cannot look into pytest's.
        root = Path(folder)
        root.chmod(0o755)
        office = Office(empty_run(root))
        for path in (office.run, office.run / "control"):
            path.chmod(mode)
        own = put(office.run, "own", command())
        own.chmod(0o666)

        def act() -> None:
            inbox.send(office.run, dataclasses.replace(GOOD, id="theirs", server={"id": "theirs"}))
            os.link(office.run / "control" / str(CommandName(0, "theirs")), root / "kept")

        as_nobody(act, writable=root)
        assert office.take() is None
        assert office.outcome("own").code == "not_permitted"
        assert "Anybody" in office.outcome("own").message
        outcome = office.outcome("theirs")
        assert (outcome.code, outcome.owner) == ("not_permitted", "nobody")
        assert outcome.server == {"id": "theirs"}


def as_nobody(act: Callable[[], object], *, writable: Path) -> None:
    """Do something in a process of another user."""
    writable.chmod(0o777)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            act()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


@needs_root
def test_a_file_that_may_not_be_read_is_told(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)

        def act() -> None:
            run = empty_run(root)
            sent = send(run, "set_lr", {"lr": 0.5})
            (run / "control" / str(CommandName(0, sent.id))).chmod(0)
            office = Office(run)
            assert office.take() is None
            outcome = office.outcome(sent.id)
            assert (outcome.code, "denied" in outcome.message) == ("malformed", True)

        as_nobody(act, writable=root)


# --- many -----------------------------------------------------------------------------------------


def flood(run: Path, count: int) -> None:
    """Put many files, of all kinds of content, into an inbox."""
    kinds = [b"?", b"", encode(GOOD), b"{" * 60_000]
    for number in range(count):
        path = run / "control" / str(CommandName(0, f"f{number:05d}"))
        path.write_bytes(kinds[number % len(kinds)])


def test_a_poll_does_a_bounded_amount_of_work_whatever_lies_there(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    flood(office.run, 500)
    reads: list[Path] = []
    read = inbox._read

    def counted(path: Path) -> tuple[bytes, os.stat_result]:
        reads.append(path)
        return read(path)

    monkeypatch.setattr(inbox, "_read", counted)
    told = 0
    for _ in range(3):
        reads.clear()
        assert office.take() is None
        assert len(reads) <= MAX_LOOKS_PER_POLL + MAX_CLAIMS_PER_POLL
        assert len(final_outcomes(office.run)) == told + MAX_CLAIMS_PER_POLL
        told += MAX_CLAIMS_PER_POLL
    sent = send(office.run, "set_lr", {"lr": 0.5}, id="zzz")
    until(lambda: office.take() == sent, timeout_s=60)
    outcomes = final_outcomes(office.run)
    assert len(outcomes) == 500 and all(len(each) == 1 for each in outcomes.values())


def test_no_more_commands_are_taken_than_the_loop_can_look_through(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_commands, "MAX_QUEUE", 10)
    monkeypatch.setattr(inbox, "MAX_CLAIMS_PER_POLL", 4)
    for number in range(20):
        put(office.run, f"c{number:02d}", command(first_step=1_000))
    for _ in range(5):
        assert office.take() is None
    assert len([it for it in office.files() if it.startswith("got.")]) == 12
    office.clock.turn(3_700)
    for _ in range(5):
        office.desk.poll()
    assert {it.state for [it] in final_outcomes(office.run).values()} == {"expired"}
    assert len(final_outcomes(office.run)) == 20


@pytest.mark.stress
@pytest.mark.timeout(900)
def test_ten_thousand_files_at_once_slow_no_step(tmp_path: Path) -> None:
    """Prints how long a step took, without and with them."""

    def pace(condition: Callable[[], object], limit_s: float) -> list[float]:
        took = []
        until_s = time.monotonic() + limit_s
        while time.monotonic() < until_s and not condition():
            began = time.perf_counter()
            run.log({"loss": 1.0})
            run.sync("after_step", step=1)
            took.append(time.perf_counter() - began)
            time.sleep(0.001)
        return sorted(took)

    rates: list[float] = []
    with running(tmp_path) as run:
        run.command("after_step", name="set_lr")(take_rate(rates))
        quiet = pace(lambda: False, 10)
        flood(run.directory, 10_000)
        control = run.directory / "control"
        loud = pace(lambda: False, 60)
        while any(control.glob("*.json")):
            pace(lambda: False, 5)
        send(run.directory, "set_lr", {"lr": 0.5})
        pace(lambda: rates, 30)
        assert not run.recorder.faults
    outcomes = final_outcomes(run.directory)
    assert len(outcomes) == 10_001 and all(len(each) == 1 for each in outcomes.values())
    assert rates == [0.5]
    for name, took in (("quiet", quiet), ("10,000 files", loud)):
        half, most = took[len(took) // 2], took[-len(took) // 1000]
        print(
            f"{name}: {len(took):,} steps, median {1e6 * half:.0f} us, p99.9 {1e3 * most:.1f} ms, "
            f"longest {1e3 * took[-1]:.1f} ms"
        )


# --- any bytes ------------------------------------------------------------------------------------

FULL = encode(
    Command(
        "c",
        "set_lr",
        {"lr": 0.5, "list": [1, {"a": None}]},
        "ann",
        1.5,
        "why",
        7,
        1,
        2,
        9,
        {"lr": [0.1]},
        60.0,
        {"id": "c", "lease": "l"},
    )
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=12,
)


@st.composite
def mangled(draw: st.DrawFn) -> bytes:
    """A command with some bytes replaced, left out or put in."""
    content = bytearray(FULL)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(content)))
        content[at : at + draw(st.integers(0, 6))] = draw(st.binary(max_size=6))
    return bytes(content)


@st.composite
def twisted(draw: st.DrawFn) -> bytes:
    """A command with some fields of any value."""
    fields = {
        **json.loads(FULL),
        **draw(st.dictionaries(st.sampled_from(sorted(json.loads(FULL))), json_values, max_size=3)),
    }
    return json.dumps(fields).encode()


@settings(max_examples=settings().max_examples // 2)
@given(st.lists(mangled() | twisted() | st.binary(max_size=64), min_size=1, max_size=8))
def test_any_bytes_end_in_one_outcome_and_act_only_as_what_every_reader_reads(
    contents: list[bytes],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        office = Office(empty_run(Path(folder)))
        for number, content in enumerate(contents):
            content = content.replace(b'"c"', b'"c%d"' % number)
            (office.run / "control" / str(CommandName(0, f"c{number}"))).write_bytes(content)
        acted = []
        for step in range(12):
            while (taken := office.take(step=step)) is not None:
                acted.append(taken.id)
                assert decode(encode(taken)) == taken
                office.desk.applying(taken, step=step)
                office.desk.conclude(taken, Outcome(taken.id, "applied"), step=step)
        office.clock.turn(1e13)
        office.desk.poll()
        outcomes = final_outcomes(office.run)
        assert set(outcomes) == {f"c{number}" for number in range(len(contents))}
        assert all(len(each) == 1 for each in outcomes.values())
        assert len(acted) == len(set(acted))
        assert not office.recorder.faults
        office.desk.poll()
        assert office.files() == []
