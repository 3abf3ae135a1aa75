"""Telemetry as bytes: numbers, coordinates, points, batches, grouped requests.

`point` runs once for every value that is pushed, so it puts text together and never builds a dict
for a number, a boolean or a string.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final  # Any: JSON values.

from syncer.api.document import WireError, encode, string
from syncer.api.limits import (
    BATCH_HEAD_BYTES,
    MAX_BATCH_BYTES,
    MAX_BATCHES,
    MAX_COORDINATE,
    MAX_COORDINATES,
    MAX_DOCUMENT_BYTES,
    MAX_POINT_BYTES,
    MAX_POINTS_PER_BATCH,
    MAX_REQUEST_BYTES,
    MAX_SAFE_INTEGER,
    MAX_UNBOUND_POINT_BYTES,
    PROTOCOL,
)

NAME: Final = re.compile(r"[a-z][a-z0-9_.:-]{0,127}", re.ASCII)
"""Axes, safe points and commands."""
DECIMAL: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?", re.ASCII)
"""A coordinate: no exponent, no leading zero, no plus."""

_OPEN_REQUEST: Final = b'{"protocol":"1.0","batches":['
_CLOSE: Final = b"]}"


def number(value: int | float | bool | str) -> Any:
    """Return a metric's value as the wire carries it: plain where every reader gets it right.

    Every float of 2^53 and more is an integer, and is sent as one, with all its digits.

    Raises:
        WireError: An integer of more digits than Python prints.
    """
    if isinstance(value, bool | str):
        return value
    if -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER:
        return value
    if isinstance(value, float) and not math.isfinite(value):
        word = "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
        return {"$number": "nonfinite", "value": word}
    try:
        return {"$number": "integer", "value": str(int(value))}
    except ValueError:
        raise WireError("An integer has too many digits to be printed.", reason="digits") from None


def coordinate(value: int | float | str) -> str:
    """Return the decimal text of one coordinate: 1e-07 becomes 0.0000001, 100.0 becomes 100.

    Raises:
        WireError: Neither a finite number nor plain decimal text.
    """
    if isinstance(value, str) and DECIMAL.fullmatch(value):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float) and math.isfinite(value):
        text = format(Decimal(float.__repr__(value)), "f")
        return text.rstrip("0").rstrip(".") if "." in text else text
    raise WireError("A coordinate must be a finite number or plain decimal.", reason="coordinate")


def timestamp(seconds: float) -> str:
    """Return seconds since the epoch as RFC 3339 in UTC, always with six digits, so that the text
    sorts as the time does.

    Raises:
        WireError: Not a time of the years 1 to 9999.
    """
    try:
        whole, microseconds = divmod(round(seconds * 1_000_000), 1_000_000)
        return f"{_second(whole)}.{microseconds:06d}Z"
    except (ValueError, OverflowError, OSError):
        raise WireError("A time lies outside the years 1 to 9999.", reason="timestamp") from None


def point(
    observed_at: str, coordinates: Sequence[tuple[str, str]], value: Any, sequence: int
) -> bytes:
    """Return one encoded point.

    Args:
        observed_at: As `timestamp` returns it.
        coordinates: Axis and text, in the order of the stream's axes. Points of one record share
            them, and the same tuple is not written twice.
        value: As `number` returns it, or a rich value.
        sequence: Its number, unique in its stream and epoch.

    Raises:
        WireError: It can never be sent; `size` says by how much where it is too large.
    """
    return bind(unbound_point(observed_at, coordinates, value), sequence)


def frame(
    observed_at: str, coordinates: Sequence[tuple[str, str]], sequence: int
) -> tuple[bytes, bytes]:
    """Return what stands before and after the value in every point of one record.

    Between the two, a finite number of at most 2^53 - 1 is a point as `point` returns it, written
    as Python writes it. Raises as `point`.
    """
    if sequence < 0:
        raise WireError("A sequence is never negative.", reason="negative_sequence")
    return _head(observed_at, tuple(coordinates)), b',"sequence":"%d"}' % sequence


def unbound_point(observed_at: str, coordinates: Sequence[tuple[str, str]], value: Any) -> bytes:
    """Return a point that has no sequence yet."""
    kind = type(value)
    if kind is float and -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER:
        text = repr(value).encode()
    elif kind is int and -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER:
        text = b"%d" % value
    elif kind is str:
        text = string(value)
    elif kind is bool:
        text = b"true" if value else b"false"
    else:
        text = encode(value, depth=1)
    data = _head(observed_at, tuple(coordinates)) + text + b"}"
    if len(data) > MAX_UNBOUND_POINT_BYTES:
        raise _point_too_large(len(data), MAX_UNBOUND_POINT_BYTES)
    return data


def bind(encoded: bytes, sequence: int) -> bytes:
    """Give an encoded point its sequence.

    Raises:
        WireError: A negative sequence, not an object, or too large.
    """
    if sequence < 0:
        raise WireError("A sequence is never negative.", reason="negative_sequence")
    if encoded[:1] != b"{" or encoded[-1:] != b"}":
        raise WireError("A point is an object.", reason="not_an_object")
    comma = b"," if len(encoded) > 2 else b""
    data = b'%b%b"sequence":"%d"}' % (encoded[:-1], comma, sequence)
    if len(data) > MAX_POINT_BYTES:
        raise _point_too_large(len(data), MAX_POINT_BYTES)
    return data


def batch(
    batch_id: str,
    stream_id: str,
    stream_revision: str,
    epoch: str,
    participant_id: str,
    points: Sequence[bytes],
) -> bytes:
    """Return one encoded batch; equal arguments give equal bytes.

    Raises:
        WireError: More points or bytes than one batch may hold.
    """
    if len(points) > MAX_POINTS_PER_BATCH:
        raise WireError(f"A batch holds {MAX_POINTS_PER_BATCH} points at most.", reason="points")
    head = (
        b'{"protocol":"1.0","batch_id":%b,"stream_id":%b,"stream_revision":%b,'
        b'"epoch":%b,"participant_id":%b,"points":['
    ) % tuple(map(string, (batch_id, stream_id, stream_revision, epoch, participant_id)))
    data = b"".join((head, b",".join(points), _CLOSE))
    if len(data) > MAX_DOCUMENT_BYTES:
        raise WireError("A batch is too large.", reason="size_limit", size=len(data))
    return data


def partition(points: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Split the points of a stream, in order, into what one batch takes each."""
    room = MAX_BATCH_BYTES - BATCH_HEAD_BYTES
    start = 0
    while start < len(points):
        part = points[start : start + MAX_POINTS_PER_BATCH]
        if sum(map(len, part)) > room:
            sizes = accumulate(map(len, part))
            part = part[: max(1, sum(size <= room for size in sizes))]
        yield part
        start += len(part)


