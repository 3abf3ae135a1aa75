"""A reader delivers every record of every writer once, whatever happens to the files meanwhile."""

from __future__ import annotations

import math
import os
import random
import shutil
import sqlite3
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from launchhelm.records import WriterId
from launchhelm.store import segment
from launchhelm.store.cursor import Cursor, Progress
from launchhelm.store.journal import lines_backwards, opened, whole_lines
from launchhelm.store.reader import PATIENCE_S, Reader
from tests.support.reading import FakeClock, RunBuilder, WriterBuilder, line_of, opening_of, tree


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def run(tmp_path: Path) -> RunBuilder:
    return RunBuilder(tmp_path)


def numbers(records: list) -> list[int]:
    return [record.seq for record in records]


def a_journal(writer: WriterBuilder, count: int = 20) -> bytes:
    """Write `count` records of several kinds and return the journal's bytes."""
    for step in range(count):
        if step % 5 == 4:
            writer.beat(step)
        else:
            writer.metrics(step, loss=1 / (step + 1), acc=step, word="naïve ☃")
    writer.flush()
    return writer.journal.read_bytes()


# --- plain reading --------------------------------------------------------------------------------


def test_records_come_back_as_they_were_written(run: RunBuilder) -> None:
    writer = run.writer()
    writer.record(
        "m",
        {
            "loss": math.nan,
            "up": math.inf,
            "down": -math.inf,
            "zero": -0.0,
            "n": 1 << 70,
            "s": "nan",
        },
        step=None,
        axes={"epoch": "3"},
    )
    writer.record("surprise", {"of": ["a", "newer", "version"]}, step=7)
    writer.flush()
    first, second = Reader(run.directory).poll()
    assert math.isnan(first.body["loss"])
    assert first.body["up"] == math.inf
    assert first.body["down"] == -math.inf
    assert math.copysign(1, first.body["zero"]) == -1
    assert first.body["n"] == 1 << 70
    assert first.body["s"] == "nan"
    assert (first.step, first.axes) == (None, {"epoch": "3"})
    assert (second.kind, second.body, second.step) == (
        "surprise",
        {"of": ["a", "newer", "version"]},
        7,
    )


def test_each_poll_brings_only_what_is_new(run: RunBuilder) -> None:
    writer, reader = run.writer(), Reader(run.directory)
    assert reader.poll() == []
    writer.metrics(0, loss=1.0)
    writer.flush()
    assert numbers(reader.poll()) == [0]
    assert reader.poll() == []
    writer.metrics(1, loss=1.0)
    writer.seal()
    writer.metrics(2, loss=1.0)
    writer.flush()
    assert numbers(reader.poll()) == [1, 2]
    assert reader.poll() == []


def test_a_sealed_segment_replaces_its_journal_in_the_middle(run: RunBuilder) -> None:
    writer, reader = run.writer(), Reader(run.directory)
    a_journal(writer, 10)
    assert numbers(reader.poll(limit=4)) == [0, 1, 2, 3]
    writer.seal()
    assert numbers(reader.poll()) == list(range(4, 10))


def test_a_journal_beside_its_sealed_segment_is_not_read_twice(run: RunBuilder) -> None:
    writer = run.writer()
    a_journal(writer, 10)
    copy = writer.journal.read_bytes()
    name = writer.journal
    writer.seal()
    name.write_bytes(copy)  # As after a kill between rename and unlink.
    assert numbers(Reader(run.directory).poll()) == list(range(10))


def test_a_record_that_stands_in_two_segments_is_delivered_once(run: RunBuilder) -> None:
    writer = run.writer()
    a_journal(writer, 6)
    # The handle was lost after an unacknowledged flush: everything from 4 on is written again.
    again = opening_of(writer.writer, 2, 4) + b"".join(
        line_of("m", seq, {"loss": 1.0}, step=seq) for seq in range(4, 9)
    )
    writer.number = 2
    writer.journal.write_bytes(again)
    reader = Reader(run.directory)
    assert numbers(reader.poll()) == list(range(9))
    assert reader.gaps == []


