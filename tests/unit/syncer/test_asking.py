"""Each run tells, per server, when commands were last asked for, and why none can be given."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launchhelm.cli import main
from launchhelm.store.segment import seal
from syncer import asking, status
from syncer.api.answers import ApiError
from syncer.api.client import Client
from syncer.asking import EVERY_S, NAME, SOON_S, Asked, Asking
from syncer.lease import Lease
from syncer.state import find_place, open_journal
from tests.support.cli_runs import MadeRun
from tests.support.pushing import WrittenRun, push_all, pushing
from tests.support.runs import TurnedClock
from tests.support.v1_server import V1Server, v1_server

SERVER = "https://lan.example"
ORG = "11111111-1111-4111-8111-111111111111"


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAUNCHHELM_STATE_DIR", str(tmp_path / "state"))


def test_a_note_is_written_at_once_when_it_changes_and_else_four_times_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, writes = TurnedClock(), []
    replace = os.replace

    def note(*given: Any) -> None:
        writes.append(given)
        replace(*given)

    monkeypatch.setattr(os, "replace", note)
    asks = Asking(clock)
    for second in range(60):
        asks.note(tmp_path, 1, "", asked_at=float(second))
        clock.turn(1.0)
    assert len(writes) == 60 / EVERY_S
    asks.note(tmp_path, 1, "control is off", asked_at=60.0)
    assert asking.read(tmp_path) == Asked(60.0, "control is off", 1)
    asks.note(tmp_path, 1, "")
    assert asking.read(tmp_path) == Asked(60.0, "control is off", 1), "no faster than that"
    clock.turn(SOON_S)
    asks.note(tmp_path, 1, "")
    assert asking.read(tmp_path) == Asked(60.0, "", 1)
    assert sorted(it.name for it in tmp_path.iterdir()) == [NAME]


def test_a_new_holder_keeps_when_commands_were_last_asked_for(tmp_path: Path) -> None:
    Asking(TurnedClock()).note(tmp_path, 1, "", asked_at=5.0)
    Asking(TurnedClock()).note(tmp_path, 2, "no rank 0 was seen yet")
    assert asking.read(tmp_path) == Asked(5.0, "no rank 0 was seen yet", 2)


def test_a_note_that_cannot_be_written_or_read_stops_nobody(tmp_path: Path) -> None:
    Asking(TurnedClock()).note(tmp_path / "gone", 1, "")
    for text in (b"{", b"[]", b'{"asked_at": "x", "why": "", "epoch": 1}'):
        (tmp_path / NAME).write_bytes(text)
        assert asking.read(tmp_path) is None
        Asking(TurnedClock()).note(tmp_path, 1, "", asked_at=1.0)
        assert asking.read(tmp_path) == Asked(1.0, "", 1)


# --- what a push says of it -----------------------------------------------------------------------


@pytest.fixture
def server(tmp_path: Path) -> Iterator[V1Server]:
    with v1_server(tmp_path / "far") as it:
        yield it


@pytest.fixture
def client(server: V1Server) -> Iterator[Client]:
    with server.client() as it:
        yield it


def noted(run: WrittenRun) -> Asked | None:
    (place,) = (run.directory / "sync").iterdir()
    return asking.read(place)


def test_a_push_says_why_nobody_takes_commands(tmp_path: Path, client: Client) -> None:
    run, clock = WrittenRun(tmp_path), TurnedClock()
    said = []

    def beat(push: Any) -> None:
        clock.turn(15.0)
        push.heartbeat(commands=True)
        said.append(push.silence)

    with pushing(run.directory, client, clock=clock) as push:
        push_all(push)
        beat(push)
        assert noted(run) == Asked(None, "rank 0 was not seen to move yet", 1)
        run.add("hb", {"n": 1}, step=1)
        beat(push)
        run.add("cap", CAPABILITY)
        push_all(push)
        run.add("hb", {"n": 2}, step=2)
        beat(push)
        run.add("ctl", {"control": "off", "why": "rank 3 left at step 7"})
        beat(push)
        for _ in range(4):
            beat(push)
        run.attempt()
        beat(push)
    assert said[:4] == [
        "rank 0 was not seen to move yet",
        "the run offers no controls",
        "",
        "control is off in the run: rank 3 left at step 7",
    ]
    assert said[-2] == "rank 0 has not moved for 75 s"
    assert said[-1] == "rank 0 was not seen to move yet"
    assert noted(run) == Asked(None, said[-1], 1)


CAPABILITY = {
    "id": "44444444-4444-4444-8444-444444444444",
    "name": "lr",
    "input_schema": {"revision": "1", "root": {"kind": "record", "renderer": "form"}},
    "safe_points": ["lht"],
}


def test_a_push_whose_server_is_gone_or_refuses_the_key_says_so(
    tmp_path: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, clock = WrittenRun(tmp_path), TurnedClock()

    def refuse(*given: Any, **more: Any) -> Any:
        raise errors.pop()

    with pushing(run.directory, client, clock=clock) as push:
        push_all(push)
        push.heartbeat(commands=True)
        monkeypatch.setattr(Client, "heartbeat", refuse)
        for status_, word in ((0, "not ready"), (401, "refuses the key")):
            errors = [ApiError("x", "no", status=status_)]
            run.add("hb", {"n": 1 + status_}, step=5)
            clock.turn(15.0)
            push.heartbeat(commands=True)
            found = noted(run)
            assert found is not None and word in found.why and not errors


# --- what people see ------------------------------------------------------------------------------


def shown(root: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    main(["--root", str(root), "status", "--json"])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_status_says_when_commands_were_asked_for_and_why_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "runs"
    with monkeypatch.context() as patched:
        # Sealed segments keep milliseconds, as the recorder writes them.
        patched.setattr(time, "time", lambda: 1_796_000_000.25)
        run = MadeRun(root).train()
    assert shown(root, capsys)["commands_why"] == "the run is on no server"

    place = find_place(run.path, run.run_id, SERVER, ORG, state_root=status.state_root())
    journal = open_journal(place, 1, run_id=run.run_id, origin=SERVER, org=ORG)
    Asking(TurnedClock()).note(place, 1, "rank 0 has ended: error", asked_at=1_796_000_000.0)
    document = shown(root, capsys)
    assert document["commands_asked_at"] == 1_796_000_000.0
    assert document["commands_why"] == "no syncer is at work on the run"

    lease = Lease(place, TurnedClock())
    epoch = lease.try_acquire()
    assert "has not asked yet" in shown(root, capsys)["commands_why"], "it was an earlier one"
    Asking(TurnedClock()).note(place, epoch or 0, "control is off in the run: rank 3 left")
    assert shown(root, capsys)["commands_why"] == "control is off in the run: rank 3 left"
    main(["--root", str(root), "status"])
    text = capsys.readouterr().out
    assert "COMMANDS ASKED" in text
    assert "ddp-run: commands: control is off in the run: rank 3 left" in text

    os.utime(place / f"lease.{epoch:08d}", (1e9, 1e9))
    assert "silent for" in shown(root, capsys)["commands_why"]

    for path in (run.path / "data").glob("*.jsonl"):
        seal(path)
    assert shown(root, capsys)["commands_why"] == status.ENDED
    main(["--root", str(root), "status"])
    assert "commands:" not in capsys.readouterr().out
    journal.close()
