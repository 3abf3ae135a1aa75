"""The life of one command, as pure functions (state, event) -> state.

    submit ──► [pending_approval] ──► queued ──► claimed ──► applying ──► applied
                       │                │           │            ├─────► outcome_unknown
                       └── cancelled ◄──┘           └► rejected ◄┘

The order of loyalties: a handler runs at most once, a training loop is never stopped by us, and the
word of the participant beats our guess. So a claim cannot be taken back, a begin cannot be refused
to whoever holds a lease, and every result is taken; what does not fit together is flagged.

Time acts through `settle` alone: readers show what it returns, writers store it before they act.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

Execution: TypeAlias = Literal[
    "pending_approval",
    "queued",
    "claimed",
    "applying",
    "applied",
    "rejected",
    "cancelled",
    "failed",
    "outcome_unknown",
]

LEASE_S: Final = 60.0
WAITING: Final = ("pending_approval", "queued")
OPEN: Final = (*WAITING, "claimed", "applying")
OUTCOMES: Final = ("applied", "rejected", "outcome_unknown", "failed")


class Refused(Exception):
    """The event does not fit the state; nothing changed. The text says why."""


@dataclass(frozen=True)
class Life:
    """Where one command stands.

    Args:
        execution: The word that the API uses.
        expires_at: Seconds since the epoch after which it may not be claimed any more.
        leases: Every lease given out for it, the valid one last.
        lease_until: Seconds since the epoch at which the valid lease lapses.
        begun: Whether a begin was seen, so that the handler may have run.
        decided_by: Who ended it: "" while open, "server", "operator" or "participant".
        failure_code: Why it ended otherwise than applied.
        result: What the handler returned. Any: it is whatever JSON the user's function made.
        applied_at: The coordinates of the safe point, as the participant reported them.
        applied_on: How many processes applied it, or None when not reported.
    """

    execution: Execution
    expires_at: float
    leases: tuple[str, ...] = ()
    lease_until: float = 0.0
    begun: bool = False
    decided_by: str = ""
    failure_code: str = ""
    result: Any = None
    applied_at: tuple[dict[str, Any], ...] = ()
    applied_on: tuple[int, int] | None = None

    @property
    def lease_id(self) -> str:
        """The valid lease, or "" before the first claim."""
        return self.leases[-1] if self.leases else ""


@dataclass(frozen=True)
class Said:
    """The result of a command as its participant reported it; fields as in Life."""

    outcome: Execution
    failure_code: str = ""
    result: Any = None  # Any: whatever JSON the handler returned.
    applied_at: tuple[dict[str, Any], ...] = ()
    applied_on: tuple[int, int] | None = None


def submitted(*, expires_at: float, requires_approval: bool) -> Life:
    """Begin the life of a command."""
    return Life("pending_approval" if requires_approval else "queued", expires_at)


def settle(life: Life, now: float) -> Life:
    """Let time act: what waited too long is rejected, an effect without a lease is unknown.

    A claimed command whose lease lapsed keeps its state: it may be offered again, and whoever holds
    the old lease may still begin it as long as nobody else has.
    """
    if life.execution in WAITING and now >= life.expires_at:
        return _ended(life, "rejected", "expired")
    if life.execution == "applying" and now >= life.lease_until:
        return _ended(life, "outcome_unknown", "lease_lost")
    return life


def approve(life: Life) -> Life:
    """Release a command that waits for approval; approving again changes nothing.

    Raises:
        Refused: It ended before it was approved.
    """
    if life.execution == "pending_approval":
        return replace(life, execution="queued")
    if life.decided_by:
        raise Refused(f"The command is {life.execution} already.")
    return life


def cancel(life: Life) -> Life:
    """Take a command back before it is claimed; cancelling again changes nothing.

    Raises:
        Refused: It is claimed, so that the loop may act on it at any moment, or has ended.
    """
    if life.execution in WAITING:
        return replace(life, execution="cancelled", decided_by="operator")
    if life.execution == "cancelled":
        return life
    raise Refused(
        f"The command is {life.execution}: it can be cancelled only before it is claimed."
    )


def may_claim(life: Life, now: float) -> bool:
    """Say whether the command may be offered: it waits, or was claimed, never begun, and lapsed."""
    return life.execution == "queued" or (life.execution == "claimed" and now >= life.lease_until)


def claim(life: Life, lease_id: str, now: float) -> Life:
    """Hand the command out under a lease that was never used before.

    Raises:
        Refused: It may not be offered now.
    """
    if not may_claim(life, now):
        raise Refused(f"The command is {life.execution}.")
    return replace(
        life, execution="claimed", leases=(*life.leases, lease_id), lease_until=now + LEASE_S
    )


def begin(life: Life, lease_id: str, now: float) -> Life:
    """Note that the handler may run from now on; beginning again with the same lease is harmless.

    Neither expiry nor a lapsed lease matters here, since a refusal is raised in the training loop.
    An older lease may begin too while nobody began: its holder is the same participant, and it then
    owns the command.

    Raises:
        Refused: The lease was never given out, another lease began, or the command has ended.
    """
    if lease_id not in life.leases:
        raise Refused("The lease does not belong to this command.")
    if life.execution == "claimed":
        others = tuple(lease for lease in life.leases if lease != lease_id)
        return replace(
            life,
            execution="applying",
            begun=True,
            leases=(*others, lease_id),
            lease_until=now + LEASE_S,
        )
    if life.begun:
        return renew(life, lease_id, now)
    raise Refused(f"The command is {life.execution} ({life.failure_code or life.decided_by}).")


def renew(life: Life, lease_id: str, now: float) -> Life:
    """Prolong the valid lease; a lapsed one lives again when nothing else has happened since.

    Raises:
        Refused: Another lease is valid, or the command has ended.
    """
    if lease_id != life.lease_id:
        raise Refused("The lease is not the valid one of this command.")
    if life.execution == "outcome_unknown" and life.failure_code == "lease_lost":
        life = replace(life, execution="applying", decided_by="", failure_code="")
    if life.execution not in ("claimed", "applying"):
        raise Refused(f"The command is {life.execution}.")
    return replace(life, lease_until=now + LEASE_S)


def reject(life: Life, failure_code: str, now: float) -> Life:
    """End a command that may be claimed but cannot be carried out any more."""
    return _ended(life, "rejected", failure_code) if may_claim(life, now) else life


def supersede(life: Life) -> Life:
    """A newer epoch was opened: what has not begun never will, what has begun is unknown."""
    if life.execution == "applying":
        return _ended(life, "outcome_unknown", "epoch_superseded")
    return _ended(life, "rejected", "epoch_superseded") if life.execution in OPEN else life


def end_session(life: Life) -> Life:
    """The session ended: what has not begun never will; what has begun keeps its lease."""
    if life.execution in (*WAITING, "claimed"):
        return _ended(life, "rejected", "session_ended")
    return life


def report(life: Life, said: Said) -> tuple[Life, str]:
    """Take a result. It is never refused, whatever its lease, epoch or age.

    Returns:
        The new state, and "" or one sentence about a contradiction worth a person's attention.
    """
    if life.execution in OPEN:
        flag = "It was reported before it was claimed." if life.execution in WAITING else ""
        return _told(life, said), flag
    ours = life.decided_by in ("server", "operator")
    if ours and life.execution == "outcome_unknown":
        return _told(life, said), ""  # Also when it does not know either: it knows why.
    if life.execution == said.outcome:
        return life, ""
    if ours and said.outcome == "applied":
        return _told(life, said), f"It was {life.execution} here, yet applied there."
    if ours and not life.begun and said.outcome in ("rejected", "outcome_unknown"):
        return life, ""
    return life, f"It is {life.execution}, and was then reported as {said.outcome}."


def _ended(life: Life, execution: Execution, failure_code: str) -> Life:
    return replace(life, execution=execution, decided_by="server", failure_code=failure_code)


def _told(life: Life, said: Said) -> Life:
    return replace(
        life,
        execution=said.outcome,
        decided_by="participant",
        failure_code=said.failure_code,
        result=said.result,
        applied_at=said.applied_at,
        applied_on=said.applied_on,
    )
