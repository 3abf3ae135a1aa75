"""What of another ledger is given to a run, and at which steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from launchhelm import views
from launchhelm.records import Command, Outcome
from launchhelm.views.replay import (
    Choice,
    NotALedger,
    Told,
    UnknownControls,
    replay_of,
    told_by,
    told_in,
)
from tests.support.cli_runs import MadeRun


@pytest.fixture
def run(tmp_path: Path) -> views.RunView:
    """A run at step 400 with `lr` and `set_kl`."""
    return views.open_run(MadeRun(tmp_path, ranks=2).train().path)


def told(source: str, name: str = "lr", step: int | None = 500, **more: Any) -> Told:
    said = {"payload": {"scale": 0.5}, "reason": "", "state": "applied", **more}
    return Told(source, name, step=step, **said)


def planned(run: views.RunView, *ledger: Told, **choice: Any) -> dict[str, tuple[int | None, str]]:
    made = replay_of(run, ledger, Choice(**choice))
    assert [each.step or 0 for each in made] == sorted(each.step or 0 for each in made)
    return {each.source: (each.step, each.why) for each in made}


def test_what_is_left_out_says_why(run: views.RunView) -> None:
    made = planned(
        run,
        told("old/fits", step=401),
        told("old/past", step=400),
        told("old/refused", state="rejected", step=None),
        told("old/unknown", state="outcome_unknown"),
        told("old/nowhere", step=None),
        told("old/gone", "set_gone"),
        told("old/wrong", payload={"scale": -1}),
        told("old/order", "run:freeze", payload={}),
        told("old/twice"),
        told("old/twice"),
    )
    assert made.pop("old/wrong")[1].startswith("lr takes a number above 0 for scale")
    assert made == {
        "old/fits": (401, ""),
        "old/past": (400, "this run is at step 400"),
        "old/refused": (None, "it was rejected"),
        "old/unknown": (500, "its outcome is unknown"),
        "old/nowhere": (None, "it was applied at no step"),
        "old/gone": (500, "this run has no such control"),
        "old/twice": (500, "it is listed twice"),
    }


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ("waiting", "it has not been applied yet"),
        ("taken", "it has not been applied yet"),
        ("claimed", "it has not been applied yet"),
        ("applying", "its outcome is not known yet"),
        ("expired", "it expired"),
        ("cancelled", "it was cancelled"),
        ("of a later version", "it was not applied"),
    ],
)
def test_what_was_not_applied_is_said_in_words(run: views.RunView, state: str, why: str) -> None:
    assert planned(run, told("old/a", state=state, step=None)) == {"old/a": (None, why)}


def test_what_undid_something_is_left_out_with_it(run: views.RunView) -> None:
    made = planned(
        run,
        told("old/past", step=300),
        told("old/undo", step=500, reverts="past"),
        told("old/redo", step=600, reverts="undo"),
        told("old/here", "set_kl", step=500, payload={"value": 0.1}),
        told("old/back", "set_kl", step=600, payload={"value": 0.5}, reverts="here"),
        told("old/own", step=550, why="the run did it", brings_back="past"),
        told("old/own-undone", step=560, reverts="own"),
        told("old/torn", step=570, reverts="nowhere"),
        told("old/a", step=580, reverts="b"),
        told("old/b", step=590, reverts="a"),
    )
    assert {source.partition("/")[2]: why for source, (_, why) in made.items()} == {
        "past": "this run is at step 400",
        "undo": "it undid past, which is left out",
        "redo": "it undid undo, which is left out",
        "here": "",
        "back": "",
        "own": "the run did it",
        "own-undone": "it undid own, which is left out",
        "torn": "it undid nowhere, which is not in that ledger",
        "a": "",
        "b": "",
    }


def test_what_undid_something_that_was_replayed_before_is_given(run: views.RunView) -> None:
    from launchhelm.store import inbox

    sent = Command("new", "lr", {"scale": 0.5}, first_step=500, replays="old/a")
    inbox.send(run.directory, sent)
    run.refresh()
    made = planned(run, told("old/a"), told("old/b", step=600, reverts="a"))
    assert made == {"old/a": (500, "it was replayed already"), "old/b": (600, "")}


def test_steps_are_multiplied_then_moved_and_never_out_of_reach(run: views.RunView) -> None:
    one = told("old/a", step=1000)
    assert planned(run, one, scale=0.5, offset=7) == {"old/a": (507, "")}
    assert planned(run, one, offset=-700)["old/a"] == (300, "this run is at step 400")
    for choice in ({"scale": 1e300}, {"scale": 1e308}, {"offset": 1 << 53}):
        assert planned(run, one, **choice) == {"old/a": (None, "its step would be out of reach")}


def test_a_run_that_has_no_step_yet_gets_none_from_before_the_first(tmp_path: Path) -> None:
    made = MadeRun(tmp_path, ranks=2)
    from tests.support.cli_runs import LR

    made.journals[0].add("cap", LR)
    view = views.open_run(made.path)
    assert view.step is None
    assert planned(view, told("old/a", step=5), offset=-6) == {
        "old/a": (-1, "its step would be before the first one")
    }


def test_only_these_and_not_those_and_an_unknown_one_is_said(run: views.RunView) -> None:
    ledger = (told("old/a"), told("old/b", "set_kl", payload={"value": 0.1}))
    assert list(planned(run, *ledger, only=frozenset({"lr"}))) == ["old/a"]
    assert list(planned(run, *ledger, but=frozenset({"lr"}))) == ["old/b"]
    with pytest.raises(UnknownControls, match="no command of nosuch") as caught:
        planned(run, *ledger, but=frozenset({"nosuch"}))
    assert (caught.value.option, caught.value.known) == (
        "except",
        "There are commands of lr, set_kl.",
    )


def test_what_a_run_was_told_carries_its_run_and_what_it_repeats_is_not_sent_again(
    tmp_path: Path, run: views.RunView
) -> None:
    old = MadeRun(tmp_path, "old").train()
    for id_, step in (("one", 500), ("two", 600)):
        outcome = Outcome(id_, "applied", applied_at={"step": step}, applied_on=1, of=1)
        old.conclude(Command(id_, "lr", {"scale": 0.5}, reason="noisy"), outcome)
    ledger = told_by(views.open_run(old.path))
    assert [(each.source, each.step, each.reason) for each in ledger] == [
        (f"{old.run_id}/one", 500, "noisy"),
        (f"{old.run_id}/two", 600, "noisy"),
    ]
    from launchhelm.store import inbox

    again = Command("new", "lr", {"scale": 0.5}, first_step=500, replays=f"{old.run_id}/one")
    inbox.send(run.directory, again)
    run.refresh()
    made = planned(run, *ledger)
    assert made[f"{old.run_id}/one"][1] == "it was replayed already"
    assert made[f"{old.run_id}/two"] == (600, "")


def test_lines_of_the_terminal_and_of_the_page_are_the_same_ledger() -> None:
    same = {"id": "c", "name": "lr", "reason": "r", "state": "applied"}
    terminal = {**same, "payload": {"lr": 1.0}, "applied_at": {"step": 7, "epoch": 1}}
    page = {**same, "input": {"lr": 1.0}, "applied_step": 7, "run": "old"}
    text = f"{json.dumps(terminal)}\r\n\n{json.dumps(page)}\n"
    assert told_in(text) == [
        Told("c", "lr", {"lr": 1.0}, "r", "applied", 7),
        Told("old/c", "lr", {"lr": 1.0}, "r", "applied", 7),
    ]
    # What separates lines for Python only stands within one.
    odd = json.dumps({**page, "reason": "a\u2028b"}, ensure_ascii=False)
    assert told_in(odd)[0].reason == "a\u2028b"


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        "7",
        '"text"',
        "null",
        '{"id": "x"}',
        '{"id": "x", "name": "lr", "state": "applied", "payload": [["lr", 1]]}',
        '{"id": "x", "name": "lr", "state": "applied", "payload": {"lr": NaN}}',
        '{"id": "x", "name": "lr", "state": "applied", "payload": {"lr": 1e999}}',
        '{"id": "x", "name": "lr", "state": "applied", "payload": {"lr": "\\ud800"}}',
        '{"id": "x", "name": "lr", "name": "kl", "state": "applied", "payload": {}}',
        "[" * 100_000,
    ],
)
def test_what_is_no_command_is_named_by_its_line(line: str) -> None:
    with pytest.raises(NotALedger, match="line 3 is no command"):
        told_in(f"\n\n{line}")


def test_a_step_that_is_no_number_is_none() -> None:
    for step in ([], {}, "x", True, 1.5, "1" * 40, None):
        line = {"id": "x", "name": "lr", "state": "applied", "payload": {}}
        (one,) = told_in(json.dumps({**line, "applied_at": {"step": step}}))
        assert one.step is None
