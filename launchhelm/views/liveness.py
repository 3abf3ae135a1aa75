"""Alive or not: judged by what moves, on the observer's own clock, never by another host's.

Whoever has just begun to look has seen nothing move yet. Until it has watched for one heartbeat
interval an age rests on the times in the files and says so; that is for display, and whatever
moves afterwards corrects it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from launchhelm._clock import SYSTEM_CLOCK, Clock

BEAT_S: Final = 15.0
AWAITED_S: Final = 20.0
"""After this time without a heartbeat a process is late when the others get no further."""

LATE_S: Final = 45.0
SILENT_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Age:
    """How long ago something last moved.

    Args:
        seconds: Never jumps back unless the thing moves.
        by_host_clock: It rests on times in the files, because we have not watched long enough.
    """

    seconds: float
    by_host_clock: bool = False


@dataclass(slots=True)
class _Sight:
    token: Hashable
    first_at: float
    moved_at: float
    before_s: float
    moved: bool = False


@dataclass(slots=True)
class Observer:
    """What one observer has seen move, and when. One per view, kept as long as somebody looks."""

    clock: Clock = SYSTEM_CLOCK
    _sights: dict[Hashable, _Sight] = field(default_factory=dict)

    def observe(self, key: Hashable, token: Hashable, *, before_s: float = 0.0) -> Age:
        """Look at a thing once more.

        Args:
            key: The thing.
            token: Anything that changes whenever the thing moves: a counter, a size.
            before_s: At first sight: how long it has been still, as far as files can tell.
        """
        now = self.clock.monotonic()
        sight = self._sights.get(key)
        if sight is None:
            sight = self._sights[key] = _Sight(token, now, now, max(0.0, before_s))
        elif sight.token != token:
            sight.token, sight.moved_at, sight.moved = token, now, True
        if sight.moved:
            return Age(now - sight.moved_at)
        watched_s = now - sight.first_at
        return Age(sight.before_s + watched_s, by_host_clock=watched_s < BEAT_S)


def age_by_files(clock: Clock, written_at: float | None, modified_at: float | None) -> float:
    """Guess for how long a file has been still, from the record's time and the file's.

    The writer's clock and the file server's may both be wrong. A time in our future is worthless;
    of two that are possible the younger counts, so that a wrong clock calls nobody silent.
    """
    now = clock.wall()
    ages = [now - at for at in (written_at, modified_at) if at is not None and at <= now]
    return min(ages, default=0.0)


def process_is_gone(opening: Mapping[str, Any]) -> bool:
    """Whether the writer was a process of this very kernel and namespace, and has ended.

    False where we cannot know: another host, another boot, another container.
    """
    pid = opening.get("pid")
    if not isinstance(pid, int) or not opening.get("boot"):
        return False
    if opening["boot"] != _boot_id() or not opening.get("pidns"):
        return False
    if opening["pidns"] != _pid_namespace():
        return False
    start = opening.get("start")
    found = _start_time(pid)
    return found is None or (start is not None and str(found) != str(start))


def process_facts() -> dict[str, Any]:
    """Return what `process_is_gone` needs to know of this process."""
    pid = os.getpid()
    return {
        "pid": pid,
        "pidns": _pid_namespace(),
        "boot": _boot_id(),
        "start": str(_start_time(pid)),
    }


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


@functools.cache
def _boot_id() -> str:
    return _read("/proc/sys/kernel/random/boot_id")


@functools.cache
def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _start_time(pid: int) -> int | None:
    """Return the start time of a process in clock ticks since boot; None when there is none."""
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    # Zombies keep their entry until they are waited for.
    return int(fields[19]) if len(fields) > 19 and fields[0] != "Z" else None