def test_unknown_names_are_ignored(run: RunBuilder) -> None:
    writer = run.writer()
    a_journal(writer, 3)
    for name in (".hidden.db.1a2b", "notes.txt", "r1-a1-x.jsonl", "r00000-a001-zz.00001.jsonl"):
        (writer.data / name).write_bytes(b"whatever")
    (writer.data / "folder").mkdir()
    reader = Reader(run.directory)
    assert numbers(reader.poll()) == [0, 1, 2]
    assert reader.problems == []


def test_a_missing_data_directory_is_waited_for(run: RunBuilder) -> None:
    reader = Reader(run.directory)
    os.rename(run.directory / "data", run.directory / "elsewhere")
    assert reader.poll() == []
    assert reader.problems == []
    os.rename(run.directory / "elsewhere", run.directory / "data")
    a_journal(run.writer(), 2)
    assert numbers(reader.poll()) == [0, 1]


def test_kinds_select_without_losing_count(run: RunBuilder) -> None:
    writer = run.writer()
    a_journal(writer, 10)
    writer.seal()
    a_journal(writer, 10)
    reader = Reader(run.directory, kinds={"hb"})
    assert numbers(reader.poll()) == [4, 9, 14, 19]
    assert reader.cursor.writers[writer.writer].wanted == 20
    assert reader.gaps == []


def test_ranks_select_writers(run: RunBuilder) -> None:
    for rank in range(3):
        a_journal(run.writer(rank), 2)
    assert {record.writer.rank for record in Reader(run.directory, ranks={1}).poll()} == {1}


def test_the_newest_attempt_comes_first_where_that_is_asked_for(run: RunBuilder) -> None:
    for attempt in (1, 2, 3):
        for rank in (1, 0):
            writer = run.writer(rank=rank, attempt=attempt)
            writer.metrics(0, loss=1.0)
            writer.metrics(1, loss=1.0)
            writer.flush()
    reader = Reader(run.directory, newest_first=True)

    order = []
    while batch := reader.poll(limit=1):
        order += [(record.writer.attempt, record.writer.rank, record.seq) for record in batch]

    assert order == [
        (attempt, rank, seq) for attempt in (3, 2, 1) for rank in (0, 1) for seq in (0, 1)
    ]


def test_a_limit_is_never_exceeded_and_nothing_is_skipped(run: RunBuilder) -> None:
    for rank in range(2):
        writer = run.writer(rank)
        a_journal(writer, 7)
        writer.seal()
        a_journal(writer, 4)
    reader, found = Reader(run.directory), []
    while batch := reader.poll(limit=3):
        assert len(batch) <= 3
        found += [(record.writer.rank, record.seq) for record in batch]
    assert found == [(rank, seq) for rank in range(2) for seq in range(11)]


def test_a_restarted_reader_goes_on_where_its_text_form_says(run: RunBuilder) -> None:
    writer = run.writer()
    a_journal(writer, 10)
    first = Reader(run.directory)
    assert len(first.poll(limit=6)) == 6
    text = first.cursor.text()
    writer.seal()
    a_journal(writer, 3)
    assert numbers(Reader(run.directory, Cursor.parse(text)).poll()) == list(range(6, 13))


def test_a_cursor_round_trips_and_refuses_what_is_none() -> None:
    cursor = Cursor({WriterId(3, 2, "0a1b2c3d"): Progress(17, 2, {3: 4096, 4: 0})})
    assert Cursor.parse(cursor.text()) == cursor
    assert Cursor.parse(Cursor().text()) == Cursor()
    for text in ("", "[]", "{}", '{"cursor":2,"writers":{}}', '{"cursor":1,"writers":{"x":{}}}'):
        with pytest.raises(ValueError):
            Cursor.parse(text)


def test_a_reader_leaves_the_given_cursor_alone(run: RunBuilder) -> None:
    a_journal(run.writer(), 3)
    cursor = Cursor()
    Reader(run.directory, cursor).poll()
    assert cursor == Cursor()


# --- gaps and holes -------------------------------------------------------------------------------


