"""The command as a process: start, help, exit codes, locale, closed pipe."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from launchhelm import cli as command
from launchhelm.cli import EXIT_CODES, VERBS, Exit, exit_code, parser_for
from launchhelm.cli._exit import UsageError
from launchhelm.errors import ConfigError, Conflict, NotFound, StorageError
from tests.support.cli_runs import MadeRun
from tests.unit.cli.conftest import Cli

REPOSITORY = Path(__file__).parents[3]


def called(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "launchhelm", *words],
        cwd=REPOSITORY,
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_json_and_help(verb: str, cli: Cli) -> None:
    options = parser_for(verb).format_help()
    assert "--json" in options and "--root" in options
    ran = cli(verb, "--help")
    assert ran.code == 0 and ran.out.startswith(f"usage: launchhelm {verb}")


def test_help_without_a_verb_lists_them_and_nothing_that_does_not_exist(cli: Cli) -> None:
    ran = cli("--help")
    assert ran.code == 0
    assert all(f"  {verb}" in ran.out for verb in VERBS)
    assert "  watch" not in ran.out
    assert cli("watch").code == 2
    assert cli().code == 2


def test_errors_have_their_exit_codes() -> None:
    denied = ConfigError("no")
    denied.__cause__ = PermissionError(13, "no")
    assert {
        exit_code(UsageError("x")): Exit.USAGE,
        exit_code(NotFound("x")): Exit.NO_SUCH_RUN,
        exit_code(Conflict("x")): Exit.NO_SUCH_RUN,
        exit_code(PermissionError(13, "x")): Exit.NOT_PERMITTED,
        exit_code(denied): Exit.NOT_PERMITTED,
        exit_code(StorageError("x")): Exit.FAILURE,
        exit_code(ZeroDivisionError()): Exit.FAILURE,
    } == {code: code for code in (2, 4, 5, 1)}
    assert set(EXIT_CODES) == set(Exit)


def test_an_ambiguous_name_lists_the_candidates_and_is_4(root: Path, cli: Cli) -> None:
    runs = [MadeRun(root, "twice") for _ in range(2)]
    ran = cli("show", "twice")
    assert ran.code == 4
    assert all(run.run_id in ran.err for run in runs)
    assert cli("show", "no-such-run").code == 4


@pytest.mark.parametrize("more", [(), ("--traceback",)])
def test_candidates_of_an_error_are_text_whatever_they_contain(
    root: Path, cli: Cli, more: tuple[str, ...]
) -> None:
    title = "evil\x1b[2J\u202e\nname"
    for _ in range(2):
        MadeRun(root, title)
    for selector in (title, "no-such-run"):
        ran = cli("show", selector, *more)
        assert ran.code == 4
        assert "evil\\x1b[2J\\u202e\\nname" in ran.err
        assert "\x1b" not in ran.err and "\u202e" not in ran.err
        if not more:
            assert len(ran.err.splitlines()) == 2


def test_a_bug_is_our_failure_and_says_where_the_details_are(
    root: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    from launchhelm.cli import ls

    def broken(*arguments: object) -> int:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(ls, "run", broken)
    ran = cli("ls")
    assert ran.code == 1 and "ZeroDivisionError: oh" in ran.err and "--traceback" in ran.err
    assert "Traceback" in cli("ls", "--traceback").err


def test_an_interrupt_is_130(root: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from launchhelm.cli import ls

    def interrupted(*arguments: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(ls, "run", interrupted)
    assert cli("ls").code == 130


@pytest.mark.parametrize("verb", ["ls", "show", "tail", "control"])
def test_no_heavy_import_for_any_verb(root: Path, verb: str) -> None:
    MadeRun(root).train()
    words = {"control": ["latest", "list"], "ls": []}.get(verb, ["latest"])
    code = (
        "import sys; from launchhelm.cli import main; "
        f"code = main({[verb, *words]!r}); "
        "heavy = {'torch', 'numpy', 'psutil', 'sqlite_utils', 'httpx', 'syncer', 'orjson'}; "
        "print(sorted(heavy & set(sys.modules)), "
        "sorted(m for m in sys.modules if m in "
        "{f'launchhelm.cli.{v}' for v in ('ls', 'show', 'tail', 'control')}), file=sys.stderr); "
        "sys.exit(code)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=REPOSITORY,
        env={"LAUNCHHELM_DIR": str(root)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.splitlines()[-1] == f"[] ['launchhelm.cli.{verb}']"


@pytest.mark.parametrize(
    "words",
    [
        ("ls",),
        ("show", "--metrics"),
        ("show",),
        ("tail",),
        ("tail", "--events"),
        ("control", "latest", "list"),
        ("control", "latest", "log"),
        ("ls", "--json"),
        ("show", "--json"),
    ],
)
def test_an_ascii_locale_never_ends_in_a_traceback(root: Path, words: tuple[str, ...]) -> None:
    run = MadeRun(root, "損失 خسارة 👩‍🚀", ranks=2, config={"名": "値"}).train()
    run.journals[0].add("m", {"損失": float("inf")}, step=401)
    run.journals[0].add("ev", {"type": "message", "text": "é"}, step=401)
    ran = called(
        *words,
        LAUNCHHELM_DIR=str(root),
        LC_ALL="C",
        LANG="C",
        PYTHONUTF8="0",
        PYTHONIOENCODING="ascii",
    )
    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr
    assert ran.stdout.isascii() and ran.stderr.isascii()


def test_a_closed_pipe_ends_quietly(root: Path) -> None:
    run = MadeRun(root)
    for step in range(20_000):
        run.journals[0].add("m", {"loss": 1.0}, step=step)
    line = f"{sys.executable} -m launchhelm tail -n 20000 | head -1"
    ran = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        cwd=REPOSITORY,
        env={"PATH": "/usr/bin:/bin", "LAUNCHHELM_DIR": str(root)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.stdout == "step 0  loss 1\n"
    assert ran.stderr == ""
    assert ran.returncode == 0


def test_a_closed_stderr_is_no_failure(root: Path) -> None:
    MadeRun(root).train()
    line = f"{sys.executable} -m launchhelm ls 2>&-"
    ran = subprocess.run(
        ["bash", "-c", line],
        cwd=REPOSITORY,
        env={"PATH": "/usr/bin:/bin", "LAUNCHHELM_DIR": str(root)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0 and "ddp-run" in ran.stdout


def test_the_module_can_be_run(root: Path) -> None:
    assert called("--help").returncode == 0
    assert command.__doc__ is not None
