"""The full count of kills; LAUNCHHELM_TEST_KILLS sets another."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.support.storage import KillCount, kill_a_writer

KILLS = int(os.environ.get("LAUNCHHELM_TEST_KILLS", "300"))


@pytest.mark.stress
@pytest.mark.timeout(3600)
def test_nothing_promised_is_lost_or_doubled_in_any_of_many_kills(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random()
    total = KillCount()
    for number in range(KILLS):
        total += kill_a_writer(
            tmp_path / str(number),
            seed=chance.randrange(1 << 30),
            after_s=chance.uniform(0.0, 1.0),
            segment_bytes=chance.choice([3_000, 30_000, 300_000, 8 << 20]),
        )
    with capsys.disabled():
        print(f"\n{total}")
    assert total.kills == KILLS
