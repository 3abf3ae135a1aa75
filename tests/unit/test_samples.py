"""A run directory that answers as the v1 API would; equality with a server: tests/scenarios."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launchhelm import Image
from launchhelm.errors import NotFound
from launchhelm.views import RunView, open_run, samples
from tests.support.pushing import WrittenRun
from tests.support.runs import running

EVER = {"start": "1970-01-01T00:00:00Z", "end": "2261-01-01T00:00:00Z"}


@pytest.fixture
def view(tmp_path: Path) -> Iterator[RunView]:
    with running(tmp_path / "runs") as run:
        run.define("loss", unit="nats")
        for step in range(10):
            run.log({"loss": step / 2, "ok": True, "word": "a"}, step=step)
        run.log({"loss": 99.0}, step=3)
        run.text("notes", "x", step=1, fold=2)
        run.finish()
        yield open_run(run.directory)


def stream_of(view: RunView, name: str) -> samples.Stream:
    (found,) = [stream for stream in samples.streams(view) if stream.name == name]
    return found


def test_a_stream_is_always_the_same(view: RunView) -> None:
    found = samples.streams(view)
    assert [(it.name, it.type, it.renderer, it.unit) for it in found] == [
        ("loss", "number", "", "nats"),
        ("notes", "object", "text", ""),
        ("ok", "boolean", "", ""),
        ("word", "string", "", ""),
    ]
    assert found == samples.streams(view.directory)
    assert all(str(uuid.UUID(it.id)) == it.id for it in found)
    assert stream_of(view, "notes").spec == {
        "name": "notes",
        "value_schema": {"type": "object"},
        "axes": ["step", "fold"],
        "labels": {},
        "presentation": {"renderer": "text"},
    }


def test_at_a_coordinate_the_newest_point_counts(view: RunView) -> None:
    loss = stream_of(view, "loss").id
    select: dict[str, Any] = {"mode": "at", "values": ["3", "4.0", "77"]}
    answer = samples.read_samples(view, loss, axis="step", select=select)
    assert [(it["x"], it["value"]) for it in answer["points"]] == [("4", 2.0), ("3", 99.0)]
    assert answer["complete"] is False and answer["renderer"] == "numeric"
    axis = {"kind": "coordinate", "name": "fold"}
    notes = stream_of(view, "notes").id
    answer = samples.read_samples(view, notes, axis=axis, select={"mode": "latest"})
    assert [it["x"] for it in answer["points"]] == ["2"]
    assert samples.read_samples(view, loss, axis=axis, select={"mode": "latest"})["points"] == []


@pytest.mark.parametrize(
    ("axis", "select"),
    [
        (None, {}),
        (None, {"mode": "all"}),
        (None, {"mode": "latest", "limit": 0}),
        (None, {"mode": "latest", "limit": "3"}),
        (None, {"mode": "at"}),
        (None, {"mode": "at", "values": ["1e3"]}),
        (None, {"mode": "spread", "window": {"from": 1}}),
        ("Step", {"mode": "latest"}),
        ({"kind": "time", "name": "step"}, {"mode": "latest"}),
    ],
)
def test_a_selection_that_is_none_is_refused(view: RunView, axis: Any, select: Any) -> None:
    with pytest.raises(ValueError):
        samples.read_samples(view, stream_of(view, "loss").id, axis=axis, select=select)


@pytest.mark.parametrize(
    "wrong",
    [
        {"limit": 0},
        {"limit": 10_001},
        {"order": "up"},
        {"after_epoch": "1"},
        {"start": "yesterday"},
        {"end": None},
    ],
)
def test_a_query_that_is_none_is_refused(view: RunView, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        samples.query(view, stream_of(view, "loss").id, **{**EVER, **wrong})


def test_a_stream_of_another_run_is_not_found(view: RunView) -> None:
    with pytest.raises(NotFound):
        samples.query(view, str(uuid.uuid4()), **EVER)


def test_pages_of_any_size_hold_each_point_once(view: RunView) -> None:
    loss = stream_of(view, "loss").id
    whole = samples.query(view, loss, **EVER)["items"]
    for limit in (1, 3, 11):
        for order in ("asc", "desc"):
            found: list[Any] = []
            ask: dict[str, Any] = {**EVER, "order": order, "limit": limit}
            while True:
                page = samples.query(view, loss, **ask)
                found += page["items"]
                if page["complete"]:
                    break
                last = page["items"][-1]
                ask["start" if order == "asc" else "end"] = last["observed_at"]
                ask["after_epoch"], ask["after_sequence"] = last["epoch"], last["sequence"]
            assert found == (whole if order == "asc" else whole[::-1])


def test_a_record_without_a_step_has_its_number_as_coordinate(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path)
    run.add("m", {"a": 1.0})
    view = open_run(run.directory)
    (item,) = samples.query(view, stream_of(view, "a").id, **EVER)["items"]
    assert item["coordinates"] == [{"axis": "record", "value": item["sequence"]}]


def test_a_medium_is_where_its_file_is(tmp_path: Path) -> None:
    with running(tmp_path / "runs") as run:
        run.log({"frames": [Image(b"one", media_type="image/png")]})
        run.finish()
    view = open_run(run.directory)
    frames = stream_of(view, "frames").id
    ((id_, place),) = samples.read_samples(view, frames, select={"mode": "latest"})["media"].items()
    digest = id_.removeprefix("pending:")
    path = run.directory / "media" / digest
    assert place == {"state": "ready", "url": path.as_uri()}
    path.unlink()
    answer = samples.read_samples(view, frames, select={"mode": "latest"})
    assert answer["media"] == {id_: {"state": "missing"}}


@pytest.mark.parametrize(
    "value",
    [
        {"items": [{"source": {"artifact": {"id": "pending:../../run.json", "sha256": "x"}}}]},
        {"items": [{"source": {"artifact": {"id": 3}}}, 3, None, {"source": "x"}]},
        {"items": "x", "rows": [3, None, [{"source": None}]]},
        {"rows": {"a": 1}},
    ],
)
def test_a_record_of_somebody_elses_making_is_shown_and_leads_nowhere(
    tmp_path: Path, value: Any
) -> None:
    run = WrittenRun(tmp_path)
    run.add("rich", {"name": "r", "renderer": "media", "value": value, "files": [3]}, step=0)
    run.add("rich", {"name": 3, "renderer": "media", "value": value}, step=0)
    run.add("rich", {"name": "r", "renderer": "media", "value": "x"}, step=0)
    view = open_run(run.directory)
    answer = samples.read_samples(view, stream_of(view, "r").id, select={"mode": "latest"})
    assert [point["value"] for point in answer["points"]] == [value]
    assert all(it == {"state": "missing"} for it in answer["media"].values())
