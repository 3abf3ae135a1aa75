"""From records to batches that wait: what is passed over, and what is read again after all."""

from __future__ import annotations

from pathlib import Path

from launchhelm.store.manifest import load_manifest
from syncer.api.client import Client
from syncer.artifacts import Artifacts
from syncer.facts import Facts
from syncer.inflight import Outbox
from syncer.intake import Intake, Restriction
from syncer.state import Flight, State
from tests.support.pushing import WrittenRun

ORGANIZATION = "11111111-1111-4111-8111-111111111111"


def intake_of(run: WrittenRun, state: State, outbox: Outbox, since: float | None = None) -> Intake:
    client = Client("http://127.0.0.1:1", ORGANIZATION, "a-key-of-a-test")
    artifacts = Artifacts(client, run.directory, dict)
    facts = Facts(run.directory, load_manifest(run.directory))
    return Intake(run.directory, state, outbox, facts, artifacts, Restriction(since=since))


def numbers(outbox: Outbox, name: str) -> list[int]:
    found: list[int] = []
    while batches := outbox.take():
        for batch in batches:
            if batch.key.name == name:
                found += batch.seqs
    return found


def state_with_a_flight(run: WrittenRun, first: int, last: int) -> State:
    state = State()
    key = f"{run.writers[0].writer} number - step loss"
    flight = Flight(0, first, last, 0, last - first + 1, "1", "b", "d")
    state.apply({"streams": [[key, "s", "1"]], "fly": [flight.wire()]})
    return state


def test_what_is_on_its_way_is_not_read_again_until_it_is_dropped(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path)
    run.log(range(1, 21), "loss")
    state, outbox = state_with_a_flight(run, 5, 9), Outbox()
    intake = intake_of(run, state, outbox)
    assert intake.read()
    assert numbers(outbox, "loss") == [*range(1, 5), *range(10, 21)]
    intake.rewind()
    assert intake.read()
    assert numbers(outbox, "loss") == [*range(1, 5), *range(10, 21)]
    state.apply({"drop": ["b"]})
    intake.rewind()
    assert intake.read()
    assert numbers(outbox, "loss") == [*range(1, 21)]


def test_a_batch_never_reaches_over_what_is_dealt_with(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path)
    run.log(range(1, 21), "loss")
    state, outbox = state_with_a_flight(run, 5, 9), Outbox()
    state.apply({"ack": ["b"], "forget": [0], "cover": [[0, 5, 9]]})
    assert intake_of(run, state, outbox).read()
    ranges = []
    while batches := outbox.take():
        ranges += [(it.start, it.first, it.last) for it in batches if it.key.name == "loss"]
    assert ranges == [(0, 1, 4), (0, 10, 20)]


def test_what_a_restriction_leaves_out_does_not_count_as_dealt_with(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path)
    for step in range(1, 21):
        run.writers[0].append("m", {"loss": float(step)}, step=step, at=1000.0 + step)
    run.writers[0].flush()
    outbox = Outbox()
    assert intake_of(run, State(), outbox, since=1011.0).read()
    starts = []
    while batches := outbox.take():
        starts += [(it.start, it.first) for it in batches if it.key.name == "loss"]
    assert starts == [(11, 11)]


def test_a_record_made_at_the_time_that_is_asked_for_is_not_left_out_by_rounding(
    tmp_path: Path,
) -> None:
    """Journals keep milliseconds; the time of a pass is exact."""
    run = WrittenRun(tmp_path)
    for step, at in enumerate((1010.9988, 1011.00031, 1011.0009), 1):
        run.writers[0].append("m", {"loss": float(step)}, step=step, at=at)
    run.writers[0].flush()
    outbox = Outbox()
    assert intake_of(run, State(), outbox, since=1011.0003).read()
    (batch,) = [it for it in outbox.take() if it.key.name == "loss"]
    assert batch.seqs == [2, 3]
