"""What the coordinator's records add up to: the newest word on everything that is not a metric.

Records of older attempts may arrive after those of newer ones (another host's file became visible
late), so "newest" goes by (attempt, number), never by arrival and never by time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from launchhelm.records import Record
from launchhelm.views.commands import Ledger

FOLDED_KINDS: Final = frozenset(
    {"ev", "def", "cap", "ctl", "keep", "sum", "desc", "oc", "effect", "close"}
)
_DESCRIBED: Final = ("name", "group", "tags", "notes")
_MAX_EVENTS: Final = 1000

Stamp = tuple[int, int]
"""(attempt, number) of a record."""


@dataclass(slots=True)
class Newest:
    """The value with the highest stamp, per key."""

    values: dict[str, Any] = field(default_factory=dict)
    stamps: dict[str, Stamp] = field(default_factory=dict)

    def take(self, key: str, value: Any, stamp: Stamp) -> None:
        """Take in a value unless a newer one is there."""
        if stamp >= self.stamps.get(key, (0, -1)):
            self.values[key] = value
            self.stamps[key] = stamp


class Fold:
    """Takes each record of the coordinator once, in order of number within a writer."""

    def __init__(self, run_directory: Path) -> None:
        self.ledger = Ledger()
        self.events: list[Record] = []
        self.described = Newest()
        self.definitions = Newest()
        self._directory = run_directory
        self._summary = Newest()
        self._capabilities = Newest()
        self._last = Newest()

    def take(self, record: Record) -> None:
        """Take in one record; a body of an unexpected shape is ignored."""
        stamp = (record.writer.attempt, record.seq)
        body = whole_body(self._directory, record.body)
        kind = record.kind
        if kind in ("oc", "effect"):
            self.ledger.take(record)
        elif kind == "sum":
            for name, value in body.items():
                self._summary.take(name, value, stamp)
        elif kind == "desc":
            for name in _DESCRIBED:
                if body.get(name) is not None:
                    self.described.take(name, body[name], stamp)
        elif kind == "def" and isinstance(body.get("name"), str):
            self.definitions.take(body["name"], body, stamp)
        elif kind == "cap" and isinstance(body.get("name"), str):
            self._capabilities.take(body["name"], body, stamp)
        elif kind in ("ctl", "keep"):
            self._last.take(kind, body, stamp)
        elif kind == "ev":
            self.events.append(record)
            del self.events[:-_MAX_EVENTS]

    @property
    def summary(self) -> dict[str, Any]:
        """Values of the summary; a name that was removed is not in it."""
        return {name: value for name, value in self._summary.values.items() if value is not None}

    @property
    def capabilities(self) -> dict[str, dict[str, Any]]:
        """What the newest attempt that registered anything may be commanded."""
        newest = max((stamp[0] for stamp in self._capabilities.stamps.values()), default=0)
        return {
            name: value
            for name, value in self._capabilities.values.items()
            if self._capabilities.stamps[name][0] == newest
        }

    @property
    def controls(self) -> dict[str, Any]:
        """The newest `ctl` body: values that controls have, and the pace of the exchange.

        Empty once a newer attempt has said what may be commanded, until it says what it holds.
        """
        newest = max((stamp[0] for stamp in self._capabilities.stamps.values()), default=0)
        if self._last.stamps.get("ctl", (newest, 0))[0] < newest:
            return {}
        return dict(self._last.values.get("ctl", {}))

    @property
    def kept(self) -> dict[str, Any] | None:
        """The state kept for a resume; None when there is none."""
        body = self._last.values.get("keep")
        return dict(body) if body is not None else None


def whole_body(run_directory: Path, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a body, read from its own file when it was too large for a line."""
    name = body.get("$file")
    if not isinstance(name, str) or len(body) > 2:
        return body
    folder, _, digest = name.partition("/")
    if folder.startswith(".") or not digest.isalnum():
        return body  # Not a name that we make; nothing outside the run is ever opened.
    try:
        value = json.loads((run_directory / folder / digest).read_bytes())
    except (OSError, ValueError):
        return body
    return value if isinstance(value, dict) else body
