"""What a submitted command must look like, and which capability and session it must fit."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, Final

from launchhelm.controls import check
from syncer.server.caller import canonical_id
from syncer.server.errors import conflict, not_found, validation

MAX_REASON: Final = 1024
MAX_TARGETS: Final = 1024

JSONObject = dict[str, Any]  # Any: JSON of the API.

_TEXTS: Final = ("participant_id", "epoch", "expected_state_revision", "safe_point", "expires_at")


def read(body: Mapping[str, Any]) -> JSONObject:
    """Return the ten fields of a request as it will be delivered, but for the revision.

    Unknown fields are left out.

    Raises:
        ServerError: 400: a field is missing or of the wrong type.
    """
    for name in _TEXTS:
        if not isinstance(body.get(name), str) or not body[name]:
            raise validation(f"A command needs {name}, a text that is not empty.")
    scope, capability = _object(body, "scope"), _object(body, "capability")
    if any(not isinstance(value, str) for value in (*scope.values(), *capability.values())):
        raise validation("The members of scope and capability are texts.")
    if not all(scope.get(name) for name in ("organization_id", "project_id", "run_id")):
        raise validation("The scope of a command names organisation, project and run.")
    if not capability.get("id"):
        raise validation("The capability needs its id.")
    targets = body.get("targets", [])
    if not isinstance(targets, list) or not all(isinstance(target, dict) for target in targets):
        raise validation("targets is a list of references.")
    if len(targets) > MAX_TARGETS:
        raise validation(f"A command has at most {MAX_TARGETS:,} targets.")
    reason = body.get("reason", "")
    if not isinstance(reason, str) or len(reason) > MAX_REASON:
        raise validation(f"reason is a text of at most {MAX_REASON:,} characters.")
    if "input" not in body:
        raise validation("A command needs input, the value for the capability's schema.")
    return {
        "scope": {name: scope[name] for name in ("organization_id", "project_id", "run_id")},
        "capability": {
            "id": capability["id"],
            "kind": capability.get("kind") or "capability",
            **({"revision": capability["revision"]} if capability.get("revision") else {}),
        },
        "participant_id": body["participant_id"],
        "epoch": body["epoch"],
        "expected_state_revision": body["expected_state_revision"],
        "targets": targets,
        "input": body["input"],
        "safe_point": body["safe_point"],
        "expires_at": body["expires_at"],
        "reason": reason,
    }


def bind(request: JSONObject, capability: Mapping[str, Any] | None) -> JSONObject:
    """Check a request against the capability's document and fill in the revision.

    Raises:
        ServerError: 404 without such a capability, 400 when the request does not fit it, 409 for
            another revision.
    """
    if capability is None or capability["kind"] != "capability":
        raise not_found("There is no such capability.")
    spec, scope = capability["spec"], capability["scope"]
    if any(
        canonical_id(scope.get(name, "")) != canonical_id(request["scope"][name])
        for name in ("project_id", "run_id")
    ):
        raise validation("The capability belongs to another run.")
    owner = spec.get("participant_id")
    if not isinstance(owner, str) or canonical_id(owner) != canonical_id(request["participant_id"]):
        raise validation("The capability belongs to another participant.")
    registered = str(capability["revision"])
    revision = request["capability"].get("revision", registered)
    if revision != registered:
        raise conflict(f"The capability has revision {registered}, not {revision}.")
    if request["safe_point"] not in _names(spec.get("safe_points")):
        raise validation(f"The capability is not offered at {request['safe_point']!r}.")
    problem = _misfit(spec.get("input_schema"), request["input"])
    if problem:
        raise validation(problem)
    return {**request, "capability": {**request["capability"], "revision": revision}}


def fit(
    request: JSONObject, session: Mapping[str, Any] | None, expires_at: float, now: float
) -> None:
    """Check a request against the participant's session and the time.

    Raises:
        ServerError: 409: no live session, another epoch, or another state than expected; 400: it
            has expired.
    """
    if session is None:
        raise conflict("The participant has no session.")
    if str(session["epoch"]) != request["epoch"]:
        raise conflict(f"The live epoch is {session['epoch']}, not {request['epoch']}.")
    expected = request["expected_state_revision"]
    if str(session["state_revision"]) != expected:
        raise conflict(f"The state revision is {session['state_revision']}, not {expected}.")
    if expires_at <= now:
        raise validation("expires_at is in the past.")


def instant(text: str) -> float:
    """Return the seconds since the epoch of an RFC 3339 time.

    Raises:
        ServerError: 400: it is none.
    """
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            raise ValueError
        return moment.timestamp()
    except (ValueError, OverflowError):
        raise validation(f"{text[:40]!r} is not a time such as 2027-01-01T00:00:00Z.") from None


def _misfit(schema: Any, value: Any) -> str:
    root = schema.get("root") if isinstance(schema, dict) else None
    if isinstance(root, dict) and root.get("kind") == "opaque":
        return "The capability takes anything, so it takes no command: its schema must say what."
    return check(schema if isinstance(schema, dict) else {}, value)


def _names(value: Any) -> Collection[str]:
    return value if isinstance(value, list) else ()


def _object(body: Mapping[str, Any], name: str) -> JSONObject:
    value = body.get(name)
    if not isinstance(value, dict):
        raise validation(f"A command needs {name}, an object.")
    return value
