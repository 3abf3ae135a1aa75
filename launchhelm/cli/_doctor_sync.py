"""The checks of `doctor` that concern syncing: leases, keys, and a server if one is to be asked."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from launchhelm import _settings
from launchhelm.cli import _server
from launchhelm.doctor.finding import Finding, listed
from launchhelm.errors import ConfigError, LaunchHelmError

if TYPE_CHECKING:
    from launchhelm.views import RunSummary
    from syncer.discover import Place


def key() -> str:
    """Return the key that a syncer here would use, "" without one."""
    from syncer.settings import KeySource

    return KeySource().read()


def leases(places: Sequence[Place]) -> Iterator[Finding]:
    """Name leases whose holder has gone quiet; the next syncer waits for them, 2 minutes."""
    from syncer import status

    for place in places:
        for known in status.remembered(place.directory, place.run_id):
            held = status.holder(known.directory)
            if held is not None and held.is_quiet:
                yield Finding(
                    "lease",
                    "note",
                    str(place.directory),
                    f"A syncer for {known.server} ended without giving its lease back.",
                    f"It was on {held.text}.",
                    "Nothing has to be done: the next syncer takes the lease over in 2 minutes.",
                )
            if known.doubt:
                yield Finding(
                    "sync_state",
                    "warning",
                    str(place.directory),
                    f"What a syncer remembers of {known.server} cannot be trusted.",
                    known.doubt,
                    "The next `launchhelm sync` asks the server what it has, and goes on there.",
                )


def nobody_syncs(places: Sequence[Place], summaries: Sequence[RunSummary]) -> list[Finding]:
    """Say it when there is a key and a live run, and nothing sends the run."""
    from syncer import status

    live = {it.run_id: it for it in summaries if it.state.word in ("running", "starting")}
    alone = []
    for place in places:
        if place.run_id in live:
            known = status.remembered(place.directory, place.run_id)
            held = [holder for it in known if (holder := status.holder(it.directory)) is not None]
            if all(holder.is_quiet for holder in held):
                alone.append(place.name)
    if not alone or not key():
        return []
    what = "A live run is" if len(alone) == 1 else f"{len(alone):,} live runs are"
    return [
        Finding(
            "no_syncer",
            "warning",
            str(places[0].directory.parent),
            f"{what} not uploaded although a key is set.",
            listed(alone),
            f"launchhelm sync {places[0].directory.parent} --watch, or start the job with "
            "LAUNCHHELM_SYNC=1.",
        )
    ]


def server(arguments: argparse.Namespace) -> list[Finding]:
    """Ask the server, through the proxy and with the authorities that syncing would use."""
    try:
        target = _server.target_of(arguments)
        _server.require_http("Asking a server")
        from syncer.connection import open_client

        client, _ = open_client(target)
        client.close()
    except LaunchHelmError as error:
        url = arguments.server or _settings.URL.read() or "the server"
        kind = "settings" if isinstance(error, ConfigError) else "server"
        remedy = error.remedy or (
            "Look at HTTPS_PROXY and NO_PROXY, and at LAUNCHHELM_CA_BUNDLE for a private authority."
            if not error.status
            else "Look at the key and at what it may do: launchhelm serve keys list."
        )
        said = f"status {error.status}" if error.status else ""
        return [Finding(kind, "error", url, error.message, said, remedy)]
    return []
