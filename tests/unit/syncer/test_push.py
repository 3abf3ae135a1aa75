"""One run to one server: what arrives, what is remembered, what is said when it does not go on."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from syncer import retry
from syncer.api.answers import ApiError
from syncer.api.client import Client
from syncer.discover import Discovery
from syncer.fence import TOKEN_LABEL, Fence
from syncer.push import RunPush
from syncer.server import data
from syncer.state import open_journal, server_hex
from tests.support.pushing import (
    Point,
    WrittenRun,
    assert_same,
    push_all,
    pushing,
    runs_on,
    server_points,
)
from tests.support.runs import TurnedClock
from tests.support.v1_server import V1Server, v1_server

Answer = Callable[[httpx.Request], httpx.Response | None]


class Between(httpx.HTTPTransport):
    """Passes requests on, unless a test answers them itself."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, str]] = []
        self.bodies: list[bytes] = []
        self.before: Answer = lambda request: None
        self.after: Callable[[httpx.Request, httpx.Response], httpx.Response] = (
            lambda request, response: response
        )

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.seen.append((request.method, request.url.path))
        body = request.read()
        if request.url.path.endswith("/telemetry/batches"):
            self.bodies.append(body)
        answer = self.before(request)
        if answer is not None:
            return answer
        return self.after(request, super().handle_request(request))

    @property
    def requests(self) -> Counter[str]:
        """How often each kind of path was asked for."""
        return Counter(path.rsplit("/", 1)[-1] for _, path in self.seen)


def refused(status: int, code: str = "made_up", **headers: str) -> httpx.Response:
    body = {"error": {"code": code, "message": "Made up.", "retryable": False}}
    return httpx.Response(status, json=body, headers=headers)


def only_ingest(answer: httpx.Response | None) -> Answer:
    def decide(request: httpx.Request) -> httpx.Response | None:
        return answer if request.url.path.endswith("/telemetry/batches") else None

    return decide


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[V1Server]:
    with v1_server(tmp_path_factory.mktemp("srv")) as server:
        yield server


@pytest.fixture
def between() -> Between:
    return Between()


@pytest.fixture
def client(server: V1Server, between: Between) -> Iterator[Client]:
    with Client(server.url, server.organization, server.key, transport=between) as client:
        yield client


def arrived(run: WrittenRun, server: V1Server) -> Counter[Point]:
    with server.client() as client:
        return server_points(client, run.run_id)


def state_directory(run: WrittenRun, client: Client) -> Path:
    return run.directory / "sync" / server_hex(client.origin, client.organization)


# --- what arrives ---------------------------------------------------------------------------------


def test_every_point_of_a_run_arrives_once(
    tmp_path: Path, server: V1Server, client: Client
) -> None:
    run = WrittenRun(tmp_path, ranks=2)
    run.log(range(1500), "loss", "lr")
    run.log(range(1500), "loss", rank=1)
    with pushing(run.directory, client) as push:
        reports = push_all(push)
    assert reports[-1].done
    assert sum(report.points for report in reports) == sum(run.points().values())
    assert_same(run.points(), arrived(run, server))
    assert len(runs_on(client, run.run_id)) == 1


def test_a_pass_sends_what_was_added_since_the_last_one_and_nothing_twice(
    tmp_path: Path, server: V1Server, client: Client
) -> None:
    run = WrittenRun(tmp_path)
    for number in range(5):
        run.log(range(number * 100, (number + 1) * 100), "loss")
        with pushing(run.directory, client) as push:
            sent = sum(report.points for report in push_all(push))
        assert sent == 100 + (number == 0)
    assert_same(run.points(), arrived(run, server))


def test_a_run_without_anything_new_costs_no_request_for_points(
    tmp_path: Path, client: Client, between: Between
) -> None:
    run = WrittenRun(tmp_path)
    run.log(range(10), "loss")
    with pushing(run.directory, client) as push:
        push_all(push)
    between.seen.clear()
    with pushing(run.directory, client) as push:
        assert push_all(push)[-1].done
    assert set(between.seen) <= {("GET", path) for _, path in between.seen}
    assert len(between.seen) <= 1


def test_each_process_has_a_session_a_key_and_a_participant_of_its_own(
    tmp_path: Path, client: Client, between: Between
) -> None:
    run = WrittenRun(tmp_path, ranks=3)
    for rank in range(3):
        run.log(range(10), "loss", rank=rank)
    run.end()
    with pushing(run.directory, client) as push:
        push_all(push)
    assert between.requests["keys"] == between.requests["sessions"] == between.requests["end"] == 3


