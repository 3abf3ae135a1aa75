"""Run directories of old releases open for ever, and say what they always said."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from launchhelm import views
from launchhelm.records import Record
from launchhelm.store.manifest import attempts, load_manifest
from launchhelm.store.reader import Reader
from tests.support.reading import FakeClock, tree

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "format-1"
RUNS = sorted(path.name.removesuffix(".expected.json") for path in GOLDEN.glob("*.expected.json"))
LONG_AFTER = 1_800_000_000.0


def expected(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GOLDEN / f"{name}.expected.json").read_text("utf-8"))
    return found


def as_expected(record: Record) -> list[Any]:
    texts = {name: repr(value) for name, value in record.body.items()}
    return [record.kind, record.at, record.step, dict(record.axes), texts]


def test_golden_files_were_not_edited() -> None:
    sums = (GOLDEN / "SHA256SUMS").read_text("utf-8").splitlines()
    listed = {}
    for line in sums:
        digest, _, name = line.partition("  ")
        listed[name.removeprefix("./")] = digest
    found = {
        str(path.relative_to(GOLDEN)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in GOLDEN.rglob("*")
        if path.is_file() and path.name != "SHA256SUMS"
    }
    assert found == listed
    assert len(RUNS) == 5


@pytest.mark.parametrize("name", RUNS)
def test_every_record_of_a_golden_run_reads_as_it_was_written(name: str) -> None:
    directory = GOLDEN / name
    before = tree(directory)
    known = expected(name)
    reader = Reader(directory)
    found: dict[str, dict[int, list[Any]]] = {}
    for record in reader.poll():
        found.setdefault(str(record.writer), {})[record.seq] = as_expected(record)
    wanted = {
        writer: {seq: record for seq, record in enumerate(records) if record is not None}
        for writer, records in known["records"].items()
    }
    assert found == wanted
    assert reader.problems == []
    assert tree(directory) == before


@pytest.mark.parametrize("name", RUNS)
def test_every_golden_run_opens_in_the_views(name: str) -> None:
    directory = GOLDEN / name
    known = expected(name)
    manifest = load_manifest(directory)
    assert (manifest.run_id, manifest.name) == (known["run_id"], known["name"])
    assert manifest.config == {"lr": 0.01, "model": {"layers": 2}, "resume": False}
    assert manifest.extra["notes"] == "naïve ☃"
    view = views.open_run(directory, clock=FakeClock(wall=LONG_AFTER))
    assert len(attempts(directory)) == len(view.attempts)
    assert {"loss", "ok", "tokens", "word"} <= set(view.metrics())
    assert view.problems == []


def states() -> dict[str, str]:
    clock = FakeClock(wall=LONG_AFTER)
    return {run.name: run.state.word for run in views.runs(GOLDEN, clock=clock)}


def test_golden_runs_are_in_the_state_in_which_they_were_left() -> None:
    # The journals' own times are those of the checkout, which may be in the observer's future.
    found = states()
    assert found["two-attempts"] == "finished"
    assert found["killed-rank"] == "stopped"
    assert set(found) == set(RUNS)


def test_a_golden_ledger_tells_the_whole_way_of_its_command() -> None:
    (command,) = views.open_run(GOLDEN / "sealed-and-journal").commands
    assert [state.state for state in command.states] == ["claimed", "applying", "applied"]
    assert (command.name, command.payload, command.owner) == ("lr", {"scale": 0.5}, "alice")
    assert command.outcome is not None
    assert (command.outcome.applied_on, command.outcome.of) == (1, 1)
    assert command.effect == {"cmd": "c1", "step": 11, "values": {"lr": [0.005]}}


def test_a_golden_inbox_still_holds_its_command() -> None:
    (command,) = views.open_run(GOLDEN / "live-journal").commands
    assert (command.id, command.state, command.payload) == ("c0ffee", "waiting", {"scale": 0.5})


def test_golden_attempts_overlap_and_the_newer_one_is_shown() -> None:
    view = views.open_run(GOLDEN / "two-attempts")
    points = view.history("tokens")
    assert [point.step for point in points] == list(range(17))
    assert {point.attempt for point in points if (point.step or 0) >= 8} == {2}
    assert len(view.history("tokens", all_attempts=True)) == 13 + 9
    assert view.summary == {"best": 0.25}


def test_what_a_golden_writer_gave_up_is_a_gap() -> None:
    reader = Reader(GOLDEN / "killed-rank")
    reader.poll()
    assert [(gap.first, gap.last, gap.why) for gap in reader.gaps] == [(6, 8, "buffer full")]


def test_golden_segments_open_as_plain_sqlite_with_their_views() -> None:
    segments = sorted(GOLDEN.rglob("*.db"))
    segments = [path for path in segments if not path.name.startswith(".")]
    assert len(segments) == 3
    for path in segments:
        connection = sqlite3.connect(f"file:{path}?immutable=1", uri=True)
        try:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            (count,) = connection.execute("SELECT count(*) FROM metric").fetchone()
            assert count > 0
            assert connection.execute("SELECT seq, kind, step, ts, body FROM event").fetchall()
        finally:
            connection.close()
