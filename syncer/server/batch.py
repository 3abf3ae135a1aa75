"""One telemetry batch as rows: pure, and the loop that every pushed point goes through.

A batch is read once. What cannot be stored raises `Malformed`; what merely does not fit its stream
is flagged. Rows are one flat list, ready to be bound to a statement.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final  # Any: JSON values.
from uuid import UUID

from launchhelm import _optional
from syncer.api.document import WireError, canonical, parse
from syncer.api.limits import MAX_POINTS_PER_BATCH
from syncer.server.quarantine import UNKNOWN_AXIS, WRONG_TYPE, Shape, coordinate_flags

MAX_INTEGER: Final = (1 << 63) - 1
"""Epochs and sequences beyond it do not fit a column."""
COLUMNS: Final = 6
"""Of a row: series, time, epoch, sequence, flags, body."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_RFC3339: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d:\d\d)(?:\.(\d+))?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)
_PENDING: Final = '"pending:'


class Malformed(ValueError):
    """A batch that cannot be stored. The text says why, without the content."""


@dataclass(frozen=True)
class Numbers:
    """Points that are read already: a number each, at one coordinate on an axis that all share.

    Args:
        times: One for each point, in microseconds; also sequences.
        bodies: The points as they are stored.
    """

    axis: str
    times: Sequence[int]
    sequences: Sequence[int]
    bodies: Sequence[str]

    def rows(self, series: int, epoch: int, shape: Shape) -> list[Any]:
        """Return the points as `rows` does."""
        flags = 0 if shape.fits(0.0) else WRONG_TYPE
        if self.axis not in shape.axes:
            flags |= UNKNOWN_AXIS
        made: list[Any] = [series, 0, epoch, 0, flags, ""] * len(self.bodies)
        made[1::COLUMNS], made[3::COLUMNS] = self.times, self.sequences
        made[5::COLUMNS] = self.bodies
        return made


@dataclass(frozen=True)
class Batch:
    """One batch, its head read.

    Args:
        id: As the client spelled it, which the receipt must echo; also spelled, for the stream.
        key: The id as 16 bytes.
        revision: Of the stream, as the client knew it.
        digest: Of all its content, as bytes; equal for the same batch sent again as it was.
        source: The whole batch, parsed or as it came. Any: JSON.
        numbers: Its points, where they are read already.
    """

    id: str
    key: bytes
    spelled: str
    stream_id: str
    participant_id: str
    revision: int
    epoch: int
    count: int
    digest: bytes
    source: Mapping[str, Any] | bytes = field(repr=False)
    numbers: Numbers | None = field(default=None, repr=False)

    @property
    def content(self) -> Mapping[str, Any]:
        """Return the whole batch. Any: JSON."""
        if isinstance(self.source, bytes):
            content: Mapping[str, Any] = decode(self.source)
            return content
        return self.source


def decode(data: bytes) -> Any:
    """Parse a telemetry body: strict JSON, numbers of any magnitude.

    Raises:
        Malformed: It is no JSON.
    """
    if _orjson is not None:
        try:
            return _orjson.loads(data)
        except ValueError:
            pass  # The careful parser takes more numbers, and says what is wrong.
    try:
        # Each value takes two bytes at least.
        return parse(data, max_bytes=len(data), max_values=len(data), max_depth=64, exact=False)
    except WireError as error:
        raise Malformed(f"The body is not acceptable: {error}") from None


def encode(value: Any) -> bytes:
    """Return what `decode` gave as compact JSON."""
    if _orjson is not None:
        try:
            return bytes(_orjson.dumps(value))
        except TypeError:
            pass  # An integer of more than 64 bits.
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def read(content: Any) -> Batch:
    """Read the head of one batch.

    Raises:
        Malformed: A member is missing or of the wrong kind.
    """
    if not isinstance(content, dict):
        raise Malformed("A batch must be an object.")
    points = content.get("points")
    if not isinstance(points, list) or not points:
        raise Malformed("A batch must hold points.")
    if len(points) > MAX_POINTS_PER_BATCH:
        raise Malformed(f"A batch may hold {MAX_POINTS_PER_BATCH} points.")
    if content.get("protocol", "1.0") != "1.0":
        raise Malformed("The protocol of a batch must be 1.0.")
    try:
        return Batch(
            id=content["batch_id"],
            key=UUID(content["batch_id"]).bytes,
            spelled=content["stream_id"],
            stream_id=str(UUID(content["stream_id"])),
            participant_id=str(UUID(content["participant_id"])),
            revision=integer(content["stream_revision"]),
            epoch=integer(content["epoch"]),
            count=len(points),
            digest=sha256(encode(content)).digest(),
            source=content,
        )
    except KeyError as error:
        raise Malformed(f"A batch must have {error}.") from None
    except (ValueError, TypeError, AttributeError):
        raise Malformed("Ids must be UUIDs, revision and epoch decimal strings.") from None


