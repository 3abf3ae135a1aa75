"""One server without sockets, with a run and its participant, for tests of points and artifacts."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx

from syncer.api import wire
from syncer.server import accounts
from syncer.server.app import application
from syncer.server.database import Database
from syncer.server.state import Server
from tests.support.asgi import Asgi

START = 1_800_000_000.0


class Hand:
    """A clock whose wall time stands until a test moves it."""

    def __init__(self) -> None:
        self.now = START

    def wall(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return time.monotonic()


class Desk:
    """A run whose one participant is connected, and a client with every right."""

    def __init__(self, server: Server, clock: Hand, asgi: Asgi) -> None:
        self.server, self.clock, self.asgi = server, clock, asgi
        with server.database.write() as connection:
            self.organization = accounts.create_organization(connection, "default", START)
        self.key = self.make_key()
        asgi.http.headers["Authorization"] = f"Bearer {self.key}"
        self.scope = {"organization_id": self.organization}
        self.scope["project_id"] = self.document("project", {"name": "p", "labels": {}})
        self.scope["run_id"] = self.document("run", {"name": "r", "state": "open"})
        self.participant = self.document("participant", {"name": "rank-0", "role": "trainer"})
        self.epoch = self.connect()

    def make_key(self, actions: Sequence[str] = ("*",), participant_id: str = "") -> str:
        with self.server.database.write() as connection:
            _, key = accounts.create_key(
                connection,
                name="test",
                organization_id=self.organization,
                grants=[accounts.Grant("", "", frozenset(actions))],
                now=START,
                participant_id=participant_id,
            )
        return key

    def path(self, rest: str) -> str:
        return f"/v1/organizations/{self.organization}/{rest}"

    def get(self, rest: str, **parameters: object) -> httpx.Response:
        query = "&".join(f"{name.rstrip('_')}={value}" for name, value in parameters.items())
        return self.asgi.get(self.path(rest) + (f"?{query}" if query else ""))

    def post(
        self, rest: str, body: object, headers: dict[str, str] | None = None
    ) -> httpx.Response:
        return self.asgi.post(self.path(rest), body, headers)

    def post_raw(self, rest: str, data: bytes) -> httpx.Response:
        return self.asgi.run(self.asgi.http.post(self.path(rest), content=data))

    def document(self, kind: str, spec: dict[str, Any]) -> str:
        answer = self.post("documents", {"kind": kind, "scope": self.scope, "spec": spec})
        assert answer.status_code == 200, answer.text
        made: str = answer.json()["id"]
        return made

    def connect(self) -> str:
        answer = self.post(
            f"participants/{self.participant}/sessions",
            {"instance_id": str(uuid.uuid4()), "safe_points": []},
        )
        epoch: str = answer.json()["epoch"]
        return epoch

    def stream(self, kind: str = "number", axes: Sequence[str] = ("step",), **more: Any) -> str:
        return self.document(
            "stream",
            {
                "name": "train/loss",
                "participant_id": self.participant,
                "value_schema": {"type": kind},
                "axes": list(axes),
                "labels": {},
                **more,
            },
        )

    def batch(
        self, stream: str, points: Sequence[dict[str, Any]], **changes: Any
    ) -> dict[str, Any]:
        return {
            "protocol": "1.0",
            "batch_id": str(uuid.uuid4()),
            "stream_id": stream,
            "stream_revision": "1",
            "epoch": self.epoch,
            "participant_id": self.participant,
            "points": list(points),
            **changes,
        }

    def ingest(self, *batches: dict[str, Any]) -> list[dict[str, Any]]:
        answer = self.post("telemetry/batches", {"protocol": "1.0", "batches": batches})
        assert answer.status_code == 200, answer.text
        receipts: list[dict[str, Any]] = answer.json()["receipts"]
        assert [r["batch_id"] for r in receipts] == [b["batch_id"] for b in batches]
        return receipts

    def status(self, *batches: dict[str, Any]) -> list[str]:
        return [receipt["status"] for receipt in self.ingest(*batches)]

    def points(self, stream: str, **parameters: object) -> dict[str, Any]:
        answer = self.get(f"streams/{stream}/points", **parameters)
        assert answer.status_code == 200, answer.text
        page: dict[str, Any] = answer.json()
        return page

    def values(self, stream: str) -> list[Any]:
        return [item["value"] for item in self.points(stream, limit=10_000)["items"]]

    def events(self, kind: str) -> list[dict[str, Any]]:
        items = self.get("events", limit=1000).json()["items"]
        return [item for item in items if item["kind"] == kind]


def point(sequence: int, value: Any = 0.5, at: float | None = None, **more: Any) -> dict[str, Any]:
    """Build one point; its time and step follow from its sequence unless told otherwise."""
    return {
        "observed_at": wire.timestamp(START + sequence if at is None else at),
        "coordinates": [{"axis": "step", "value": str(sequence)}],
        "value": value,
        "sequence": str(sequence),
        **more,
    }


@contextlib.contextmanager
def desk(directory: Path) -> Iterator[Desk]:
    """Open a server over a directory."""
    clock = Hand()
    database = Database(directory / "server.db", clock)
    server = Server(database, clock, directory, b"s" * 32)
    with Asgi(application(server)) as asgi:
        yield Desk(server, clock, asgi)
    database.close()
