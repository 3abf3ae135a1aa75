"""`init` and `Run`: what is on disk when, what raises, and what never does."""

from __future__ import annotations

import copy
import gc
import json
import logging
import math
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import launchhelm
from launchhelm import CommandContext, LaunchHelmError, Run
from launchhelm._run_open import refuse_the_other_distribution
from launchhelm.errors import ConfigError
from launchhelm.records import Participant
from tests.support.journals import final_outcomes, records, series
from tests.support.runs import running, send, until, use_in_a_child

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with running(tmp_path / "runs", name="under-test") as run:
        yield run


def closes(directory: Path) -> list[dict[str, Any]]:
    return [dict(record.body) for record in records(directory, "close")]


# --- coming into being ----------------------------------------------------------------------------


def test_everything_a_reader_needs_is_durable_when_init_returns(tmp_path: Path) -> None:
    """A process that is killed right after init leaves a whole run."""
    code = (
        f"import sys, os, signal; sys.path.insert(0, {str(ROOT)!r})\n"
        "import launchhelm\n"
        "run = launchhelm.init('p', name='killed', config={'lr': 0.1}, state_dir='runs')\n"
        "print(run.run_id, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    run_id = done.stdout.strip()
    stored = json.loads((tmp_path / "runs" / run_id / "run.json").read_text("utf-8"))
    assert stored["run_id"] == run_id
    assert stored["name"] == "killed"
    assert stored["config"] == {"lr": 0.1}
    assert stored["world_size"] == 1
    assert stored["format"] == 1
    assert list((tmp_path / "runs" / run_id / "data").glob("r00000-a001-*.00001.jsonl"))
    assert f"writing 'killed' to {tmp_path / 'runs' / run_id}" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_init_needs_no_key_and_opens_no_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr("socket.socket.connect", refuse)
    for name in ("API_KEY", "URL", "ORGANIZATION", "PROJECT"):
        monkeypatch.setenv(f"LAUNCHHELM_{name}", "dummy")
    with running(tmp_path) as run:
        run.log({"loss": 1.0})
        run.flush()
    for path in run.directory.rglob("*.json*"):
        assert "API_KEY" not in path.read_text("utf-8")


def test_the_directory_does_not_follow_a_later_chdir(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with running(Path("runs")) as run:
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        monkeypatch.chdir(elsewhere)
        run.log({"loss": 1.0}, step=3)
    assert run.directory.parent == tmp_path / "runs"
    assert series(run.directory, "loss") == [(3, 1.0)]


def test_a_run_that_is_moved_reads_and_resumes_under_its_own_id(tmp_path: Path) -> None:
    with running(tmp_path / "old") as run:
        run.log({"loss": 1.0}, step=0)
        run.finish(close_run=False)
    (tmp_path / "new").mkdir()
    moved = run.directory.rename(tmp_path / "new" / run.run_id)
    with running(tmp_path / "new", resume=run.run_id) as again:
        again.log({"loss": 2.0}, step=1)
    assert again.directory == moved
    assert series(moved, "loss") == [(0, 1.0), (1, 2.0)]
    for path in moved.rglob("*.json*"):
        assert str(tmp_path / "old") not in path.read_text("utf-8"), path


def test_the_root_is_an_argument_a_variable_or_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = launchhelm.init("p")
    run.finish()
    assert run.directory.parent == tmp_path / "runs"
    monkeypatch.setenv("LAUNCHHELM_DIR", str(tmp_path / "variable"))
    run = launchhelm.init("p")
    run.finish()
    assert run.directory.parent == tmp_path / "variable"
    run = launchhelm.init("p", state_dir="argument")
    run.finish()
    assert run.directory.parent == tmp_path / "argument"


def test_a_root_that_is_a_file_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("notes")
    with pytest.raises(ConfigError, match="file"):
        launchhelm.init("p", state_dir=tmp_path / "runs")
    assert (tmp_path / "runs").read_text() == "notes"


def test_runs_of_one_project_agree_on_its_id(tmp_path: Path) -> None:
    with running(tmp_path) as one, running(tmp_path) as two:
        assert one.project_id == two.project_id
        assert one.run_id != two.run_id
    known = "0190c5a8-0000-7000-8000-000000000000"
    with running(tmp_path, project_id=known.upper()) as three:
        assert three.project_id == known


def test_a_root_that_cannot_be_written_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError) as caught:
        launchhelm.init("p", state_dir=tmp_path / "file" / "runs")
    assert caught.value.code == "config"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"project": ""}, ValueError),
        ({"project": 3}, TypeError),
        ({"project": "x" * 257}, ValueError),
        ({"overflow": "wait"}, ValueError),
        ({"name": "x" * 257}, ValueError),
        ({"config": [1]}, ValueError),
        ({"config": {"": 1}}, ValueError),
        ({"config": {1: 1}}, ValueError),
        ({"config": {"a": None}}, ValueError),
        ({"config": {"a": math.nan}}, ValueError),
        ({"config": {"a": [math.inf]}}, ValueError),
        ({"config": {"a": object()}}, ValueError),
        ({"config": {"a": [object()]}}, TypeError),
        ({"config": {str(n): n for n in range(65)}}, ValueError),
        ({"tags": "baseline"}, TypeError),
        ({"tags": [""]}, ValueError),
        ({"tags": ["x" * 65]}, ValueError),
        ({"tags": ["x" * 60] * 17}, ValueError),
        ({"notes": "x" * 1025}, ValueError),
        ({"group": "\ud800"}, ValueError),
        ({"project_id": "mine"}, ConfigError),
        ({"organization": "ours"}, ConfigError),
    ],
)
def test_a_wrong_argument_of_init_raises_and_makes_nothing(
    tmp_path: Path, arguments: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        launchhelm.init(**{"project": "p", "state_dir": tmp_path / "runs", **arguments})
    assert not (tmp_path / "runs").exists()


def test_secrets_are_masked_on_disk_and_not_in_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = ["train.py", "--api-key", "s3cr3t", "--token=s3cr3t", "--lr", "0.1", "--max_tokens=8"]
    monkeypatch.setattr(sys, "argv", argv)
    config = {"hubToken": "s3cr3t", "db": {"password": "s3cr3t"}, "max_tokens": 8, "key_dim": "4"}
    with running(tmp_path, config=config) as run:
        assert run.config == config
    text = (run.directory / "run.json").read_text("utf-8")
    assert "s3cr3t" not in text
    stored = json.loads(text)
    assert stored["config"] == {
        "hubToken": "***",
        "db": {"password": "***"},
        "max_tokens": 8,
        "key_dim": "4",
    }
    assert stored["argv"] == "train.py --api-key '***' '--token=***' --lr 0.1 --max_tokens=8"


def test_the_commit_is_read_without_a_child_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    git = tmp_path / "repository" / ".git"
    git.mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    (git / "packed-refs").write_text(f"# pack-refs\n{commit} refs/heads/main\n")
    inner = tmp_path / "repository" / "inner"
    inner.mkdir()
    monkeypatch.chdir(inner)
    monkeypatch.setattr("subprocess.Popen", None)
    with running(tmp_path / "a") as run:
        assert run.git == commit
    (git / "refs" / "heads").mkdir(parents=True)
    (git / "refs" / "heads" / "main").write_text(commit[::-1] + "\n")
    with running(tmp_path / "b") as run:
        assert run.git == commit[::-1]
    monkeypatch.chdir(tmp_path)
    with running(tmp_path / "c") as run:
        assert run.git == ""


def test_the_official_distribution_beside_ours_stops_init(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "site" / "launchhelm-0.1.1.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: launchhelm\nVersion: 0.1.1\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    with pytest.raises(ConfigError, match=r"launchhelm 0\.1\.1 is installed"):
        refuse_the_other_distribution()


# --- log ------------------------------------------------------------------------------------------


def test_the_step_counter_is_moved_by_log_alone(run: Run) -> None:
    run.log({"a": 1})
    run.log({"a": 1}, step=9)
    run.log({"a": 1}, step=3)
    run.log({"a": 1}, step=-2)
    run.log({})
    run.console("text")
    run.sync("after_step")
    run.summary({"a": 1})
    run.log({"a": 1})
    run.finish()
    assert [step for step, _ in series(run.directory, "a")] == [0, 9, 3, -2, 10]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda run: run.log({1: 2.0}), TypeError),
        (lambda run: run.log([("a", 1)]), TypeError),
        (lambda run: run.log({"a": 1}, step=1.0), TypeError),
        (lambda run: run.log({"a": 1}, step=True), TypeError),
        (lambda run: run.log({"a": 1}, step=np.int64(1)), TypeError),
        (lambda run: run.log({"a": 1}, step=1 << 200), ValueError),
        (lambda run: run.log({"a": 1}, Epoch=1), ValueError),
        (lambda run: run.log({"a": 1}, epoch=True), TypeError),
        (lambda run: run.log({"a": 1}, epoch=math.nan), ValueError),
        (lambda run: run.sync("After"), ValueError),
        (lambda run: run.sync("after_step", step="1"), TypeError),
        (lambda run: run.define("a", "tensor"), ValueError),
        (lambda run: run.define(1), TypeError),
        (lambda run: run.define("a", "string", summary="min"), ValueError),
        (lambda run: run.define("a", "number", "Epoch"), ValueError),
        (lambda run: run.define("a", unit="x" * 65), ValueError),
        (lambda run: run.console(b"x"), TypeError),
        (lambda run: run.console("x", stream="log"), ValueError),
        (lambda run: run.summary({"a": [1]}), TypeError),
        (lambda run: run.describe(name=""), ValueError),
        (lambda run: run.describe(tags="x"), TypeError),
        (lambda run: run.keep({"a": object()}), TypeError),
        (lambda run: run.keep({"a": math.nan}), ValueError),
        (lambda run: run.history("a", limit=0), ValueError),
        (lambda run: run.history("a", step_from=2, step_to=1), ValueError),
        (lambda run: run.history("a", step_from=1.5), TypeError),
        (lambda run: run.history("a", step=1), ValueError),
        (lambda run: run.latest("a", run="nobody"), LaunchHelmError),
        (lambda run: run.compare("a", ""), ValueError),
        (lambda run: run.runtime.report_applied_on(1, 1), RuntimeError),
    ],
)
def test_a_wrong_argument_raises_at_once_and_moves_nothing(
    run: Run, call: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        call(run)
    run.log({"a": 1})
    run.finish()
    assert series(run.directory, "a") == [(0, 1)]


def test_an_odd_value_is_left_out_counted_and_warned_of_once(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        assert run.log({"good": 1.0, "odd": None}) is False
    assert run.log({"odd": [1]}) is False
    assert len([r for r in caplog.records if "'odd' was left out" in r.getMessage()]) == 1
    run.finish()
    assert [step for step, _ in series(run.directory, "good")] == [0, 1, 2]
    notices = [r.body["text"] for r in records(run.directory, "ev") if r.body["type"] == "notice"]
    assert "4 values were left out of what was logged: 'odd' 4." in notices


def test_a_metric_without_a_name_is_warned_of(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    run.log({"": 1.0, "loss": 2.0})
    assert "a metric cannot have an empty name" in caplog.text


@pytest.mark.parametrize("warnings_are_errors", [True])
def test_no_value_whatever_raises_in_log(run: Run, warnings_are_errors: bool) -> None:
    class Hostile:
        dtype = property(lambda self: 1 / 0)

        def __float__(self) -> float:
            raise SystemError("no")

        def __repr__(self) -> str:
            raise RuntimeError("no")

    for odd in (Hostile(), np.ones(2), object(), 1j, b"x", [torch.ones(1)], lambda: 1, "\ud800"):
        run.log({"odd": odd})
    for name in ("", "a\0", "\ud800", "x" * 2000):
        assert run.log({name: 1.0}) is False


def test_a_value_of_another_kind_is_kept_with_its_own_class(run: Run) -> None:
    for value in (1, 2.5, "text", True, False, "3", 1 << 70):
        assert run.log({"n": value})
    assert run.metric("n") is not None
    run.finish()
    assert repr([value for _, value in series(run.directory, "n")]) == repr(
        [1, 2.5, "text", True, False, "3", 1 << 70]
    )


def test_a_later_change_of_what_was_logged_changes_nothing(run: Run) -> None:
    array = np.array(1.0)
    tensor = torch.tensor(2.0)
    metrics = {"array": array, "tensor": tensor}
    run.log(metrics)
    array += 10
    tensor += 10
    metrics["late"] = array
    run.finish()
    [record] = records(run.directory, "m")
    assert record.body == {"array": 1.0, "tensor": 2.0}


def test_no_tensor_or_graph_is_kept(run: Run) -> None:
    seen = []
    for step in range(50):
        weight = torch.ones(1000, requires_grad=True)
        loss = (weight * 2).sum()
        run.log({"loss": loss}, step=step)
        seen.append(weakref.ref(loss))
        del loss, weight
    gc.collect()
    assert [reference for reference in seen if reference() is not None] == []


def test_axes_are_stored_with_each_point_in_any_order(run: Run) -> None:
    run.log({"a": 1}, step=0, epoch=1, rate=1e-7)
    run.log({"a": 2}, step=1, rate=0.5, epoch=2)
    run.log({"a": 3}, step=2)
    run.finish()
    assert [dict(record.axes) for record in records(run.directory, "m")] == [
        {"epoch": "1", "rate": "0.0000001"},
        {"rate": "0.5", "epoch": "2"},
        {},
    ]
    assert run.latest("a", epoch=2.0) is not None


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    names=st.lists(
        st.text(min_size=1, max_size=200).filter(lambda text: "\0" not in text), unique=True
    )
)
def test_any_name_comes_back_unchanged(tmp_path: Path, names: list[str]) -> None:
    def is_valid(name: str) -> bool:
        try:
            return len(name.encode()) <= 1024
        except UnicodeEncodeError:
            return False

    with running(tmp_path) as run:
        for index, name in enumerate(names):
            assert run.log({name: index}, step=index) == is_valid(name)
        assert set(run.metrics()) == {name for name in names if is_valid(name)}
        for index, name in enumerate(names):
            if is_valid(name):
                point = run.latest(name)
                assert point is not None
                assert point["value"] == index


def test_many_threads_may_log_at_once(run: Run) -> None:
    def log(name: str) -> None:
        for index in range(500):
            run.log({name: index})

    threads = [threading.Thread(target=log, args=(f"t{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run.finish()
    steps = [record.step for record in records(run.directory, "m")]
    assert sorted(steps) == list(range(2000))
    assert [value for _, value in series(run.directory, "t0")] == list(range(500))


def test_a_fault_of_the_recorder_never_reaches_the_loop(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*arguments: object, **named: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(run.recorder, "append", broken)
    monkeypatch.setattr(run.desk, "take", broken)
    for _ in range(3):
        assert run.log({"loss": 1.0}) is False
        assert run.sync("after_step") == 0
    assert run.recorder.faults["recorder"] >= 3
    assert run.recorder.faults["control"] == 3
    run.summary({"a": 1})
    run.console("text")
    run.finish()
    assert caplog.text.count("RuntimeError: broken") >= 1


# --- describing -----------------------------------------------------------------------------------


def test_reductions_are_kept_unless_summary_says_otherwise(run: Run) -> None:
    run.define("loss", summary="min")
    run.define("speed", summary="mean")
    run.define("peak", summary="max")
    for step, value in enumerate([3.0, math.nan, 1.0, 2.0, math.inf]):
        run.log({"loss": value, "speed": value, "peak": value}, step=step)
    run.summary({"peak": -1.0, "note": "fine", "gone": 1})
    run.summary({"gone": None})
    run.finish()
    expected = {"loss": 1.0, "speed": 2.0, "peak": -1.0, "note": "fine"}
    assert run.summary_values == expected
    assert run.about()["summary"] == expected


def test_a_reduction_goes_on_in_the_next_attempt(tmp_path: Path) -> None:
    with running(tmp_path) as first:
        first.define("speed", summary="mean")
        first.log({"speed": 1.0})
        first.log({"speed": 2.0})
        first.finish(close_run=False)
    with running(tmp_path, resume=first.run_id) as second:
        second.log({"speed": 6.0})
    assert second.about()["summary"] == {"speed": 3.0}


def test_a_summary_value_may_be_nan(run: Run) -> None:
    run.summary({"loss": math.nan, "acc": np.float32(0.5)})
    run.finish()
    assert math.isnan(run.summary_values["loss"])
    assert run.summary_values["acc"] == 0.5
    assert records(run.directory, "sum")[0].body["loss"] == {"$number": "NaN"}


def test_define_fixes_kind_unit_and_axes(run: Run) -> None:
    run.define("loss", "number", "epoch", unit="nats")
    run.define("loss", "number", "epoch", unit="bits")
    assert run.metric("loss") == {"kind": "number", "axes": ["step", "epoch"], "unit": "nats"}
    with pytest.raises(TypeError, match="cannot become string"):
        run.define("loss", "string")
    assert run.metric("unknown") is None


def test_describe_changes_what_is_read_back(run: Run) -> None:
    run.describe(name="renamed", group="g", tags=["a", "b"], notes="n")
    run.describe(notes="")
    about = run.about()
    assert (about["name"], about["group"], about["tags"], about["notes"]) == (
        "renamed",
        "g",
        ["a", "b"],
        "",
    )
    assert (run.name, run.group, run.tags) == ("renamed", "g", ("a", "b"))


def test_kept_state_is_durable_on_return(run: Run) -> None:
    run.log({"a": 1}, step=41)
    run.keep({"epoch": 3})
    [kept] = records(run.directory, "keep")
    assert kept.body == {"step": 42, "state": {"epoch": 3}}


def test_console_lines_are_numbered_and_split(run: Run) -> None:
    run.console("x" * 2000)
    run.console("err", stream="stderr")
    run.finish()
    bodies = [record.body for record in records(run.directory, "con")]
    assert [(len(body["text"]), body["stream"], body["line"]) for body in bodies] == [
        (1024, 0, 0),
        (976, 0, 1),
        (3, 1, 2),
    ]


def test_finish_ends_the_capture_of_the_console(run: Run) -> None:
    before = sys.stdout
    run.capture_console()
    run.capture_console()
    print("hello")
    run.finish()
    assert sys.stdout is before
    assert [record.body["text"] for record in records(run.directory, "con")] == ["hello"]


# --- delivery -------------------------------------------------------------------------------------


def test_flush_makes_everything_durable_and_warns_once_that_nobody_else_has_it(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    run.log({"a": 1})
    run.flush()
    run.flush()
    assert series(run.directory, "a") == [(0, 1)]
    assert len([r for r in caplog.records if "no server is attached" in r.getMessage()]) == 1
    assert run.runtime.last_transport_error == "offline"


def test_strict_delivery_makes_flush_refuse(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAUNCHHELM_STRICT_DELIVERY", "1")
    run.log({"a": 1})
    with pytest.raises(TimeoutError, match="no server has it"):
        run.flush()
    run.flush(delivered=False)
    assert series(run.directory, "a") == [(0, 1)]


# --- reading --------------------------------------------------------------------------------------


def test_a_process_reads_its_own_writes_at_once(run: Run) -> None:
    run.log({"loss": 0.5, "odd": -math.inf}, step=3, epoch=1)
    assert run.latest("loss") == {
        "value": 0.5,
        "coordinates": {"step": "3", "epoch": "1"},
        "observed_at": run.history("loss")[0]["observed_at"],
    }
    odd = run.latest("odd")
    assert odd is not None
    assert odd["value"] == {"$number": "nonfinite", "value": "-inf"}
    assert run.latest("unknown") is None


def test_history_gives_the_last_points_or_the_first_of_a_window(run: Run) -> None:
    for step in range(20):
        run.log({"a": step}, step=step)
    assert [point["value"] for point in run.history("a", limit=3)] == [17, 18, 19]
    window = run.history("a", limit=3, step_from=5, step_to=15)
    assert [point["value"] for point in window] == [5, 6, 7]


def test_tables_join_without_inventing_values(run: Run, tmp_path: Path) -> None:
    run.log({"a": 1, "b": 10}, step=0)
    run.log({"a": 2}, step=1)
    run.log({"b": 30}, step=10)
    assert run.table("a", "b") == [
        {"step": "0", "a": 1, "b": 10},
        {"step": "1", "a": 2},
        {"step": "10", "b": 30},
    ]
    with running(tmp_path / "runs", name="other") as other:
        other.log({"a": 9}, step=1)
        other.flush(delivered=False)
        assert run.compare("a", "", "other") == [
            {"step": "0", "under-test": 1},
            {"step": "1", "under-test": 2, "other": 9},
        ]
        assert run.runs() == ["other", "under-test"]
        assert run.history("a", run="other")[0]["value"] == 9
    assert dict(run.statuses()) == {"other": "closed", "under-test": "open"}


# --- live control ---------------------------------------------------------------------------------


def test_a_command_runs_in_the_loop_and_its_outcome_is_on_record(run: Run) -> None:
    seen: list[tuple[float, CommandContext, int]] = []

    @run.command("after_step")
    def set_lr(lr: float, context: CommandContext) -> dict[str, float]:
        seen.append((lr, context, threading.get_ident()))
        return {"lr": lr}

    assert run.sync("after_step") == 0
    sent = send(run.directory, "set_lr", {"lr": 0.5})
    until(lambda: run.pending("after_step") or run.sync("other"))
    assert run.sync("after_step", step=7, epoch=1) == 1
    [(lr, context, thread)] = seen
    assert (lr, context.command_id, thread) == (0.5, sent.id, threading.get_ident())
    assert context.coordinates == (
        {"axis": "step", "value": "7"},
        {"axis": "epoch", "value": "1"},
    )
    assert run.last_applied == {"step": "7", "epoch": "1"}
    assert run.last_result == {"lr": 0.5}
    assert run.sync("after_step") == 0
    assert run.last_result is None
    run.finish()
    outcomes = [record.body for record in records(run.directory, "oc")]
    assert [body["state"] for body in outcomes] == ["claimed", "applying", "applied"]
    assert outcomes[-1]["result"] == {"lr": 0.5}
    assert outcomes[-1]["applied_at"] == {"step": 7, "epoch": "1"}
    assert (outcomes[-1]["applied_on"], outcomes[-1]["of"]) == (1, 1)


def outcome_of(run: Run, handler: Any) -> dict[str, Any]:
    """Register a handler, command it once, and return its outcome."""
    run.command("after_step", name="change")(handler)
    send(run.directory, "change", {})
    ran: list[int] = []
    until(lambda: ran.append(run.sync("after_step")) or ran[-1])
    run.finish()
    return dict(records(run.directory, "oc")[-1].body)


def test_a_handler_that_raises_leaves_an_unknown_outcome_and_the_loop_goes_on(run: Run) -> None:
    def fail() -> None:
        raise KeyError("lr")

    outcome = outcome_of(run, fail)
    assert (outcome["state"], outcome["code"]) == ("outcome_unknown", "KeyError")


def test_a_result_that_is_not_json_is_dropped_from_a_command_that_is_applied(run: Run) -> None:
    outcome = outcome_of(run, lambda: {1, 2})
    assert (outcome["state"], outcome.get("result") or {}) == ("applied", {})
    assert "result was dropped" in outcome["message"]


def test_a_partial_application_is_told_with_its_count(run: Run) -> None:
    outcome = outcome_of(run, lambda: run.runtime.report_applied_on(511, 512))
    assert (outcome["state"], outcome["applied_on"], outcome["of"]) == ("outcome_unknown", 511, 512)


def test_an_interrupt_in_a_handler_is_recorded_and_passed_on(run: Run) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        outcome_of(run, interrupt)
    run.finish()
    assert records(run.directory, "oc")[-1].body["code"] == "KeyboardInterrupt"


def test_storage_that_accepts_nothing_delays_a_command_and_never_the_loop(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`applying` must be durable before the handler runs; the loop waits a quarter second."""
    from launchhelm import _run_service
    from launchhelm._buffer import Ticket

    called: list[int] = []
    run.command("after_step", name="change")(lambda: called.append(1))
    send(run.directory, "change", {})
    until(lambda: run.pending("after_step") or run.sync("other"))
    never = Ticket()
    monkeypatch.setattr(run.desk, "applying", lambda command, step=None: never)
    monkeypatch.setattr(_run_service, "APPLYING_WAIT_S", 0.01)
    assert run.sync("after_step") == 0
    assert called == []
    never.resolve()
    assert run.sync("after_step") == 1
    assert called == [1]


def test_the_lower_level_runs_commands_at_coordinates_of_the_wire(run: Run) -> None:
    from launchhelm.commands import command_capability

    def refuse_odd(payload: Any) -> None:
        if payload["n"] % 2:
            raise ValueError("n must be even")

    def change(n: int) -> None: ...

    seen: list[Any] = []
    document = run.runtime.register(
        command_capability(change, "after_step"),
        lambda payload, context: seen.append((payload, context.coordinates)),
        validate=refuse_odd,
    )
    assert document.kind == "capability"
    odd = send(run.directory, "change", {"n": 1}, id="a")
    even = send(run.directory, "change", {"n": 2}, id="b")
    at = [{"axis": "step", "value": "7"}, {"axis": "epoch", "value": "1.5"}]
    until(lambda: run.runtime.safe_point("after_step", coordinates=at))
    assert seen == [({"n": 2}, ({"axis": "step", "value": "7"}, {"axis": "epoch", "value": "1.5"}))]
    run.runtime.close()
    outcomes = final_outcomes(run.directory)
    assert outcomes[odd.id][0].message == "n must be even"
    assert outcomes[even.id][0].applied_at == {"step": 7, "epoch": "1.5"}
    assert closes(run.directory)[0]["close_run"] is False


def test_a_capability_must_list_the_point_it_is_offered_at(run: Run) -> None:
    from launchhelm.commands import command_capability

    capability = command_capability(lambda: None, "after_step", name="ping")
    document = run.on("after_step", capability, lambda payload, context: None)
    assert (document.kind, document.revision, document.spec["name"]) == ("capability", "1", "ping")
    assert document.scope.run_id == run.run_id
    with pytest.raises(ValueError, match="does not list"):
        run.on("after_epoch", capability, lambda payload, context: None)


# --- the end --------------------------------------------------------------------------------------


def test_calls_after_finish_never_raise(run: Run) -> None:
    run.finish()
    run.finish()
    assert run.log({"a": 1}) is False
    run.console("x")
    run.capture_console()
    run.summary({"a": 1})
    run.describe(notes="n")
    run.keep({"a": 1})
    run.flush()
    run.define("b")
    assert run.sync("after_step") == 0
    assert run.pending("after_step") is False
    run.notice("late")
    assert run.latest("a") is None
    assert len(closes(run.directory)) == 1


@pytest.mark.parametrize(
    ("error", "state", "reason"),
    [
        (None, "finished", ""),
        (ValueError("bad"), "error", "ValueError: bad"),
        (KeyboardInterrupt(), "interrupted", "KeyboardInterrupt"),
        (SystemExit(3), "error", "SystemExit: 3"),
        (SystemExit(0), "finished", ""),
    ],
)
def test_leaving_the_block_records_how(
    tmp_path: Path, error: BaseException | None, state: str, reason: str
) -> None:
    run = launchhelm.init("p", state_dir=tmp_path)
    try:
        with run:
            if error is not None:
                raise error
    except BaseException as caught:
        assert caught is error
    [close] = closes(run.directory)
    assert (close["state"], close["reason"]) == (state, reason)


@pytest.mark.parametrize(
    ("ending", "state", "status"),
    [
        ("", "finished", 0),
        ("sys.exit(3)", "error", 3),
        ("raise ValueError('bad')", "error", 1),
        ("raise KeyboardInterrupt", "interrupted", -2),
    ],
)
def test_a_script_without_finish_loses_nothing(
    tmp_path: Path, ending: str, state: str, status: int
) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "import launchhelm\n"
        f"run = launchhelm.init('p', state_dir={str(tmp_path)!r})\n"
        "for step in range(10): run.log({'a': step}, step=step)\n" + ending
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode in (status, 130 if status == -2 else status), done.stderr
    [directory] = [path for path in tmp_path.iterdir() if path.is_dir()]
    assert [step for step, _ in series(directory, "a")] == list(range(10))
    assert closes(directory)[0]["state"] == state


def test_a_run_that_is_left_open_says_so_and_may_be_resumed(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    first = launchhelm.init("p", name="left-open", state_dir=root)
    first.finish(close_run=False)
    assert first.statuses() == [("left-open", "open")]
    second = launchhelm.init("p", resume=first.run_id, state_dir=root)
    second.finish()
    assert first.statuses() == [("left-open", "closed")]
    assert first.about()["state"] == "closed"


def test_before_finish_is_called_once_and_may_fail(run: Run) -> None:
    called: list[int] = []
    run.before_finish(lambda: called.append(1))
    run.before_finish(lambda: 1 / 0)  # type: ignore[arg-type, return-value]  # It fails on purpose.
    run.finish()
    run.finish()
    assert called == [1]
    assert run.recorder.faults["finish"] == 1


def test_what_is_logged_before_finish_goes_on_is_kept(run: Run) -> None:
    run.before_finish(lambda: run.log({"last": 1}))
    run.finish()
    assert series(run.directory, "last") == [(0, 1)]


def test_a_finish_that_was_interrupted_can_be_finished(run: Run) -> None:
    def interrupt() -> None:
        run._before_finish.clear()
        raise KeyboardInterrupt

    run.log({"a": 1})
    run.before_finish(interrupt)
    with pytest.raises(KeyboardInterrupt):
        run.finish()
    run.log({"a": 2})
    run.finish()
    assert series(run.directory, "a") == [(0, 1), (1, 2)]
    assert len(closes(run.directory)) == 1


def test_a_copy_of_a_run_reads_and_records_nothing(run: Run) -> None:
    run.log({"a": 1}, step=0)
    run.keep({"x": 1})
    for other in (copy.deepcopy(run), copy.copy(run), pickle.loads(pickle.dumps(run))):
        assert (other.run_id, other.name, other.directory) == (run.run_id, run.name, run.directory)
        assert other.log({"a": 2}) is False
        other.keep({"x": 2})
        other.summary({"a": 1})
        other.flush()
        assert other.sync("after_step") == 0
        other.finish()
        point = other.latest("a")
        assert point is not None
        assert point["value"] == 1
    run.log({"a": 3}, step=1)
    run.finish()
    assert series(run.directory, "a") == [(0, 1), (1, 3)]


def test_a_forked_child_is_inert_and_the_parent_goes_on(run: Run) -> None:
    """Also where another thread of the parent holds our locks at that moment."""
    run.define("a", summary="max")
    run.log({"a": 1}, step=0)
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with run._lock, run._metrics.reductions()["a"]._lock:
            held.set()
            release.wait(20)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(20)
    pid = os.fork()
    if pid:
        release.set()
        holder.join()
    if pid == 0:
        try:
            logging.disable()
            run.log({"a": 99}, step=1)
            run.sync("after_step")
            run.flush()
            run.finish()
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    run.log({"a": 2}, step=2)
    run.finish()
    assert series(run.directory, "a") == [(0, 1), (2, 2)]
    assert len(closes(run.directory)) == 1


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_child_that_is_given_the_run_records_nothing_and_ends_soon(run: Run, method: str) -> None:
    run.log({"a": 1}, step=0)
    child = multiprocessing.get_context(method).Process(target=use_in_a_child, args=(run,))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    run.log({"a": 2}, step=1)
    run.finish()
    assert series(run.directory, "a") == [(0, 1), (1, 2)]
    assert len(closes(run.directory)) == 1


# --- other ranks ----------------------------------------------------------------------------------


def test_a_peer_writes_into_the_same_run(run: Run) -> None:
    facts = Participant("p1", "rank-1", "trainer", 1, 2, 1, 1, "here", os.getpid(), {"a": "b"})
    invitation = json.loads(json.dumps(run.invitation()))
    peer = Run.attach(invitation, facts)
    assert (peer.run_id, peer.directory, peer.config) == (run.run_id, run.directory, run.config)
    peer.log({"a": 1}, step=0)
    peer.finish()
    assert series(run.directory, "a", rank=1) == [(0, 1)]
    assert peer.latest("a") is not None
    document = peer.runtime.participant
    assert (document.id, document.spec["name"]) == ("p1", "rank-1")


def test_a_rank_that_cannot_see_the_run_writes_down_which_it_is(run: Run, tmp_path: Path) -> None:
    from launchhelm._run_facts import look_for_manifest
    from launchhelm._run_open import Opened

    said: list[str] = []
    look_for_manifest(Opened.invited(run.invitation()), said.append)
    assert not (run.directory / "nodes").exists()
    assert said == []
    elsewhere = tmp_path / "not-shared" / run.run_id
    elsewhere.mkdir(parents=True)
    invitation = {**run.invitation(), "directory": str(elsewhere)}
    look_for_manifest(Opened.invited(invitation), said.append)
    assert len(said) == 1
    [path] = (elsewhere / "nodes").iterdir()
    assert json.loads(path.read_text("utf-8"))["run_id"] == run.run_id
