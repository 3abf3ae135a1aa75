"""What the ranks of a trainer tell each other without a collective: a few keys in the store.

The store is that of the user's process group (`TCPStore` under every launcher). Only the thread
that calls `init`, `step` or `finish` touches it, and only by calls that answer at once: `check`,
`set`, `add`, `compare_set`, and `get` of a key that is known to be there. The answer of `check` has
no time limit in torch: a stopped server holds its caller until it goes on. A server that is gone is
noticed by a plain connection first, since torch prints a C++ stack trace when a call finds it dead.

The store may outlive the ranks (torchrun's does, over a restart) and then still holds all they
wrote. So the ranks first meet by a challenge, and everything later lies under its nonce:

    rank 0      challenge         = N, fresh and random
    each rank   answer/N/<rank>   = its token, fresh and random, after reading N
    rank 0      go/N              = all tokens

A rank that read the challenge of an earlier incarnation finds a foreign token in the `go` of it, or
no `go`, and looks for a new challenge.
"""

from __future__ import annotations

import json
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

import torch.distributed as dist

MOST_REPORTS: Final = 16
"""So many ranks are named where thousands might speak at once."""

_PROBE_S: Final = 0.5
_POLL_S: Final = (0.001, 0.05)
_GO: Final = "go"


class Store(Protocol):
    """What we use of torch's stores."""

    def set(self, key: str, value: str) -> None: ...
    def get(self, key: str) -> bytes: ...
    def add(self, key: str, amount: int) -> int: ...
    def check(self, keys: list[str]) -> bool: ...
    def compare_set(self, key: str, expected: str, desired: str) -> bytes: ...


class Board:
    """The keys of one trainer.

    Args:
        store: The store of the default process group.
        prefix: A name that all ranks of this trainer, and no others, use.
    """

    def __init__(self, store: Store, prefix: str) -> None:
        self.store = prefixed(prefix, store)
        self.alive = True
        """Whether the store was there when it was last used."""
        self._server = _address(store)
        self._read = 0

    def say(self, news: Mapping[str, Any]) -> None:
        """Add one entry that every rank sees; silently nothing when the store is gone."""
        if self._reachable():
            try:
                number = self.store.add("news", 1)
                self.store.set(f"news/{number}", json.dumps(news))
            except RuntimeError:
                self.alive = False

    def news(self) -> list[dict[str, Any]]:
        """Return the entries that came since the last call."""
        entries: list[dict[str, Any]] = []
        if self._reachable():
            try:
                # The number is taken before its entry is written, so an entry may be on its way.
                while self._read < self.store.add("news", 0):
                    key = f"news/{self._read + 1}"
                    if not self.store.check([key]):
                        break
                    entries.append(json.loads(self.store.get(key)))
                    self._read += 1
            except RuntimeError:
                self.alive = False
        return entries

    def report(self, topic: str, entry: Mapping[str, Any]) -> None:
        """Add one entry to a topic; beyond `MOST_REPORTS` it is only counted."""
        if self._reachable():
            try:
                number = self.store.add(topic, 1)
                if number <= MOST_REPORTS:
                    self.store.set(f"{topic}/{number}", json.dumps(entry))
            except RuntimeError:
                self.alive = False

    def reports(self, topic: str) -> tuple[int, list[dict[str, Any]]]:
        """Return how many entries a topic has, and those of them that are kept and complete."""
        if not self._reachable():
            return 0, []
        try:
            count = self.store.add(topic, 0)
            keys = [f"{topic}/{number}" for number in range(1, min(count, MOST_REPORTS) + 1)]
            here = [key for key in keys if self.store.check([key])]
            return count, [json.loads(self.store.get(key)) for key in here]
        except RuntimeError:
            self.alive = False
            return 0, []

    def put(self, key: str, value: str) -> None:
        """Write a key; silently nothing when the store is gone."""
        if self._reachable():
            try:
                self.store.set(key, value)
            except RuntimeError:
                self.alive = False

    def read(self, key: str) -> str | None:
        """Return a key's value, None when it is not there or the store is gone."""
        if not self._reachable():
            return None
        try:
            return self.store.get(key).decode() if self.store.check([key]) else None
        except RuntimeError:
            self.alive = False
            return None

    def wait(self, keys: Sequence[str], limit_s: float) -> bool:
        """Wait until all keys are there; False when that takes too long. The store must live."""
        return _wait(self.store, keys, limit_s)

    def decide(self, key: str, value: str) -> str:
        """Write a key unless it is there, and return what holds: the first writer's value."""
        return _decide(self.store, key, value)

    def _reachable(self) -> bool:
        if self.alive and self._server is not None:
            try:
                socket.create_connection(self._server, timeout=_PROBE_S).close()
            except TimeoutError:
                return False
            except OSError:
                self.alive = False
        return self.alive


