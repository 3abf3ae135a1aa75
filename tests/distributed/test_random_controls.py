"""Random commands of every kind, with faults, stops and leaves, on two ranks."""

from __future__ import annotations

from pathlib import Path

from tests.support.random_controls import play


def test_random_commands_and_faults_are_told_truthfully_and_leave_two_ranks_alike(
    tmp_path: Path,
) -> None:
    print(play(tmp_path, ranks=2, count=60, seed=11, deadline_s=240.0))
