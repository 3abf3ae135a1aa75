"""A run directory as the v1 API would show it: streams, pages of their points, samples.

A stream is what one process wrote under one name in one kind, as the syncer makes it on a server;
its id here is made of these, so it is always the same, and never one of a server's. Epoch is the
attempt, sequence the number of the record, and times are those that a synced point has.
"""

from __future__ import annotations

import functools
import heapq
import math
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, NamedTuple  # Any: JSON values.

from launchhelm.errors import NotFound
from launchhelm.records import NAME_PATTERN, WriterId
from launchhelm.store import layout
from launchhelm.values import tagged
from launchhelm.values.coordinates import is_decimal
from launchhelm.values.media import artifact_of, digest_of, items_of
from launchhelm.values.scalar import MAX_PLAIN_INTEGER
from launchhelm.views.points import Point, Selection
from launchhelm.views.rich import artifact_digest, rich_points, rich_records
from launchhelm.views.run import RunView, open_run
from launchhelm.views.series import kind_of

MODES: Final = ("latest", "at", "spread", "index")
MAX_SAMPLES: Final = 1000
DEFAULT_SAMPLES: Final = 100
MAX_PAGE: Final = 10_000

CONSOLE: Final = "console"
_CONSOLE_AXES: Final = ("line", "stream")
_RENDERERS: Final[Mapping[str, str]] = {"number": "numeric", "string": "text", "boolean": "check"}
_SLICE: Final = 500
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_AT: Final = 9_183_110_399.0  # As synced points: the end of the year 2260.


@dataclass(frozen=True)
class Stream:
    """What one process wrote under one name.

    Args:
        id: A UUID.
        type: number, string, boolean or object.
        renderer: Of rich values, else "".
        axes: `step`, then others.
    """

    id: str
    writer: WriterId
    name: str
    type: str
    renderer: str = ""
    axes: tuple[str, ...] = ("step",)
    unit: str = ""

    @property
    def spec(self) -> dict[str, Any]:
        """The document's content, but for who the participant is."""
        spec: dict[str, Any] = {
            "name": self.name,
            "value_schema": {"type": self.type},
            "axes": list(self.axes),
            "labels": {},
        }
        if self.unit:
            spec["unit"] = self.unit
        if self.renderer:
            spec["presentation"] = {"renderer": self.renderer}
        return spec


def streams(run: RunView | Path) -> list[Stream]:
    """Return the streams of a run, in order of attempt, rank and name.

    Raises:
        NotFound, StorageError: There is no run there, or it cannot be read.
    """
    view = _view(run)
    found: dict[str, Stream] = {}
    known: dict[str, dict[str, Any]] = {}
    for writer, kinds in view.kinds_by_writer().items():
        for name, kind in kinds.items():
            if kind != "object" and name not in known:
                known[name] = view.metric(name) or {}
            if kind != "object":
                axes, unit = known[name].get("axes", ("step",)), known[name].get("unit", "")
                if name == CONSOLE:
                    axes = ("step", *_CONSOLE_AXES)
                made = _stream(view, writer, name, kind, axes=tuple(axes), unit=unit)
                found[made.id] = made
    for body, record in rich_records(view):
        axes = ("step", *(axis for axis in record.axes if axis != "step"))
        made = _stream(view, record.writer, body["name"], "object", body["renderer"], axes)
        found.setdefault(made.id, made)
    return sorted(
        found.values(), key=lambda it: (it.writer.attempt, it.writer.rank, it.name, it.type)
    )


def query(
    run: RunView | Path,
    stream_id: str,
    *,
    start: str,
    end: str,
    limit: int = 1000,
    order: str = "",
    after_epoch: str = "",
    after_sequence: str = "",
) -> dict[str, Any]:
    """Return a page of a stream's points, as `GET streams/<id>/points` does.

    Args:
        start, end: RFC 3339, both inclusive.
        limit: 1 to 10,000.
        order: `asc`, which "" means, or `desc`.
        after_epoch, after_sequence: Of the last point of the page before, at the instant where
            this one starts; both or none.

    Returns:
        `{"items": [{"observed_at", "coordinates", "value", "epoch", "sequence"}], "limit",
        "complete"}`, in order of time, epoch and sequence.

    Raises:
        NotFound: The run has no such stream.
        ValueError: A bad argument.
    """
    if type(limit) is not int or not 1 <= limit <= MAX_PAGE:
        raise ValueError(f"limit is 1 to {MAX_PAGE:,}, got {limit!r}.")
    if order not in ("", "asc", "desc"):
        raise ValueError(f"order is asc or desc, got {order!r}.")
    if bool(after_epoch) != bool(after_sequence):
        raise ValueError("after_epoch and after_sequence come together.")
    first, last, is_back = _instant(start), _instant(end), order == "desc"
    edge = last if is_back else first
    after = (int(after_epoch), int(after_sequence)) if after_epoch else None

    def is_wanted(entry: _Entry) -> bool:
        if not first <= entry.time <= last:
            return False
        if after is None or entry.time != edge:
            return True
        return entry.place < after if is_back else entry.place > after

    view = _view(run)
    entries = filter(is_wanted, _entries(view, _found(view, stream_id)))
    choose = heapq.nlargest if is_back else heapq.nsmallest
    chosen = choose(limit + 1, entries, key=lambda entry: (entry.time, *entry.place))
    return {
        "items": [entry.item() for entry in chosen[:limit]],
        "limit": limit,
        "complete": len(chosen) <= limit,
    }


