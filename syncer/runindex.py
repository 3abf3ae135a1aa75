"""The run documents of a server by our label, shared by all runs that one connection sends.

Before a run is created, and after, one has to know what is there. A listing for each of many runs
would cost the square of their number, so a project is listed once and then followed: its last page
is asked for again, and what comes after it. That shows new documents where a server lists in the
order of creation, which is believed of a server while our own documents come that way, each after
all older ones. Until then, and on every other server, all is listed each time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final  # Any: the JSON of documents.

from syncer.api.answers import ApiError
from syncer.api.client import Client
from syncer.naming import RUN_LABEL

KIND: Final = "run"


@dataclass(slots=True)
class _Project:
    """What was seen of one project.

    Args:
        ids: Per label the oldest document, by the time of its creation and its id.
        cursor: With which the last page was asked for.
    """

    ids: dict[str, tuple[float, str]] = field(default_factory=dict)
    cursor: str = ""


class RunIndex:
    """Finds run documents on one server. One thread; every method may raise ApiError."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._projects: dict[str, _Project] = {}
        self._is_in_order = False

    def find(self, project_id: str, run_id: str) -> str:
        """Return the id of the document of a run of ours, as of now; "" when there is none."""
        known = self._look(project_id)
        _, id_ = known.ids.get(run_id, (0.0, ""))
        if id_ and self._is_in_order and not self._is_there(id_):
            # It was deleted after it was listed.
            _, id_ = self._list(project_id).ids.get(run_id, (0.0, ""))
        return id_

    def agreed(self, project_id: str, run_id: str, made: Mapping[str, Any]) -> str:
        """Return the id to use after one was created: another syncer may have made one as well.

        The oldest counts, so that all agree without a word.
        """
        known = self._projects.setdefault(project_id, _Project())
        self._is_in_order = True
        if not (self._read(known, project_id, known.cursor, made["id"]) and self._is_in_order):
            self._is_in_order = False
            known = self._list(project_id)
        _, oldest = known.ids.get(run_id, (0.0, ""))
        return oldest or str(made["id"])

    def _look(self, project_id: str) -> _Project:
        known = self._projects.get(project_id)
        if known is not None and self._is_in_order:
            self._read(known, project_id, known.cursor)
        if known is None or not self._is_in_order:
            known = self._list(project_id)
        return known

    def _list(self, project_id: str) -> _Project:
        known = self._projects[project_id] = _Project()
        self._read(known, project_id)
        return known

    def _read(
        self,
        known: _Project,
        project_id: str,
        cursor: str | None = None,
        wanted: object = None,
    ) -> bool:
        """Take in all pages from a cursor on; return whether a wanted document was in them."""
        is_met, newest = False, 0.0
        pages = self._client.document_pages(KIND, project_id, cursor=cursor)
        for known.cursor, documents in pages:
            for document in documents:
                is_met |= document["id"] == wanted
                this = (instant(document), str(document["id"]))
                self._is_in_order &= newest <= this[0]
                newest = this[0]
                label = labels_of(document).get(RUN_LABEL)
                if label:
                    known.ids[str(label)] = min(this, known.ids.get(str(label), this))
        return is_met

    def _is_there(self, id_: str) -> bool:
        try:
            self._client.get_document(id_)
        except ApiError as error:
            if error.status not in (404, 410):
                raise
            return False
        return True


def labels_of(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the labels of a document, {} where it has none."""
    labels = document["spec"].get("labels")
    return labels if isinstance(labels, Mapping) else {}


def instant(document: Mapping[str, Any]) -> float:
    """Return when a document was created; what does not say so comes last."""
    try:
        return datetime.fromisoformat(str(document.get("created_at", ""))).timestamp()
    except ValueError:
        return float("inf")
