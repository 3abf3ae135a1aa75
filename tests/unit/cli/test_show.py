"""`launchhelm show`."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

from launchhelm.cli import Exit
from launchhelm.records import Command, Outcome
from tests.support.cli_runs import MadeRun, commands_in
from tests.unit.cli.conftest import Cli


def test_the_page_has_header_processes_controls_and_commands(root: Path, cli: Cli) -> None:
    run = MadeRun(root, "ddp-run", ranks=2).train(400)
    command = Command("c1", "lr", {"scale": 0.5}, issued_by="alice", reason="noisy")
    changes = {"lr": {"old": [0.01], "new": [0.005]}}
    outcome = Outcome(
        "c1", "applied", applied_at={"step": 412}, applied_on=2, of=2, changes=changes
    )
    run.conclude(command, outcome)
    ran = cli("show", "ddp-run")
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert lines[0].split() == ["ddp-run", run.run_id, "running", "step", "400", "0.005", "s/step"]
    head = next(line for line in lines if line.startswith("RANK"))
    for column in ("HOST", "LOCAL", "PID", "WORLD", "STATE", "STEP", "PHASE", "BEAT", "LAG"):
        assert column in head
    assert "controls: lr 0.01 · set_kl 0.5" in lines
    assert "Applied at step 412 on all 2 processes, lr 0.01 -> 0.005  by alice" in lines[-1]


def test_latest_is_the_default_and_a_path_works_from_anywhere(root: Path, cli: Cli) -> None:
    old = MadeRun(root, "old")
    MadeRun(root, "new")
    assert cli("show", "--json").document["name"] == "new"
    assert cli("show", str(old.path), "--json", "--root", "/nowhere").document["name"] == "old"


def test_many_ranks_are_folded_and_exceptions_shown(root: Path, cli: Cli) -> None:
    run = MadeRun(root, "wide", ranks=40)
    for journal in run.journals:
        journal.beat(400 if journal.writer.rank == 7 else 900, step_time_ms=1000.0)
    ran = cli("show", "wide")
    assert "39 ranks on 1 host: ok" in ran.out
    assert len([line for line in ran.out.splitlines() if "behind" in line and "▼" in line]) == 1
    assert len(cli("show", "wide", "--ranks").out.splitlines()) > 40


def test_a_rank_that_others_wait_for_is_named_in_show_list_and_check(root: Path, cli: Cli) -> None:
    run = MadeRun(root, "stopped", ranks=2).train(400)
    waiting, stopped = run.journals
    waiting.beat(401, 2, phase="waiting at step 401", phase_s=22.0, step_time_ms=5.0)
    stopped.add("hb", {"n": 2, "phase": "training"}, step=400, at=time.time() - 25)
    at = time.time() - 25
    os.utime(stopped._path, (at, at))
    page = cli("show", "stopped").out
    assert page.splitlines()[0].split()[2:6] == ["running,", "1", "rank", "late"]
    assert "▼ behind" not in page and page.count("◐ late") == 1
    assert "  Rank 1 (gpu-000, local 1): no heartbeat for 25 s, last heard of at step 400" in page
    assert "Rank 0 waits for it." in page
    assert "running, 1 rank late" in cli("ls").out
    check = cli("control", "stopped", "lr", "scale=0.5", "--check").out
    assert "at the next control point, on 2 processes. Rank 1 is late." in check


def test_missing_ranks_are_named(root: Path, cli: Cli) -> None:
    run = MadeRun(root, "partly", ranks=6).train()
    for journal in run.journals[2:5]:
        journal._path.unlink()
    ran = cli("show", "partly")
    assert "missing: ranks 2-4" in ran.out
    assert ran.out.splitlines()[0].count("starting: 3 of 6 ranks seen") == 1


def test_sections_can_be_chosen(root: Path, cli: Cli) -> None:
    MadeRun(root, "r", config={"model": {"depth": 12}, "note": "a\x1bb"}).train()
    ran = cli("show", "r", "--config", "--attempts", "--metrics", "train/*")
    assert "depth: 12" in ran.out
    assert "note: a\\x1bb" in ran.out
    assert "ATTEMPT" in ran.out
    assert "train/loss" in ran.out and "optim/lr" not in ran.out
    assert "RANK" not in ran.out


def test_losses_and_faults_are_shown_when_there_are_any(root: Path, cli: Cli) -> None:
    run = MadeRun(root, "lossy").train()
    assert "lost:" not in cli("show", "lossy").out
    run.journals[0].beat(401, counter=2, lost=17, errors=3)
    out = cli("show", "lossy").out
    assert "17 records given up" in out and "3 writes refused" in out


def test_non_finite_values_are_strings_in_json(root: Path, cli: Cli) -> None:
    run = MadeRun(root, "odd").train()
    run.journals[0].add("m", {"train/loss": math.nan, "gap": -math.inf}, step=401)
    metrics = cli("show", "odd", "--json", "--metrics").document["metrics"]
    values = {metric["name"]: metric["value"] for metric in metrics}
    assert values["train/loss"] == "NaN" and values["gap"] == "-Infinity"


def test_names_of_a_run_are_text_whatever_they_contain(root: Path, cli: Cli) -> None:
    MadeRun(root, "evil\x1b[2J\u202e\nname").train()
    for words in (("ls",), ("show",), ("control", "latest", "list"), ("tail",)):
        ran = cli(*words)
        assert ran.code == 0
        assert "\x1b" not in ran.out + ran.err and "\u202e" not in ran.out + ran.err


def test_control_off_says_why(root: Path, cli: Cli) -> None:
    run = MadeRun(root, "off").train()
    run.report({"lr": [0.01]}, step=401, control="off", why="rank 1 left at step 300")
    assert "control is off: rank 1 left at step 300" in cli("show", "off").out


def test_a_run_of_a_newer_format_is_refused_with_a_reason(root: Path, cli: Cli) -> None:
    run = MadeRun(root, "future")
    path = run.path / "run.json"
    text = (
        path.read_text().replace('"format": 1', '"format": 9').replace('"format":1', '"format":9')
    )
    path.chmod(0o600)
    path.write_text(text)
    ran = cli("show", str(run.path))
    assert ran.code == 1
    assert "newer" in ran.err or "format" in ran.err


def test_values_that_differ_between_ranks_are_shown_with_the_value_of_each(
    root: Path, cli: Cli
) -> None:
    run = MadeRun(root, "apart", ranks=2).train()
    differs = {"lr": {"0": [0.1], "1": [0.05]}}
    run.report({"lr": [0.1]}, step=410, diverged=differs)
    assert "diverged: lr is 0.1 on rank 0, 0.05 on rank 1" in cli("show", "apart").out
    assert cli("show", "apart", "--json").document["diverged"] == differs
    run.report({"lr": [0.1]}, step=420)
    assert "diverged" not in cli("show", "apart").out


def test_a_snapshot_says_that_it_is_a_copy_and_takes_no_command(
    root: Path, cli: Cli, tmp_path: Path
) -> None:
    MadeRun(root, "live").train(164)
    copy = tmp_path / "copy"
    assert cli("snapshot", "live", str(copy)).code == Exit.DONE
    assert "a copy, as of step 164" in cli("show", str(copy)).out.splitlines()[0]
    for words in (("lr", "scale=0.5"), ("freeze",), ("cancel", "c1")):
        ran = cli("control", str(copy), *words)
        assert ran.code == Exit.NOTHING_CHANGED
        assert "live here is a copy, as of step 164" in ran.err
    assert commands_in(copy) == []
    assert cli("control", str(copy), "list").code == Exit.DONE


def test_a_long_reason_does_not_widen_the_table_of_attempts(root: Path, cli: Cli) -> None:
    reason = f"RuntimeError: [/b/pair.cc:537] reset by peer. {'x' * 300}"
    MadeRun(root, "cut").train().end("error", reason)
    ran = cli("show", "cut", "--attempts")
    rows = ran.out.splitlines()[2:]
    assert any("error RuntimeError: reset by peer. x" in row for row in rows)
    assert max(map(len, rows)) < 200
    assert cli("show", "cut", "--json").document["attempts"][0]["reason"] == reason
