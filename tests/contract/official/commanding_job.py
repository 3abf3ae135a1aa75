"""A controller that knows a project and gives the orders on stdin, one line of JSON each.

All else it finds through the official SDK's client: the run, its controls, where its state stands.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

from spoken import say, wait

import launchhelm

LIMIT_S = 180.0
ENDED = ("applied", "rejected", "cancelled", "outcome_unknown")

client = launchhelm.Client(
    os.environ["LAUNCHHELM_URL"],
    os.environ["LAUNCHHELM_API_KEY"],
    os.environ["LAUNCHHELM_ORGANIZATION"],
)
project = sys.argv[1]


def found(kind: str, run: str = "") -> list[Any]:
    return client.list_documents(kind=kind, project_id=project, run_id=run)["items"]


def until(look: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + LIMIT_S
    while not (answer := look()):
        if time.monotonic() > deadline:
            raise SystemExit("nothing happened")
        time.sleep(0.02)
    return answer


def submit(order: dict[str, Any]) -> dict[str, Any]:
    capability = controls[order["name"]]
    participant = capability["spec"]["participant_id"]
    # An extension of our server, so that the SDK has no method of its own for it.
    path = f"/v1/organizations/{client.organization_id}/participants/{participant}/session"
    session = client.request("GET", path)
    expires_at = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=order["valid_s"])
    request = {
        "scope": capability["scope"],
        "capability": {
            "id": capability["id"],
            "kind": "capability",
            "revision": capability["revision"],
        },
        "participant_id": participant,
        "epoch": session["epoch"],
        "expected_state_revision": order["state"] or session["state_revision"],
        "targets": [],
        "input": order["given"],
        "safe_point": capability["spec"]["safe_points"][0],
        "expires_at": expires_at.isoformat().replace("+00:00", "Z"),
        "reason": "a test",
    }
    return client.submit_command(request, idempotency_key=uuid.uuid4().hex)


def end_of(command: dict[str, Any]) -> Any:
    def ended() -> Any:
        now = client.get_command(command["id"])
        return now if now["execution"] in ENDED else None

    return until(ended)


run = until(lambda: found("run"))[0]["id"]
until(lambda: [each for each in found("capability", run) if each["spec"]["name"] == "erase"])
controls = {each["spec"]["name"]: each for each in found("capability", run)}
say("offered", names=sorted(controls))
while line := wait():
    order = json.loads(line)
    try:
        command = submit(order)
        for action in order["decide"]:
            client.decide_command(command, action)
    except launchhelm.LaunchHelmError as error:
        say("refused", code=error.code)
        continue
    say("ended", before=command["execution"], command=end_of(command))
client.close()
say("left")
