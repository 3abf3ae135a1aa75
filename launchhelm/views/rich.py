"""Rich values of a metric, as points whose value is the JSON form, and the bytes that they name.

Every question reads the run's rich records anew, a few at a time: they are few beside numbers.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from launchhelm.errors import ProtocolError
from launchhelm.records import Record
from launchhelm.store import media
from launchhelm.values.media import artifact_of, digest_of, items_of
from launchhelm.views.fold import whole_body
from launchhelm.views.points import Point, Selection

if TYPE_CHECKING:
    from launchhelm.views.run import RunView

_SLICE: Final = 500


def rich_points(view: RunView, selection: Selection, *, renderer: str = "") -> Iterator[Point]:
    """Yield the selected rich values, in order of number within a rank; of one renderer, or all."""
    for value, record in rich_records(view, ranks=selection.ranks):
        if value["name"] == selection.name and renderer in ("", value["renderer"]):
            point = Point(
                record.step, value["value"], record.at, record.axes, record.writer, record.seq
            )
            if selection.admits(point):
                yield point


def rich_records(
    view: RunView, *, ranks: frozenset[int] | None = None
) -> Iterator[tuple[dict[str, Any], Record]]:
    """Yield body and record of every rich value; one of an unexpected shape is passed over."""
    reader = view.reader(kinds=("rich",), ranks=ranks)
    while records := reader.poll(limit=_SLICE):
        for record in records:
            body = whole_body(view.directory, record.body)
            name, shown, value = body.get("name"), body.get("renderer"), body.get("value")
            if isinstance(name, str) and isinstance(shown, str) and isinstance(value, dict):
                yield dict(body), record


def latest(view: RunView, selection: Selection) -> Point | None:
    """Return the newest value of the newest attempt that has one, as `RunView.latest` does."""
    newest: dict[int, dict[int, Point]] = {}
    for point in rich_points(view, selection):
        newest.setdefault(point.attempt, {})[point.rank] = point
    if not newest:
        return None
    points = newest[max(newest)].values()
    return max(points, key=lambda point: (point.at, -point.rank, point.seq))


def history(view: RunView, selection: Selection, limit: int) -> list[Point]:
    """Return values in order of step, as `RunView.history` does: per step the newest attempt's."""
    attempts: dict[int | None, int] = {}
    for point in rich_points(view, selection):
        attempts[point.step] = max(point.attempt, attempts.get(point.step, 0))
    shown = (
        point
        for point in rich_points(view, selection)
        if point.step is None or point.attempt == attempts.get(point.step)
    )
    if selection.has_window:
        return heapq.nsmallest(limit, shown, key=lambda point: point.order)
    return heapq.nlargest(limit, shown, key=lambda point: point.order)[::-1]


def fetch(view: RunView, name: str) -> bytes:
    """Return the bytes of a metric's newest artifact, or of the first medium in its newest value.

    Raises:
        ProtocolError: The metric has no point, or its newest value names no bytes of the run.
        StorageError: The bytes are not on disk any more, or damaged.
    """
    points = (view.latest(name), latest(view, Selection(name)))
    found = [point for point in points if point is not None]
    if not found:
        raise ProtocolError(f"The metric {name!r} has no point.")
    newest = max(found, key=lambda point: (point.attempt, point.at, point.seq))
    value: Any = newest.value
    named = [value] if isinstance(value, str) else []
    if isinstance(value, dict):
        for item in items_of(value):
            digest = digest_of(item)
            if digest:
                return media.read(view.directory, digest)
            named.append(artifact_of(item))
    digest = artifact_digest(view, next(filter(None, named), ""))
    if not digest:
        raise ProtocolError(f"The newest value of {name!r} names no artifact of the run.")
    return media.read(view.directory, digest)


def artifact_digest(view: RunView, id_: str) -> str:
    """Return the digest of an artifact of the run, "" for one that it does not have."""
    if not id_:
        return ""
    reader = view.reader(kinds=("art",))
    while records := reader.poll(limit=_SLICE):
        for record in records:
            if record.body.get("id") == id_:
                return str(record.body.get("sha256", ""))
    return ""
