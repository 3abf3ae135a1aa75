"""What is remembered of checkpoints in shards that a server has. No network.

While its shards go up each is remembered by itself, then only the list of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from launchhelm.errors import LaunchHelmError
from launchhelm.store import layout, shards
from launchhelm.store.reader import Reader

_LIST: Final = "/shards"


def list_of(checkpoint: str) -> str:
    """Return our id of the list of a checkpoint's shards."""
    return checkpoint + _LIST


def superseded(sent: Mapping[str, str], ours: str) -> list[str]:
    """Return what need not be remembered any more once `ours` is sent: what a list tells."""
    if not ours.endswith(_LIST):
        return []
    shard = ours.removesuffix(_LIST) + "/"
    return [id_ for id_ in sent if id_.startswith(shard) and id_ != ours]


def only_here(run_directory: Path, sent: Mapping[str, str]) -> str:
    """Name the first directory in checkpoints/ of which a server lacks something, "" if none is.

    Args:
        sent: The server's ids of artifacts by ours.
    """
    try:
        names = sorted(os.listdir(run_directory / layout.CHECKPOINTS))
    except FileNotFoundError:
        return ""
    there = set(_sent_directories(run_directory, sent)) if names else set()
    for name in names:
        if name not in there or _has_more(run_directory, name):
            return f"{layout.CHECKPOINTS}/{name}"
    return ""


def _sent_directories(run_directory: Path, sent: Mapping[str, str]) -> Iterator[str]:
    for record in Reader(run_directory, kinds=("art",), patience_s=0.0).poll():
        if record.body.get("format") and sent.get(list_of(str(record.body.get("id")))):
            with suppress(LaunchHelmError):
                yield shards.parts_named(run_directory, record.body)


def _has_more(run_directory: Path, name: str) -> bool:
    """Whether a directory holds more than its index names; empty files do not count."""
    directory = run_directory / layout.CHECKPOINTS / name
    try:
        known = {shards.INDEX, *shards.needed(run_directory, name)}
        with os.scandir(directory) as entries:
            return any(
                each.name not in known and (not each.is_file() or each.stat().st_size > 0)
                for each in entries
            )
    except (OSError, ValueError):
        return True
