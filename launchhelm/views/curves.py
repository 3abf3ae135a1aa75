"""What a chart needs of a metric: sums of its points, or the points themselves.

Sealed segments never change, so what they said is kept, up to a limit of memory. A journal is read
on from where the last look ended; nothing is written anywhere.
"""

from __future__ import annotations

from pathlib import Path


class Curves:
    """Reads curves of one run."""

    def __init__(self, run_directory: Path) -> None:
        self._directory = run_directory
