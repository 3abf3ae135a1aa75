"""Answers of a server that mean trouble: what the syncer makes of each, as a process of its own."""

from __future__ import annotations

import email.utils
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launchhelm.cli import Exit
from syncer.server import accounts
from tests.support.reading import RunBuilder, WriterBuilder, wait_for
from tests.support.scripted_server import Asked, Reply, ScriptedServer, refusal
from tests.support.sync_command import (
    SyncCommand,
    assert_single,
    points,
    steps,
)
from tests.support.v1_server import PROJECT, V1Server, v1_server

STEPS = 40


@pytest.fixture
def server(tmp_path: Path) -> Iterator[V1Server]:
    with v1_server(tmp_path / "srv") as it:
        yield it


@pytest.fixture
def far(server: V1Server) -> Iterator[ScriptedServer]:
    with ScriptedServer(server.url) as it:
        yield it


@pytest.fixture
def sync(tmp_path: Path, server: V1Server, far: ScriptedServer) -> SyncCommand:
    return SyncCommand(tmp_path, far.url, server.key, {"LAUNCHHELM_PROJECT": PROJECT})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "runs"
    path.mkdir()
    return path


def trained(root: Path, name: str, *, loss: float = 1.0) -> WriterBuilder:
    """Make a run of some steps."""
    writer = RunBuilder(root, name=name).writer()
    log(writer, range(STEPS), loss=loss)
    return writer


def log(writer: WriterBuilder, numbers: range, *, loss: float = 1.0) -> None:
    for step in numbers:
        writer.metrics(step, loss=loss)
    writer.flush()


# --- an answer about one run ----------------------------------------------------------------------


def test_a_run_that_the_server_will_not_take_is_asked_for_once_and_holds_up_no_other(
    server: V1Server, far: ScriptedServer, sync: SyncCommand, root: Path
) -> None:
    marks = {409: 409.25, 410: 410.25, 422: 422.25}
    first = trained(root, "first")
    for status, mark in marks.items():
        trained(root, f"refused-{status}", loss=mark)
    last = trained(root, "last")

    def script(asked: Asked) -> Reply | None:
        meant = [it for it, mark in marks.items() if f"{mark}".encode() in asked.body]
        return refusal(meant[0], "gone") if asked.is_telemetry and meant else None

    far.script = script
    began = time.monotonic()
    done = sync.once(root)
    assert time.monotonic() - began < 15.0
    assert done.code == Exit.IN_PART
    assert {name: it["state"] for name, it in done.runs.items()} == {
        "first": "sent",
        "last": "sent",
        **{f"refused-{status}": "skipped" for status in marks},
    }
    assert sorted(asked.status for asked in far.telemetry if asked.status != 200) == [*marks]
    assert len(done.err.splitlines()) == len(marks), "one clear line for each"

    # It is remembered: the next pass sends the others and asks for none of these.
    log(first, range(STEPS, 2 * STEPS))
    log(last, range(STEPS, 2 * STEPS))
    far.seen.clear()
    done = sync.once(root)
    assert done.code == Exit.IN_PART and done.points == 2 * STEPS
    assert [asked.status for asked in far.telemetry] == [200, 200]

    # And it is not for ever.
    far.script = lambda asked: None
    assert sync.once(root, "--retry-skipped").code == Exit.DONE
    found = points(server, "loss")
    assert_single(found)
    assert len(found) == (len(marks) + 4) * STEPS


# --- a server that is busy ------------------------------------------------------------------------


def test_a_wait_that_the_server_asks_for_is_kept_for_all_runs_in_seconds_and_by_date(
    server: V1Server, far: ScriptedServer, sync: SyncCommand, root: Path
) -> None:
    for number in range(6):
        trained(root, f"run-{number}")
    until: list[float] = []

    def script(asked: Asked) -> Reply | None:
        if not asked.is_telemetry or len(far.telemetry) % 3 != 0:
            return None
        if until:
            date = math.ceil(time.time()) + 1
            until.append(time.monotonic() + date - time.time())
            text = email.utils.formatdate(date, usegmt=True)
            return refusal(503, "unavailable", headers={"Retry-After": text})
        until.append(time.monotonic() + 1)
        return refusal(429, "rate_limited", headers={"Retry-After": "1"})

    far.script = script
    done = sync.once(root)

    assert done.code == Exit.DONE, done.err
    refused = [asked for asked in far.seen if asked.status in (429, 503)]
    assert len(refused) == len(until) == 2
    for asked, end in zip(refused, until, strict=True):
        early = [it for it in far.seen if asked.at < it.at < end - 0.05]
        assert not early, f"{len(early)} requests within the wait"
        again = [it.body for it in far.telemetry if it.at > asked.at]
        assert again.count(asked.body) == 1, "the same batch is sent again"
    assert len(far.telemetry) <= 1.6 * 6
    found = points(server, "loss")
    assert_single(found)
    assert steps(found) == sorted([*range(STEPS)] * 6)


