"""What the ranks of a trainer tell each other without a collective: a few keys in the store.

The store is that of the user's process group (`TCPStore` under every launcher). Only the thread
that calls `init`, `step` or `finish` touches it, and only by calls that answer at once: `check`,
`set`, `add`, `compare_set`, and `get` of a key that is known to be there. The answer of `check` has
no time limit in torch: a stopped server holds its caller until it goes on. A server that is gone is
noticed by a plain connection first, since torch prints a C++ stack trace when a call finds it dead.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, cast

import torch.distributed as dist

_PROBE_S: Final = 0.5
_POLL_S: Final = (0.001, 0.05)


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
        deadline = time.monotonic() + limit_s
        pause_s, longest_s = _POLL_S
        while not self.store.check(list(keys)):
            if time.monotonic() > deadline:
                return False
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, longest_s)
        return True

    def decide(self, key: str, value: str) -> str:
        """Write a key unless it is there, and return what holds: the first writer's value."""
        return self.store.compare_set(key, "", value).decode()

    def _reachable(self) -> bool:
        if self.alive and self._server is not None:
            try:
                socket.create_connection(self._server, timeout=_PROBE_S).close()
            except TimeoutError:
                return False
            except OSError:
                self.alive = False
        return self.alive


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
