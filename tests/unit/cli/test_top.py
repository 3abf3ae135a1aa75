"""`launchhelm top`: what one look says, and a real terminal that is drawn on and put back."""

from __future__ import annotations

import io
import math
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launchhelm.cli._frame import frame
from launchhelm.cli.output import Output, width
from launchhelm.records import Command, Outcome
from launchhelm.views import open_run
from launchhelm.views.curves import Curves
from tests.support.cli_runs import MadeRun
from tests.support.reading import RunBuilder
from tests.support.terminal import Terminal
from tests.unit.cli.conftest import Cli

ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"


def look(run: Path, **more: int) -> list[str]:
    out = Output(io.StringIO(), io.StringIO())
    return frame(open_run(run), Curves(run), out, **more)


def test_a_look_has_state_metrics_commands_and_processes(root: Path, cli: Cli) -> None:
    run = MadeRun(root, "ddp-run", ranks=2).train(400)
    applied = Outcome("c1", "applied", applied_at={"step": 412}, applied_on=2, of=2)
    run.conclude(Command("c1", "lr", {"scale": 0.5}, issued_by="alice"), applied)
    ran = cli("top", "ddp-run")
    assert ran.code == 0 and "\x1b" not in ran.out
    lines = ran.out.splitlines()
    assert lines[0].split()[:1] == ["ddp-run"] and "step 400" in lines[0]
    assert any(line.startswith("train/loss") for line in lines)
    assert any("Applied at step 412 on all 2 processes" in line for line in lines)
    assert sum(line.split()[:2] in (["0", "gpu-000"], ["1", "gpu-000"]) for line in lines) == 2


def test_why_control_is_off_stands_above_the_curves_in_any_width(root: Path) -> None:
    run = MadeRun(root, "off").train()
    assert not any("control is off" in line for line in look(run.path, columns=80))
    run.report({"lr": [0.01]}, step=401, control="off", why="rank 1 left at step 300")
    assert look(run.path, columns=80)[1] == "control is off: rank 1 left at step 300"
    narrow = look(run.path, columns=30)
    at = narrow.index("control is off: rank 1 left at")
    assert narrow[at + 1] == "  step 300"


def test_json_is_one_document_a_look(root: Path, cli: Cli) -> None:
    MadeRun(root, "run", ranks=2).train(10)
    ran = cli("top", "--json", "--count", "2", "--interval", "0.2")
    assert [len(each["processes"]) for each in ran.lines] == [2, 2]
    assert ran.lines[0]["findings"] == [] and ran.lines[0]["metrics"]


def test_a_silly_interval_or_count_is_refused_with_what_to_give(root: Path, cli: Cli) -> None:
    MadeRun(root, "run")
    for words in (("--interval", "0"), ("--interval", "nan"), ("--count", "0")):
        ran = cli("top", *words)
        assert ran.code == 2 and "or more" in ran.err


def test_the_worst_process_comes_first_and_what_is_wrong_on_top(root: Path) -> None:
    run = MadeRun(root, "wide", ranks=40)
    for journal in run.journals:
        journal.beat(400 if journal.writer.rank == 7 else 900, step_time_ms=1000.0)
    lines = look(run.path, columns=120, lines=12)
    table = next(index for index, line in enumerate(lines) if line.startswith("RANK"))
    assert lines[table + 1].split()[0] == "7"
    assert "of 40" in lines[-1] and len(lines) <= 12
    assert look(run.path, columns=120, lines=12, first=39)[-1].endswith("to 40 of 40")


@pytest.mark.parametrize("columns", [30, 40, 80, 200])
def test_no_line_is_wider_than_the_terminal(root: Path, columns: int) -> None:
    run = MadeRun(root, "a run with quite a long name, 中文 too", ranks=12).train(400)
    applied = Outcome("c1", "applied", applied_at={"step": 412}, applied_on=2, of=2)
    run.conclude(Command("c1", "lr", {"scale": 0.5}, reason="long " * 20), applied)
    for lines in (8, 24):
        made = look(run.path, columns=columns, lines=lines)
        assert len(made) <= lines
        assert max(map(width, made)) <= columns


def test_a_spark_rises_and_says_where_nothing_but_nan_is(root: Path) -> None:
    made = RunBuilder(root)
    writer = made.writer(0)
    for step in range(80):
        writer.metrics(step, **{"train/loss": math.nan if step >= 60 else float(step)})
    writer.flush()
    (path,) = root.iterdir()
    line = next(each for each in look(path, columns=100) if each.startswith("train/loss"))
    drawn = line.split("  ")[-1].strip()
    assert drawn[0] == "▁" and "█" in drawn and drawn[-1] == "×"
    ranks = ["▁▂▃▄▅▆▇█×".index(mark) for mark in drawn]
    assert ranks == sorted(ranks)


@pytest.fixture
def terminal(root: Path) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def start(columns: int = 100, *words: str, **options: str) -> Terminal:
        opened.append(Terminal(root, columns, "top", *words, **options))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


def test_it_draws_scrolls_pauses_and_leaves_by_q(
    root: Path, terminal: Callable[..., Terminal]
) -> None:
    MadeRun(root, "wide", ranks=40).train(400)
    top = terminal(100, "--interval", "0.3")
    top.until(lambda seen: ENTER in seen and "rows 1 to" in seen)
    top.type("j")
    top.until(lambda seen: "rows 2 to" in seen)
    top.seen = ""
    top.type("\x1b[A \x1b[B\x1b[B")
    top.until(lambda seen: "rows 1 to" in seen and "rows 3 to" in seen and "paused" in seen)
    top.seen = ""
    top.resize(60)
    top.process.send_signal(signal.SIGWINCH)
    top.until(lambda seen: "STATE" in seen and "HOST" not in seen)
    top.type("q")
    top.until(lambda seen: LEAVE in seen)
    assert top.process.wait(30) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_puts_the_terminal_back(
    root: Path, terminal: Callable[..., Terminal], number: signal.Signals
) -> None:
    MadeRun(root, "run").train(400)
    top = terminal()
    top.until(lambda seen: "q quit" in seen)
    top.process.send_signal(number)
    seen = top.until(lambda seen: LEAVE in seen)
    assert seen.rindex(LEAVE) > seen.rindex("q quit")
    assert top.process.wait(30) == 128 + number


def test_the_end_of_the_run_ends_it_with_a_last_look(
    root: Path, terminal: Callable[..., Terminal]
) -> None:
    run = MadeRun(root, "run").train(400)
    top = terminal(100, "--interval", "0.3")
    top.until(lambda seen: "q quit" in seen)
    run.end()
    top.until(lambda seen: LEAVE in seen and "finished" in seen.partition(LEAVE)[2])
    assert top.process.wait(30) == 0


def test_an_ascii_terminal_gets_ascii(root: Path, terminal: Callable[..., Terminal]) -> None:
    MadeRun(root, "run", ranks=2).train(400)
    top = terminal(40, locale="C")
    seen = top.until(lambda seen: "q quit" in seen and "train/loss" in seen)
    assert seen.isascii()
    plain = re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", seen)
    assert max(map(len, plain.splitlines())) <= 40
