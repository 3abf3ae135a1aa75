"""Waiting for a server and working at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from syncer.meanwhile import meanwhile

DEADLINE_S = 10.0


def test_work_goes_on_until_the_wait_is_over() -> None:
    enough = threading.Event()
    done: list[int] = []

    def wait(waiting: Callable[[], object]) -> str:
        waiting()
        assert enough.wait(DEADLINE_S)
        return "answer"

    def work() -> bool:
        done.append(len(done))
        if len(done) == 3:
            enough.set()
        return True

    assert meanwhile(wait, work) == "answer"
    assert done[:3] == [0, 1, 2]


def test_no_work_is_begun_before_there_is_nothing_left_to_do_but_wait() -> None:
    order: list[str] = []
    worked = threading.Event()

    def wait(waiting: Callable[[], object]) -> None:
        order.append("sent")
        waiting()
        assert worked.wait(DEADLINE_S)

    def work() -> bool:
        order.append("work")
        worked.set()
        return False

    meanwhile(wait, work)

    assert order == ["sent", "work"]


def test_what_the_wait_raises_is_raised_and_needs_no_word_before() -> None:
    def wait(waiting: Callable[[], object]) -> None:
        del waiting
        raise KeyError("gone")

    with pytest.raises(KeyError, match="gone"):
        meanwhile(wait, lambda: False)


def test_what_the_work_raises_is_raised_after_the_wait() -> None:
    failed, over = threading.Event(), threading.Event()

    def wait(waiting: Callable[[], object]) -> None:
        waiting()
        assert failed.wait(DEADLINE_S)
        over.set()

    def work() -> bool:
        failed.set()
        raise ValueError("unreadable")

    with pytest.raises(ValueError, match="unreadable"):
        meanwhile(wait, work)
    assert over.is_set()
