"""The domain on one page: what a run directory says, as plain frozen data.

Nothing here reads a file, a clock or the network. Dicts stop at the disk and the wire; between
modules these classes travel.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

FORMAT: Final = 1
"""Major version of the run-directory format that this package writes."""

JSONValue: TypeAlias = (
    "None | bool | int | float | str | Sequence[JSONValue] | Mapping[str, JSONValue]"
)
JSONObject: TypeAlias = Mapping[str, JSONValue]

MetricValue: TypeAlias = bool | int | float | str
"""One stored value of a metric: exact class, NaN and infinities as floats."""

NAME_PATTERN: Final = re.compile(r"[a-z][a-z0-9_.:-]{0,127}", re.ASCII)
"""Commands, safe points and axes; use fullmatch."""

TRAINING_SAFE_POINT: Final = "lht"


@dataclass(frozen=True, slots=True)
class WriterId:
    """One process start, sole owner of its files: `r<rank>-a<attempt>-<8 hex>`."""

    rank: int
    attempt: int
    token: str

    def __str__(self) -> str:
        return f"r{self.rank:05d}-a{self.attempt:03d}-{self.token}"


@dataclass(frozen=True, slots=True)
class Record:
    """One line of a journal, or one row of a sealed segment.

    Args:
        writer: Who wrote it. (writer, seq) is the record's identity everywhere.
        seq: From 0, rising by one over all segments of the writer.
        kind: One of KINDS, or a word of a newer version, kept as it is.
        at: Wall clock of the writer, seconds since the epoch; information only.
        step: Optimizer step, or None.
        body: The content; metric records ("m", "sys") map names to MetricValue.
        axes: Coordinates beside step, as decimal text, in order.
    """

    writer: WriterId
    seq: int
    kind: str
    at: float
    step: int | None
    body: Mapping[str, Any]  # Any: the kinds differ; see docs/run-directory.md.
    axes: Mapping[str, str] = field(default_factory=dict)


KINDS: Final[Mapping[str, str]] = {
    "m": "metric values of one log() call",
    "sys": "system metrics of one sample",
    "hb": "heartbeat: counter, step, phase",
    "ev": "event: start, message, fault, left, preemption notice, end of a phase",
    "def": "a metric declared by define(): kind, axes, unit, summary",
    "cap": "a capability: what may be commanded, with its schema",
    "ctl": "the values that controls have now, and the pace of the exchange",
    "keep": "state kept for a resume",
    "sum": "summary values set or removed",
    "desc": "group, tags, notes or name changed",
    "con": "one line of console output",
    "rich": "a text, image, table or histogram",
    "art": "a file that the run keeps: an artifact, whose bytes are in media/",
    "oc": "state of a command",
    "effect": "values in effect after the next optimizer and scheduler step",
    "gap": "records that had to be given up",
    "close": "clean end of a participant, with its reason",
}


@dataclass(frozen=True, slots=True)
class Participant:
    """One process of an attempt: where it ran and its place in the group."""

    id: str
    name: str
    role: str
    rank: int
    world_size: int
    group_rank: int
    local_rank: int
    host: str
    pid: int
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A sign of life: only a rising counter means alive, only a rising step means progress.

    Args:
        counter: Rises by one with every beat of the writer.
        step: Last finished step, None before the first.
        phase: `starting`, `training`, `waiting at step N`, `in eval`, ...
        phase_s: Seconds in that phase so far.
        exchange_wait_ms: Median wait in recent control exchanges, None when not reported.
        step_time_ms: Median step time, None when not reported.
    """

    counter: int
    step: int | None
    phase: str
    phase_s: float
    exchange_wait_ms: float | None = None
    step_time_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Command:
    """One request to change a control, as found in the inbox.

    Args:
        id: Made by whoever issued it; sending twice is harmless.
        name: The capability, for example `lr`.
        payload: Its input.
        issued_by: A label; who may control is decided by the file's owner.
        issued_at: Wall clock of the sender, shown only.
        reason: Free text.
        revision: Server revision, 0 for local commands; orders the queue.
        for_attempt: Valid for this attempt only, when given.
        first_step: Not applied before this step, when given.
        last_step: Expires after this step, when given.
        expected: Values the sender saw; another value now means `changed_meanwhile`.
        valid_s: Seconds it may wait in all; it expires afterwards.
        server: What a syncer brought along (id, epoch, lease), untouched.
        reverts: The command that this one undoes; refused once its control was changed again.
        replays: `<run>/<id>` of the command that this one repeats; shown only.
    """

    id: str
    name: str
    payload: Mapping[str, Any]  # Any: checked against the capability's schema.
    issued_by: str = ""
    issued_at: float = 0.0
    reason: str = ""
    revision: int = 0
    for_attempt: int | None = None
    first_step: int | None = None
    last_step: int | None = None
    expected: Mapping[str, Any] = field(default_factory=dict)
    valid_s: float = 3600.0
    server: Mapping[str, Any] = field(default_factory=dict)
    reverts: str = ""
    replays: str = ""


