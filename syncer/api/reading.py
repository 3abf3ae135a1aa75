"""What readers of the API make of its answers: one point per place, and config out of labels. Pure.

The official client shows a server's data in this way; we need it to say what a user will see.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final  # Any: JSON values.

Json = dict[str, Any]

RESERVED_LABELS: Final = frozenset(
    f"launchhelm.{name}"
    for name in ("group", "tags", "notes", "python", "argv", "host", "git", "summary", "config")
)
"""Labels of a run that are not config. `launchhelm.reduction` is not among them, and leaks."""


def merged(points: Iterable[Json]) -> list[Json]:
    """Return the latest of the points that share coordinates and sequence, in the order given.

    Ranks that log a metric at the same step under the same number shadow each other so.
    """
    latest: dict[tuple[Any, ...], Json] = {}
    for point in points:
        place = {entry["axis"]: entry["value"] for entry in point["coordinates"]}
        key = (*sorted(place.items()), point["sequence"])
        known = latest.get(key)
        if known is None or point["observed_at"] >= known["observed_at"]:
            latest[key] = {
                "value": point["value"],
                "coordinates": place,
                "observed_at": point["observed_at"],
                "epoch": point["epoch"],
                "sequence": point["sequence"],
            }
    return list(latest.values())


def config_from_labels(labels: Mapping[str, str] | None) -> Json:
    """Return the config of a run whose document has no `parameters`: texts, and nested JSON."""
    config: Json = {}
    for key, text in (labels or {}).items():
        if key not in RESERVED_LABELS:
            config[key] = _nested(text) if text.startswith("json:") else text
    return config


def _nested(text: str) -> Any:
    try:
        return json.loads(text.removeprefix("json:"))
    except ValueError:
        return text
