"""`launchhelm sync` and `launchhelm status`, as far as no server answers."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from launchhelm.cli import Exit, _sync_report
from syncer import connection, service
from syncer.discover import Discovery, Place
from syncer.work import Work
from tests.support.cli_runs import MadeRun
from tests.unit.cli.conftest import Cli

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("URL", "API_KEY", "API_KEY_FILE", "ORGANIZATION", "PROJECT", "CA_BUNDLE"):
        monkeypatch.delenv(f"LAUNCHHELM_{name}", raising=False)
    monkeypatch.setenv("LAUNCHHELM_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **more: object) -> None:
        raise AssertionError(f"a socket was opened: {arguments} {more}")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def test_without_a_server_and_a_key_it_says_how_to_get_them(cli: Cli) -> None:
    ran = cli("sync")
    assert ran.code == Exit.USAGE
    assert "launchhelm serve" in ran.err and "LAUNCHHELM_API_KEY" in ran.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--only", "metrics,pictures"), "pictures"),
        (("--since", "yesterday"), "yesterday"),
        (("--server", "ftp://x"), "https://"),
    ],
)
def test_a_wrong_option_is_a_usage_error(
    words: tuple[str, ...], said: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAUNCHHELM_API_KEY", "k")
    ran = cli("sync", *words)
    assert ran.code == Exit.USAGE and said in ran.err


@pytest.mark.parametrize("verb", [("sync", "--dry-run"), ("status",)])
def test_where_there_is_no_run_it_says_so(verb: tuple[str, ...], cli: Cli) -> None:
    ran = cli(*verb)
    assert ran.code == Exit.NO_SUCH_RUN and "No runs in" in ran.err


@pytest.mark.parametrize("verb", [("sync", "--dry-run"), ("status",)])
def test_where_not_even_the_root_is_there_it_says_the_same(
    verb: tuple[str, ...], cli: Cli, root: Path
) -> None:
    root.rmdir()
    ran = cli(*verb)
    assert ran.code == Exit.NO_SUCH_RUN and f"No runs in {root}" in ran.err


@pytest.mark.parametrize("word", ["./nowhere", "nowhere"])
def test_a_path_that_is_no_run_is_said(word: str, cli: Cli) -> None:
    ran = cli("sync", "--dry-run", word)
    assert ran.code == Exit.NO_SUCH_RUN and f"no folder and no run '{word}'" in ran.err


def test_a_service_waits_for_a_path_that_is_not_there_yet(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAUNCHHELM_API_KEY", "k")
    later = tmp_path / "later"
    looked: list[bool] = []

    def look(self: Discovery) -> list[Place]:
        """The folder comes after the first look; the second one ends the test."""
        found = original(self)
        looked.append(bool(found))
        if found:
            assert running
            running[0].stop()
        elif not later.exists():
            later.mkdir()
            MadeRun(later).train().end()
        return found

    running: list[service.Service] = []
    run = service.Service.run

    def start(self: service.Service) -> None:
        running.append(self)
        run(self)

    original = Discovery.look
    monkeypatch.setattr(Discovery, "look", look)
    monkeypatch.setattr(service.Service, "run", start)
    monkeypatch.setattr(connection.Connection, "connect", lambda self: None)

    ran = cli("sync", "--watch", "--server", "http://127.0.0.1:9", str(later))

    assert f"{later} is not there yet" in ran.err
    assert looked == [False, True]


@pytest.mark.usefixtures("no_sockets")
def test_a_dry_run_counts_records_and_needs_no_key(cli: Cli, root: Path) -> None:
    run = MadeRun(root, "one").train().end()
    records = run.journals[0]._next

    ran = cli("sync", "--dry-run", "--json")

    assert ran.code == Exit.DONE
    assert ran.document["pending"] == records and ran.document["state"] == "pending"
    assert "one" in cli("sync", "--dry-run").out


@pytest.mark.usefixtures("no_sockets")
def test_status_of_a_run_that_was_never_synced(cli: Cli, root: Path) -> None:
    run = MadeRun(root, "one").train()
    document = cli("status", "--json").document
    assert document["state"] == "never synced" and document["pending"] > 0
    assert document["id"] == run.run_id and document["server"] is None
    assert "never synced" in cli("status", str(run.path)).out


def test_status_lists_what_cannot_be_read(cli: Cli, root: Path) -> None:
    MadeRun(root, "one").train()
    bad = MadeRun(root, "two").path
    (bad / "run.json").write_text("{", "utf-8")
    ran = cli("status")
    assert ran.code == Exit.IN_PART and str(bad) in ran.err


def test_status_loads_no_http_client(root: Path) -> None:
    MadeRun(root).train()
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from launchhelm.cli import main\n"
        f"code = main(['status', {str(root)!r}])\n"
        "print(code, [name for name in ('httpx', 'torch', 'watchdog') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "0 []", done.stderr


def test_a_server_that_cannot_be_reached_ends_a_pass_and_nothing_is_lost(
    cli: Cli, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    MadeRun(root).train().end()
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    monkeypatch.setattr(service, "UNREACHABLE_S", 0.0)
    monkeypatch.setenv("LAUNCHHELM_API_KEY", "the-key-that-must-not-be-shown")

    ran = cli("sync", "--server", f"http://127.0.0.1:{port}")

    assert ran.code == Exit.STILL_WAITING
    assert "stays in the run directories" in ran.err
    assert "the-key-that-must-not-be-shown" not in ran.err + ran.out


def test_a_server_that_never_answers_ends_a_pass(
    cli: Cli, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    MadeRun(root).train().end()
    monkeypatch.setattr(service, "UNREACHABLE_S", 0.0)
    monkeypatch.setattr(connection, "TIMEOUT_S", 0.3)
    monkeypatch.setenv("LAUNCHHELM_API_KEY", "k")
    with socket.create_server(("127.0.0.1", 0)) as hole:
        ran = cli("sync", "--server", f"http://127.0.0.1:{hole.getsockname()[1]}")
    assert ran.code == Exit.STILL_WAITING


def test_the_module_is_the_verb_that_watches() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "syncer", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0 and "--retry-skipped" in done.stdout


def test_json_documents_have_the_documented_fields(cli: Cli, root: Path) -> None:
    MadeRun(root).train()
    page = (ROOT / "docs" / "cli.md").read_text("utf-8")

    def fields(heading: str) -> set[str]:
        text = page.partition(f"\n### {heading}\n")[2].partition("\n### ")[0]
        return set(re.findall(r"^\| `(\w+)` \|", text, re.M))

    work = Work(Place(root, "id", "name", "project"))
    assert set(_sync_report.document(work)) == fields("A synced run (`sync`)")
    assert set(cli("sync", "--dry-run", "--json").document) < fields("A synced run (`sync`)")
    assert set(cli("status", "--json").document) == fields("A run on a server (`status`)")
