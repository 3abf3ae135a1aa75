"""The documents that stand for a run on a server: run, participant, stream. Pure but for Facts.

A document is ours by a label with our id. Of a run's document we own what the run says about
itself. A person may change that on the server: a field is written again only when the run itself
has changed it since we last wrote, which a label of digests tells.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final  # Any: the JSON of documents.

from launchhelm.records import WriterId
from syncer import labels
from syncer.api.wire import MAX_HOST, MAX_LABEL, MAX_UNIT, WireError, encode, number
from syncer.facts import Facts
from syncer.naming import (
    NAME_LABEL,
    PROJECT_LABEL,
    RUN_LABEL,
    STREAM_LABEL,
    WRITER_LABEL,
    StreamKey,
    shortened,
)

Spec = dict[str, Any]

WROTE_LABEL: Final = "launchhelm.offline.wrote"
"""Digests of the fields as we last wrote them."""

WORLD_SIZE_LABEL: Final = "launchhelm.offline.world_size"
"""Processes of the first attempt; those of later ones stand in their start events."""

PARAMETERS_LABEL: Final = "launchhelm.offline.parameters_left_out"
"""Names of config entries that no document can hold."""

MAX_PARAMETERS_BYTES: Final = 768 << 10
MAX_PARAMETERS_VALUES: Final = 45_000
_OPAQUE: Final = {"revision": "1", "root": {"kind": "opaque", "renderer": "generic"}}
_ROLE: Final = "logger"


def project_spec(name: str, project_id: str) -> Spec:
    """Return the document of a project that we create."""
    return {"name": shortened(name), "labels": {PROJECT_LABEL: project_id}}


def run_spec(facts: Facts) -> Spec:
    """Return the document of a run that is not on the server yet."""
    manifest = facts.manifest
    fields = _fields(facts)
    parameters, left_out = _parameters(manifest.config)
    extra = {name: str(manifest.extra.get(name, "")) for name in ("python", "argv", "git")}
    said = {
        **labels.config_labels(manifest.config),
        **{name: text for name, text in fields.items() if name.startswith(labels.RESERVED)},
        "launchhelm.python": extra["python"][:MAX_HOST],
        "launchhelm.argv": extra["argv"][:MAX_LABEL],
        "launchhelm.host": manifest.host[:MAX_HOST],
        "launchhelm.git": extra["git"].lower()[:MAX_HOST],
        WORLD_SIZE_LABEL: str(manifest.extra.get("world_size") or "")[:MAX_LABEL],
        PARAMETERS_LABEL: left_out,
        RUN_LABEL: facts.run_id,
        NAME_LABEL: _whole_name(facts.name),
        WROTE_LABEL: _digests(fields),
    }
    spec: Spec = {
        "name": fields["name"],
        "state": fields["state"],
        "configuration": _OPAQUE,
        "labels": {name: text for name, text in said.items() if text},
    }
    if manifest.config:
        spec["parameters"] = parameters
    return spec


def updated_run(spec: Mapping[str, Any], facts: Facts) -> Spec | None:
    """Return what a run's document should say now, None when it need not change.

    Args:
        spec: As it stands on the server, whoever changed it last.
        facts: What the run says.
    """
    if not facts.has_coordinator:
        return None  # These files know only some ranks; whoever has the others speaks for the run.
    present = dict(spec.get("labels") or {})
    wrote = _parsed(present.get(WROTE_LABEL, ""))
    fields = _fields(facts)
    changed = {
        name: text
        for name, text in fields.items()
        if wrote.get(name) != _digest(text) and not (name == "state" and text == "open")
    }
    if not changed:
        return None
    new = {**spec, **{name: text for name, text in changed.items() if name in ("name", "state")}}
    said = {name: text for name, text in changed.items() if name.startswith(labels.RESERVED)}
    if "name" in changed:
        said[NAME_LABEL] = _whole_name(facts.name)
    said[WROTE_LABEL] = _digests(changed, wrote)
    present.update(said)
    # An empty text stands for no label; labels of others may be empty.
    new["labels"] = {name: text for name, text in present.items() if text or name not in said}
    return new


def participant_spec(writer: WriterId, facts: Facts) -> Spec:
    """Return the document of one process, as its own files describe it."""
    opening = facts.opening(writer)
    described = opening.get("participant")
    described = described if isinstance(described, Mapping) else {}
    own = described.get("labels")
    own = own if isinstance(own, Mapping) else {}
    name = str(described.get("name") or f"rank-{writer.rank}")
    said = {
        **{str(label): str(text)[:MAX_LABEL] for label, text in own.items()},
        NAME_LABEL: _whole_name(name),
        WRITER_LABEL: str(writer),
        "launchhelm.offline.attempt": str(writer.attempt),
        "launchhelm.offline.pid": str(opening.get("pid") or ""),
        "launchhelm.offline.host": str(opening.get("host") or "")[:MAX_HOST],
    }
    return {
        "name": shortened(name),
        "role": shortened(str(described.get("role") or _ROLE)),
        "labels": {label: text for label, text in said.items() if text},
    }


def stream_spec(key: StreamKey, participant_id: str, unit: str = "") -> Spec:
    """Return the document of one stream."""
    said = {STREAM_LABEL: key.label, NAME_LABEL: _whole_name(key.name)}
    spec: Spec = {
        "name": shortened(key.name),
        "participant_id": participant_id,
        "value_schema": {"type": key.type},
        "axes": list(key.axes),
        "labels": {label: text for label, text in said.items() if text},
    }
    if unit:
        spec["unit"] = unit[:MAX_UNIT]
    if key.renderer:
        spec["presentation"] = {"renderer": key.renderer}
    return spec


def _fields(facts: Facts) -> dict[str, str]:
    """Return what the run says about itself and may change: two fields, and labels.

    An empty text stands for no label.
    """
    summary, summary_left_out = labels.summary_label(facts.summary)
    reduction, reduction_left_out = labels.reduction_label(facts.reductions)
    said = labels.metadata_labels(group=facts.group, tags=facts.tags, notes=facts.notes)
    return {
        "name": shortened(facts.name),
        "state": facts.state,
        labels.GROUP: said.get(labels.GROUP, ""),
        labels.TAGS: said.get(labels.TAGS, ""),
        labels.NOTES: said.get(labels.NOTES, ""),
        labels.SUMMARY: summary,
        labels.SUMMARY_LEFT_OUT: _count(summary_left_out),
        labels.REDUCTION: reduction,
        labels.REDUCTION_LEFT_OUT: _count(reduction_left_out),
    }


def _count(count: int) -> str:
    return str(count) if count else ""


def _whole_name(name: str) -> str:
    """Return a name for the label beside its shortened form, "" when it is not shortened."""
    return name[:MAX_LABEL] if shortened(name) != name else ""


def _digests(fields: Mapping[str, str], before: Mapping[str, Any] | None = None) -> str:
    digests = {**(before or {}), **{name: _digest(text) for name, text in fields.items()}}
    kept = {name: digest for name, digest in digests.items() if digest}
    return json.dumps(kept, separators=(",", ":"))


def _digest(text: str) -> str | None:
    """Return what tells two texts apart; None for the empty one, which has no entry."""
    return sha256(text.encode("utf-8", "replace")).hexdigest()[:8] if text else None


def _parsed(text: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _parameters(config: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the config as a document can hold it, and the names of what it cannot."""
    kept: dict[str, Any] = {}
    left_out: list[str] = []
    size = values = 0
    for name, value in config.items():
        try:
            exact = _exact(value)
            # As deep as it will lie when several documents are created at once.
            grown = size + len(encode({name: exact}, depth=4))
        except (RecursionError, WireError):
            left_out.append(name)
            continue
        count = values + _values(exact)
        if grown > MAX_PARAMETERS_BYTES or count > MAX_PARAMETERS_VALUES:
            left_out.append(name)
            continue
        kept[name] = exact
        size, values = grown, count
    return kept, ", ".join(left_out)[:MAX_LABEL]


def _exact(value: Any) -> Any:
    """Return a value of the config with the numbers tagged that JSON readers would round."""
    if isinstance(value, Mapping):
        return {name: _exact(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_exact(item) for item in value]
    return number(value) if isinstance(value, int | float) else value


def _values(value: Any) -> int:
    if isinstance(value, Mapping):
        return 1 + sum(map(_values, value.values()))
    return 1 + sum(map(_values, value)) if isinstance(value, list) else 1
