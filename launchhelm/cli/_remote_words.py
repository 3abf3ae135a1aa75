"""What a server says of a command, in the words and fields that the command line uses. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final  # Any: JSON of the API.

from launchhelm import _wording, views
from launchhelm._wording import Sentence, outcome_text
from launchhelm.cli import documents
from launchhelm.records import Outcome

Json = Mapping[str, Any]

FINAL: Final = ("applied", "rejected", "cancelled", "failed", "outcome_unknown")
"""Executions after which a server does nothing more by itself."""

SILENT_AFTER_S: Final = 60.0
"""Without a heartbeat for so long, a session is lost until its next one."""

_STATES: Final = {
    "pending_approval": "waiting",
    "queued": "waiting",
    "claimed": "claimed",
    "applying": "applying",
}

_WHY: Final = {
    "session_ended": "the run ended before it could be applied",
    "epoch_superseded": "the run was started anew before it could be applied",
    "state_revision_moved": "another command was applied first; send it again if still wanted",
    "lease_lost": "whoever carries it out was not heard of in time, and may still report",
    "begin_rejected": "the server took it back before it reached the run",
    "begin_uncertain": "the server could not be asked before it would have reached the run",
    "fingerprint_mismatch": "what arrived is not what was submitted",
    "frozen": "the controls are frozen; `launchhelm control RUN unfreeze` on a host of the run "
    "ends that, and its `log` there says who froze them",
    "handler_unavailable_or_changed": "the run does not offer this control any more, or changed it",
    "id_taken": "the run has had another command of the same id",
    "inbox_unavailable": "whoever syncs the run could not write its inbox",
    "local_validation": "the run does not take this value; `launchhelm control RUN log` on a host "
    "of the run says why",
    "not_permitted": "whoever syncs the run may not control it",
    "rank_gone": "a process has left the group",
    "run_ended": "the run ended before it could be applied",
    "runtime_restart": "rank 0, or the syncer, that had taken it is gone",
    "undeclared_safe_point": "the run does not come to that safe point",
}
"""What codes mean. A server keeps no words of the run beside them; other codes stand alone."""


def state_of(command: Json) -> str:
    """Return the state as the ledger of a run calls it."""
    execution = str(command.get("execution", ""))
    code = command.get("failure_code")
    if execution == "rejected" and code in ("expired", "cancelled"):
        return str(code)
    return _STATES.get(execution, execution)


def sentence_of(
    command: Json, *, waited_s: float | None = None, silent_s: float | None = None
) -> Sentence:
    """Say what became of a command, by what the server knows.

    Args:
        waited_s: Since it was given, when we watched.
        silent_s: Since its run was last heard of, when that was asked.
    """
    execution = command.get("execution")
    if execution in FINAL:
        around = replace(_wording.NOTHING_KNOWN, cancelled_by=_canceller(command))
        return outcome_text(_Known(outcome_of(command)), around)
    for_so_long = f" for {_wording.duration(waited_s)}" if waited_s is not None else ""
    heard = ""
    if silent_s is not None and silent_s > SILENT_AFTER_S:
        heard = f"; the run was not heard of for {_wording.duration(silent_s)}"
    if execution == "pending_approval":
        return Sentence(f"Waiting for approval{for_so_long}", heard, mark="◆")
    if execution == "queued":
        return Sentence(f"Waiting{for_so_long}", f": nobody has picked it up{heard}", mark="◆")
    rest = f": picked up, to act at a step that all ranks agree on{heard}"
    return Sentence(f"Waiting{for_so_long}", rest, mark="◆")


def what_of(command: Json, names: Mapping[str, str]) -> str:
    """Say what a command is: `lr scale=0.5`.

    Args:
        names: Of controls, by the ids of their documents.
    """
    request = _request(command)
    payload = request.get("input")
    said = _wording.payload_text(payload) if isinstance(payload, Mapping) else ""
    return f"{_wording.plain(name_of(command, names))} {said}".strip()


def name_of(command: Json, names: Mapping[str, str]) -> str:
    """Return the name of the control that a command is for, "" when it is not known."""
    capability = _request(command).get("capability")
    id_ = capability.get("id") if isinstance(capability, Mapping) else ""
    return names.get(str(id_), "")


def why_of(command: Json) -> list[str]:
    """Say who gave a command and why, as far as that is known."""
    who = _wording.plain(str(command.get("submitted_by") or ""))
    reason = _wording.plain(str(_request(command).get("reason") or ""))
    return [f"by {who}"] * bool(who) + [f'"{reason}"'] * bool(reason)


def outcome_of(command: Json) -> Outcome | None:
    """Return what a command ended with; None while it has not."""
    if command.get("execution") not in FINAL:
        return None
    code = str(command.get("failure_code") or "")
    reported = command.get("applied_on")
    count = reported if isinstance(reported, Mapping) else {}
    result = command.get("result")
    return Outcome(
        command=str(command.get("id", "")),
        state=state_of(command),
        code=code,
        message=_WHY.get(code, ""),
        result=result,
        applied_at=_places(command.get("applied_at")),
        applied_on=_whole(count.get("count")),
        of=_whole(count.get("of")),
        changes=changes_of(result),
    )


def changes_of(result: Any) -> dict[str, Any]:
    """Return old and new per value from a result that names them; {} from any other."""
    if not isinstance(result, Mapping):
        return {}
    listed = result.get("changes")
    found = listed if isinstance(listed, Mapping) else result
    old, new = found.get("old"), found.get("new")
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return {
            str(name): {"old": _plain(old.get(name)), "new": _plain(value)}
            for name, value in new.items()
        }
    return {
        str(name): {side: _plain(value) for side, value in change.items()}
        for name, change in found.items()
        if isinstance(change, Mapping) and {"old", "new"} <= change.keys()
    }


def document_of(command: Json, name: str, sentence: Sentence) -> documents.Document:
    """Return the fields of a command, and what only a server knows of it."""
    request = _request(command)
    payload = request.get("input")
    view = views.CommandView(
        id=str(command.get("id", "")),
        name=name,
        payload=payload if isinstance(payload, Mapping) else {"value": payload},
        issued_by=str(command.get("submitted_by") or ""),
        owner="",
        reason=str(request.get("reason") or ""),
        state=state_of(command),
        states=tuple(
            views.CommandState(str(line.get("execution", "")), seconds(line.get("at")), None, 0)
            for line in command.get("history") or ()
        ),
        outcome=outcome_of(command),
    )
    return {
        **documents.command_document(view, _wording.NOTHING_KNOWN),
        "issued_at": seconds(command.get("created_at")) or None,
        "text": str(sentence),
        "states": [
            {"state": each.state, "at": each.at, "step": None, "attempt": None}
            for each in view.states
        ],
        "execution": command.get("execution"),
        "decided_by": command.get("decided_by", ""),
        "expires_at": seconds(request.get("expires_at")) or None,
    }


def seconds(text: Any) -> float:
    """Return a time of the API as seconds since the epoch; 0 when it is none."""
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except (ValueError, OverflowError):
        return 0.0


class _Known:
    """A command of which only the end is told."""

    first_step: int | None = None

    def __init__(self, outcome: Outcome | None) -> None:
        self.outcome = outcome


def _canceller(command: Json) -> str:
    lines = [line for line in command.get("history") or () if line.get("event") == "cancelled"]
    return str(lines[-1].get("by") or "") if lines else ""


def _request(command: Json) -> Json:
    request = command.get("request")
    return request if isinstance(request, Mapping) else {}


def _places(listed: Any) -> dict[str, Any]:
    places = listed if isinstance(listed, list) else []
    return {
        str(place["axis"]): _number(place.get("value"))
        for place in places
        if isinstance(place, Mapping) and "axis" in place
    }


def _number(value: Any) -> Any:
    text = str(value)
    return int(text) if text.removeprefix("-").isdecimal() and len(text) <= 18 else value


def _plain(value: Any) -> Any:
    """Return a value with the numbers that stand as texts read."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping) and value.keys() == {"$number", "value"}:
        try:
            number = float(value["value"])
            return int(value["value"]) if value["$number"] == "integer" else number
        except (TypeError, ValueError):
            return value
    return value


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
