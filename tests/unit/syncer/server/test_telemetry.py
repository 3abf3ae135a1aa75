"""Ingest: what a receipt promises, what counts as the same, and what is never refused."""

from __future__ import annotations

import asyncio
import json
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from syncer.server import batch, telemetry
from syncer.server.together import Together
from tests.support.telemetry_desk import START, Desk, desk, point


@pytest.fixture
def at(tmp_path: Path) -> Iterator[Desk]:
    with desk(tmp_path) as made:
        yield made


def test_an_accepted_batch_is_visible_to_reads_at_once(at: Desk) -> None:
    stream = at.stream()
    sent = at.batch(stream, [point(0, 0.25), point(1, 0.125)])
    (receipt,) = at.ingest(sent)
    assert receipt == {
        "batch_id": sent["batch_id"],
        "stream_id": stream,
        "status": "accepted",
        "durability": "query_visible",
    }
    assert at.values(stream) == [0.25, 0.125]


def test_a_receipt_comes_for_every_batch_of_every_stream(at: Desk) -> None:
    streams = [at.stream() for _ in range(5)]
    sent = [at.batch(stream, [point(n) for n in range(3)]) for stream in streams]
    assert at.status(*sent) == ["accepted"] * 5
    assert all(len(at.values(stream)) == 3 for stream in streams)


def test_the_same_batch_again_is_a_duplicate_and_stores_nothing(at: Desk) -> None:
    stream = at.stream()
    sent = at.batch(stream, [point(0), point(1)])
    assert at.status(sent, sent) == ["accepted", "duplicate"]
    assert at.status(sent) == ["duplicate"]
    assert len(at.values(stream)) == 2


def test_a_batch_spelled_otherwise_is_still_the_same(at: Desk) -> None:
    stream = at.stream()
    sent = at.batch(stream, [point(0, 100.0), point(1, {"$number": "nonfinite", "value": "nan"})])
    assert at.status(sent) == ["accepted"]
    text = json.dumps({"batches": [dict(reversed(sent.items()))]}, indent=1)
    assert '"value": 100.0' in text
    answer = at.post_raw("telemetry/batches", text.replace("100.0", "1e2").encode())
    assert [r["status"] for r in answer.json()["receipts"]] == ["duplicate"]


@pytest.mark.parametrize(
    "change",
    [
        {"points": [point(0, 0.5)]},
        {"points": [point(0, 0.5), point(1, 0.75)]},
        {"points": [point(0, 0.5), point(2, 0.5)]},
        {"points": [point(0, 0.5), point(1, 0.5, at=START)]},
    ],
)
def test_the_same_batch_id_with_other_content_is_a_conflict(
    at: Desk, change: dict[str, Any]
) -> None:
    stream = at.stream()
    sent = at.batch(stream, [point(0), point(1)])
    at.ingest(sent)
    (receipt,) = at.ingest({**sent, **change})
    assert (receipt["status"], receipt["code"], receipt["retryable"]) == (
        "rejected",
        "conflict",
        False,
    )
    assert len(at.values(stream)) == 2


def test_a_batch_id_belongs_to_one_stream(at: Desk) -> None:
    one, other = at.stream(), at.stream()
    sent = at.batch(one, [point(0)])
    assert at.status(sent, {**sent, "stream_id": other}) == ["accepted", "rejected"]
    assert at.values(other) == []


def test_a_repeated_point_is_skipped_and_a_contradicting_one_noted(at: Desk) -> None:
    stream = at.stream()
    at.ingest(at.batch(stream, [point(0, 1), point(1, 1)]))
    again = at.batch(stream, [point(1, 1.0), point(2, 1), point(0, 99)])
    assert at.status(again) == ["accepted"]
    assert at.values(stream) == [1, 1, 1]
    (event,) = at.events("points_contradicted")
    assert event["facts"]["batch_id"] == again["batch_id"]
    assert (event["facts"]["count"], event["facts"]["sequences"]) == (1, ["0"])


def test_a_contradicting_batch_is_recognised_when_it_comes_again(at: Desk) -> None:
    stream = at.stream()
    at.ingest(at.batch(stream, [point(0, 1)]))
    again = at.batch(stream, [point(0, 99), point(1, 5)])
    assert at.status(again, again) == ["accepted", "duplicate"]
    text = json.dumps({"batches": [again]}, indent=1).replace(" 99", " 99.0")
    answer = at.post_raw("telemetry/batches", text.encode())
    assert [r["status"] for r in answer.json()["receipts"]] == ["duplicate"]
    other = {**again, "points": [point(0, 98), point(1, 5)]}
    assert at.status(other) == ["rejected"]
    assert len(at.events("points_contradicted")) == 1


