"""`launchhelm completion`: the scripts, in the shells that are here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from launchhelm.cli import VERBS, parser_for
from tests.support.cli_runs import MadeRun
from tests.unit.cli.conftest import Cli


def completed(script: str, root: Path, *words: str) -> set[str]:
    """Ask bash what it would offer for the last word of a line."""
    bin_ = root.parent / "bin"
    bin_.mkdir(exist_ok=True)
    program = bin_ / "launchhelm"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m launchhelm "$@"\n')
    program.chmod(0o755)
    line = " ".join(f"'{word}'" for word in ("launchhelm", *words))
    asked = f"COMP_WORDS=({line}); COMP_CWORD={len(words)}; _launchhelm"
    ran = subprocess.run(
        ["bash", "-c", f"{script}\n{asked}\nprintf '%s\\n' \"${{COMPREPLY[@]}}\""],
        env={
            **os.environ,
            "LAUNCHHELM_DIR": str(root),
            "PATH": f"{bin_}:{os.environ['PATH']}",
            "PYTHONPATH": str(Path(__file__).resolve().parents[3]),
        },
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert ran.stderr == ""
    return set(ran.stdout.split())


def test_bash_completes_verbs_options_choices_and_runs(root: Path, cli: Cli) -> None:
    made = MadeRun(root, "a title with spaces")
    MadeRun(root, "llm-7b")
    script = cli("completion", "bash").out
    assert completed(script, root, "s") == {verb for verb in VERBS if verb.startswith("s")}
    assert completed(script, root, "show", "--a") == {"--attempts"}
    assert completed(script, root, "ls", "--color", "") == {"auto", "always", "never"}
    assert completed(script, root, "show", "l") == {"latest", "llm-7b"}
    assert completed(script, root, "--root", "x", "tail", made.run_id[:4]) >= {made.run_id}
    assert completed(script, root, "completion", "") >= {"bash", "zsh", "fish"}


def test_every_option_of_every_verb_is_in_every_script(root: Path, cli: Cli) -> None:
    for shell in ("bash", "zsh", "fish"):
        script = cli("completion", shell).out
        for verb in VERBS:
            for action in parser_for(verb)._actions:
                for flag in action.option_strings:
                    said = f"-l {flag[2:]}" if shell == "fish" and flag[:2] == "--" else flag[1:]
                    assert said in script, (shell, verb, flag)


def test_another_shell_is_refused_with_those_there_are(root: Path, cli: Cli) -> None:
    ran = cli("completion", "tcsh")
    assert ran.code == 2 and "bash, zsh, fish" in ran.err


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_script_is_one_that_the_shell_reads(shell: str, cli: Cli) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} IS NOT INSTALLED: its script was not read by it")
    subprocess.run([shell, "-n"], input=cli("completion", shell).out, text=True, check=True)
