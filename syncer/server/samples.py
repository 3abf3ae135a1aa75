"""Samples of a stream along a coordinate: the newest, those at given values, or an even spread.

One walk over the stream answers any of them, and keeps no more points than it may return twice.
Dashboards ask for this; a run never does, so there is no index along coordinates.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final  # Any: JSON values.

from starlette.requests import Request
from starlette.routing import Route

from syncer.api import routes as paths
from syncer.api.telemetry import DECIMAL, NAME
from syncer.server import artifacts, documents
from syncer.server.batch import moment
from syncer.server.caller import Caller
from syncer.server.endpoint import endpoint
from syncer.server.errors import validation
from syncer.server.pages import PAGE_BYTES, Window, walk
from syncer.server.state import Server

MODES: Final = ("latest", "at", "spread", "index")
MAX_SAMPLES: Final = 1000
DEFAULT_SAMPLES: Final = 100

_RENDERERS: Final[Mapping[str, str]] = {"number": "numeric", "string": "text", "boolean": "check"}


@dataclass(frozen=True)
class Select:
    """Which samples are wanted.

    Args:
        mode: One of MODES.
        limit: Most samples.
        values: With `at`: the coordinates.
        start: With `spread`: smallest and largest coordinate, None for no border; also end.
    """

    mode: str
    limit: int = DEFAULT_SAMPLES
    values: tuple[Decimal, ...] = ()
    start: Decimal | None = None
    end: Decimal | None = None


@dataclass(frozen=True)
class Sample:
    """One point, and where it stands on the axis."""

    x: str
    time: int
    epoch: int
    sequence: int
    body: str


def routes() -> list[Route]:
    """Return the endpoints of this module."""
    return [Route(paths.SAMPLES, endpoint(_samples), methods=["POST"])]


def choose(
    connection: sqlite3.Connection, series: int, axis: str, select: Select
) -> tuple[list[Sample], bool]:
    """Return samples in the order of their points, and whether those were all there are."""
    if select.mode == "at":
        return _at(connection, series, axis, select)
    if select.mode == "spread":
        return _spread(connection, series, axis, select)
    chosen: list[Sample] = []
    for sample in _walk(connection, series, axis, newest_first=True):
        if len(chosen) == select.limit:
            return chosen[::-1], False
        chosen.append(sample)
    return chosen[::-1], True


def _at(
    connection: sqlite3.Connection, series: int, axis: str, select: Select
) -> tuple[list[Sample], bool]:
    """Find the newest point at each of some coordinates."""
    found: dict[Decimal, Sample] = {}
    missing = set(select.values)
    for sample in _walk(connection, series, axis, newest_first=True):
        x = Decimal(sample.x)
        if x in missing:
            missing.remove(x)
            found[x] = sample
            if not missing:
                break
    chosen = sorted(found.values(), key=lambda each: (each.time, each.epoch, each.sequence))
    return chosen, not missing


def _spread(
    connection: sqlite3.Connection, series: int, axis: str, select: Select
) -> tuple[list[Sample], bool]:
    """Take every n-th point of a window, the first and the last always.

    n starts at 1 and doubles whenever twice as many as wanted are held; every other one goes then.
    """
    held: list[Sample] = []
    last: Sample | None = None
    stride, count = 1, 0
    for sample in _walk(connection, series, axis):
        x = Decimal(sample.x)
        if (select.start is not None and x < select.start) or (
            select.end is not None and x > select.end
        ):
            continue
        if count % stride == 0:
            held.append(sample)
            if len(held) > 2 * select.limit:
                held = held[::2]
                stride *= 2
        count += 1
        last = sample
    if last is None or count <= select.limit:
        return held, True
    if select.limit == 1:
        return [last], False
    if held[-1] is not last:
        held.append(last)
    step = (len(held) - 1) / (select.limit - 1)
    places = sorted({round(number * step) for number in range(select.limit)})
    return [held[place] for place in places if place < len(held)], False


def _walk(
    connection: sqlite3.Connection, series: int, axis: str, *, newest_first: bool = False
) -> Iterator[Sample]:
    """Yield the points that have a coordinate on the axis."""
    for time, epoch, sequence, _, body in walk(
        connection, series, Window(newest_first=newest_first)
    ):
        x = _x(body, axis)
        if x is not None:
            yield Sample(x, time, epoch, sequence, body)


def _x(body: str, axis: str) -> str | None:
    # Nearly always the axis comes first, and its value is there to be cut out.
    opening = f'{{"coordinates":[{{"axis":"{axis}","value":"'
    if body.startswith(opening):
        text = body[len(opening) : body.index('"', len(opening))]
        if DECIMAL.fullmatch(text):
            return text
    for coordinate in json.loads(body)["coordinates"]:
        if isinstance(coordinate, dict) and coordinate.get("axis") == axis:
            value = coordinate.get("value")
            return value if isinstance(value, str) and DECIMAL.fullmatch(value) else None
    return None


def _samples(
    server: Server, caller: Caller, request: Request, body: dict[str, Any]
) -> dict[str, Any]:
    axis = body.get("axis")
    if not isinstance(axis, dict) or axis.get("kind") != "coordinate":
        raise validation("axis must be an object of kind coordinate.")
    name = axis.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise validation("axis.name must be the name of an axis.")
    if not isinstance(body.get("stream_id"), str):
        raise validation("stream_id must be a text.")
    select = _select(body.get("select"))
    with server.database.read() as connection:
        stream = documents.find(connection, caller, body["stream_id"], "stream")
        chosen, complete = choose(connection, stream["place"], name, select)
        points: list[dict[str, Any]] = []
        size = 0
        for sample in chosen:
            size += len(sample.body.encode())
            if points and size > PAGE_BYTES and select.mode != "index":
                complete = False
                break
            points.append(_point(sample, with_value=select.mode != "index"))
        media = _media(server, caller, request, connection, points)
    return {
        "stream_id": stream["id"],
        "renderer": _renderer(stream["spec"]),
        "points": points,
        "complete": complete,
        "media": media,
    }


def _select(wanted: Any) -> Select:
    if not isinstance(wanted, dict) or wanted.get("mode") not in MODES:
        raise validation(f"select.mode must be one of {', '.join(MODES)}.")
    limit = wanted.get("limit", DEFAULT_SAMPLES)
    if type(limit) is not int or limit < 1:
        raise validation("select.limit must be a positive integer.")
    values = wanted.get("values", [])
    if wanted["mode"] == "at" and not (
        isinstance(values, list) and 1 <= len(values) <= MAX_SAMPLES
    ):
        raise validation(f"select.values must be a list of 1 to {MAX_SAMPLES}.")
    window = wanted.get("window") or {}
    if not isinstance(window, dict):
        raise validation("select.window must be an object.")
    return Select(
        wanted["mode"],
        min(limit, MAX_SAMPLES),
        tuple(_decimal(value) for value in values) if wanted["mode"] == "at" else (),
        _decimal(window["from"]) if window.get("from") is not None else None,
        _decimal(window["to"]) if window.get("to") is not None else None,
    )


def _decimal(text: Any) -> Decimal:
    if not isinstance(text, str) or not DECIMAL.fullmatch(text):
        raise validation("Coordinates must be decimal strings.")
    return Decimal(text)


def _point(sample: Sample, *, with_value: bool) -> dict[str, Any]:
    point: dict[str, Any] = {
        "x": sample.x,
        "observed_at": moment(sample.time),
        "epoch": str(sample.epoch),
        "sequence": str(sample.sequence),
    }
    if with_value:
        point["value"] = json.loads(sample.body)["value"]
    return point


def _renderer(spec: Mapping[str, Any]) -> str:
    presentation = spec.get("presentation")
    if isinstance(presentation, dict) and isinstance(presentation.get("renderer"), str):
        return str(presentation["renderer"])
    schema = spec.get("value_schema")
    kind = schema.get("type") if isinstance(schema, dict) else None
    return _RENDERERS.get(str(kind), "generic")


def _media(
    server: Server,
    caller: Caller,
    request: Request,
    connection: sqlite3.Connection,
    points: list[dict[str, Any]],
) -> dict[str, dict[str, str]]:
    """Return state and address of every artifact that the values show and the caller may read."""
    media: dict[str, dict[str, str]] = {}
    for artifact_id in _artifact_ids([point.get("value") for point in points]):
        document = documents.get(connection, artifact_id)
        if (
            document is None
            or document["organization_id"] != caller.organization
            or not caller.may("artifact.download", documents.reach(document))
        ):
            media[artifact_id] = {"state": "missing"}
        elif artifacts.is_ready(connection, document["id"]):
            media[artifact_id] = {
                "state": "ready",
                **artifacts.address(server, request, document["id"]),
            }
        else:
            media[artifact_id] = {"state": "pending"}
    return media


def _artifact_ids(values: list[Any]) -> Iterator[str]:
    waiting = values[::-1]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            artifact = value.get("artifact")
            if isinstance(artifact, dict) and isinstance(artifact.get("id"), str):
                yield artifact["id"]
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