def test_a_restriction_leaves_the_rest_for_a_later_pass(
    tmp_path: Path, server: V1Server, client: Client
) -> None:
    run = WrittenRun(tmp_path)
    run.log(range(50), "loss")
    for line in range(20):
        run.add("con", {"text": f"line {line}", "line": line, "stream": 0})
    run.log(range(50, 60), "loss")
    with pushing(run.directory, client, only={"console"}) as push:
        assert sum(report.points for report in push_all(push)) == 20
    with pushing(run.directory, client, only={"metrics"}) as push:
        assert sum(report.points for report in push_all(push)) == 60
    with pushing(run.directory, client) as push:
        assert sum(report.points for report in push_all(push)) == 1
    assert_same(run.points(), arrived(run, server))


def test_a_pass_of_newer_records_leaves_the_older_ones_for_a_later_pass(
    tmp_path: Path, server: V1Server, client: Client
) -> None:
    run = WrittenRun(tmp_path)
    for step in range(100):
        run.writers[0].append("m", {"loss": float(step)}, step=step, at=1000.0 + step)
    run.writers[0].flush()
    with pushing(run.directory, client, since=1070.0) as push:
        # The start of the run has a time of today.
        assert sum(report.points for report in push_all(push)) == 31
    with pushing(run.directory, client, since=1040.0) as push:
        assert sum(report.points for report in push_all(push)) == 30
    with pushing(run.directory, client) as push:
        assert sum(report.points for report in push_all(push)) == 40
    assert_same(run.points(), arrived(run, server))


def test_the_hole_of_such_a_pass_survives_the_loss_of_all_state(
    tmp_path: Path, server: V1Server, client: Client
) -> None:
    run = WrittenRun(tmp_path)
    for step in range(100):
        run.writers[0].append("m", {"loss": float(step)}, step=step, at=1000.0 + step)
    run.writers[0].flush()
    with pushing(run.directory, client, since=1070.0) as push:
        push_all(push)
    for path in state_directory(run, client).iterdir():
        path.unlink()
    with pushing(run.directory, client) as push:
        assert sum(report.points for report in push_all(push)) == 70
    assert_same(run.points(), arrived(run, server))


# --- what the server says about requests ----------------------------------------------------------


def test_a_request_without_an_answer_is_sent_again_byte_for_byte(
    tmp_path: Path, server: V1Server, client: Client, between: Between
) -> None:
    run = WrittenRun(tmp_path)
    run.log(range(100), "loss", "lr")
    lost: list[httpx.Response] = []

    def lose(request: httpx.Request, response: httpx.Response) -> httpx.Response:
        if request.url.path.endswith("/telemetry/batches") and not lost:
            lost.append(response)
            response.close()
            raise httpx.ReadError("cut")
        return response

    between.after = lose
    clock = TurnedClock()
    with pushing(run.directory, client, clock=clock) as push:
        assert push.acquire()
        report = push.step()
        assert report.stopped and isinstance(report.advice, retry.Wait)
        before = len(between.seen)
        assert push.step().stopped == report.stopped
        assert len(between.seen) == before, "nothing is asked while it waits"
        clock.turn(report.advice.seconds)
        push_all(push)
    assert between.bodies[0] == between.bodies[1]
    assert_same(run.points(), arrived(run, server))


@pytest.mark.parametrize(
    "answer",
    [
        {"receipts": []},
        {"receipts": [{"batch_id": "strange", "status": "accepted"}]},
        {"receipts": None},
        {},
    ],
)
def test_an_answer_that_is_no_set_of_receipts_proves_nothing(
    tmp_path: Path, server: V1Server, client: Client, between: Between, answer: Any
) -> None:
    run = WrittenRun(tmp_path)
    run.log(range(10), "loss")
    between.before = only_ingest(httpx.Response(200, json=answer))
    with pushing(run.directory, client) as push:
        assert push_all(push)[-1].points == 0
    between.before = lambda request: None
    with pushing(run.directory, client) as push:
        push_all(push)
    assert_same(run.points(), arrived(run, server))


