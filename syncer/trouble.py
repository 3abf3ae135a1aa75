"""Why a run could not even be opened for a server: a note for people, beside its state.

Advisory: `launchhelm status` shows it, nothing decides by it, and a failure to write it is of no
consequence. It is kept where the state would be; as long as nobody knows the organisation, in the
place of the one without a name.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from launchhelm.store import layout
from launchhelm.store.manifest import write_durably
from syncer.state import find_place, server_hex

NAME: Final = "trouble.json"
_MAX_BYTES: Final = 16 << 10


@dataclass(frozen=True, slots=True)
class Trouble:
    """What stood in the way of one server when it was asked last.

    Args:
        organization: "" as long as nobody knows.
        at: Wall time.
    """

    server: str
    organization: str
    why: str
    at: float


def write(run_directory: Path, run_id: str, trouble: Trouble, *, state_root: Path) -> None:
    """Put a note in place of the one before."""
    said = {name: getattr(trouble, name) for name in Trouble.__slots__}
    text = json.dumps(said, indent=1, ensure_ascii=False).encode(errors="replace") + b"\n"
    with contextlib.suppress(OSError):
        place = find_place(
            run_directory, run_id, trouble.server, trouble.organization, state_root=state_root
        )
        write_durably(place / NAME, text)


def clear(
    run_directory: Path, run_id: str, server: str, organization: str, *, state_root: Path
) -> None:
    """Take away what was noted of a server, with and without its organisation."""
    for root in (run_directory / layout.SYNC, state_root / run_id):
        for each in dict.fromkeys((organization, "")):
            place = root / server_hex(server, each)
            with contextlib.suppress(OSError):
                os.unlink(place / NAME)
                if not each:
                    os.rmdir(place)


def read(places: Iterator[Path]) -> list[Trouble]:
    """Return the notes in some directories of states; what is no note is left out."""
    return [trouble for place in places if (trouble := _read(place / NAME)) is not None]


def _read(path: Path) -> Trouble | None:
    try:
        with path.open("rb") as file:
            said = json.loads(file.read(_MAX_BYTES))
        return Trouble(
            str(said["server"]), str(said["organization"]), str(said["why"]), float(said["at"])
        )
    except (OSError, ValueError, TypeError, KeyError):
        return None
