"""Orders: commands about commands, which rank 0 carries out as soon as it takes them in. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from launchhelm.controls import decide, schema
from launchhelm.controls.decide import FIT, Judgement
from launchhelm.records import CANCEL, FREEZE, UNFREEZE, Command

SCHEMAS: Final[Mapping[str, Mapping[str, Any]]] = {
    CANCEL: schema.record([schema.field("id", schema.text())]),
    FREEZE: schema.record([]),
    UNFREEZE: schema.record([]),
}

_DONE: Final = {
    CANCEL: "cancelled by",
    FREEZE: "the controls are frozen by",
    UNFREEZE: "the controls are unfrozen by",
}


_TOO_LATE: Final = {
    "claimed": "it has begun",
    "applying": "it has begun",
    "applied": "it was applied",
    "rejected": "it was rejected",
    "expired": "it has expired",
    "outcome_unknown": "its outcome is unknown",
}


def judge(order: Command, waited_s: float, attempt: int) -> Judgement:
    """Judge an order by itself: it fits, or is refused."""
    if order.for_attempt not in (None, attempt):
        message = f"Meant for attempt {order.for_attempt}; this is {attempt}."
        return Judgement("rejected", "attempt_over", message)
    if order.first_step is not None or order.last_step is not None or order.expected:
        word = order.name.partition(":")[2]
        message = f"{word} acts at once, at no step and on no condition."
        return Judgement("rejected", "local_validation", message)
    return decide.judge(order, schema=SCHEMAS[order.name], step=None, waited_s=waited_s, values={})


def judge_cancel(state: str) -> Judgement:
    """Say whether a command that is in this state now has been taken back."""
    if state == "cancelled":
        return Judgement(FIT)
    if not state:
        return Judgement("rejected", "unknown_command", "No such command waits.")
    return Judgement("rejected", "too_late", f"Too late: {_TOO_LATE.get(state, state)}.")


def message(order: Command, owner: str) -> str:
    """Say what an order did, who gave it, and why if that was said."""
    said = f"{_DONE[order.name]} {owner}"
    return f"{said}: {order.reason}" if order.reason else said
