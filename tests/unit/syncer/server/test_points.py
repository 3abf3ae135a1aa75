"""Pages and samples: one exact order, however the points arrived."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncer.api import wire
from syncer.server import events, pages, telemetry
from syncer.server import samples as selection
from syncer.server.batch import read
from syncer.server.pages import Window
from tests.support.telemetry_desk import START, Desk, desk, point

Key = tuple[int, int, int]


@pytest.fixture
def at(tmp_path: Path) -> Iterator[Desk]:
    with desk(tmp_path) as made:
        yield made


def keys(page: dict[str, Any]) -> list[tuple[str, int, int]]:
    return [(i["observed_at"], int(i["epoch"]), int(i["sequence"])) for i in page["items"]]


def test_a_point_comes_back_with_its_epoch_and_six_digits(at: Desk) -> None:
    stream = at.stream()
    at.ingest(at.batch(stream, [{**point(0, 0.25), "observed_at": "2027-01-15T08:00:00Z"}]))
    assert at.points(stream) == {
        "items": [
            {
                "observed_at": "2027-01-15T08:00:00.000000Z",
                "coordinates": [{"axis": "step", "value": "0"}],
                "value": 0.25,
                "epoch": "1",
                "sequence": "0",
            }
        ],
        "limit": 1000,
        "complete": True,
    }


def test_points_that_arrive_out_of_order_are_read_in_order(at: Desk) -> None:
    stream = at.stream()
    later = at.batch(stream, [point(9, at=START), point(10, at=START), point(2, at=START + 5)])
    earlier = at.batch(stream, [point(100, at=START), point(1, at=START - 5)])
    assert at.status(later, earlier) == ["accepted", "accepted"]
    found = [sequence for _, _, sequence in keys(at.points(stream))]
    assert found == [1, 9, 10, 100, 2]
    backwards = keys(at.points(stream, order="desc"))
    assert [sequence for _, _, sequence in backwards] == [2, 100, 10, 9, 1]


def test_epochs_are_compared_as_numbers(at: Desk) -> None:
    stream = at.stream()
    sent = []
    for _ in range(11):
        sent.append(at.batch(stream, [point(0, at=START)]))
        at.epoch = at.connect()
    at.ingest(*sent)
    assert [epoch for _, epoch, _ in keys(at.points(stream))] == list(range(1, 12))


def test_the_newest_point_is_the_last_of_the_order_not_of_arrival(at: Desk) -> None:
    stream = at.stream()
    at.ingest(at.batch(stream, [point(5, "new", at=START + 9)]))
    at.ingest(at.batch(stream, [point(6, "old", at=START)]))
    page = at.points(stream, order="desc", limit=1)
    assert [item["value"] for item in page["items"]] == ["new"]
    assert page["complete"] is False


def test_both_ends_of_the_window_are_inside(at: Desk) -> None:
    stream = at.stream()
    at.ingest(at.batch(stream, [point(n) for n in range(5)]))
    page = at.points(stream, from_=wire.timestamp(START + 1), to=wire.timestamp(START + 3))
    assert [sequence for _, _, sequence in keys(page)] == [1, 2, 3]
    everything = {"from_": "1970-01-01T00:00:00Z", "to": "2261-01-01T00:00:00Z"}
    assert len(at.points(stream, **everything)["items"]) == 5
    shifted = quote(wire.timestamp(START + 4).replace("Z", "+00:00"))
    assert len(at.points(stream, from_=shifted)["items"]) == 1


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_paging_through_equal_times_neither_skips_nor_repeats(at: Desk, order: str) -> None:
    stream = at.stream()
    at.ingest(at.batch(stream, [point(n, at=START + n // 7) for n in range(40)]))
    whole = keys(at.points(stream, order=order))
    assert len(whole) == 40
    found: list[tuple[str, int, int]] = []
    more: dict[str, Any] = {}
    for _ in range(41):
        page = at.points(stream, limit=3, order=order, **more)
        found += keys(page)
        if page["complete"]:
            break
        time, epoch, sequence = found[-1]
        border = "from_" if order == "asc" else "to"
        more = {border: time, "after_epoch": epoch, "after_sequence": sequence}
    assert found == whole


def test_a_page_holds_ten_thousand_points_and_no_more(at: Desk) -> None:
    stream = at.stream()
    for start in range(0, 11_000, 1000):
        at.ingest(at.batch(stream, [point(start + n) for n in range(1000)]))
    page = at.points(stream, limit=20_000)
    assert (len(page["items"]), page["limit"], page["complete"]) == (10_000, 10_000, False)
    assert len(at.points(stream, limit=1000)["items"]) == 1000


def test_a_page_ends_before_it_is_too_long_for_clients(at: Desk) -> None:
    stream = at.stream("string")
    for n in range(20):
        at.ingest(at.batch(stream, [point(n, "é" * 250_000)]))
    answer = at.get(f"streams/{stream}/points", limit=10_000)
    page = answer.json()
    assert len(answer.content) < wire.MAX_ANSWER_BYTES
    assert page["complete"] is False and 1 < len(page["items"]) < 20


def test_a_stream_without_points_has_an_empty_complete_page(at: Desk) -> None:
    assert at.points(at.stream()) == {"items": [], "limit": 1000, "complete": True}


@pytest.mark.parametrize(
    "parameters",
    [
        {"limit": 0},
        {"limit": "many"},
        {"order": "sideways"},
        {"from_": "yesterday"},
        {"after_epoch": 1},
        {"after_sequence": 1},
        {"after_epoch": "x", "after_sequence": "1"},
    ],
)
def test_a_wrong_question_is_refused(at: Desk, parameters: dict[str, Any]) -> None:
    answer = at.get(f"streams/{at.stream()}/points", **parameters)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "validation")


def test_points_of_what_is_no_stream_are_not_found(at: Desk) -> None:
    answer = at.get(f"streams/{at.participant}/points")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


times = st.integers(-2, 2)
numbers = st.integers(0, 12)


@settings(max_examples=200, deadline=None)
@given(
    st.sets(st.tuples(times, numbers, numbers), max_size=30),
    st.randoms(use_true_random=False),
    times,
    times,
    st.booleans(),
    st.none() | st.tuples(numbers, numbers),
    st.integers(1, 8),
)
def test_every_window_is_what_sorting_says(
    points: set[Key],
    random: Any,
    start: int,
    end: int,
    newest_first: bool,
    after: tuple[int, int] | None,
    limit: int,
) -> None:
    """The model is a sorted list; identity (epoch, sequence) is unique, as the table demands."""
    unique = {(epoch, sequence): (time, epoch, sequence) for time, epoch, sequence in points}
    arrived = list(unique.values())
    random.shuffle(arrived)
    connection = sqlite3.connect(":memory:")
    connection.row_factory = sqlite3.Row
    connection.executescript(telemetry.SCHEMA)
    connection.executemany("INSERT INTO points VALUES (1, ?, ?, ?, 0, '{\"value\":1}')", arrived)
    connection.execute("INSERT INTO points VALUES (2, 0, 0, 0, 0, '{}')")

    inside = sorted((key for key in arrived if start <= key[0] <= end), reverse=newest_first)
    if after is not None:
        border = (end if newest_first else start, *after)
        inside = [key for key in inside if (key < border if newest_first else key > border)]
    window = Window(start, end, newest_first, after)
    found = [tuple(row)[:3] for row in pages.walk(connection, 1, window)]
    assert found == inside
    page = pages.page(connection, 1, window, limit)
    assert len(page.items) == min(limit, len(inside))
    assert page.complete == (len(inside) <= limit)
    last = pages.newest(connection, 1)
    assert (tuple(last)[:3] if last else None) == max(arrived, default=None)
    connection.close()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(times, numbers, st.integers(0, 2)), max_size=30), st.data())
def test_whatever_comes_twice_or_late_the_first_value_stays(
    sent: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    """Batches of any cut and order: each identity once, with what came first."""
    connection = sqlite3.connect(":memory:")
    connection.row_factory = sqlite3.Row
    connection.executescript(telemetry.SCHEMA + events.SCHEMA)
    stream: dict[str, Any] = {
        "place": 1,
        "id": "s",
        "organization_id": "o",
        "project_id": "p",
        "run_id": "r",
        "spec": {"value_schema": {"type": "number"}, "axes": ["step"]},
    }
    model: dict[int, tuple[int, int]] = {}
    contradictions = 0
    rest, number = list(sent), 0
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        part, rest = rest[:size], rest[size:]
        number += 1
        content = {
            "batch_id": f"00000000-0000-4000-8000-{number:012d}",
            "stream_id": "00000000-0000-4000-8000-000000000000",
            "participant_id": "00000000-0000-4000-8000-000000000000",
            "stream_revision": "1",
            "epoch": "1",
            "points": [point(sequence, value, at=time) for time, sequence, value in part],
        }
        for _ in range(data.draw(st.integers(1, 2))):
            ready = telemetry.made_ready(read(content), stream)
            assert isinstance(ready, telemetry.Ready)
            telemetry.store(connection, ready)
        for time, sequence, value in part:
            contradictions += model.setdefault(sequence, (time, value)) != (time, value)
    stored = {
        row["sequence"]: (row["time"] // 1_000_000, row["body"])
        for row in connection.execute("SELECT * FROM points")
    }
    assert {s: t for s, (t, _) in stored.items()} == {s: t for s, (t, _) in model.items()}
    assert all(f'"value":{value}}}' in stored[s][1] for s, (_, value) in model.items())
    noted = connection.execute(
        "SELECT coalesce(sum(facts ->> 'count'), 0) FROM events WHERE kind = 'points_contradicted'"
    ).fetchone()[0]
    assert noted == contradictions
    connection.close()


def samples(at: Desk, stream: str, **select: Any) -> dict[str, Any]:
    answer = at.post(
        "telemetry/samples",
        {"stream_id": stream, "axis": {"kind": "coordinate", "name": "step"}, "select": select},
    )
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    assert found["stream_id"] == stream
    return found


def xs(found: dict[str, Any]) -> list[str]:
    return [sample["x"] for sample in found["points"]]


def test_the_latest_samples_are_the_newest_points(at: Desk) -> None:
    stream = at.stream()
    at.ingest(at.batch(stream, [point(n, n) for n in range(20)]))
    found = samples(at, stream, mode="latest", limit=3)
    assert xs(found) == ["17", "18", "19"]
    assert found["points"][2] == {
        "x": "19",
        "observed_at": wire.timestamp(START + 19),
        "epoch": "1",
        "sequence": "19",
        "value": 19,
    }
    assert (found["complete"], found["renderer"], found["media"]) == (False, "numeric", {})
    assert samples(at, stream, mode="latest", limit=20)["complete"] is True


def test_an_index_is_the_same_without_values(at: Desk) -> None:
    stream = at.stream()
    at.ingest(at.batch(stream, [point(n) for n in range(20)]))
    found = samples(at, stream, mode="index", limit=5)
    assert xs(found) == ["15", "16", "17", "18", "19"]
    assert "value" not in found["points"][0]


def test_samples_at_values_compare_numbers_and_take_the_newest(at: Desk) -> None:
    stream = at.stream()
    again = point(9, "again", coordinates=[{"axis": "step", "value": "3.0"}])
    at.ingest(at.batch(stream, [*(point(n) for n in range(6)), again]))
    found = samples(at, stream, mode="at", values=["3", "1", "77"])
    assert [(p["x"], p["value"]) for p in found["points"]] == [("1", 0.5), ("3.0", "again")]
    assert found["complete"] is False
    assert samples(at, stream, mode="at", values=["5"])["complete"] is True


def test_a_spread_covers_its_window_evenly_with_both_ends(at: Desk) -> None:
    stream = at.stream()
    for start in range(0, 3000, 1000):
        at.ingest(at.batch(stream, [point(start + n) for n in range(1000)]))
    found = samples(at, stream, mode="spread", limit=11, window={"from": "1000", "to": "2000"})
    steps = [int(x) for x in xs(found)]
    assert len(steps) == 11 and steps[0] == 1000 and steps[-1] == 2000
    gaps = [b - a for a, b in itertools.pairwise(steps)]
    assert all(60 <= gap <= 140 for gap in gaps)
    assert found["complete"] is False
    few = samples(at, stream, mode="spread", limit=11, window={"from": "5", "to": "9"})
    assert xs(few) == ["5", "6", "7", "8", "9"] and few["complete"] is True


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 200), st.integers(1, 20))
def test_a_spread_never_holds_more_than_asked_for(count: int, limit: int) -> None:
    connection = sqlite3.connect(":memory:")
    connection.row_factory = sqlite3.Row
    connection.executescript(telemetry.SCHEMA)
    body = '{{"coordinates":[{{"axis":"step","value":"{}"}}],"value":1}}'
    connection.executemany(
        "INSERT INTO points VALUES (1, ?, 1, ?, 0, ?)",
        [(n, n, body.format(n)) for n in range(count)],
    )
    chosen, complete = selection.choose(connection, 1, "step", selection.Select("spread", limit))
    connection.close()
    found = [int(sample.x) for sample in chosen]
    assert found == sorted(set(found)) and len(found) == min(limit, count)
    assert complete == (count <= limit)
    if found:
        assert found[-1] == count - 1
    if len(found) > 1:
        assert found[0] == 0


def test_points_without_the_axis_are_left_out(at: Desk) -> None:
    stream = at.stream(axes=["token", "step"])
    both = [{"axis": "token", "value": "9"}, {"axis": "step", "value": "4"}]
    other = [{"axis": "token", "value": "9"}]
    at.ingest(at.batch(stream, [point(0, coordinates=both), point(1, coordinates=other)]))
    assert xs(samples(at, stream, mode="latest", limit=9)) == ["4"]


def test_media_of_samples_come_with_their_state(at: Desk) -> None:
    stream = at.stream("object", presentation={"renderer": "media"})
    made = at.post(
        "artifacts",
        {
            "scope": at.scope,
            "name": "x",
            "media_type": "image/png",
            "size": "3",
            "sha256": "0" * 64,
        },
    ).json()["id"]
    value = {"items": [{"source": {"artifact": {"id": made, "sha256": "0" * 64}}}]}
    at.ingest(at.batch(stream, [point(0, value)]))
    found = samples(at, stream, mode="latest", limit=1)
    assert (found["renderer"], found["media"]) == ("media", {made: {"state": "pending"}})


@pytest.mark.parametrize(
    "change",
    [
        {"axis": {"kind": "time"}},
        {"axis": {"kind": "coordinate", "name": "Not An Axis"}},
        {"select": {"mode": "all"}},
        {"select": {"mode": "latest", "limit": 0}},
        {"select": {"mode": "at", "values": []}},
        {"select": {"mode": "at", "values": ["1e3"]}},
        {"select": {"mode": "spread", "window": 3}},
        {"stream_id": 7},
    ],
)
def test_a_wrong_selection_is_refused(at: Desk, change: dict[str, Any]) -> None:
    body = {
        "stream_id": at.stream(),
        "axis": {"kind": "coordinate", "name": "step"},
        "select": {"mode": "latest", "limit": 1},
        **change,
    }
    answer = at.post("telemetry/samples", body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "validation")
