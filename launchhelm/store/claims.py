"""What earlier coordinators of a run recorded about commands: needed once one of them is gone.

Only the files of rank 0 are read, and of these only the records of commands; the rest is skipped
without being parsed. Sealed segments are read once.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from launchhelm.records import FINAL_STATES, Record, WriterId
from launchhelm.store import journal, layout
from launchhelm.store.layout import SegmentName
from launchhelm.store.segment import sealed_records

_KINDS = ("oc", "close")


@dataclass
class Claims:
    """One coordinator's word on its commands.

    Args:
        state: The last state recorded per command; a final one is never replaced.
        name: The capability per command.
        has_ended: Whether it closed its files itself.
        host, boot, pid: Where it runs, as it said when it opened its first journal.
    """

    state: dict[str, str] = field(default_factory=dict)
    name: dict[str, str] = field(default_factory=dict)
    has_ended: bool = False
    host: str = ""
    boot: str = ""
    pid: int = 0

    def take(self, record: Record) -> None:
        """Add what one record says."""
        if record.kind == "close":
            self.has_ended = True
            return
        command = str(record.body.get("cmd", ""))
        state = str(record.body.get("state", ""))
        self.name.setdefault(command, str(record.body.get("name", "")))
        if self.state.get(command) not in FINAL_STATES:
            self.state[command] = state


class Ledger:
    """The claims of every other coordinator of a run. Not thread-safe.

    Args:
        writer: The caller; its own records are left out.
    """

    def __init__(self, run_directory: Path, writer: WriterId) -> None:
        self._data = run_directory / layout.DATA
        self._writer = writer
        self._claims: dict[WriterId, Claims] = {}
        self._sealed: set[SegmentName] = set()
        self._sizes: dict[SegmentName, int] = {}

    def refresh(self) -> None:
        """Read what is new.

        Raises:
            OSError: The directory cannot be listed.
        """
        names = set(filter(None, map(layout.parse_segment, os.listdir(self._data))))
        for name in sorted(names, key=lambda name: (str(name.writer), name.number)):
            if name.writer.rank != 0 or name.writer == self._writer:
                continue
            claims = self._claims.setdefault(name.writer, Claims())
            if name.sealed:
                self._read_sealed(name, claims)
            elif SegmentName(name.writer, name.number, sealed=True) not in names:
                self._read_journal(name, claims)

    def of(self, writer: WriterId) -> Claims:
        """Return what a coordinator recorded, as far as it has been read."""
        return self._claims.get(writer, Claims())

    def state(self, command: str) -> str:
        """Return what became of a command in other hands, "" when nobody had it."""
        states = [
            claims.state[command] for claims in self._claims.values() if command in claims.state
        ]
        final = [state for state in states if state in FINAL_STATES]
        return (final or states or [""])[0]

    def _read_sealed(self, name: SegmentName, claims: Claims) -> None:
        if name in self._sealed:
            return
        try:
            self._take(claims, sealed_records(self._data / str(name), kinds=_KINDS))
        except Exception:  # A damaged segment: what it said of commands is lost, no more than that.
            return
        self._sealed.add(name)

    def _read_journal(self, name: SegmentName, claims: Claims) -> None:
        try:
            with journal.opened(self._data / str(name)) as (descriptor, size):
                if self._sizes.get(name) == size:
                    return
                opening = journal.opening(descriptor) or {}
                claims.host = str(opening.get("host", ""))
                claims.boot = str(opening.get("boot", ""))
                claims.pid = int(opening.get("pid") or 0)
                for _, _, line in journal.whole_lines(descriptor, 0, size):
                    head = journal.number_and_kind(line)
                    if head is None or head[1] in _KINDS:
                        record = journal.record_of(name.writer, line)
                        if record is not None and record.kind in _KINDS:
                            claims.take(record)
                self._sizes[name] = size
        except (OSError, ValueError):
            return  # Just sealed, or out of reach: the next look tells.

    def _take(self, claims: Claims, records: Iterable[Record]) -> None:
        for record in records:
            claims.take(record)
