"""A hundred commands at random moments: all ranks hold the same at every step."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.support.storm import storm


@pytest.mark.stress
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_hundred_commands_leave_four_ranks_bit_identical(seed: int, tmp_path: Path) -> None:
    done = storm(tmp_path, ranks=4, count=100, seed=seed, deadline_s=600.0)
    done.check()
    states = Counter(outcomes[0].state for outcomes in done.outcomes.values())
    print(f"seed {seed}: {len(done.held[0])} steps on 4 ranks, {dict(states)}")
