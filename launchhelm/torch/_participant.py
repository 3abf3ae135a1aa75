"""Where this rank stands in its training group, and how all ranks come to write one run.

The coordinator, rank 0 of the group, opens the run and tells the others its id and directory by
one broadcast, so that no rank ever waits for a file to show up.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

import torch.distributed as dist

from launchhelm import _settings
from launchhelm._ids import new_id
from launchhelm.records import Participant
from launchhelm.torch._collective import Links

ROLE: Final = "trainer"


@dataclass(frozen=True, slots=True)
class RankFacts:
    """This rank's place.

    Args:
        rank: In the whole job, as torch.distributed counts.
        group_rank: In the training group.
        world_size: Ranks of the training group.
        local_rank: Among the ranks of this host.
        coordinator: Global rank of the coordinator.
        hostname: This host.
        distributed: Whether there are other ranks.
    """

    rank: int = 0
    group_rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    coordinator: int = 0
    hostname: str = ""
    distributed: bool = False

    @property
    def is_coordinator(self) -> bool:
        """Whether this rank opens the run, logs by default, and takes commands."""
        return self.group_rank == 0

    def participant(self) -> Participant:
        """Describe this process for its records."""
        labels = {
            "launchhelm.rank": str(self.rank),
            "launchhelm.group_rank": str(self.group_rank),
            "launchhelm.world_size": str(self.world_size),
            "launchhelm.local_rank": str(self.local_rank),
            "launchhelm.node": self.hostname,
        }
        restarts = _settings.RESTART_COUNT.read()
        if restarts:
            labels["launchhelm.elastic.restart_count"] = restarts
        return Participant(
            id=new_id(),
            name=f"rank-{self.rank}",
            role=ROLE,
            # A run counts the ranks of its own group, so that rank 0 is always its coordinator.
            rank=self.group_rank,
            world_size=self.world_size,
            group_rank=self.group_rank,
            local_rank=self.local_rank,
            host=self.hostname,
            pid=os.getpid(),
            labels=labels,
        )


def rank_facts(links: Links | None, process_group: dist.ProcessGroup | None = None) -> RankFacts:
    """Tell where this rank stands; alone when there is no group of several ranks."""
    hostname = os.uname().nodename
    is_joined = dist.is_available() and dist.is_initialized()
    rank = dist.get_rank() if is_joined else 0
    if links is None:
        return RankFacts(rank=rank, local_rank=_local_rank(0), coordinator=rank, hostname=hostname)
    # Without control the ranks know nothing of each other's hosts; one host is the best guess.
    hosts = links.hosts or (hostname,) * links.size
    mine = hosts[links.rank]
    group = process_group if process_group is not None else dist.group.WORLD
    return RankFacts(
        rank=rank,
        group_rank=links.rank,
        world_size=links.size,
        local_rank=_local_rank(sum(host == mine for host in hosts[: links.rank])),
        coordinator=dist.get_global_rank(group, 0) if group is not None else 0,
        hostname=hostname,
        distributed=True,
    )


def require_member(process_group: dist.ProcessGroup | None) -> None:
    """Refuse a process group that this rank does not belong to.

    Raises:
        ValueError: It does not.
    """
    if process_group is not None and dist.get_rank(process_group) < 0:
        raise ValueError("This rank is not in process_group; only its members call init().")


def _local_rank(counted: int) -> int:
    text = _settings.LOCAL_RANK.read()
    return int(text) if text.isascii() and text.isdigit() else counted
