"""Commands of a server and what they are in a run: the request, the inbox's file, the outcome.

Pure. Whether a command may go to the run at all is decided here as well, from the request alone;
what it means is the run's to decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Final  # Any: JSON of the API and of records.

from launchhelm.records import Command, Outcome, WriterId
from launchhelm.store.inbox import MAX_COMMAND_BYTES, encode
from launchhelm.store.layout import CommandName, parse_command
from launchhelm.store.line import untag
from syncer.api import wire
from syncer.api.origin import check_id

APPLIED_ON: Final = "result.applied_on"
"""The extension that says on how many processes a command was applied."""

MAX_FAILURE_CODE: Final = 128
MAX_ISSUER: Final = 320


@dataclass(frozen=True, slots=True)
class Offer:
    """A capability as the server has it.

    Args:
        id: Of its document; also revision.
        name: By which the run knows it.
        safe_points: Where it may act.
    """

    id: str
    revision: str
    name: str
    safe_points: frozenset[str]


@dataclass(frozen=True, slots=True)
class Voice:
    """The process for which commands may be claimed now, and all that is needed to do so.

    Args:
        writer: The coordinator of the newest attempt.
        participant: Its id on the server, and the epoch of its live session.
        scope: Of the run.
        extensions: What the server understands beyond the API.
        offers: What it offers, by the server's ids.
        until: Time of the monotonic clock after which it must have been seen to move again.
    """

    writer: WriterId
    participant: str
    epoch: str
    scope: Mapping[str, str]
    extensions: frozenset[str] = frozenset()
    offers: Mapping[str, Offer] = field(default_factory=dict)
    until: float = float("inf")

    @property
    def session(self) -> tuple[str, str]:
        """Participant and epoch, which commands are given to."""
        return self.participant, self.epoch


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a command in a run came from: the `server` field of its file and its records.

    Whoever finds it there can report what became of the command, also long after, also elsewhere.

    Args:
        server: The server and organisation, as `state.server_hex` names them.
        id: Of the command there; also its epoch, lease, fingerprint, participant.
        expires_at: RFC 3339.
    """

    server: str
    id: str
    epoch: str
    lease: str
    fingerprint: str
    participant: str
    expires_at: str

    def field(self) -> dict[str, str]:
        """Return it as it stands in a file or record."""
        return asdict(self)

    @classmethod
    def parse(cls, value: Mapping[str, Any], server: str) -> Origin | None:
        """Read the field; None when it is of another server, or nothing that can be reported."""
        try:
            texts = {name: value[name] for name in cls.__slots__}
            if texts["server"] != server or not all(isinstance(it, str) for it in texts.values()):
                return None
            check_id(texts["id"])
            check_id(texts["participant"])
        except (KeyError, TypeError, wire.WireError):
            return None
        return cls(**texts)


def origin_of(command: Mapping[str, Any], server: str) -> Origin | None:
    """Return where a claimed command comes from; None when the answer names no command."""
    request = command.get("request")
    request = request if isinstance(request, dict) else {}
    found = {
        "server": server,
        "id": command.get("id"),
        "epoch": request.get("epoch"),
        "lease": command.get("lease_id"),
        "fingerprint": command.get("fingerprint"),
        "participant": request.get("participant_id"),
        "expires_at": request.get("expires_at"),
    }
    return Origin.parse(found, server)


def capability_of(command: Mapping[str, Any]) -> str:
    """Return the server's id of what a command is for; "" when it does not say."""
    request = command.get("request")
    capability = request.get("capability") if isinstance(request, dict) else None
    return str(capability.get("id")) if isinstance(capability, dict) else ""


def server_time(command: Mapping[str, Any], voice: Voice, now: float) -> float:
    """Return the server's wall clock at the claim; ours, `now`, where it does not say.

    A server of ours says when the command changed last, which the claim did. Of others that is not
    known, and a command must rather end early than act too late.
    """
    changed_at = instant(command.get("updated_at")) if voice.extensions else None
    return now if changed_at is None else changed_at


def issuer(command: Mapping[str, Any], server: str) -> str:
    """Say who gave a command, as far as its server tells, and by which server it came."""
    name = command.get("submitted_by")
    if not isinstance(name, str) or not name:
        return server
    name = name[:MAX_ISSUER].encode(errors="replace").decode()
    return f"{name} by way of {server}"


