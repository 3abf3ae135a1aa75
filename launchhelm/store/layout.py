"""Every path in a run directory, as pure functions. Names are the index: a listing says it all.

ROOT/<run_id>/
    run.json                                   identity, written once
    attempts/00001.json                        one launch each, numbered by O_EXCL
    data/<writer>.<n>.jsonl | .db              journals and sealed segments
    control/new.<order>.<command>.json         a command, put here by rename
    control/got.<order>.<command>.<writer>.json    taken by that writer
    nodes/<host>-<token>.json                  a host that cannot see run.json
    media/<sha256>                             artifacts and bodies too large for a line
    checkpoints/<id>/                          the shards of one checkpoint, where it is in parts
    sync/                                      the syncer's
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from launchhelm.records import WriterId

MANIFEST: Final = "run.json"
DATA: Final = "data"
CONTROL: Final = "control"
ATTEMPTS: Final = "attempts"
SYNC: Final = "sync"
NODES: Final = "nodes"
MEDIA: Final = "media"
CHECKPOINTS: Final = "checkpoints"

SUMS: Final = "SHA256SUMS"
"""In a snapshot: the digest of every file, as `sha256sum --check` reads it."""

WHOLE: Final = "run.db"
"""Derived: all of a run in one database."""

NAMES: Final = frozenset(
    {MANIFEST, DATA, CONTROL, ATTEMPTS, SYNC, NODES, MEDIA, CHECKPOINTS, SUMS, WHOLE}
)
"""All that may stand in a run directory, but for hidden names and those of newer versions."""

UNREADY: Final = ".checkpoint-"
"""In media/: how the name of a checkpoint begins that is written and not yet known to be good."""

_SEGMENT = re.compile(r"r(\d{5,})-a(\d{3,})-([0-9a-f]{8})\.(\d{5,})\.(jsonl|db)", re.ASCII)
_COMMAND = re.compile(
    r"(new|got)\.(\d{20})\.([0-9A-Za-z_-]{1,128})(?:\.(r\d{5,}-a\d{3,}-[0-9a-f]{8}))?\.json",
    re.ASCII,
)
_WRITER = re.compile(r"r(\d{5,})-a(\d{3,})-([0-9a-f]{8})", re.ASCII)


@dataclass(frozen=True, slots=True)
class SegmentName:
    """A file in data/: writer, number, and whether it is sealed."""

    writer: WriterId
    number: int
    sealed: bool

    def __str__(self) -> str:
        return f"{self.writer}.{self.number:05d}.{'db' if self.sealed else 'jsonl'}"


@dataclass(frozen=True, slots=True)
class CommandName:
    """A file in control/: its order, the command's id, and the writer that took it, if any."""

    order: int
    command: str
    taken_by: WriterId | None = None

    def __str__(self) -> str:
        head = f"{self.order:020d}.{self.command}"
        return f"got.{head}.{self.taken_by}.json" if self.taken_by else f"new.{head}.json"


def parse_writer(text: str) -> WriterId | None:
    """Read a writer id, or None when it is not one."""
    match = _WRITER.fullmatch(text)
    return WriterId(int(match[1]), int(match[2]), match[3]) if match else None


def parse_segment(name: str) -> SegmentName | None:
    """Read a file name of data/, or None for a name that is not ours."""
    match = _SEGMENT.fullmatch(name)
    if match is None:
        return None
    writer = WriterId(int(match[1]), int(match[2]), match[3])
    return SegmentName(writer, int(match[4]), match[5] == "db")


def parse_command(name: str) -> CommandName | None:
    """Read a file name of control/, or None for a name that is not ours."""
    match = _COMMAND.fullmatch(name)
    if match is None or (match[1] == "got") != (match[4] is not None):
        return None
    return CommandName(int(match[2]), match[3], parse_writer(match[4]) if match[4] else None)


def attempt_name(number: int) -> str:
    """Name the file of one attempt."""
    return f"{number:05d}.json"


def parse_attempt(name: str) -> int | None:
    """Read a file name of attempts/, or None for a name that is not ours."""
    stem = name.removesuffix(".json")
    return int(stem) if name.endswith(".json") and stem.isascii() and stem.isdigit() else None


def is_node(name: str) -> bool:
    """Whether this is a file name of nodes/."""
    return name.endswith(".json") and not name.startswith(".")


def hidden_name(name: str) -> str:
    """Name the temporary file that becomes `name` by rename, in the same directory."""
    return f".{name}.{os.urandom(4).hex()}"


def default_root(configured: str) -> Path:
    """Make the root absolute, so that a later chdir changes nothing."""
    return Path(configured).expanduser().absolute()
