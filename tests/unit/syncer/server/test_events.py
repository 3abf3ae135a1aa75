"""The event log: in order, per organisation, and pollable from a cursor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from syncer.server import events
from tests.support.telemetry_desk import Desk, desk


@pytest.fixture
def at(tmp_path: Path) -> Iterator[Desk]:
    with desk(tmp_path) as made:
        yield made


def note(at: Desk, *kinds: str, organization: str = "") -> None:
    with at.server.database.write() as connection:
        for kind in kinds:
            facts = {"organization_id": organization or at.organization, "text": "é"}
            events.note(connection, kind, facts)


def test_events_are_paged_in_order_from_a_cursor(at: Desk) -> None:
    note(at, "a", "b", "c")
    first = at.get("events", cursor=0, limit=2).json()
    assert [item["kind"] for item in first["items"]] == ["a", "b"]
    second = at.get("events", cursor=first["next_cursor"]).json()
    assert [item["kind"] for item in second["items"]] == ["c"]
    assert second["items"][0]["facts"]["text"] == "é"


def test_a_poller_goes_on_from_the_last_cursor(at: Desk) -> None:
    note(at, "a")
    cursor = at.get("events").json()["next_cursor"]
    assert at.get("events", cursor=cursor).json() == {"items": [], "next_cursor": cursor}
    note(at, "b")
    assert [i["kind"] for i in at.get("events", cursor=cursor).json()["items"]] == ["b"]


def test_an_organisation_sees_its_own_events_only(at: Desk) -> None:
    note(at, "theirs", organization="00000000-0000-4000-8000-000000000000")
    assert at.get("events").json() == {"items": [], "next_cursor": "0"}


@pytest.mark.parametrize("parameters", [{"cursor": "x"}, {"limit": "0"}, {"cursor": "9" * 30}])
def test_a_wrong_cursor_or_limit_is_refused(at: Desk, parameters: dict[str, str]) -> None:
    assert at.get("events", **parameters).status_code == 400