def test_numbers_that_a_writer_gave_up_are_a_gap_at_once(run: RunBuilder) -> None:
    writer, reader = run.writer(), Reader(run.directory)
    writer.metrics(0, loss=1.0)
    writer.seq = 6
    writer.record("gap", {"first": 1, "last": 5, "why": "buffer full"})
    writer.metrics(9, loss=1.0)
    writer.flush()
    assert numbers(reader.poll()) == [0, 6, 7]
    assert [(gap.first, gap.last, gap.why) for gap in reader.gaps] == [(1, 5, "buffer full")]


def test_a_given_up_gap_is_known_from_a_sealed_segment_too(run: RunBuilder) -> None:
    writer, reader = run.writer(), Reader(run.directory, kinds={"hb"})
    writer.metrics(0, loss=1.0)
    writer.seq = 6
    writer.record("gap", {"first": 1, "last": 5, "why": "buffer full"})
    writer.beat(9)
    writer.seal()
    assert numbers(reader.poll()) == [7]
    assert [(gap.first, gap.last) for gap in reader.gaps] == [(1, 5)]


def test_a_hole_is_waited_for_and_then_reported(run: RunBuilder, clock: FakeClock) -> None:
    writer, reader = run.writer(), Reader(run.directory, clock=clock)
    whole = a_journal(writer, 10)
    lines = whole.splitlines(keepends=True)
    lines[4] = lines[4].replace(b'"k"', b'"K"')  # Record 3.
    writer.journal.write_bytes(b"".join(lines))
    assert numbers(reader.poll()) == [0, 1, 2]
    clock.pass_s(PATIENCE_S - 1)
    assert reader.poll() == []
    assert reader.holes == {writer.writer: 3}
    clock.pass_s(1.5)
    assert numbers(reader.poll()) == list(range(4, 10))
    assert [(gap.first, gap.last) for gap in reader.gaps] == [(3, 3)]
    assert reader.holes == {}


def test_a_hole_that_closes_in_time_is_no_gap(run: RunBuilder, clock: FakeClock) -> None:
    writer, reader = run.writer(), Reader(run.directory, clock=clock)
    whole = a_journal(writer, 10)
    middle = len(whole) // 2
    # Another host sees the last page before the one in the middle.
    writer.journal.write_bytes(whole[:middle] + bytes(300) + whole[middle + 300 :])
    first = reader.poll()
    clock.pass_s(PATIENCE_S - 1)
    writer.journal.write_bytes(whole)
    assert numbers(first + reader.poll()) == list(range(10))
    assert reader.gaps == []


def test_garbage_that_hides_nothing_is_passed_at_once(run: RunBuilder) -> None:
    writer, reader = run.writer(), Reader(run.directory)
    lines = a_journal(writer, 10).splitlines(keepends=True)
    lines.insert(5, bytes(100) + b"\n")
    writer.journal.write_bytes(b"".join(lines))
    assert numbers(reader.poll()) == list(range(10))
    assert reader.gaps == []


def test_a_wall_clock_that_jumps_does_not_shorten_the_patience(
    run: RunBuilder, clock: FakeClock
) -> None:
    writer, reader = run.writer(), Reader(run.directory, clock=clock)
    lines = a_journal(writer, 5).splitlines(keepends=True)
    del lines[3]
    writer.journal.write_bytes(b"".join(lines))
    reader.poll()
    clock.wall_at += 3600
    assert reader.poll() == []
    assert reader.gaps == []


def test_a_missing_segment_is_waited_for(run: RunBuilder, clock: FakeClock) -> None:
    writer, reader = run.writer(), Reader(run.directory, clock=clock)
    a_journal(writer, 5)
    first = writer.rotate()
    a_journal(writer, 5)
    hidden = first.with_name(".not-listed-yet")
    first.rename(hidden)
    assert reader.poll() == []
    clock.pass_s(PATIENCE_S / 2)
    hidden.rename(first)
    assert numbers(reader.poll()) == list(range(10))


