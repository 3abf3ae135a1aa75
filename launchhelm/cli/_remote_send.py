"""One command by way of a server, from the words typed until the server has it.

It is submitted under one Idempotency-Key, so that asking again after a lost answer never makes a
second one. What the server does not answer for is said to be unknown, never guessed.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any, Final  # Any: JSON of the API.

from launchhelm import _wording
from launchhelm._ids import new_id
from launchhelm.cli import _control_send as local
from launchhelm.cli import _fields, documents
from launchhelm.cli._control_give import SEND, refuse_send
from launchhelm.cli._exit import Exit, UsageError
from launchhelm.cli._remote_follow import MOVED, Following
from launchhelm.cli._remote_run import Offer, RunOnServer, Session, refusal_of
from launchhelm.cli.output import Output
from launchhelm.controls import preview
from launchhelm.controls.fields import fields_text
from launchhelm.records import Command
from syncer.api import wire
from syncer.api.answers import ApiError
from syncer.retry import pause_s

VALID_S: Final = 3600.0
"""How long a command may wait until it is picked up."""

_SUBMIT_FOR_S: Final = 30.0
"""How long a command is offered to a server that does not answer."""

_ON_A_HOST: Final = ("revert", "replay", "freeze", "unfreeze")
"""What is written into the inbox of a run, unless the run has a control of that name."""

WITHOUT_SERVER: Final = "Leave --server out where the run directory can be reached."

_TRIES: Final = 4
"""How often it is put anew when other commands were applied meanwhile."""

Json = dict[str, Any]


class _NotSent(Exception):
    """The server has no command of ours; the text says why."""


class _Unanswered(Exception):
    """Nobody knows whether the server has the command; the text says what was answered."""


class Sending:
    """One command, its words not yet read.

    Raises:
        ApiError: Of `send`: the server refuses to be asked.
    """

    def __init__(self, there: RunOnServer, arguments: argparse.Namespace, output: Output) -> None:
        self._there = there
        self._arguments = arguments
        self._output = output
        self._name = ""

    def send(self, name: str, fields: list[str]) -> int:
        """Carry it through; every way out says what happened to it.

        Raises:
            UsageError: It does not fit what the run published, or the server does not take it;
                nothing was written.
        """
        offers = self._there.offers()
        refusal = refusal_of(self._there, offers)
        if refusal:
            return local.not_sent(refusal, self._output)
        if name in _ON_A_HOST and name not in offers:
            raise UsageError(f"{name} does not go by way of a server.", remedy=WITHOUT_SERVER)
        if name == SEND and name not in offers:
            refuse_send(offers)
        if name not in offers:
            known = _wording.listed(offers)
            said = _wording.json_text(name)
            raise UsageError(f"This run has no control {said}.", remedy=f"It has {known}.")
        offer = offers[name]
        self._name = name
        payload = _fields.payload_of(fields, offer.spec)
        problem = preview.problem_with(offer.spec, payload, {})
        if problem:
            raise UsageError(f"{problem}.", remedy=f"It takes {fields_text(offer.spec)}.")
        assert offer.session is not None, "only live offers are left"
        lines = self._preview(payload, offer.session)
        if self._arguments.check:
            return self._say_check(payload, lines, offer.session)
        for line in lines:
            self._output.say(line)
        if sys.stdin.isatty() and not self._arguments.yes and not local.confirmed(self._output):
            self._output.say("Not sent, nothing changed.")
            return Exit.NOTHING_CHANGED
        reason = self._arguments.reason
        given = [name, *fields, *(["--reason", reason] if reason else [])]
        return self._send_and_wait(offer, given, payload)

    def _preview(self, payload: Json, session: Session) -> list[str]:
        what = f"{self._name} {_wording.payload_text(payload)}".rstrip()
        notes = [f"note: {warning}" for warning in _warnings(session)]
        at = f", then at step {session.step:,}" if session.step is not None else ""
        heard = _wording.duration(session.silent_s)
        where = f"in {self._there.found.title}, last heard of {heard} ago{at}."
        return [what, *notes, where]

    def _say_check(self, payload: Json, lines: list[str], session: Session) -> int:
        if self._output.json:
            command = Command("", self._name, payload)
            unknown = preview.When(None, None, None)
            self._output.document(
                documents.check_document(command, None, unknown, _warnings(session))
            )
            return Exit.DONE
        for line in lines:
            self._output.line(line)
        self._output.say("Checked only, nothing was sent.")
        return Exit.DONE

    def _send_and_wait(self, offer: Offer, given: list[str], payload: Json) -> int:
        following = Following(self._there, self._arguments, self._output, self._name, given)
        try:
            command = self._submit(offer, payload)
        except _NotSent as refusal:
            return local.not_sent(str(refusal), self._output)
        except _Unanswered as silence:
            return self._say_unknown(str(silence), following)
        except KeyboardInterrupt:
            said = "\nInterrupted. If the server has it, it stays and may still be applied; "
            self._output.say(said + following.see())
            return Exit.INTERRUPTED
        self._output.say(f"submitted {local.clock_text()}")
        return following.follow(command)

    # Submitting.

    def _submit(self, offer: Offer, payload: Json) -> Json:
        """Submit what fits the session; put it anew while other commands change that meanwhile."""
        for _ in range(_TRIES):
            session = self._there.session(offer.participant_id)
            if session is None or session.ended:
                raise _NotSent("The run has ended its session meanwhile.")
            try:
                return self._ask(self._request(offer, payload, session))
            except ApiError as error:
                said = _wording.plain(error.message)
                if error.status in (400, 404, 413, 422):
                    raise UsageError(f"The server does not take it: {said}") from error
                if error.retryable:
                    raise _NotSent(f"The server takes no command now: {said}") from error
                if error.status != 409:
                    raise
                again = self._there.session(offer.participant_id, again=True)
                if again is not None and again.place == session.place:
                    raise _NotSent(f"The server refuses it now: {said}") from error
        raise _NotSent("Other commands were applied each time that it was tried; try again.")

    def _request(self, offer: Offer, payload: Json, session: Session) -> Json:
        return {
            "scope": self._there.scope,
            "capability": {
                "id": str(offer.document["id"]),
                "kind": "capability",
                "revision": str(offer.document["revision"]),
            },
            "participant_id": offer.participant_id,
            "epoch": session.epoch,
            "expected_state_revision": session.state_revision,
            "targets": [],
            "input": payload,
            "safe_point": offer.safe_point(),
            "expires_at": wire.timestamp(session.now + VALID_S),
            "reason": self._arguments.reason,
        }

    def _ask(self, request: Json) -> Json:
        """Submit under one key until the server answers, or for as long as is sensible.

        Raises:
            ApiError: It answered that it does not take it, so that it has nothing.
            _Unanswered: An answer was lost, and none came since.
        """
        key, ends_at, tries, is_open = new_id(), time.monotonic() + _SUBMIT_FOR_S, 0, False
        while True:
            try:
                return self._there.client.submit(request, key)
            except wire.WireError as error:
                raise UsageError(f"The command cannot be sent: {error}.") from error
            except ApiError as error:
                was_lost = error.status < 300 or error.status >= 500
                is_open = is_open or was_lost
                pause = pause_s(error.retry_after_s, tries)
                if not (was_lost or error.retryable):
                    raise
                if time.monotonic() + pause > ends_at:
                    if is_open:
                        raise _Unanswered(_wording.plain(error.message)) from error
                    raise
                tries += 1
                time.sleep(pause)

    def _say_unknown(self, said: str, following: Following) -> int:
        sentence = f"The server did not answer: {said}"
        self._output.say(sentence)
        self._output.say(f"Whether it has the command is not known; {following.see()}")
        if self._output.json:
            self._output.document({"sent": None, "state": "outcome_unknown", "text": sentence})
        return Exit.UNKNOWN


def _warnings(session: Session) -> list[str]:
    said = []
    if session.is_lost:
        heard, valid = _wording.duration(session.silent_s), _wording.duration(VALID_S)
        said.append(f"not heard of for {heard}; the command may wait, and expire after {valid}")
    if session.open_commands:
        one = session.open_commands == 1
        before = "1 command is" if one else f"{session.open_commands:,} commands are"
        said.append(
            f"{before} under way; if {'it' if one else 'one'} is applied, this one is rejected "
            f"({MOVED}) and must be sent again"
        )
    return said