def rows(batch: Batch, series: int, shape: Shape) -> list[Any]:
    """Read the points of a batch into rows, one after the other in one list.

    Args:
        series: The stream's number in our tables.
        shape: What its points should look like.

    Raises:
        Malformed: A point is missing a member, or holds one that cannot be read.
    """
    if batch.numbers is not None:
        return batch.numbers.rows(series, batch.epoch, shape)
    made: list[Any] = []
    epoch, axes, fits = batch.epoch, shape.axes, shape.fits
    for position, point in enumerate(batch.content["points"]):
        try:
            coordinates, value = point["coordinates"], point["value"]
            flags = 0 if fits(value) else WRONG_TYPE
            # Nearly every point has one coordinate, a step.
            flags |= coordinate_flags(coordinates, axes)
            body = encode({"coordinates": coordinates, "value": value}).decode()
            if type(coordinates) is not list or (_PENDING in body and _awaits_upload(value)):
                raise ValueError
            made += (
                series,
                instant(point["observed_at"]),
                epoch,
                integer(point["sequence"]),
                flags,
                body,
            )
        except (KeyError, TypeError, ValueError, OverflowError):
            raise Malformed(f"Point {position} of the batch: {_fault(point)}.") from None
    return made


def instant(text: str) -> int:
    """Return an RFC 3339 time as microseconds since 1970; digits beyond those are dropped.

    Raises:
        ValueError: It is no such time; TypeError for what is no text.
    """
    if len(text) == 27 and text[19] == "." and text[26] == "Z":
        fraction = text[20:26]
        if fraction.isascii() and fraction.isdigit():
            return _second(text[:19]) + int(fraction)
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise ValueError("no time of RFC 3339")
    day, clock, fraction, offset = match.groups()
    whole = f"{day}T{clock}{'+00:00' if offset in 'Zz' else offset}"
    return _since_epoch(datetime.fromisoformat(whole)) + int(f"{fraction or '':0<6.6}")


def moment(time: int) -> str:
    """Return what `instant` read, always with six digits, so that texts sort like times."""
    second, fraction = divmod(time, 1_000_000)
    return f"{_second_text(second)}.{fraction:06d}Z"


def integer(text: Any) -> int:
    """Return a decimal string as a number that fits a column.

    Raises:
        ValueError: It is none; TypeError for what is no text.
    """
    if type(text) is not str:
        raise TypeError
    if len(text) > 19 or not (text.isascii() and text.isdigit()):
        raise ValueError
    value = int(text)
    if value > MAX_INTEGER:
        raise ValueError
    return value


def alike(one: str, other: str) -> bool:
    """Decide whether two bodies of points mean the same, however keys and numbers are spelled."""
    if one == other:
        return True
    try:
        a, b = (parse(text, max_bytes=len(text) * 4, exact=False) for text in (one, other))
        return canonical(a) == canonical(b)
    except WireError:
        return False


def _awaits_upload(value: Any) -> bool:
    """Find the id of an artifact that the client has not uploaded yet."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            artifact = value.get("artifact")
            if isinstance(artifact, dict) and str(artifact.get("id")).startswith("pending:"):
                return True
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
    return False


def _fault(point: Any) -> str:
    """Say what is wrong with a point that could not be read."""
    if not isinstance(point, dict):
        return "it must be an object"
    for member in ("observed_at", "coordinates", "value", "sequence"):
        if member not in point:
            return f"{member} is missing"
    if not isinstance(point["coordinates"], list):
        return "coordinates must be a list"
    checks: tuple[tuple[str, Callable[[Any], int], str], ...] = (
        ("observed_at", instant, "a time of RFC 3339"),
        ("sequence", integer, "a decimal string of 63 bits"),
    )
    for member, check, what in checks:
        try:
            check(point[member])
        except (TypeError, ValueError, OverflowError):
            return f"{member} must be {what}"
    if _awaits_upload(point["value"]):
        return "it refers to an artifact that was not uploaded"
    return "it cannot be encoded"


@lru_cache(maxsize=4096)
def _second(text: str) -> int:
    # Points of one batch share their seconds, where they come fast enough to matter.
    if _RFC3339.fullmatch(text + "Z") is None:
        raise ValueError("no time of RFC 3339")
    return _since_epoch(datetime.fromisoformat(text + "+00:00"))


@lru_cache(maxsize=4096)
def _second_text(second: int) -> str:
    return (_EPOCH + timedelta(seconds=second)).isoformat()[:19]


def _since_epoch(value: datetime) -> int:
    return (value - _EPOCH) // _MICROSECOND


_orjson: Final[Any] = _optional.find("orjson")
"""Any: its functions; the standard library does the same, slower."""
