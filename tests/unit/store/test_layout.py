"""Names in a run directory: each is read back as what it was, and strangers are left alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launchhelm.records import WriterId
from launchhelm.store import layout

WRITERS = st.builds(
    WriterId,
    st.integers(0, 10**6),
    st.integers(0, 10**4),
    st.integers(0, 2**32 - 1).map("{:08x}".format),
)


@given(WRITERS, st.integers(1, 10**7), st.booleans())
def test_a_segment_name_says_writer_number_and_state(
    writer: WriterId, number: int, sealed: bool
) -> None:
    name = layout.SegmentName(writer, number, sealed)
    assert layout.parse_segment(str(name)) == name


@given(WRITERS)
def test_a_writer_id_is_read_back(writer: WriterId) -> None:
    assert layout.parse_writer(str(writer)) == writer


@given(st.integers(0, 10**20 - 1), st.uuids().map(str), st.none() | WRITERS)
def test_a_command_file_says_order_id_and_who_took_it(
    order: int, command: str, writer: WriterId | None
) -> None:
    name = layout.CommandName(order, command, writer)
    assert layout.parse_command(str(name)) == name


def test_segment_names_sort_in_the_order_of_their_numbers() -> None:
    writer = WriterId(0, 1, "00000000")
    names = [str(layout.SegmentName(writer, number, True)) for number in (1, 2, 10, 99_999)]
    assert sorted(names) == names


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".r00000-a001-9f3a2c1d.00001.db.1234abcd",
        "r00000-a001-9f3a2c1d.00001.db-wal",
        "r00000-a001-9F3A2C1D.00001.db",
        "r00000-a001-9f3a2c1d.1.jsonl",
        "r00000-a001-9f3a2c1d.00001.jsonl\n",
        "notes.txt",
    ],
)
def test_other_names_in_data_are_not_ours(name: str) -> None:
    assert layout.parse_segment(name) is None


@pytest.mark.parametrize(
    "name",
    [
        "new.1.abc.json",
        "new.00000000000000000000.../../etc.json",
        "new.00000000000000000000.a.b.json",
        "got.00000000000000000000.abc.json",
        "new.00000000000000000000.abc.r00000-a001-9f3a2c1d.json",
        "new.00000000000000000000.abc.json.tmp",
    ],
)
def test_other_names_in_control_are_no_commands(name: str) -> None:
    assert layout.parse_command(name) is None


def test_attempt_names_are_numbers() -> None:
    assert layout.parse_attempt(layout.attempt_name(7)) == 7
    assert layout.parse_attempt(".00001.json.ab") is None
    assert layout.parse_attempt("one.json") is None


def test_the_root_does_not_follow_a_later_chdir(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    root = layout.default_root("./runs")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert root == tmp_path / "runs"


def test_hidden_names_are_never_the_same_twice() -> None:
    assert layout.hidden_name("run.json") != layout.hidden_name("run.json")
    assert layout.hidden_name("run.json").startswith(".run.json.")
