"""One thing that a check has found."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

LEVELS: Final = ("note", "warning", "error")
"""Worth knowing; will hurt some day or somebody; a run cannot be made, or data are at stake."""

_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong, how that is known, and what to do.

    Args:
        check: Name of the check; a promise to scripts.
        level: One of LEVELS.
        about: Path, host, setting or package.
        happened: One sentence.
        evidence: What was seen.
        remedy: What to do next.
    """

    check: str
    level: str
    about: str
    happened: str
    evidence: str = ""
    remedy: str = ""


def worst(findings: Iterable[Finding]) -> str:
    """Return the highest level, "" without findings."""
    return max((each.level for each in findings), key=LEVELS.index, default="")


def listed(names: Sequence[str]) -> str:
    """Name some of many."""
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more:,} more" if more > 0 else "")
