"""`control RUN cancel | freeze | unfreeze | revert | replay`: what is sent, and what is not."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from launchhelm.controls import schema
from launchhelm.records import Command, Outcome
from launchhelm.store import inbox
from launchhelm.views import CommandState, CommandView
from launchhelm.views.revert import CannotUndo, step_back
from tests.support.cli_runs import Coordinator, MadeRun, commands_in
from tests.unit.cli.conftest import Cli


@pytest.fixture
def run(root: Path) -> MadeRun:
    return MadeRun(root, "ddp-run", ranks=2).train()


def told(
    run: MadeRun,
    id_: str,
    name: str,
    payload: dict[str, Any],
    state: str = "applied",
    *,
    step: int = 412,
    **fields: Any,
) -> None:
    """Put a command that has ended into the ledger."""
    if state == "applied":
        fields |= {"applied_at": {"step": step}, "applied_on": 2, "of": 2}
    run.conclude(Command(id_, name, payload), Outcome(id_, state, **fields), step=step)


def done(command: Command) -> Outcome:
    return Outcome(command.id, "applied", applied_on=1, of=1, message="as ordered")


# Orders -------------------------------------------------------------------------------------


def test_a_waiting_command_is_cancelled_by_the_beginning_of_its_id(run: MadeRun, cli: Cli) -> None:
    inbox.send(run.path, Command("abcdef", "lr", {"scale": 0.5}, first_step=10**6))
    ran = cli("control", "ddp-run", "cancel", "abc", "--reason", "no", "--no-wait")
    assert ran.code == 0
    (order,) = [each for each in commands_in(run.path) if each["kind"] == "run:cancel"]
    assert (order["args"], order["reason"]) == ({"id": "abcdef"}, "no")


@pytest.mark.parametrize(("state", "code"), [("cancelled", 0), ("applied", 6), ("rejected", 6)])
def test_what_has_ended_is_shown_and_no_order_is_sent(
    run: MadeRun, cli: Cli, state: str, code: int
) -> None:
    told(run, "abcdef", "lr", {"scale": 0.5}, state)
    ran = cli("control", "ddp-run", "cancel", "abcdef", "--json")
    assert (ran.code, ran.document["state"]) == (code, state)
    assert commands_in(run.path) == []


def test_an_order_that_came_too_late_says_so_and_shows_the_command(run: MadeRun, cli: Cli) -> None:
    told(run, "abcdef", "lr", {"scale": 0.5}, "claimed")

    def late(order: Command) -> Outcome:
        ended = Outcome("abcdef", "applied", applied_at={"step": 413}, applied_on=2, of=2)
        run.journals[0].add("oc", ended.body(), step=413)
        return Outcome(order.id, "rejected", code="too_late", message="Too late: it has begun.")

    with Coordinator(run, late):
        ran = cli("control", "ddp-run", "cancel", "abcdef")
    assert ran.code == 6
    assert ran.out == "Applied at step 413 on all 2 processes\n"
    assert "Too late: it has begun." in ran.err


def test_a_run_that_is_closed_takes_no_order_to_cancel(run: MadeRun, cli: Cli) -> None:
    inbox.send(run.path, Command("abcdef", "lr", {"scale": 0.5}))
    run.end("finished")
    ran = cli("control", "ddp-run", "cancel", "abcdef")
    assert ran.code == 6 and "has ended" in ran.err
    assert [each["kind"] for each in commands_in(run.path)] == ["lr"]
    assert "nothing takes it any more" in cli("control", "ddp-run", "log").out


def test_in_a_run_that_may_be_resumed_the_order_waits_as_long_as_the_command(
    run: MadeRun, cli: Cli
) -> None:
    month_s = 30 * 86400.0
    inbox.send(run.path, Command("abcdef", "lr", {"scale": 0.5}, first_step=500, valid_s=month_s))
    run.end("terminated", "SIGTERM")
    ran = cli("control", "ddp-run", "cancel", "abcdef", "--timeout=0.2")
    assert ran.code == 8 and "The order waits for its next attempt" in ran.err
    (order,) = [each for each in commands_in(run.path) if each["kind"] == "run:cancel"]
    assert order["valid_s"] == month_s


def test_a_command_that_a_dead_rank_0_had_taken_is_not_promised_to_a_next_attempt(
    run: MadeRun, cli: Cli
) -> None:
    told(run, "abcdef", "lr", {"scale": 0.5}, "claimed")
    inbox.send(run.path, Command("fedcba", "lr", {"scale": 0.5}))
    run.end("error", "killed")
    texts = {it["id"]: it["text"] for it in cli("control", "ddp-run", "log", "--json").lines}
    assert "rejects it (`runtime_restart`)" in texts["abcdef"]
    assert "a next attempt gets it" in texts["fedcba"]


@pytest.mark.parametrize("state", ["applied", "waiting"])
def test_a_cancel_is_not_cancelled_and_says_what_it_is(run: MadeRun, cli: Cli, state: str) -> None:
    if state == "waiting":
        inbox.send(run.path, Command("c1", "run:cancel", {"id": "abcdef"}))
    else:
        told(run, "c1", "run:cancel", {"id": "abcdef"}, state, message="cancelled by root")
    before = commands_in(run.path)
    ran = cli("control", "ddp-run", "cancel", "c1")
    assert ran.code == 6 and commands_in(run.path) == before
    assert (ran.out, ran.err.splitlines()) == (
        "",
        [
            "c1 is itself a cancel, which cannot be cancelled.",
            "Nothing was sent, nothing changed.",
        ],
    )


@pytest.mark.parametrize(("count", "more"), [(5, ""), (6, " and 1 more"), (26, " and 21 more")])
def test_of_many_commands_that_begin_alike_it_is_said_how_many_are_not_named(
    run: MadeRun, cli: Cli, count: int, more: str
) -> None:
    for number in range(count):
        inbox.send(run.path, Command(f"abc{number:02}", "lr", {"scale": 0.5}))
    ran = cli("control", "ddp-run", "cancel", "abc")
    named = "abc00, abc01, abc02, abc03, abc04"
    assert f"{count} commands of ddp-run begin so: {named}{more}." in ran.err, ran.err


def test_no_such_command_is_4(run: MadeRun, cli: Cli) -> None:
    ran = cli("control", "ddp-run", "cancel", "nothing")
    assert ran.code == 4 and "log" in ran.err


@pytest.mark.parametrize(
    "words", [("cancel",), ("cancel", "a", "b"), ("freeze", "x"), ("revert",), ("replay",)]
)
def test_each_takes_one_thing_or_nothing(run: MadeRun, cli: Cli, words: tuple[str, ...]) -> None:
    assert cli("control", "ddp-run", *words).code == 2


@pytest.mark.parametrize("option", ["--at-step=5", "--last-step=5", "--check"])
def test_an_order_takes_no_step_and_no_condition(run: MadeRun, cli: Cli, option: str) -> None:
    assert cli("control", "ddp-run", "freeze", option).code == 2
    assert commands_in(run.path) == []


def test_a_frozen_run_says_by_whom_and_takes_only_the_order_that_ends_it(
    run: MadeRun, cli: Cli
) -> None:
    said = "the controls are frozen by alice: measuring"
    told(run, "f1", "run:freeze", {}, message=said, owner="alice", reason="measuring")
    ran = cli("control", "ddp-run", "lr", "scale=0.5")
    assert ran.code == 6 and said in ran.err
    later = cli("control", "ddp-run", "lr", "scale=0.5", "--at-step=700", "--no-wait")
    assert (later.code, later.err) == (6, ran.err) and commands_in(run.path) == []
    line = re.compile(rf"^{said} \(since \d\d:\d\d:\d\d, \d+ s ago\)$", re.MULTILINE)
    listed = cli("control", "ddp-run", "list")
    assert line.search(listed.out) and "unfreeze" in listed.err
    assert line.search(cli("show", "ddp-run").out)
    assert line.search(cli("show", "ddp-run", "--controls").out)
    for document in (
        *cli("control", "ddp-run", "list", "--json").lines,
        cli("show", "ddp-run", "--json").document,
    ):
        frozen = document["frozen"]
        assert frozen["text"] == said and time.time() - frozen["since"] < 60
        assert (frozen["by"], frozen["reason"]) == ("alice", "measuring")
    again = cli("control", "ddp-run", "freeze")
    assert (again.code, again.out) == (0, f"{said}\n")
    assert commands_in(run.path) == []
    with Coordinator(run, done) as coordinator:
        assert cli("control", "ddp-run", "unfreeze").code == 0
    assert [each.name for each in coordinator.taken] == ["run:unfreeze"]
    assert "frozen" not in cli("control", "ddp-run", "list").out
    assert cli("control", "ddp-run", "list", "--json").lines[0]["frozen"] is None
    assert cli("control", "ddp-run", "lr", "scale=0.5", "--check").code == 0
    assert cli("control", "ddp-run", "unfreeze").out == "the controls are not frozen\n"


def test_a_script_s_own_control_of_that_name_is_meant(run: MadeRun, cli: Cli) -> None:
    own = schema.record([schema.field("layers", schema.number(integer=True))])
    run.journals[0].add(
        "cap", {"name": "freeze", "safe_points": ["after_step"], "input_schema": own}
    )
    assert cli("control", "ddp-run", "freeze", "layers=3", "--no-wait").code == 0
    assert [each["kind"] for each in commands_in(run.path)] == ["freeze"]


def test_the_log_begins_each_line_with_when_and_the_date_where_that_is_not_today(
    run: MadeRun, cli: Cli
) -> None:
    told(run, "c2", "lr", {"scale": 0.5})
    inbox.send(run.path, Command("c3", "lr", {"scale": 2.0}))
    ended = next(it for it in cli("control", "ddp-run", "log", "--json").lines if it["id"] == "c2")
    now = time.strftime("%H:%M:%S", time.localtime(ended["states"][-1]["at"]))
    applied, waiting = cli("control", "ddp-run", "log").out.splitlines()
    assert applied.startswith(f"{now}  ▲  lr scale=0.5  Applied at step 412"), applied
    assert waiting.startswith("       -  ◆  lr scale=2  Waiting"), waiting

    old = time.mktime((2024, 2, 29, 14, 2, 11, 0, 0, -1))
    body = Outcome("c1", "expired", name="lr", payload={"scale": 3.0}).body()
    run.journals[0].add("oc", body, step=413, at=old)
    run.journals[0].add("oc", {**body, "cmd": "c4"}, step=413, at=1e17)
    lines = {line.split()[-1]: line for line in cli("control", "ddp-run", "log").out.splitlines()}
    assert lines["c1"].startswith("2024-02-29 14:02:11  "), lines
    # All stand below each other, also one with a time that no clock shows.
    assert lines["c2"].startswith(f"{now:>19}  ▲  lr scale=0.5  ")
    assert lines["c4"].startswith(f"{'-':>19}  ")


# Steps and validity -------------------------------------------------------------------------


def test_a_command_for_a_step_outlives_the_hour_unless_it_is_told_not_to(
    run: MadeRun, cli: Cli
) -> None:
    for words in ((), ("--at-step=500",), ("--at-step=500", "--valid-for=2h")):
        assert cli("control", "ddp-run", "lr", "scale=0.5", "--no-wait", *words).code == 0
    assert [each["valid_s"] for each in commands_in(run.path)] == [3600.0, 30 * 86400.0, 7200.0]


def test_what_cannot_come_in_time_is_pointed_out(run: MadeRun, cli: Cli) -> None:
    passed = cli("control", "ddp-run", "lr", "scale=0.5", "--check", "--at-step=7", "--last-step=9")
    assert "step 7 has passed (the run is at 400)" in passed.out
    assert "step 9 has passed (the run is at 400); it would expire at once" in passed.out
    slow = cli(
        "control", "ddp-run", "lr", "scale=0.5", "--check", "--at-step=9000", "--valid-for=30s"
    )
    assert "it expires after 30 s, before that at the present pace" in slow.out


@pytest.mark.parametrize("option", ["--at-step=-3", "--last-step=-1", "--valid-for=0"])
def test_a_step_below_0_and_no_validity_are_usage(run: MadeRun, cli: Cli, option: str) -> None:
    ran = cli("control", "ddp-run", "lr", "scale=0.5", option)
    assert ran.code == 2 and option.partition("=")[0] in ran.err
    assert commands_in(run.path) == []


# Revert -------------------------------------------------------------------------------------


def ended(name: str, payload: dict[str, Any], old: Any, new: Any, **more: Any) -> CommandView:
    outcome = Outcome("c", "applied", changes={name: {"old": old, "new": new, **more}})
    states = (CommandState("applied", 1.0, 5, 1),)
    return CommandView("c", name, payload, "", "", "", "applied", states, outcome)


@pytest.mark.parametrize(
    ("name", "payload", "old", "new", "now", "step"),
    [
        ("lr", {"scale": 0.5}, [0.1], [0.05], [0.05], ({"lr": 0.1}, [0.05])),
        ("lr", {"scale": 0.5}, [0.1], [0.05], [0.1], None),
        ("lr", {"lr": 0.3}, [0.1, 0.2], [0.3, 0.3], [0.3, 0.3], ({"lrs": [0.1, 0.2]}, [0.3, 0.3])),
        ("lr", {"lr": 0.3}, [0.1, 0.3], [0.3, 0.3], [0.3, 0.3],
            ({"lr": 0.1, "group": 0}, [0.3, 0.3])),
        ("lr", {"lr": 0.3, "group": 1}, [0.0, 0.2], [0.0, 0.3], [0.0, 0.3],
            ({"lr": 0.2, "group": 1}, [0.0, 0.3])),
        ("lr", {"keep_ratios": True, "lr": 0.4}, [0.2, 0.0, 0.1], [0.4, 0.0, 0.2], [0.4, 0.0, 0.2],
            ({"scales": [0.5, 1.0, 0.5]}, [0.4, 0.0, 0.2])),
        ("lr", {"scale": 0.5}, [0.0], [0.0], [0.0], None),
        ("lr", {"scale": 0.5}, [0.1], [0.05], [0.05 + 1e-12], ({"lr": 0.1}, [0.05 + 1e-12])),
        ("weight_decay", {"value": 0}, [0.1, 0.0], [0, 0], [0, 0],
            ({"value": 0.1, "group": 0}, [0, 0])),
        ("weight_decay", {"value": 0}, [0.1, 0.2], [0, 0], [0, 0],
            ({"values": [0.1, 0.2]}, [0, 0])),
        ("grad_clip", {"max_norm": 1}, None, 1.0, 1.0, ({}, 1.0)),
        ("grad_clip", {}, 2.0, None, None, ({"max_norm": 2.0}, None)),
        ("dropout", {"p": 0.5}, 0.1, 0.5, 0.5, ({"p": 0.1}, 0.5)),
        ("set_kl", {"value": 0.1}, 0.5, 0.1, 0.1, ({"value": 0.5}, 0.1)),
    ],
)  # fmt: skip
def test_a_command_is_undone_by_one_that_brings_the_values_before_it(
    name: str, payload: dict[str, Any], old: Any, new: Any, now: Any, step: Any
) -> None:
    made = step_back(ended(name, payload, old, new), {name: now})
    assert (made and (made[0], made[1].get(name))) == step


@pytest.mark.parametrize(
    ("factors", "payload"),
    [
        ([0.5, 0.5], {"scale": 2.0}),
        ([1.0, 0.5], {"scale": 2.0, "group": 1}),
        ([2.0, 0.5], {"scales": [0.5, 2.0]}),
    ],
)
def test_under_a_schedule_the_factor_is_undone_whatever_the_rates_are_meanwhile(
    factors: list[float], payload: dict[str, Any]
) -> None:
    command = ended("lr", {"lr": 0.05}, [0.1, 0.1], [0.05, 0.05], factors=factors)
    for now in ([0.05, 0.05], [0.1, 0.1], [0.03, 0.0]):
        assert step_back(command, {"lr": now}) == (payload, {})


@pytest.mark.parametrize(
    ("command", "now"),
    [
        (ended("lr", {"scale": 0.5}, [0.1], [0.05]), [0.05, 0.05]),
        (ended("lr", {"scale": 0.5}, [0.1], [0.05]), [0.04]),
        (ended("lr", {"scale": 0.5, "group": 1}, [0.2, 0.1], [0.2, 0.05]), [0.1, 0.04]),
        (ended("lr", {"lr": 0.4}, [0.1, 0.2], [0.4, 0.4]), [0.3, 0.3]),
        (ended("lr", {"lr": 0.1}, [0.0], [0.1]), [0.05]),
        (ended("lr", {"lr": 0.1}, [0.0], [0.1]), [0.1]),
        (ended("lr", {"lr": 0.1}, [0.0], [0.1], factors=[None]), [0.1]),
        (ended("weight_decay", {"value": 0}, [0.1], [0.0]), [0.3]),
        (ended("set_kl", {"value": 0.1}, 0.5, 0.1), 0.3),
        (ended("dropout", {"p": 0.5}, "0.1 to 0.2", 0.5), 0.5),
        (ended("pause", {}, False, True), True),
        (CommandView("c", "lr", {}, "", "", "", "applied", outcome=Outcome("c", "applied")), []),
    ],
)
def test_what_no_command_can_undo_is_refused(command: CommandView, now: Any) -> None:
    with pytest.raises(CannotUndo):
        step_back(command, {command.name: now})


LR: dict[str, Any] = {"changes": {"lr": {"old": [0.02, 0.02], "new": [0.01, 0.01]}}}


def test_a_revert_sends_a_command_that_is_tied_to_the_other(run: MadeRun, cli: Cli) -> None:
    told(run, "c1", "lr", {"scale": 0.5}, **LR)
    checked = cli("control", "ddp-run", "revert", "c1", "--check")
    assert checked.code == 0 and checked.out.startswith("lr 0.01 -> 0.02 in 2 groups")
    assert cli("control", "ddp-run", "revert", "c1", "--no-wait").code == 0
    (sent,) = commands_in(run.path)
    assert (sent["kind"], sent["args"], sent["reverts"]) == ("lr", {"lr": 0.02}, "c1")
    assert sent["expected"] == {"lr": [0.01, 0.01]}


def test_only_the_newest_change_of_a_control_is_undone(run: MadeRun, cli: Cli) -> None:
    told(run, "c1", "lr", {"scale": 0.5}, **LR)
    told(run, "c2", "lr", {"scale": 0.5}, step=420)
    ran = cli("control", "ddp-run", "revert", "c1")
    assert ran.code == 6 and "command c2 has changed it since" in ran.err
    told(run, "c3", "lr", {"scale": 0.5}, "outcome_unknown", step=430)
    ran = cli("control", "ddp-run", "revert", "c3")
    assert ran.code == 6 and "its outcome is unknown" in ran.err
    assert commands_in(run.path) == []


@pytest.mark.parametrize(
    ("name", "state", "why"),
    [
        ("lr", "outcome_unknown", "set the value that you want"),
        ("lr", "rejected", "it was rejected and has changed nothing"),
        ("lr", "expired", "it expired and has changed nothing"),
        ("lr", "claimed", "it has not been applied yet; take it back: launchhelm control"),
        ("checkpoint", "applied", "a checkpoint changes nothing in the training; its file stays"),
        ("eval", "applied", "an evaluation leaves the training as it was"),
        ("pause", "applied", "send resume"),
        ("run:freeze", "applied", "an order about commands"),
        ("set_gone", "applied", "the run has no such control now"),
    ],
)
def test_what_cannot_be_undone_is_refused_with_what_to_do(
    run: MadeRun, cli: Cli, name: str, state: str, why: str
) -> None:
    told(run, "c1", name, {}, state)
    if name == "run:freeze":
        told(run, "c2", "run:unfreeze", {})
    ran = cli("control", "ddp-run", "revert", "c1")
    assert ran.code == 6 and why in ran.err, ran.err
    assert commands_in(run.path) == []


def test_a_revert_takes_a_condition_of_its_own(run: MadeRun, cli: Cli) -> None:
    told(run, "c1", "lr", {"scale": 0.5}, **LR)
    ran = cli("control", "ddp-run", "revert", "c1", "--expect=set_kl=0.7")
    assert ran.code == 6 and "Changed meanwhile: set_kl is 0.5 now, not 0.7" in ran.err
    ran = cli("control", "ddp-run", "revert", "c1", "--expect=set_kl=0.5", "--no-wait")
    assert ran.code == 0
    (sent,) = commands_in(run.path)
    assert sent["expected"] == {"lr": [0.01, 0.01], "set_kl": 0.5}


def test_a_change_and_what_undid_it_cancel_out(run: MadeRun, cli: Cli) -> None:
    def kl(old: float, new: float) -> dict[str, Any]:
        return {"changes": {"set_kl": {"old": old, "new": new}}}

    told(run, "c1", "set_kl", {"value": 0.3}, step=410, **kl(0.5, 0.3))
    told(run, "c2", "set_kl", {"value": 0.8}, step=420, **kl(0.3, 0.8))
    told(run, "c3", "set_kl", {"value": 0.3}, step=430, reverts="c2", **kl(0.8, 0.3))
    run.report({"lr": [0.01, 0.01], "set_kl": 0.3}, step=430)
    ran = cli("control", "ddp-run", "revert", "c1", "--check")
    assert ran.code == 0 and ran.out.startswith("set_kl 0.3 -> 0.5")
    told(run, "c4", "set_kl", {"value": 0.8}, step=440, reverts="c3", **kl(0.3, 0.8))
    assert "undoes c3  c4\n" in cli("control", "ddp-run", "log").out
    run.report({"lr": [0.01, 0.01], "set_kl": 0.8}, step=440)
    ran = cli("control", "ddp-run", "revert", "c1", "--check")
    assert ran.code == 6 and "command c2 has changed it since" in ran.err
    ran = cli("control", "ddp-run", "revert", "c2", "--check")
    assert ran.code == 0 and ran.out.startswith("set_kl 0.8 -> 0.3")


def test_a_scale_that_was_taken_back_under_a_schedule_cancels_out(run: MadeRun, cli: Cli) -> None:
    told(run, "c1", "lr", {"scale": 0.5}, **LR)
    told(run, "c2", "lr", {"scale": 0.25}, step=420)
    told(run, "c3", "lr", {"scale": 4.0}, step=430, reverts="c2")
    assert cli("control", "ddp-run", "revert", "c1", "--check").code == 0


# Replay -------------------------------------------------------------------------------------


@pytest.fixture
def ledger(root: Path, cli: Cli) -> Path:
    """A file with the ledger of a run that is gone."""
    old = MadeRun(root, "old").train()
    told(old, "c1", "lr", {"scale": 0.5}, step=500)
    told(old, "c2", "set_kl", {"value": 0.1}, step=450)
    told(old, "c3", "set_kl", {"value": 0.2}, "rejected", step=460)
    told(old, "c4", "set_gone", {"value": 0.2}, step=470)
    told(old, "c5", "lr", {"scale": 2.0}, step=300)
    told(old, "c6", "set_kl", {"value": 7.0}, step=480)
    told(old, "c7", "run:freeze", {}, step=490)
    path = root.parent / "ledger.jsonl"
    path.write_text(cli("control", "old", "log", "--json").out)
    return path


def test_a_replay_plans_what_was_applied_and_says_why_not_the_rest(
    run: MadeRun, cli: Cli, ledger: Path
) -> None:
    ran = cli("control", "ddp-run", "replay", str(ledger), "--check", "--json")
    assert ran.code == 0 and commands_in(run.path) == []
    plan = {line["replays"]: (line["step"], line["text"]) for line in ran.lines}
    assert plan["c2"] == (450, "") and plan["c1"] == (500, "")
    assert plan["c3"] == (None, "it was rejected")
    assert plan["c4"] == (470, "this run has no such control")
    assert plan["c5"] == (300, "this run is at step 400")
    assert "must be at most 1" in plan["c6"][1]
    assert "c7" not in plan


def test_a_replay_sends_commands_for_the_same_steps_and_none_of_them_twice(
    run: MadeRun, cli: Cli, ledger: Path
) -> None:
    ran = cli("control", "ddp-run", "replay", str(ledger), "--no-wait")
    assert ran.code == 0
    assert {it["cmd"] for it in commands_in(run.path)} <= set(ran.out.split())
    sent = [
        (it["kind"], it["args"], it["first_step"], it["replays"]) for it in commands_in(run.path)
    ]
    assert sorted(sent) == [
        ("lr", {"scale": 0.5}, 500, "c1"),
        ("set_kl", {"value": 0.1}, 450, "c2"),
    ]
    again = cli("control", "ddp-run", "replay", str(ledger))
    assert again.code == 6 and "it was replayed already" in again.out


def test_steps_are_scaled_then_moved_and_controls_chosen(
    run: MadeRun, cli: Cli, ledger: Path
) -> None:
    words = ("--scale-steps=0.5", "--offset=300", "--only=lr,set_kl", "--except=set_kl")
    ran = cli("control", "ddp-run", "replay", str(ledger), *words, "--check", "--json")
    assert [(it["step"], it["text"]) for it in ran.lines] == [(450, ""), (550, "")]


@pytest.mark.parametrize(
    ("option", "fix"),
    [
        ("--only=lr,nosuch", "There are commands of lr, set_kl, set_gone"),
        ("--except=nosuch", "no command of nosuch"),
        ("--scale-steps=-1", "a number above 0, got -1"),
        ("--scale-steps=0", "a number above 0, got 0"),
        ("--scale-steps=nan", "a number above 0, got nan"),
    ],
)
def test_what_a_replay_cannot_mean_is_usage_with_the_fix(
    run: MadeRun, cli: Cli, ledger: Path, option: str, fix: str
) -> None:
    ran = cli("control", "ddp-run", "replay", str(ledger), option)
    assert ran.code == 2 and fix in ran.err
    assert commands_in(run.path) == []


def test_a_replay_ends_with_how_much_was_applied_and_where(
    run: MadeRun, cli: Cli, ledger: Path
) -> None:
    def apply(command: Command) -> Outcome:
        step = (command.first_step or 0) + (3 if command.name == "lr" else 0)
        return Outcome(command.id, "applied", applied_at={"step": step}, applied_on=2, of=2)

    with Coordinator(run, apply):
        ran = cli("control", "ddp-run", "replay", str(ledger), "--timeout", "60")
    assert ran.code == 0
    assert "2 of 2 applied, 1 at the planned step, the others up to 3 steps later" in ran.err


@pytest.mark.parametrize("text", ["{", "[]", json.dumps({"id": "x"})])
def test_a_file_that_is_no_ledger_is_2(run: MadeRun, cli: Cli, root: Path, text: str) -> None:
    path = root.parent / "file"
    path.write_text(text)
    ran = cli("control", "ddp-run", "replay", str(path))
    assert ran.code == 2 and "line 1 is no command" in ran.err


def test_what_goes_with_replay_goes_with_nothing_else(run: MadeRun, cli: Cli) -> None:
    assert cli("control", "ddp-run", "lr", "scale=0.5", "--offset=3").code == 2
    assert cli("control", "ddp-run", "replay", "ddp-run", "--at-step=3").code == 2
