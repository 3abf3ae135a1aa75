"""What other coordinators of a run recorded about commands: needed once one of them is gone."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from launchhelm.records import FINAL_STATES, FREEZE, UNFREEZE, Record, WriterId
from launchhelm.store import journal, layout
from launchhelm.store.layout import SegmentName
from launchhelm.store.reader import Reader, list_segments


@dataclass
class Claims:
    """One coordinator's word on its commands.

    Args:
        state: The last state recorded per command; a final one is never replaced.
        name: The capability per command.
        has_ended: Whether it closed its files itself.
        frozen: Who froze the controls, "" after they were unfrozen, None without a word on it.
    """

    state: dict[str, str] = field(default_factory=dict)
    name: dict[str, str] = field(default_factory=dict)
    has_ended: bool = False
    frozen: str | None = None

    def take(self, record: Record) -> None:
        """Add what one record says."""
        if record.kind == "close":
            self.has_ended = True
            return
        command = str(record.body.get("cmd", ""))
        self.name.setdefault(command, str(record.body.get("name", "")))
        if self.state.get(command) not in FINAL_STATES:
            self.state[command] = str(record.body.get("state", ""))
            if self.state[command] == "applied" and self.name[command] in (FREEZE, UNFREEZE):
                is_frozen = self.name[command] == FREEZE
                self.frozen = str(record.body.get("message", "")) if is_frozen else ""


class Ledger:
    """The claims of every other coordinator of a run. Not thread-safe; never raises.

    Args:
        writer: The caller, whose own records are left out.
    """

    def __init__(self, run_directory: Path, writer: WriterId) -> None:
        self._directory = run_directory
        self._writer = writer
        self._reader = Reader(run_directory, kinds=("oc", "close"), ranks=(0,))
        self._claims: dict[WriterId, Claims] = {}

    def refresh(self) -> None:
        """Read what is new in the files of rank 0."""
        for record in self._reader.poll():
            if record.writer != self._writer:
                self._claims.setdefault(record.writer, Claims()).take(record)

    def of(self, writer: WriterId) -> Claims:
        """Return what a coordinator recorded, as far as it has been read."""
        return self._claims.get(writer) or Claims()

    def state(self, command: str) -> str:
        """Return what became of a command in other hands, "" when nobody had it."""
        states = [
            claims.state[command] for claims in self._claims.values() if command in claims.state
        ]
        final = [state for state in states if state in FINAL_STATES]
        return (final or states or [""])[0]

    @property
    def frozen(self) -> str:
        """Who froze the controls in an earlier attempt, "" when nobody did or it was undone."""
        said = [
            (writer.attempt, claims.frozen)
            for writer, claims in self._claims.items()
            if claims.frozen is not None
        ]
        return max(said, default=(0, ""))[1]

    def opening(self, writer: WriterId) -> dict[str, object]:
        """Return the `open` line of a coordinator's newest journal: host, boot, pid; {} if none."""
        try:
            segments = list_segments(self._directory).get(writer, {})
            journals = [number for number, forms in segments.items() if False in forms]
            name = SegmentName(writer, max(journals, default=0), sealed=False)
            path = self._directory / layout.DATA / str(name)
            with journal.opened(path) as (descriptor, _):
                return journal.opening(descriptor) or {}
        except OSError:
            return {}