def test_a_torn_tail_is_never_an_error(run: RunBuilder, clock: FakeClock) -> None:
    writer, reader = run.writer(), Reader(run.directory, clock=clock)
    whole = a_journal(writer, 5)
    writer.journal.write_bytes(whole[:-20])
    assert numbers(reader.poll()) == [0, 1, 2, 3]
    clock.pass_s(10 * PATIENCE_S)
    assert reader.poll() == []
    assert (reader.gaps, reader.problems, reader.holes) == ([], [], {})
    writer.journal.write_bytes(whole)
    assert numbers(reader.poll()) == [4]


def test_a_torn_tail_of_a_lost_segment_is_found_in_the_next(run: RunBuilder) -> None:
    writer, reader = run.writer(), Reader(run.directory)
    whole = a_journal(writer, 5)
    writer.journal.write_bytes(whole[:-20])
    writer.number = 2
    writer.journal.write_bytes(
        opening_of(writer.writer, 2, 3)
        + b"".join(line_of("m", seq, {"x": 1}, step=seq) for seq in range(3, 7))
    )
    assert numbers(reader.poll()) == list(range(7))
    assert reader.cursor.writers[writer.writer].done == 1


def test_a_damaged_first_line_loses_no_record(run: RunBuilder) -> None:
    writer, reader = run.writer(), Reader(run.directory)
    whole = bytearray(a_journal(writer, 5))
    whole[30] ^= 1
    writer.journal.write_bytes(whole)
    assert numbers(reader.poll()) == list(range(5))


def test_a_run_of_nuls_larger_than_any_line_costs_only_what_it_covers(
    run: RunBuilder, clock: FakeClock
) -> None:
    writer, reader = run.writer(), Reader(run.directory, clock=clock)
    lines = a_journal(writer, 6).splitlines(keepends=True)
    lines[3] = bytes(6 << 20) + b"\n"
    writer.journal.write_bytes(b"".join(lines))
    found = reader.poll()
    clock.pass_s(0)
    reader.poll()
    clock.pass_s(PATIENCE_S + 1)
    assert numbers(found + reader.poll()) == [0, 1, 3, 4, 5]
    assert [(gap.first, gap.last) for gap in reader.gaps] == [(2, 2)]


# --- versions, damage, permissions ----------------------------------------------------------------


def test_a_journal_of_a_newer_format_is_skipped_and_said(run: RunBuilder) -> None:
    old, new = run.writer(0), run.writer(1)
    a_journal(old, 3)
    new.facts["fmt"] = 2
    new.journal.write_bytes(b"")
    a_journal(new, 3)
    before = tree(run.directory)
    reader = Reader(run.directory)
    assert {record.writer.rank for record in reader.poll()} == {0}
    assert any("format 2" in problem for problem in reader.problems)
    assert tree(run.directory) == before


def test_a_segment_of_a_newer_format_is_skipped_and_said(run: RunBuilder) -> None:
    writer = run.writer()
    a_journal(writer, 3)
    sealed = writer.seal()
    os.chmod(sealed, 0o640)
    with sqlite3.connect(sealed) as connection:
        connection.execute("PRAGMA user_version = 2")
    connection.close()
    reader = Reader(run.directory)
    assert reader.poll() == []
    assert any("newer" in problem for problem in reader.problems)


@pytest.mark.parametrize("keep", [0, 50, 100, 4096, 0.5, 0.99, -1])
def test_a_segment_that_was_copied_in_part_gives_no_wrong_row(
    run: RunBuilder, keep: float, clock: FakeClock
) -> None:
    writer = run.writer()
    expected = {
        (seq, record.kind, str(record.body))
        for seq, record in enumerate(_all_of(run, writer, 3000))
    }
    sealed = writer.seal()
    whole = sealed.read_bytes()
    size = int(len(whole) * keep) if isinstance(keep, float) else keep % len(whole)
    os.chmod(sealed, 0o640)
    sealed.write_bytes(whole[:size])
    reader = Reader(run.directory, clock=clock)
    found = {(record.seq, record.kind, str(record.body)) for record in reader.poll()}
    assert found <= expected
    assert reader.problems
    sealed.write_bytes(whole)
    found |= {(record.seq, record.kind, str(record.body)) for record in reader.poll()}
    assert found == expected
    assert reader.problems == []


