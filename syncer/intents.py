"""Server commands on their way into a run's inbox: files of control/ that no inbox looks at.

    .srv.<order>.<command>.json            the final body; durable before the server's `begin`
    .srv-<code>.<order>.<command>.json     refused, with the failure code to report
    new.<order>.<command>.json             delivered: the run's own from here on

Each step is one rename of one name, so of two who try, one wins and the other is told: a command is
either delivered or refused, never both, whoever was stopped where and for how long.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from launchhelm.records import Command
from launchhelm.store import layout
from launchhelm.store.inbox import encode, read_command
from launchhelm.store.layout import CommandName, parse_command
from launchhelm.store.manifest import sync_directory, write_durably

_NAME: Final = re.compile(
    r"\.srv(?:-([a-z_]{1,64}))?\.(\d{20})\.([0-9A-Za-z_-]{1,128})\.json", re.ASCII
)


@dataclass(frozen=True, slots=True)
class Intent:
    """One such file; `refused` is the failure code, "" while it may still be delivered."""

    order: int
    command: str
    refused: str = ""

    def __str__(self) -> str:
        return (
            f".srv{'-' if self.refused else ''}{self.refused}.{self.order:020d}.{self.command}.json"
        )


@dataclass(frozen=True, slots=True)
class Listing:
    """What control/ holds: our intents, and the commands that wait or were taken."""

    intents: list[Intent]
    commands: list[CommandName]


class Intents:
    """The intents of one run. Methods raise OSError where the folder cannot be used."""

    def __init__(self, run_directory: Path) -> None:
        self.directory = run_directory / layout.CONTROL

    def list(self) -> Listing:
        """List the folder; empty where there is none, or we may not look into it."""
        try:
            names = sorted(os.listdir(self.directory))
        except (FileNotFoundError, PermissionError):
            names = []
        intents = [
            Intent(int(match[2]), match[3], match[1] or "")
            for match in map(_NAME.fullmatch, names)
            if match
        ]
        commands = [it for it in map(parse_command, names) if it is not None]
        return Listing(intents, commands)

    def read(self, name: Intent | CommandName) -> Command | None:
        """Read a file; None when it is gone or not a command."""
        return read_command(self.directory / str(name))

    def promise(self, command: Command) -> Intent:
        """Make the intent to deliver a command durable."""
        intent = Intent(command.revision, command.id)
        write_durably(self.directory / str(intent), encode(command))
        return intent

    def deliver(self, intent: Intent) -> bool:
        """Hand the command to the run; False when somebody else has refused it meanwhile."""
        return self._move(str(intent), str(CommandName(intent.order, intent.command)))

    def refuse(self, intent: Intent, code: str) -> Intent | None:
        """See to it that it is never delivered; None when it has been, or was refused before."""
        refused = Intent(intent.order, intent.command, code)
        return refused if self._move(str(intent), str(refused)) else None

    def withdraw(self, name: CommandName, code: str) -> Intent | None:
        """Take a command back that the run has not taken; None when it has."""
        refused = Intent(name.order, name.command, code)
        return refused if self._move(str(name), str(refused)) else None

    def drop(self, intent: Intent) -> None:
        """Remove a refused intent that was reported."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.directory / str(intent))

    def _move(self, old: str, new: str) -> bool:
        try:
            os.rename(self.directory / old, self.directory / new)
        except FileNotFoundError:
            # A rename whose answer was lost is repeated by the file system's client and then
            # fails; the listing shows that it succeeded. Taken on by the run counts as well.
            listed = os.listdir(self.directory)
            if new not in listed and not _was_taken(new, listed):
                return False
        sync_directory(self.directory)
        return True


def _was_taken(name: str, listed: list[str]) -> bool:
    """Whether the command of that name is in a coordinator's hands."""
    mine = parse_command(name)
    return mine is not None and any(
        it is not None and it.taken_by is not None and it.command == mine.command
        for it in map(parse_command, listed)
    )
