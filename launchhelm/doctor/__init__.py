"""What is wrong with a directory, a file system, an environment or a run, and what to do.

Every check is a function that only looks, never raises for what it finds, and returns findings.
Those of `storage` make hidden scratch files and remove them; nothing else is written anywhere.
"""

from launchhelm.doctor.finding import LEVELS, Finding, worst

__all__ = ["LEVELS", "Finding", "worst"]