def test_a_server_that_takes_small_requests_only_gets_all_but_what_is_too_large(
    tmp_path: Path, server: V1Server, client: Client, between: Between
) -> None:
    run = WrittenRun(tmp_path)
    run.log(range(1), *(f"metric {number}" for number in range(3000)))
    run.log(range(1, 900), "loss")
    run.add("m", {"text": "x" * 200_000}, step=900)
    run.log(range(901, 1000), "loss")
    limit = 64 << 10

    def decide(request: httpx.Request) -> httpx.Response | None:
        return refused(413, "too_large") if len(request.content) > limit else None

    between.before = decide
    with pushing(run.directory, client) as push:
        reports = push_all(push)
        assert reports[-1].done, reports[-1]
        assert push.state is not None
        (aside,) = push.state.aside
    assert aside.size > 200_000 and "text" in aside.key and "too large" in aside.why
    assert sum(report.refused for report in reports) == 1
    expected = Counter({it: n for it, n in run.points().items() if len(it[2]) < 1000})
    assert_same(expected, arrived(run, server))


def test_a_record_that_the_server_rejects_is_found_and_set_aside(
    tmp_path: Path, server: V1Server, client: Client, between: Between
) -> None:
    run = WrittenRun(tmp_path)
    run.log(range(64), "loss")
    run.log(range(64), "lr")

    def reject(request: httpx.Request) -> httpx.Response | None:
        if not request.url.path.endswith("/telemetry/batches"):
            return None
        receipts = []
        for batch in json.loads(request.content)["batches"]:
            bad = any(point["value"] == 41.25 for point in batch["points"])
            if bad:
                receipts.append(
                    {
                        "batch_id": batch["batch_id"],
                        "stream_id": batch["stream_id"],
                        "status": "rejected",
                        "code": "validation",
                        "message": "a point is odd",
                        "retryable": False,
                    }
                )
        if not receipts:
            return None
        good = [
            batch
            for batch in json.loads(request.content)["batches"]
            if batch["batch_id"] not in {it["batch_id"] for it in receipts}
        ]
        for batch in good:
            server.post("telemetry", batch)
            receipts.append(
                {
                    "batch_id": batch["batch_id"],
                    "stream_id": batch["stream_id"],
                    "status": "accepted",
                    "durability": "query_visible",
                }
            )
        return httpx.Response(200, json={"receipts": receipts})

    between.before = reject
    with pushing(run.directory, client) as push:
        assert push_all(push)[-1].done
        assert push.state is not None
        assert [it.why for it in push.state.aside] == ["rejected by the server: a point is odd"] * 2
    odd = {it: n for it, n in run.points().items() if it[2] == "4125e-2"}
    assert len(odd) == 2
    assert_same(run.points() - Counter(odd), arrived(run, server))


def test_other_content_under_our_id_is_settled_by_what_the_server_has(
    tmp_path: Path, server: V1Server, client: Client, between: Between
) -> None:
    run = WrittenRun(tmp_path)
    run.log(range(10), "loss")
    said: list[int] = []

    def contradict(request: httpx.Request, response: httpx.Response) -> httpx.Response:
        if not request.url.path.endswith("/telemetry/batches") or said:
            return response
        said.append(1)
        answer = json.loads(response.read())
        for receipt in answer["receipts"]:
            receipt.update(status="rejected", code="conflict", message="differs", retryable=False)
        return httpx.Response(200, json=answer)

    between.after = contradict
    with pushing(run.directory, client) as push:
        assert push_all(push)[-1].done
    run.log(range(10, 20), "loss")
    with pushing(run.directory, client) as push:
        assert push_all(push)[-1].done
    assert_same(run.points(), arrived(run, server))


def test_a_stream_that_is_refused_for_good_is_kept_and_named_and_the_others_go_on(
    tmp_path: Path, server: V1Server, client: Client, between: Between
) -> None:
    run = WrittenRun(tmp_path)
    run.log(range(10), "loss")
    run.log(range(10), "lr")

    def refuse(request: httpx.Request, response: httpx.Response) -> httpx.Response:
        if not request.url.path.endswith("/telemetry/batches"):
            return response
        answer = json.loads(response.read())
        sent = {it["batch_id"]: it for it in json.loads(request.content)["batches"]}
        for receipt in answer["receipts"]:
            if len(sent[receipt["batch_id"]]["points"]) == 10 and not chosen:
                chosen.add(receipt["stream_id"])
            if receipt["stream_id"] in chosen:
                receipt.update(status="rejected", code="forbidden", message="no", retryable=False)
        return httpx.Response(200, json=answer)

    chosen: set[str] = set()
    between.after = refuse
    with pushing(run.directory, client) as push:
        report = push_all(push)[-1]
        assert not report.done and "is not sent: no (forbidden)" in report.stopped
        assert not push.finish_if_ended()
    between.after = lambda request, response: response
    with pushing(run.directory, client) as push:
        assert push_all(push)[-1].done
    assert_same(run.points(), arrived(run, server))


