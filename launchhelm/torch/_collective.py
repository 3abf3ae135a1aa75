"""SKELETON of the interface, the body follows."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


class Links:
    """This rank's connections to the others of one trainer, and what they agreed on at the start.

    `on` is False where the groups could not be made: the same on all ranks, with the reason in
    `why`. broadcast_json works then too (it goes through the store).
    """

    rank: int
    size: int
    hosts: tuple[str, ...]
    on: bool
    why: str

    def broadcast_json(self, value: Any = None, *, timeout_s: float = 600.0) -> Any:
        """Coordinator (group rank 0) passes a JSON value; returned on every rank. Collective."""
        raise NotImplementedError

    def gather_json(self, value: Any) -> list[Any]:
        """Collect one JSON value of every rank on every rank, on the data group. Collective."""
        raise NotImplementedError

    def all_reduce(self, tensor: torch.Tensor, op: str = "sum") -> torch.Tensor:
        """Reduce (`sum`, `min`, `max`) in place on the data group. Collective. Unavailable."""
        raise NotImplementedError


def make_links(
    process_group: dist.ProcessGroup | None = None,
    *,
    timeout_s: float = 1800.0,
    agree_s: float = 60.0,
    required: bool = False,
) -> Links | None:
    """None without torch.distributed or with one rank; collective over `process_group`.

    With required=True and no groups: raises Unavailable on every rank alike.
    """
    raise NotImplementedError
