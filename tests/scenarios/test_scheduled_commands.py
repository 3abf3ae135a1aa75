"""Two ranks are commanded from the command line: at steps, on conditions, taken back, repeated.

The ranks meet every fifth call, and their steps rise by ten: what is asked for a step that is
skipped, or at which they do not meet, acts on both at the same later one.
"""

from __future__ import annotations

import contextlib
import io
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from launchhelm import Schedule
from launchhelm.cli import main
from launchhelm.records import FINAL_STATES, Command
from launchhelm.store import inbox
from tests.support.journals import final_outcomes, wait_until
from tests.support.ranks import Ranks

pytestmark = pytest.mark.timeout(240)

Tell = Callable[[str], None]
EVERY, STRIDE = 5, 10


def train(rank: int, size: int, tell: Tell, root: str, name: str) -> list[list[Any]]:
    """Step until told to end; return what this rank held after each step at which it changed."""
    import torch
    import torch.distributed as dist

    import launchhelm.torch as lht

    tr = lht.init("quickstart", name=name, state_dir=root, control_every=EVERY)
    linear = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.1)
    tr.watch(linear, optimizer)
    kl = tr.tunable("kl", 0.5)
    added = 0.0

    @tr.run.command("lht")
    def add(value: float, schedule: Schedule | None = None) -> dict[str, float]:
        """Runs on all ranks at one step, with a collective of its own."""
        nonlocal added
        total = torch.tensor([value if rank == 0 else 0.0], dtype=torch.float64)
        dist.all_reduce(total)
        added += float(total)
        return {"added": added, "points": len(schedule["points"]) if schedule else 0}

    def mix(value: float) -> None:
        """Runs on rank 0 and asks the others itself; those whose rank is above it refuse."""
        box: list[Any] = [value]
        dist.broadcast_object_list(box)
        took = torch.tensor([1])
        dist.all_reduce(took)
        tr.run.runtime.report_applied_on(int(took), size)

    if rank == 0:
        tr.run.command("after_step")(mix)
        tr.run.command("lht", name="lonely")(mix)
    tr.run.flush(delivered=False)
    tell("ready")
    until = time.monotonic() + 120
    while not Path(root, f"{name}.go").exists() and time.monotonic() < until:
        time.sleep(0.02)
    dist.barrier()
    step = 0
    seen: list[list[Any]] = []
    while True:
        step += STRIDE
        tr.step(step, loss=1.0)
        held = [optimizer.param_groups[0]["lr"], kl.value, added]
        if not seen or seen[-1][1:] != held:
            seen.append([step, *held])
        box: list[Any] = [None]
        if rank == 0:
            if Path(root, f"{name}.end").exists():
                box = ["end"]
            if box[0] or not tr.run.sync("after_step", step=step):
                dist.broadcast_object_list(box)
        else:
            dist.broadcast_object_list(box)
            if isinstance(box[0], float | int):
                dist.all_reduce(torch.tensor([int(rank <= box[0])]))
        if box[0] == "end":
            break
        time.sleep(0.003)
    tr.finish()
    return seen


@dataclass
class Said:
    """What one call of the command line gave."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        """What it printed on stdout, as JSON."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def document(self) -> dict[str, Any]:
        """The newest of these."""
        return self.lines[-1]


