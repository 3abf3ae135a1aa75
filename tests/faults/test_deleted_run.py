"""Somebody deletes or moves a run directory while it is being written."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from launchhelm.store.layout import DATA
from tests.support.journals import records, series, wait_until
from tests.support.runs import running
from tests.support.storage import recording


def test_a_deleted_journal_is_replaced_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), recording(tmp_path, heartbeat_s=0.05) as recorder:
        data = recorder.run_directory / DATA
        [first] = data.glob("*.jsonl")
        first.unlink()
        wait_until(lambda: recorder.faults or "deleted" in caplog.text, "the loss to be noticed")
        assert recorder.append("m", {"loss": 1.0}, step=7)
        recorder.flush(5.0)
        assert [record.step for record in records(recorder.run_directory, "m")] == [7]
    assert "What it held is lost" in caplog.text


def test_a_deleted_run_directory_stops_nothing_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), running(tmp_path / "runs") as run:
        run.log({"loss": 1.0}, step=1)
        run.flush(delivered=False)
        shutil.rmtree(run.directory)
        run.log({"loss": 2.0}, step=2)
        run.finish()
    assert "was deleted" in caplog.text
    assert not run.directory.exists()


def test_a_run_that_is_moved_while_it_is_written_loses_nothing(tmp_path: Path) -> None:
    with running(tmp_path / "runs") as run:
        run.log({"loss": 1.0}, step=1)
        run.flush(delivered=False)
        moved = run.directory.rename(tmp_path / "moved")
        run.log({"loss": 2.0}, step=2)
        run.finish()
    assert series(moved, "loss") == [(1, 1.0), (2, 2.0)]
