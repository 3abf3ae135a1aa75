"""One server as the service uses it: a client with the key as it is now, shared by all pushes."""

from __future__ import annotations

from types import TracebackType
from typing import Final, Self

from launchhelm._clock import SYSTEM_CLOCK, Clock
from launchhelm.errors import ConfigError
from syncer import status
from syncer.api.client import Client
from syncer.discover import Place
from syncer.pull import RunPull
from syncer.push import RunPush
from syncer.runindex import RunIndex
from syncer.settings import Target
from syncer.state import server_hex
from syncer.work import Push

TIMEOUT_S: Final = 30.0
"""Of each step of a request; a server that does not answer holds a run no longer."""

_SHOWN: Final = 5


class Connection:
    """The way to one server. Belongs to the thread of the service.

    Args:
        only: Parts of runs that are sent; empty means all.
        since: Leave out what was recorded before, by the clock of its writer.
        retry_skipped: Ask again for runs that the server said are gone.
    """

    def __init__(
        self,
        target: Target,
        *,
        only: frozenset[str] = frozenset(),
        since: float | None = None,
        retry_skipped: bool = False,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.organization = target.organization
        self._target = target
        self._only = only
        self._since = since
        self._retry_skipped = retry_skipped
        self._clock = clock
        self._client: Client | None = None
        self._runs: RunIndex | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def connect(self) -> None:
        """Use the key as it is now, and find out the organisation where nobody said it.

        Raises:
            ApiError: The server cannot be asked.
            ConfigError: It cannot be used like this.
        """
        self.close()
        client = open_client(self._target, self.organization)
        self.organization = client.organization
        self._client, self._runs = client, RunIndex(client)

    def open_push(self, place: Place) -> RunPush:
        """Make the push of one run."""
        assert self._client is not None, "connect comes first"
        return RunPush(
            place.directory,
            self._client,
            project=self._target.project,
            runs=self._runs,
            only=self._only,
            since=self._since,
            retry_skipped=self._retry_skipped,
            clock=self._clock,
        )

    def open_pull(self, place: Place, push: Push) -> RunPull:
        """Make what asks for the commands of one run, beside a push that was opened here."""
        assert self._client is not None, "connect comes first"
        assert isinstance(push, RunPush)
        server = server_hex(self._client.origin, self._client.organization)
        return RunPull(place.directory, self._client, push, server, clock=self._clock)

    def settled(self, place: Place) -> str | None:
        """Tell from files whether a run has to be opened at all, see `Service`.

        Without a lease: what an earlier process wrote down before it ended, and nothing newer.
        """
        known = status.of_server(place.directory, place.run_id, self._target.url, self.organization)
        if known is None or known.doubt or (known.verdict and self._retry_skipped):
            return None
        if known.verdict:
            return known.verdict
        is_whole = known.state.is_closed and not known.state.flights
        return "" if is_whole and status.has_nothing_new(place.directory, known) else None


def open_client(target: Target, organization: str = "") -> Client:
    """Return a client with the key as it is now; its organisation is asked for if nobody named it.

    Raises:
        ApiError: The server cannot be asked.
        ConfigError: It cannot be used like this.
    """
    client = Client(
        target.url,
        organization or target.organization,
        target.key.read(),
        ca_bundle=target.ca_bundle,
        verify=target.verify,
        timeout_s=TIMEOUT_S,
    )
    try:
        if not client.organization:
            client.organization = _only_organization(client, target.url)
    except BaseException:
        client.close()
        raise
    return client


def _only_organization(client: Client, url: str) -> str:
    found = client.organizations()
    if len(found) == 1:
        return str(found[0].get("id", ""))
    if not found:
        raise ConfigError(
            f"The key sees no organisation on {url}.",
            remedy="Give its id with --organization or LAUNCHHELM_ORGANIZATION.",
        )
    listed = ", ".join(f"{it.get('id')} ({it.get('name')})" for it in found[:_SHOWN])
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    raise ConfigError(
        f"The key sees {len(found)} organisations on {url}: {listed}{more}.",
        remedy="Name one with --organization or LAUNCHHELM_ORGANIZATION.",
    )
