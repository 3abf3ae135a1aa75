"""Sealed segments say exactly what their journals said, or the journal stays."""

from __future__ import annotations

import errno
import os
import random
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launchhelm.errors import StorageError
from launchhelm.records import Record
from launchhelm.store import segment as module
from launchhelm.store.connection import open_sealed
from launchhelm.store.segment import seal, sealed_points, sealed_records
from launchhelm.store.sums import altered
from launchhelm.store.writer import JournalWriter
from tests.support.storage import OPENING, WRITER, FaultyOs, journal_records

VALUES = st.one_of(
    st.booleans(),
    st.integers(-(2**200), 2**200),
    st.floats(),
    st.text(st.characters(codec="utf-8")),
    st.sampled_from(["nan", "NaN", "-Infinity", -0.0, 0.0, 0, False, 2**63, -(2**63), 1.0, 1]),
)
STEPS = st.none() | st.integers(-(2**70), 2**70)
AXES = st.none() | st.dictionaries(st.sampled_from(["epoch", "micro_step"]), st.text("0123."))
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)
RECORDS = st.lists(
    st.one_of(
        st.tuples(st.just("m"), st.dictionaries(NAMES, VALUES, max_size=5), STEPS, AXES),
        st.tuples(st.just("m"), st.fixed_dictionaries({"a": VALUES, "b": VALUES}), STEPS, AXES),
        st.tuples(st.just("sys"), st.fixed_dictionaries({"gpu": VALUES}), STEPS, AXES),
        st.tuples(st.just("oc"), st.fixed_dictionaries({"cmd": NAMES}), STEPS, AXES),
        st.tuples(st.just("x-new"), st.just({"deep": [1, {"a": None}]}), STEPS, AXES),
    ),
    min_size=1,
    max_size=30,
)


def a_journal(run: Path, fill: Callable[[JournalWriter], object]) -> Path:
    """Write a complete journal and return its path."""
    (run / "data").mkdir(exist_ok=True)
    writer = JournalWriter(run / "data", WRITER, OPENING)
    fill(writer)
    writer.flush()
    path = writer.rotate()
    assert path is not None
    return path


def training(writer: JournalWriter, count: int = 2000) -> None:
    chance = random.Random(7)
    for step in range(count):
        writer.append("m", {"train/loss": chance.random(), "lr": chance.random()}, step=step)
    writer.append("ev", {"type": "message", "text": "done"}, step=count)


def said(records: list[Record]) -> list[str]:
    """Everything that records say; the order of names within a body is free."""
    return [
        repr((record.writer, record.seq, record.kind, record.at, record.step, record.axes))
        + repr(sorted(record.body.items(), key=lambda item: item[0]))
        for record in records
    ]


@given(RECORDS, st.integers(0, 5))
def test_a_sealed_segment_says_what_its_journal_said(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any], skipped: int
) -> None:
    def fill(writer: JournalWriter) -> None:
        for index, (kind, body, step, axes) in enumerate(rows):
            if index == 1 and skipped:
                writer.skip(skipped)
            writer.append(kind, body, step=step, axes=axes)

    journal = a_journal(tmp_path_factory.mktemp("run"), fill)
    before = said(journal_records(journal))
    sealed = seal(journal)
    assert said(list(sealed_records(sealed))) == before
    assert altered(sealed) == []
    assert not journal.exists()


def test_names_of_a_record_keep_their_order(tmp_path: Path) -> None:
    journal = a_journal(tmp_path, lambda w: w.append("m", {"z": 1.0, "a": 2.0, "m": 3.0}))
    (record,) = sealed_records(seal(journal))
    assert list(record.body) == ["z", "a", "m"]


def test_records_can_be_read_from_a_number_on_and_by_kind(tmp_path: Path) -> None:
    sealed = seal(a_journal(tmp_path, training))
    assert [record.seq for record in sealed_records(sealed, from_seq=1998)] == [1998, 1999, 2000]
    (event,) = sealed_records(sealed, kinds={"ev"})
    assert (event.seq, event.body["text"]) == (2000, "done")
    assert len(list(sealed_records(sealed, kinds=["m"]))) == 2000


