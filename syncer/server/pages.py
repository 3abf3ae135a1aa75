"""Pages of a stream's points, in one total order: time, then epoch, then sequence, as numbers.

That order is the table's own key, so a page, the newest point included, is one walk along it from
where the page starts, however and whenever the points arrived. Answers are put together from
stored texts and never parsed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from syncer.api.limits import MAX_ANSWER_BYTES
from syncer.server import quarantine
from syncer.server.batch import MAX_INTEGER, moment

PAGE_BYTES: Final = MAX_ANSWER_BYTES * 3 // 4
"""A page ends early there, incomplete: clients refuse longer answers, and for good."""

EARLIEST: Final = -(1 << 62)
LATEST: Final = 1 << 62
"""Instants beyond every year that a text can name."""


class Place(NamedTuple):
    """Where a point stands in the total order."""

    time: int
    epoch: int
    sequence: int


@dataclass(frozen=True)
class Window:
    """Which points of a stream, and in which direction.

    Args:
        start: First instant, in microseconds; also end, the last one. Both inclusive.
        newest_first: Walk back from the end.
        after: Leave out the points at the instant where the walk starts, up to this epoch and
            sequence inclusive; None leaves out none.
    """

    start: int = EARLIEST
    end: int = LATEST
    newest_first: bool = False
    after: tuple[int, int] | None = None


@dataclass
class Page:
    """Some points as JSON texts, and whether they were all."""

    items: list[str] = field(default_factory=list)
    complete: bool = True


def walk(
    connection: sqlite3.Connection, series: int, window: Window, *, limit: int = -1
) -> Iterator[sqlite3.Row]:
    """Return rows of points (time, epoch, sequence, flags, body) one by one, never all at once."""
    lowest, highest = Place(window.start, -1, -1), Place(window.end, MAX_INTEGER, MAX_INTEGER)
    order, from_low, to_high = "", ">=", "<="
    if window.newest_first:
        order = " DESC"
    if window.after is not None:
        if window.newest_first:
            highest, to_high = Place(window.end, *window.after), "<"
        else:
            lowest, from_low = Place(window.start, *window.after), ">"
    found: sqlite3.Cursor = connection.execute(
        "SELECT time, epoch, sequence, flags, body FROM points WHERE series = ?"
        f" AND (time, epoch, sequence) {from_low} (?, ?, ?)"
        f" AND (time, epoch, sequence) {to_high} (?, ?, ?)"
        f" ORDER BY time{order}, epoch{order}, sequence{order} LIMIT ?",
        (series, *lowest, *highest, limit),
    )
    return found


def page(connection: sqlite3.Connection, series: int, window: Window, limit: int) -> Page:
    """Return at most `limit` points, at least one, and less than PAGE_BYTES where it can be."""
    made = Page()
    size = 0
    for row in walk(connection, series, window, limit=limit + 1):
        text = item(row)
        size += len(text) + 1 if text.isascii() else len(text.encode()) + 1
        if len(made.items) == limit or (made.items and size > PAGE_BYTES):
            made.complete = False
            break
        made.items.append(text)
    return made


def newest(connection: sqlite3.Connection, series: int) -> sqlite3.Row | None:
    """Return the last point in the total order, in a time that does not depend on their number."""
    return next(walk(connection, series, Window(newest_first=True), limit=1), None)


def item(row: sqlite3.Row) -> str:
    """Return one point as JSON: as it came, its time with six digits, and its epoch."""
    time, epoch, sequence, flags, body = row
    flagged = ""
    if flags:
        flagged = ',"flags":["' + '","'.join(quarantine.names(flags)) + '"]'
    return (
        f'{{"observed_at":"{moment(time)}",{body[1:-1]}'
        f',"epoch":"{epoch}","sequence":"{sequence}"{flagged}}}'
    )
