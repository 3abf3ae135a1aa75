"""What a run's coordinator offers to be commanded, published on the server.

Each capability becomes one document, found again by a label with the run's own id of it. A newer
one of the same name replaces the earlier one, whose document stays and is not honoured any more.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final  # Any: the JSON of documents.

from launchhelm.records import NAME_PATTERN, WriterId
from syncer.api.answers import ApiError
from syncer.api.wire import MAX_SAFE_POINTS, WireError, encode
from syncer.commands import Offer
from syncer.facts import Facts
from syncer.idmap import IdMap
from syncer.naming import CAPABILITY_LABEL

_REFUSED: Final = (400, 413, 422)
"""Answers of a server that does not take this one document."""

_OURS: Final = frozenset({"id", "participant_id", "labels"})

_log = logging.getLogger("launchhelm")


@dataclass(slots=True)
class Capabilities:
    """Publishes the capabilities of one run; belongs to one thread."""

    ids: IdMap
    facts: Facts
    _refused: set[str] = field(default_factory=set)

    def publish(self, writer: WriterId) -> dict[str, Offer]:
        """Return what a coordinator offers by the server's ids; new ones are created there.

        Raises:
            ApiError: Some may be there and some not; the next call goes on.
        """
        offers: dict[str, Offer] = {}
        for body in self.facts.offers(writer):
            ours = str(body["id"])
            if ours in self._refused:
                continue
            spec = capability_spec(body, self.ids.participant(writer))
            try:
                encode(spec)
                id_, revision = self.ids.capability(ours, spec)
            except (ApiError, WireError) as error:
                if isinstance(error, ApiError) and error.status not in _REFUSED:
                    raise
                # One that cannot be shown must not hide the others.
                self._refused.add(ours)
                _log.warning("The control %s is not offered: %s", body["name"], error)
                continue
            offers[id_] = Offer(id_, revision, str(body["name"]), frozenset(_points(body)))
        return offers

    def safe_points(self, writer: WriterId) -> list[str]:
        """Return where a coordinator takes commands, as many as a session may have."""
        names = set(self.facts.safe_points(writer))
        for body in self.facts.offers(writer):
            names.update(_points(body))
        return sorted(name for name in names if NAME_PATTERN.fullmatch(name))[:MAX_SAFE_POINTS]


def capability_spec(body: Mapping[str, Any], participant: str) -> dict[str, Any]:
    """Return the document of a capability as a `cap` record describes it."""
    return {
        **{name: value for name, value in body.items() if name not in _OURS},
        "participant_id": participant,
        "labels": {CAPABILITY_LABEL: str(body["id"])},
    }


def _points(body: Mapping[str, Any]) -> list[str]:
    names = body.get("safe_points")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