def test_a_sequence_twice_in_one_batch_keeps_the_first(at: Desk) -> None:
    stream = at.stream()
    assert at.status(at.batch(stream, [point(0, 1), point(0, 2)])) == ["accepted"]
    assert at.values(stream) == [1]
    assert len(at.events("points_contradicted")) == 1


def test_the_same_sequence_of_another_epoch_is_another_point(at: Desk) -> None:
    stream = at.stream()
    old = at.batch(stream, [point(0, 1)])
    at.epoch = at.connect()
    assert at.status(at.batch(stream, [point(0, 2)]), old) == ["accepted", "accepted"]
    assert at.values(stream) == [1, 2]


def test_late_data_of_ended_sessions_closed_runs_and_old_revisions_is_accepted(at: Desk) -> None:
    stream = at.stream()
    spec = at.get(f"documents/{stream}").json()["spec"]
    at.asgi.run(
        at.asgi.http.patch(
            at.path(f"documents/{stream}"),
            json={"expected_revision": "1", "spec": {**spec, "unit": "nats"}},
        )
    )
    ended = at.post(
        f"participants/{at.participant}/session/end",
        {"epoch": at.epoch, "close_run": "when_idle"},
    )
    assert ended.json()["run_closed"] is True
    assert at.status(at.batch(stream, [point(0)])) == ["accepted"]
    assert at.status(at.batch(stream, [point(1)], stream_revision="2")) == ["accepted"]


def test_an_epoch_that_never_was_is_rejected(at: Desk) -> None:
    (receipt,) = at.ingest(at.batch(at.stream(), [point(0)], epoch="77"))
    assert receipt["code"] == "validation"


def test_an_unknown_stream_and_a_foreign_participant_are_rejected(at: Desk) -> None:
    other = at.document("participant", {"name": "rank-1", "role": "trainer"})
    stream = at.stream()
    good = at.batch(stream, [point(0)])
    unknown = at.batch(str(uuid.uuid4()), [point(0)])
    no_stream = at.batch(at.participant, [point(0)])
    foreign = at.batch(stream, [point(0)], participant_id=other)
    receipts = at.ingest(unknown, good, foreign, no_stream)
    assert [r["status"] for r in receipts] == ["rejected", "accepted", "rejected", "rejected"]
    assert [r.get("code") for r in receipts] == ["not_found", None, "validation", "not_found"]
    assert not any(r.get("retryable") for r in receipts)


def test_a_key_of_another_participant_may_not_write(at: Desk) -> None:
    other = at.document("participant", {"name": "rank-1", "role": "trainer"})
    sent = at.batch(at.stream(), [point(0)])
    token = at.make_key(participant_id=other)
    headers = {"Authorization": f"Bearer {token}"}
    answer = at.post("telemetry/batches", {"protocol": "1.0", "batches": [sent]}, headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")


@pytest.mark.parametrize(
    ("kind", "bad", "flag"),
    [
        ("number", point(0, "high"), "wrong_type"),
        ("number", point(0, True), "wrong_type"),
        ("number", point(0, None), "wrong_type"),
        ("string", point(0, 1), "wrong_type"),
        ("boolean", point(0, 1), "wrong_type"),
        ("object", point(0, []), "wrong_type"),
        ("number", point(0, coordinates=[{"axis": "token", "value": "1"}]), "unknown_axis"),
        ("number", point(0, coordinates=[{"axis": "step", "value": "1e3"}]), "bad_coordinate"),
        ("number", point(0, coordinates=[{"axis": "step", "value": "1"}] * 2), "bad_coordinate"),
        ("number", point(0, coordinates=["step"]), "bad_coordinate"),
    ],
)
def test_an_ill_fitting_point_is_stored_with_a_flag(
    at: Desk, kind: str, bad: dict[str, Any], flag: str
) -> None:
    stream = at.stream(kind)
    assert at.status(at.batch(stream, [bad])) == ["accepted"]
    assert at.status(at.batch(stream, [{**bad, "sequence": "1"}])) == ["accepted"]
    items = at.points(stream)["items"]
    assert [item["flags"] for item in items] == [[flag], [flag]]
    assert items[0]["value"] == bad["value"]
    (event,) = at.events("point_flagged")
    assert event["facts"]["flag"] == flag


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("number", 1e300),
        ("number", -0.0),
        ("number", 12345678901234567890),
        ("number", {"$number": "integer", "value": "1" + "0" * 22}),
        ("number", {"$number": "nonfinite", "value": "-inf"}),
        ("string", "pending: a line of the console"),
        ("string", '\x00 \u2028 \U0001f600 " \\ </script>'),
        ("boolean", False),
        ("object", {"text": "hello"}),
        ("object", {"edges": [1.0, 1.0], "counts": [3]}),
    ],
)
def test_a_fitting_value_comes_back_as_it_was(at: Desk, kind: str, value: Any) -> None:
    stream = at.stream(kind)
    at.ingest(at.batch(stream, [point(0, value)]))
    (item,) = at.points(stream)["items"]
    assert item["value"] == value and type(item["value"]) is type(value)
    assert "flags" not in item


