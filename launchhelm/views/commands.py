"""The ledger: every command ever given to a run, what became of it, and what waits in the inbox."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from launchhelm.records import FREEZE, PENDING_STATES, UNFREEZE, Command, Outcome, Record
from launchhelm.store.layout import CommandName


@dataclass(frozen=True, slots=True)
class CommandState:
    """One change of a command's state, as its record says.

    Args:
        at: Wall clock of the coordinator; shown only.
        step: The coordinator's step then.
        attempt: The attempt whose coordinator wrote it.
    """

    state: str
    at: float
    step: int | None
    attempt: int


@dataclass(frozen=True, slots=True)
class CommandView:
    """One command, by evidence only.

    Args:
        state: `waiting` in the inbox, `taken` from it, a pending state, or a final one.
        states: Its states on record, oldest first.
        outcome: The newest state on record with all that earlier ones said; None while there is
            no record of it.
        effect: Values in effect after the next optimizer and scheduler step, when reported.
        command: The file in the inbox, while it is there and can be read.
        restored_at: Attempt and time at which a restart or a restored state undid it, if one did.
    """

    id: str
    name: str
    payload: Mapping[str, Any]
    issued_by: str
    owner: str
    reason: str
    state: str
    states: tuple[CommandState, ...] = ()
    outcome: Outcome | None = None
    effect: Mapping[str, Any] | None = None
    command: Command | None = None
    revision: int = 0
    restored_at: tuple[int, float] | None = None

    @property
    def issued_at(self) -> float | None:
        """When it was issued, by the sender's clock; shown only."""
        if self.command is not None and self.command.issued_at:
            return self.command.issued_at
        return self.states[0].at if self.states else None

    @property
    def first_step(self) -> int | None:
        """The step before which it must not act, when given."""
        known = self.command if self.command is not None else self.outcome
        return known.first_step if known is not None else None

    @property
    def last_step(self) -> int | None:
        """The step after which it must not act, when given."""
        known = self.command if self.command is not None else self.outcome
        return known.last_step if known is not None else None

    @property
    def reverts(self) -> str:
        """The command that it undoes, "" for none."""
        known = self.command if self.command is not None else self.outcome
        return known.reverts if known is not None else ""

    @property
    def replays(self) -> str:
        """`<run>/<id>` of the command that it repeats, "" for none."""
        known = self.command if self.command is not None else self.outcome
        return known.replays if known is not None else ""

    @property
    def is_pending(self) -> bool:
        """Whether something may still happen to it."""
        return self.outcome is None or self.outcome.state in PENDING_STATES


@dataclass(slots=True)
class Ledger:
    """Folds the records of commands, in order of (attempt, number)."""

    _states: dict[str, list[tuple[CommandState, Outcome]]] = field(default_factory=dict)
    _effects: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    _restores: dict[str, tuple[int, float]] = field(default_factory=dict)

    def take(self, record: Record) -> None:
        """Take in an `oc` or `effect` record; each is given once."""
        command = record.body.get("cmd")
        if not isinstance(command, str):
            return
        if record.kind == "effect":
            self._effects[command] = record.body
            self._restores.pop(command, None)
            if record.body.get("reverted"):
                self._restores[command] = record.writer.attempt, record.at
            return
        outcome = Outcome.parse(record.body)
        state = CommandState(outcome.state, record.at, record.step, record.writer.attempt)
        self._states.setdefault(command, []).append((state, outcome))

    def views(self, inbox: Iterable[tuple[CommandName, Command | None]] = ()) -> list[CommandView]:
        """Return all commands: those on record in order of their first record, then the inbox's."""
        files = {name.command: (name, command) for name, command in inbox}
        views = [self._on_record(id_, *files.get(id_, (None, None))) for id_ in self._states]
        views += [
            _in_inbox(name, command)
            for id_, (name, command) in files.items()
            if id_ not in self._states
        ]
        return views

    def _on_record(
        self, id_: str, name: CommandName | None, command: Command | None
    ) -> CommandView:
        outcome = Outcome(command=id_, state="")
        for _, said in self._states[id_]:
            if outcome.is_final:
                break  # Exactly one final state counts; a later one is a fault of its writer.
            outcome = _merge(outcome, said)
        return CommandView(
            id=id_,
            name=outcome.name,
            payload=outcome.payload,
            issued_by=outcome.issued_by,
            owner=outcome.owner,
            reason=outcome.reason,
            state=outcome.state,
            states=tuple(state for state, _ in self._states[id_]),
            outcome=outcome,
            effect=self._effects.get(id_),
            command=command,
            revision=name.order if name is not None else 0,
            restored_at=self._restores.get(id_),
        )


@dataclass(frozen=True, slots=True)
class Freeze:
    """That no command acts, since somebody ordered so.

    Args:
        text: Who and why, in one sentence.
        by: The owner of the order.
        reason: As it was given, "" for none.
        since: Wall clock of the coordinator; shown only.
    """

    text: str
    by: str
    reason: str
    since: float


def freeze_of(commands: Iterable[CommandView]) -> Freeze | None:
    """Return who froze the controls, None when they are not frozen; commands as in the ledger."""
    found: Freeze | None = None
    for command in commands:
        if command.state == "applied" and command.name in (FREEZE, UNFREEZE):
            outcome, since = command.outcome, command.states[-1].at
            assert outcome is not None
            by = command.owner or command.issued_by
            is_frozen = command.name == FREEZE
            found = Freeze(outcome.message, by, command.reason, since) if is_frozen else None
    return found


def frozen(commands: Iterable[CommandView]) -> str:
    """Say who froze the controls and why, "" when they are not frozen."""
    found = freeze_of(commands)
    return found.text if found is not None else ""


def _in_inbox(name: CommandName, command: Command | None) -> CommandView:
    return CommandView(
        id=name.command,
        name=command.name if command is not None else "",
        payload=command.payload if command is not None else {},
        issued_by=command.issued_by if command is not None else "",
        owner="",
        reason=command.reason if command is not None else "",
        state="waiting" if name.taken_by is None else "taken",
        command=command,
        revision=name.order,
    )


def _merge(earlier: Outcome, later: Outcome) -> Outcome:
    """Keep what earlier states said about the request; everything else is the later one's."""
    return later.but(
        name=later.name or earlier.name,
        payload=later.payload or earlier.payload,
        issued_by=later.issued_by or earlier.issued_by,
        owner=later.owner or earlier.owner,
        reason=later.reason or earlier.reason,
        server=later.server or earlier.server,
        first_step=later.first_step if later.first_step is not None else earlier.first_step,
        last_step=later.last_step if later.last_step is not None else earlier.last_step,
        reverts=later.reverts or earlier.reverts,
        replays=later.replays or earlier.replays,
    )