def fitting(batches: Sequence[bytes]) -> int:
    """Return how many of these batches, from the first on, one grouped request takes."""
    size = len(_OPEN_REQUEST) + len(_CLOSE)
    for index, data in enumerate(batches):
        size += len(data) + 1
        if index == MAX_BATCHES or (index and size > MAX_REQUEST_BYTES):
            return index
    return len(batches)


def request(batches: Sequence[bytes]) -> bytes:
    """Return the body of a grouped request.

    Raises:
        WireError: More than `fitting` allows.
    """
    if fitting(batches) < len(batches):
        raise WireError("The batches do not fit one request.", reason="size_limit")
    return b"".join((_OPEN_REQUEST, b",".join(batches), _CLOSE))


@lru_cache(maxsize=256)
def _head(observed_at: str, coordinates: tuple[tuple[str, str], ...]) -> bytes:
    if len(coordinates) > MAX_COORDINATES:
        raise WireError(f"A point has {MAX_COORDINATES} coordinates at most.", reason="coordinate")
    parts = []
    for axis, text in coordinates:
        if NAME.fullmatch(axis) is None:
            raise WireError("An axis has a name that the wire does not allow.", reason="axis")
        if len(text) > MAX_COORDINATE or DECIMAL.fullmatch(text) is None:
            raise WireError("A coordinate is not plain decimal, or too long.", reason="coordinate")
        parts.append(f'{{"axis":"{axis}","value":"{text}"}}')
    when = string(observed_at)
    return b'{"observed_at":%b,"coordinates":[%b],"value":' % (when, ",".join(parts).encode())


@lru_cache(maxsize=256)
def _second(whole: int) -> str:
    return datetime.fromtimestamp(whole, UTC).replace(tzinfo=None).isoformat()


def _point_too_large(size: int, limit: int) -> WireError:
    return WireError(
        f"The point has {size:,} bytes; {limit:,} at most.", reason="size_limit", size=size
    )


assert PROTOCOL == "1.0"  # It is written out in the fragments above.
