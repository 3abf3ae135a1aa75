"""Heartbeats that come sooner than their interval."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from launchhelm._ids import new_token
from launchhelm._recorder import Recorder
from launchhelm.records import WriterId
from launchhelm.store.reader import Reader


def test_a_changed_phase_is_readable_long_before_the_next_heartbeat_is_due(tmp_path: Path) -> None:
    """What pauses a loop is shown at once, not up to 15 s later."""
    recorder = Recorder(tmp_path, WriterId(0, 1, new_token()), {})
    recorder.start()
    try:
        recorder.progress.phase = "paused"
        began = time.monotonic()
        recorder.beat_soon()
        phases: list[str] = []
        while "paused" not in phases and time.monotonic() - began < 0.9:
            phases += [each.body["phase"] for each in Reader(tmp_path, kinds=("hb",)).poll()]
            time.sleep(0.02)
        assert "paused" in phases
    finally:
        recorder.close("finished", "", 5.0)


def test_that_control_went_off_is_readable_long_before_the_next_heartbeat_is_due(
    tmp_path: Path,
) -> None:
    """Rank 0, whose word it usually is, may be the one that is gone."""
    recorder = Recorder(tmp_path, WriterId(1, 1, new_token()), {})
    recorder.start()
    try:
        recorder.progress.control_off = "rank 0 is gone"
        began = time.monotonic()
        recorder.append("ev", {"type": "notice"})
        said: list[str] = []
        while not any(said) and time.monotonic() - began < 0.9:
            beats = Reader(tmp_path, kinds=("hb",)).poll()
            said += [each.body.get("control_off", "") for each in beats]
            time.sleep(0.02)
        assert "rank 0 is gone" in said
    finally:
        recorder.close("finished", "", 5.0)


@pytest.mark.parametrize(
    ("told", "now"),
    [("training", "in eval"), ("in eval", "training"), ("waiting at step 7", "training")],
)
def test_a_handler_and_the_end_of_a_wait_are_readable_long_before_the_next_heartbeat_is_due(
    tmp_path: Path, told: str, now: str
) -> None:
    """Who looks must not blame a wait that is over, nor miss what all wait for."""
    recorder = Recorder(tmp_path, WriterId(0, 1, new_token()), {})
    recorder.start()
    try:
        recorder.progress.phase = told
        recorder.beat_soon()
        phases: list[str] = []
        began = time.monotonic()
        while now not in phases and time.monotonic() - began < 0.9:
            phases += [each.body["phase"] for each in Reader(tmp_path, kinds=("hb",)).poll()]
            if told in phases:
                recorder.progress.phase = now
                recorder.append("ev", {"type": "notice"})
            time.sleep(0.02)
        assert now in phases
    finally:
        recorder.close("finished", "", 5.0)
