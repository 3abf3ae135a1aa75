"""The official SDK 0.1.1, unmodified, in processes of its own against `launchhelm serve`."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.official import Driver, command, documents, outcome, why_missing
from tests.support.scripted_participant import APPLIED, Participant
from tests.support.v1_server import PROJECT, V1Server, kill, v1_process
from tests.support.v1_server import start as serve_again

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_missing()), reason=why_missing()),
]

Start = Callable[..., Driver]


@pytest.fixture
def server(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Iterator[V1Server]:
    with v1_process(tmp_path) as served:
        yield served
    assert "Traceback" not in capfd.readouterr().err


@pytest.fixture
def start(server: V1Server, tmp_path: Path) -> Iterator[Start]:
    started: list[Driver] = []

    def begin(script: str, *arguments: str, place: str = "cwd", **environment: str) -> Driver:
        driver = Driver(
            server, script, *arguments, directory=tmp_path / place, environment=environment
        )
        started.append(driver)
        return driver

    yield begin
    for driver in started:
        driver.close()


def _values(points: list[dict[str, Any]]) -> list[Any]:
    return [point["value"] for point in points]


def test_a_run_is_logged_and_read_back_by_itself_and_by_the_next(start: Start) -> None:
    """With an organisation that the SDK has to find out."""
    driver = start("logging_run", LAUNCHHELM_ORGANIZATION="")
    read = driver.said("read")
    again = driver.said("read again")
    refused = driver.said("refused")
    driver.ends()

    losses = [1 / (step + 1) for step in range(60)]
    assert _values(read["history"]) == [*losses, {"$number": "nonfinite", "value": "nan"}]
    assert [point["coordinates"]["step"] for point in read["window"]] == ["10", "11", "12"]
    assert read["latest"]["coordinates"] == {"step": "60"}
    assert read["folds"] == 60
    assert read["count"] == {"$number": "integer", "value": str(2**60)}
    assert read["metrics"] == sorted(
        ["loss", "lr", "word", "even", "val", "count", "tags\u00e4", "console"]
    )
    assert read["metric"] == {"kind": "number", "axes": ["step", "fold"], "unit": "nats"}
    assert read["table"][1] == {"step": "1", "loss": 0.5, "lr": 0.1}
    assert read["about"]["config"]["nested"] == {"a": [1, 2]}
    assert read["about"]["group"] == "g"
    assert read["runs"] == ["first"]

    assert again["project_id"] == read["project_id"]
    assert again["about"]["state"] == "closed"
    assert again["about"]["tags"] == ["a", "c"]
    assert again["about"]["notes"] == "n"
    assert again["about"]["summary"]["final"] == 1.5
    assert math.isclose(again["about"]["summary"]["val"], 3.0 - 59 / 100)
    assert again["statuses"] == [["first", "closed"], ["second", "open"]]
    assert again["history"] == read["history"]
    assert refused["code"] == "conflict"


def test_a_run_killed_while_the_server_was_away_goes_on_without_a_gap(
    server: V1Server, start: Start
) -> None:
    """Both are killed; the spool arrives under the old epoch, once."""
    first = start("resuming_run", "open")
    opened = first.said("open")
    run = opened["run_id"]
    kill(server)
    first.tell()
    first.said("spooled")
    first.kill()
    serve_again(server)

    second = start("resuming_run", "again", run)
    resumed = second.said("resumed")
    assert resumed["epoch"] == str(int(opened["epoch"]) + 1)
    assert resumed["restored"] == {"seen": 1}
    delivered = second.said("delivered")
    second.said("finished")
    second.ends()
    losses = [*map(float, range(301)), *[-1.0] * 10]
    assert sorted(_values(delivered["history"])) == sorted(losses)

    streams = [each for each in documents(server, "stream", run) if each["spec"]["name"] == "loss"]
    epochs: dict[str, int] = {}
    for stream in streams:
        page = server.get(
            f"streams/{stream['id']}/points",
            **{"from": "1970-01-01T00:00:00Z", "to": "2261-01-01T00:00:00Z", "limit": "10000"},
        )
        for point in page["items"]:
            epochs[point["epoch"]] = epochs.get(point["epoch"], 0) + 1
    assert epochs == {opened["epoch"]: 301, resumed["epoch"]: 10}

    # Elsewhere there is no state of it: its points say where it was.
    third = start("resuming_run", "again", run, "close", place="elsewhere")
    moved = third.said("resumed")
    assert moved["participant"] != resumed["participant"]
    # The newest point is of step 10, the highest step is 300: the next one is 301.
    assert moved["restored"] == {"step": "10"}
    ended = third.said("delivered")["history"]
    assert max(int(point["coordinates"]["step"]) for point in ended) == 310
    third.said("finished")
    third.ends()
    assert server.get(f"documents/{run}")["spec"]["state"] == "closed"


def test_rich_values_and_artifacts_come_back_as_they_were(server: V1Server, start: Start) -> None:
    """With a key that knows one project only."""
    key = {"LAUNCHHELM_API_KEY": server.project_key, "LAUNCHHELM_PROJECT": server.project}
    driver = start("rich_run", PROJECT, **key)
    artifacts = driver.said("artifacts")
    samples = driver.said("samples")["samples"]
    driver.ends()

    assert artifacts["weights"] and artifacts["fetched"] and artifacts["latest"]
    assert artifacts["state"] == "ready"
    assert artifacts["checkpoint"] == "checkpoint"
    assert bytes.fromhex(artifacts["frame"]) == b"\x89PNG\r\n\x1a\n"

    renderers = {name: sample["renderer"] for name, sample in samples.items()}
    assert renderers == {
        "frames": "media",
        "grid": "media",
        "linked": "media",
        "sweep": "table",
        "gradients": "histogram",
        "flat": "histogram",
        "notes": "text",
    }
    assert samples["notes"]["values"] == [{"text": "**bold**", "format": "markdown"}]
    [table] = samples["sweep"]["values"]
    assert [column["name"] for column in table["columns"]] == ["loss", "lr", "ok"]
    assert table["rows"] == [[1.5, 0.1, True], [2, 0.2, None]]
    assert sum(samples["gradients"]["values"][0]["counts"]) == 4
    assert samples["flat"]["values"][0]["edges"] == [2.0, 2.0]
    assert samples["frames"]["media"] and len(samples["grid"]["values"][0]["items"]) == 2


def test_commands_are_carried_out_at_a_safe_point_and_their_outcomes_read_back(
    server: V1Server, start: Start
) -> None:
    driver = start("commanded_run")
    run = driver.said("ready")["run_id"]

    began = time.monotonic()
    applied = outcome(server, command(server, run, "set_lr", {"lr": 0.5}))
    took_s = time.monotonic() - began
    assert applied["execution"] == "applied"
    assert applied["result"]["lr"] == 0.5
    places = {place["axis"]: place["value"] for place in applied["applied_at"]}
    assert places == {"step": applied["result"]["step"], "phase": "1"}
    assert applied["resulting_state_revision"] == "1"
    # A parked claim is woken: no poll of 15 s lies in between.
    assert took_s < 5

    schedule = {"points": [{"at": "0", "value": "0.1"}, {"at": "100", "value": "0.01"}]}
    value = {"schedule": schedule, "names": ["a"]}
    assert outcome(server, command(server, run, "set_schedule", value, state="1"))["result"] == {}

    failed = outcome(server, command(server, run, "fail", {"message": "no"}, state="2"))
    assert (failed["execution"], failed["failure_code"]) == ("outcome_unknown", "RuntimeError")
    refused = outcome(server, command(server, run, "picky", {"value": 1}, state="2"))
    assert (refused["execution"], refused["failure_code"]) == ("rejected", "local_validation")

    cancelled = command(server, run, "guarded", {"value": 1}, state="2")
    held = command(server, run, "guarded", {"value": 2}, state="2")
    for which, verb in ((cancelled, "cancel"), (held, "approve")):
        asked = server.get(f"commands/{which}")
        assert asked["execution"] == "pending_approval"
        server.post(f"commands/{which}/{verb}", {"fingerprint": asked["fingerprint"]})
    assert outcome(server, held)["result"] == {"value": 2}
    assert outcome(server, cancelled)["execution"] == "cancelled"

    command(server, run, "halt", {}, state="3")
    finished = driver.said("finished")
    assert (finished["lr"], finished["schedule"]) == (0.5, schedule)
    driver.ends()


def test_its_client_gives_decides_and_reads_commands_that_a_participant_of_ours_obeys(
    server: V1Server, start: Start
) -> None:
    partly = {
        "outcome": "outcome_unknown",
        "failure_code": "DivergedStateError",
        "applied_on": {"count": 3, "of": 4},
    }

    def answer(command: dict[str, Any]) -> dict[str, Any]:
        return partly if command["request"]["input"].get("scale") == 13 else APPLIED

    with Participant(server, answer=answer) as ours:
        offered = {"open": ours.offer(), "guarded": ours.offer(requires_approval=True)}
        request = {
            "scope": {**server.scope, "run_id": ours.run["id"]},
            "participant_id": ours.id,
            "epoch": ours.epoch,
            "targets": [],
            "safe_point": "lht",
            "expires_at": "2100-01-01T00:00:00Z",
            "reason": "a test",
        }
        driver = start("commanding", json.dumps({"request": request, **offered}))
        applied = driver.said("applied")
        decided = driver.said("decided")
        assert driver.said("refused")["code"] == "conflict"
        unknown = driver.said("unknown")["command"]
        driver.ends()

    assert applied["same"]
    assert applied["command"]["execution"] == "applied"
    assert applied["command"]["result"] == APPLIED["result"]
    assert applied["command"]["applied_at"] == APPLIED["applied_at"]
    assert applied["command"]["applied_on"] == APPLIED["applied_on"]
    assert decided["before"] == ["pending_approval", "pending_approval"]
    assert (decided["cancelled"], decided["approved"]) == ("cancelled", "queued")
    assert decided["held"]["execution"] == "applied"
    assert decided["dropped"]["execution"] == "cancelled"
    assert (unknown["execution"], unknown["failure_code"]) == (
        "outcome_unknown",
        "DivergedStateError",
    )
    assert unknown["applied_on"] == {"count": 3, "of": 4}
    inputs = [command["request"]["input"] for command in ours.taken]
    assert inputs == [{"scale": 0.5}, {"lr": 0.1}, {"scale": 13}]


def test_a_command_whose_handler_was_killed_is_never_carried_out_again(
    server: V1Server, start: Start
) -> None:
    first = start("commanded_run")
    run = first.said("ready")["run_id"]
    hanging = command(server, run, "hang", {})
    first.said("hanging")
    assert server.get(f"commands/{hanging}")["execution"] == "applying"
    first.kill()

    second = start("commanded_run", "again", run)
    second.said("resumed")
    # The server's guess at connect, then the word of the journal.
    ended = outcome(server, hanging, decided_by="participant")
    assert (ended["execution"], ended["failure_code"]) == ("outcome_unknown", "runtime_restart")
    events = [line["event"] for line in ended["history"]]
    assert events[-2:] == ["superseded", "reported outcome_unknown"]
    second.tell()
    second.ends()


def test_two_ranks_change_their_rate_together_and_load_a_checkpoint(
    server: V1Server, start: Start, tmp_path: Path
) -> None:
    ranks = [
        start("ranks", str(tmp_path / "rendezvous"), place=f"rank-{rank}", RANK=str(rank))
        for rank in range(2)
    ]
    runs = {rank.said("ready")["run_id"] for rank in ranks}
    assert len(runs) == 1
    run = runs.pop()

    applied = outcome(server, command(server, run, "lr", {"scale": 0.5}))
    assert applied["execution"] == "applied"
    assert applied["result"] == {"lr": [0.05]}
    changed = [rank.said("changed") for rank in ranks]
    assert [each["lr"] for each in changed] == [0.05, 0.05]
    steps = {each["step"] for each in changed}
    assert steps == {int(applied["applied_at"][0]["value"])}

    diverged = outcome(server, command(server, run, "eval", {}, state="1"))
    assert diverged["execution"] == "outcome_unknown"
    assert diverged["failure_code"] == "DivergedStateError"
    assert all(rank.said("diverged")["warned"] for rank in ranks)
    for rank in ranks:
        rank.tell()

    assert ranks[0].said("saved")["artifact"]
    assert ranks[1].said("saved")["artifact"] is None
    for rank in ranks:
        loaded = rank.said("loaded")
        assert loaded["extra"] == {"note": "kept"}
        assert loaded["same"] and loaded["step"]
        assert loaded["lr"] == 0.05
        rank.ends()
    assert server.get(f"documents/{run}")["spec"]["state"] == "closed"
    names = {each["spec"]["name"] for each in documents(server, "participant", run)}
    assert names == {"rank-0", "rank-1"}