def _all_of(run: RunBuilder, writer: WriterBuilder, count: int) -> list:
    for step in range(count):
        writer.metrics(step, loss=float(step), other=step)
    writer.flush()
    return Reader(run.directory).poll()


def test_a_torn_segment_is_read_from_its_journal_where_that_came_along(run: RunBuilder) -> None:
    writer = run.writer()
    whole = a_journal(writer, 10)
    journal = writer.journal
    sealed = writer.seal()
    os.chmod(sealed, 0o640)
    sealed.write_bytes(sealed.read_bytes()[:5000])
    journal.write_bytes(whole)
    assert numbers(Reader(run.directory).poll()) == list(range(10))


# --- any cut, any flip ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunBuilder, WriterBuilder, bytes]:
    run = RunBuilder(tmp_path_factory.mktemp("cuts"))
    writer = run.writer()
    return run, writer, a_journal(writer, 12)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_journal_cut_at_any_byte_gives_exactly_the_whole_lines_before(
    golden: tuple[RunBuilder, WriterBuilder, bytes], data: st.DataObject
) -> None:
    run, writer, whole = golden
    cut = data.draw(st.integers(0, len(whole)))
    writer.journal.write_bytes(whole[:cut])
    reader = Reader(run.directory)
    records = max(0, whole[:cut].count(b"\n") - 1)
    assert numbers(reader.poll()) == list(range(records))
    assert reader.gaps == []


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_one_flipped_bit_costs_one_line_and_never_gives_a_wrong_record(
    golden: tuple[RunBuilder, WriterBuilder, bytes], data: st.DataObject
) -> None:
    run, writer, whole = golden
    writer.journal.write_bytes(whole)
    right = {record.seq: record for record in Reader(run.directory).poll()}
    at = data.draw(st.integers(0, len(whole) - 1))
    damaged = bytearray(whole)
    damaged[at] ^= 1 << data.draw(st.integers(0, 7))
    writer.journal.write_bytes(damaged)
    clock = FakeClock()
    reader = Reader(run.directory, clock=clock)
    found = reader.poll()
    clock.pass_s(PATIENCE_S + 1)
    found += reader.poll()
    assert all(right[record.seq] == record for record in found)
    assert numbers(found) == sorted(set(numbers(found)))
    missing = set(right) - set(numbers(found))
    # A newline that is lost joins two lines; the last line may just be unfinished.
    assert len(missing) <= 2
    reported = {seq for gap in reader.gaps for seq in range(gap.first, gap.last + 1)}
    assert reported <= missing
    assert all(seq >= min(missing) and seq >= 10 for seq in missing - reported)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_run_of_nuls_anywhere_gives_no_wrong_record_and_keeps_all_others(
    golden: tuple[RunBuilder, WriterBuilder, bytes], data: st.DataObject
) -> None:
    run, writer, whole = golden
    first = data.draw(st.integers(0, len(whole) - 1))
    last = min(len(whole), first + data.draw(st.integers(1, 400)))
    writer.journal.write_bytes(whole[:first] + bytes(last - first) + whole[last:])
    starts = [0]
    for line in whole.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    # Lines are joined where a newline was lost; everything that does not touch the NULs stays.
    untouched = {
        index - 1
        for index in range(1, len(starts) - 1)
        if (starts[index + 1] <= first or starts[index] > last)
    }
    clock = FakeClock()
    reader = Reader(run.directory, clock=clock)
    found = reader.poll()
    clock.pass_s(PATIENCE_S + 1)
    found += reader.poll()
    assert untouched <= set(numbers(found))
    assert len(found) == len(set(numbers(found)))


# --- any interleaving -----------------------------------------------------------------------------


