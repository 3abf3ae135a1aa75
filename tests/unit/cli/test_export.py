"""`launchhelm export`: exact values in every form, files that are whole, words and exit codes."""

from __future__ import annotations

import csv
import io
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launchhelm import _export_files, _optional, export, views
from launchhelm.cli import Exit, main
from launchhelm.records import Command, Outcome
from tests.support.cli_runs import MadeRun, with_two_attempts
from tests.unit.cli.conftest import Cli

ODD: dict[str, Any] = {
    "large": 2**53 + 1,
    "huge": -(2**80),
    "negative_zero": -0.0,
    "nan": math.nan,
    "inf": math.inf,
    "low": -math.inf,
    "yes": True,
    "no": False,
    "text": 'a,"b"\r\nc;=1+1',
    "empty": "",
    "says_nan": "nan",
    "tiny": 5e-324,
    "whole": 1.0,
    "один": "наименование",
}


@pytest.fixture
def run(root: Path) -> MadeRun:
    made = MadeRun(root, "odd", ranks=2).train(step=0)
    made.journals[0].add("m", ODD, step=7)
    made.journals[1].add("m", {"of_rank_1": 1}, step=7)
    return made


def is_same(one: Any, other: Any) -> bool:
    """Whether two values have the same class, digits and sign."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return repr(one) == repr(other)
    return bool(one == other)


def value_of(text: str, kind: str) -> Any:
    """Read a cell of a CSV file, as docs/cli.md says."""
    return {"float": float, "int": int, "str": str, "bool": lambda it: it == "true"}[kind](text)


def untagged(value: Any) -> Any:
    return float(value["$number"]) if isinstance(value, dict) else value


def test_csv_tells_every_value_apart_and_names_where_it_comes_from(cli: Cli, run: MadeRun) -> None:
    rows = list(csv.DictReader(io.StringIO(cli("export", "--rank", "0").out, newline="")))
    found = {row["metric"]: row for row in rows if row["step"] == "7"}
    assert found.keys() == ODD.keys()
    for name, expected in ODD.items():
        assert is_same(value_of(found[name]["value"], found[name]["type"]), expected), name
    row = found["large"]
    assert (row["rank"], row["attempt"], row["axes"]) == ("0", "1", "")
    assert row["writer"] == str(run.journals[0].writer)


def test_json_lines_are_ascii_and_tell_every_value_apart(cli: Cli, run: MadeRun) -> None:
    ran = cli("export", "--json", "--rank", "0")
    assert ran.out.isascii()
    found = {row["metric"]: row for row in ran.lines if row["step"] == 7}
    assert all(is_same(untagged(found[name]["value"]), value) for name, value in ODD.items())
    assert [row["rank"] for row in cli("export", "--json", "--metrics", "of_*").lines] == [1]


def test_parquet_has_numbers_as_floats_and_what_they_cannot_hold_as_text(
    cli: Cli, run: MadeRun, tmp_path: Path
) -> None:
    path = tmp_path / "odd.parquet"
    assert cli("export", "--out", str(path)).code == Exit.DONE
    rows = pyarrow.parquet.read_table(path).to_pylist()
    found = {row["metric"]: row for row in rows if row["step"] == 7}
    assert found["large"]["value_text"] == str(2**53 + 1)
    assert found["huge"]["value_text"] == str(-(2**80))
    assert (found["says_nan"]["value"], found["says_nan"]["value_text"]) == (None, "nan")
    assert found["empty"]["value_text"] == ""
    assert math.isnan(found["nan"]["value"]) and found["nan"]["value_text"] is None
    assert math.copysign(1, found["negative_zero"]["value"]) == -1
    assert (found["yes"]["value"], found["yes"]["type"]) == (1.0, "bool")


def test_a_wide_table_has_a_row_for_each_step_and_loses_no_value(cli: Cli, root: Path) -> None:
    run = MadeRun(root)
    add = run.journals[0].add
    add("m", {"loss": 1.0, "step": 3}, step=1)
    add("sys", {"cpu": 50.0}, step=1)
    add("m", {"loss": 2.0}, step=1)  # Again at the same step: both are kept.
    add("m", {"note": "x", "mixed": 1}, step=2)
    add("m", {"mixed": "one"}, step=3)
    rows = cli("export", "--wide", "--json").lines
    assert [(row["step"], row.get("loss"), row.get("cpu")) for row in rows] == [
        (1, 1.0, 50.0),
        (1, 2.0, None),
        (2, None, None),
        (3, None, None),
    ]
    assert rows[0]["step (metric)"] == 3
    assert [row.get("mixed") for row in rows[2:]] == [1, "one"]
    head = cli("export", "--wide").out.splitlines()[0]
    assert head == "step,rank,attempt,at,axes,cpu,loss,mixed,note,step (metric)"


def test_every_table_is_a_file_of_its_own(cli: Cli, run: MadeRun, tmp_path: Path) -> None:
    run.journals[0].add("con", {"text": "hello", "line": 0, "stream": 1}, step=7)
    run.journals[0].add("art", {"id": "a", "name": "w.pt", "sha256": "0" * 64, "size": 3}, step=7)
    command = Command("c1", "lr", {"scale": 0.5}, reason="noisy")
    run.conclude(command, Outcome("c1", "applied", applied_on=2, of=2, applied_at={"step": 8}))
    reported = {
        it["table"]: it
        for it in cli("export", "--tables", "all", "--json", "--out", str(tmp_path)).lines
    }
    assert list(reported) == list(export.TABLES)
    tables = {}
    for name, said in reported.items():
        with open(said["file"], newline="", encoding="utf-8") as file:
            tables[name] = list(csv.DictReader(file))
        assert (len(tables[name]), Path(said["file"]).stat().st_size) == (
            said["rows"],
            said["bytes"],
        )
    assert tables["console"][0]["text"] == "hello"
    assert tables["artifacts"][0]["sha256"] == "0" * 64
    (given_command,) = tables["commands"]
    assert (given_command["state"], given_command["reason"]) == ("applied", "noisy")
    assert json.loads(given_command["payload"]) == {"scale": 0.5}
    facts = {(row["section"], row["name"]): json.loads(row["value"]) for row in tables["run"]}
    assert facts["config", "lr"] == 0.01 and facts["run", "name"] == "odd"


def test_a_file_is_whole_or_what_was_there_before(
    cli: Cli, run: MadeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "points.csv"
    path.write_text("before")

    def full(self: Any, row: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(_export_files._Csv, "write", full)
        ran = cli("export", "--out", str(path))
    assert ran.code == Exit.FAILURE and "No space left" in ran.err
    assert path.read_text() == "before"
    assert sorted(it.name for it in tmp_path.iterdir()) == ["points.csv", "runs"]
    assert cli("export", "--out", str(path)).code == Exit.DONE
    assert path.read_text().startswith("metric,")


def test_a_device_is_written_and_stays_what_it_is(cli: Cli, run: MadeRun) -> None:
    assert cli("export", "--out", "/dev/null").code == Exit.DONE
    assert not Path("/dev/null").is_file()


def test_ranks_and_metrics_that_are_not_there_are_answered_with_those_that_are(
    cli: Cli, run: MadeRun
) -> None:
    ran = cli("export", "--rank", "7")
    assert ran.code == Exit.DONE
    assert ran.err == "launchhelm: rank 7: not seen in this run; there is ranks 0-1\n"
    ran = cli("export", "--metrics", "val/*", "--rank", "1")
    assert ran.code == Exit.DONE
    assert ran.err == "launchhelm: no metric of rank 1 fits 'val/*'; there is of_rank_1\n"
    assert "of_rank_1, optim/lr/group0" in cli("export", "--metrics", "val/*").err
    assert cli("export", "--metrics", "of_*", "--rank", "0,1").err == ""


def test_a_full_stdout_is_named_and_a_pipe_named_as_a_file_is_written(
    run: MadeRun, root: Path
) -> None:
    def export_to(rest: str) -> subprocess.CompletedProcess[str]:
        command = f"{sys.executable} -m launchhelm export --root {root} {rest}"
        return subprocess.run(
            ["bash", "-c", f"set -o pipefail; {command}"],
            capture_output=True,
            text=True,
            env={"PYTHONPATH": str(Path.cwd())},
            timeout=60,
        )

    full = export_to("> /dev/full")
    said = full.stderr.splitlines()
    assert said[0] == "launchhelm: stdout cannot be written: No space left on device."
    assert (full.returncode, len(said)) == (Exit.FAILURE, 3)
    for step in range(3000):
        run.journals[0].add("m", {"loss": step}, step=step)
    piped = export_to("--out /dev/stdout | head -n 3")
    assert (piped.returncode, piped.stderr) == (0, "")
    assert len(piped.stdout.splitlines()) == 3


def test_a_run_that_lost_records_exports_the_rest_and_names_them(cli: Cli, root: Path) -> None:
    run = MadeRun(root)
    for step in range(3):
        run.journals[0].add("m", {"loss": float(step)}, step=step)
    run.end()
    (path,) = (run.path / "data").iterdir()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], lines[2].replace(b"1.0", b"9.0"), *lines[3:]]))
    ran = cli("export", "--json")
    assert [row["value"] for row in ran.lines] == [0.0, 2.0]
    assert ran.code == Exit.IN_PART and "records 1 to 1" in ran.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--tables", "loss"), "no table 'loss'"),
        (("--tables", "all"), "existing directory"),
        (("--format", "parquet"), "goes to a file"),
        (("--rank", "x"), "--rank takes"),
        (("--json", "--format", "csv"), "jsonl"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(
    cli: Cli, run: MadeRun, words: tuple[str, ...], said: str
) -> None:
    ran = cli("export", *words)
    assert ran.code == Exit.USAGE and said in ran.err


def test_without_pyarrow_the_line_that_installs_it_is_said(
    cli: Cli, run: MadeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> Any:
        raise ImportError(_optional.missing(name), name=name)

    monkeypatch.setattr(_optional, "require", missing)
    ran = cli("export", "--out", str(tmp_path / "x.parquet"))
    assert ran.code == Exit.USAGE
    assert "pip install 'launchhelm-offline[parquet]'" in ran.err
    assert [it.name for it in tmp_path.iterdir()] == ["runs"]


def test_an_attempt_without_its_files_is_named(cli: Cli, root: Path) -> None:
    lost = with_two_attempts(root)
    (lost.path / "data" / f"{lost.journals[0].writer}.00001.jsonl").unlink()
    ran = cli("export", "resumed")
    assert (ran.code, "attempt 1: no file of rank 0" in ran.err) == (Exit.IN_PART, True)
    assert cli("export", "resumed", "--rank", "1").code == Exit.DONE


def test_a_closed_pipe_and_an_ascii_locale_end_quietly(run: MadeRun, root: Path) -> None:
    for step in range(3000):
        run.journals[0].add("m", {"имя": step}, step=step)
    command = f"{sys.executable} -m launchhelm export --root {root} | head -n 3"
    ran = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        capture_output=True,
        env={"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(Path.cwd())},
        timeout=60,
    )
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert len(ran.stdout.decode("utf-8").splitlines()) == 3


VALUES = st.one_of(st.floats(), st.integers(-(2**200), 2**200), st.booleans(), st.text(max_size=20))


@settings(deadline=None, max_examples=25)
@given(st.lists(st.dictionaries(st.text(min_size=1, max_size=8), VALUES, min_size=1), min_size=1))
def test_any_values_come_back_from_csv_and_json_lines(bodies: list[dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = MadeRun(Path(folder))
        for step, body in enumerate(bodies):
            run.journals[0].add("m", body, step=step)
        expected = [
            (step, name, it) for step, body in enumerate(bodies) for name, it in body.items()
        ]
        for form in ("csv", "jsonl"):
            path = Path(folder) / f"out.{form}"
            assert main(["export", str(run.path), "--out", str(path)]) == Exit.DONE
            found = _read(path)
            assert len(found) == len(expected)
            for (step, name, value), row in zip(expected, found, strict=True):
                assert row[:2] == (step, name)
                assert is_same(row[2], value)


def _read(path: Path) -> list[tuple[int, str, Any]]:
    if path.suffix == ".jsonl":
        rows = [json.loads(line) for line in path.read_bytes().splitlines()]
        return [(row["step"], row["metric"], untagged(row["value"])) for row in rows]
    with path.open(newline="", encoding="utf-8") as file:
        return [
            (int(row["step"]), row["metric"], value_of(row["value"], row["type"]))
            for row in csv.DictReader(file)
        ]


def test_an_export_is_the_run_as_it_was_when_it_began(run: MadeRun) -> None:
    table = export.Export(views.open_run(run.path), pattern="of_*").table("metrics", wide=True)
    run.journals[1].add("m", {"of_rank_1": 2, "of_later": 3}, step=8)
    assert [row[-1] for row in table.rows] == [1]
