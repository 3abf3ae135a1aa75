"""A thousand random commands of every kind, with faults, stops and leaves, on 2, 4 and 8 ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.random_controls import play


@pytest.mark.stress
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_thousand_random_commands_are_told_truthfully_and_leave_all_ranks_alike(
    ranks: int, tmp_path: Path
) -> None:
    print(play(tmp_path, ranks=ranks, count=1000, seed=1000 + ranks, deadline_s=3400.0))
