"""Two things at once: one that waits for a server, and one that uses that time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def meanwhile(wait: Callable[[Callable[[], object]], T], work: Callable[[], bool]) -> T:
    """Run `wait` on a thread of its own and return, or raise, what it does.

    Args:
        wait: Given a function, which it calls from when on it only waits. The two would be in each
            other's way before that.
        work: Called here again and again until `wait` has ended, or this returns False. What it
            raises is raised after the end of `wait`, whose result is then lost.
    """
    begin = threading.Event()
    results: list[T] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            results.append(wait(begin.set))
        except BaseException as error:  # Handed to the thread that waits.
            failures.append(error)
        begin.set()

    thread = threading.Thread(target=run, name="launchhelm-request", daemon=True)
    thread.start()
    try:
        begin.wait()
        while thread.is_alive() and work():
            pass
    finally:
        thread.join()
    if failures:
        raise failures[0]
    return results[0]