@pytest.mark.parametrize("status", [404, 409, 410, 422])
def test_an_answer_that_will_not_change_is_remembered_until_somebody_asks_again(
    tmp_path: Path, server: V1Server, client: Client, between: Between, status: int
) -> None:
    run = WrittenRun(tmp_path)
    run.log(range(10), "loss")
    between.before = lambda request: refused(status)
    with pushing(run.directory, client) as push:
        assert push_all(push)[-1].stopped
    between.before = lambda request: None
    between.seen.clear()
    with pushing(run.directory, client) as push:
        report = push_all(push)[-1]
        assert report.stopped and isinstance(report.advice, retry.SkipRun)
    assert not between.seen
    with pushing(run.directory, client, retry_skipped=True) as push:
        assert push_all(push)[-1].done
    assert_same(run.points(), arrived(run, server))


def test_a_run_that_was_deleted_there_is_not_made_again_unasked(
    tmp_path: Path, server: V1Server, client: Client, between: Between
) -> None:
    run = WrittenRun(tmp_path)
    run.log(range(10), "loss")
    with pushing(run.directory, client) as push:
        push_all(push)
    run.log(range(10, 20), "loss")
    (document,) = runs_on(client, run.run_id)

    def gone(request: httpx.Request) -> httpx.Response | None:
        is_it = request.url.path.endswith(document["id"])
        return refused(404, "not_found") if is_it else None

    between.before = gone
    with pushing(run.directory, client) as push:
        assert "deleted on the server" in push_all(push)[-1].stopped
    with pushing(run.directory, client) as push:
        assert "deleted on the server" in push_all(push)[-1].stopped


def test_a_refused_key_pauses_for_a_minute_and_loses_nothing(
    tmp_path: Path, server: V1Server, client: Client, between: Between
) -> None:
    run = WrittenRun(tmp_path)
    run.log(range(10), "loss")
    clock = TurnedClock()
    between.before = lambda request: refused(401, "unauthorized")
    with pushing(run.directory, client, clock=clock) as push:
        report = push_all(push)[-1]
        assert isinstance(report.advice, retry.PauseForKey) and report.advice.seconds == 60
        asked = len(between.seen)
        clock.turn(59)
        assert push.step().stopped and len(between.seen) == asked
        between.before = lambda request: None
        clock.turn(2)
        assert push_all(push)[-1].done
    assert_same(run.points(), arrived(run, server))


def test_a_server_that_is_busy_is_asked_again_when_it_said(
    tmp_path: Path, server: V1Server, client: Client, between: Between
) -> None:
    run = WrittenRun(tmp_path)
    run.log(range(10), "loss")
    clock = TurnedClock()
    between.before = only_ingest(refused(429, "rate_limited", **{"Retry-After": "2"}))
    with pushing(run.directory, client, clock=clock) as push:
        report = push_all(push)[-1]
        assert isinstance(report.advice, retry.Wait) and report.advice.seconds == 2
        between.before = lambda request: None
        clock.turn(2)
        assert push_all(push)[-1].done
    assert_same(run.points(), arrived(run, server))


# --- the token ------------------------------------------------------------------------------------


def token(run: WrittenRun, client: Client) -> str:
    (document,) = runs_on(client, run.run_id)
    return str(document["spec"]["labels"].get(TOKEN_LABEL, ""))


def test_each_process_that_sends_writes_a_token_of_its_own(tmp_path: Path, client: Client) -> None:
    run = WrittenRun(tmp_path)
    tokens = set()
    for number in range(3):
        run.log(range(number, number + 1), "loss")
        with pushing(run.directory, client) as push:
            push_all(push)
        tokens.add(token(run, client))
    assert len(tokens) == 3 and "" not in tokens


def test_another_token_than_ours_makes_the_server_be_read_back(
    tmp_path: Path, server: V1Server, client: Client, between: Between
) -> None:
    run = WrittenRun(tmp_path)
    run.log(range(100), "loss", "lr")
    with pushing(run.directory, client) as push:
        push_all(push)
    (document,) = runs_on(client, run.run_id)
    spec = document["spec"]
    spec["labels"][TOKEN_LABEL] = "somebody else's"
    client.update_document(document["id"], document["revision"], spec)
    run.log(range(100, 150), "loss", "lr")
    between.seen.clear()
    with pushing(run.directory, client) as push:
        assert sum(report.points for report in push_all(push)) == 100
    assert between.requests["points"] >= 3
    assert_same(run.points(), arrived(run, server))


