"""A server that takes artifacts, in memory, and fails where a test says so."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from syncer.api.answers import ApiError
from syncer.artifacts import Artifacts, SetAside
from tests.support.runs import TurnedClock

SCOPE = {"organization_id": "o", "project_id": "p", "run_id": "r"}


class FarServer:
    """Takes artifacts as the API has it, and fails where it is told to.

    Args:
        fail: Called with the name of each call and its number from 0; raises or returns.
    """

    def __init__(self, fail: Callable[[str, int], object] = lambda call, number: None) -> None:
        self.fail = fail
        self.calls: list[str] = []
        self.documents: dict[str, dict[str, Any]] = {}
        self.by_key: dict[str, str] = {}
        self.parts: dict[tuple[str, int], bytes] = {}
        self.whole: dict[str, bytes] = {}
        self._ids = itertools.count()

    def _call(self, name: str) -> None:
        number = self.calls.count(name)
        self.calls.append(name)
        self.fail(name, number)

    def create_artifact(self, body: Mapping[str, Any], key: str) -> dict[str, Any]:
        if key not in self.by_key:
            id_ = self.by_key[key] = f"theirs-{next(self._ids)}"
            spec = {**body, "state": "pending"}
            self.documents[id_] = {"id": id_, "kind": "artifact", "spec": spec}
        self._call("create")
        return self.documents[self.by_key[key]]

    def artifact_part(self, id_: str, number: int, size: int, sha256: str) -> dict[str, Any]:
        self._call("sign")
        return {"url": f"{id_} {number} {sha256}", "headers": {"x": "y"}}

    def put_part(self, url: str, headers: Mapping[str, str], data: bytes) -> str:
        id_, number, sha256 = url.split()
        assert hashlib.sha256(data).hexdigest() == sha256
        assert headers == {"x": "y"}
        self.parts[id_, int(number)] = data
        self._call("put")
        return f'"{sha256}"'

    def complete_artifact(self, id_: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
        self._call("complete")
        self.whole[id_] = b"".join(self.parts[id_, part["number"]] for part in parts)
        spec = self.documents[id_]["spec"]
        assert hashlib.sha256(self.whole[id_]).hexdigest() == spec["sha256"]
        spec["state"] = "ready"
        return self.documents[id_]


def uploads(server: FarServer, directory: Path, **arguments: Any) -> Artifacts:
    return Artifacts(server, directory, lambda: SCOPE, **arguments)  # type: ignore[arg-type]


def send(work: Artifacts, clock: TurnedClock | None = None) -> list[SetAside]:
    """Turn until nothing is left; ApiErrors are waited out."""
    aside: list[SetAside] = []
    for _ in range(10_000):
        if not work.pending:
            return aside
        with contextlib.suppress(ApiError):
            aside += work.step(1.0)
        if clock is not None:
            clock.turn(1.0)
    raise AssertionError(f"does not end: {work.problem}")
