"""What the exchange is made of: packets, rows, verdicts, actions and their results.

Plain frozen data; `_protocol` decides with it, `_exchange` carries it out.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeAlias

NEVER: Final = 1 << 62
"""A call that does not come."""

INLINE_BYTES: Final = 448
"""The body of a command up to this size travels in the packet that announces it."""


class Kind(IntEnum):
    """What a packet says."""

    IDLE = 0
    COMMAND = 1
    APPLY = 2
    REJECT = 3
    CLOSING = 4
    COMPARE = 5
    DRIFT = 6
    NEXT = 7


class Status(IntEnum):
    """What a rank says in a gather."""

    OK = 0
    FAILED = 1
    EXPIRED = 2
    EARLY = 3
    NOT_DONE = 4


@dataclass(frozen=True, slots=True)
class Packet:
    """What the coordinator tells all ranks at a due call.

    Args:
        serial: Rises by one with each packet; another number than expected ends control.
        kind: What it says.
        next_due: The due call after this one.
        command: Number of the command it is about, 0 when about none.
        size: Bytes of the body, for COMMAND, NEXT and DRIFT, which follows unless it is inside; the
            last step, for CLOSING.
        apply_call: For APPLY, always later than the call at which this packet is awaited; for NEXT,
            that call or a later one.
        step: Where the coordinator was when it sent this.
    """

    serial: int
    kind: Kind
    next_due: int
    command: int = 0
    size: int = 0
    apply_call: int = 0
    step: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """One rank's line in a gather: its vote, its result, or the success of its roll-back.

    `digest` is, in a vote, 1 for a handler and 0 for state; in a result, that of the values read
    back, 0 when they are not comparable. `text` is the error, or an excerpt of the values.
    """

    status: Status
    call: int
    step: int
    digest: int = 0
    text: str = ""
    more: bool = False
    """Rank 0's word that, once this command has ended, another one is handed on at once."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Why the exchange was lost.

    Args:
        kind: left, dead, timeout, broken, serial, internal, absent.
        ranks: The group ranks that are gone or silent, as far as known.
        text: One sentence for people.
    """

    kind: str
    ranks: tuple[int, ...]
    text: str

    @property
    def code(self) -> str:
        """The outcome code of commands that can no longer be applied."""
        return "rank_gone" if self.kind in ("left", "dead", "timeout", "broken") else "control_off"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a command, the same on every rank that knows it.

    Args:
        state: applied, rejected, expired or outcome_unknown.
        failures: (group rank, "Type: text"), in rank order.
        applied_on: Ranks that had applied it before any roll-back; None: not known.
        rolled_back: True or False after a failure, else None.
        consistent: Whether all ranks are known to hold equal values.
    """

    state: str
    code: str = ""
    message: str = ""
    failures: tuple[tuple[int, str], ...] = ()
    applied_on: int | None = None
    rolled_back: bool | None = None
    consistent: bool = True


def digest(values: str) -> int:
    """Return a number above 0 of 57 bits for canonical values, 0 for none."""
    if not values:
        return 0
    return int.from_bytes(hashlib.sha256(values.encode()).digest()[:7], "big") + 1


# Results: what an action may be answered with.


@dataclass(frozen=True, slots=True)
class Lost:
    """The answer to any Await, Share or Gather that did not come about."""

    cause: Cause


@dataclass(frozen=True, slots=True)
class Looked:
    """The coordinator's view at the end of a call.

    Args:
        size: Bytes of the body of a command that was just taken, None when there is none.
        durable: Whether the `applying` record of the command under way has reached the disk.
        overdue: Whether that took too long.
        interval: Calls until the next exchange when idle.
        soon: Calls until the next exchange while a command is under way.
        compare: Whether it is time to compare the values of all ranks.
        drift: Bytes of what the last comparison found, None when there is nothing new.
        at: The call at which the command under way should be applied, if that is yet to come.
        refusal: Why the command under way is not to be applied any more, None when it is.
    """

    size: int | None = None
    durable: bool = False
    overdue: bool = False
    interval: int = 1
    soon: int = 1
    compare: bool = False
    drift: int | None = None
    at: int = 0
    refusal: Verdict | None = None


