"""Every call of `Client` that a run makes, against one server, with what came back.

Run by the official SDK and by ours. The argument is the id of the project. Says for each call the
types and values of its answer; ids, times and digests by the order in which they appeared.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
import uuid
from pathlib import Path
from typing import Any

from launchhelm import Client, LaunchHelmError, Scope

VARYING = re.compile(
    r"cGxhY2[0-9A-Za-z]+|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{64}|\d{4}-\d\d-\d\dT[0-9:.]+Z"
)
seen: dict[str, str] = {}


def say(event: str, **facts: Any) -> None:
    """Tell the test something."""
    print(json.dumps({"event": event, **facts}))


def shape(value: Any) -> Any:
    """Return a value as JSON with its class, and with a word for whatever differs each time."""
    if dataclasses.is_dataclass(value):
        fields = {it.name: shape(getattr(value, it.name)) for it in dataclasses.fields(value)}
        return [type(value).__name__, fields]
    if isinstance(value, str):
        return VARYING.sub(lambda it: seen.setdefault(it[0], f"#{len(seen)}"), value)
    if isinstance(value, bytes):
        return ["bytes", len(value)]
    if hasattr(value, "items"):
        return {str(name): shape(item) for name, item in sorted(value.items())}
    if isinstance(value, list | tuple):
        return [type(value).__name__, *map(shape, value)]
    return value


def call(name: str, *arguments: Any, **options: Any) -> Any:
    """Make one call, say what came back, and return it."""
    try:
        answer = getattr(client, name)(*arguments, **options)
    except LaunchHelmError as error:
        say(name, code=error.code, status=error.status, retryable=error.retryable)
    except (ValueError, TypeError) as error:
        say(name, error="ValueError" if isinstance(error, ValueError) else "TypeError")
    else:
        said = shape(answer) if name not in ("create_key", "events") else type(answer).__name__
        say(name, answer=said)
        return answer
    return None


project = sys.argv[1]
organization = os.environ["LAUNCHHELM_ORGANIZATION"]
client = Client(os.environ["LAUNCHHELM_URL"], os.environ["LAUNCHHELM_API_KEY"], organization)
say(
    "attributes",
    base_url=bool(client.base_url),
    organization=client.organization_id == organization,
)

call("list_my_organizations")
scope = Scope(organization, project)
run = call("create_document", "run", scope, {"name": "r", "state": "open", "labels": {}})
inside = Scope(organization, project, run.id)
spec = {"name": "p", "role": "logger", "labels": {}}
participant, other = call(
    "create_documents", [("participant", inside, spec), ("participant", inside, spec)]
)
stream = call(
    "create_document",
    "stream",
    inside,
    {
        "name": "loss",
        "participant_id": participant.id,
        "value_schema": {"type": "number"},
        "axes": ["step"],
        "labels": {},
    },
)
call("get_document", run.id)
call("get_document", run.id, revision="1")
call("get_document", str(uuid.uuid4()))
call("get_document", "no id")
call("update_document", run, {"name": "renamed", "state": "open", "labels": {}})
call("update_document", run, {"name": "too late", "state": "open", "labels": {}})
first = call("list_documents", kind="participant", project_id=project, run_id=run.id, limit=1)
call(
    "list_documents",
    kind="participant",
    project_id=project,
    run_id=run.id,
    limit=1,
    cursor=first["next_cursor"],
)
call("create_key", participant)
session = call("connect", participant.id, str(uuid.uuid4()), safe_points=("lht",))
call("heartbeat", participant.id, session["epoch"])
points = [
    {
        "observed_at": f"2026-11-30T12:00:0{step}.000000Z",
        "coordinates": [{"axis": "step", "value": str(step)}],
        "value": step / 2,
        "sequence": str(step + 1),
    }
    for step in range(4)
]
batch = {
    "protocol": "1.0",
    "batch_id": str(uuid.uuid4()),
    "stream_id": stream.id,
    "stream_revision": "1",
    "epoch": session["epoch"],
    "participant_id": participant.id,
    "points": points,
}
base = f"/v1/organizations/{organization}"
call("request", "POST", f"{base}/telemetry/batches", {"protocol": "1.0", "batches": [batch]})
window = {"start": "1970-01-01T00:00:00Z", "end": "2261-01-01T00:00:00Z"}
call("query", stream.id, **window, limit=3)
call("query", stream.id, **window, limit=1, order="desc")
call(
    "query",
    stream.id,
    start="2026-11-30T12:00:01Z",
    end=window["end"],
    after_epoch="1",
    after_sequence="2",
)
call("read_samples", stream.id, select={"mode": "latest", "limit": 2})
Path("file.bin").write_bytes(bytes(range(256)) * 100)
key = str(uuid.uuid4())
artifact = call("upload_file", "file.bin", inside, idempotency_key=key)
call("upload_file", "file.bin", inside, idempotency_key=key)
call("download_artifact", artifact.id)
call("download_artifact", str(uuid.uuid4()))
call("claim", participant.id, session["epoch"])
call("get_command", str(uuid.uuid4()))
call("events", cursor="0", limit=1)
call("end_session", participant.id, session["epoch"], close_run="when_idle")
client.close()
