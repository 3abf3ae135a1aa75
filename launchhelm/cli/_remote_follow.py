"""One command on a server, followed until it has ended or the patience with it has."""

from __future__ import annotations

import argparse
import shlex
import time
from dataclasses import dataclass, field
from typing import Any, Final  # Any: JSON of the API.

from launchhelm import _wording
from launchhelm.cli import _control_send as local
from launchhelm.cli import _remote_words as words
from launchhelm.cli._exit import Exit
from launchhelm.cli._remote_run import RunOnServer
from launchhelm.cli.output import Output
from syncer.api.answers import ApiError
from syncer.retry import pause_s

MOVED: Final = "state_revision_moved"

_POLL_S: Final = 0.2
_LATER_POLL_S: Final = 1.0
_FIRST_POLLS_S: Final = 20.0

Json = dict[str, Any]


@dataclass
class Following:
    """What is said of one command until it has ended.

    Args:
        name: Of its control.
        given: The control and its fields as they were typed, to be typed again; empty for a
            command that somebody else gave.
    """

    there: RunOnServer
    arguments: argparse.Namespace
    output: Output
    name: str
    given: list[str] = field(default_factory=list)
    is_hinted: bool = False

    def follow(self, command: Json) -> int:
        """Wait for its end, or say its id, as the options want; return the exit code.

        Raises:
            ApiError: The server refuses to be asked; the command stays.
        """
        id_ = str(command.get("id", ""))
        try:
            if not self.arguments.no_wait:
                return self._wait(id_, command)
        except KeyboardInterrupt:
            self._leave(id_)
            return Exit.INTERRUPTED
        if self.output.json:
            self.output.document({"sent": True, "id": id_, "state": "submitted"})
        else:
            self.output.line(id_)
        return Exit.DONE

    def _leave(self, id_: str) -> None:
        """Say where a command stands whose giver does not wait for it, or take it back."""
        if local.is_interrupted_again(self.output):
            self._take_back(id_)
            return
        try:
            command = self.there.client.get_command(id_)
        except (ApiError, KeyboardInterrupt):
            command = {}
        if command.get("execution") in words.FINAL:
            self._print(command, words.sentence_of(command))
        else:
            self.output.say(f"Command {id_} stays and may still be applied; {self.see()}")

    def _take_back(self, id_: str) -> None:
        """Cancel it; one that was picked up meanwhile is shown as it is."""
        command = self.there.client.get_command(id_)
        try:
            self.there.client.cancel(id_, str(command["fingerprint"]))
        except ApiError as error:
            if error.status != 409:
                raise
            self.output.say(_wording.plain(error.message))
        command = self.there.client.get_command(id_)
        self._print(command, words.sentence_of(command))

    def _wait(self, id_: str, command: Json) -> int:
        began = said_at = time.monotonic()
        said = ""
        picked_up, tries, silent_s = False, 0, None
        timeout_s = self.arguments.timeout
        while True:
            execution = command.get("execution")
            taken = (
                execution in ("claimed", "applying") or command.get("decided_by") == "participant"
            )
            if taken and not picked_up:
                picked_up = True
                self.output.say(f"picked up {local.clock_text()}")
            if execution in words.FINAL:
                return self._conclude(command)
            now = time.monotonic()
            waited_s = now - began
            if timeout_s is not None and waited_s >= timeout_s:
                return self._still_waiting(command, waited_s, silent_s)
            try:
                if now - said_at >= local.WORD_EVERY_S:
                    said_at = now
                    session = self.there.session(_participant(command), again=True)
                    silent_s = session.silent_s if session is not None else None
                    sentence = words.sentence_of(command, waited_s=waited_s, silent_s=silent_s)
                    if str(sentence) != said:
                        said = str(sentence)
                        self.output.say(said)
                    self._hint(command, silent_s)
                pause = _POLL_S if waited_s < _FIRST_POLLS_S else _LATER_POLL_S
                self._sleep(pause, began, timeout_s)
                command, tries = self.there.client.get_command(id_), 0
            except ApiError as error:
                if not error.retryable and error.status != 0:
                    self.output.say(f"Command {id_} stays; {self.see()}")
                    raise
                if not tries:
                    self.output.say(
                        f"The server does not answer ({_wording.plain(error.message)}); "
                        "asking again."
                    )
                self._sleep(pause_s(error.retry_after_s, tries), began, timeout_s)
                tries += 1

    def _hint(self, command: Json, silent_s: float | None) -> None:
        """Say once how a command gets to a run that nobody syncs now."""
        is_heard = silent_s is not None and silent_s <= words.SILENT_AFTER_S
        if command.get("execution") == "queued" and not is_heard and not self.is_hinted:
            self.is_hinted = True
            self.output.say(
                "It reaches the run by way of whoever syncs that: `launchhelm sync DIRECTORY` on a "
                "host that has its directory, or a script with init(sync=True)."
            )

    def _sleep(self, pause: float, began: float, timeout_s: float | None) -> None:
        if timeout_s is not None:
            pause = max(0.0, min(pause, began + timeout_s - time.monotonic()))
        time.sleep(pause)

    def _conclude(self, command: Json) -> int:
        self._print(command, words.sentence_of(command))
        if command.get("failure_code") == MOVED and self.given:
            self.output.say(f"To send it again: {self._typed(*self.given)}")
        return local.EXITS.get(words.state_of(command), Exit.UNKNOWN)

    def _still_waiting(self, command: Json, waited_s: float, silent_s: float | None) -> int:
        self._print(command, words.sentence_of(command, waited_s=waited_s, silent_s=silent_s))
        self.output.say(f"Command {command.get('id')} stays on the server; {self.see()}")
        return Exit.STILL_WAITING

    def _print(self, command: Json, sentence: _wording.Sentence) -> None:
        if self.output.json:
            document = words.document_of(command, self.name, sentence)
            self.output.document({"sent": True, **document})
        else:
            self.output.line(self.output.sentence(sentence))

    def see(self) -> str:
        """Say what to type to see what became of it."""
        return f"see: {self._typed('log')}"

    def _typed(self, *rest: str) -> str:
        server, run = self.arguments.server, self.there.found.id
        return shlex.join(["launchhelm", "control", "--server", server, run, *rest])


def _participant(command: Json) -> str:
    request = command.get("request")
    return str(request.get("participant_id", "")) if isinstance(request, dict) else ""
