"""docs/run-directory.md names every kind, table and file of the format as the code has it."""

from __future__ import annotations

import re
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from launchhelm.records import KINDS
from launchhelm.store import schema
from launchhelm.store.line import open_line
from tests.support.reading import RunBuilder

PAGE = Path(__file__).resolve().parents[2] / "docs" / "run-directory.md"


def rows(heading: str) -> dict[str, str]:
    """Return the first column of a section's tables, and the whole line."""
    text = PAGE.read_text("utf-8")
    section = text.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    found = re.findall(r"^\| `([^`]+)`[^|]*\|.*$", section, flags=re.M)
    lines = re.findall(r"^\| `[^`]+`.*$", section, flags=re.M)
    return dict(zip(found, lines, strict=True))


def test_every_kind_is_explained() -> None:
    assert set(rows("Journal")) == set(KINDS)


def test_every_table_and_column_is_explained() -> None:
    connection = sqlite3.connect(":memory:")
    connection.executescript(schema.SCRIPT)
    names = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view')"
    shown = rows("Sealed segments")
    for (name,) in connection.execute(names).fetchall():
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({name})")]
        assert f"`{', '.join(columns)}`" in shown[name], name
    connection.close()


def test_the_line_on_the_page_is_good() -> None:
    text = PAGE.read_text("utf-8")
    line = next(line for line in text.splitlines() if line.startswith('{"c":"124f0472"'))
    value = open_line(line.encode())
    assert value is not None
    assert value["v"] == {"train/loss": 0.1234, "lr": 1e-4}


def test_sqlite_utils_shows_a_segment_from_a_shell(tmp_path: Path) -> None:
    pytest.importorskip("sqlite_utils")
    run = RunBuilder(tmp_path)
    writer = run.writer()
    for step in range(10):
        writer.metrics(step, loss=float(step))
    sealed = writer.seal()
    command = [sys.executable, "-m", "sqlite_utils", "rows", str(sealed), "metric"]
    found = subprocess.run([*command, "--limit", "3"], capture_output=True, text=True, check=True)
    assert found.stdout.count('"name": "loss"') == 3


def test_jq_shows_a_journal_from_a_shell(tmp_path: Path) -> None:
    if shutil.which("jq") is None:
        pytest.skip("needs jq")
    run = RunBuilder(tmp_path)
    writer = run.writer()
    writer.metrics(7, loss=0.5)
    writer.beat(7)
    writer.flush()
    shown = subprocess.run(
        ["jq", "-c", 'select(.k == "m") | [.s, .v]', str(writer.journal)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout == '[7,{"loss":0.5}]\n'
