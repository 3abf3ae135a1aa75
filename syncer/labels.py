"""What a run says about itself, as the labels of its document. Pure.

The official SDK shows these labels as config, group, tags, notes and summary. What does not fit a
label is left out of it, and whoever reads is told how much.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from launchhelm.store.line import untag
from syncer.api.wire import MAX_GROUP, MAX_LABEL, MAX_LABELS, number

RESERVED: Final = "launchhelm."
"""A config key that begins so is not made a label, where it could pass for one of these."""

GROUP: Final = "launchhelm.group"
TAGS: Final = "launchhelm.tags"
NOTES: Final = "launchhelm.notes"
SUMMARY: Final = "launchhelm.summary"
SUMMARY_LEFT_OUT: Final = "launchhelm.offline.summary_left_out"
REDUCTION: Final = "launchhelm.reduction"
REDUCTION_LEFT_OUT: Final = "launchhelm.offline.reduction_left_out"


def config_labels(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the config as labels; what has no text, or too long a one, is left out.

    Any: values of the user's; `init` has checked them, but a file may hold more.
    """
    labels: dict[str, str] = {}
    for key, value in config.items():
        text = _label_text(value)
        fits = text is not None and len(text) <= MAX_LABEL and len(labels) < MAX_LABELS
        if text is not None and fits and key and not key.startswith(RESERVED):
            labels[key] = text
    return labels


def metadata_labels(*, group: str, tags: Sequence[str], notes: str) -> dict[str, str]:
    """Return group, tags and notes as labels; what is empty has none."""
    labels = {GROUP: group[:MAX_GROUP], TAGS: _tags(tags), NOTES: notes[:MAX_LABEL]}
    return {name: text for name, text in labels.items() if text}


def summary_label(summary: Mapping[str, Any]) -> tuple[str, int]:
    """Return the summary as text, and how many of its values did not fit.

    Names are sorted, so that the same values always stay. Any: as stored, numbers tagged.
    """
    entries = {
        name: number(value) for name, raw in summary.items() if _is_metric(value := untag(raw))
    }
    return _fitting(entries)


def reduction_label(states: Mapping[str, Mapping[str, Any]]) -> tuple[str, int]:
    """Return the running means as text, for a resume elsewhere, and how many did not fit."""
    means = {
        name: {"count": state.get("n", 0), "held": state.get("sum", 0.0)}
        for name, state in states.items()
        if state.get("kind") == "mean"
    }
    return _fitting(means)


def _fitting(entries: Mapping[str, Any]) -> tuple[str, int]:
    """Write what fits a label, in sorted order; "" for nothing."""
    parts: list[str] = []
    size = 2
    for name in sorted(entries):
        part = f"{_json(name)}:{_json(entries[name])}"
        if size + len(part) + 1 <= MAX_LABEL + 1:
            parts.append(part)
            size += len(part) + 1
    left_out = len(entries) - len(parts)
    return (f"{{{','.join(parts)}}}" if parts else ""), left_out


def _tags(tags: Sequence[str]) -> str:
    for shown in _shorter(list(tags)):
        text = _json(shown)
        if len(text) > MAX_LABEL:
            text = json.dumps(shown, ensure_ascii=False, separators=(",", ":"))
        if len(text) <= MAX_LABEL:
            return text
    return ""


def _shorter(items: list[str]) -> Iterator[list[str]]:
    """Yield the list, then without its last item, and so on, while there is one."""
    for count in range(len(items), 0, -1):
        yield items[:count]


def _label_text(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return f"{value:.16g}" if value - value == 0 else None
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping | list | tuple):
        try:
            return f"json:{json.dumps(value, allow_nan=False, separators=(',', ':'))}"
        except ValueError:
            return None
    return None


def _is_metric(value: Any) -> bool:
    return isinstance(value, bool | int | float | str)


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
