"""What the syncer remembers: durable before it counts, believed only when it is whole and ours."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from launchhelm.store.line import open_line
from syncer import state as module
from syncer.state import (
    Aside,
    Flight,
    Journal,
    State,
    find_place,
    open_journal,
    read_acked,
    server_hex,
    state_name,
    write_acked,
)

FLIGHT = Flight(0, 10, 19, 0, 10, "3", "b-1", "d1")


def opened(directory: Path, epoch: int, **identity: str) -> Journal:
    given = {"run_id": "r", "origin": "http://127.0.0.1:1", "org": "o", **identity}
    return open_journal(directory, epoch, **given)


def filled(directory: Path) -> Journal:
    """Return the journal of a holder that has been at work."""
    journal = opened(directory, 1)
    journal.write({"run": "R", "project": "P", "next": "t"})
    journal.write({"token": "t", "next": ""})
    journal.write(
        {
            "streams": [["w number - step loss", "s-0", "1"], ["w number - step lr", "", ""]],
            "participants": {"w": "p-0"},
            "epochs": {"w": "3"},
            "fly": [FLIGHT.wire()],
        }
    )
    journal.write({"fly": [[1, 5, 6, 0, 2, "3", "b-2", "d2"]], "cursors": {"": "text"}})
    journal.later({"ack": ["b-2"], "at": 12.5})
    journal.write({"aside": [[1, 9, 100, "too large"]], "cover": [[1, 9, 9]], "error": "none"})
    return journal


def test_a_successor_knows_all_that_was_durable(tmp_path: Path) -> None:
    before = filled(tmp_path)
    after = opened(tmp_path, 2)
    assert after.state == before.state
    assert after.doubt == ""
    state = after.state
    assert state.flights == {"b-1": FLIGHT}
    assert [list(stream.coverage) for stream in state.streams] == [[], [(0, 6), (9, 9)]]
    assert state.aside == [Aside("w number - step lr", 9, 100, "too large")]
    assert (state.points, state.aside_count, state.token, state.at) == (2, 1, "t", 12.5)


def test_what_waited_for_the_next_write_may_be_lost_and_nothing_else(tmp_path: Path) -> None:
    journal = filled(tmp_path)
    journal.later({"ack": ["b-1"]})
    assert not journal.state.flights
    assert opened(tmp_path, 2).state.flights == {"b-1": FLIGHT}
    journal.flush()
    # The successor's file counts, whatever the holder before writes.
    assert opened(tmp_path, 3).state.flights == {"b-1": FLIGHT}


def test_files_that_were_replaced_are_removed(tmp_path: Path) -> None:
    filled(tmp_path)
    opened(tmp_path, 4)
    assert os.listdir(tmp_path) == [state_name(4, 1)]


@pytest.mark.parametrize("cut", [1, 7, 40])
def test_a_torn_last_line_was_never_acted_on(tmp_path: Path, cut: int) -> None:
    journal = filled(tmp_path)
    whole = opened_copy(journal)
    journal.write({"token": "newer"})
    path = tmp_path / journal.name
    os.truncate(path, path.stat().st_size - cut)
    after = opened(tmp_path, 2)
    assert after.state == whole and after.doubt == ""


def opened_copy(journal: Journal) -> State:
    copy = State()
    for change in journal.state.snapshot():
        copy.apply(change)
    return copy


def test_a_bad_line_in_the_middle_makes_all_of_it_unknown(tmp_path: Path) -> None:
    journal = filled(tmp_path)
    path = tmp_path / journal.name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    after = opened(tmp_path, 2)
    assert "damaged" in after.doubt and after.state == State()


def test_a_file_that_ends_within_its_snapshot_is_unknown(tmp_path: Path) -> None:
    filled(tmp_path)
    path = tmp_path / opened(tmp_path, 2).name
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:3]))
    assert "damaged" in opened(tmp_path, 3).doubt


def test_a_copy_is_known_as_one(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    before = filled(tmp_path / "first")
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    after = opened(tmp_path / "second", 2)
    assert after.doubt == "the directory is a copy" and after.state == before.state
    os.rename(tmp_path / "first", tmp_path / "moved")
    assert opened(tmp_path / "moved", 2).doubt == ""


@pytest.mark.parametrize("other", [{"run_id": "q"}, {"origin": "http://127.0.0.1:2"}, {"org": "p"}])
def test_a_state_of_another_run_or_server_is_not_ours(
    tmp_path: Path, other: dict[str, str]
) -> None:
    filled(tmp_path)
    assert opened(tmp_path, 2, **other).state == State()


def test_another_run_document_makes_all_of_the_one_before_void(tmp_path: Path) -> None:
    journal = filled(tmp_path)
    journal.write({"run": "other"})
    state = journal.state
    assert (state.run, state.streams, state.flights, state.token) == ("other", [], {}, "")
    assert opened(tmp_path, 2).state == state


def test_a_failed_write_changes_nothing_and_the_next_one_goes_over_its_remains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = filled(tmp_path)
    before = opened_copy(journal)

    def half(descriptor: int, data: bytes, offset: int) -> None:
        os.pwrite(descriptor, data[: len(data) // 2], offset)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module, "_write_at", half)
        with pytest.raises(OSError):
            journal.write({"error": "x" * 500})
    assert journal.state == before
    journal.write({"error": "short"})
    for line in (tmp_path / journal.name).read_bytes().splitlines():
        assert open_line(line) is not None
    after = opened(tmp_path, 2)
    assert after.state.error == "short" and not after.doubt


def test_a_file_that_is_mostly_history_is_replaced_by_a_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COMPACT_BYTES", 4000)
    journal = filled(tmp_path)
    for number in range(200):
        journal.write({"error": f"{number} " + "x" * 100})
        assert len(os.listdir(tmp_path)) == 1
    assert journal.name == os.listdir(tmp_path)[0] != state_name(1, 1)
    assert (tmp_path / journal.name).stat().st_size < 20_000
    assert opened(tmp_path, 2).state == journal.state


def test_the_state_is_in_the_run_or_where_the_user_can_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, root = tmp_path / "run", tmp_path / "home"
    run.mkdir()
    name = server_hex("http://127.0.0.1:1", "o")

    def place() -> Path:
        return find_place(run, "r", "http://127.0.0.1:1", "o", state_root=root)

    assert place() == run / "sync" / name
    really = os.open

    def read_only(path: Any, *arguments: Any, **options: Any) -> int:
        if str(path).startswith(str(run)):
            raise PermissionError(13, "Permission denied")
        return really(path, *arguments, **options)

    monkeypatch.setattr(os, "open", read_only)
    assert place() == root / "r" / name
    assert (root / "r" / name).is_dir()


def test_acked_json_is_whole_or_not_there(tmp_path: Path) -> None:
    assert read_acked(tmp_path) is None
    write_acked(tmp_path, {"points": 3})
    assert read_acked(tmp_path) == {"points": 3}
    write_acked(tmp_path / "missing", {"points": 3})


def test_what_no_server_takes_is_remembered_before_and_after_the_first_run_document() -> None:
    state = State()
    state.apply({"streams": [["a stream", "", ""]], "aside": [[0, 3, 600_000, "too large"]]})
    state.apply({"aside": [[0, 3, 600_000, "too large"]]})
    state.apply({"run": "r1"})
    assert [(it.key, it.seq) for it in state.aside] == [("a stream", 3)]
    assert state.aside_count == 1
    state.apply({"run": "r2"})
    assert (state.aside, state.aside_count) == ([], 0)
