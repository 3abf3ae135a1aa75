"""Exports of runs that write meanwhile, that are large, and what other programs read of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pandas
import pytest

from benchmarks.generate import finish, log_points, make_run, make_writer
from launchhelm import export, views
from launchhelm.store.layout import DATA
from launchhelm.store.segment import seal
from tests.support.cli_runs import MadeRun
from tests.support.reading import as_nobody

ROOT = Path(__file__).resolve().parents[2]

WRITER = """
import itertools, os, sys, time
from pathlib import Path
from launchhelm._recorder import Recorder
from launchhelm.records import WriterId

recorder = Recorder(
    Path(sys.argv[1]), WriterId(0, 1, "0123abcd"), {"rank": 0, "world": 1}, flush_s=0.005,
    segment_bytes=50_000, max_segment_bytes=50_000,
)
recorder.start()
for step in itertools.count():
    recorder.append("m", {"loss": step * 0.5}, step=step)
    time.sleep(0.0002)  # So that the number of files stays sane.
    if step % 100 == 0:
        recorder.flush(20)
        os.write(1, b"%d\\n" % step)
"""


def test_an_export_of_a_run_that_writes_and_seals_has_every_value_up_to_its_beginning(
    tmp_path: Path,
) -> None:
    run = MadeRun(tmp_path, ranks=0).path
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(run)], stdout=subprocess.PIPE, env=environment
    )
    try:
        assert child.stdout is not None
        for wide in (False, True) * 4:
            promised = int(child.stdout.readline())
            for _ in range(4):
                promised = int(child.stdout.readline())
            made = export.Export(views.open_run(run))
            table = made.table("metrics", wide=wide)
            place = [column.name for column in table.columns].index("step")
            steps = [row[place] for row in table.rows]
            assert steps == list(range(len(steps))) and len(steps) > promised
            assert not made.problems
        assert list((run / DATA).glob("*.db")), "nothing was sealed meanwhile"
    finally:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


def points_of(root: Path, steps: int) -> Path:
    """Make a run of 10 metrics in many segments, all but the last sealed."""
    directory = make_run(root, name=f"{steps}")
    writer = make_writer(directory, 0, 1)
    for first in range(0, steps, 4000):
        log_points(writer, first, min(steps, first + 4000), metrics=10)
        journal = writer.rotate()
        if journal is not None:
            seal(journal)
    finish(writer, steps)
    return directory


EXPORT = """
import sys
from launchhelm.cli import main
status = main(sys.argv[1:])
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
sys.exit(status)
"""


def exported(run: Path, *words: str) -> int:
    """Export in a process of its own; return its greatest memory in MiB.

    By its own word: what the kernel tells of a child begins with the memory of whoever started it.
    """
    ran = subprocess.run(
        [sys.executable, "-c", EXPORT, "export", str(run), *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
        text=True,
    )
    return int(ran.stdout.split()[-1]) // 1024


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Runs of 40,000 and of 320,000 points."""
    root = tmp_path_factory.mktemp("large")
    return points_of(root, 4000), points_of(root, 32_000)


@pytest.mark.parametrize("words", [("--format", "csv"), ("--format", "parquet", "--wide")])
def test_memory_does_not_grow_with_the_run(
    large: tuple[Path, Path], tmp_path: Path, words: tuple[str, ...]
) -> None:
    small_mib, large_mib = (exported(run, *words, "--out", str(tmp_path / "x")) for run in large)
    assert large_mib < small_mib + 25
    assert large_mib < 200


def test_other_programs_read_every_value(large: tuple[Path, Path], tmp_path: Path) -> None:
    run = large[0]
    expected = sorted(point.value for point in views.open_run(run).points("loss"))
    paths = {form: tmp_path / f"points.{form}" for form in ("csv", "jsonl", "parquet")}
    for path in paths.values():
        exported(run, "--out", str(path), "--metrics", "loss")
    frames = [
        pandas.read_csv(paths["csv"]),
        pandas.read_json(paths["jsonl"], lines=True, precise_float=True),
        pandas.read_parquet(paths["parquet"]),
    ]
    for frame in frames:
        assert sorted(frame["value"]) == expected
        assert frame["step"].tolist() == list(range(4000))
    for form, read in (("csv", "read_csv"), ("parquet", "read_parquet"), ("jsonl", "read_json")):
        found = duckdb.sql(f"SELECT value FROM {read}('{paths[form]}')").fetchall()
        assert sorted(float(value) for (value,) in found) == expected


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_a_read_only_run_of_another_user_is_exported(public: Path) -> None:
    run = MadeRun(public).train().end()
    for path in (public, run.path, *run.path.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)

    def exported_here() -> dict[str, object]:
        made = export.Export(views.open_run(run.path))
        rows = [row for name in export.TABLES for row in made.table(name).rows]
        return {"rows": len(rows), "problems": list(made.problems)}

    found = as_nobody(exported_here)
    assert found["problems"] == [] and int(json.dumps(found["rows"])) > 10


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that other users reach."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)
        os.chmod(folder, 0o755)