def read_samples(
    run: RunView | Path,
    stream_id: str,
    *,
    axis: Mapping[str, str] | str | None = None,
    select: Mapping[str, Any],
) -> dict[str, Any]:
    """Return samples of a stream along a coordinate, as `POST telemetry/samples` does.

    Args:
        axis: `{"kind": "coordinate", "name"}` or a name; default: step.
        select: `{"mode": "latest", "limit"}`, `{"mode": "at", "values"}`, `{"mode": "spread",
            "limit", "window": {"from", "to"}}`, or `{"mode": "index", "limit"}`, which leaves the
            values out.

    Returns:
        `{"stream_id", "renderer", "points": [{"x", "observed_at", "epoch", "sequence",
        "value"}], "complete", "media": {id: {"state", "url"}}}`. A medium that is here is `ready`,
        and its url is that of the local file.

    Raises:
        NotFound: The run has no such stream.
        ValueError: A bad axis or selection.
    """
    wanted = _Select.parse(select)
    name = _axis_name(axis)
    view = _view(run)
    stream = _found(view, stream_id)
    placed = (
        _Sample(Decimal(x), x, entry)
        for entry in _entries(view, stream)
        if (x := entry.places.get(name)) is not None
    )
    chosen, complete = wanted.choose(placed)
    points = [sample.point(with_value=wanted.mode != "index") for sample in chosen]
    return {
        "stream_id": stream.id,
        "renderer": stream.renderer or _RENDERERS[stream.type],
        "points": points,
        "complete": complete,
        "media": _media(view, [point["value"] for point in points if "value" in point]),
    }


class _Entry(NamedTuple):
    """One point of a stream, with its time in microseconds."""

    time: int
    place: tuple[int, int]
    places: dict[str, str]
    value: Any

    def item(self) -> dict[str, Any]:
        """Return it as an item of a page."""
        return {
            "observed_at": _moment(self.time),
            "coordinates": [{"axis": axis, "value": it} for axis, it in self.places.items()],
            "value": _wire(self.value),
            "epoch": str(self.place[0]),
            "sequence": str(self.place[1]),
        }


class _Sample(NamedTuple):
    """One point, and where it stands on the axis."""

    position: Decimal
    x: str
    entry: _Entry

    def point(self, *, with_value: bool) -> dict[str, Any]:
        """Return it as the answer has it."""
        item = self.entry.item()
        del item["coordinates"]
        value = item.pop("value")
        return {"x": self.x, **item, **({"value": value} if with_value else {})}


@dataclass(frozen=True)
class _Select:
    """Which samples are wanted."""

    mode: str
    limit: int
    values: tuple[Decimal, ...] = ()
    start: Decimal | None = None
    end: Decimal | None = None

    @classmethod
    def parse(cls, select: Mapping[str, Any]) -> _Select:
        """Read the request; ValueError."""
        mode, limit = select.get("mode"), select.get("limit", DEFAULT_SAMPLES)
        if mode not in MODES:
            raise ValueError(f"select needs a mode of {', '.join(MODES)}, got {mode!r}.")
        if type(limit) is not int or limit < 1:
            raise ValueError(f"limit of select is a positive integer, got {limit!r}.")
        values, window = select.get("values") or (), select.get("window") or {}
        if mode == "at" and not 1 <= len(values) <= MAX_SAMPLES:
            raise ValueError(f"values of select are 1 to {MAX_SAMPLES}.")
        start, end = (None if window.get(it) is None else _decimal(window[it]) for it in _WINDOW)
        return cls(mode, min(limit, MAX_SAMPLES), tuple(map(_decimal, values)), start, end)

    def choose(self, samples: Iterable[_Sample]) -> tuple[list[_Sample], bool]:
        """Return samples in order, and whether those are all there are."""
        if self.mode == "at":
            return self._at(samples)
        if self.mode == "spread":
            return self._spread(samples)
        newest = heapq.nlargest(self.limit + 1, samples, key=_order)
        return newest[: self.limit][::-1], len(newest) <= self.limit

    def _at(self, samples: Iterable[_Sample]) -> tuple[list[_Sample], bool]:
        """Take the newest point at each of some coordinates."""
        wanted, found = set(self.values), dict[Decimal, _Sample]()
        for sample in samples:
            held = found.get(sample.position)
            is_newer = held is None or _order(sample) > _order(held)
            if sample.position in wanted and is_newer:
                found[sample.position] = sample
        return sorted(found.values(), key=_order), len(found) == len(wanted)

    def _spread(self, samples: Iterable[_Sample]) -> tuple[list[_Sample], bool]:
        """Take an even spread of a window, the first and the last always."""
        inside = [
            sample
            for sample in samples
            if (self.start is None or sample.position >= self.start)
            and (self.end is None or sample.position <= self.end)
        ]
        inside.sort(key=_order)
        if len(inside) <= self.limit:
            return inside, True
        if self.limit == 1:
            return inside[-1:], False
        step = (len(inside) - 1) / (self.limit - 1)
        return [inside[round(number * step)] for number in range(self.limit)], False


