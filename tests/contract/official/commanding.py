"""A controller: the official SDK's client submits, decides and reads commands of a run."""

from __future__ import annotations

import json
import os
import sys
import time

from spoken import say

import launchhelm

DEADLINE = time.monotonic() + 60
WANTED = json.loads(sys.argv[1])

client = launchhelm.Client(
    os.environ["LAUNCHHELM_URL"],
    os.environ["LAUNCHHELM_API_KEY"],
    os.environ["LAUNCHHELM_ORGANIZATION"],
)


def submit(capability: str, value: object, *, state: str, key: str) -> dict[str, object]:
    request = {
        **WANTED["request"],
        "capability": {"id": WANTED[capability], "kind": "capability", "revision": "1"},
        "expected_state_revision": state,
        "input": value,
    }
    return client.submit_command(request, idempotency_key=key)


def ended(command: dict[str, object]) -> dict[str, object]:
    while time.monotonic() < DEADLINE:
        now = client.get_command(command["id"])
        if now["execution"] in ("applied", "rejected", "cancelled", "outcome_unknown"):
            return now
        time.sleep(0.02)
    raise SystemExit("nothing happened")


first = submit("open", {"scale": 0.5}, state="0", key="one")
again = submit("open", {"scale": 0.5}, state="0", key="one")
applied = ended(first)
say("applied", command=applied, same=first["id"] == again["id"])

held = submit("guarded", {"lr": 0.1}, state="1", key="two")
dropped = submit("guarded", {"lr": 9}, state="1", key="three")
cancelled = client.decide_command(dropped, "cancel")
approved = client.decide_command(held, "approve")
say(
    "decided",
    before=[held["execution"], dropped["execution"]],
    cancelled=cancelled["execution"],
    approved=approved["execution"],
    held=ended(held),
    dropped=ended(dropped),
)

try:
    submit("open", {"scale": 0.5}, state="0", key="four")
except launchhelm.LaunchHelmError as error:
    say("refused", code=error.code)
say("unknown", command=ended(submit("open", {"scale": 13}, state="2", key="five")))
client.close()
