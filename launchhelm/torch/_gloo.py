"""Gloo groups that never hold a process at its end, their operations, and the memory of these.

Facts of torch 2.13 that shaped this module, each found by a small test:

- Asynchronous operations of a gloo group pair by the order in which each rank issues them, however
  late a peer comes; then `wait` returns or raises at once. A `wait` with a time limit that passes
  raises too, and harms neither the operation nor the group.
- The group's destructor joins its threads, which sit in operations that nobody will complete: a
  process would hang at exit until its peer is gone. So a group is made without `new_group` (torch
  then neither destroys it nor forgets it with `destroy_process_group`), and is never destructed:
  process exit ends its threads. Finishing before, after or without `destroy_process_group` is fine.
- Whoever drops the last reference to an operation also drops its tensors, for which it needs the
  GIL. When that is gloo's own thread, and Python shuts down while it waits for the GIL, the process
  aborts. So an operation is kept well past its end, and one that never ends is kept for good.
- What runs twice a second finds its code and data cold: making a tensor of eight integers then
  takes 3 to 6 ms, an operation on memory that is there already about one. So memory is kept.
"""

from __future__ import annotations

import ctypes
from collections import deque
from datetime import timedelta
from typing import Final, Protocol

import torch
import torch.distributed as dist

from launchhelm.torch._board import Store, prefixed

_KEPT_OPERATIONS: Final = 8


class Work(Protocol):
    """An operation under way."""

    def is_completed(self) -> bool: ...
    def wait(self, timeout: timedelta = ...) -> object: ...


class Group(Protocol):
    """What we use of `ProcessGroupGloo`. Operations are asynchronous."""

    def broadcast(self, tensor: torch.Tensor, root: int, timeout: timedelta) -> Work: ...
    def gather(
        self, outputs: list[torch.Tensor], tensor: torch.Tensor, root: int, timeout: timedelta
    ) -> Work: ...
    def allgather(
        self, outputs: list[torch.Tensor], tensor: torch.Tensor, timeout: timedelta
    ) -> Work: ...
    def allreduce(self, tensor: torch.Tensor, op: object, timeout: timedelta) -> Work: ...
    def send(self, tensors: list[torch.Tensor], to: int, tag: int) -> Work: ...


class Memory:
    """Some bytes, and the tensor over them that gloo takes."""

    def __init__(self, size: int) -> None:
        self.bytes = bytearray(size)
        self.tensor = torch.frombuffer(self.bytes, dtype=torch.uint8)


class Table:
    """Memory for one row of a fixed size of every rank, and for this rank's own.

    Attributes:
        own: To be filled before an operation.
        whole: All rows, in rank order.
        rows: The same as one tensor per rank.
    """

    def __init__(self, size: int, row_bytes: int) -> None:
        self._row_bytes = row_bytes
        self.own = Memory(row_bytes)
        self.whole = Memory(size * row_bytes)
        self.rows = list(self.whole.tensor.view(size, row_bytes).unbind())

    def read(self) -> list[bytes]:
        """Return a copy of all rows."""
        whole, size = self.whole.bytes, self._row_bytes
        return [bytes(whole[at : at + size]) for at in range(0, len(whole), size)]


def make_group(store: Store, name: str, rank: int, size: int, limit_s: float) -> Group:
    """Connect all ranks in a group of that name. Collective; raises whatever gloo raises."""
    # Its methods are bound at run time; mypy sees an empty class.
    limit, named = timedelta(seconds=limit_s), prefixed(name, store)
    group: Group = dist.ProcessGroupGloo(named, rank, size, limit)  # type: ignore[assignment, arg-type]
    _immortal(group)
    return group


def kept(work: Work) -> Work:
    """Keep an operation until several later ones have begun, and for good unless it completed."""
    _recent.append(work)
    if len(_recent) > _KEPT_OPERATIONS:
        oldest = _recent.popleft()
        if not oldest.is_completed():
            _endless.append(oldest)
    return work


def completes(work: Work, limit_s: float) -> bool:
    """Wait for an operation; returns whether it is over, well or not."""
    try:
        work.wait(timedelta(seconds=max(limit_s, 0.001)))  # 0 would have no limit.
    except RuntimeError:
        return work.is_completed()
    return True


def _immortal(thing: object) -> None:
    """Add one reference too many, so that it and what it holds are never destructed (see above)."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


_recent: deque[Work] = deque()
"""The last operations of this process."""
_endless: deque[Work] = deque()
_immortal(_recent)
_immortal(_endless)
