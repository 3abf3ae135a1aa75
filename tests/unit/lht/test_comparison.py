"""What ranks tell each other of their values, without processes: several ranks in one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

from launchhelm._recorder import Recorder
from launchhelm.records import WriterId
from launchhelm.torch._beats import Beat, Beats
from launchhelm.torch._board import MOST_REPORTS, Board
from launchhelm.torch._comparison import Comparison
from tests.support.journals import wait_until


class Links:
    """One rank's links to others of the same process, who are asked one after the other."""

    shared = b""

    def __init__(self, rank: int, size: int, store: Any) -> None:
        self.rank, self.size = rank, size
        self.board = Board(store, "test")

    def share(self, body: bytes | None, size: int) -> bytes:
        if body is not None:
            Links.shared = body
        return Links.shared

    def where(self) -> tuple[int, int]:
        return (7, 70)

    def name_of(self, rank: int) -> str:
        return f"{rank} on host"


class Ranks:
    """Comparisons of several ranks under one clock."""

    def __init__(self, *values: Callable[[], dict[str, Any]]) -> None:
        self.now = 0.0
        self.told: list[str] = []
        store = dist.HashStore()  # type: ignore[attr-defined]
        self.ranks = [
            Comparison(
                Links(rank, len(values), store),  # type: ignore[arg-type]
                each,
                lambda: self.now,
                self.told.append,
            )
            for rank, each in enumerate(values)
        ]

    def compare(self) -> int | None:
        """Compare once and return what rank 0 has to say half a second later."""
        for each in self.ranks:
            each.compare()
        self.now += 1.0
        return self.ranks[0].found()


def test_equal_values_say_nothing() -> None:
    ranks = Ranks(*[lambda: {"lr": [0.1]}] * 3)
    assert ranks.compare() is None
    assert not ranks.told


def test_what_was_reported_before_a_command_made_all_alike_is_not_told() -> None:
    values = {"lr": [0.3]}
    ranks = Ranks(lambda: {"lr": [0.1]}, lambda: values)
    for each in ranks.ranks:
        each.compare()
    values["lr"] = [0.1]
    ranks.ranks[0].agreed("lr")
    ranks.now += 1.0
    assert ranks.ranks[0].found() is None
    assert ranks.compare() is None and not ranks.ranks[0].diverged


def test_a_long_value_is_compared_whole_and_shown_short() -> None:
    ranks = Ranks(lambda: {"x": "a" * 5000 + "b"}, lambda: {"x": "a" * 5000 + "c"})
    size = ranks.compare()
    assert size is not None and size < 2000
    verdict = ranks.ranks[0].tell(size)
    ((rank, text),) = verdict.failures
    assert rank == 1 and "..." in text


def test_of_many_ranks_that_differ_some_are_named_and_all_are_counted() -> None:
    ranks = Ranks(lambda: {"lr": 1.0}, *[lambda: {"lr": 2.0}] * 40)
    size = ranks.compare()
    assert size is not None
    verdict = ranks.ranks[0].tell(size)
    assert len(verdict.failures) == MOST_REPORTS
    assert "40 of 41 ranks differ from rank 0" in verdict.message


def test_the_same_difference_is_told_once_and_a_new_one_again() -> None:
    rate = [2.0]
    more: dict[str, float] = {}
    ranks = Ranks(lambda: {"lr": 1.0}, lambda: {"lr": rate[0], **more})
    assert ranks.compare() is not None
    rate[0] = 3.0
    assert ranks.compare() is None
    assert ranks.ranks[0].diverged == {"lr": {"0": 1.0, "1": 3.0}}
    more["set_gain"] = 1.0
    assert ranks.compare() is not None


def test_a_rank_that_cannot_read_its_values_differs_from_nobody_and_says_so() -> None:
    def broken() -> dict[str, Any]:
        raise RuntimeError("a tensor that is gone")

    ranks = Ranks(lambda: {"lr": 1.0}, broken)
    assert ranks.compare() is None
    assert ranks.told == ["The values of this rank could not be compared: a tensor that is gone."]


def test_the_last_heartbeat_of_a_rank_is_read_back_with_phase_and_step(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, WriterId(3, 2, "0badcafe"), {}, heartbeat_s=0.05)
    recorder.progress.step, recorder.progress.phase = 12, "in eval"
    recorder.start()
    beats = Beats(tmp_path, 2)
    first: Beat = wait_until(lambda: beats([3]).get(3), "a heartbeat")
    assert str(first) == "at step 12, in eval"
    wait_until(lambda: beats([3])[3].number > first.number, "another")
    assert not Beats(tmp_path, 1)([3]) and not beats([4])
    recorder.close("finished", "", 5.0)
    assert not Beats(tmp_path / "nowhere", 2)([3])