@pytest.mark.parametrize("values", [1, 7, 40])
@pytest.mark.parametrize("records", [1, 3, 1000])
def test_records_are_the_same_however_many_fit_into_memory_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: int, records: int
) -> None:
    def fill(writer: JournalWriter) -> None:
        for step in range(120):
            is_dense = 40 <= step < 80 or step % 30 == 0
            names = [f"m/{number}" for number in range(12)] if is_dense else [f"m/{step % 12}"]
            writer.append("m", dict.fromkeys(names, step + 0.5), step=step)
            if step % 9 == 0:
                writer.append("ev", {"type": "message", "text": "between"}, step=step)

    journal = a_journal(tmp_path, fill)
    before = said(journal_records(journal))
    sealed = seal(journal)
    monkeypatch.setattr(module, "_VALUES_AT_ONCE", values)
    monkeypatch.setattr(module, "_RECORDS_AT_ONCE", records)

    assert said(list(sealed_records(sealed))) == before
    assert said(list(sealed_records(sealed, from_seq=37))) == before[37:]
    assert said(list(sealed_records(sealed, from_seq=37, limit=5))) == before[37:42]


def test_points_of_one_metric_are_read_alone_within_steps(tmp_path: Path) -> None:
    def fill(writer: JournalWriter) -> None:
        training(writer)
        writer.append("m", {"lr": float("nan")}, step=2**70, axes={"epoch": "1"})
        writer.append("m", {"lr": "high"}, step=None)

    sealed = seal(a_journal(tmp_path, fill))
    points = list(sealed_points(sealed, "lr"))
    assert [point[0] for point in points] == [*range(2000), 2001, 2002]
    assert repr(points[-2][1:4:2]) == f"({2**70}, nan)"
    assert points[-2][4] == '{"epoch":"1"}'
    assert points[-1][1] is None
    assert points[-1][3] == "high"
    within = list(sealed_points(sealed, "lr", step_from=10, step_to=12))
    assert [point[1] for point in within] == [10, 11, 12]
    late = list(sealed_points(sealed, "lr", step_from=1999))
    assert [point[1] for point in late] == [1999, 2**70]
    assert list(sealed_points(sealed, "nothing")) == []


def test_the_views_are_for_people(tmp_path: Path) -> None:
    def fill(writer: JournalWriter) -> None:
        writer.skip(1000)
        writer.append("m", {"loss": 0.5}, step=3, at=1.25)
        writer.append("oc", {"cmd": "a"}, step=4, at=2.5)

    connection = sqlite3.connect(seal(a_journal(tmp_path, fill)))
    assert connection.execute("SELECT * FROM metric").fetchall() == [(1000, "loss", 3, 1.25, 0.5)]
    assert connection.execute("SELECT * FROM event").fetchall() == [
        (1001, "oc", 4, 2.5, '{"cmd":"a"}')
    ]
    connection.close()


def test_a_segment_is_an_ordinary_rollback_database_without_companions(tmp_path: Path) -> None:
    sealed = seal(a_journal(tmp_path, training))
    assert stat.S_IMODE(sealed.stat().st_mode) == 0o440
    head = sealed.read_bytes()[:100]
    assert head[18:20] == b"\x01\x01", "a WAL database"
    connection = open_sealed(sealed)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    list(sealed_records(sealed))
    connection.close()
    assert list(sealed.parent.iterdir()) == [sealed]


def test_a_sealed_segment_cannot_be_written_through_our_door(tmp_path: Path) -> None:
    connection = open_sealed(seal(a_journal(tmp_path, training)))
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        connection.execute("DELETE FROM point")
    connection.close()


def test_blocks_sum_up_256_points_each(tmp_path: Path) -> None:
    def fill(writer: JournalWriter) -> None:
        for step in range(600):
            value: Any = float("nan") if step % 100 == 50 else float(step)
            writer.append("m", {"loss": value, "word": "x"}, step=step)

    connection = open_sealed(seal(a_journal(tmp_path, fill)))
    rows = connection.execute(
        "SELECT first_step, last_step, n, sum, min, max, first, last, odd FROM block "
        "JOIN series ON series.id = block.series WHERE name = ? ORDER BY first_seq",
        ("loss",),
    ).fetchall()
    words = connection.execute(
        "SELECT n, sum, odd FROM block JOIN series ON id = series WHERE name = 'word'"
    ).fetchall()
    connection.close()
    assert [(row[0], row[1], row[2], row[8]) for row in rows] == [
        (0, 255, 256, 3),
        (256, 511, 256, 2),
        (512, 599, 88, 1),
    ]
    expected = [step for step in range(256) if step % 100 != 50]
    assert rows[0][3:8] == (sum(expected), 0.0, 255.0, 0.0, 255.0)
    assert words == [(256, None, 256), (256, None, 256), (88, None, 88)]


