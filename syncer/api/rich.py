"""Rich values as points of `object` streams carry them: texts, media, tables, histograms. Pure.

A function here either returns what every server of the API takes, or raises WireError.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from hashlib import sha256
from itertools import pairwise
from typing import Any, Final  # Any: JSON values.
from urllib.parse import urlsplit

from syncer.api.document import WireError
from syncer.api.limits import (
    MAX_BINS,
    MAX_CAPTION,
    MAX_EDGES,
    MAX_HREF,
    MAX_NAME,
    MAX_TABLE_COLUMNS,
    MAX_TABLE_ROWS,
    MAX_TEXT,
)

Json = dict[str, Any]

FORMATS: Final = ("plain", "markdown")
MEDIA_TYPES: Final = frozenset(
    [f"image/{name}" for name in ("png", "jpeg", "webp", "gif", "avif")]
    + [f"audio/{name}" for name in ("wav", "mpeg", "ogg", "flac", "webm")]
    + [f"video/{name}" for name in ("mp4", "webm")]
)
COUNTS: Final = ("underflow", "overflow", "total")


def text(text: str, format: str | None = None, caption: str | None = None) -> Json:
    """Return a text, plain unless the format says otherwise."""
    if len(text) > MAX_TEXT:
        raise WireError(f"A text has {MAX_TEXT:,} characters at most.", reason="text")
    if format is not None and format not in FORMATS:
        raise WireError("A text is plain or markdown.", reason="format")
    value: Json = {"text": text}
    if format is not None:
        value["format"] = format
    return _captioned(value, caption)


def media_url(href: str, media_type: str, caption: str | None = None) -> Json:
    """Return one item of media that lies somewhere else."""
    try:
        parts = urlsplit(href)
        absolute = parts.scheme == "https" and bool(parts.hostname)
    except ValueError:
        absolute = False
    if not absolute or len(href) > MAX_HREF:
        raise WireError("A medium is named by an absolute https address.", reason="media")
    return _item({"url": {"href": href}}, media_type, caption)


def pending_item(data: bytes, media_type: str, caption: str | None = None) -> Json:
    """Return one item of media that is not uploaded yet. It must never be sent as it is: the id
    becomes that of the artifact first."""
    digest = sha256(data).hexdigest()
    return artifact_item(f"pending:{digest}", digest, media_type, caption)


def artifact_item(
    artifact_id: str, digest: str, media_type: str, caption: str | None = None
) -> Json:
    """Return one item of media that is an artifact of the run."""
    return _item({"artifact": {"id": artifact_id, "sha256": digest}}, media_type, caption)


def histogram(
    edges: Sequence[float], counts: Sequence[int], stats: Mapping[str, float] | None = None
) -> Json:
    """Return a histogram of bins that are counted already.

    Args:
        edges: 2 to 513, strictly increasing.
        counts: One for each bin.
        stats: underflow, overflow, total, min, max, mean, std, where known.
    """
    rising = all(left < right for left, right in pairwise(edges))
    if not 2 <= len(edges) <= MAX_EDGES or not all(map(math.isfinite, edges)) or not rising:
        raise WireError("The edges of a histogram must rise.", reason="histogram")
    if len(counts) != len(edges) - 1:
        raise WireError("A histogram has one count for each bin.", reason="histogram")
    known = dict(stats or {})
    if any(count < 0 for count in [*counts, *(known.get(name, 0) for name in COUNTS)]):
        raise WireError("A count is never negative.", reason="count")
    return {"edges": list(edges), "counts": list(counts), **known}


def bin_values(values: Sequence[float], bins: int) -> Json:
    """Count values in bins of equal width; the greatest falls into the last bin.

    Equal values make one bin without width, which servers of the API take.
    """
    if not 1 <= bins <= MAX_BINS:
        raise WireError(f"A histogram has 1 to {MAX_BINS} bins.", reason="bins")
    if not values or not all(map(math.isfinite, values)):
        raise WireError("A histogram needs finite values.", reason="histogram")
    low, high = float(min(values)), float(max(values))
    width = (high - low) / bins
    if low == high or bins == 1:
        return {"edges": [low, high], "counts": [len(values)]}
    if not math.isfinite(width) or not width:
        raise WireError("The values of a histogram lie too far apart.", reason="histogram")
    counts = [0] * bins
    for value in values:
        counts[min(int((value - low) / width), bins - 1)] += 1
    return {"edges": [*(low + width * index for index in range(bins)), high], "counts": counts}


def table(records: Sequence[Mapping[str, Any]]) -> Json:
    """Return records as a table: columns sorted by name, what a record lacks is null."""
    names = sorted({name for record in records for name in record})
    if not 1 <= len(names) <= MAX_TABLE_COLUMNS or len(records) > MAX_TABLE_ROWS:
        raise WireError("A table has 1 to 64 columns and at most 1000 rows.", reason="table")
    if not all(1 <= len(name) <= MAX_NAME for name in names):
        raise WireError("The name of a column has 1 to 256 characters.", reason="table")
    return {
        "columns": [
            {"name": name, "type": _column_type([record.get(name) for record in records])}
            for name in names
        ],
        "rows": [[record.get(name) for name in names] for record in records],
    }


def _column_type(cells: Sequence[Any]) -> str:
    kinds = {type(cell) for cell in cells if cell is not None}
    for kind, name in ((bool, "boolean"), (int, "integer"), (str, "string")):
        if kinds <= {kind} and kinds:
            return name
    if not kinds:
        return "string"
    if kinds <= {int, float}:
        return "number"
    raise WireError("A column of a table mixes types.", reason="table")


def _item(source: Json, media_type: str, caption: str | None) -> Json:
    if media_type not in MEDIA_TYPES:
        raise WireError("The type of a medium is not one that the API knows.", reason="media")
    return _captioned({"source": source, "media_type": media_type}, caption)


def _captioned(value: Json, caption: str | None) -> Json:
    if caption is None:
        return value
    if not 1 <= len(caption) <= MAX_CAPTION:
        raise WireError(f"A caption has 1 to {MAX_CAPTION} characters.", reason="caption")
    return {**value, "caption": caption}
