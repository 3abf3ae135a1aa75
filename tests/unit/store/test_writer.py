"""The journal of one writer: numbers without holes, the same bytes again after any failure."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launchhelm.records import Record
from launchhelm.store import body as body_module
from launchhelm.store import writer as module
from launchhelm.store.line import MAX_LINE_BYTES
from launchhelm.store.writer import JournalWriter
from tests.support.storage import OPENING, WRITER, FaultyOs, good_lines, journal_records


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> FaultyOs:
    """What the writer sees as the os module."""
    faulty = FaultyOs()
    monkeypatch.setattr(module, "os", faulty)
    return faulty


def a_writer(run: Path, **options: Any) -> JournalWriter:
    (run / "data").mkdir(exist_ok=True)
    return JournalWriter(run / "data", WRITER, OPENING, **options)


def journals(run: Path) -> list[Path]:
    return sorted((run / "data").glob("*.jsonl"))


def written(run: Path) -> list[Record]:
    """Return the records of all journals, each number once."""
    found = {record.seq: record for path in journals(run) for record in journal_records(path)}
    return [found[seq] for seq in sorted(found)]


def test_a_segment_opens_with_who_writes_it(tmp_path: Path) -> None:
    writer = a_writer(tmp_path)
    writer.flush()
    (path,) = journals(tmp_path)
    assert path.name == "r00000-a001-0123abcd.00001.jsonl"
    (opening,) = good_lines(path.read_bytes())
    assert opening["k"] == "open"
    assert "q" not in opening
    expected = {"fmt": 1, "w": str(WRITER), "n": 1, "q0": 0, **OPENING}
    assert {name: opening[name] for name in expected} == expected


def test_journals_can_be_read_by_the_group_only(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        a_writer(tmp_path).flush()
    finally:
        os.umask(before)
    assert stat.S_IMODE(journals(tmp_path)[0].stat().st_mode) == 0o640


def test_the_descriptor_is_not_inherited(tmp_path: Path) -> None:
    writer = a_writer(tmp_path)
    writer.flush()
    assert not os.get_inheritable(writer._descriptor)


def test_nothing_is_on_disk_before_a_flush(tmp_path: Path) -> None:
    writer = a_writer(tmp_path)
    writer.flush()
    writer.append("m", {"loss": 1.0}, step=1)
    assert written(tmp_path) == []
    writer.flush()
    assert [record.step for record in written(tmp_path)] == [1]


def test_a_flush_is_one_write_and_one_sync(tmp_path: Path, faulty: FaultyOs) -> None:
    writer = a_writer(tmp_path)
    writer.flush()
    faulty.calls.clear()
    for step in range(500):
        writer.append("m", {"loss": 1.0}, step=step)
    writer.flush()
    writer.flush()
    assert faulty.calls == {"pwrite": 1, "fsync": 1}


def test_every_field_of_a_record_comes_back(tmp_path: Path) -> None:
    writer = a_writer(tmp_path)
    writer.append("m", {"a b": -0.0}, step=2**70, axes={"epoch": "0.5", "x": "1"}, at=12.3456)
    writer.append("ev", {"type": "message", "text": "naïve\n🚀"}, step=None)
    writer.flush()
    one, two = written(tmp_path)
    assert (one.seq, one.kind, one.step, one.at) == (0, "m", 2**70, 12.346)
    assert list(one.axes.items()) == [("epoch", "0.5"), ("x", "1")]
    assert str(one.body["a b"]) == "-0.0"
    assert (two.seq, two.step, two.body["text"]) == (1, None, "naïve\n🚀")


@pytest.mark.parametrize("at", [float("nan"), float("inf"), -1e300])
def test_a_time_without_sense_becomes_now(tmp_path: Path, at: float) -> None:
    writer = a_writer(tmp_path)
    writer.append("m", {"loss": 1.0}, at=at)
    writer.flush()
    assert written(tmp_path)[0].at > 1.6e9


def test_values_are_the_same_with_and_without_the_faster_encoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {
        "a": 0.1,
        "b": -0.0,
        "c": float("nan"),
        "d": float("-inf"),
        "e": 2**80,
        "f": True,
        "g": "null",
        "h": 1e22,
        "i": 5e-324,
        "j": 123456789012345678,
    }
    found = []
    for fast in (None, body_module._find_fast()):
        monkeypatch.setattr(body_module, "_find_fast", lambda fast=fast: fast)
        run = tmp_path / str(fast is None)
        run.mkdir()
        writer = a_writer(run)
        writer.append("m", values)
        writer.flush()
        found.append(repr(written(run)[0].body))
    assert found[0] == found[1] == repr(values)


class Later:
    """A value that a device has not computed yet."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def resolve(self) -> Any:
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


def test_a_value_that_is_not_there_yet_is_resolved_when_written(tmp_path: Path) -> None:
    writer = a_writer(tmp_path)
    writer.append("m", {"loss": Later(2.5), "bad": Later(float("nan")), "n": 1})
    writer.flush()
    assert repr(written(tmp_path)[0].body) == "{'loss': 2.5, 'bad': nan, 'n': 1}"


