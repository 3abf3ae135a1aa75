"""Syncers that are killed, stopped, replaced, copied and robbed: every point arrives once."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from syncer import inflight
from syncer.api.client import Client
from tests.support.pushing import (
    WrittenRun,
    assert_same,
    push_all,
    pushing,
    server_points,
    spawn_pusher,
)
from tests.support.reading import as_nobody
from tests.support.runs import until
from tests.support.scripted_server import ScriptedServer
from tests.support.v1_server import V1Server, v1_process

METRICS = tuple(f"m{number}" for number in range(8))


@pytest.fixture
def real(tmp_path: Path) -> Iterator[V1Server]:
    with v1_process(tmp_path / "srv") as server:
        yield server


@pytest.fixture
def far(real: V1Server) -> Iterator[ScriptedServer]:
    with ScriptedServer(real.url) as far:
        yield far
        assert_no_point_goes_under_two_ids(far)


@pytest.fixture
def server(real: V1Server, far: ScriptedServer) -> V1Server:
    """The real server behind a listener that keeps every request."""
    return replace(real, url=far.url)


@pytest.fixture
def client(server: V1Server) -> Iterator[Client]:
    with server.client() as client:
        yield client


def assert_no_point_goes_under_two_ids(far: ScriptedServer) -> None:
    """Check that a server which knows batches by their ids alone would have each point once."""
    carried: dict[tuple[str, int], str] = {}
    contents: dict[str, Any] = {}
    for asked in far.telemetry:
        try:
            batches = json.loads(asked.body)["batches"]
        except ValueError:
            continue  # Its sender was killed in the middle of it.
        for batch in batches:
            name = batch["batch_id"]
            assert contents.setdefault(name, batch) == batch, "one id, two contents"
            for point in batch["points"]:
                place = batch["stream_id"], int(point["sequence"])
                assert carried.setdefault(place, name) == name, f"{place} is in two batches"


def lines(log: Path) -> list[str]:
    return log.read_text().splitlines() if log.exists() else []


def killed_at_some_moment(process: subprocess.Popen[bytes], log: Path, chance: float) -> bool:
    """Kill a pusher some time after it got the lease; False when it was done before."""
    until(lambda: "mine" in lines(log) or process.poll() is not None)
    try:
        process.wait(chance)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return True
    return False


def killed_again_and_again(
    run: WrittenRun,
    server: V1Server,
    folder: Path,
    *,
    kills: int,
    seed: int,
    losses: frozenset[int],
) -> int:
    chance = random.Random(seed)
    hits = 0
    for number in range(kills):
        steps = range(number * 250, (number + 1) * 250)
        run.log(steps, *METRICS)
        log = folder / f"{number}.log"
        process = spawn_pusher(server, run.directory, log)
        hits += killed_at_some_moment(process, log, chance.uniform(0.0, 0.2))
        if number in losses:
            shutil.rmtree(run.directory / "sync")
    return hits


@pytest.mark.slow
def test_a_syncer_killed_at_any_moment_loses_and_doubles_nothing(
    tmp_path: Path, server: V1Server, client: Client
) -> None:
    run = WrittenRun(tmp_path)
    hits = killed_again_and_again(run, server, tmp_path, kills=20, seed=7, losses=frozenset())
    assert hits >= 10, "the kills came too late"
    with pushing(run.directory, client, lease_s=0.3) as push:
        until(push.acquire)
        assert push_all(push)[-1].done
    assert sum(run.points().values()) > 20_000
    assert_same(run.points(), server_points(client, run.run_id))


@pytest.mark.slow
def test_a_state_deleted_between_kills_costs_a_look_and_no_point(
    tmp_path: Path, server: V1Server, client: Client
) -> None:
    run = WrittenRun(tmp_path)
    killed_again_and_again(run, server, tmp_path, kills=8, seed=11, losses=frozenset({1, 3, 4, 6}))
    with pushing(run.directory, client, lease_s=0.3) as push:
        until(push.acquire)
        assert push_all(push)[-1].done
    assert_same(run.points(), server_points(client, run.run_id))


@pytest.mark.slow
def test_a_stopped_holder_that_wakes_up_after_it_was_replaced_sends_nothing_more(
    tmp_path: Path, server: V1Server, client: Client
) -> None:
    run = WrittenRun(tmp_path)
    run.log(range(4000), *METRICS)
    old_log, new_log = tmp_path / "old.log", tmp_path / "new.log"
    old = spawn_pusher(server, run.directory, old_log, slice_s=0.01)
    until(lambda: len([it for it in lines(old_log) if it.startswith("sent")]) >= 2)
    old.send_signal(signal.SIGSTOP)
    before = len(lines(old_log))
    try:
        new = spawn_pusher(server, run.directory, new_log)
        assert new.wait(60) == 0
    finally:
        old.send_signal(signal.SIGCONT)
    assert old.wait(60) == 0
    assert lines(new_log)[-1] == "done"
    after = lines(old_log)[before:]
    # A request that was on its way when it was stopped may get its answer, and no other.
    assert after[-1].startswith("stopped Another syncer has taken over"), after
    assert len([it for it in after if it.startswith("sent")]) <= 1
    assert_same(run.points(), server_points(client, run.run_id))


@pytest.mark.slow
def test_two_syncers_that_are_killed_at_random_leave_each_point_once(
    tmp_path: Path, server: V1Server, client: Client
) -> None:
    run = WrittenRun(tmp_path)
    chance = random.Random(3)
    running: list[subprocess.Popen[bytes]] = []
    for number in range(8):
        run.log(range(number * 250, (number + 1) * 250), *METRICS)
        while len(running) < 2:
            log = tmp_path / f"{number}-{len(running)}.log"
            running.append(spawn_pusher(server, run.directory, log, slice_s=0.05))
        until(lambda: any("mine" in lines(it) for it in tmp_path.glob("*.log")))
        victim = running.pop(chance.randrange(2))
        try:
            victim.wait(chance.uniform(0.3, 0.8))
        except subprocess.TimeoutExpired:
            victim.kill()
            victim.wait()
    for process in running:
        process.wait(60)
    with pushing(run.directory, client, lease_s=0.3) as push:
        until(push.acquire)
        assert push_all(push)[-1].done
    assert_same(run.points(), server_points(client, run.run_id))


def test_a_copy_of_a_run_that_was_sent_in_part_goes_on_where_the_server_is(
    tmp_path: Path, client: Client
) -> None:
    run = WrittenRun(tmp_path / "first")
    run.log(range(300), "loss")
    with pushing(run.directory, client) as push:
        push_all(push)
        shutil.copytree(run.directory, tmp_path / "second" / run.run_id)
        run.log(range(300, 600), "loss")
        push_all(push)
    copy = tmp_path / "second" / run.run_id
    run.end()
    for name in os.listdir(run.directory / "data"):
        shutil.copy(run.directory / "data" / name, copy / "data" / name)
    # The copied lease has no holder: it lapses.
    with pushing(copy, client, lease_s=0.05) as push:
        until(push.acquire)
        reports = push_all(push)
    assert reports[-1].done
    assert sum(report.points for report in reports) == 1  # The end, which the first never sent.
    assert_same(run.points(), server_points(client, run.run_id))


def test_two_servers_get_everything_each(tmp_path: Path, server: V1Server, client: Client) -> None:
    run = WrittenRun(tmp_path)
    run.log(range(700), "loss", "lr")
    with v1_process(tmp_path / "other") as other, other.client() as second:
        for target in (client, second, client, second):
            run.log(range(700, 800), "loss")
            with pushing(run.directory, target) as push:
                assert push_all(push)[-1].done
        with pushing(run.directory, client) as push:
            push_all(push)
        assert_same(run.points(), server_points(client, run.run_id))
        assert_same(run.points(), server_points(second, run.run_id))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_a_run_that_cannot_be_written_is_sent_all_the_same(
    server: V1Server, client: Client
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        public = Path(folder)
        run = WrittenRun(public / "runs")
        run.log(range(500), "loss")
        home = public / "home"
        home.mkdir()
        home.chmod(0o777)
        for path in (public, *public.rglob("*")):
            if path != home:
                path.chmod(0o555 if path.is_dir() else 0o444)

        def push_it() -> dict[str, Any]:
            with (
                server.client() as mine,
                pushing(run.directory, mine, state_root=home) as push,
            ):
                return {"points": sum(report.points for report in push_all(push))}

        assert as_nobody(push_it) == {"points": 501}
        assert as_nobody(push_it) == {"points": 0}
        assert [it.name for it in home.iterdir()] == [run.run_id]
        assert not os.listdir(run.directory / "sync")
        assert_same(run.points(), server_points(client, run.run_id))


def left_on_the_way(run: WrittenRun, server: V1Server, *, arrives: bool) -> None:
    """Push until the first request, whose answer is lost."""

    class Cut(httpx.HTTPTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            is_it = request.url.path.endswith("/telemetry/batches")
            if is_it and not arrives:
                raise httpx.ConnectError("cut")
            response = super().handle_request(request)
            if is_it:
                response.close()
                raise httpx.ReadError("cut")
            return response

    with (
        Client(server.url, server.organization, server.key, transport=Cut()) as client,
        pushing(run.directory, client) as push,
    ):
        assert push_all(push)[-1].stopped
        assert push.state is not None and push.state.flights


@pytest.mark.parametrize("arrives", [True, False])
def test_records_that_were_on_their_way_and_cannot_be_read_are_never_guessed(
    tmp_path: Path, server: V1Server, client: Client, arrives: bool
) -> None:
    run = WrittenRun(tmp_path)
    run.log(range(100), "loss")
    expected = run.points()
    left_on_the_way(run, server, arrives=arrives)
    (journal,) = (run.directory / "data").iterdir()
    journal.rename(tmp_path / journal.name)
    run.attempt()
    run.log(range(10), "loss")
    expected += run.points()
    with pushing(run.directory, client) as push:
        report = push_all(push)[-1]
    if arrives:
        assert report.done
        assert_same(expected, server_points(client, run.run_id))
    else:
        assert "cannot be read any more" in report.stopped
        assert_same(run.points(), server_points(client, run.run_id))
    (tmp_path / journal.name).rename(journal)
    with pushing(run.directory, client) as push:
        assert push_all(push)[-1].done
    assert_same(run.points(), server_points(client, run.run_id))


@pytest.mark.parametrize("arrives", [True, False])
def test_bytes_that_would_come_out_otherwise_are_settled_by_what_the_server_has(
    tmp_path: Path, server: V1Server, client: Client, arrives: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = WrittenRun(tmp_path)
    run.log(range(100), "loss", "lr")
    left_on_the_way(run, server, arrives=arrives)
    really = inflight.remake

    def other(*arguments: Any) -> Any:
        ready, failed = really(*arguments)
        return [], [*failed, *((it.flight, it.flight.count) for it in ready)]

    monkeypatch.setattr(inflight, "remake", other)
    with pushing(run.directory, client) as push:
        reports = push_all(push)
    assert reports[-1].done
    assert sum(report.points for report in reports) == (0 if arrives else 201)
    assert_same(run.points(), server_points(client, run.run_id))
