"""`launchhelm tail`."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from launchhelm.records import Command, Outcome
from tests.support.cli_runs import Journal, MadeRun
from tests.unit.cli.conftest import Cli


def test_the_last_lines_of_rank_0_are_printed_in_order(root: Path, cli: Cli) -> None:
    run = MadeRun(root, ranks=2)
    for step in range(30):
        run.journals[0].add("m", {"train/loss": step / 2, "lr": 3e-4}, step=step)
        run.journals[1].add("m", {"train/loss": 99.0}, step=step)
    ran = cli("tail", "-n", "3")
    assert ran.out.splitlines() == [
        "step 27  train/loss 13.5  lr 3e-4",
        "step 28  train/loss 14  lr 3e-4",
        "step 29  train/loss 14.5  lr 3e-4",
    ]


def test_a_pattern_and_ranks_choose(root: Path, cli: Cli) -> None:
    run = MadeRun(root, ranks=2)
    for journal in run.journals:
        journal.add("m", {"train/loss": 1.0, "lr": 3e-4}, step=1)
    assert cli("tail", "--metrics", "train/*").out == "step 1  train/loss 1\n"
    both = cli("tail", "--metrics", "lr", "--rank", "0,1").out.splitlines()
    assert both == ["rank 0  step 1  lr 3e-4", "rank 1  step 1  lr 3e-4"]
    assert cli("tail", "--metrics", "nothing").out == ""
    assert cli("tail", "--rank", "first").code == 2


def test_nothing_that_fits_is_said_with_the_names_there_are(root: Path, cli: Cli) -> None:
    run = MadeRun(root, ranks=3).train()
    ran = cli("tail", "--metrics", "loss")
    assert (ran.code, ran.out) == (0, "")
    assert ran.err == "no metric fits 'loss'; there is optim/lr/group0, train/loss\n"
    ran = cli("tail", "--rank", "9")
    assert (ran.code, ran.out) == (0, "")
    assert ran.err == "rank 9: not seen in this run; there is ranks 0-2\n"
    ran = cli("tail", "--metrics", "train/*", "--rank", "1")
    assert ran.err == "no line of rank 1 has a metric 'train/*'; --rank all looks at all\n"
    run.journals[0].add("m", {f"m{number:02}\x1b": 1.0 for number in range(20)}, step=401)
    ran = cli("tail", "--metrics", "loss")
    assert "m00\\x1b" in ran.err and "m12" not in ran.err
    assert ran.err.endswith(" and 10 more\n")


def test_events_commands_and_console_have_lines_of_their_own(root: Path, cli: Cli) -> None:
    run = MadeRun(root).train()
    run.journals[0].add("ev", {"type": "message", "text": "warm\x1b"}, step=3)
    run.journals[0].add("con", {"stream": "stderr", "line": 1, "text": "retry"}, step=3)
    run.conclude(
        Command("c9", "lr", {"lr": 0.5}), Outcome("c9", "rejected", message="lr is frozen")
    )
    assert "message  text warm\\x1b" in cli("tail", "--events").out
    assert cli("tail", "--console").out == "! retry\n"
    assert cli("tail", "--commands").out == (
        "lr lr=0.5  Rejected, nothing changed: lr is frozen  c9\n"
    )


def test_commands_begin_with_why_control_is_off(root: Path, cli: Cli) -> None:
    run = MadeRun(root).train()
    said = "control is off: rank 1 left at step 300\n"
    assert said not in cli("tail", "--commands").err
    run.report({"lr": [0.01]}, step=401, control="off", why="rank 1 left at step 300")
    assert cli("tail", "--commands").err == said
    assert cli("tail").err == ""


def test_json_lines_carry_the_record_as_it_was_written(root: Path, cli: Cli) -> None:
    run = MadeRun(root)
    run.journals[0].add("m", {"損失": float("nan"), "n": 2**60}, step=7)
    (line,) = cli("tail", "--json").lines
    assert (line["step"], line["rank"], line["kind"]) == (7, 0, "m")
    assert line["body"] == {"損失": "NaN", "n": 2**60}


def test_following_goes_on_into_a_new_attempt_until_a_step(root: Path, cli: Cli) -> None:
    run = MadeRun(root)
    run.journals[0].add("m", {"loss": 1.0}, step=1)

    def train() -> None:
        time.sleep(0.3)
        again = Journal(run.path, attempt=2)
        for step in range(2, 6):
            again.add("m", {"loss": float(step)}, step=step)
            again.beat(step, counter=step)

    trainer = threading.Thread(target=train)
    trainer.start()
    ran = cli("tail", "--until", "step>=5")
    trainer.join()
    assert ran.code == 0
    assert [line.split()[1] for line in ran.out.splitlines()] == ["1", "2", "3", "4", "5"]


def test_until_finished_ends_with_the_run_and_says_when_it_went_wrong(root: Path, cli: Cli) -> None:
    MadeRun(root, "good").train().end()
    MadeRun(root, "bad").train().end("error", "RuntimeError: no")
    assert cli("tail", "good", "--until", "finished").code == 0
    ran = cli("tail", "bad", "--until", "finished")
    assert ran.code == 3
    assert "failed on rank 0" in ran.err


@pytest.mark.parametrize("words", [("--until", "noon"), ("-n", "-1"), ("-n", "many")])
def test_wrong_words_are_usage(root: Path, cli: Cli, words: tuple[str, ...]) -> None:
    MadeRun(root)
    assert cli("tail", "latest", *words).code == 2
