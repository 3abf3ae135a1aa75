"""A thousand random commands of every kind, with faults, stops and leaves, on 2, 4 and 8 ranks.

Each count is cut into jobs of a seed each, so that none takes long; a seed brings its job back.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.random_controls import play

COUNT = 250
JOBS = [(ranks, 1000 * ranks + part) for ranks in (2, 4, 8) for part in range(1000 // COUNT)]


@pytest.mark.stress
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("ranks", "seed"), JOBS)
def test_a_thousand_random_commands_are_told_truthfully_and_leave_all_ranks_alike(
    ranks: int, seed: int, tmp_path: Path
) -> None:
    print(play(tmp_path, ranks=ranks, count=COUNT, seed=seed, deadline_s=3400.0))
