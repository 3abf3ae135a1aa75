"""From a record of a run directory to points of streams. Pure; `samples` is called for each record.

A value arrives exactly as it was written. A point's sequence is its record's number, which is
unique within its stream, because a record holds a name once: the same records always make the
same points. docs/v1-mapping.md tells the whole story.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from launchhelm import _wording
from launchhelm.records import FINAL_STATES, Outcome, Record, WriterId
from launchhelm.values.base import RENDERERS
from launchhelm.views.fold import whole_body
from syncer.api.wire import (
    MAX_POINT_BYTES,
    MAX_SAFE_INTEGER,
    MAX_TEXT,
    WireError,
    coordinate,
    frame,
    number,
    point,
    string,
    timestamp,
)
from syncer.naming import CONSOLE, CONTROLS, EVENTS, StreamKey

Place = tuple[tuple[str, str], ...]
"""The coordinates of a point: axis and decimal text."""

_MAX_AT: Final = 9_183_110_399.0
"""End of the year 2260, up to which points are read back; wilder clocks are moved into range."""

_SILENT_EVENTS: Final = ("safe_point",)
_KEYS_PER_WRITER: Final = 100_000
_LAYOUTS_PER_WRITER: Final = 256
_NUMBERS: Final = frozenset((float, int))
_TYPES: Final = {float: "number", int: "number", bool: "boolean", str: "string"}


class Sample(NamedTuple):
    """One point, encoded.

    Args:
        key: Its stream.
        seq: Number of its record, and its sequence in the stream.
        data: As it stands in a batch.
    """

    key: StreamKey
    seq: int
    data: bytes


class Refused(NamedTuple):
    """A value that no server can be given, whatever is tried.

    Args:
        key: The stream that it would have belonged to; without axes where those are at fault.
        seq: Number of its record.
        why: For people.
        size: Bytes of the point, 0 where it could not be made.
    """

    key: StreamKey
    seq: int
    why: str
    size: int


def samples(record: Record, run_directory: Path | None = None) -> list[Sample | Refused]:
    """Return the points of one record, in the order of its values; most other kinds have none.

    Args:
        record: As a reader gives it.
        run_directory: Where bodies stand that were too large for a line; without it they are taken
            as they are.
    """
    kind = record.kind
    if kind == "m" or kind == "sys":
        return _values(record)
    if kind not in _OTHERS:
        return []
    body = record.body if run_directory is None else whole_body(run_directory, record.body)
    return _OTHERS[kind](record, body)


# Metrics ------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Layout:
    """The streams of records that name the same numbers; one object for all of them."""

    keys: tuple[StreamKey, ...]


def numbers(record: Record) -> tuple[Layout, list[bytes]] | None:
    """Return the points of a record of plain finite numbers; None for any other.

    They are the points that `samples` returns, for less: nearly every point goes this way.
    """
    body = record.body
    if not body or not _NUMBERS.issuperset(map(type, body.values())):
        return None
    try:
        place = _place(record, record.axes)
        before, after = frame(_time(record), place, record.seq)
        layout = _keys(record.writer, tuple(axis for axis, _ in place)).layout(tuple(body))
    except WireError:
        return None
    points = [
        before + repr(value).encode() + after
        for value in body.values()
        if -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER
    ]
    return (layout, points) if len(points) == len(body) else None


class _Keys:
    """The streams of one writer at one list of axes, made once each."""

    def __init__(self, writer: WriterId, axes: tuple[str, ...]) -> None:
        self.numbers: dict[str, StreamKey] = {}
        self._layouts: dict[tuple[str, ...], Layout] = {}
        self._others: dict[tuple[str, str, str], StreamKey] = {}
        self._writer = writer
        self._axes = axes

    def layout(self, names: tuple[str, ...]) -> Layout:
        """Return the number streams of some names together; WireError: one is no name."""
        found = self._layouts.get(names)
        if found is None:
            if len(self._layouts) >= _LAYOUTS_PER_WRITER:
                self._layouts.clear()
            keys = tuple(self.numbers.get(name) or self.number(name) for name in names)
            found = self._layouts[names] = Layout(keys)
        return found

    def number(self, name: str) -> StreamKey:
        """Return the number stream of a name that `numbers` does not have; WireError: no name."""
        if len(self.numbers) >= _KEYS_PER_WRITER:
            self.numbers.clear()
        key = self.numbers[name] = StreamKey(self._writer, _checked(name), "number", self._axes)
        return key

    def other(self, name: str, type_: str, renderer: str = "") -> StreamKey:
        """Return another stream of a name; WireError: it is no name."""
        key = self._others.get((name, type_, renderer))
        if key is None:
            if len(self._others) >= _KEYS_PER_WRITER:
                self._others.clear()
            key = StreamKey(self._writer, _checked(name), type_, self._axes, renderer)
            self._others[name, type_, renderer] = key
        return key


def _checked(name: str) -> str:
    string(name)
    if not name:
        raise WireError("A metric has an empty name.", reason="empty_name")
    return name


@lru_cache(maxsize=4096)
def _keys(writer: WriterId, axes: tuple[str, ...]) -> _Keys:
    return _Keys(writer, axes)


def _values(record: Record) -> list[Sample | Refused]:
    seq = record.seq
    at = _time(record)
    try:
        place = _place(record, record.axes)
        before, after = frame(at, place, seq)
    except WireError as error:
        return [
            _refused(record, name, _TYPES.get(type(value), "string"), error)
            for name, value in record.body.items()
        ]
    axes = tuple(axis for axis, _ in place)
    keys = _keys(record.writer, axes)
    known = keys.numbers
    made: list[Sample | Refused] = []
    for name, value in record.body.items():
        kind = type(value)
        try:
            if kind is float or kind is int:
                key = known.get(name) or keys.number(name)
                if -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER:
                    made.append(Sample(key, seq, b"%b%a%b" % (before, value, after)))
                    continue
                value = number(value)
            elif kind is bool:
                key = keys.other(name, "boolean")
            elif kind is str:
                key = keys.other(name, "string")
            else:
                raise _odd(value)
            made.append(Sample(key, seq, point(at, place, value, seq)))
        except WireError as error:
            made.append(_refused(record, name, _TYPES.get(kind, "string"), error, axes))
    return made


def _single(
    record: Record, name: str, type_: str, renderer: str, axes: Mapping[str, Any], value: Any
) -> list[Sample | Refused]:
    """Return the one point of a record of another kind."""
    names: tuple[str, ...] = ()
    try:
        place = _place(record, axes)
        names = tuple(axis for axis, _ in place)
        key = _keys(record.writer, names).other(name, type_, renderer)
        if value is None:
            raise _odd(value)
        data = point(_time(record), place, value, record.seq)
    except WireError as error:
        return [_refused(record, name, type_, error, names, renderer)]
    return [Sample(key, record.seq, data)]


def _refused(
    record: Record,
    name: str,
    type_: str,
    error: WireError,
    axes: tuple[str, ...] = (),
    renderer: str = "",
) -> Refused:
    # The name is what people are told; a lone surrogate in it could not even be printed.
    shown = name.encode("utf-8", "replace").decode()
    key = StreamKey(record.writer, shown, type_, axes, renderer)
    return Refused(key, record.seq, str(error), error.size)


def _odd(value: Any) -> WireError:  # Any: whatever stood in the line.
    """Say why something is no metric value: a text in a file of its own, or newer than us."""
    if value is None:
        return WireError("The artifact that it names was set aside.", reason="artifact")
    size = value.get("size") if isinstance(value, dict) and "$file" in value else None
    if not isinstance(size, int):
        return WireError(f"A {type(value).__name__} is not a value of a metric.", reason="type")
    why = f"The point has {size:,} bytes; {MAX_POINT_BYTES:,} at most."
    return WireError(why, reason="size_limit", size=size)


def _place(record: Record, axes: Mapping[str, Any]) -> Place:
    """Return the coordinates: the step first, the record's number where it has none.

    Raises:
        WireError: What stood in the line is no coordinate.
    """
    place = [(axis, coordinate(value)) for axis, value in axes.items() if axis != "step"]
    if record.step is not None:
        return (("step", coordinate(record.step)), *place)
    return tuple(place) if "record" in axes else (("record", str(record.seq)), *place)


def _time(record: Record) -> str:
    # A time is for people and orders nothing, so a wild clock must not cost a point. Readers of the
    # API take the newest point by time alone; the number keeps records of a millisecond apart.
    at = record.at
    ms = round(min(max(at, 0.0), _MAX_AT) * 1e3) if at == at else 0
    return timestamp((ms * 1000 + record.seq % 1000) / 1e6)


# Console and rich values --------------------------------------------------------------------------


def _console(record: Record, body: Mapping[str, Any]) -> list[Sample | Refused]:
    axes = {"line": body.get("line", 0), "stream": body.get("stream", 0)}
    return _single(record, CONSOLE, "string", "", axes, str(body.get("text", "")))


def _rich(record: Record, body: Mapping[str, Any]) -> list[Sample | Refused]:
    name, renderer, value = body.get("name"), body.get("renderer"), body.get("value")
    if not isinstance(name, str):
        return []
    if renderer not in RENDERERS or not isinstance(value, dict | None):
        error = WireError(f"A rich value of kind {renderer!r} is not sent.", reason="renderer")
        return [_refused(record, name, "object", error)]
    return _single(record, name, "object", renderer, record.axes, value)


# Words: controls and events -----------------------------------------------------------------------


class _Command(NamedTuple):
    """What the wording of an outcome needs."""

    outcome: Outcome | None
    first_step: int | None


def _outcome(record: Record, body: Mapping[str, Any]) -> list[Sample | Refused]:
    try:
        outcome = Outcome.parse(body)
    except TypeError:
        return _words(record, CONTROLS, "A command", body)
    who = f" by {_wording.plain(outcome.issued_by)}" if outcome.issued_by else ""
    if outcome.state == "claimed":
        payload = _wording.payload_text(outcome.payload)
        said = f"{outcome.name} {payload}".strip() + f"{who}: taken in"
    elif outcome.state in FINAL_STATES:
        sentence = _wording.outcome_text(_Command(outcome, outcome.first_step))
        said = f"{outcome.name or 'A command'}{who}: {sentence}"
    else:
        return []
    return _words(record, CONTROLS, said, body)


def _effect(record: Record, body: Mapping[str, Any]) -> list[Sample | Refused]:
    values = body.get("values")
    shown = _wording.named_text(values) if isinstance(values, Mapping) else ""
    return _words(record, CONTROLS, f"In effect after the next step: {shown}", body)


def _event(record: Record, body: Mapping[str, Any]) -> list[Sample | Refused]:
    what = str(body.get("type", "event"))
    if what in _SILENT_EVENTS:
        return []
    said = body.get("text") or body.get("error") or ""
    sentence = _wording.plain(f"{what}: {said}" if said else what)
    return _words(record, EVENTS, sentence, body)


def _gap(record: Record, body: Mapping[str, Any]) -> list[Sample | Refused]:
    first, last, why = body.get("first"), body.get("last"), body.get("why", "")
    return _words(record, EVENTS, f"records {first} to {last} were given up: {why}", body)


def _close(record: Record, body: Mapping[str, Any]) -> list[Sample | Refused]:
    reason = body.get("reason")
    said = f"ended: {body.get('state', '')}" + (f", {reason}" if reason else "")
    return _words(record, EVENTS, _wording.plain(said), body)


def _words(
    record: Record, name: str, sentence: str, body: Mapping[str, Any]
) -> list[Sample | Refused]:
    value = {"text": _with_json(sentence, body)}
    return _single(record, name, "object", "text", {}, value)


def _with_json(sentence: str, body: Mapping[str, Any]) -> str:
    """Put the record's body below the sentence; its longest fields give way where it is long."""
    fields = {field: _json(value) for field, value in body.items()}
    left_out: list[str] = []
    while True:
        text = f"{sentence}\n{_json_object(fields, left_out)}"
        if len(text) <= MAX_TEXT or not fields:
            return text[:MAX_TEXT]
        longest = max(fields, key=lambda field: len(fields[field]))
        left_out.append(longest)
        del fields[longest]


def _json_object(fields: Mapping[str, str], left_out: Iterable[str]) -> str:
    shown = [f"{_json(field)}:{text}" for field, text in fields.items()]
    names = list(left_out)
    return "{" + ",".join([*shown, f'"left_out":{_json(names)}'] if names else shown) + "}"


def _json(value: Any) -> str:  # Any: JSON from a line of the journal.
    # ASCII, so that no character of a body can make the point unsendable.
    return json.dumps(value, separators=(",", ":"))


_OTHERS: Final = {
    "con": _console,
    "rich": _rich,
    "oc": _outcome,
    "effect": _effect,
    "ev": _event,
    "gap": _gap,
    "close": _close,
}
