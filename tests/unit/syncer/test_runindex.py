"""Many runs cost no listing of all for each, and are found on servers of every order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest

from syncer.api.answers import ApiError
from syncer.api.client import Client
from syncer.naming import RUN_LABEL
from syncer.runindex import RunIndex

PAGE = 10
LARGE_PAGE = 100


class Shelf:
    """The run documents of one server, in pages as its client gives them.

    Args:
        backwards: Lists the newest first.

    Attributes:
        listed: How many documents were handed out.
    """

    def __init__(self, *, backwards: bool = False) -> None:
        self.documents: list[dict[str, Any]] = []
        self.listed = 0
        self._backwards = backwards

    def add(self, label: str) -> dict[str, Any]:
        number = len(self.documents)
        document = {
            "id": f"document-{number:04d}",
            "kind": "run",
            "created_at": f"2026-11-30T07:00:00.{number:06d}Z",
            "spec": {"labels": {RUN_LABEL: label}},
        }
        self.documents.append(document)
        return document

    def document_pages(
        self, kind: str, project_id: str, *, cursor: str | None = None
    ) -> Iterator[tuple[str, Sequence[dict[str, Any]]]]:
        assert (kind, project_id) == ("run", "p")
        size = LARGE_PAGE if cursor is None else PAGE
        start = int(cursor or 0)
        documents = self.documents[::-1] if self._backwards else self.documents
        while True:
            page = documents[start : start + size]
            self.listed += len(page)
            yield str(start or ""), page
            start += size
            if start >= len(documents):
                return

    def get_document(self, document_id: str) -> dict[str, Any]:
        for document in self.documents:
            if document["id"] == document_id:
                return document
        raise ApiError("not_found", "There is no such document.", status=404)


def index_of(shelf: Shelf) -> RunIndex:
    return RunIndex(cast(Client, shelf))


def create(index: RunIndex, shelf: Shelf, label: str) -> str:
    """Do what is done for a new run."""
    assert index.find("p", label) == ""
    return index.agreed("p", label, shelf.add(label))


def test_the_cost_of_a_new_run_does_not_grow_with_the_runs_that_are_there() -> None:
    shelf = Shelf()
    for number in range(500):
        shelf.add(f"earlier-{number}")
    index = index_of(shelf)
    for number in range(3):
        create(index, shelf, f"first-{number}")
    shelf.listed = 0

    for number in range(200):
        create(index, shelf, f"new-{number}")

    assert shelf.listed <= 200 * 4 * PAGE
    assert index.find("p", "earlier-0") == shelf.documents[0]["id"]


@pytest.mark.parametrize("backwards", [False, True])
def test_a_run_that_somebody_else_created_meanwhile_is_found(backwards: bool) -> None:
    shelf = Shelf(backwards=backwards)
    index = index_of(shelf)
    for number in range(3 * PAGE):
        create(index, shelf, f"new-{number}")

    theirs = shelf.add("wanted")

    assert index.find("p", "wanted") == theirs["id"]


@pytest.mark.parametrize("backwards", [False, True])
def test_of_two_that_were_created_at_once_the_oldest_counts(backwards: bool) -> None:
    shelf = Shelf(backwards=backwards)
    index = index_of(shelf)
    for number in range(3 * PAGE):
        create(index, shelf, f"new-{number}")
    assert index.find("p", "wanted") == ""

    theirs = shelf.add("wanted")
    ours = shelf.add("wanted")

    assert index.agreed("p", "wanted", ours) == theirs["id"]
    assert index.find("p", "wanted") == theirs["id"]
    assert index_of(shelf).find("p", "wanted") == theirs["id"]


def test_a_run_that_was_deleted_on_the_server_is_not_found_again() -> None:
    shelf = Shelf()
    index = index_of(shelf)
    gone = create(index, shelf, "gone")
    shelf.documents = []

    assert index.find("p", "gone") == ""
    assert create(index, shelf, "gone") == gone  # The stub counts from the start again.


def test_a_document_that_is_not_listed_yet_is_used_all_the_same() -> None:
    shelf = Shelf()
    made = Shelf().add("new")

    assert index_of(shelf).agreed("p", "new", made) == made["id"]
