"""What to do when a server refuses or does not answer: a decision, without a clock or a socket.

What concerns the whole server (`Wait`, `PauseForKey`) holds every run of this syncer; the others
concern the request or the run alone.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

MAX_BACKOFF_S: Final = 60.0
MAX_RETRY_AFTER_S: Final = 3600.0
"""A server that asks for more is asked again after this."""

KEY_PAUSE_S: Final = 60.0

_FIRST_BACKOFF_S: Final = 1.0
_GONE: Final = {
    404: "it was deleted on the server, or this key may not see it",
    409: "the server has something else in its place",
    410: "it was deleted on the server",
    422: "the server does not take it",
}


class Failure(Protocol):
    """What a decision needs of an `ApiError`; a status of 0 means that no answer came."""

    status: int
    code: str
    message: str
    retryable: bool
    retry_after_s: float | None


@dataclass(frozen=True, slots=True)
class Wait:
    """Ask this server nothing for so long, then send the same again."""

    seconds: float
    why: str


@dataclass(frozen=True, slots=True)
class PauseForKey:
    """The key is refused: ask again with the key as it is then; the cursors stay."""

    seconds: float
    why: str


@dataclass(frozen=True, slots=True)
class Split:
    """The request is too large for this server; nothing of it was taken."""

    why: str


@dataclass(frozen=True, slots=True)
class SkipRun:
    """An answer that will not change: leave this run alone, and remember that."""

    status: int
    why: str


@dataclass(frozen=True, slots=True)
class Fatal:
    """Neither waiting nor a smaller request will help; the run is tried again another time."""

    why: str


Advice: TypeAlias = Wait | PauseForKey | Split | SkipRun | Fatal


def decide(error: Failure, *, tries: int = 0, chance: float | None = None) -> Advice:
    """Decide what follows an error.

    Args:
        error: As the client raised it.
        tries: Failures of this server in a row before this one.
        chance: Between 0 and 1, for the jitter; drawn when not given.
    """
    said = f"{error.message} ({error.status or error.code})"
    if error.status in (401, 403):
        return PauseForKey(KEY_PAUSE_S, f"The server refuses the key: {said}")
    if error.status == 413:
        return Split(f"The server takes no request of that size: {said}")
    if error.status == 0 or error.status >= 500 or error.status in (408, 425, 429):
        return Wait(pause_s(error.retry_after_s, tries, chance), f"The server is not ready: {said}")
    if error.status < 300 or error.code == "http_error":
        # Something in between answered, a login page perhaps; the server itself says why.
        return Wait(pause_s(None, tries, chance), f"The answer is not one of this API: {said}")
    if error.status in _GONE:
        return SkipRun(error.status, f"{_GONE[error.status]}: {said}")
    if error.retryable:
        return Wait(pause_s(error.retry_after_s, tries, chance), f"The server is not ready: {said}")
    return Fatal(f"The server refused: {said}")


def pause_s(retry_after_s: float | None, tries: int, chance: float | None = None) -> float:
    """Return how long to wait: what the server asked for, else 1, 2, 4 ... 60 s with jitter."""
    if retry_after_s is not None and retry_after_s >= 0:
        return min(retry_after_s, MAX_RETRY_AFTER_S)
    whole = min(MAX_BACKOFF_S, _FIRST_BACKOFF_S * 2.0 ** min(tries, 16))
    return whole * (0.5 + 0.5 * (random.random() if chance is None else chance))
