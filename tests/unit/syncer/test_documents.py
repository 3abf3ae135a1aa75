"""What a server is told about a run, and when it is told again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from launchhelm.records import WriterId
from launchhelm.store.manifest import load_manifest
from launchhelm.store.reader import Reader
from syncer.api.wire import encode, parse
from syncer.documents import (
    WROTE_LABEL,
    participant_spec,
    run_spec,
    stream_spec,
    updated_run,
)
from syncer.facts import Facts
from syncer.labels import config_labels, metadata_labels, reduction_label, summary_label
from syncer.naming import NAME_LABEL, RUN_LABEL, STREAM_LABEL, WRITER_LABEL, StreamKey
from tests.support.reading import RunBuilder, WriterBuilder
from tests.support.runs import running

VECTORS = Path(__file__).parents[2] / "contract" / "vectors" / "labels.json"
CASES = json.loads(VECTORS.read_text("utf-8"))
WRITER = WriterId(3, 2, "9f3a2c1d")


def of(function: str) -> list[Any]:
    found = [case for case in CASES if case["function"] == function]
    return [pytest.param(case["input"], case["expected"], id=case["id"]) for case in found]


def facts_of(directory: Path) -> Facts:
    return Facts.read(directory, load_manifest(directory))


# --- labels ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "expected"), of("config_labels"))
def test_config_labels_are_those_of_the_hosted_sdk(given: Any, expected: Any) -> None:
    """What that SDK refuses to start with is left out here: the run exists already."""
    if "construct" in given:
        config: dict[str, Any] = {f"k{number}": number for number in range(65)}
    elif "config" in given:
        config = {"x": float("nan")}
    else:
        config = json.loads(given["config_json_text"])

    labels = config_labels(config)

    if "error" not in expected:
        assert labels == expected
    else:
        assert len(labels) == (64 if len(config) == 65 else 0)


@pytest.mark.parametrize(("given", "expected"), of("metadata_labels"))
def test_metadata_labels_are_those_of_the_hosted_sdk(given: Any, expected: Any) -> None:
    assert metadata_labels(**given) == expected


@pytest.mark.parametrize(("given", "expected"), of("summary_label"))
def test_the_summary_is_that_of_the_hosted_sdk(given: Any, expected: Any) -> None:
    assert summary_label(given["summary"]) == (expected, 0)


def test_a_config_key_cannot_pass_for_a_label_of_ours() -> None:
    assert config_labels({"launchhelm.notes": "x", "lr": 1}) == {"lr": "1"}


def test_of_a_long_summary_what_fits_is_kept_in_order_and_the_rest_is_counted() -> None:
    values = {f"metric/{number:04d}": number for number in range(200)}
    text, left_out = summary_label(values)
    kept = json.loads(text)

    assert len(text) <= 1024
    assert list(kept) == sorted(values)[: len(kept)]
    assert len(kept) + left_out == 200
    assert len(summary_label({"a": "x" * 1016})[0]) == 1024
    assert summary_label({"a": "x" * 1017, "b": 1}) == ('{"b":1}', 1)


def test_summary_values_keep_every_digit() -> None:
    text, _ = summary_label({"nan": {"$number": "NaN"}, "big": 1 << 60, "x": 0.1, "odd": [1]})

    assert json.loads(text) == {
        "nan": {"$number": "nonfinite", "value": "nan"},
        "big": {"$number": "integer", "value": str(1 << 60)},
        "x": 0.1,
    }


def test_running_means_go_along_for_a_resume() -> None:
    states = {
        "loss": {"kind": "mean", "n": 4, "sum": 2.5, "value": 1.0},
        "best": {"kind": "min", "n": 4, "sum": 2.5, "value": 1.0},
    }

    assert reduction_label(states) == ('{"loss":{"count":4,"held":2.5}}', 0)


def test_tags_beyond_a_label_are_left_out_from_the_end() -> None:
    tags = tuple("é" * 40 + str(number) for number in range(20))
    labels = metadata_labels(group="", tags=tags, notes="")
    kept = json.loads(labels["launchhelm.tags"])

    assert len(labels["launchhelm.tags"]) <= 1024
    assert kept == list(tags[: len(kept)])
    assert len(kept) >= 18


# --- the run --------------------------------------------------------------------------------------


def test_a_run_is_told_as_it_was_made(tmp_path: Path) -> None:
    config = {"lr": 0.01, "api_key": "sekret", "seed": 1 << 60, "nest": {"a": [1, 2.5]}}
    with running(
        tmp_path, name="first", config=config, group="g", tags=["a", "é"], notes="hi"
    ) as run:
        run.define("loss", summary="mean")
        run.log({"loss": 1.5})
        run.summary({"best": 0.5})

    spec = run_spec(facts_of(run.directory))
    labels = spec["labels"]

    assert (spec["name"], spec["state"]) == ("first", "closed")
    assert spec["configuration"]["root"] == {"kind": "opaque", "renderer": "generic"}
    assert spec["parameters"] == {
        "lr": 0.01,
        "api_key": "***",
        "seed": {"$number": "integer", "value": str(1 << 60)},
        "nest": {"a": [1, 2.5]},
    }
    assert labels["lr"] == "0.01"
    assert labels["api_key"] == "***"
    assert labels["nest"] == 'json:{"a":[1,2.5]}'
    assert labels["launchhelm.group"] == "g"
    assert labels["launchhelm.tags"] == '["a","\\u00e9"]'
    assert labels["launchhelm.notes"] == "hi"
    assert labels["launchhelm.host"] == run.host
    assert labels["launchhelm.python"] == run.python
    assert labels["launchhelm.argv"] == run.argv
    assert labels["launchhelm.summary"] == '{"best":0.5,"loss":1.5}'
    assert labels["launchhelm.reduction"] == '{"loss":{"count":1,"held":1.5}}'
    assert labels[RUN_LABEL] == run.run_id
    assert "" not in labels.values()
    assert parse(encode(spec)) == spec


def test_a_run_without_config_has_no_parameters(tmp_path: Path) -> None:
    with running(tmp_path) as run:
        assert "parameters" not in run_spec(facts_of(run.directory))


def test_what_no_document_can_hold_is_left_out_of_the_parameters_and_named(tmp_path: Path) -> None:
    deep: Any = 1
    for _ in range(30):
        deep = [deep]
    config = {"deep": deep, "wide": list(range(60_000)), "long": "x" * (800 << 10), "lr": 0.1}
    with running(tmp_path, config=config) as run:
        pass

    spec = run_spec(facts_of(run.directory))

    assert spec["parameters"] == {"lr": 0.1}
    assert spec["labels"]["launchhelm.offline.parameters_left_out"] == "deep, wide, long"
    encode({"documents": [{"kind": "run", "scope": {}, "spec": spec}]})


def test_a_long_title_is_shortened_and_kept_whole_beside(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, name="n" * 400)
    spec = run_spec(facts_of(run.directory))

    assert len(spec["name"]) == 256
    assert spec["labels"][NAME_LABEL] == "n" * 400


# --- changes --------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> RunBuilder:
    return RunBuilder(tmp_path, notes="first", world_size=2)


def started(run: RunBuilder, rank: int = 0, attempt: int = 1) -> WriterBuilder:
    writer = run.writer(rank, attempt=attempt)
    writer.record("ev", {"type": "start", "world_size": run.world_size})
    writer.flush()
    return writer


def test_nothing_is_written_while_nothing_changes(run: RunBuilder) -> None:
    started(run)
    facts = facts_of(run.directory)

    assert updated_run(run_spec(facts), facts) is None


def test_what_the_run_changes_is_written_and_nothing_else(run: RunBuilder) -> None:
    writer = started(run)
    spec = run_spec(facts_of(run.directory))
    spec["labels"]["team"] = "vision"
    spec["labels"]["empty"] = ""
    spec["description"] = "of somebody else's"
    writer.record("desc", {"name": "better", "group": "g", "notes": ""})
    writer.record("sum", {"best": 0.5, "gone": None})
    writer.flush()
    facts = facts_of(run.directory)

    new = updated_run(spec, facts)

    assert new is not None
    changed = {"launchhelm.group": "g", "launchhelm.summary": '{"best":0.5}'}
    wrote = {WROTE_LABEL: new["labels"][WROTE_LABEL]}
    kept = {name: text for name, text in spec["labels"].items() if name != "launchhelm.notes"}
    assert new == {**spec, "name": "better", "labels": {**kept, **changed, **wrote}}
    assert updated_run(new, facts) is None


def test_what_a_person_changed_on_the_server_stays_until_the_run_changes_it(
    run: RunBuilder,
) -> None:
    writer = started(run)
    spec = run_spec(facts_of(run.directory))
    spec["labels"]["launchhelm.notes"] = "edited on the server"
    spec["name"] = "renamed on the server"
    assert updated_run(spec, facts_of(run.directory)) is None

    writer.record("desc", {"group": "g"})
    writer.flush()
    second = updated_run(spec, facts_of(run.directory))
    assert second is not None
    assert second["name"] == "renamed on the server"
    assert second["labels"]["launchhelm.notes"] == "edited on the server"

    writer.record("desc", {"notes": "from the run again"})
    writer.flush()
    third = updated_run(second, facts_of(run.directory))
    assert third is not None
    assert third["name"] == "renamed on the server"
    assert third["labels"]["launchhelm.notes"] == "from the run again"


def test_a_run_is_closed_when_it_is_complete_and_every_rank_has_ended(run: RunBuilder) -> None:
    first, second = started(run, 0), started(run, 1)
    spec = run_spec(facts_of(run.directory))
    first.close()
    first.flush()
    facts = facts_of(run.directory)
    assert facts.is_complete
    assert facts.open_ranks == [1]
    assert updated_run(spec, facts) is None

    second.close()
    second.flush()
    new = updated_run(spec, facts_of(run.directory))

    assert new is not None
    assert new["state"] == "closed"


def test_a_rank_that_is_known_to_be_gone_keeps_no_run_open(run: RunBuilder) -> None:
    first, second = started(run, 0), started(run, 1)
    first.close()
    first.flush()
    facts = facts_of(run.directory)

    facts.note_ended(second.writer)

    assert facts.state == "closed"
    assert facts.has_ended(second.writer)


@pytest.mark.parametrize(
    "body",
    [
        {"state": "error", "reason": "OOM", "close_run": True},
        {"state": "finished", "reason": "", "close_run": False},
    ],
)
def test_a_run_that_may_be_resumed_stays_open(tmp_path: Path, body: dict[str, Any]) -> None:
    run = RunBuilder(tmp_path)
    writer = started(run)
    writer.record("close", body)
    writer.flush()

    assert facts_of(run.directory).state == "open"


def test_a_newer_attempt_keeps_a_run_open(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path)
    writer = started(run)
    writer.close()
    writer.flush()
    assert facts_of(run.directory).state == "closed"

    run.attempt(1)

    assert facts_of(run.directory).state == "open"


def test_a_run_that_was_closed_on_the_server_is_not_opened_again(run: RunBuilder) -> None:
    writer = started(run)
    spec = {**run_spec(facts_of(run.directory)), "state": "closed"}
    writer.record("desc", {"group": "g"})
    writer.flush()

    new = updated_run(spec, facts_of(run.directory))

    assert new is not None
    assert new["state"] == "closed"


def test_files_without_the_coordinator_do_not_speak_for_the_run(run: RunBuilder) -> None:
    started(run, 1)
    facts = facts_of(run.directory)
    spec = {**run_spec(facts), "labels": {}}

    assert not facts.has_coordinator
    assert updated_run(spec, facts) is None


def test_the_newest_word_counts_whatever_comes_first(run: RunBuilder) -> None:
    first, second = started(run, 0, 1), started(run, 0, 2)
    first.record("desc", {"notes": "old"})
    second.record("desc", {"notes": "new"})
    peer = started(run, 1, 2)
    peer.record("desc", {"notes": "of another rank"})
    for writer in (first, second, peer):
        writer.flush()
    facts = facts_of(run.directory)

    for record in Reader(run.directory, newest_first=True).poll():
        facts.take(record)

    assert facts.notes == "new"


# --- participants and streams ---------------------------------------------------------------------


def test_a_participant_is_called_as_its_files_say(run: RunBuilder) -> None:
    labels = {"launchhelm.rank": "3", "launchhelm.node": "host-0"}
    described = {"name": "rank-3", "role": "trainer", "labels": labels}
    writer = run.writer(3, attempt=2, participant=described)
    writer.beat()
    writer.flush()
    sealed = run.writer(4, attempt=2, participant={**described, "name": "rank-4"})
    sealed.beat()
    sealed.seal()
    facts = facts_of(run.directory)

    spec = participant_spec(writer.writer, facts)

    assert (spec["name"], spec["role"]) == ("rank-3", "trainer")
    assert spec["labels"] == {
        **labels,
        WRITER_LABEL: str(writer.writer),
        "launchhelm.offline.attempt": "2",
        "launchhelm.offline.pid": "1003",
        "launchhelm.offline.host": "host-0",
    }
    assert participant_spec(sealed.writer, facts)["name"] == "rank-4"


def test_a_participant_whose_files_cannot_be_read_is_called_by_its_rank(run: RunBuilder) -> None:
    spec = participant_spec(WRITER, facts_of(run.directory))

    assert (spec["name"], spec["role"]) == ("rank-3", "logger")
    assert spec["labels"][WRITER_LABEL] == str(WRITER)


def test_a_stream_says_what_its_points_are() -> None:
    key = StreamKey(WRITER, "train/loss", "number", ("step", "layer"))

    assert stream_spec(key, "p-1", "nats") == {
        "name": "train/loss",
        "participant_id": "p-1",
        "value_schema": {"type": "number"},
        "axes": ["step", "layer"],
        "labels": {STREAM_LABEL: key.text},
        "unit": "nats",
    }
    rich = stream_spec(StreamKey(WRITER, "x" * 300, "object", ("step",), "text"), "p-1")
    assert rich["presentation"] == {"renderer": "text"}
    assert len(rich["name"]) == 256
    assert rich["labels"][NAME_LABEL] == "x" * 300
