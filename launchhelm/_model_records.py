"""Records of the wire that scripts import by name from `launchhelm.models`, made when asked for.

Each is a frozen dataclass with `wire()`, which leaves empty fields out, and `parse()`. Fields in
brackets may be left out and are None then.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final  # Any: JSON, and classes that are made here.

FIELDS: Final[Mapping[str, str]] = {
    "Coordinate": "axis value [unit]",
    "Provenance": "inputs coordinates labels [producer_id attempt_id code_revision method"
    " method_version context_digest]",
    "Project": "name [labels description]",
    "Run": "name state [configuration labels parameters parent]",
    "Participant": "name role [labels liveness integration_id integration_revision]",
    "Stream": "name participant_id value_schema axes [labels unit presentation]",
    "StreamPresentation": "renderer",
    "Artifact": "name media_type size sha256 state purpose [provenance]",
    "SemanticBounds": "[min max]",
    "SemanticField": "name type [optional]",
    "SemanticType": "kind [scalar renderer bounds fields]",
    "SemanticSchema": "revision root",
    "DocumentInput": "kind scope spec",
    "CommandRequest": "scope capability participant_id epoch expected_state_revision targets input"
    " safe_point expires_at [reason]",
    "TelemetryPoint": "observed_at coordinates value [sequence]",
    "TelemetryBatch": "protocol batch_id stream_id stream_revision epoch participant_id points",
    "SamplesSelect": "mode [limit values window]",
    "SamplesRequest": "stream_id axis select",
    "SamplePoint": "x observed_at epoch sequence [value]",
    "SampleMedia": "state [url expires_at]",
    "SamplesResult": "stream_id renderer points complete media",
}


def record(name: str) -> type[Any]:
    """Make the class of one of FIELDS."""
    needed, _, optional = FIELDS[name].partition("[")
    fields: list[Any] = [(field, Any) for field in needed.split()]
    fields += [
        (field, Any, dataclasses.field(default=None)) for field in optional.rstrip("]").split()
    ]
    methods = {"wire": _wire, "parse": classmethod(_parse), "__doc__": f"{name}: {FIELDS[name]}."}
    made = dataclasses.make_dataclass(name, fields, frozen=True, namespace=methods)
    made.__module__ = "launchhelm.models"
    return made


def _wire(self: Any) -> dict[str, Any]:
    values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
    return {name: _plain(value) for name, value in values.items() if value is not None}


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.wire() if hasattr(value, "wire") else value


def _parse(cls: Any, value: Mapping[str, Any]) -> Any:
    return cls(
        **{
            field.name: value[field.name]
            for field in dataclasses.fields(cls)
            if field.name in value
        }
    )
