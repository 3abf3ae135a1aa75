"""What coordinators recorded of the commands of one server, read from the run's own files."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from launchhelm._clock import SYSTEM_CLOCK, Clock
from launchhelm.records import Outcome, Record, WriterId
from launchhelm.store.reader import Reader
from launchhelm.views.fold import whole_body
from syncer.commands import Origin


@dataclass(slots=True)
class Known:
    """One command of the server.

    Args:
        origin: As it came with the command.
        writer: The coordinator that said so last.
        state: Last recorded state; a final one is never replaced.
        outcome: The final one, None while there is none.
    """

    origin: Origin
    writer: WriterId
    state: str
    outcome: Outcome | None = None


@dataclass(slots=True)
class Outcomes:
    """Follows the records of rank 0. Belongs to one thread; never raises.

    Attributes:
        known: By command id.
        expected: Commands that were delivered, for records that do not say where from.
        others: Ended commands that did not come from the server.
    """

    directory: Path
    server: str
    clock: Clock = SYSTEM_CLOCK
    known: dict[str, Known] = field(default_factory=dict)
    expected: dict[str, Origin] = field(default_factory=dict)
    others: set[str] = field(default_factory=set)
    _reader: Reader = field(init=False)

    def __post_init__(self) -> None:
        self._reader = Reader(self.directory, clock=self.clock, kinds=("oc",), ranks=(0,))

    def refresh(self) -> list[str]:
        """Take in what was recorded since the last call; return the commands that ended."""
        return [id_ for record in self._reader.poll() if (id_ := self._take(record))]

    @property
    def holes(self) -> bool:
        """Whether records are missing that may still become visible."""
        return bool(self._reader.holes)

    def _take(self, record: Record) -> str:
        """Take in a record; return the id of a command that has just ended."""
        try:
            outcome = Outcome.parse(whole_body(self.directory, record.body))
            origin = Origin.parse(outcome.server, self.server)
        except (TypeError, ValueError):
            return ""  # Of a shape that no version of ours writes.
        id_ = outcome.command
        known = self.known.get(id_)
        if known is None:
            origin = origin or self.expected.get(id_)
            if origin is None or origin.id != id_:
                if outcome.is_final:
                    self.others.add(id_)  # A local command, or another server's.
                return ""
            known = self.known[id_] = Known(origin, record.writer, outcome.state)
        if known.outcome is not None:
            return ""
        known.writer, known.state = record.writer, outcome.state
        known.outcome = outcome if outcome.is_final else None
        return id_ if outcome.is_final else ""