@pytest.mark.parametrize("value", [Later(RuntimeError("lost")), object(), None, b"x"])
def test_a_value_that_cannot_be_kept_costs_only_itself(tmp_path: Path, value: Any) -> None:
    writer = a_writer(tmp_path)
    writer.append("m", {"loss": 2.5, "bad": value})
    writer.flush()
    assert written(tmp_path)[0].body == {"loss": 2.5}
    assert writer.odd == {"value": 1}


def test_a_body_with_anything_in_it_becomes_json(tmp_path: Path) -> None:
    writer = a_writer(tmp_path)
    writer.append("keep", {"x": float("inf"), "p": Path("a"), "t": (1, {2}), 3: "\ud800"})
    writer.flush()
    assert written(tmp_path)[0].body == {
        "x": {"$number": "Infinity"},
        "p": "a",
        "t": [1, [2]],
        "3": "?",
    }


def test_a_body_that_holds_itself_ends_somewhere(tmp_path: Path) -> None:
    ring: dict[str, Any] = {}
    ring["ring"] = ring
    writer = a_writer(tmp_path)
    writer.append("keep", ring)
    writer.flush()
    assert "ring" in written(tmp_path)[0].body


def test_a_record_of_many_metrics_is_split_into_lines_below_the_limit(tmp_path: Path) -> None:
    values = {f"{'x' * 1000}/{number}": float(number) for number in range(3000)}
    writer = a_writer(tmp_path)
    count = writer.append("m", values, step=7, axes={"epoch": "1"}, at=5.0)
    writer.append("m", {"after": 1.0})
    writer.flush()
    parts = written(tmp_path)[:count]
    assert count > 1
    assert [part.seq for part in parts] == list(range(count))
    assert {(part.step, part.at, part.axes["epoch"]) for part in parts} == {(7, 5.0, "1")}
    together: dict[str, Any] = {}
    for part in parts:
        assert not together.keys() & part.body.keys()
        together.update(part.body)
    assert together == values
    assert all(
        len(line) < MAX_LINE_BYTES for line in journals(tmp_path)[0].read_bytes().split(b"\n")
    )


@pytest.mark.parametrize("size", [MAX_LINE_BYTES - 300, MAX_LINE_BYTES - 80, MAX_LINE_BYTES])
def test_no_line_is_above_the_limit_whatever_its_length(tmp_path: Path, size: int) -> None:
    writer = a_writer(tmp_path)
    writer.append("con", {"text": "x" * size})
    writer.append("m", {"a": 1.0, "text": "x" * size})
    writer.flush()
    lines = journals(tmp_path)[0].read_bytes().split(b"\n")
    assert all(len(line) < MAX_LINE_BYTES for line in lines)
    assert len(written(tmp_path)) >= 2


def test_a_body_above_the_limit_goes_to_a_file_of_its_own(tmp_path: Path) -> None:
    text = "é" * MAX_LINE_BYTES
    writer = a_writer(tmp_path)
    writer.append("rich", {"text": text}, step=1)
    writer.append("m", {"small": 1.0, "large": text}, step=1)
    writer.flush()
    rich, *metrics = written(tmp_path)
    stored = json.loads((tmp_path / rich.body["$file"]).read_bytes())
    assert stored == {"text": text}
    assert rich.body["size"] == (tmp_path / rich.body["$file"]).stat().st_size
    together = {name: value for record in metrics for name, value in record.body.items()}
    assert together["small"] == 1.0
    assert json.loads((tmp_path / together["large"]["$file"]).read_bytes()) == text


def test_a_file_that_cannot_be_written_leaves_the_record_with_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "full")

    writer = a_writer(tmp_path)
    monkeypatch.setattr("launchhelm.store.media.put", refuse)
    with pytest.raises(OSError, match="full"):
        writer.append("rich", {"text": "x" * MAX_LINE_BYTES})
    assert writer.next_seq == 0
    monkeypatch.undo()
    writer.append("rich", {"text": "x" * MAX_LINE_BYTES})
    writer.flush()
    assert [record.seq for record in written(tmp_path)] == [0]


def test_numbers_go_on_over_segments(tmp_path: Path) -> None:
    writer = a_writer(tmp_path, segment_bytes=500)
    for step in range(30):
        writer.append("m", {"loss": 1.0}, step=step)
        writer.flush()
        if writer.is_full:
            writer.rotate()
    assert len(journals(tmp_path)) > 2
    assert [record.seq for record in written(tmp_path)] == list(range(30))
    for path in journals(tmp_path):
        opening, first, *_ = good_lines(path.read_bytes())
        assert opening["q0"] == first["q"]