# --- a server that takes no large requests --------------------------------------------------------


def test_batches_are_made_smaller_for_a_server_with_a_limit_and_one_giant_is_set_aside(
    server: V1Server, far: ScriptedServer, sync: SyncCommand, root: Path
) -> None:
    limit, metrics = 64 << 10, 5_000
    writer = RunBuilder(root, name="wide").writer()
    writer.metrics(7, **{f"m/{number}": number / 4 for number in range(metrics)})
    giant = writer.metrics(8, note="x" * 200_000)
    writer.metrics(9, note="small")
    writer.flush()
    far.script = lambda asked: refusal(413, "too_large") if len(asked.body) > limit else None

    done = sync.once(root)

    assert done.code == Exit.IN_PART
    assert done.runs["wide"]["state"] == "sent" and done.runs["wide"]["set_aside"] == 1
    assert done.points == metrics + 1
    assert "1 values were set aside" in done.err
    taken = [asked for asked in far.telemetry if asked.status == 200]
    brought = [identity for asked in taken for identity in asked.identities]
    assert len(brought) == len(set(brought)) == metrics + 1
    assert [it.value for it in points(server, "note")] == ["small"]

    # A second pass does not try it again.
    far.seen.clear()
    assert sync.once(root).points == 0
    assert not far.telemetry
    (value,) = json.loads(sync.once(root, verb="status").out)["values"]
    assert (value["name"], value["record"]) == ("note", giant) and value["size"] > 200_000
    assert "too large" in value["why"]


# --- a key that is revoked ------------------------------------------------------------------------


def test_a_revoked_key_pauses_everything_and_a_new_one_in_its_file_goes_on(
    tmp_path: Path, server: V1Server, far: ScriptedServer, sync: SyncCommand, root: Path
) -> None:
    pause_s, pauses = 0.5, 3
    file = tmp_path / "key"
    file.write_text(server.key, "utf-8")
    sync.key = ""
    writer = trained(root, "keyed")
    revoked: set[str] = set()

    def script(asked: Asked) -> Reply | None:
        is_revoked = asked.headers["Authorization"] in revoked
        return refusal(401, "unauthorized") if is_revoked else None

    def refused() -> int:
        return len([asked for asked in far.seen if asked.status == 401])

    far.script = script
    change = f"from syncer import retry\nretry.KEY_PAUSE_S = {pause_s}\n"
    with sync.watching(root, "--key-file", file, change=change) as process:
        wait_for(lambda: len(points(server, "loss")) == STEPS)
        revoked |= {asked.headers["Authorization"] for asked in far.seen}
        log(writer, range(STEPS, 2 * STEPS))
        wait_for(refused)
        began, before = time.monotonic(), refused()
        wait_for(lambda: time.monotonic() - began > pauses * pause_s)
        assert refused() - before <= pauses, "more than one request a pause"
        assert process.poll() is None
        new_key = another_key(server)
        file.write_text(new_key, "utf-8")
        wait_for(lambda: len(points(server, "loss")) == 2 * STEPS)
        process.terminate()
        out, err = process.communicate(timeout=30)
    found = points(server, "loss")
    assert_single(found)
    assert steps(found) == list(range(2 * STEPS))
    written = b"".join(path.read_bytes() for path in root.rglob("*") if path.is_file())
    for key in (server.key, new_key):
        assert key not in out + err and key.encode() not in written


def another_key(server: V1Server) -> str:
    """Make a key with every right."""
    assert server.state is not None
    with server.state.database.write() as connection:
        _, key = accounts.create_key(
            connection,
            name="new",
            organization_id=server.organization,
            grants=[accounts.Grant("", "", frozenset({accounts.EVERY_ACTION}))],
            now=time.time(),
        )
    return key
