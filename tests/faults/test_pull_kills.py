"""Syncer, ranks and server are killed while commands are under way; each has one outcome, the true
one. Small counts: tests/stress/test_pull_stress.py has the full ones.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pull_storm import Storm

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_kills_leave_every_command_with_one_outcome_on_which_ranks_run_and_server_agree(
    tmp_path: Path,
) -> None:
    with Storm(tmp_path, seed=7, thread=True, service=True) as storm:
        storm.rage({"syncer": 2, "rank 0": 1, "server": 1})
        counts = storm.check()
    print(counts)
    assert counts["ended: applied"] >= 1
