"""The strip: the worst of each cell, at any height."""

from __future__ import annotations

import pytest

from launchhelm.views.strip import MISSING, SILENT, Beat, strip


def beats(ranks: int, count: int = 40, bad: int | None = None) -> dict[int, list[Beat]]:
    """Ranks that all wait 50 ms, but for one that waits for nobody from the middle on."""
    return {
        rank: [
            Beat(
                10 * number,
                15.0 * number,
                wait_ms=0.0 if rank == bad and number >= count // 2 else 50.0,
                step_ms=100.0,
            )
            for number in range(count)
        ]
        for rank in range(ranks)
    }


@pytest.mark.parametrize("rows", [1, 7, 100, 4096])
def test_one_bad_rank_of_4096_is_visible_at_any_height(rows: int) -> None:
    made = strip(beats(4096, 4, bad=1234), "late", columns=4, rows=rows)
    assert len(made.cells) == made.rows * made.columns and made.rows == rows
    row = next(at for at, ranks in enumerate(made.order) if 1234 in ranks)
    cells = made.cells[row * 4 : row * 4 + 4]
    assert list(cells) == [1, 1, 250, 250]
    others = made.cells[: row * 4] + made.cells[row * 4 + 4 :]
    assert set(others) <= {1}
    assert {cell[0] for cell in made.worst} == {1234} and made.scale == 50.0


def test_missing_and_silent_are_no_levels() -> None:
    there = beats(2)
    there[1] = there[1][:20]
    made = strip(there, "step", columns=4, rows=3, silent=[1], ranks=[0, 1, 2])
    assert [list(made.cells[at : at + 4]) for at in (0, 4, 8)] == [
        [1, 1, 1, 1],
        [1, 1, SILENT, SILENT],
        [MISSING] * 4,
    ]


def test_steps_behind_are_counted_beat_by_beat() -> None:
    there = beats(3)
    there[2] = [Beat(beat.step // 2, beat.mono) for beat in there[2]]
    made = strip(there, "behind", columns=10, rows=3)
    assert made.scale == 195.0 and made.worst[0][0] == 2


def test_a_range_cuts_and_a_small_one_has_fewer_columns() -> None:
    made = strip(beats(2), "gap", columns=240, rows=2, low=100, high=119)
    assert (made.low, made.high, made.columns) == (100, 119, 20)
    assert made.scale == 15.0


def test_nothing_is_an_empty_strip() -> None:
    made = strip({}, "late", columns=240, rows=10)
    assert made.cells == b"" or set(made.cells) == {MISSING}


def test_microseconds_are_no_alarm_beside_nothing() -> None:
    ranks = {0: [Beat(1, 1.0, wait_ms=0.01, step_ms=5.0)], 1: [Beat(1, 1.0, wait_ms=0.0045)]}
    made = strip(ranks, "late", columns=1, rows=2)
    assert made.scale == 10.0 and set(made.cells) == {1}
