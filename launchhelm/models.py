"""Small records that scripts and handlers meet: documents, references, capabilities.

Each has the JSON form of the LaunchHelm API: `wire()` leaves empty fields out, `parse()` reads it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

NIL: Final = "00000000-0000-0000-0000-000000000000"
"""The organisation of a run that no server knows."""


@dataclass(frozen=True)
class Scope:
    """Where a document lives: organisation, project, run."""

    organization_id: str
    project_id: str = ""
    run_id: str = ""

    def wire(self) -> dict[str, Any]:
        """Return the JSON form."""
        return _without_empty(vars(self))

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> Scope:
        """Read the JSON form."""
        return cls(
            str(value["organization_id"]),
            str(value.get("project_id", "")),
            str(value.get("run_id", "")),
        )


@dataclass(frozen=True)
class Reference:
    """A pointer to a document, of one revision or of any."""

    id: str
    kind: str
    revision: str = ""

    def wire(self) -> dict[str, Any]:
        """Return the JSON form."""
        return _without_empty(vars(self))

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> Reference:
        """Read the JSON form."""
        return cls(str(value["id"]), str(value["kind"]), str(value.get("revision", "")))


@dataclass(frozen=True)
class Document:
    """A stored thing: its identity, its scope and its content."""

    id: str
    kind: str
    scope: Scope
    revision: str
    spec: Mapping[str, Any]  # Any: JSON.
    created_at: str
    updated_at: str

    def ref(self) -> Reference:
        """Return a pointer to this revision."""
        return Reference(self.id, self.kind, self.revision)

    def wire(self) -> dict[str, Any]:
        """Return the JSON form."""
        return _without_empty({**vars(self), "scope": self.scope.wire(), "spec": dict(self.spec)})

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> Document:
        """Read the JSON form."""
        return cls(
            id=str(value["id"]),
            kind=str(value["kind"]),
            scope=Scope.parse(value["scope"]),
            revision=str(value.get("revision", "")),
            spec=dict(value.get("spec") or {}),
            created_at=str(value.get("created_at", "")),
            updated_at=str(value.get("updated_at", "")),
        )


def opaque_schema() -> dict[str, Any]:
    """Return the schema that accepts anything."""
    return {"revision": "1", "root": {"kind": "opaque", "renderer": "generic"}}


def number_field_schema(name: str) -> dict[str, Any]:
    """Return the schema of an object with one number of at least 0."""
    number = {
        "kind": "scalar",
        "scalar": "number",
        "renderer": "numeric",
        "bounds": {"min": "0"},
    }
    fields = [{"name": name, "type": number}]
    return {"revision": "1", "root": {"kind": "record", "renderer": "form", "fields": fields}}


def timestamp(at: float | None = None) -> str:
    """Return UTC now, or the given seconds since the epoch, as RFC 3339 with microseconds and Z."""
    at = time.time() if at is None else at
    microseconds = round(at * 1e6)
    seconds, rest = divmod(microseconds, 1_000_000)
    fraction = f".{rest:06d}" if rest else ""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + fraction + "Z"


@dataclass(frozen=True)
class Capability:
    """What a run offers to be commanded: a name, the schema of its input, where it may act."""

    name: str
    provider: str
    version: str
    input_schema: Mapping[str, Any]
    output_schema: Mapping[str, Any]
    safe_points: tuple[str, ...]
    effect: str = "mutate"
    execution_mode: str = "safe_point"
    requires_approval: bool = False
    conflict_domain: str = "runtime"
    recovery: str = "journal"
    presentation: Mapping[str, Any] = field(default_factory=opaque_schema)
    applicability: Mapping[str, Any] = field(default_factory=dict)

    def wire(self, participant_id: str) -> dict[str, Any]:
        """Return the JSON form, as offered by one participant."""
        return {
            **vars(self),
            "safe_points": list(self.safe_points),
            "participant_id": participant_id,
        }


@dataclass(frozen=True)
class CommandContext:
    """What a handler may know of the command it runs."""

    command_id: str
    targets: tuple[Reference, ...] = ()
    epoch: str = "1"
    coordinates: tuple[Mapping[str, str], ...] = ()


def _without_empty(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in ("", None)}


def __getattr__(name: str) -> Any:  # Any: a class that is made here.
    """Make a wire record on first use; an absent one says so."""
    from launchhelm import _model_records as records

    if name in records.FIELDS:
        made = globals()[name] = records.record(name)
        return made
    raise AttributeError(
        f"launchhelm.models has no {name!r}: only records of runs, streams and samples are here. "
        "Use a mapping in the form of the API instead."
    )