def test_a_point_takes_at_most_twenty_bytes_from_ten_metrics_a_record(tmp_path: Path) -> None:
    chance = random.Random(1)
    count = 20_000

    def fill(writer: JournalWriter) -> None:
        for step in range(count):
            values = {f"train/loss{number}": chance.random() for number in range(10)}
            writer.append("m", values, step=step, at=1.7e9 + step * 0.05)

    journal = a_journal(tmp_path, fill)
    assert journal.stat().st_size / count / 10 <= 55
    assert seal(journal).stat().st_size / count / 10 <= 20


def test_thousands_of_different_sets_of_names_are_sealed(tmp_path: Path) -> None:
    chance = random.Random(3)
    names = [f"metric/{number}" for number in range(2000)]

    def fill(writer: JournalWriter) -> None:
        for step in range(1500):
            body = {name: chance.random() for name in chance.sample(names, 5)}
            writer.append("m", body, step=step)

    journal = a_journal(tmp_path, fill)
    before = said(journal_records(journal))
    assert said(list(sealed_records(seal(journal)))) == before


@pytest.mark.parametrize("call", ["open", "write", "fchmod", "fsync", "rename"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.ESTALE])
def test_a_seal_that_fails_leaves_the_journal_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    journal = a_journal(tmp_path, training)
    before = journal.read_bytes()
    faulty = FaultyOs()
    faulty.fail(call, number)
    monkeypatch.setattr(module, "os", faulty)
    with pytest.raises(OSError, match=os.strerror(number)):
        seal(journal)
    assert journal.read_bytes() == before
    assert list(journal.parent.iterdir()) == [journal]
    assert seal(journal).exists()


def test_a_segment_that_was_not_written_as_meant_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = a_journal(tmp_path, training)
    image = module._image

    def one_other_value(*arguments: Any, **options: Any) -> bytes:
        connection = sqlite3.connect(":memory:")
        connection.deserialize(image(*arguments, **options))
        connection.execute("UPDATE point SET value = 0 WHERE id = (1 << 20) + 700")
        connection.commit()
        return connection.serialize()

    monkeypatch.setattr(module, "_image", one_other_value)
    with pytest.raises(StorageError, match="differs from its journal"):
        seal(journal)
    assert list(journal.parent.iterdir()) == [journal]


@pytest.mark.parametrize("where", [0, 40, 5_000, -1])
def test_a_damaged_journal_is_not_sealed(tmp_path: Path, where: int) -> None:
    journal = a_journal(tmp_path, training)
    data = bytearray(journal.read_bytes())
    data[where] ^= 1
    journal.write_bytes(data)
    with pytest.raises(StorageError):
        seal(journal)
    assert list(journal.parent.iterdir()) == [journal]


def test_a_journal_without_records_is_not_sealed(tmp_path: Path) -> None:
    journal = a_journal(tmp_path, lambda writer: None)
    with pytest.raises(StorageError, match="holds no record"):
        seal(journal)
    assert journal.exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:100],
        lambda data: data[: len(data) // 2],
        lambda data: b"\0" * len(data),
        lambda data: data[:4096] + b"\xff" * 8192 + data[12288:],
        lambda data: b"not a database",
    ],
)
def test_a_damaged_segment_is_a_storage_error_and_left_as_it_is(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    sealed = seal(a_journal(tmp_path, training))
    data = damage(sealed.read_bytes())
    sealed.chmod(0o640)
    sealed.write_bytes(data)
    with pytest.raises(StorageError, match=sealed.name):
        list(sealed_records(sealed))
    assert sealed.read_bytes() == data


def test_a_segment_of_a_newer_format_is_named(tmp_path: Path) -> None:
    sealed = seal(a_journal(tmp_path, training))
    sealed.chmod(0o640)
    connection = sqlite3.connect(sealed)
    connection.execute("PRAGMA user_version = 2")
    connection.close()
    with pytest.raises(StorageError, match="format 2, newer than 1"):
        open_sealed(sealed)


def test_a_segment_that_is_gone_is_an_ordinary_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_sealed(tmp_path / f"{WRITER}.00001.db")
    assert list(tmp_path.iterdir()) == []


def test_a_path_with_any_character_can_be_opened(tmp_path: Path) -> None:
    run = tmp_path / "a b?mode=rw&x=%41#é"
    run.mkdir()
    sealed = seal(a_journal(run, training))
    assert len(list(sealed_records(sealed))) == 2001
