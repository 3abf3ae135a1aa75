"""Commands that an earlier coordinator took and never ended; the newest coordinator closes them."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Final

from launchhelm.records import FINAL_STATES, Outcome
from launchhelm.store.claims import Ledger
from launchhelm.store.inbox import MAX_CLAIMS_PER_POLL, Inbox
from launchhelm.store.layout import CommandName

GRACE_S: Final = 15.0
"""How long a claim of an earlier coordinator is left alone that may still be alive."""


class LeftCommands:
    """Files that are taken in another name than ours, looked at on the recorder's thread.

    A file in the name of a process that never was is closed in the same way.

    Args:
        ledger: What earlier coordinators recorded.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._since: dict[CommandName, float] = {}
        self._closed: set[CommandName] = set()

    def close(
        self, files: list[CommandName], inbox: Inbox, now: float, known: Container[str]
    ) -> Iterator[tuple[CommandName, Outcome | None]]:
        """Yield each file whose time is over with its outcome, None for a command known here.

        Args:
            now: Monotonic seconds.
            known: Commands that this process has had itself.
        """
        left = [file for file in files if file not in self._closed]
        if not left or inbox.is_superseded():
            return
        from launchhelm.views.liveness import process_is_gone  # Only after a restart.

        self._ledger.refresh()
        for file in left[:MAX_CLAIMS_PER_POLL]:
            assert file.taken_by is not None
            if self._ledger.state(file.command) in FINAL_STATES:
                inbox.remove(file)  # Only its removal was left to do.
                continue
            if file.command in known:
                self._closed.add(file)
                yield file, None
                continue
            claims = self._ledger.of(file.taken_by)
            since = self._since.setdefault(file, now)
            opening = self._ledger.opening(file.taken_by)
            if claims.has_ended or process_is_gone(opening) or now - since > GRACE_S:
                self._closed.add(file)
                yield file, self._outcome(file, inbox)

    def _outcome(self, file: CommandName, inbox: Inbox) -> Outcome:
        assert file.taken_by is not None
        claims, command = self._ledger.of(file.taken_by), inbox.read(file)
        has_begun = claims.state.get(file.command) == "applying"
        return Outcome(
            file.command,
            "outcome_unknown" if has_begun else "rejected",
            code="runtime_restart",
            message=(
                "The process that applied it is gone; whether it took effect is not known."
                if has_begun
                else "The process that had taken it is gone; it was not applied."
            ),
            name=claims.name.get(file.command, "") or (command.name if command else ""),
            issued_by=command.issued_by if command else "",
            reason=command.reason if command else "",
            server=command.server if command else {},
        )