@dataclass
class Told:
    """What the command line said in the course of both runs, and what their ranks held."""

    said: dict[str, Said] = field(default_factory=dict)
    held: dict[str, list[list[list[Any]]]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def at(self, what: str) -> int:
        """Return the step at which a command was applied."""
        return int(self.said[what].document["applied_at"]["step"])

    def values_at(self, run: str, step: int) -> list[list[Any]]:
        """Return what each rank held after a step."""
        return [[row[1:] for row in rows if row[0] <= step][-1] for rows in self.held[run]]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """Command one run in every way, end it, and replay what it was told on another."""
    root = tmp_path_factory.mktemp("runs")
    told = Told()

    def control(what: str, run: str, *words: str) -> Said:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            limit = ("--timeout", "60") if "--no-wait" not in words else ()
            code = main(["--root", str(root), "control", run, *words, *limit, "--json"])
        said = told.said[what] = Said(code, out.getvalue(), err.getvalue())
        return said

    def start(name: str) -> Ranks:
        ranks = Ranks(train, 2, root=str(root), name=name, deadline_s=180.0)
        for rank in range(2):
            ranks.wait_for(rank, "ready")
        return ranks

    def end(name: str, ranks: Ranks) -> None:
        (root / f"{name}.end").touch()
        ended = ranks.wait()
        assert [one.code for one in ended] == [0, 0], [one.stderr for one in ended]
        told.held[name] = [one.value for one in ended]

    with start("first") as ranks:
        (root / "first.go").touch()
        run = next(path for path in root.iterdir() if path.is_dir())
        ahead = control("at once", "first", "ping").document["applied_at"]["step"] + 1_003
        told.facts["ahead"] = ahead
        control("later", "first", "lr", "lr=0.05", f"--at-step={ahead}", "--reason=by plan")
        control("passed", "first", "set_kl", "value=0.25", "--at-step=1")
        for id_ in ("one", "other"):
            inbox.send(run, Command(id_, "lr", {"scale": 0.5}, expected={"lr": [0.05]}))
        wait_until(lambda: {"one", "other"} <= final_outcomes(run).keys(), "both to end")
        told.facts["both"] = [final_outcomes(run)[id_][0] for id_ in ("one", "other")]
        done = next(each for each in told.facts["both"] if each.state == "applied")
        wait_until(
            lambda: control("list", "first", "list").out.count("0.025"), "the new rate to be shown"
        )
        control("revert", "first", "revert", done.command)
        control("again", "first", "revert", done.command)
        control("freeze", "first", "freeze", "--reason=measuring")
        control("frozen", "first", "lr", "scale=0.5")
        inbox.send(run, Command("unasked", "lr", {"scale": 0.5}))
        wait_until(lambda: "unasked" in final_outcomes(run), "it to end")
        told.facts["unasked"] = final_outcomes(run)["unasked"][0]
        control("unfreeze", "first", "unfreeze")
        far = control("far", "first", "lr", "lr=1", f"--at-step={10**9}", "--no-wait")
        control("cancel", "first", "cancel", far.document["id"], "--reason=no")
        control("cancel again", "first", "cancel", far.document["id"])
        control("too late", "first", "lr", "lr=1", "--last-step=1")
        control("stale", "first", "lr", "lr=1", f"--at-step={10**9}", "--valid-for=1s")
        points = {"points": [{"at": "0", "value": "0.1"}]}
        control("add", "first", "add", "value=2", f"schedule={json.dumps(points)}")
        control("misfit", "first", "add", "value=2", 'schedule={"points": [{"at": 0}]}')
        control("mix all", "first", "mix", "value=1")
        control("mix one", "first", "mix", "value=0.5")
        control("lonely", "first", "lonely", "value=1")
        control("log", "first", "log")
        end("first", ranks)
    with start("second") as ranks:
        control("plan", "second", "replay", "first", "--check")
        control("replay", "second", "replay", "first", "--except=mix", "--no-wait")
        (root / "second.go").touch()
        control("twice", "second", "replay", "first", "--except=mix")
        wait_until(
            lambda: (
                {line["state"] for line in control("second log", "second", "log").lines}
                <= set(FINAL_STATES)
                and told.said["second log"].lines
            ),
            "the replay to end",
            timeout_s=60,
        )
        end("second", ranks)
    return told


def test_a_command_for_a_step_acts_on_both_ranks_at_one_step_not_before_it(told: Told) -> None:
    assert told.said["later"].code == 0
    at, ahead = told.at("later"), told.facts["ahead"]
    assert at >= ahead and at % STRIDE == 0
    assert [values[0] for values in told.values_at("first", at)] == [0.05, 0.05]
    assert [values[0] for values in told.values_at("first", at - STRIDE)] == [0.1, 0.1]


def test_the_ranks_never_held_different_values(told: Told) -> None:
    for held in told.held.values():
        assert held[0] == held[1] and len(held[0]) > 1


def test_a_step_that_has_passed_is_pointed_out_and_the_command_acts(told: Told) -> None:
    said = told.said["passed"]
    assert said.code == 0 and "step 1 has passed" in said.err
    assert told.at("passed") > 1


def test_of_two_controllers_who_saw_the_same_value_one_is_refused(told: Told) -> None:
    assert sorted(each.state for each in told.facts["both"]) == ["applied", "rejected"]
    refused = next(each for each in told.facts["both"] if each.state == "rejected")
    assert refused.code == "changed_meanwhile" and "0.025" in refused.message


def test_a_revert_brings_the_values_before_back_once(told: Told) -> None:
    document = told.said["revert"].document
    assert (document["state"], document["payload"]) == ("applied", {"lr": 0.05})
    applied = next(each for each in told.facts["both"] if each.state == "applied")
    assert document["reverts"] == applied.command
    assert [values[0] for values in told.values_at("first", told.at("revert"))] == [0.05] * 2
    assert told.said["again"].code == 0 and not told.said["again"].out.startswith("{")


def test_while_frozen_nothing_acts_whichever_way_it_comes(told: Told) -> None:
    assert told.said["freeze"].code == told.said["unfreeze"].code == 0
    assert told.said["frozen"].code == 6 and "measuring" in told.said["frozen"].err
    past = told.facts["unasked"]
    assert (past.state, past.code) == ("rejected", "frozen")


def test_a_scheduled_command_is_taken_back(told: Told) -> None:
    assert told.said["cancel"].code == told.said["cancel again"].code == 0
    document = told.said["cancel"].document
    assert document["state"] == "cancelled" and document["text"].startswith("Cancelled by ")
    assert all(row[1] < 1 for row in told.held["first"][0])


@pytest.mark.parametrize(
    ("what", "beforehand", "why"),
    [
        ("too late", "step 1 has passed", "Valid up to step 1;"),
        ("stale", "", "It was not applied within 1 second."),
    ],
)
def test_a_command_that_cannot_come_in_time_expires_and_says_why(
    told: Told, what: str, beforehand: str, why: str
) -> None:
    said = told.said[what]
    assert said.code == 6 and beforehand in said.err
    document = said.document
    assert (document["state"], document["code"]) == ("expired", "expired")
    assert document["message"].startswith(why) and document["applied_on"] is None
    assert all(row[1] < 1 for row in told.held["first"][0])


def test_the_ledger_tells_of_each_command_what_became_of_it_who_gave_it_and_why(
    told: Told,
) -> None:
    ledger = {line["id"]: line for line in told.said["log"].lines}
    for what in ("later", "passed", "revert", "too late", "stale", "cancel"):
        document = told.said[what].document
        line = ledger[document["id"]]
        assert (line["state"], line["text"]) == (document["state"], document["text"])
        assert line["issued_by"] and line["states"][-1]["state"] == line["state"]
    assert ledger[told.said["later"].document["id"]]["reason"] == "by plan"
    assert ledger["unasked"]["code"] == "frozen"


def test_a_handler_of_the_training_point_runs_on_all_ranks_at_one_step(told: Told) -> None:
    document = told.said["add"].document
    assert (document["applied_on"], document["of"]) == (2, 2)
    assert document["result"] == {"added": 2.0, "points": 1}
    at = told.at("add")
    assert [values[2] for values in told.values_at("first", at)] == [2.0, 2.0]
    assert [values[2] for values in told.values_at("first", at - STRIDE)] == [0.0, 0.0]


def test_a_handler_that_only_one_rank_has_runs_on_none(told: Told) -> None:
    assert told.said["lonely"].code == 6
    assert "rank 1: This rank has no control 'lonely'" in told.said["lonely"].document["message"]


def test_a_schedule_that_is_none_is_refused_before_it_is_sent(told: Told) -> None:
    assert told.said["misfit"].code == 2
    assert "points[0].at must be decimal text" in told.said["misfit"].err


def test_a_handler_that_asks_the_ranks_itself_says_how_many_took_it(told: Told) -> None:
    whole, part = told.said["mix all"], told.said["mix one"]
    assert whole.code == 0
    assert (whole.document["applied_on"], whole.document["of"]) == (2, 2)
    assert part.code == 7
    assert (part.document["state"], part.document["code"]) == (
        "outcome_unknown",
        "partially_applied",
    )
    assert (part.document["applied_on"], part.document["of"]) == (1, 2)


def test_a_replay_repeats_what_was_applied_not_before_its_steps(told: Told) -> None:
    first = {line["id"]: line for line in told.said["log"].lines}
    again = {line["replays"].partition("/")[2]: line for line in told.said["second log"].lines}
    applied = {
        id_
        for id_, line in first.items()
        if line["state"] == "applied" and not line["name"].startswith("run:")
    }
    assert again.keys() == applied - {told.said["mix all"].document["id"]}
    for id_, line in again.items():
        assert line["state"] == "applied", line
        assert line["payload"] == first[id_]["payload"]
        assert line["applied_at"]["step"] >= first[id_]["applied_at"]["step"] == line["first_step"]
    assert told.held["second"][0][-1][1:] == told.held["first"][0][-1][1:]


def test_a_replay_says_beforehand_what_it_leaves_out(told: Told) -> None:
    left_out = {line["replays"]: line["text"] for line in told.said["plan"].lines}
    texts = [text for text in left_out.values() if text]
    assert any("cancelled" in text for text in texts)
    assert any("unknown" in text for text in texts)
    assert told.said["twice"].code == 6 and "no command to replay" in told.said["twice"].err
