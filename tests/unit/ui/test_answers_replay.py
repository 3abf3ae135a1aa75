"""Another run's commands: their plan, which writes nothing, and giving them once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from launchhelm.records import Command, Outcome
from launchhelm.store import inbox
from launchhelm.ui import _answers_replay
from launchhelm.ui.request import MAX_BODY_BYTES
from tests.support.cli_runs import MadeRun, commands_in
from tests.support.dashboard import Dashboard, Said

ONE, TWO = "id-of-the-first", "id-of-the-second"


@pytest.fixture
def run(tmp_path: Path) -> MadeRun:
    return MadeRun(tmp_path / "runs", ranks=2).train()


@pytest.fixture
def old(tmp_path: Path) -> MadeRun:
    """A run with a command that fits, one whose outcome is unknown, and one without a control."""
    made = MadeRun(tmp_path / "runs", "old", ranks=2).train()
    for id_, name, payload, state in (
        ("kl", "set_kl", {"value": 0.1}, "applied"),
        ("lr", "lr", {"scale": 0.5}, "applied"),
        ("lost", "lr", {"scale": 2}, "outcome_unknown"),
        ("gone", "set_gone", {"value": 1}, "applied"),
    ):
        outcome = Outcome(id_, state, applied_at={"step": 500}, applied_on=2, of=2)
        made.conclude(Command(id_, name, payload, reason=f"why {id_}"), outcome)
    return made


@pytest.fixture
def ui(run: MadeRun) -> Dashboard:
    return Dashboard(run.path.parent)


def ask(ui: Dashboard, to: MadeRun, /, **body: Any) -> Said:
    return ui.post(f"runs/{to.run_id}/commands/replay", body)


def plan(ui: Dashboard, to: MadeRun, /, **body: Any) -> Any:
    answer = ask(ui, to, **body)
    assert answer.status == 200, answer.data
    return answer.document


def test_a_plan_says_what_would_be_sent_where_and_why_not_the_rest(
    run: MadeRun, old: MadeRun, ui: Dashboard
) -> None:
    made = plan(ui, run, run=old.run_id, scale_steps=2, offset=-1)
    rows = {row["replays"].partition("/")[2]: row for row in made["rows"]}
    assert (made["wanted"], made["left_out"], made["refusal"]) == (2, 2, "")
    assert (rows["kl"]["step"], rows["kl"]["text"], rows["kl"]["why"]) == (999, "value=0.1", "")
    assert rows["kl"]["replays"] == f"{old.run_id}/kl"
    assert rows["lost"]["why"] == "its outcome is unknown"
    assert rows["gone"]["why"] == "this run has no such control"
    assert commands_in(run.path) == [] and commands_in(old.path) == []
    only = plan(ui, run, run=old.run_id, only=["lr"])
    assert [row["name"] for row in only["rows"]] == ["lr", "lr"]


def test_what_was_sent_is_written_once_with_its_origin_however_often_it_is_sent(
    run: MadeRun, old: MadeRun, ui: Dashboard
) -> None:
    ids = {f"{old.run_id}/kl": ONE, f"{old.run_id}/lr": TWO}
    for _ in range(2):
        answer = ask(ui, run, run=old.run_id, ids=ids, confirmed=True)
        assert answer.status == 201
        assert answer.document == {
            "rows": [
                {"replays": source, "id": id_, "written": True, "why": ""}
                for source, id_ in ids.items()
            ],
            "written": 2,
        }
        sent = {it["cmd"]: it for it in commands_in(run.path)}
        assert sent.keys() == {ONE, TWO}
    assert sent[ONE]["kind"] == "set_kl" and sent[ONE]["args"] == {"value": 0.1}
    assert (sent[ONE]["first_step"], sent[ONE]["replays"]) == (500, f"{old.run_id}/kl")
    assert sent[ONE]["reason"] == "why kl"
    # Another viewer's ids send nothing again, and the ledger names the origin.
    other = ask(ui, run, run=old.run_id, ids={f"{old.run_id}/kl": "of-another-viewer"})
    assert other.document["rows"][0]["why"] == "it was replayed already"
    shown = ui.get(f"runs/{run.run_id}/commands")["commands"]
    assert {one["id"]: one["replays"] for one in shown}[ONE] == f"{old.run_id}/kl"
    assert len(commands_in(run.path)) == 2


def test_what_no_longer_fits_when_it_is_sent_is_not_written_and_the_rest_is(
    run: MadeRun, old: MadeRun, ui: Dashboard
) -> None:
    inbox.send(run.path, Command(TWO, "lr", {"scale": 0.1}))
    ids = {f"{old.run_id}/kl": ONE, f"{old.run_id}/lr": TWO, f"{old.run_id}/lost": "x" * 8}
    answer = ask(ui, run, run=old.run_id, ids={**ids, "no/such": "y" * 8}, confirmed=True)
    assert [row["why"] for row in answer.document["rows"]] == [
        "",
        "that id is another command's",
        "its outcome is unknown",
        "the ledger has no such command",
    ]
    assert answer.document["written"] == 1
    run.journals[0].beat(700, 2)
    run.journals[1].beat(700, 2)
    late = ask(ui, run, run=old.run_id, ids={f"{old.run_id}/lr": "z" * 8}, confirmed=True)
    assert late.document["rows"][0]["why"] == "this run is at step 700"
    assert len(commands_in(run.path)) == 2


def test_the_export_of_the_page_is_a_ledger_and_no_number_of_it_is_changed(
    run: MadeRun, old: MadeRun, ui: Dashboard
) -> None:
    shown = ui.get(f"runs/{old.run_id}/commands")["commands"]
    text = "\n".join(json.dumps({"run": old.run_id, **one}) for one in reversed(shown))
    assert plan(ui, run, ledger=text) == plan(ui, run, run=old.run_id)
    exact = {"id": "c", "name": "set_kl", "state": "applied", "applied_step": 600}
    line = json.dumps({**exact, "input": {"value": 0.30000000000000004}})
    answer = ask(ui, run, ledger=line, ids={"c": ONE}, confirmed=True)
    assert answer.document["written"] == 1
    assert commands_in(run.path)[0]["args"] == {"value": 0.30000000000000004}


def test_a_bold_command_of_the_plan_wants_to_be_confirmed(
    run: MadeRun, old: MadeRun, ui: Dashboard
) -> None:
    line = {"id": "c", "name": "lr", "state": "applied", "applied_step": 600}
    text = json.dumps({**line, "input": {"scale": 100}})
    assert [each["rule"] for each in plan(ui, run, ledger=text)["guards"]] == ["value"]
    refused = ask(ui, run, ledger=text, ids={"c": ONE})
    assert (refused.status, refused.code) == (409, "not_confirmed")
    assert commands_in(run.path) == []
    assert ask(ui, run, ledger=text, ids={"c": ONE}, confirmed=True).document["written"] == 1


def test_only_runs_of_this_board_are_replayed(
    run: MadeRun, old: MadeRun, ui: Dashboard, tmp_path: Path
) -> None:
    foreign = MadeRun(tmp_path / "elsewhere", "foreign").train()
    for id_ in (
        foreign.run_id,
        str(foreign.path),
        str(old.path),
        f"../elsewhere/{foreign.path.name}",
        f"../runs/{old.path.name}",
        "",
        "\x00",
        "\u202e" * 50,
    ):
        answer = ask(ui, run, run=id_)
        assert (answer.status, answer.code) == (404, "no_such_run"), id_
    for body in ({}, {"run": 7}, {"run": None}, {"ledger": 7}, {"run": "a", "ledger": "b"}):
        assert ask(ui, run, **body).status == 422, body


def test_what_cannot_be_is_said_by_field_and_nothing_is_written(
    run: MadeRun, old: MadeRun, ui: Dashboard
) -> None:
    cases: list[tuple[str, Any]] = [
        ("offset", 1.5),
        ("offset", True),
        ("offset", 1 << 53),
        ("offset", "1"),
        ("scale_steps", 0),
        ("scale_steps", -1),
        ("scale_steps", True),
        ("scale_steps", 10**400),
        ("scale_steps", "2"),
        ("only", "lr"),
        ("only", [1]),
        ("only", ["a"] * 101),
        ("except", ["nosuch"]),
        ("ids", {}),
        ("ids", []),
        ("ids", {"a": "short"}),
        ("ids", {"a": 7}),
        ("ids", {"a": "same-id-1", "b": "same-id-1"}),
        ("ids", {str(at): f"id-number-{at}" for at in range(_answers_replay.MAX_GIVEN + 1)}),
    ]
    for field, value in cases:
        answer = ask(ui, run, **{"run": old.run_id, field: value})
        assert answer.status == 422, (field, value)
        assert list(answer.document["error"]["fields"]) == [field], (field, value)
    answer = ask(ui, run, ledger="{}")
    assert "line 1 is no command" in answer.document["error"]["fields"]["ledger"]
    assert commands_in(run.path) == []


def test_a_ledger_is_at_most_a_body_and_a_plan_has_an_end(
    run: MadeRun, ui: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = ask(ui, run, ledger=" " * MAX_BODY_BYTES)
    assert (answer.status, answer.code) == (413, "too_large")
    line = {"name": "lr", "state": "applied", "applied_step": 600, "input": {"scale": 0.5}}
    text = "\n".join(json.dumps({**line, "id": str(at)}) for at in range(3))
    assert plan(ui, run, ledger=text)["wanted"] == 3
    monkeypatch.setattr(_answers_replay, "MAX_ROWS", 2)
    answer = ask(ui, run, ledger=text)
    assert list(answer.document["error"]["fields"]) == ["only"]


def test_whoever_may_only_look_sees_the_plan_and_sends_nothing(run: MadeRun, old: MadeRun) -> None:
    ui = Dashboard(run.path.parent, read_only=True)
    assert not plan(ui, run, run=old.run_id)["rights"]["can_control"]
    answer = ask(ui, run, run=old.run_id, ids={f"{old.run_id}/kl": ONE}, confirmed=True)
    assert (answer.status, answer.code) == (403, "not_permitted")
    assert commands_in(run.path) == []


def test_a_run_that_has_ended_says_so_instead_of_a_plan(
    run: MadeRun, old: MadeRun, ui: Dashboard
) -> None:
    ids = {f"{old.run_id}/kl": ONE}
    assert ask(ui, run, run=old.run_id, ids=ids, confirmed=True).document["written"] == 1
    run.end()
    made = plan(ui, run, run=old.run_id)
    assert "has ended" in made["refusal"] and made["rows"] == []
    assert ask(ui, run, run=old.run_id, ids={"a": TWO}).code == "refused"
    # What was written before is told all the same.
    assert ask(ui, run, run=old.run_id, ids=ids).document["written"] == 1


def test_a_board_that_cannot_says_so_in_a_sentence(
    run: MadeRun, old: MadeRun, ui: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ui.get(f"runs/{run.run_id}/commands")["no_replay"] == ""
    monkeypatch.setattr(ui.board, "no_replay", lambda: "Not from here.")
    assert ui.get(f"runs/{run.run_id}/commands")["no_replay"] == "Not from here."
    for body in ({"run": old.run_id}, {"run": old.run_id, "ids": {"a": ONE}}):
        answer = ask(ui, run, **body)
        assert (answer.status, answer.code) == (409, "no_replay")
        assert answer.document["error"]["happened"] == "Not from here."