@dataclass(frozen=True, slots=True)
class Checked:
    """The answer to Check: why not ("" when it fits), and whether it is a handler.

    `more`: rank 0 can hand on another command at once, should this one be refused.
    """

    text: str
    handler: bool = False
    more: bool = False


@dataclass(frozen=True, slots=True)
class Applied:
    """The answer to Apply. `changed`: there is a snapshot, so a roll-back is possible.

    `more`: rank 0 can hand on another command at once.
    """

    status: Status
    text: str = ""
    digest: int = 0
    changed: bool = False
    more: bool = False


@dataclass(frozen=True, slots=True)
class Settled:
    """The answer to Settle.

    Args:
        never: It is certain that no rank applies the command.
        applied_on: How many ranks reported that they had applied it; coordinator only.
    """

    never: bool
    applied_on: int | None = None


# Actions: what the machine wants done. Each but Go and Raise is answered by `feed`.


@dataclass(frozen=True, slots=True)
class Go:
    """The call is over. `issue`: first send this packet, without waiting for it; `expect`: first
    begin to receive one.
    """

    issue: Packet | None = None
    expect: bool = False


@dataclass(frozen=True, slots=True)
class Await:
    """Wait for the packet that is due. Answer: Packet or Lost."""


@dataclass(frozen=True, slots=True)
class Follow:
    """Send or receive a packet at this very call: the last rows said that one follows.

    `issue` is the coordinator's. Answer: Packet or Lost.
    """

    issue: Packet | None = None


@dataclass(frozen=True, slots=True)
class Share:
    """Broadcast the command's body. Answer: None or Lost."""

    size: int


@dataclass(frozen=True, slots=True)
class Check:
    """Ask this rank's controls whether the command would fit. Answer: Checked."""


@dataclass(frozen=True, slots=True)
class Gather:
    """Exchange one row per rank. Answer: a tuple of rows in rank order, or Lost."""

    row: Row
    handler: bool = False


@dataclass(frozen=True, slots=True)
class Look:
    """Coordinator: see whether the record is durable (`under_way`), else take a command.

    `follows`: take one whose record is durable already, and which is to act now or very soon.
    """

    under_way: bool
    follows: bool = False


@dataclass(frozen=True, slots=True)
class Compare:
    """Broadcast a digest of rank 0's values; a rank with others writes them to the store.

    Answer: None or Lost.
    """


@dataclass(frozen=True, slots=True)
class Report:
    """Broadcast what rank 0 found to differ, and show it. Answer: Verdict or Lost."""

    size: int


@dataclass(frozen=True, slots=True)
class Record:
    """Coordinator: begin to write the `applying` record. Answer: None, at once."""


@dataclass(frozen=True, slots=True)
class Apply:
    """Snapshot, apply, read back, on this rank. Answer: Applied."""

    handler: bool


@dataclass(frozen=True, slots=True)
class Restore:
    """Put back the snapshot. Answer: "" or the error's text."""


@dataclass(frozen=True, slots=True)
class Conclude:
    """Coordinator: record the one final outcome. Answer: None."""

    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Settle:
    """Without the group: tell the store what this rank knows, and learn what it can.

    Args:
        command: Its number.
        never: Coordinator: publish that no rank may apply it.
        applied: This rank had applied it before taking it back.
        wait: Wait some seconds for the word of the others.
    """

    command: int
    never: bool = False
    applied: bool = False
    wait: bool = True
    before: int = NEVER
    """Finishing in doubt: `never` also holds if every other rank has left before this call."""


@dataclass(frozen=True, slots=True)
class Off:
    """Stop using the group, tell the others why through the store, and say so once."""

    cause: Cause
    in_doubt: bool = False


@dataclass(frozen=True, slots=True)
class Warn:
    """Warn of a divergence that the user chose to live with. Answer: None."""

    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Raise:
    """Raise DivergedStateError; this ends the call."""

    verdict: Verdict


Action: TypeAlias = (
    Go | Await | Follow | Share | Check | Gather | Look | Compare | Report | Record | Apply
    | Restore | Conclude | Settle | Off | Warn | Raise
)  # fmt: skip
Result: TypeAlias = (
    None | str | Packet | Lost | Looked | Checked | Applied | Settled | Verdict
    | tuple[Row, ...]
)  # fmt: skip
