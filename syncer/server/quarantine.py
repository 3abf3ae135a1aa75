"""Points that do not fit their stream: stored like any other, with a flag, and counted.

Refusing a point for good stops the telemetry of its whole run, and no client can repair what it
has already logged. So a wrong type or an unknown axis is a mark on the point, and one event tells
people about it the first time that it happens in a stream.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final  # Any: JSON values.

from syncer.api.limits import MAX_COORDINATE, MAX_COORDINATES
from syncer.api.telemetry import DECIMAL
from syncer.server import events

WRONG_TYPE: Final = 1
UNKNOWN_AXIS: Final = 2
BAD_COORDINATE: Final = 4

FLAGS: Final[Mapping[int, str]] = {
    WRONG_TYPE: "wrong_type",
    UNKNOWN_AXIS: "unknown_axis",
    BAD_COORDINATE: "bad_coordinate",
}

SCHEMA: Final = """
CREATE TABLE quarantine (  -- How many points of a stream carry a flag.
    series INTEGER NOT NULL,
    flag TEXT NOT NULL,
    count INTEGER NOT NULL,
    first_epoch INTEGER NOT NULL,
    first_sequence INTEGER NOT NULL,
    PRIMARY KEY (series, flag)
) WITHOUT ROWID;
"""


@dataclass(frozen=True)
class Shape:
    """What the points of one stream should look like.

    Args:
        type: number, string, boolean or object; anything else takes every value.
        axes: The names that coordinates may have.
    """

    type: str
    axes: frozenset[str]

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> Shape:
        """Read a stream's spec, which may hold anything."""
        schema = spec.get("value_schema")
        kind = schema.get("type") if isinstance(schema, dict) else None
        axes = spec.get("axes")
        return cls(
            kind if isinstance(kind, str) else "",
            frozenset(axis for axis in axes if isinstance(axis, str))
            if isinstance(axes, list)
            else frozenset(),
        )

    @property
    def fits(self) -> Callable[[Any], bool]:
        """Return the test of a value."""
        return _TESTS.get(self.type, _anything)


def coordinate_flags(coordinates: list[Any], axes: frozenset[str]) -> int:
    """Return the flags that the coordinates of one point earn."""
    flags = 0
    if len(coordinates) > 1:
        flags = _crowded(coordinates)
    for coordinate in coordinates:
        try:
            if coordinate["axis"] not in axes:
                flags |= UNKNOWN_AXIS
            text = coordinate["value"]
            if len(text) > MAX_COORDINATE or not DECIMAL.fullmatch(text):
                flags |= BAD_COORDINATE
        except (TypeError, KeyError):
            flags |= BAD_COORDINATE
    return flags


def names(flags: int) -> list[str]:
    """Spell flags out."""
    return [name for bit, name in FLAGS.items() if flags & bit]


def note(
    connection: sqlite3.Connection,
    series: int,
    flagged: Iterable[tuple[int, int, int]],
    place: Mapping[str, Any],
) -> None:
    """Count flagged points, and tell people about each flag that is new to a stream.

    Args:
        series: The stream's number.
        flagged: Epoch, sequence and flags of each.
        place: What an event says about where it happened.
    """
    for epoch, sequence, flags in flagged:
        for name in names(flags):
            (count,) = connection.execute(
                "INSERT INTO quarantine VALUES (?, ?, 1, ?, ?)"
                " ON CONFLICT DO UPDATE SET count = count + 1 RETURNING count",
                (series, name, epoch, sequence),
            ).fetchone()
            if count == 1:
                facts = {**place, "flag": name, "epoch": str(epoch), "sequence": str(sequence)}
                events.note(connection, "point_flagged", facts)


def _crowded(coordinates: list[Any]) -> int:
    seen = {c.get("axis") if isinstance(c, dict) else None for c in coordinates[:MAX_COORDINATES]}
    return BAD_COORDINATE if len(seen) != len(coordinates) else 0


def _is_number(value: Any) -> bool:
    kind = type(value)
    return kind is float or kind is int or (kind is dict and "$number" in value)


def _is_string(value: Any) -> bool:
    return type(value) is str


def _is_boolean(value: Any) -> bool:
    return type(value) is bool


def _is_object(value: Any) -> bool:
    return type(value) is dict


def _anything(value: Any) -> bool:
    return True


_TESTS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "number": _is_number,
    "string": _is_string,
    "boolean": _is_boolean,
    "object": _is_object,
}