def test_a_schema_of_the_users_own_takes_every_value(at: Desk) -> None:
    stream = at.stream(value_schema={"anyOf": [{"type": "number"}]})
    at.ingest(at.batch(stream, [point(0, ["anything"])]))
    assert "flags" not in at.points(stream)["items"][0]


@pytest.mark.parametrize(
    "broken",
    [
        "no object",
        {"coordinates": [], "value": 1, "sequence": "0"},
        {**point(0), "sequence": 0},
        {**point(0), "sequence": "-1"},
        {**point(0), "sequence": str(1 << 63)},
        point(0, observed_at="yesterday"),
        point(0, observed_at="2026-13-01T00:00:00Z"),
        point(0, observed_at="2026-W01-1T00:00:00Z"),
        point(0, observed_at=7),
        point(0, coordinates="step"),
        point(0, {"items": [{"source": {"artifact": {"id": "pending:" + "0" * 64}}}]}),
    ],
)
def test_a_point_that_cannot_be_read_rejects_its_batch_alone(at: Desk, broken: Any) -> None:
    stream = at.stream("object")
    good = at.batch(stream, [point(1, {"text": "x"})])
    receipts = at.ingest(at.batch(stream, [point(0, {"text": "x"}), broken]), good)
    assert [r["status"] for r in receipts] == ["rejected", "accepted"]
    assert receipts[0]["code"] == "validation" and receipts[0]["retryable"] is False
    assert "Point 1" in receipts[0]["message"]
    assert at.values(stream) == [{"text": "x"}]


def test_a_thousand_points_fit_a_batch_and_no_more(at: Desk) -> None:
    stream = at.stream()
    full = at.batch(stream, [point(n) for n in range(1000)])
    over = at.batch(stream, [point(n) for n in range(1001)])
    assert at.status(full, over) == ["accepted", "rejected"]


def test_256_batches_fit_a_request_and_no_more(at: Desk) -> None:
    stream = at.stream()
    sent = [at.batch(stream, [point(n)]) for n in range(257)]
    assert set(at.status(*sent[:256])) == {"accepted"}
    answer = at.post("telemetry/batches", {"protocol": "1.0", "batches": sent})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "validation")


def test_a_body_over_four_mebibytes_is_too_large(at: Desk) -> None:
    answer = at.post_raw("telemetry/batches", b" " * ((4 << 20) + 1))
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"batches":[7]}', b'{"batches":[{"x":NaN}]}'])
def test_a_body_without_receipts_to_give_is_refused(at: Desk, body: bytes) -> None:
    answer = at.post_raw("telemetry/batches", body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "validation")


def test_single_ingest_answers_with_the_batch_and_its_durability(at: Desk) -> None:
    stream = at.stream()
    sent = at.batch(stream, [point(0)])
    for _ in range(2):
        answer = at.post("telemetry", sent).json()
        assert answer["batch_id"] == sent["batch_id"]
        assert answer["durability"] == "query_visible"
    refused = at.post("telemetry", {**sent, "points": [point(3)]})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "conflict")


