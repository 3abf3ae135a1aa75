"""What is said to a server about commands, each time with the participant's own key."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar  # Any: JSON of the API.

from launchhelm._clock import Clock
from syncer import retry
from syncer.api import wire
from syncer.api.answers import ApiError
from syncer.api.client import Client
from syncer.commands import Origin, Voice
from syncer.keys import Keys

_T = TypeVar("_T")
_NOT_TAKEN: Final = (400, 404, 409, 413, 422)

_log = logging.getLogger("launchhelm")


class Place(Protocol):
    """Where the run is on the server, and the keys of its participants."""

    @property
    def keys(self) -> Keys: ...
    @property
    def scope(self) -> Mapping[str, str]: ...


@dataclass(slots=True)
class CommandCalls:
    """The calls of `RunPull`. All may raise ApiError, but for what is said here.

    Args:
        wait: Sleeps for so many seconds, shorter when it is time to stop.
    """

    client: Client
    place: Place
    clock: Clock
    wait: Callable[[float], object]

    def claim(self, voice: Voice, wait_s: float) -> dict[str, Any] | None:
        """Wait for the next command of a process."""
        milliseconds = max(1, int(1000 * wait_s))
        return self._call(
            voice.participant, self.client.claim, voice.participant, voice.epoch, milliseconds
        )

    def begin(self, origin: Origin, deadline: float, is_over: Callable[[], bool]) -> str:
        """Get the right to deliver; return the failure code when it cannot be had, "" else.

        Never raises: what the server does not say for certain until the deadline is no right.

        Args:
            origin: Of a command that was claimed.
            deadline: Monotonic time.
            is_over: Whether to give up now.
        """
        tries = 0
        state: str | None = "claimed"
        while state in (None, "claimed"):
            if state == "claimed":  # Asking again is harmless under the same lease.
                try:
                    call = self.client.begin
                    self._call(origin.participant, call, origin.id, origin.lease, origin.epoch)
                    return ""
                except ApiError as error:
                    if not isinstance(retry.decide(error), retry.Wait):
                        return "begin_rejected"
            state = self._state(origin)
            if state in (None, "claimed"):
                left_s = deadline - self.clock.monotonic()
                if left_s <= 0 or is_over():
                    break
                self.wait(min(left_s, retry.pause_s(None, tries)))
                tries += 1
        return "" if state == "applying" else "begin_uncertain"

    def _state(self, origin: Origin) -> str | None:
        """Ask where a command stands; None when nobody answers, "" when it is not ours any more."""
        try:
            found = self._call(origin.participant, self.client.get_command, origin.id)
        except ApiError:
            return None
        is_ours = found.get("lease_id") in (None, origin.lease)
        return str(found.get("execution")) if is_ours else ""

    def has_given(self, origin: Origin) -> bool:
        """Whether the server has the command that a file in a run says it is."""
        try:
            found = self._call(origin.participant, self.client.get_command, origin.id)
        except ApiError as error:
            if error.status in (404, 422):
                return False
            if error.status in (401, 403):
                return True  # This key may not look; the server has to judge by itself.
            raise
        return found.get("fingerprint") == origin.fingerprint

    def renew(self, origin: Origin) -> None:
        """Keep the lease of a command that the run has."""
        try:
            call = self.client.renew
            self._call(origin.participant, call, origin.id, origin.lease, origin.epoch)
        except ApiError as error:
            # These two change nothing: the run has the command, and its word will be reported.
            if error.status not in (404, 409):
                raise

    def result(self, origin: Origin, body: Mapping[str, Any]) -> None:
        """Report a result, in as few words as the server insists on.

        What it will never take is said here and holds nothing up.
        """
        plain = {name: value for name, value in body.items() if name != "applied_on"}
        refusal: Exception | None = None
        before: Mapping[str, Any] = {}
        for said in (body, plain, {**plain, "result": None}):
            if said == before:
                continue
            before = said
            try:
                self._call(origin.participant, self.client.result, origin.id, said)
                return
            except wire.WireError as error:
                refusal = error
            except ApiError as error:
                if error.code == "http_error" or error.status not in _NOT_TAKEN:
                    raise
                refusal = error
                if error.status in (404, 409):
                    break  # It is not there any more, or was decided otherwise for good.
        what = body["outcome"]
        _log.warning("The server does not take that command %s is %s: %s", origin.id, what, refusal)

    def _call(self, participant: str, call: Callable[..., _T], *arguments: Any) -> _T:
        """Call the server with the key of a participant; with a new one when it is refused."""
        keys, scope = self.place.keys, self.place.scope
        try:
            return call(*arguments, token=keys.token(participant, scope))
        except ApiError as error:
            if error.status not in (401, 403) or not keys.drop(participant):
                raise
            return call(*arguments, token=keys.token(participant, scope))
