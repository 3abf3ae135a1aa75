"""Whether a run directory is a snapshot, whose processes write elsewhere if they still live."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from launchhelm.store.layout import DATA, SUMS, parse_segment

_LAST: Final = f"{DATA}/~"
"""The lines are sorted, and media, which come later, may be very many."""


def copied_attempt(directory: Path) -> int:
    """Return the newest attempt that a snapshot brought here, 0 when this is the run itself.

    A later attempt was launched on the copy, which is a run of its own since. Never raises for
    what it finds.
    """
    newest = 0
    try:
        if SUMS not in os.listdir(directory):  # Asked for by name it might stay missing for long.
            return 0
        with open(directory / SUMS, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                path = line.rstrip("\n").partition("  ")[2]
                if path > _LAST:
                    break
                segment = parse_segment(path.removeprefix(f"{DATA}/"))
                newest = max(newest, segment.writer.attempt if segment else 0)
    except OSError:
        return 0
    return newest
