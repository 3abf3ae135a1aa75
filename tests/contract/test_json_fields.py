"""docs/cli.md is a contract: options, exit codes and JSON fields are exactly what it says."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import pytest

from launchhelm.cli import EXIT_CODES, VERBS, main, parser_for
from launchhelm.records import Command, Outcome
from tests.support.cli_runs import MadeRun, commands_in

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "cli.md").read_text("utf-8")
COMMON = ("--root", "--json", "--color", "--traceback")


def section(heading: str, level: str = "##") -> str:
    """Return the text below a heading, up to the next one of that level or above."""
    _, found, rest = PAGE.partition(f"\n{level} {heading}\n")
    assert found, f"docs/cli.md has no heading {heading!r}"
    return re.split(rf"\n#{{2,{len(level)}}} ", rest)[0]


def rows(text: str, first: str) -> dict[str, str]:
    """Return the table whose first column is called `first`, as text by text."""
    table = re.search(rf"^\| {first} \|.*\n\| -.*\n((?:\|.*\n?)+)", text, re.M)
    assert table is not None, f"there is no table of {first}"
    cells = [line.strip("| \n").split(" | ", 1) for line in table[1].splitlines()]
    return {name.strip("`"): meaning for name, meaning in cells}


def fields(heading: str) -> set[str]:
    """Return the documented fields of one kind of document."""
    return set(rows(section(heading, "###"), "field"))


def documented(action: argparse.Action) -> str:
    """Write an option as docs/cli.md does."""
    name = ", ".join(action.option_strings)
    if action.nargs == 0:
        return name
    metavar = action.metavar or "{" + ",".join(map(str, action.choices or ())) + "}"
    return f"{name} [{metavar}]" if action.nargs == "?" else f"{name} {metavar}"


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_is_documented_with_its_help(verb: str) -> None:
    actions = [action for action in parser_for(verb)._actions if action.option_strings]
    own = {
        documented(action): action.help
        for action in actions
        if action.dest != "help" and action.option_strings[0] not in COMMON
    }
    assert rows(section(verb), "option") == own
    common = {
        documented(action): action.help for action in actions if action.option_strings[0] in COMMON
    }
    assert rows(PAGE, "option of every verb") == common


def test_every_exit_code_is_documented() -> None:
    assert rows(section("Exit codes"), "exit") == {
        str(int(code)): meaning for code, meaning in EXIT_CODES.items()
    }


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MadeRun:
    monkeypatch.setenv("LAUNCHHELM_DIR", str(tmp_path))
    made = MadeRun(tmp_path, ranks=2).train()
    made.journals[0].add("gap", {"first": 20, "last": 22, "why": "buffer full"})
    outcome = Outcome("c1", "applied", applied_at={"step": 412}, applied_on=2, of=2)
    made.conclude(Command("c1", "lr", {"scale": 0.5}), outcome)
    return made


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    import json

    main([*words, "--json"])
    value: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return value


def test_a_run_in_a_list_has_the_documented_fields(
    run: MadeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    assert set(printed(capsys, "ls")) == fields("A run (`ls`)")


def test_a_shown_run_and_its_parts_have_the_documented_fields(
    run: MadeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = printed(capsys, "show", "--metrics")
    assert set(shown) == fields("A run (`show`)")
    assert set(printed(capsys, "show")) == fields("A run (`show`)") - {"metrics"}
    for name, heading in (
        ("processes", "A process"),
        ("attempts", "An attempt"),
        ("metrics", "A metric"),
        ("controls", "A control"),
        ("commands", "A command"),
    ):
        assert shown[name], name
        assert set(shown[name][0]) == fields(heading), name
    assert set(shown["losses"]) == fields("Losses")


def test_a_look_has_the_documented_fields(run: MadeRun, capsys: pytest.CaptureFixture[str]) -> None:
    common = set(rows(section("A run (`show`)", "###").partition("| `config` |")[0], "field"))
    assert set(printed(capsys, "top")) == common | fields("A look (`top`)")


def test_a_diagnosis_has_the_documented_fields(
    run: MadeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    run.path.parent.chmod(0o777)
    shown = printed(capsys, "doctor")
    assert set(shown) == fields("A diagnosis (`doctor`)")
    assert set(shown["findings"][0]) == fields("A finding")
    assert all(f"`{it['check']}`" in section("doctor") for it in shown["findings"])


def test_lines_of_list_log_and_tail_have_the_documented_fields(
    run: MadeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    assert set(printed(capsys, "control", "latest", "list")) == fields("A control")
    assert set(printed(capsys, "control", "latest", "log")) == fields("A command")
    assert set(printed(capsys, "tail", "--commands")) == fields("A command")
    assert set(printed(capsys, "tail")) == fields("A record (`tail`)")


def test_answers_of_control_have_the_documented_fields(
    run: MadeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("control", "latest", "lr", "scale=0.5")
    assert set(printed(capsys, *words, "--check")) == fields("A checked command")
    assert commands_in(run.path) == []
    waited = printed(capsys, *words, "--timeout", "0")
    assert set(waited) == fields("A command") | {"sent"}
    assert set(printed(capsys, *words, "--no-wait")) == {"sent", "id", "state"}
    run.end()
    assert set(printed(capsys, *words)) == {"sent", "state", "text"}
