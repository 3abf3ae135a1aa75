"""kill -9 of a writer at random instants, also while it starts segments and seals them."""

from __future__ import annotations

import random
from pathlib import Path

from tests.support.storage import KillCount, kill_a_writer

KILLS = 15


def test_a_killed_writer_keeps_what_flush_promised_without_holes_or_doubles(
    tmp_path: Path,
) -> None:
    chance = random.Random(2026)
    total = KillCount()
    for number in range(KILLS):
        total += kill_a_writer(
            tmp_path / str(number),
            seed=number,
            after_s=chance.uniform(0.0, 0.5),
            segment_bytes=chance.choice([3_000, 30_000, 8 << 20]),
        )
    assert total.kills == KILLS
    assert total.promised > 0
    print(total)
