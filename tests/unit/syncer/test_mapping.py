"""Every value of a run directory becomes the same point, exactly, each time it is asked for."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import launchhelm
from launchhelm.records import Record, WriterId
from launchhelm.store.reader import Reader
from launchhelm.values.names import name_problem
from syncer.api.wire import MAX_LABEL, MAX_NAME, MAX_POINT_BYTES, parse, point
from syncer.mapping import Refused, Sample, numbers, samples
from syncer.naming import StreamKey, shortened
from tests.support.reading import RunBuilder
from tests.support.runs import running

WRITER = WriterId(0, 1, "9f3a2c1d")


def record(kind: str, body: dict[str, Any], *, seq: int = 7, **more: Any) -> Record:
    at, step = more.pop("at", 1_796_022_506.355), more.pop("step", None)
    return Record(WRITER, seq, kind, at, step, body, **more)


def sent(sample: Sample | Refused) -> dict[str, Any]:
    """Return a point as a server reads it."""
    assert isinstance(sample, Sample), sample
    value: dict[str, Any] = parse(sample.data)
    return value


def value_of(sample: Sample | Refused) -> Any:
    """Return the value that a point carries, as Python has it."""
    value = sent(sample)["value"]
    if not isinstance(value, dict) or "$number" not in value:
        return value
    if value["$number"] == "integer":
        return int(value["value"])
    return float(value["value"])


# --- values ---------------------------------------------------------------------------------------


def test_a_point_has_time_coordinates_value_and_the_number_of_its_record() -> None:
    (sample,) = samples(record("m", {"loss": 0.25}, step=12, axes={"layer": "3"}))

    assert isinstance(sample, Sample)
    assert sample.key == StreamKey(WRITER, "loss", "number", ("step", "layer"))
    assert sample.data == (
        b'{"observed_at":"2026-11-30T07:08:26.355007Z","coordinates":[{"axis":"step","value":"12"},'
        b'{"axis":"layer","value":"3"}],"value":0.25,"sequence":"7"}'
    )


@given(
    st.one_of(
        st.floats(allow_nan=False),
        st.integers(min_value=-(1 << 4096) + 1, max_value=(1 << 4096) - 1),
        st.booleans(),
        st.text(alphabet=st.characters(exclude_categories=["Cs"])),
    )
)
def test_every_value_arrives_as_it_was_written(value: Any) -> None:
    (sample,) = samples(record("m", {"x": value}, step=0))
    (again,) = samples(record("m", {"x": value}, step=0))

    assert sample == again
    assert value_of(sample) == value
    if value == 0 and isinstance(value, float):
        assert math.copysign(1.0, value_of(sample)) == math.copysign(1.0, value)
    if isinstance(value, bool | str):
        assert type(value_of(sample)) is type(value)


def test_not_a_number_arrives_as_that() -> None:
    (sample,) = samples(record("m", {"x": math.nan}, step=0))

    assert sent(sample)["value"] == {"$number": "nonfinite", "value": "nan"}


def test_each_class_of_value_has_a_stream_of_its_own() -> None:
    made = samples(record("m", {"a": 1, "b": 1.0, "c": True, "d": "one"}, step=0))

    assert [sample.key.type for sample in made] == ["number", "number", "boolean", "string"]


def test_a_name_that_changes_its_class_changes_its_stream() -> None:
    kinds = [samples(record("m", {"x": value}, step=0))[0].key.type for value in (1, "1", True)]

    assert kinds == ["number", "string", "boolean"]


def test_a_record_without_a_step_is_placed_by_its_number() -> None:
    (sample,) = samples(record("sys", {"system/cpu_percent": 3.5}, step=None))

    assert sample.key.axes == ("record",)
    assert sent(sample)["coordinates"] == [{"axis": "record", "value": "7"}]


def test_a_wild_clock_costs_no_point() -> None:
    for at in (math.nan, math.inf, -1e18, 1e18):
        (sample,) = samples(record("m", {"x": 1}, step=0, at=at))
        assert "1970-" <= sent(sample)["observed_at"] < "2261-"


def test_a_value_over_the_limit_is_refused_and_the_others_of_its_record_are_not() -> None:
    text = "x" * MAX_POINT_BYTES
    small, large, other = samples(record("m", {"a": 1, "b": text, "c": 2}, step=0))

    assert isinstance(small, Sample)
    assert isinstance(other, Sample)
    assert isinstance(large, Refused)
    assert large.key == StreamKey(WRITER, "b", "string", ("step",))
    assert large.seq == 7
    assert large.size > MAX_POINT_BYTES


def test_a_value_that_stands_in_a_file_of_its_own_is_refused_with_its_size(tmp_path: Path) -> None:
    with running(tmp_path) as run:
        run.log({"long": "x" * (1 << 20), "short": 1}, step=0)
    records = Reader(run.directory, kinds={"m"}).poll()

    made = [sample for record in records for sample in samples(record)]

    assert [type(sample) for sample in made] == [Refused, Sample]
    assert isinstance(made[0], Refused)
    assert made[0].size > 1 << 20


@pytest.mark.parametrize(
    ("body", "more"),
    [
        ({"x": None}, {"step": 0}),
        ({"x": {"unknown": 1}}, {"step": 0}),
        ({"x": 1}, {"step": 0, "axes": {"Layer": "1"}}),
        ({"x": 1}, {"step": 0, "axes": {"layer": "1e3"}}),
        ({"x": 1}, {"step": 0, "axes": {"layer": None}}),
        ({"x": 1}, {"step": 0, "axes": {"layer": "1" * 129}}),
        ({"x": 1}, {"step": "three"}),
        ({"x": "\ud800"}, {"step": 0}),
        ({"x": 10**5000}, {"step": 0}),
        ({"": 1}, {"step": 0}),
        ({"\ud800": 1}, {"step": 0}),
        ({"\ud800": True}, {"step": 0}),
    ],
)
def test_what_no_writer_of_ours_writes_is_refused_and_never_raises(
    body: dict[str, Any], more: dict[str, Any]
) -> None:
    (refused,) = samples(record("m", body, **more))

    assert isinstance(refused, Refused)
    assert refused.why
    refused.key.text.encode()


def test_records_that_hold_no_values_have_no_points() -> None:
    for kind in ("hb", "def", "cap", "ctl", "keep", "sum", "desc", "art", "of a newer version"):
        assert samples(record(kind, {"name": "x", "n": 1}, step=0)) == []


@given(
    st.dictionaries(
        st.text(max_size=3),
        st.floats() | st.integers(-(2**54), 2**54) | st.sampled_from([True, "text", None]),
        max_size=4,
    ),
    st.none() | st.integers(0, 2**60) | st.just(-1),
    st.sampled_from([{}, {"layer": "1.5"}, {"Layer": "1"}, {"record": "3"}]),
    st.sampled_from(["m", "sys"]),
)
def test_the_short_way_gives_the_points_of_the_long_one_or_none(
    body: dict[str, Any], step: int | None, axes: dict[str, str], kind: str
) -> None:
    one = record(kind, body, step=step, axes=axes)
    points = samples(one)
    plain = [type(it) in (int, float) and abs(it) < 2**53 for it in body.values()]

    found = numbers(one)

    usual = bool(points) and all(plain) and not any(isinstance(it, Refused) for it in points)
    assert (found is not None) == usual
    if found is not None:
        layout, encoded = found
        assert points == list(map(Sample, layout.keys, [one.seq] * len(points), encoded))
        again = numbers(record(kind, dict.fromkeys(body, 1), step=step, axes=axes, seq=8))
        assert again is not None and again[0] is layout


def test_a_record_read_back_from_a_sealed_segment_gives_the_same_bytes(tmp_path: Path) -> None:
    """A repeat after a restart may find the journal sealed; the batch must be the same."""
    run = RunBuilder(tmp_path)
    writer = run.writer()
    writer.metrics(0, zero=-0.0, nan=math.nan, big=1 << 70, huge=1e300, yes=True, text="naïve ☃")
    writer.record("m", {"x": 0.1}, step=None, axes={"layer": "0.50"})
    writer.record("con", {"text": "hello", "stream": 0, "line": 0}, step=1)
    writer.record("ev", {"type": "notice", "about": "storage", "text": "slow"})
    writer.flush()
    from_journal = [sample for it in Reader(run.directory).poll() for sample in samples(it)]

    writer.seal()

    assert [sample for it in Reader(run.directory).poll() for sample in samples(it)] == from_journal
    assert len(from_journal) == 9


# --- names ----------------------------------------------------------------------------------------

NAMES = st.text(
    alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0"),
    min_size=1,
    max_size=1024,
).filter(lambda name: not name_problem(name))
AXES = st.lists(st.from_regex(r"[a-z][a-z0-9_.:-]{0,127}", fullmatch=True), max_size=31)


@given(NAMES, AXES, st.sampled_from(["", "text", "histogram"]))
def test_a_stream_is_read_back_from_its_text(name: str, axes: list[str], renderer: str) -> None:
    key = StreamKey(WRITER, name, "object", tuple(axes), renderer)

    assert StreamKey.parse(key.text) == key
    assert hash(StreamKey.parse(key.text)) == hash(key)
    assert len(key.label) <= MAX_LABEL


@pytest.mark.parametrize("text", ["", "x", "r00000-a001-9f3a2c1d number", "a b c d e"])
def test_another_text_is_no_stream(text: str) -> None:
    with pytest.raises(ValueError, match="is not a stream"):
        StreamKey.parse(text)


def test_long_names_stay_apart_when_they_are_shortened() -> None:
    names = ["ä" * 300 + end for end in ("", "a", "b")] + ["ä" * 256]
    short = [shortened(name) for name in names]

    assert len(set(short)) == len(names)
    assert max(map(len, short)) == MAX_NAME
    assert short[-1] == names[-1]


# --- console, rich values, controls, events -------------------------------------------------------


def test_a_console_line_has_its_line_and_stream_as_coordinates() -> None:
    (sample,) = samples(record("con", {"text": "hällo", "stream": 1, "line": 40}, step=3))

    assert sample.key == StreamKey(WRITER, "console", "string", ("step", "line", "stream"))
    assert sent(sample)["value"] == "hällo"
    assert [it["value"] for it in sent(sample)["coordinates"]] == ["3", "40", "1"]


def test_a_rich_value_goes_to_a_stream_of_its_renderer() -> None:
    value = {"edges": [0, 1], "counts": [3]}
    (sample,) = samples(
        record("rich", {"name": "h", "renderer": "histogram", "value": value}, step=1)
    )

    assert (sample.key.type, sample.key.renderer) == ("object", "histogram")
    assert sent(sample)["value"] == value


def test_a_rich_value_of_an_unknown_kind_is_refused() -> None:
    (refused,) = samples(record("rich", {"name": "h", "renderer": "hologram"}, step=1))

    assert isinstance(refused, Refused)


def text_of(sample: Sample | Refused) -> str:
    assert (sample.key.type, sample.key.renderer) == ("object", "text")
    text: str = sent(sample)["value"]["text"]
    return text


OUTCOME = {
    "cmd": "c-1",
    "state": "applied",
    "name": "lr",
    "issued_by": "alice",
    "owner": "bob",
    "reason": "noisy",
    "applied_at": {"step": 412},
    "applied_on": 2,
    "of": 2,
    "changes": {"lr": {"old": [0.1], "new": [0.05]}},
}


def test_an_outcome_is_told_in_words_and_as_it_was_recorded() -> None:
    (sample,) = samples(record("oc", OUTCOME, step=412))
    sentence, _, body = text_of(sample).partition("\n")

    assert sample.key.name == "launchhelm/controls"
    assert sentence == "lr by alice: Applied at step 412 on all 2 processes, lr 0.1 -> 0.05"
    assert json.loads(body) == OUTCOME


def test_a_command_is_told_when_it_is_taken_in_and_not_while_it_acts() -> None:
    claimed = {"cmd": "c-1", "state": "claimed", "name": "lr", "payload": {"scale": 0.5}}
    (sample,) = samples(record("oc", claimed))

    assert text_of(sample).startswith("lr scale=0.5: taken in\n")
    assert samples(record("oc", {"cmd": "c-1", "state": "applying", "name": "lr"})) == []


def test_the_values_in_effect_afterwards_are_told() -> None:
    body = {"cmd": "c-1", "step": 413, "values": {"lr": [0.04, 0.04]}}
    (sample,) = samples(record("effect", body, step=413))

    assert text_of(sample).startswith("In effect after the next step: lr=0.04\n")


@pytest.mark.parametrize(
    ("kind", "body", "said"),
    [
        ("ev", {"type": "start", "world_size": 8}, "start"),
        ("ev", {"type": "notice", "about": "storage", "text": "slow\ndisk"}, r"notice: slow\ndisk"),
        ("ev", {"type": "fault", "component": "x", "error": "E", "count": 2}, "fault: E"),
        ("gap", {"first": 3, "last": 9, "why": "buffer full"}, "buffer full"),
        ("close", {"state": "error", "reason": "OOM", "close_run": False}, "ended: error, OOM"),
    ],
)
def test_events_are_told_in_words(kind: str, body: dict[str, Any], said: str) -> None:
    (sample,) = samples(record(kind, body))
    sentence, _, shown = text_of(sample).partition("\n")

    assert sample.key.name == "launchhelm/events"
    assert said in sentence
    assert json.loads(shown) == body


def test_a_safe_point_that_was_passed_first_is_no_event_for_people() -> None:
    assert samples(record("ev", {"type": "safe_point", "name": "lht"})) == []


def test_a_long_outcome_gives_up_its_longest_fields_and_says_which() -> None:
    body = {**OUTCOME, "result": {"text": "x" * 100_000}}
    (sample,) = samples(record("oc", body, step=412))
    shown = json.loads(text_of(sample).partition("\n")[2])

    assert shown == {**OUTCOME, "left_out": ["result"]}


def test_a_body_in_a_file_of_its_own_is_read_where_the_directory_is_given(tmp_path: Path) -> None:
    run = launchhelm.init("tests", state_dir=tmp_path)
    run.recorder.append("oc", {**OUTCOME, "result": "x" * (2 << 20)}, step=412)
    run.finish()
    (it,) = Reader(run.directory, kinds={"oc"}).poll()

    (sample,) = samples(it, run.directory)

    assert json.loads(text_of(sample).partition("\n")[2])["left_out"] == ["result"]


def test_the_points_are_those_that_the_wire_makes() -> None:
    (sample,) = samples(record("m", {"x": 1.5}, step=0, at=0.0))

    assert isinstance(sample, Sample)
    assert sample.data == point("1970-01-01T00:00:00.000007Z", (("step", "0"),), 1.5, 7)