def test_tokens_that_were_begun_and_never_confirmed_contradict_nothing(
    tmp_path: Path, client: Client, between: Between
) -> None:
    run = WrittenRun(tmp_path)
    run.log(range(10), "loss")
    with pushing(run.directory, client) as push:
        push_all(push)
    (document,) = runs_on(client, run.run_id)
    server, place = server_hex(client.origin, client.organization), run.directory / "sync"
    journal = open_journal(
        place / server, 99, run_id=run.run_id, origin=client.origin, org=client.organization
    )
    fence = Fence(client, journal, document["id"])
    # The first token arrives and its answer does not; the second does not arrive.
    between.after = lambda request, response: (
        httpx.Response(503) if request.method == "PATCH" else response
    )
    assert fence.holds()
    with pytest.raises(ApiError):
        fence.renew()
    between.before = lambda request: httpx.Response(503) if request.method == "PATCH" else None
    assert fence.holds()
    with pytest.raises(ApiError):
        fence.renew()
    assert fence.holds()


def test_a_syncer_stops_when_it_finds_the_token_of_another(
    tmp_path: Path, client: Client, server: V1Server
) -> None:
    run = WrittenRun(tmp_path)
    run.log(range(10), "loss")
    clock = TurnedClock()
    with pushing(run.directory, client, clock=clock) as push:
        push_all(push)
        (document,) = runs_on(client, run.run_id)
        spec = document["spec"]
        spec["labels"][TOKEN_LABEL] = "somebody else's"
        client.update_document(document["id"], document["revision"], spec)
        run.log(range(10, 20), "loss")
        clock.turn(61)
        assert "from another place" in push_all(push)[-1].stopped
        # Asked again, it looks at what is there and goes on.
        assert push_all(push)[-1].done
    assert_same(run.points(), arrived(run, server))


# --- the end, and signs of life -------------------------------------------------------------------


def test_a_run_is_closed_once_it_is_complete_and_everything_is_there(
    tmp_path: Path, client: Client
) -> None:
    run = WrittenRun(tmp_path, ranks=2)
    run.log(range(10), "loss")
    with pushing(run.directory, client) as push:
        push_all(push)
        assert not push.finish_if_ended()
    run.add("close", {"state": "finished", "close_run": True}, rank=0)
    with pushing(run.directory, client) as push:
        push_all(push)
        assert not push.finish_if_ended(), "rank 1 goes on"
    assert runs_on(client, run.run_id)[0]["spec"]["state"] == "open"
    run.add("close", {"state": "finished"}, rank=1)
    with pushing(run.directory, client) as push:
        push_all(push)
        assert push.finish_if_ended() and push.finish_if_ended()
    assert runs_on(client, run.run_id)[0]["spec"]["state"] == "closed"


def test_a_failed_run_stays_open(tmp_path: Path, client: Client) -> None:
    run = WrittenRun(tmp_path)
    run.log(range(10), "loss")
    run.end("error")
    with pushing(run.directory, client) as push:
        push_all(push)
        assert not push.finish_if_ended()
    assert runs_on(client, run.run_id)[0]["spec"]["state"] == "open"


def beat(run: WrittenRun, number: int, step: int) -> None:
    run.add("hb", {"n": number, "phase": "training", "mono": 15.0 * number}, step=step)


def test_heartbeats_are_passed_on_only_while_the_process_beats(
    tmp_path: Path, client: Client, between: Between
) -> None:
    run = WrittenRun(tmp_path)
    beat(run, 1, 5)
    bodies: list[Any] = []

    def note(request: httpx.Request) -> httpx.Response | None:
        if request.url.path.endswith("/heartbeat"):
            bodies.append(json.loads(request.content))
        return None

    between.before = note
    clock = TurnedClock()
    with pushing(run.directory, client, clock=clock) as push:
        push_all(push)
        push.heartbeat()
        assert not bodies, "a number in a file is no sign of life"
        for number in range(2, 5):
            clock.turn(15)
            beat(run, number, 5 * number)
            push.heartbeat()
        assert [body.get("step") for body in bodies] == ["10", "15", "20"]
        for _ in range(12):
            clock.turn(15)
            push.heartbeat()
        assert len(bodies) == 3 + 7, "two minutes of silence are no life"


