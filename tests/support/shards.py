"""A checkpoint in shards as torch lays it out, made without torch."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from launchhelm._ids import new_id
from launchhelm.store import media
from launchhelm.store.layout import CHECKPOINTS


def shard(rank: int) -> str:
    """Name the file of one rank."""
    return f"__{rank}_0.distcp"


def lay_shards(directory: Path, sizes: list[int]) -> tuple[Path, dict[str, Any]]:
    """Add a checkpoint in parts of these sizes to a run directory.

    Returns:
        The directory of the parts, and the body of the record that the run has of it.
    """
    parts = directory / CHECKPOINTS / new_id()
    parts.mkdir(parents=True)
    # Classes of the same shape are enough: nobody who looks without torch knows torch's.
    index = SimpleNamespace(
        storage_data={
            rank: SimpleNamespace(relative_path=shard(rank), offset=0, length=size)
            for rank, size in enumerate(sizes)
        }
    )
    for rank, size in enumerate(sizes):
        (parts / shard(rank)).write_bytes(os.urandom(size))
    (parts / ".metadata").write_bytes(pickle.dumps(index))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        payload = {"step": 7, "launchhelm.offline": {"parts": parts.name}}
        archive.writestr("archive/data.pkl", pickle.dumps(payload))
    stored = media.put(directory, [packed.getvalue()])
    body = {
        "id": new_id(),
        "name": "step-7.pt",
        "media_type": "application/octet-stream",
        "size": stored.size,
        "sha256": stored.sha256,
        "purpose": "general",
        "format": "launchhelm.torch.checkpoint/2",
    }
    return parts, body


def contents(directory: Path) -> Mapping[str, bytes]:
    """Return the bytes of every file below a directory by its path."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }
