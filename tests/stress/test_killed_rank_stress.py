"""Fifty kills of a rank in the middle of an apply, and of every rank while idle."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed.test_killed_rank import SIZE, check_kill_in_apply, check_kill_while_idle

pytestmark = pytest.mark.stress


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(50))
def test_fifty_ranks_killed_in_an_apply_are_named_with_the_true_count(
    seed: int, tmp_path: Path
) -> None:
    check_kill_in_apply(tmp_path, seed)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("victim", range(SIZE))
def test_every_rank_killed_while_idle_is_named(victim: int, tmp_path: Path) -> None:
    check_kill_while_idle(tmp_path, victim)
