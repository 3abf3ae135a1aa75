"""The last heartbeats of ranks that others wait for: how a long handler is told from a hung one.

Heartbeats are in the run directory, and the thread that trains never touches shared storage. So a
thread that lives as long as one look reads them, and whoever waits gives it two seconds.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from launchhelm.store.reader import Reader

LIMIT_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Beat:
    """What a rank last said of itself.

    Args:
        number: Rises with each heartbeat.
        phase: `training`, `in eval`, ...
        step: Its last finished step.
    """

    number: int
    phase: str
    step: int | None

    def __str__(self) -> str:
        step = "before its first step" if self.step is None else f"at step {self.step}"
        return f"{step}, {self.phase}"


class Beats:
    """Reads the heartbeats of one attempt.

    Args:
        run_directory: The run.
        attempt: Its number.
    """

    def __init__(self, run_directory: Path, attempt: int) -> None:
        self._directory = run_directory
        self._attempt = attempt

    def __call__(self, ranks: Sequence[int]) -> dict[int, Beat]:
        """Return the last heartbeat of each rank that has one and can be read in time."""
        found: dict[int, Beat] = {}
        thread = threading.Thread(
            target=self._read, args=(ranks, found), name="launchhelm-beats", daemon=True
        )
        thread.start()
        thread.join(LIMIT_S)
        return dict(found)

    def _read(self, ranks: Sequence[int], found: dict[int, Beat]) -> None:
        try:
            for record in Reader(self._directory, kinds=("hb",), ranks=ranks).poll():
                if record.writer.attempt == self._attempt:
                    body = record.body
                    found[record.writer.rank] = Beat(
                        int(body.get("n", 0)), str(body.get("phase", "")), record.step
                    )
        except Exception:  # The thread of a look that failed ends; nothing was found.
            return