def test_batches_survive_a_restart_of_the_server(tmp_path: Path) -> None:
    with desk(tmp_path) as first:
        stream = first.stream()
        sent = first.batch(stream, [point(0)])
        first.ingest(sent)
    database = first.server.database.__class__(tmp_path / "server.db", first.clock)
    try:
        with database.write() as connection:
            found = connection.execute("SELECT digest FROM batches").fetchall()
        assert [row["digest"] for row in found] == [batch.read(sent).digest]
    finally:
        database.close()


def test_the_standard_library_reads_and_writes_the_same(
    at: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = at.stream()
    fast, slow = at.batch(stream, [point(0, 1e-7)]), at.batch(stream, [point(1, 0.1)])
    assert at.status(fast) == ["accepted"]
    monkeypatch.setattr(batch, "_orjson", None)
    assert at.status(slow, fast) == ["accepted", "duplicate"]
    assert at.values(stream) == [1e-7, 0.1]


def test_many_at_once_lose_and_double_nothing(at: Desk) -> None:
    stream = at.stream()
    sent = [at.batch(stream, [point(n * 10 + k) for k in range(10)]) for n in range(40)]
    answers: list[str] = []

    def push(each: dict[str, Any]) -> None:
        answers.extend(at.status(each))

    threads = [threading.Thread(target=push, args=(each,)) for each in sent * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(answers) == ["accepted"] * 40 + ["duplicate"] * 40
    sequences = [item["sequence"] for item in at.points(stream, limit=1000)["items"]]
    assert sequences == [str(n) for n in range(400)]


def test_reads_are_answered_while_any_number_of_ingests_wait(at: Desk) -> None:
    stream = at.stream()
    bodies = [{"batches": [at.batch(stream, [point(n)])]} for n in range(60)]

    async def push() -> list[int]:
        path, http = at.path("telemetry/batches"), at.asgi.http
        answers = await asyncio.gather(*(http.post(path, json=body) for body in bodies))
        return [answer.status_code for answer in answers]

    with ThreadPoolExecutor(1) as pool:
        with at.server.database.write():
            waiting = pool.submit(at.asgi.run, push())
            assert at.points(stream)["items"] == []
            assert not waiting.done()
        assert waiting.result(30) == [200] * 60
    assert len(at.values(stream)) == 60


def test_a_failing_job_does_not_take_its_neighbours_along(at: Desk) -> None:
    """Jobs that wait behind a commit share the next one; one that raises is alone with that."""
    together, inside, go = Together(), threading.Event(), threading.Event()
    results: dict[str, object] = {}

    def holding(connection: Any) -> str:
        inside.set()
        assert go.wait(30)
        return "held"

    def failing(connection: Any) -> str:
        raise RuntimeError("only mine")

    def noting(connection: Any) -> str:
        connection.execute("INSERT INTO events VALUES (NULL, '', 'noted', 0, '{}')")
        return "noted"

    def run(name: str, job: Any) -> None:
        try:
            results[name] = together.run(at.server.database.write, job)
        except RuntimeError as error:
            results[name] = error

    threads = [threading.Thread(target=run, args=("first", holding))]
    threads[0].start()
    assert inside.wait(30)
    for name, job in (("good", noting), ("bad", failing), ("more", noting)):
        threads.append(threading.Thread(target=run, args=(name, job)))
        threads[-1].start()
    while together.waiting < 3:
        threads[-1].join(0.01)
    go.set()
    for thread in threads:
        thread.join(30)
    assert (results["first"], results["good"], results["more"]) == ("held", "noted", "noted")
    assert str(results["bad"]) == "only mine"
    with at.server.database.read() as connection:
        assert connection.execute("SELECT count(*) FROM events").fetchone()[0] == 2


def test_a_statement_is_made_for_every_remainder() -> None:
    assert telemetry._statement(2).endswith("VALUES (?,?,?,?,?,?),(?,?,?,?,?,?)")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00.000000Z"),
        ("2026-01-01T00:00:00.5Z", "2026-01-01T00:00:00.500000Z"),
        ("2026-01-01t00:00:00.123456789z", "2026-01-01T00:00:00.123456Z"),
        ("2026-01-01T01:30:00+01:30", "2026-01-01T00:00:00.000000Z"),
        ("1969-12-31T23:59:59.999999Z", "1969-12-31T23:59:59.999999Z"),
        ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00.000000Z"),
        ("9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59.999999Z"),
    ],
)
def test_times_come_back_in_utc_with_six_digits(text: str, said: str) -> None:
    assert batch.moment(batch.instant(text)) == said