def test_segments_double_up_to_the_largest(tmp_path: Path) -> None:
    writer = a_writer(tmp_path, segment_bytes=4_000, max_segment_bytes=16_000)
    while len(journals(tmp_path)) < 6:
        writer.append("m", {"loss": 1.0})
        writer.flush()
        if writer.is_full:
            writer.rotate()
    sizes = [path.stat().st_size // 1000 for path in journals(tmp_path)[:5]]
    assert sizes == [4, 8, 16, 16, 16]


def test_an_idle_writer_makes_no_empty_segment(tmp_path: Path) -> None:
    writer = a_writer(tmp_path)
    writer.append("m", {"loss": 1.0})
    writer.flush()
    writer.rotate()
    assert writer.rotate() is None
    assert len(journals(tmp_path)) == 1


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG])
@pytest.mark.parametrize("call", ["pwrite", "fsync"])
def test_a_failed_flush_is_repeated_at_the_same_place(
    tmp_path: Path, faulty: FaultyOs, call: str, number: int
) -> None:
    writer = a_writer(tmp_path)
    writer.append("m", {"loss": 1.0}, step=0)
    writer.flush()
    writer.append("m", {"loss": 1.0}, step=1)
    faulty.fail(call, number, times=3)
    for step in (2, 3, 4):
        with pytest.raises(OSError, match=os.strerror(number)):
            writer.flush()
        assert writer.durable_seq == 1
        writer.append("m", {"loss": 1.0}, step=step)
    writer.flush()
    assert writer.durable_seq == 5
    assert len(journals(tmp_path)) == 1
    assert [record.step for record in written(tmp_path)] == [0, 1, 2, 3, 4]


def test_a_short_write_goes_on_where_it_stopped(tmp_path: Path, faulty: FaultyOs) -> None:
    writer = a_writer(tmp_path)
    faulty.short_writes = 5
    for step in range(50):
        writer.append("m", {"loss": 1.0}, step=step)
    writer.flush()
    assert [record.step for record in written(tmp_path)] == list(range(50))


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EBADF, errno.ENOENT, errno.ENOTCONN])
def test_a_lost_file_is_followed_by_a_new_segment_with_the_whole_buffer(
    tmp_path: Path, faulty: FaultyOs, number: int
) -> None:
    writer = a_writer(tmp_path)
    writer.append("m", {"loss": 1.0}, step=0)
    writer.flush()
    writer.append("m", {"loss": 1.0}, step=1)
    faulty.fail("fsync", number)
    writer.flush()
    first, second = journals(tmp_path)
    # The record that was in doubt stands in both; its number tells that it is one.
    assert [record.seq for record in journal_records(first)] == [0, 1]
    assert [record.seq for record in journal_records(second)] == [1]
    assert good_lines(second.read_bytes())[0]["q0"] == 1


def test_a_segment_that_cannot_be_opened_is_tried_again(tmp_path: Path, faulty: FaultyOs) -> None:
    writer = a_writer(tmp_path)
    writer.append("m", {"loss": 1.0}, step=0)
    faulty.fail("open", errno.ENOSPC, times=2)
    faulty.fail("fsync", errno.EIO)
    for _ in range(3):
        with pytest.raises(OSError, match=r"No space|Input/output"):
            writer.flush()
    writer.flush()
    assert [record.seq for record in written(tmp_path)] == [0]


def test_a_name_that_is_taken_is_passed_over(tmp_path: Path) -> None:
    writer = a_writer(tmp_path)
    taken = tmp_path / "data" / f"{WRITER}.00001.jsonl"
    taken.write_text("somebody else's")
    writer.append("m", {"loss": 1.0})
    writer.flush()
    assert taken.read_text() == "somebody else's"
    assert [path.name[-11:] for path in journals(tmp_path)] == ["00001.jsonl", "00002.jsonl"]


def test_skipped_numbers_are_never_used(tmp_path: Path) -> None:
    writer = a_writer(tmp_path)
    writer.append("m", {"loss": 1.0})
    assert writer.skip(10) == (1, 10)
    writer.append("gap", {"first": 1, "last": 10, "why": "buffer full"})
    writer.flush()
    assert [record.seq for record in written(tmp_path)] == [0, 11]


FAULTS = st.lists(
    st.tuples(
        st.sampled_from(["pwrite", "fsync", "open"]),
        st.sampled_from(
            [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.EBADF, errno.ENOENT]
        ),
        st.integers(0, 2),
    ),
    max_size=12,
)


@given(FAULTS, st.integers(0, 3))
def test_any_sequence_of_failures_that_ends_loses_nothing(
    tmp_path_factory: pytest.TempPathFactory, faults: list[tuple[str, int, int]], short: int
) -> None:
    run = tmp_path_factory.mktemp("run")
    faulty = FaultyOs()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "os", faulty)
        writer = a_writer(run, segment_bytes=600)
        logged = 0
        for call, number, appended in faults:
            for _ in range(appended):
                writer.append("m", {"loss": 0.5}, step=logged)
                logged += 1
            faulty.fail(call, number)
            faulty.short_writes = short
            try:
                writer.flush()
            except OSError:
                continue
            if writer.is_full:
                writer.rotate()
        faulty.heal()
        writer.append("m", {"loss": 0.5}, step=logged)
        writer.flush()
    found = written(run)
    assert [record.seq for record in found] == list(range(logged + 1))
    assert [record.step for record in found] == list(range(logged + 1))
