"""Commands given on a server of our own, and the syncer that takes them to runs, for benchmarks."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final  # Any: JSON of the API.

from benchmarks.sync import Hosted
from syncer.api import wire
from syncer.api.client import Client

LONGEST_S: Final = 60.0
"""After this time a command is not carried out any more."""

_ASK_S: Final = 0.03
_STOP_S: Final = 60.0

Json = dict[str, Any]


@contextmanager
def watching(server: Hosted, root: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Have `launchhelm sync --watch` at work for as long as the block runs."""
    process = subprocess.Popen(
        [sys.executable, "-m", "launchhelm", "sync", "--watch", str(root)],
        env=server.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(_STOP_S)


def client_of(server: Hosted) -> Client:
    """Return a client of whoever gives commands; close it."""
    return Client(server.url, server.made.organization_id, server.made.token)


def offers(client: Client, name: str) -> list[Json]:
    """Return what may be commanded under that name, of all runs."""
    found = client.list_documents("capability")
    return [document for document in found if document["spec"]["name"] == name]


def sent(
    client: Client, offer: Json, given: Mapping[str, Any], safe_point: str
) -> tuple[Json, float]:
    """Give a command and wait for its end; return it, and the seconds from `submit` on."""
    participant = offer["spec"]["participant_id"]
    session = client.session(participant)
    body = {
        "scope": offer["scope"],
        "capability": {"id": offer["id"], "kind": "capability", "revision": offer["revision"]},
        "participant_id": participant,
        "epoch": session["epoch"],
        "expected_state_revision": session["state_revision"],
        "targets": [],
        "input": dict(given),
        "safe_point": safe_point,
        "expires_at": wire.timestamp(time.time() + LONGEST_S),
        "reason": "",
    }
    began = time.monotonic()
    command = client.submit(body, uuid.uuid4().hex)
    while command["execution"] in ("queued", "claimed", "applying"):
        time.sleep(_ASK_S)
        command = client.get_command(command["id"])
    return command, time.monotonic() - began
