"""What a coordinator offers is on the server once, under our label, and newer replaces older."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launchhelm.commands import command_capability
from launchhelm.records import WriterId
from launchhelm.store.manifest import load_manifest
from syncer.api.answers import ApiError
from syncer.api.client import Client
from syncer.capabilities import Capabilities
from syncer.facts import Facts
from syncer.idmap import IdMap
from syncer.naming import CAPABILITY_LABEL
from tests.support.pushing import WrittenRun
from tests.support.v1_server import v1_server


def set_lr(lr: float) -> None:
    """Never called."""


def offer(run: WrittenRun, ours: str, name: str, *, rank: int = 0) -> None:
    """Record a capability as a process does."""
    spec = command_capability(set_lr, "after_step", name=name).wire("the run's own id")
    run.add("cap", {"id": ours, **spec}, rank=rank)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with v1_server(tmp_path / "far") as server, server.client() as it:
        yield it


def opened(run: WrittenRun, client: Client) -> Capabilities:
    """Begin as a new process does."""
    facts = Facts.read(run.directory, load_manifest(run.directory))
    return Capabilities(IdMap(client, "quickstart", facts), facts)


def writer(run: WrittenRun) -> WriterId:
    return WriterId(0, len(list((run.directory / "attempts").iterdir())), "00010000")


def test_each_capability_is_created_once_whoever_comes(tmp_path: Path, client: Client) -> None:
    run = WrittenRun(tmp_path, ranks=2)
    offer(run, "one", "set_lr")
    offer(run, "two", "set_other")
    offer(run, "three", "set_lr", rank=1)
    first = opened(run, client).publish(writer(run))
    again = opened(run, client).publish(writer(run))
    assert first == again
    assert sorted(it.name for it in first.values()) == ["set_lr", "set_other"]
    documents = list(client.list_documents("capability"))
    assert {it["spec"]["labels"][CAPABILITY_LABEL] for it in documents} == {"one", "two"}
    assert {it["id"]: it["revision"] for it in documents} == {
        it.id: it.revision for it in first.values()
    }
    spec = documents[0]["spec"]
    (participant,) = {it["id"] for it in client.list_documents("participant")}
    assert spec["participant_id"] == participant and "id" not in spec
    assert spec["safe_points"] == ["after_step"] and spec["input_schema"]["root"]["fields"]


def test_a_newer_capability_of_a_name_replaces_the_earlier_one(
    tmp_path: Path, client: Client
) -> None:
    run = WrittenRun(tmp_path)
    offer(run, "one", "set_lr")
    capabilities = opened(run, client)
    (before,) = capabilities.publish(writer(run))
    offer(run, "two", "set_lr")
    (after,) = opened(run, client).publish(writer(run))
    assert before != after
    assert len(list(client.list_documents("capability"))) == 2


def test_one_that_the_server_refuses_hides_no_other(
    tmp_path: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = WrittenRun(tmp_path)
    offer(run, "one", "bad")
    offer(run, "two", "set_lr")
    capabilities = opened(run, client)
    create = client.create_document
    asked: list[str] = []

    def choosy(kind: str, scope: Any, spec: Any, **options: Any) -> Any:
        asked.append(kind)
        if spec.get("name") == "bad":
            raise ApiError("validation", "no", status=400, retryable=False)
        return create(kind, scope, spec, **options)

    monkeypatch.setattr(client, "create_document", choosy)
    for _ in range(2):
        assert [it.name for it in capabilities.publish(writer(run)).values()] == ["set_lr"]
    assert asked.count("capability") == 2, "the refused one is asked for once"


def test_safe_points_are_those_of_capabilities_and_those_that_were_passed(
    tmp_path: Path, client: Client
) -> None:
    run = WrittenRun(tmp_path)
    offer(run, "one", "set_lr")
    run.add("ev", {"type": "safe_point", "name": "lht"})
    run.add("ev", {"type": "safe_point", "name": "Not A Name"})
    assert opened(run, client).safe_points(writer(run)) == ["after_step", "lht"]