def refusal(command: Mapping[str, Any], voice: Voice, now: float) -> str:
    """Say why a claimed command must not reach the run, as a failure code; "" when it may.

    Args:
        command: As delivered.
        voice: For whom it was claimed.
        now: Of `server_time`.
    """
    request = command.get("request")
    if not isinstance(request, dict):
        return "fingerprint_mismatch"
    try:
        fingerprint = wire.fingerprint(request)
    except wire.WireError:
        return "fingerprint_mismatch"
    if fingerprint != command.get("fingerprint"):
        return "fingerprint_mismatch"
    if (request.get("participant_id"), request.get("epoch")) != voice.session:
        return "epoch_superseded"
    offer = voice.offers.get(capability_of(command))
    if offer is None or request["capability"].get("revision") != offer.revision:
        return "handler_unavailable_or_changed"
    if request.get("safe_point") not in offer.safe_points:
        return "undeclared_safe_point"
    expires_at = instant(request.get("expires_at"))
    if expires_at is None or expires_at <= now:
        return "expired"
    origin = origin_of(command, "")
    given = request.get("input")
    if origin is None or not isinstance(given, dict):
        return "local_validation"
    made = inbox_command(request, offer, origin, voice.writer, issued_by="", now=now)
    is_name = parse_command(str(CommandName(made.revision, made.id))) is not None
    # Who gave it stands in it as well.
    is_small = len(encode(made)) + 4096 <= MAX_COMMAND_BYTES
    return "" if is_name and is_small else "local_validation"


def inbox_command(
    request: Mapping[str, Any],
    offer: Offer,
    origin: Origin,
    writer: WriterId,
    *,
    issued_by: str,
    now: float,
) -> Command:
    """Return the command as the run's inbox takes it; `refusal` must have found nothing.

    It is for the attempt of its epoch alone, and expires there when it expires on the server. Its
    order is the state revision that its sender saw, so that a local command is never held back.
    """
    revision = str(request.get("expected_state_revision"))
    is_number = revision.isascii() and revision.isdecimal() and len(revision) <= 18
    return Command(
        id=origin.id,
        name=offer.name,
        payload=request["input"],
        issued_by=issued_by,
        issued_at=now,
        reason=str(request.get("reason") or ""),
        revision=int(revision) if is_number else 0,
        for_attempt=writer.attempt,
        valid_s=max(0.0, (instant(request.get("expires_at")) or now) - now),
        server=origin.field(),
    )


def rejected(origin: Origin, code: str) -> dict[str, Any]:
    """Return the result of a command that never reached the run."""
    return _body(origin, "rejected", code)


def unknown(origin: Origin, code: str) -> dict[str, Any]:
    """Return the result of a command of which nobody can say whether it took effect."""
    return _body(origin, "outcome_unknown", code)


def result(outcome: Outcome, origin: Origin, *, extensions: frozenset[str]) -> dict[str, Any]:
    """Return the result to report for a final outcome that the run recorded.

    Args:
        outcome: Final.
        origin: With the lease under which to report.
        extensions: What the server understands beyond the API.
    """
    if outcome.state == "applied":
        body = _body(origin, "applied", "")
        body["result"] = _result(outcome)
        body["applied_at"] = [
            {"axis": str(axis), "value": str(value)} for axis, value in outcome.applied_at.items()
        ]
    elif outcome.state == "outcome_unknown":
        body = unknown(origin, outcome.code or outcome.state)
    else:
        body = rejected(origin, outcome.code or outcome.state)
    count, of = outcome.applied_on, outcome.of
    if body["outcome"] == "rejected":
        count = 0
    is_known = isinstance(count, int) and isinstance(of, int) and 0 <= count <= of and of >= 1
    if APPLIED_ON in extensions and is_known:
        body["applied_on"] = {"count": count, "of": of}
    return body


def instant(text: Any) -> float | None:
    """Return the seconds since the epoch of an RFC 3339 time, None when it is none."""
    try:
        moment = datetime.fromisoformat(text)
        return moment.timestamp() if moment.tzinfo is not None else None
    except (TypeError, ValueError, OverflowError):
        return None


def _body(origin: Origin, outcome: str, code: str) -> dict[str, Any]:
    return {
        "lease_id": origin.lease,
        "epoch": origin.epoch,
        "outcome": outcome,
        "result": None,
        "applied_at": [],
        "failure_code": code[:MAX_FAILURE_CODE],
    }


def _result(outcome: Outcome) -> Any:
    """Return what the handler returned, with the values before and after beside it.

    What has no wire form is left out: that a command was applied must be said in any case.
    """
    said = _wired(outcome.result)
    changes = {
        name: change for name, change in outcome.changes.items() if isinstance(change, Mapping)
    }
    if not changes:
        return said
    told = said if isinstance(said, dict) else {} if said is None else {"result": said}
    sides = {
        side: _wired({name: it[side] for name, it in changes.items() if side in it})
        for side in ("old", "new")
    }
    return {**told, **{side: values for side, values in sides.items() if values}}


def _wired(value: Any) -> Any:
    """Return a value as the wire holds it, None when it cannot."""
    try:
        tagged = _tagged(value)
        wire.encode({"result": tagged})
    except (wire.WireError, RecursionError, TypeError):
        return None
    return tagged


def _tagged(value: Any) -> Any:
    if isinstance(value, Mapping) and isinstance(value.get("$number"), str):
        value = untag(value)
    if isinstance(value, Mapping):
        return {str(name): _tagged(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_tagged(item) for item in value]
    return wire.number(value) if isinstance(value, int | float) else value
