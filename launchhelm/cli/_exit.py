"""Exit codes, a promise to scripts."""

from __future__ import annotations

from enum import IntEnum

from launchhelm.errors import ConfigError


class Exit(IntEnum):
    """What each exit code says; the docstring of a member is in EXIT_CODES."""

    DONE = 0
    FAILURE = 1
    USAGE = 2
    IN_PART = 3
    NO_SUCH_RUN = 4
    NOT_PERMITTED = 5
    NOTHING_CHANGED = 6
    UNKNOWN = 7
    STILL_WAITING = 8
    PROBLEMS_FOUND = 9
    INTERRUPTED = 130


EXIT_CODES = {
    Exit.DONE: "done, or already so",
    Exit.FAILURE: "our failure; the message says where the details are",
    Exit.USAGE: "usage: a wrong option, control, field or value; nothing was written",
    Exit.IN_PART: "done in part: some runs or records could not be read, listed on stderr",
    Exit.NO_SUCH_RUN: "no such run, or ambiguous",
    Exit.NOT_PERMITTED: "not permitted, read-only",
    Exit.NOTHING_CHANGED: "command rejected, expired, cancelled or not sent: nothing changed",
    Exit.UNKNOWN: "outcome unknown",
    Exit.STILL_WAITING: "still waiting when `--timeout` or the run ended; the command stays",
    Exit.PROBLEMS_FOUND: "`doctor` found warnings or errors",
    Exit.INTERRUPTED: "interrupted; `control` says whether the command stays",
}


class UsageError(ConfigError):
    """What was typed cannot be done; nothing was read or written."""