_WINDOW: Final = ("from", "to")


def _order(sample: _Sample) -> tuple[int, int, int]:
    return (sample.entry.time, *sample.entry.place)


def _view(run: RunView | Path) -> RunView:
    return run if isinstance(run, RunView) else open_run(run)


def _stream(
    view: RunView,
    writer: WriterId,
    name: str,
    type_: str,
    renderer: str = "",
    axes: tuple[str, ...] = ("step",),
    unit: str = "",
) -> Stream:
    text = f"{view.run_id} {writer} {type_} {renderer or '-'} {name}"
    id_ = str(uuid.uuid5(uuid.NAMESPACE_OID, text))
    return Stream(id_, writer, name, type_, renderer, axes, unit)


def _found(view: RunView, stream_id: str) -> Stream:
    for stream in streams(view):
        if stream.id == stream_id:
            return stream
    raise NotFound(f"The run {view.name!r} has no stream {stream_id}.")


def _entries(view: RunView, stream: Stream) -> Iterator[_Entry]:
    """Yield the points of a stream in order of their records."""
    selection = Selection(stream.name, ranks=frozenset({stream.writer.rank}))
    points: Iterable[Point]
    if stream.type == "object":
        points = rich_points(view, selection, renderer=stream.renderer)
    elif stream.name == CONSOLE:
        points = _console(view, selection)
    else:
        points = view.points(stream.name, rank=stream.writer.rank, all_attempts=True)
    for point in points:
        if point.writer == stream.writer and kind_of(point.value) == stream.type:
            places = point.coordinates or {"record": str(point.seq)}
            if point.step is None and "record" not in places:
                places = {"record": str(point.seq), **places}
            yield _Entry(
                _time(point.at, point.seq), (point.attempt, point.seq), places, point.value
            )


def _console(view: RunView, selection: Selection) -> Iterator[Point]:
    reader = view.reader(kinds=("con",), ranks=selection.ranks)
    while records := reader.poll(limit=_SLICE):
        for it in records:
            axes = {axis: str(it.body.get(axis, 0)) for axis in _CONSOLE_AXES}
            yield Point(it.step, str(it.body.get("text", "")), it.at, axes, it.writer, it.seq)


def _time(at: float, seq: int) -> int:
    """Return the time of a synced point: milliseconds of the writer, then three digits of order."""
    ms = round(min(max(at, 0.0), _MAX_AT) * 1e3) if at == at else 0
    return ms * 1000 + seq % 1000


def _moment(time: int) -> str:
    text = (_EPOCH + timedelta(microseconds=time)).strftime("%Y-%m-%dT%H:%M:%S.%f")
    return f"{text}Z"


def _instant(text: str) -> int:
    try:
        return (datetime.fromisoformat(text) - _EPOCH) // timedelta(microseconds=1)
    except (TypeError, ValueError):
        raise ValueError(f"{text!r} is no time such as 2026-11-30T12:00:00Z.") from None


def _decimal(text: Any) -> Decimal:
    if not is_decimal(text):
        raise ValueError(f"A coordinate is decimal text, got {text!r}.")
    return Decimal(text)


def _axis_name(axis: Mapping[str, str] | str | None) -> str:
    if axis is None:
        return "step"
    name = axis if isinstance(axis, str) else axis.get("name", "")
    is_other = not isinstance(axis, str) and axis.get("kind") != "coordinate"
    if is_other or NAME_PATTERN.fullmatch(name) is None:
        raise ValueError("axis is the name of one, or {'kind': 'coordinate', 'name': ...}.")
    return name


def _wire(value: Any) -> Any:
    """Return a value as a synced point has it."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    if math.isfinite(value) and abs(value) > MAX_PLAIN_INTEGER:
        return {"$number": "integer", "value": str(int(value))}
    return tagged(value)


def _media(view: RunView, values: Iterable[Any]) -> dict[str, dict[str, str]]:
    """Say of every artifact that the values show where it is."""
    media: dict[str, dict[str, str]] = {}
    digest_by_id = functools.cache(functools.partial(artifact_digest, view))
    for value in values:
        for item in items_of(value) if isinstance(value, dict) else ():
            id_ = artifact_of(item)
            digest = digest_of(item) or digest_by_id(id_)
            path = view.directory / layout.MEDIA / digest
            if digest and path.is_file():
                media[id_] = {"state": "ready", "url": path.as_uri()}
            elif id_:
                media[id_] = {"state": "missing"}
    return media