@dataclass(frozen=True, slots=True)
class Met:
    """What all ranks of one incarnation hold alike.

    Args:
        nonce: Names the incarnation; no earlier one had it.
        word: "" when all ranks came; else why control is off.
        facts: What each rank said of itself, empty for a rank that did not come.
    """

    nonce: str
    word: str
    facts: tuple[Mapping[str, Any], ...]


class Meeting:
    """How the ranks of this incarnation find each other in a store that remembers earlier ones.

    Args:
        store: Names of this trainer only.
        rank: Group rank; 0 leads.
        size: Ranks of the group.
        facts: What the others shall know of this rank; JSON.
    """

    def __init__(self, store: Store, rank: int, size: int, facts: Mapping[str, Any]) -> None:
        self.token = secrets.token_hex(8)
        self._store = store
        self._rank = rank
        self._size = size
        self._facts = facts
        self._answered = ""
        self._foreign = ""

    def lead(self, limit_s: float) -> Met:
        """Rank 0: call the others, and tell those that came in time how it ended."""
        store, nonce = self._store, secrets.token_hex(8)
        store.set("challenge", nonce)
        self._answer(nonce)
        keys = [f"answer/{nonce}/{rank}" for rank in range(self._size)]
        answers: list[dict[str, Any]] = [{} for _ in keys]
        if _wait(store, keys, limit_s):
            came = list(range(self._size))
        else:
            came = [rank for rank, key in enumerate(keys) if store.check([key])]
        for rank in came:
            answers[rank] = json.loads(store.get(keys[rank]))
        missing = [str(rank) for rank in range(self._size) if rank not in came]
        words = [answer["off"] for answer in answers if answer.get("off")]
        if missing:
            words.append(f"rank {', '.join(missing)} did not come within {limit_s:g} s")
        word = _decide(store, f"end/{nonce}", words[0] if words else _GO)
        store.set(f"go/{nonce}", json.dumps({"word": word, "answers": answers}))
        return self._met(word, answers)

    def join(self, limit_s: float, *, off: str = "") -> Met | None:
        """Another rank: answer every new challenge until one is ours; None when none is in time.

        `off` tells rank 0, which comes late, why this rank goes on without control.
        """
        store, deadline = self._store, time.monotonic() + limit_s
        pause_s, longest_s = _POLL_S
        while True:
            nonce = store.get("challenge").decode() if store.check(["challenge"]) else ""
            if nonce != self._answered:
                self._answer(nonce, off)
            if nonce != self._foreign and store.check([f"go/{nonce}"]):
                said = json.loads(store.get(f"go/{nonce}"))
                answers = said["answers"]
                if len(answers) == self._size and answers[self._rank].get("token") == self.token:
                    return self._met(said["word"], answers)
                self._foreign = nonce
            if time.monotonic() > deadline:
                return None
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, longest_s)

    def give_up(self, why: str) -> str:
        """Another rank: go on without control, unless rank 0 has just decided; return what holds.

        The first writer's word counts, so that a rank that has waited too long and a rank 0 that
        comes late do not decide differently. An empty word means that all ranks came after all.
        """
        if not self._answered or self._answered == self._foreign:
            return why
        word = _decide(self._store, f"end/{self._answered}", why)
        return "" if word == _GO else word

    def _answer(self, nonce: str, off: str = "") -> None:
        answer = {**self._facts, "token": self.token, "off": off}
        self._store.set(f"answer/{nonce}/{self._rank}", json.dumps(answer))
        self._answered = nonce

    def _met(self, word: str, answers: Sequence[Mapping[str, Any]]) -> Met:
        return Met(self._answered, "" if word == _GO else word, tuple(answers))


def _wait(store: Store, keys: Sequence[str], limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    pause_s, longest_s = _POLL_S
    while not store.check(list(keys)):
        if time.monotonic() > deadline:
            return False
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, longest_s)
    return True


def _decide(store: Store, key: str, value: str) -> str:
    return store.compare_set(key, "", value).decode()


def default_store() -> Store:
    """Return the store behind the default process group; the one place that asks torch for it."""
    from torch.distributed import distributed_c10d

    return cast(Store, distributed_c10d._get_default_store())  # Its stub lacks `compare_set`.


def prefixed(prefix: str, store: Store) -> Store:
    """Return a view of the store with names of its own."""
    # The stubs lack the name and take torch's own stores only.
    made: Store = dist.PrefixStore(prefix, store)  # type: ignore[attr-defined, arg-type]
    return made


def _address(store: Any) -> tuple[str, int] | None:
    """Return where a TCPStore's server listens. Any: the stubs do not tell stores apart."""
    while isinstance(store, dist.PrefixStore):  # type: ignore[attr-defined]
        store = store.underlying_store
    if not isinstance(store, dist.TCPStore):  # type: ignore[attr-defined]
        return None
    try:
        found = socket.getaddrinfo(store.host, store.port, type=socket.SOCK_STREAM)
    except OSError:
        return None
    return (str(found[0][4][0]), int(found[0][4][1]))