def test_a_fenced_session_is_left_alone_and_points_still_go_up(
    tmp_path: Path, server: V1Server, client: Client, between: Between
) -> None:
    run = WrittenRun(tmp_path)
    beat(run, 1, 1)
    clock = TurnedClock()
    with pushing(run.directory, client, clock=clock) as push:
        push_all(push)
        push.heartbeat()
        between.before = lambda request: (
            refused(409, "conflict") if request.url.path.endswith("/heartbeat") else None
        )
        for number in range(2, 6):
            clock.turn(15)
            beat(run, number, number)
            push.heartbeat()
        assert between.requests["heartbeat"] == 1
        run.log(range(10), "loss")
        assert push_all(push)[-1].done
    assert_same(run.points(), arrived(run, server))


# --- beside ---------------------------------------------------------------------------------------


def test_what_is_known_stands_in_acked_json(tmp_path: Path, client: Client) -> None:
    run = WrittenRun(tmp_path)
    run.log(range(10), "loss")
    with pushing(run.directory, client) as push:
        push_all(push)
    said = json.loads((state_directory(run, client) / "acked.json").read_text())
    assert said["points"] == 11 and said["done"] and said["server"] == client.origin


def test_only_one_of_two_pushes_of_a_run_gets_the_lease(tmp_path: Path, client: Client) -> None:
    run = WrittenRun(tmp_path)
    with pushing(run.directory, client) as first, pushing(run.directory, client) as second:
        assert first.acquire() and first.acquire()
        assert not second.acquire()
        assert second.step().stopped and "process" in second.holder
        first.close()
        assert second.acquire()


def test_a_state_that_cannot_be_written_stops_before_anything_is_sent(
    tmp_path: Path, client: Client, between: Between, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = WrittenRun(tmp_path)
    run.log(range(10), "loss")
    with pushing(run.directory, client) as push:
        assert push.acquire()
        push_is_full(push, monkeypatch)
        report = push.step()
        assert "No space left" in report.stopped
    assert not between.bodies


def push_is_full(push: RunPush, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every write of the state fail from now on."""

    def full(descriptor: int, data: bytes, offset: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("syncer.state._write_at", full)


# --- hosts that share no storage ------------------------------------------------------------------


def test_the_parts_of_a_run_on_hosts_without_shared_storage_become_one_run(
    tmp_path: Path, server: V1Server, client: Client
) -> None:
    here = WrittenRun(tmp_path / "here")
    here.log(range(100), "loss")
    there = WrittenRun(tmp_path / "there", ranks=2)
    next((there.directory / "data").glob("r00000-*")).unlink()
    (there.directory / "nodes").mkdir()
    manifest = (here.directory / "run.json").read_text("utf-8")
    (there.directory / "nodes" / "gpu-2-1a2b3c4d.json").write_text(manifest, "utf-8")
    (there.directory / "run.json").unlink()
    there.log(range(50), "loss", rank=1)
    for directory in (here.directory, there.directory, here.directory):
        assert [place.run_id for place in Discovery([directory]).look()] == [here.run_id]
        with pushing(directory, client) as push:
            assert push_all(push)[-1].done
    assert arrived(here, server) == here.points() + there.points()


# --- a server that went back to a backup ----------------------------------------------------------


def test_a_server_that_was_restored_gets_again_what_it_has_lost(tmp_path: Path) -> None:
    run, later = WrittenRun(tmp_path / "runs"), WrittenRun(tmp_path / "runs")

    def push_both(server: V1Server) -> list[Counter[Point]]:
        assert server.state is not None
        with server.client() as client:
            for each in (run, later):
                with pushing(each.directory, client, generation=server.state.generation) as push:
                    assert push_all(push)[-1].done
            return [server_points(client, each.run_id) for each in (run, later)]

    run.log(range(100), "loss")
    with v1_server(tmp_path / "served") as server:
        push_both(server)
        assert server.state is not None
        data.backup(server.state, tmp_path / "backup")
        run.log(range(100, 150), "loss")
        later.log(range(30), "loss")
        push_both(server)
    shutil.rmtree(server.data)
    (tmp_path / "backup").rename(server.data)
    with v1_server(tmp_path / "served", port=httpx.URL(server.url).port or 0) as restored:
        assert restored.url == server.url
        assert push_both(restored) == [run.points(), later.points()]
