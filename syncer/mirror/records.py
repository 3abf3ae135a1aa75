"""From the points of streams back to the records of a run directory. Pure; the way back of
`syncer.mapping`.

What our syncer sent comes out as it was recorded, but for its number: a server has no heartbeats,
definitions and values of controls among its points, so the numbers have holes. What another client
sent becomes metrics, texts and media all the same.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final  # Any: JSON values.

from launchhelm.store.line import special
from launchhelm.values.base import RENDERERS
from syncer.naming import CONSOLE, CONTROLS, EVENTS, NAME_LABEL
from syncer.runindex import labels_of
from syncer.server.held import Place, Point

_WHOLE: Final = re.compile(r"-?(0|[1-9][0-9]{0,18})", re.ASCII)
_NONFINITE: Final = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_CONSOLE_AXES: Final = ("line", "stream")


@dataclass(frozen=True, slots=True)
class Stream:
    """One stream as its document describes it.

    Args:
        series: Its number in the server.
        participant: Whose it is.
    """

    series: int
    participant: str
    name: str
    type: str
    renderer: str
    unit: str

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Stream:
        """Read a document, whose spec may hold anything."""
        spec = document["spec"]
        labels = labels_of(document)
        return cls(
            series=int(document["place"]),
            participant=str(spec.get("participant_id", "")),
            name=str(labels.get(NAME_LABEL) or spec.get("name") or ""),
            type=str(_object(spec.get("value_schema")).get("type", "")),
            renderer=str(_object(spec.get("presentation")).get("renderer", "")),
            unit=str(spec.get("unit") or ""),
        )

    @property
    def holds_records(self) -> bool:
        """Whether each point is a record of its own, and not a value of one."""
        return self.type == "object" or self.name == CONSOLE


@dataclass(frozen=True, slots=True)
class Made:
    """A record to be written.

    Args:
        place: Of its points, by which records are ordered.
    """

    place: Place
    kind: str
    at: float
    step: int | None
    axes: dict[str, str]
    body: dict[str, Any]


def value_of(value: Any) -> Any:
    """Return a metric value as a run directory has it: exact, NaN and infinities as floats.

    None for what is no metric value.
    """
    if isinstance(value, bool | int | float | str):
        return value
    if not isinstance(value, dict):
        return None
    text = str(value.get("value", ""))
    if value.get("$number") == "nonfinite":
        return _NONFINITE.get(text)
    is_whole = value.get("$number") == "integer" and re.fullmatch(r"-?[0-9]{1,4000}", text)
    return int(text) if is_whole else None


def plain_value(value: Any) -> Any:
    """Return JSON of a document with its tagged numbers as a run directory writes them."""
    if isinstance(value, dict) and set(value) == {"$number", "value"}:
        known = value_of(value)
        if known is not None:
            return special(known) if isinstance(known, float) else known
    if isinstance(value, dict):
        return {name: plain_value(item) for name, item in value.items()}
    return [plain_value(item) for item in value] if isinstance(value, list) else value


def made(stream: Stream, point: Point, digest_of: Callable[[str], str]) -> Made | None:
    """Return the record of one point; a metric's has that one value. None for what has no place.

    Args:
        digest_of: Returns the digest of an artifact by the server's id, "" for none.
    """
    step, axes = _place(point.coordinates)
    if stream.type == "number" and type(point.value) in (float, int):
        return Made(point.place, "m", point.at, step, axes, {stream.name: point.value})
    kind, body = "m", dict[str, Any]()
    if stream.name == CONSOLE and stream.type == "string":
        numbers = {axis: _integer(axes.pop(axis, "0")) or 0 for axis in _CONSOLE_AXES}
        kind, body = "con", {"text": str(point.value), **numbers}
    elif stream.name in (CONTROLS, EVENTS) and stream.renderer == "text":
        kind, body = _words(_object(point.value).get("text"))
    elif stream.type == "object":
        if stream.renderer not in RENDERERS or not isinstance(point.value, dict):
            return None
        value = _with_digests(point.value, digest_of)
        kind, body = "rich", {"name": stream.name, "renderer": stream.renderer, "value": value}
    else:
        value = value_of(point.value)
        if value is None:
            return None
        body = {stream.name: value}
    return Made(point.place, kind, point.at, step, axes, body) if kind else None


def joined(values: list[Made]) -> list[Made]:
    """Put the values of one record together again; records come out in order."""
    found: list[Made] = []
    for each in sorted(values, key=lambda made: made.place):
        last = found[-1] if found else None
        if (
            last is not None
            and last.kind == each.kind == "m"
            and (last.place, last.step, last.axes) == (each.place, each.step, each.axes)
            and last.body.keys().isdisjoint(each.body)
        ):
            last.body.update(each.body)
        else:
            found.append(each)
    return found


def _place(coordinates: list[tuple[str, str]]) -> tuple[int | None, dict[str, str]]:
    step: int | None = None
    axes: dict[str, str] = {}
    for axis, text in coordinates:
        number = _integer(text) if axis == "step" and step is None else None
        if number is not None:
            step = number
        elif axis != "record":
            axes[axis] = text
    return step, axes


def _words(text: Any) -> tuple[str, dict[str, Any]]:
    """Return the record that stands below the sentence; of others' texts there is none."""
    try:
        body = json.loads(str(text).rpartition("\n")[2])
    except ValueError:
        return "", {}
    if not isinstance(body, dict):
        return "", {}
    if isinstance(body.get("cmd"), str):
        return ("oc" if "state" in body else "effect"), body
    if "type" in body:
        return "ev", body
    if "first" in body and "last" in body:
        return "gap", body
    return ("close", body) if "state" in body else ("", {})


def _with_digests(value: Any, digest_of: Callable[[str], str]) -> Any:
    """Name each artifact of a value by its digest, too, under which its bytes are found."""
    if isinstance(value, list):
        return [_with_digests(item, digest_of) for item in value]
    if not isinstance(value, dict):
        return value
    copied = {name: _with_digests(item, digest_of) for name, item in value.items()}
    artifact = copied.get("artifact")
    if isinstance(artifact, dict) and isinstance(artifact.get("id"), str):
        digest = digest_of(artifact["id"])
        if digest:
            copied["artifact"] = {**artifact, "sha256": digest}
    return copied


def _integer(text: str) -> int | None:
    return int(text) if _WHOLE.fullmatch(text) else None


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
