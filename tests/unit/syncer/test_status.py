"""What files alone tell about syncing."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from launchhelm.store.reader import Reader
from launchhelm.store.segment import seal
from syncer import status
from syncer.intake import Restriction
from syncer.lease import Lease
from syncer.state import Journal, find_place, open_journal
from tests.support.cli_runs import MadeRun
from tests.support.runs import TurnedClock

SERVER = "https://lan.example"
ORG = "11111111-1111-4111-8111-111111111111"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MadeRun:
    monkeypatch.setenv("LAUNCHHELM_STATE_DIR", str(tmp_path / "state"))
    with monkeypatch.context() as patched:
        # Sealed segments keep milliseconds, as the recorder writes them.
        patched.setattr(time, "time", lambda: 1_796_000_000.25)
        return MadeRun(tmp_path / "runs", ranks=2).train()


def record_count(run: MadeRun) -> int:
    return sum(journal._next for journal in run.journals)


def opened(run: MadeRun, server: str = SERVER, epoch: int = 1) -> Journal:
    place = find_place(run.path, run.run_id, server, ORG, state_root=status.state_root())
    return open_journal(place, epoch, run_id=run.run_id, origin=server, org=ORG)


def dealt_with(run: MadeRun, journal: Journal) -> None:
    """Note that everything the run has now is on the server."""
    reader = Reader(run.path)
    reader.poll()
    journal.write({"cursors": {status.EVERYTHING: reader.cursor.text()}, "at": 1_796_000_000.0})


def test_of_a_run_that_was_never_synced_everything_is_pending(run: MadeRun) -> None:
    assert status.remembered(run.path, run.run_id) == []
    assert status.pending_count(run.path, None) == record_count(run)


def test_what_is_pending_is_counted_per_server(run: MadeRun) -> None:
    dealt_with(run, opened(run))
    opened(run, "https://other.example").close()
    run.journals[0].beat(401, counter=2)
    run.journals[1].beat(401, counter=2)

    known = status.remembered(run.path, run.run_id)

    assert [it.server for it in known] == [SERVER, "https://other.example"]
    assert status.pending_count(run.path, known[0]) == 2
    assert status.pending_count(run.path, known[1]) == record_count(run)
    assert known[0].state.at == 1_796_000_000.0 and known[0].organization == ORG


def test_the_end_of_a_writer_is_the_same_sealed_and_unsealed(run: MadeRun) -> None:
    before = status.ends(run.path)
    assert sum(before.values()) == record_count(run)
    for journal in sorted((run.path / "data").glob("*.jsonl")):
        seal(journal)
    assert status.ends(run.path) == before


def test_a_torn_last_line_does_not_count(run: MadeRun) -> None:
    before = status.ends(run.path)
    with next((run.path / "data").glob("r00000-*.jsonl")).open("ab") as file:
        file.write(b'{"c":"00000000","q":99,"k":"m"')
    assert status.ends(run.path) == before


def test_the_state_of_one_server_is_found(run: MadeRun) -> None:
    dealt_with(run, opened(run))
    opened(run, "https://other.example").close()

    for organization in ("", ORG, ORG.upper()):
        found = status.of_server(run.path, run.run_id, SERVER, organization)
        assert found is not None and found.server == SERVER
        assert status.pending_count(run.path, found) == 0
    assert status.of_server(run.path, run.run_id, "https://x.example") is None
    assert status.of_server(run.path, run.run_id, SERVER, run.run_id) is None


def test_passes_without_a_restriction_have_the_cursor_that_is_counted_by() -> None:
    assert Restriction().cursor == status.EVERYTHING


def test_state_in_the_users_own_directory_is_found(run: MadeRun) -> None:
    place = status.state_root() / run.run_id / "0123456789abcdef"
    place.mkdir(parents=True)
    open_journal(place, 1, run_id=run.run_id, origin=SERVER, org=ORG).close()
    assert [it.directory for it in status.remembered(run.path, run.run_id)] == [place]


def test_a_damaged_state_is_said_and_counts_nothing_as_sent(run: MadeRun) -> None:
    journal = opened(run)
    dealt_with(run, journal)
    file = journal.directory / journal.name
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)

    (known,) = status.remembered(run.path, run.run_id)

    assert "damaged" in known.doubt
    assert status.pending_count(run.path, known) == record_count(run)


def test_nothing_new_is_told_without_opening_a_file(run: MadeRun) -> None:
    for journal in sorted((run.path / "data").glob("r00001-*.jsonl")):
        seal(journal)
    dealt_with(run, opened(run))
    (known,) = status.remembered(run.path, run.run_id)

    assert status.has_nothing_new(run.path, known)
    run.journals[0].beat(401, counter=2)
    assert not status.has_nothing_new(run.path, known)


def test_a_new_writer_is_something_new(run: MadeRun) -> None:
    dealt_with(run, opened(run))
    (known,) = status.remembered(run.path, run.run_id)
    (run.path / "data" / "r00000-a002-00000009.00001.jsonl").touch()
    assert not status.has_nothing_new(run.path, known)


def test_the_holder_is_named_while_it_holds(run: MadeRun) -> None:
    place = opened(run).directory
    assert status.holder(place) is None
    lease = Lease(place, TurnedClock())
    lease.try_acquire()
    held = status.holder(place)
    assert held is not None and "process" in held.text and "silent" not in held.text
    lease.release()
    assert status.holder(place) is None


def test_reading_changes_nothing(run: MadeRun) -> None:
    dealt_with(run, opened(run))
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    for known in status.remembered(run.path, run.run_id):
        status.pending_count(run.path, known)
        status.holder(known.directory)
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before
