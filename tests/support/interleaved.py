"""Run a few threads one at a time, in every order in which they may touch what they share.

    for results in interleavings([first, second], make_world, switches=2):
        ...

A thread stops before each operation on the shared `Keys` and in each sleep of `Moments`; then
one of all is chosen to go on. A thread that sleeps goes on when a key has changed, or when its time
is over, which may be at any moment: clocks are its own. Every choice is tried, as long as it takes
no more than so many switches away from a thread that could have gone on, and times that end early.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

_LONG_S: Final = 1e6
_MOST_TURNS: Final = 2000


class Stopped(BaseException):
    """What ends a thread that is killed."""


class Turn:
    """One thread that waits for its turn."""

    def __init__(self, name: int, world: World, body: Callable[[], Any]) -> None:
        self.name = name
        self.now = 0.0
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_over = False
        self.slept_at: int | None = None
        """Asleep: the number of changes that it has surely seen; None while it can go on."""
        self.awake_at = 0
        self._world = world
        self._body = body
        self._go, self._is_dead = threading.Semaphore(0), False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def take(self) -> None:
        """Let it run until it stops by itself."""
        if self.slept_at is not None:
            self.slept_at, self.awake_at = None, self._world.changes
        self._go.release()
        self._world.stopped.acquire()

    def kill(self) -> None:
        """End it where it stands."""
        self._is_dead = True
        self.take()

    def stop(self) -> None:
        """Called by the thread: wait for the next turn."""
        self._world.stopped.release()
        self._go.acquire()
        if self._is_dead:
            raise Stopped

    def _run(self) -> None:
        self._go.acquire()
        self._world.current.turn = self
        try:
            if self._is_dead:
                raise Stopped
            self.result = self._body()
        except (Exception, Stopped) as error:
            self.error = error
        self.is_over = True
        self._world.stopped.release()


class World:
    """What the threads of one run share."""

    def __init__(self) -> None:
        self.keys: dict[str, str] = {}
        self.changes = 0
        self.stopped = threading.Semaphore(0)
        self.current = threading.local()


class Keys:
    """A store as `_board` uses it, and its names under a prefix."""

    def __init__(self, world: World, prefix: str = "") -> None:
        self._world = world
        self._prefix = prefix

    def under(self, prefix: str) -> Keys:
        return Keys(self._world, f"{self._prefix}{prefix}/")

    def set(self, key: str, value: str) -> None:
        self._stop()
        self._write(key, value)

    def get(self, key: str) -> bytes:
        self._stop()
        return self._world.keys[self._prefix + key].encode()

    def add(self, key: str, amount: int) -> int:
        self._stop()
        value = int(self._world.keys.get(self._prefix + key, "0")) + amount
        if amount:
            self._write(key, str(value))
        return value

    def check(self, keys: Sequence[str]) -> bool:
        self._stop()
        return all(self._prefix + key in self._world.keys for key in keys)

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        self._stop()
        held = self._world.keys.get(self._prefix + key)
        if held == expected or (held is None and not expected):
            self._write(key, desired)
            return desired.encode()
        return (held or "").encode()

    def _write(self, key: str, value: str) -> None:
        self._world.keys[self._prefix + key] = value
        self._world.changes += 1

    def _stop(self) -> None:
        turn = getattr(self._world.current, "turn", None)
        if turn is not None:  # Else the test itself prepares the world.
            turn.stop()


class Moments:
    """The module `time` as these threads see it."""

    def __init__(self, worlds: Callable[[], World]) -> None:
        self._worlds = worlds

    def monotonic(self) -> float:
        return float(self._worlds().current.turn.now)

    def sleep(self, _: float) -> None:
        turn = self._worlds().current.turn
        turn.slept_at = turn.awake_at  # What has changed since then, it may have missed.
        turn.stop()


Results = list[Turn]


def interleavings(
    bodies: Sequence[Callable[[World], Any]],
    prepare: Callable[[World], None],
    *,
    switches: int,
    ends: int = 0,
    kills: int = 0,
) -> Iterator[Results]:
    """Yield how the threads ended, for every order.

    Args:
        bodies: What each thread runs.
        prepare: Makes what the world holds at the start.
        switches: Away from a thread that could go on.
        ends: Times that are over while others could go on.
        kills: Threads that end anywhere.

    Raises:
        AssertionError: They go on for ever.
    """
    todo: list[list[int]] = [[]]
    while todo:
        prefix = todo.pop()
        taken, others, results = _once(bodies, prepare, prefix, switches, ends, kills)
        for at in range(len(prefix), len(taken)):
            todo += [[*taken[:at], choice] for choice in range(1, others[at])]
        yield results


def _once(
    bodies: Sequence[Callable[[World], Any]],
    prepare: Callable[[World], None],
    prefix: Sequence[int],
    switches: int,
    ends: int,
    kills: int,
) -> tuple[list[int], list[int], Results]:
    """Run once: by the given choices, then by the first of all; return what choices there were."""
    world = World()
    prepare(world)
    turns = [
        Turn(name, world, lambda body=body: body(world))  # type: ignore[misc]
        for name, body in enumerate(bodies)
    ]
    taken: list[int] = []
    others: list[int] = []
    last: Turn | None = None
    while any(not turn.is_over for turn in turns):
        assert len(taken) < _MOST_TURNS, f"they go on for ever: {world.keys}"
        options = _options(world, turns, last, switches, ends, kills)
        choice = prefix[len(taken)] if len(taken) < len(prefix) else 0
        taken.append(choice)
        others.append(len(options))
        turn, what, price = options[choice]
        if what == "kill":
            kills -= 1
            turn.kill()
            continue
        if what == "late":
            ends -= price
            turn.now += _LONG_S
        else:
            switches -= price
        last = turn
        turn.take()
    return taken, others, turns


def _options(
    world: World, turns: Sequence[Turn], last: Turn | None, switches: int, ends: int, kills: int
) -> list[tuple[Turn, str, int]]:
    """Return what may come next: which thread, how, and at what price."""
    alive = [turn for turn in turns if not turn.is_over]
    ready = [t for t in alive if t.slept_at is None or t.slept_at != world.changes]
    asleep = [turn for turn in alive if turn not in ready]
    if last in ready:
        options = [(last, "go", 0)]
        options += [(turn, "go", 1) for turn in ready if turn is not last and switches > 0]
    else:
        options = [(turn, "go", 0) for turn in ready]
    if not options or ends > 0:
        options += [(turn, "late", 1 if options else 0) for turn in asleep]
    if kills > 0:
        options += [(turn, "kill", 0) for turn in alive]
    return options
