"""One server as the service uses it: a client with the key as it is now, shared by all pushes."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Final, Self  # Any: JSON values.

from launchhelm._clock import SYSTEM_CLOCK, Clock
from launchhelm.errors import ConfigError
from syncer import status, trouble
from syncer.api.answers import ApiError
from syncer.api.client import Client
from syncer.discover import Place
from syncer.pull import RunPull
from syncer.push import RunPush
from syncer.runindex import RunIndex
from syncer.settings import Target
from syncer.state import server_hex
from syncer.trouble import Trouble
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
        self._generation = ""

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
        """Use the key as it is now, and see that a server of ours answers and knows us.

        Raises:
            ApiError: The server cannot be asked.
            ConfigError: It cannot be used like this.
        """
        self.close()
        client, listed = open_client(self._target, self.organization)
        self.organization = client.organization
        self._generation = _generation(self.organization, listed)
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
            generation=self._generation,
        )

    def open_pull(self, place: Place, push: Push) -> RunPull:
        """Make what asks for the commands of one run, beside a push that was opened here."""
        assert self._client is not None, "connect comes first"
        assert isinstance(push, RunPush)
        server = server_hex(self._client.origin, self._client.organization)
        return RunPull(place.directory, self._client, push, server, clock=self._clock)

    def note(self, place: Place, why: str) -> None:
        """Leave word beside a run why it could not be opened; "" takes it away."""
        server, root = self._target.url, status.state_root()
        directory, run_id, organization = place.directory, place.run_id, self.organization
        if why:
            noted = Trouble(server, organization, why, self._clock.wall())
            trouble.write(directory, run_id, noted, state_root=root)
        else:
            trouble.clear(directory, run_id, server, organization, state_root=root)

    def settled(self, place: Place) -> str | None:
        """Tell from files whether a run has to be opened at all, see `Service`.

        Without a lease: what an earlier process wrote down before it ended, and nothing newer.
        """
        known = status.of_server(place.directory, place.run_id, self._target.url, self.organization)
        if known is None or known.doubt or (known.verdict and self._retry_skipped):
            return None
        if self._generation and known.state.generation != self._generation:
            return None  # The server went back to a backup.
        if known.verdict:
            return known.verdict
        is_whole = known.state.is_closed and not known.state.flights
        return "" if is_whole and status.has_nothing_new(place.directory, known) else None


def open_client(target: Target, organization: str = "") -> tuple[Client, list[dict[str, Any]]]:
    """Return a client with the key as it is now, and the organisations that the key knows.

    Raises:
        ApiError: The server cannot be asked.
        ConfigError: It is none of ours, or cannot be used like this.
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
        listed = _organizations(client, target.url, may_be_secret=bool(client.organization))
        if not client.organization:
            client.organization = _only_one(listed, target.url)
        elif listed:
            _check_known(client.organization, listed, target.url)
    except BaseException:
        client.close()
        raise
    return client, listed


def _organizations(client: Client, url: str, *, may_be_secret: bool) -> list[dict[str, Any]]:
    """List the organisations that the key knows; the first question to any server.

    Args:
        may_be_secret: Whether a key that may not list them can be used all the same.
    """
    try:
        return client.organizations()
    except ApiError as error:
        if error.status == 403 and may_be_secret:
            return []
        if not _is_strange(error):
            raise
        said = f"with status {error.status}" if error.status >= 300 else "something else than JSON"
        if 300 <= error.status < 400:
            said = f"with a redirect ({error.status})"
        problem = ConfigError(
            f"This is not a LaunchHelm server: {url} answered {said}.",
            remedy="Check LAUNCHHELM_URL or --server.",
        )
    raise problem


def _is_strange(error: ApiError) -> bool:
    """Whether an answer is none of this API, and not one that passes either."""
    if error.status == 404 or error.code == "invalid_response":
        return True
    is_passing = error.status in (0, 408, 425, 429) or error.status >= 500
    return error.code == "http_error" and error.status not in (401, 403) and not is_passing


def _only_one(found: list[dict[str, Any]], url: str) -> str:
    if len(found) == 1:
        return str(found[0].get("id", ""))
    if not found:
        raise ConfigError(
            f"The key sees no organisation on {url}.",
            remedy="Give its id with --organization or LAUNCHHELM_ORGANIZATION.",
        )
    raise ConfigError(
        f"The key sees {len(found)} organisations on {url}: {_names(found)}.",
        remedy="Name one with --organization or LAUNCHHELM_ORGANIZATION.",
    )


def _check_known(organization: str, found: list[dict[str, Any]], url: str) -> None:
    if organization.lower() not in (str(it.get("id", "")).lower() for it in found):
        raise ConfigError(
            f"The organisation {organization} is unknown on {url}; the key sees {_names(found)}.",
            remedy="Check LAUNCHHELM_ORGANIZATION or --organization.",
        )


def _generation(organization: str, found: list[dict[str, Any]]) -> str:
    """Name the server's line of history, where it does."""
    ours = (it for it in found if str(it.get("id", "")).lower() == organization.lower())
    return str(next(ours, {}).get("generation", ""))


def _names(found: list[dict[str, Any]]) -> str:
    listed = ", ".join(f"{it.get('id')} ({it.get('name')})" for it in found[:_SHOWN])
    return f"{listed} and {len(found) - _SHOWN} more" if len(found) > _SHOWN else listed
