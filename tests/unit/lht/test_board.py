"""The meeting of the ranks in a store that may hold what earlier incarnations wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch.distributed as dist

from launchhelm.torch._board import Board, Meeting, Met, Store, prefixed

LIMIT_S = 20.0


def a_hash_store() -> Any:
    return dist.HashStore()  # type: ignore[attr-defined]


def a_tcp_store() -> Any:
    return dist.TCPStore("127.0.0.1", 0, is_master=True, use_libuv=True)  # type: ignore[attr-defined]


@pytest.fixture(params=[a_hash_store, a_tcp_store])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    yield prefixed("trainer", request.param())


def meet(store: Store, size: int, order: Callable[[int], int] = int) -> list[Met]:
    """Let `size` threads meet as ranks of one incarnation; they start in the given order."""

    def one(rank: int) -> Met:
        meeting = Meeting(store, rank, size, {"host": f"host-{rank}"})
        met = meeting.lead(LIMIT_S) if rank == 0 else meeting.join(LIMIT_S)
        assert met is not None, f"rank {rank} met nobody"
        return met

    with ThreadPoolExecutor(size) as pool:
        jobs = {rank: pool.submit(one, rank) for rank in sorted(range(size), key=order)}
        return [jobs[rank].result(LIMIT_S) for rank in range(size)]


def test_all_ranks_hold_the_same_nonce_and_facts(store: Store) -> None:
    (met,) = {str(each) for each in meet(store, 4)}
    assert "host-3" in met


@pytest.mark.parametrize("sign", [1, -1])
def test_a_later_incarnation_meets_freshly_and_sees_nothing_of_an_earlier_one(
    store: Store, sign: int
) -> None:
    seen = set()
    for number in range(5):
        met = meet(store, 3, order=lambda rank: sign * rank)
        (nonce,) = {each.nonce for each in met}
        assert nonce not in seen
        assert [each.word for each in met] == [""] * 3
        boards = [Board(store, nonce) for _ in met]
        assert boards[1].read("told/1") is None
        assert boards[1].news() == []
        boards[0].put("told/1", f"invitation {number}")
        boards[2].say({"what": "left", "rank": 2})
        assert boards[1].wait(["told/1"], LIMIT_S)
        assert boards[1].read("told/1") == f"invitation {number}"
        assert len(boards[1].news()) == 1
        seen.add(nonce)


def test_a_rank_of_another_world_size_does_not_take_an_old_word_for_its_own(store: Store) -> None:
    meet(store, 4)
    assert [each.word for each in meet(store, 2)] == ["", ""]


def test_a_rank_that_does_not_come_is_named_on_all_others(store: Store) -> None:
    def led() -> Met:
        return Meeting(store, 0, 3, {}).lead(0.5)

    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(led)
        met = Meeting(store, 1, 3, {}).join(LIMIT_S)
        assert met is not None
        assert met == job.result()
    assert met.word == "rank 2 did not come within 0.5 s"
    assert Meeting(store, 2, 3, {}).join(0.1) is None


def test_a_rank_that_gave_up_before_rank_0_came_turns_control_off_for_all(store: Store) -> None:
    meet(store, 2)
    early = Meeting(store, 1, 2, {})
    assert early.join(0.1) is None
    assert early.give_up("nobody came") == "nobody came"
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(lambda: Meeting(store, 0, 2, {}).lead(LIMIT_S))
        met = early.join(LIMIT_S, off="nobody came")
        assert met == job.result()
    assert met is not None
    assert met.word == "nobody came"


def test_giving_up_and_deciding_at_the_same_time_end_alike(store: Store) -> None:
    for early_s in (0.0, 0.001, 0.002, 0.005, 0.02):
        with ThreadPoolExecutor(1) as pool:
            job = pool.submit(lambda: Meeting(store, 0, 2, {}).lead(LIMIT_S))
            meeting = Meeting(store, 1, 2, {})
            met = meeting.join(early_s)
            why = meeting.give_up("too late") if met is None else met.word
            if met is None:
                met = meeting.join(LIMIT_S, off=why)
            assert met is not None
            assert why == met.word == job.result().word
