"""A grouped request as clients write it, read at the speed of a search.

The normal form is compact JSON with the members in the order of the wire; of a batch, one
coordinate a point and plain numbers for values. It is taken exactly, character by character.
What deviates is left to batch.py, and the two make the same rows. Pure.
"""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final  # Any: JSON values.
from uuid import UUID

from syncer.api.limits import MAX_BATCHES, MAX_POINTS_PER_BATCH
from syncer.server.batch import Batch, Malformed, Numbers, decode, instant

Json = dict[str, Any]

_OPENING: Final = '{"protocol":"1.0","batches":['
_BATCH: Final = '{"protocol":"1.0","batch_id":"'
_END: Final = "]}"

_UUID: Final = "([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})"
_COUNT: Final = "([0-9]{1,18})"
_HEAD: Final = re.compile(
    f'{_UUID}","stream_id":"{_UUID}","stream_revision":"{_COUNT}",'
    f'"epoch":"{_COUNT}","participant_id":"{_UUID}","points":\\['
)
_AXIS: Final = "([a-z][a-z0-9_.:-]{0,127}+)"
_STEP: Final = "(?:0|[1-9][0-9]{0,17}+)"
# Never -0 alone, which is an integer to one reader and a float to another.
_NUMBER: Final = r"(?:-?+(?:[1-9][0-9]{0,15}+|0(?=\.))|0)(?:\.[0-9]{1,25}+)?+(?:e-[0-9]{2,3}+)?+"
_POINT: Final = re.compile(
    f'\\{{"observed_at":"([^"\\\\]{{27}})",("coordinates":'
    f'\\[\\{{"axis":"{_AXIS}","value":"{_STEP}"\\}}\\],"value":{_NUMBER}),'
    f'"sequence":"{_COUNT}"\\}}'
)
_GROUPS: Final = _POINT.groups + 1


def read(body: bytes) -> list[Batch | Json] | None:
    """Read the batches of a grouped request: in normal form each, or as JSON where it is not.

    None when the request around them is not in normal form.
    """
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    opening, *pieces = text.split(_BATCH)
    if opening != _OPENING or not 0 < len(pieces) <= MAX_BATCHES or not pieces[-1].endswith(_END):
        return None
    pieces[-1] = pieces[-1].removesuffix(_END) + ","
    try:
        return [_read(piece) or _decoded(piece) for piece in pieces]
    except Malformed:
        return None


def _decoded(piece: str) -> Json:
    """Return one batch as JSON; whatever is no batch alone is Malformed."""
    if not piece.endswith(","):
        raise Malformed
    content: Json = decode(f"{_BATCH}{piece[:-1]}".encode())
    return content


def _read(piece: str) -> Batch | None:
    """Read one batch without its beginning, and with the comma behind it."""
    head = _HEAD.match(piece)
    if head is None:
        return None
    # What is no point stands in every fifth place: nothing before, commas between.
    parts = _POINT.split(piece[head.end() :])
    count = len(parts) // _GROUPS
    if not 0 < count <= MAX_POINTS_PER_BATCH:
        return None
    if parts[0] or parts[-1] != "]},":
        return None
    if parts[_GROUPS:-1:_GROUPS] != [","] * (count - 1):
        return None
    axes = set(parts[3::_GROUPS])
    if len(axes) > 1:
        return None
    try:
        times = list(map(_instant, parts[1::_GROUPS]))
    except (ValueError, OverflowError):
        return None
    batch_id, stream_id, revision, epoch, participant_id = head.groups()
    source = f"{_BATCH}{piece[:-1]}".encode()
    return Batch(
        id=batch_id,
        key=UUID(batch_id).bytes,
        spelled=stream_id,
        stream_id=stream_id,
        participant_id=participant_id,
        revision=int(revision),
        epoch=int(epoch),
        count=count,
        digest=sha256(source).digest(),
        source=source,
        numbers=Numbers(
            axis=axes.pop(),
            times=times,
            sequences=list(map(int, parts[4::_GROUPS])),
            bodies=[f"{{{part}}}" for part in parts[2::_GROUPS]],
        ),
    )


_instant: Final = lru_cache(maxsize=4096)(instant)
"""The metrics of one step share its time, and mostly a request."""
