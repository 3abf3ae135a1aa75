"""What is reported of a claimed command: the body of a result, for every way that it can go. Pure.

Nothing here applies a command. A result is made once, stored, and sent until the server has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal  # Any: JSON values.

from syncer.api.document import WireError, encode, fingerprint
from syncer.api.limits import MAX_FAILURE_CODE

Json = dict[str, Any]
Phase = Literal["received", "starting", "applying", "completed", "reported"]

SETTLED: Final = frozenset({"applied", "rejected", "cancelled", "failed"})
"""Executions of which the server needs to hear nothing more."""

_REFUSED_BEGIN: Final = frozenset(
    {"validation", "conflict", "not_found", "forbidden", "unauthorized"}
)


def refusal(command: Json, *, safe_point: str, revision: str | None, fits: bool) -> str:
    """Return the failure code of the first check that a command fails before begin, or "".

    Args:
        command: As it was claimed.
        safe_point: The one being serviced.
        revision: Of the capability as registered; None when there is none of that id.
        fits: Whether the input fits the schema and the handler's own rule.
    """
    request = command["request"]
    if not safe_point or request.get("safe_point") != safe_point:
        return "undeclared_safe_point"
    if not _is_whole(command):
        return "fingerprint_mismatch"
    if revision is None or request["capability"].get("revision") != revision:
        return "handler_unavailable_or_changed"
    return "" if fits else "local_validation"


def applied(command: Json, result: Any, applied_at: Sequence[Mapping[str, str]]) -> Json:
    """Report a handler that returned; a result that cannot be sent makes the effect unknown."""
    try:
        encode(result)
    except WireError:
        return unknown(command, "ValueError")
    return _body(command, "applied", result, [dict(place) for place in applied_at])


def rejected(command: Json, failure_code: str) -> Json:
    """Report a command that changed nothing."""
    return _body(command, "rejected", failure_code=failure_code)


def unknown(command: Json, failure_code: str) -> Json:
    """Report a command of which nobody can say whether it changed something."""
    return _body(command, "outcome_unknown", failure_code=failure_code)


def begin_failed(command: Json, code: str) -> Json:
    """Report a command whose begin the server refused, or may not have heard.

    Args:
        command: As it was claimed.
        code: Of the ApiError.
    """
    if code in _REFUSED_BEGIN:
        return rejected(command, "begin_rejected")
    return unknown(command, "begin_uncertain")


def after_restart(
    command: Json, phase: Phase, *, execution: str = "", stored: Json | None = None
) -> Json | None:
    """Return what a new process reports of a command that an earlier one had; None is nothing.

    Args:
        command: As it was claimed.
        phase: How far the earlier process had come.
        execution: What the server says now; asked for in phase `received` only.
        stored: The result that the earlier process made, in phase `completed`.
    """
    if phase == "reported" or (phase == "received" and execution in SETTLED):
        return None
    if phase == "completed":
        assert stored is not None
        return stored
    if phase == "received":
        return rejected(command, "runtime_restart")
    return unknown(command, "runtime_restart")


def is_settled(result: Json, execution: str) -> bool:
    """Whether a result that met `conflict` needs no further try."""
    return result["outcome"] == "rejected" and execution in ("rejected", "cancelled")


def _is_whole(command: Json) -> bool:
    try:
        return fingerprint(command["request"]) == command.get("fingerprint")
    except WireError:
        return False


def _body(
    command: Json,
    outcome: str,
    result: Any = None,
    applied_at: Sequence[Json] = (),
    failure_code: str = "",
) -> Json:
    return {
        "lease_id": command["lease_id"],
        "epoch": command["request"]["epoch"],
        "outcome": outcome,
        "result": result,
        "applied_at": list(applied_at),
        "failure_code": failure_code[:MAX_FAILURE_CODE],
    }
