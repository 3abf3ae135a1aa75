"""Whether the commands of a server are asked for, and why not: a note for people, beside the state.

Advisory, like trouble.py: `launchhelm status` shows it, nothing decides by it, and a failure to
write it is of no consequence. It is put in place by rename and not synced to the disk.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from launchhelm._clock import SYSTEM_CLOCK, Clock
from launchhelm.store import layout

NAME: Final = "asking.json"

EVERY_S: Final = 15.0
SOON_S: Final = 2.0
"""What changed is told no more often than this."""

_MAX_BYTES: Final = 16 << 10


@dataclass(frozen=True, slots=True)
class Asked:
    """What a holder of the lease last said of the commands of one server.

    Args:
        asked_at: Wall time of the last question; None for never.
        why: Why none can be given, or none is asked for, in a few words; "" when all is well.
        epoch: Of the holder's lease.
    """

    asked_at: float | None
    why: str
    epoch: int


class Asking:
    """The notes of one run; its methods may be called from any thread."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._known: Asked | None = None
        self._said: Asked | None = None
        self._said_at = float("-inf")

    def note(self, place: Path, epoch: int, why: str, *, asked_at: float | None = None) -> None:
        """Put a note in place of the one before, if that is due.

        Args:
            place: The state directory.
            epoch: Of the lease.
            why: As of `Asked`.
            asked_at: When something was asked; None: not since.
        """
        with self._lock:
            if self._known is None:
                self._known = read(place)
            before = self._known.asked_at if self._known is not None else None
            asked = self._known = Asked(asked_at or before, why, epoch)
            now = self._clock.monotonic()
            said = self._said
            is_new = said is None or (said.why, said.epoch) != (why, epoch)
            if asked == said or now - self._said_at < (SOON_S if is_new else EVERY_S):
                return
            self._said, self._said_at = asked, now
            _write(place, asked)


def read(place: Path) -> Asked | None:
    """Return the note of a state directory; None where there is none."""
    try:
        with (place / NAME).open("rb") as file:
            said = json.loads(file.read(_MAX_BYTES))
        asked_at = said["asked_at"]
        return Asked(
            float(asked_at) if asked_at is not None else None, str(said["why"]), int(said["epoch"])
        )
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _write(place: Path, asked: Asked) -> None:
    text = json.dumps(asdict(asked), indent=1, ensure_ascii=False).encode(errors="replace") + b"\n"
    hidden = place / layout.hidden_name(NAME)
    with contextlib.suppress(OSError):
        try:
            hidden.write_bytes(text)
            os.chmod(hidden, 0o640)
            os.replace(hidden, place / NAME)
        except OSError:
            hidden.unlink(missing_ok=True)
            raise
