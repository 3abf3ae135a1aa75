"""One good request for every endpoint that a server documents, in a small world of documents.

Whoever wants to be bad to a server begins here and breaks something.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from syncer.api import routes
from tests.support.v1_server import V1Server

Json = Any  # Whatever a request may hold.

DATA = b"0123456789" * 100
SCHEMA = {
    "revision": "1",
    "root": {
        "kind": "record",
        "renderer": "form",
        "fields": [
            {
                "name": "scale",
                "type": {
                    "kind": "scalar",
                    "scalar": "number",
                    "renderer": "numeric",
                    "bounds": {"min": "0"},
                },
            }
        ],
    },
}


@dataclass(frozen=True)
class Call:
    """One request.

    Args:
        name: Its route, or what it is for.
        key: Bearer; None sends none.
    """

    name: str
    method: str
    path: str
    body: Json = None
    query: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    key: str | None = ""

    def but(self, **changes: Any) -> Call:
        """Return a copy with something changed."""
        return replace(self, **changes)


class World:
    """An organisation with a run, its participant, streams, a capability, a command, an artifact.

    Args:
        url: Where the server is.
        organization: Id.
        project: Id.
        key: May do everything in the organisation.
    """

    def __init__(self, url: str, organization: str, project: str, key: str) -> None:
        self.url, self.organization, self.project, self.key = url, organization, project, key
        self.http = httpx.Client(timeout=30)
        self.org = f"/v1/organizations/{organization}"
        scope = {"organization_id": organization, "project_id": project}
        self.run = self._document("run", scope, {"name": "r", "state": "open", "labels": {}})
        self.scope = {**scope, "run_id": self.run}
        spec = {"name": "rank-0", "role": "trainer", "labels": {}}
        self.participant = self._document("participant", self.scope, spec)
        self.stream = self._document("stream", self.scope, self._stream_spec("loss"))
        self.capability = self._document("capability", self.scope, self._capability_spec())
        session = {"instance_id": str(uuid.uuid4()), "safe_points": ["lht"]}
        self.epoch = str(self._post(f"participants/{self.participant}/sessions", session)["epoch"])
        self.command = str(self._post("commands", self._command())["id"])
        self._post("telemetry/batches", self._telemetry())
        self.artifact = str(self._post("artifacts", self._artifact())["id"])

    @classmethod
    def on(cls, server: V1Server) -> World:
        """Make one on a test's server."""
        return cls(server.url, server.organization, server.project, server.key)

    def close(self) -> None:
        """Close the connections."""
        self.http.close()

    def send(self, call: Call) -> httpx.Response:
        """Send a request as it stands."""
        headers = dict(call.headers)
        if call.key is not None:
            headers["Authorization"] = f"Bearer {call.key or self.key}"
        return self.http.request(
            call.method, self.url + call.path, json=call.body, params=call.query, headers=headers
        )

    def calls(self) -> list[Call]:
        """Return a good request for each documented endpoint."""
        return [make() for make in self._makers()]

    def _makers(self) -> list[Callable[[], Call]]:
        epoch = {"epoch": self.epoch}
        lease = {"lease_id": str(uuid.uuid4()), **epoch}
        part = {"number": 1, "size": str(len(DATA)), "sha256": _sha256(DATA)}
        window = {
            "from": "1970-01-01T00:00:00Z",
            "to": "2261-01-01T00:00:00Z",
            "limit": "100",
            "order": "asc",
            "after_epoch": "1",
            "after_sequence": "0",
        }
        listing = {
            "kind": "stream",
            "project_id": self.project,
            "run_id": self.run,
            "cursor": "",
            "limit": "100",
        }
        document = {
            "kind": "stream",
            "scope": self.scope,
            "spec": self._stream_spec("other"),
        }
        update = {"expected_revision": "1", "spec": {"name": "r", "state": "open", "labels": {}}}
        fingerprint = {"fingerprint": "0" * 64}
        result = {
            **lease,
            "outcome": "applied",
            "result": {"lr": [0.5]},
            "applied_at": [{"axis": "step", "value": "3"}],
            "failure_code": "",
            "applied_on": {"count": 1, "of": 1},
        }
        samples = {
            "stream_id": self.stream,
            "axis": {"kind": "coordinate", "name": "step"},
            "select": {"mode": "latest", "limit": 16},
        }
        session = {"instance_id": str(uuid.uuid4()), "safe_points": ["lht"]}
        beat = {**epoch, "step": "3", "safe_points": ["lht", "other"]}
        claim = {**epoch, "wait_ms": 0}
        batch = self._telemetry()["batches"][0]
        participant, command, artifact = self.participant, self.command, self.artifact

        def to(
            method: str, route: str, id_: str = "", body: Json = None, **query: str
        ) -> Callable[[], Call]:
            path = route.format(org=self.organization, id=id_)
            headers = {"Idempotency-Key": uuid.uuid4().hex} if method == "POST" else {}
            return lambda: Call(route, method, path, body, query, headers)

        return [
            to("GET", routes.ME),
            to("GET", routes.ORGANIZATIONS, cursor="", limit="100"),
            to("GET", routes.DOCUMENTS, **listing),
            to("POST", routes.DOCUMENTS, body=document),
            to("POST", routes.DOCUMENT_BATCHES, body={"documents": [document, document]}),
            to("GET", routes.DOCUMENT, self.run, revision="1"),
            to("PATCH", routes.DOCUMENT, self.run, update),
            to("POST", routes.KEYS, body=self.key_body()),
            to("POST", routes.SESSIONS, participant, session),
            to("POST", routes.HEARTBEAT, participant, beat),
            to("GET", routes.SESSION, participant),
            to("POST", routes.SESSION_END, participant, {**epoch, "close_run": "never"}),
            to("POST", routes.CLAIM, participant, claim),
            to("POST", routes.TELEMETRY, body=batch),
            to("POST", routes.TELEMETRY_BATCHES, body=self._telemetry()),
            to("POST", routes.SAMPLES, body=samples),
            to("GET", routes.POINTS, self.stream, **window),
            to("POST", routes.COMMANDS, body=self._command()),
            to("GET", routes.COMMAND, command),
            to("GET", routes.RUN_COMMANDS, self.run, cursor="", limit="100"),
            to("POST", routes.COMMAND_APPROVE, command, fingerprint),
            to("POST", routes.COMMAND_CANCEL, command, fingerprint),
            to("POST", routes.COMMAND_BEGIN, command, lease),
            to("POST", routes.COMMAND_RENEW, command, lease),
            to("POST", routes.COMMAND_RESULT, command, result),
            to("POST", routes.ARTIFACTS, body=self._artifact()),
            to("POST", routes.ARTIFACT_PARTS, artifact, part),
            to("POST", routes.ARTIFACT_COMPLETE, artifact, {"parts": [_part()]}),
            to("GET", routes.ARTIFACT_DOWNLOAD, artifact),
            to("GET", routes.EVENTS, cursor="0", limit="100"),
        ]

    def key_body(self, **grant: Any) -> dict[str, Any]:
        """Return a request for a key of the run."""
        return {
            "name": "logger",
            "participant_id": self.participant,
            "expires_at": "2100-01-01T00:00:00Z",
            "grants": [
                {
                    "effect": "allow",
                    "scope": self.scope,
                    "actions": ["participant.connect", "telemetry.write", "document.read"],
                    "kinds": ["*"],
                    "resources": ["*"],
                    "bounds": {},
                    **grant,
                }
            ],
        }

    def signed_part(self) -> tuple[str, str]:
        """Return the path and query of a signed address for a part, and the artifact's id."""
        made = self._post("artifacts", {**self._artifact(), "name": uuid.uuid4().hex})
        part = {"number": 1, "size": str(len(DATA)), "sha256": _sha256(DATA)}
        url = str(self._post(f"artifacts/{made['id']}/parts", part)["url"])
        return url.removeprefix(self.url), str(made["id"])

    def _stream_spec(self, name: str) -> dict[str, Any]:
        return {
            "name": name,
            "participant_id": self.participant,
            "value_schema": {"type": "number"},
            "axes": ["step"],
            "labels": {},
        }

    def _capability_spec(self) -> dict[str, Any]:
        return {
            "name": "lr",
            "provider": "tests",
            "version": "1",
            "input_schema": SCHEMA,
            "output_schema": SCHEMA,
            "safe_points": ["lht"],
            "participant_id": self.participant,
            "requires_approval": True,
        }

    def _command(self) -> dict[str, Any]:
        return {
            "scope": self.scope,
            "capability": {"id": self.capability, "kind": "capability"},
            "participant_id": self.participant,
            "epoch": self.epoch,
            "expected_state_revision": "0",
            "targets": [],
            "input": {"scale": 0.5},
            "safe_point": "lht",
            "expires_at": "2100-01-01T00:00:00Z",
            "reason": "a test",
        }

    def _telemetry(self) -> dict[str, Any]:
        points = [
            {
                "observed_at": "2026-01-01T00:00:00.382656Z",
                "coordinates": [{"axis": "step", "value": str(number)}],
                "value": 0.25,
                "sequence": str(number),
            }
            for number in range(3)
        ]
        batch = {
            "batch_id": str(uuid.uuid4()),
            "stream_id": self.stream,
            "stream_revision": "1",
            "epoch": self.epoch,
            "participant_id": self.participant,
            "points": points,
        }
        return {"protocol": "1.0", "batches": [batch]}

    def _artifact(self) -> dict[str, Any]:
        return {
            "scope": self.scope,
            "name": "step-7.pt",
            "media_type": "application/octet-stream",
            "size": str(len(DATA)),
            "sha256": _sha256(DATA),
            "provenance": {"inputs": [], "coordinates": [], "labels": {}},
            "purpose": "general",
        }

    def _document(self, kind: str, scope: dict[str, str], spec: dict[str, Any]) -> str:
        return str(self._post("documents", {"kind": kind, "scope": scope, "spec": spec})["id"])

    def _post(self, path: str, body: Json) -> Json:
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        answer = self.send(Call(path, "POST", f"{self.org}/{path}", body, headers=headers))
        assert answer.status_code < 300, answer.text
        return answer.json()


def _part() -> dict[str, Any]:
    return {"number": 1, "etag": f'"{_sha256(DATA)}"'}


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
