"""A participant as small as can be: it offers controls, and does with commands what a test says.

It speaks to the server through our own client only, as a syncer does on behalf of a run.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from launchhelm.controls import schema
from syncer.api.client import Client
from syncer.naming import RUN_LABEL
from tests.support.v1_server import V1Server

Json = Any  # Whatever the API answers.

LR = {
    "name": "lr",
    "provider": "launchhelm.torch",
    "version": "1.0.0",
    "input_schema": schema.record(
        [
            schema.field("scale", schema.number(minimum=0), optional=True),
            schema.field("lr", schema.number(minimum=0), optional=True),
        ]
    ),
    "output_schema": {"revision": "1", "root": {"kind": "opaque", "renderer": "generic"}},
    "safe_points": ["lht"],
    "requires_approval": False,
}

APPLIED = {
    "outcome": "applied",
    "result": {"lr": {"old": [0.01, 0.01], "new": [0.005, 0.005]}},
    "applied_at": [{"axis": "step", "value": "412"}],
    "applied_on": {"count": 4, "of": 4},
    "failure_code": "",
}


class Participant:
    """Rank 0 of one run on a server, connected. As a context manager it also answers commands.

    Args:
        name: Of the run.
        answer: Makes the result of each command it has claimed; None claims and does no more.
    """

    def __init__(
        self,
        server: V1Server,
        name: str = "ddp-run",
        answer: Callable[[Json], dict[str, Any] | None] = lambda command: APPLIED,
        *,
        local_id: str = "",
    ) -> None:
        self.server = server
        self.client: Client = server.client()
        self.taken: list[Json] = []
        labels = {RUN_LABEL: local_id} if local_id else {}
        self.run = server.document("run", server.scope, name=name, state="open", labels=labels)
        self.id = str(server.participant(self.run)["id"])
        self._answer = answer
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._obey, name="participant", daemon=True)
        self.connect()
        self.offer()

    def connect(self) -> None:
        """Open a session; the one before is over."""
        self.epoch = str(self.client.connect(self.id, str(uuid.uuid4()), ["lht"])["epoch"])

    def offer(self, **changes: Any) -> str:
        """Register a control and return the id of its document."""
        scope = {**self.server.scope, "run_id": self.run["id"]}
        spec = {**LR, "participant_id": self.id, **changes}
        return str(self.client.create_document("capability", scope, spec)["id"])

    def end(self) -> None:
        """End the session."""
        self.client.end_session(self.id, self.epoch)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join(20)
        assert not self._thread.is_alive()
        self.client.close()

    def _obey(self) -> None:
        while not self._over.is_set():
            command = self.client.claim(self.id, self.epoch, wait_ms=200)
            if command is None:
                continue
            self.taken.append(command)
            said = self._answer(command)
            if said is None:
                continue
            lease, epoch = command["lease_id"], command["request"]["epoch"]
            if said["outcome"] != "rejected":
                self.client.begin(command["id"], lease, epoch)
            self.client.result(command["id"], {"lease_id": lease, "epoch": epoch, **said})