CANCEL: Final = "run:cancel"
FREEZE: Final = "run:freeze"
UNFREEZE: Final = "run:unfreeze"
ORDERS: Final = (CANCEL, FREEZE, UNFREEZE)
"""Commands about commands: rank 0 carries them out where it takes them in, without the loop."""

REAPPLY: Final = "reapply=True"
"""The issuer of what a run commands by itself, to bring back what a restart or a load has lost."""

STOP_COMMAND: Final = "a stop command"
"""The reason of an end to which the loop was told; the run has finished all the same."""

PENDING_STATES: Final = ("claimed", "applying")
FINAL_STATES: Final = ("applied", "rejected", "expired", "cancelled", "outcome_unknown")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a command; the body of an `oc` record.

    Args:
        command: The command's id.
        state: claimed, applying, or one of FINAL_STATES.
        code: Why, for programs: local_validation, rank_gone, runtime_restart, ...
        message: Why, for people.
        name: The capability, so that a ledger needs no second look-up.
        payload: The command's input (in `claimed` records, else empty).
        issued_by: Who asked, and `owner` of the file as the file system reports it.
        first_step: Not before this step, and `last_step`: not after it, when given (in `claimed`
            records).
        reverts: As in the command, like `replays` (in `claimed` records).
        result: What the handler returned; None unless applied.
        applied_at: Coordinates, {"step": 412} for the training safe point.
        applied_on: How many participants applied it before any roll-back; None: not reported.
        of: World size of the training group; None: not reported.
        rolled_back: True or False after a partial failure, else None.
        changes: Per value: old, new and (later, by `effect`) effective, lists per group.
        failures: (group rank, host, "Type: text") of each participant that failed.
    """

    command: str
    state: str
    code: str = ""
    message: str = ""
    name: str = ""
    payload: Mapping[str, Any] = field(default_factory=dict)
    issued_by: str = ""
    owner: str = ""
    reason: str = ""
    result: Any = None
    applied_at: Mapping[str, Any] = field(default_factory=dict)
    applied_on: int | None = None
    of: int | None = None
    rolled_back: bool | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    failures: Sequence[tuple[int, str, str]] = ()
    server: Mapping[str, Any] = field(default_factory=dict)
    first_step: int | None = None
    last_step: int | None = None
    reverts: str = ""
    replays: str = ""

    def body(self) -> dict[str, Any]:
        """Return the record body: `cmd`, `state`, and every field that says something."""
        body: dict[str, Any] = {"cmd": self.command, "state": self.state}
        for name in _OUTCOME_FIELDS:
            value = getattr(self, name)
            # What a handler returned is told as it is, also {} and "".
            if value is not None and (name == "result" or value not in ("", (), {})):
                body[name] = list(map(list, value)) if name == "failures" else value
        return body

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> Outcome:
        """Read a record body; unknown fields are ignored, missing ones take their defaults."""
        known = {name: body[name] for name in _OUTCOME_FIELDS if name in body}
        if "failures" in known:
            known["failures"] = tuple(tuple(failure) for failure in known["failures"])
        return cls(command=str(body.get("cmd", "")), state=str(body.get("state", "")), **known)

    def but(self, **changes: Any) -> Outcome:
        """Return a copy with some fields replaced."""
        return replace(self, **changes)

    @property
    def is_final(self) -> bool:
        """Whether nothing more will happen to the command."""
        return self.state in FINAL_STATES


_OUTCOME_FIELDS: Final = tuple(Outcome.__dataclass_fields__)[2:]