class Interleaving(RuleBasedStateMachine):
    """Two writers, one reader that restarts from its cursor: each record arrives once, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.run = RunBuilder(self.root)
        self.writers = [self.run.writer(rank) for rank in range(2)]
        self.unsealed: list[list[Path]] = [[], []]
        self.flushed = [0, 0]
        self.delivered: list[list[int]] = [[], []]
        self.reader = Reader(self.run.directory)

    def teardown(self) -> None:
        shutil.rmtree(self.root)

    @rule(rank=st.integers(0, 1), count=st.integers(1, 5))
    def append(self, rank: int, count: int) -> None:
        for _ in range(count):
            self.writers[rank].metrics(self.writers[rank].seq, loss=1.0)

    @rule(rank=st.integers(0, 1))
    def flush(self, rank: int) -> None:
        self.writers[rank].flush()
        self.flushed[rank] = self.writers[rank].seq

    @precondition(lambda self: any(w.journal.exists() for w in self.writers))
    @rule(rank=st.integers(0, 1))
    def rotate(self, rank: int) -> None:
        if self.writers[rank].seq > self.writers[rank]._segment_first:
            self.unsealed[rank].append(self.writers[rank].rotate())
            self.flushed[rank] = self.writers[rank].seq

    @rule(rank=st.integers(0, 1))
    def seal(self, rank: int) -> None:
        if self.unsealed[rank]:
            segment.seal(self.unsealed[rank].pop(0))

    @rule(limit=st.one_of(st.none(), st.integers(1, 4)))
    def poll(self, limit: int | None) -> None:
        for record in self.reader.poll(limit=limit):
            self.delivered[record.writer.rank].append(record.seq)

    @rule()
    def restart(self) -> None:
        self.reader = Reader(self.run.directory, Cursor.parse(self.reader.cursor.text()))

    @invariant()
    def each_once_in_order(self) -> None:
        for rank, seqs in enumerate(self.delivered):
            assert seqs == list(range(len(seqs)))
            assert len(seqs) <= self.flushed[rank]

    @invariant()
    def everything_flushed_can_be_read(self) -> None:
        fresh = Reader(self.run.directory, Cursor.parse(self.reader.cursor.text())).poll()
        for rank, seqs in enumerate(self.delivered):
            rest = [record.seq for record in fresh if record.writer.rank == rank]
            assert seqs + rest == list(range(self.flushed[rank]))


TestInterleaving = Interleaving.TestCase
TestInterleaving.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)


def test_a_journal_sealed_between_listing_and_opening_is_read_from_its_segment(
    run: RunBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = run.writer()
    a_journal(writer, 10)
    reader = Reader(run.directory)
    listed = reader._list

    def seal_after_listing() -> object:
        listing = listed()
        if writer.number == 1:
            writer.seal()
        return listing

    monkeypatch.setattr(reader, "_list", seal_after_listing)
    assert numbers(reader.poll()) == list(range(10))


# --- lines ----------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    lines=st.lists(st.binary(max_size=80).map(lambda b: b.replace(b"\n", b" ")), max_size=40),
    tail=st.binary(max_size=30).map(lambda b: b.replace(b"\n", b" ")),
    chunk=st.integers(1, 64),
)
def test_lines_read_backwards_are_the_lines_read_forwards(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], tail: bytes, chunk: int
) -> None:
    path = tmp_path_factory.mktemp("lines") / "file"
    path.write_bytes(b"".join(line + b"\n" for line in lines) + tail)
    with opened(path) as (descriptor, size):
        forwards = [line for _, _, line in whole_lines(descriptor, 0, size)]
        backwards = list(lines_backwards(descriptor, size, chunk_bytes=chunk))
    assert forwards == lines
    assert backwards == lines[::-1]


def test_many_writers_in_random_order_come_per_writer_in_order(run: RunBuilder) -> None:
    writers = [run.writer(rank, attempt=attempt) for rank in range(4) for attempt in (1, 2)]
    chance = random.Random(7)
    reader, found = Reader(run.directory), []
    for _ in range(200):
        writer = chance.choice(writers)
        writer.metrics(writer.seq, loss=1.0)
        action = chance.random()
        if action < 0.3:
            writer.flush()
        elif action < 0.35:
            writer.seal()
        elif action < 0.5:
            found += reader.poll()
    for writer in writers:
        writer.flush()
    found += reader.poll()
    for writer in writers:
        seqs = [record.seq for record in found if record.writer == writer.writer]
        assert seqs == list(range(writer.seq))
