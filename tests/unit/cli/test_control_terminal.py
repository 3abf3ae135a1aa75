"""`launchhelm control` at a real terminal: what Ctrl-C leaves, and what it takes back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.cli_runs import MadeRun, commands_in
from tests.support.terminal import Terminal
from tests.unit.cli.conftest import Cli
from tests.unit.cli.test_control_live import LOOP, running

CTRL_C = "\x03"


@pytest.fixture
def terminal(root: Path) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def start(*words: str) -> Terminal:
        opened.append(Terminal(root, 200, "control", *words))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


def test_ctrl_c_at_the_question_sends_nothing_and_says_so(
    root: Path, terminal: Callable[..., Terminal]
) -> None:
    run = MadeRun(root, "ddp-run").train()
    asked = terminal("ddp-run", "lr", "scale=0.5")
    asked.until(lambda seen: "Send? [y/N]" in seen)
    asked.type(CTRL_C)
    asked.until(lambda seen: "\nInterrupted. Nothing was sent, nothing changed." in seen)
    assert asked.process.wait(30) == 130
    assert commands_in(run.path) == []


def test_ctrl_c_leaves_a_command_and_says_how_to_take_it_back(
    root: Path, terminal: Callable[..., Terminal]
) -> None:
    run = MadeRun(root, "ddp-run").train()
    waiting = terminal("ddp-run", "lr", "scale=0.5", "--yes")
    waiting.until(lambda seen: "written" in seen)
    waiting.type(CTRL_C)
    seen = waiting.until(lambda seen: "may still be applied" in seen)
    assert waiting.process.wait(30) == 130
    (command,) = commands_in(run.path)
    assert f"control {run.run_id} cancel {command['cmd']}" in seen
    assert "\nInterrupted. Ctrl-C again within 2 s takes it back" in seen


def test_a_second_ctrl_c_takes_it_back_and_its_answer_has_a_line_of_its_own(
    root: Path, terminal: Callable[..., Terminal], cli: Cli
) -> None:
    with running(LOOP, root, cli, control="set_rate"):
        words = ("loop", "--color=never", "set_rate", "rate=0.5", "--yes", "--at-step", "1000000")
        waiting = terminal(*words)
        waiting.until(lambda seen: "written" in seen)
        waiting.type(CTRL_C)
        waiting.until(lambda seen: "Ctrl-C again" in seen)
        waiting.type(CTRL_C)
        seen = waiting.until(lambda seen: ", nothing changed" in seen)
        assert waiting.process.wait(30) == 130
        (line,) = [each for each in seen.splitlines() if "nothing changed" in each]
        assert line.startswith("Cancelled by ")
        assert [each.strip() for each in seen.splitlines() if "^C" in each] == ["^C", "^C"]
