"""The sync service as one daemon thread of rank 0, for a run that asks for it.

The only way from the SDK to the syncer. The thread opens its own files and its own connection;
the training thread never waits for it, except in `flush(delivered=True)` and, within its budget,
in `finish`. Without it a training process opens no socket to any server.
"""

from __future__ import annotations

import importlib.util
import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from launchhelm import _optional
from launchhelm._clock import SYSTEM_CLOCK, Clock
from launchhelm.errors import ConfigError

if TYPE_CHECKING:
    from syncer.service import Service
    from syncer.settings import Target
    from syncer.work import Work

QUIET_S: Final = 10.0
"""A server that has not answered for so long while it is waited for is not waited for any more."""

PEERS_S: Final = 3.0
"""How long `finish` waits for the ends of the other ranks, so that the server learns of them."""

LET_GO_S: Final = 1.0
_POLL_S: Final = 0.1

_log = logging.getLogger("launchhelm")


def attach(
    run_directory: Path,
    report: Callable[[str, Exception], object],
    *,
    tell: Callable[[Mapping[str, Any]], object] = lambda said: None,
    clock: Clock = SYSTEM_CLOCK,
) -> Attached | None:
    """Start the thread; None, with one warning, where it cannot work.

    Args:
        report: Takes the name of a component and its fault.
        tell: Takes what the next heartbeat says: `sent_at` and `asked_at`, when data last went up
            and commands were last asked for (None: never), and `why` not ("" when both are).
    """
    if importlib.util.find_spec("httpx") is None:
        _log.warning("This run is not uploaded: %s. Training goes on.", _optional.missing("httpx"))
        return None
    from syncer.settings import Target

    try:
        target = Target.of()
    except ConfigError as error:
        _log.warning("This run is not uploaded: %s %s", error.message, error.remedy)
        return None
    attached = Attached(run_directory, target, report, tell, clock=clock)
    attached.start()
    return attached


class Attached:
    """The thread of one run. Its service runs on the thread; every method here is the caller's.

    `_told` guards nothing but the waiting: what is waited for is read from plain attributes.
    """

    def __init__(
        self,
        run_directory: Path,
        target: Target,
        report: Callable[[str, Exception], object],
        tell: Callable[[Mapping[str, Any]], object] = lambda said: None,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.url = target.url
        self.reason = ""
        """Why `finish` left records behind, as far as it is known."""
        self._directory = run_directory
        self._target = target
        self._report = report
        self._say = tell
        self._clock = clock
        self._service: Service | None = None
        self._work: Work | None = None
        self._told = threading.Condition()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="launchhelm-syncer", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    # --- the caller's thread ----------------------------------------------------------------------

    @property
    def trouble(self) -> str:
        """Why nothing reaches the server now; "" when something did, or nothing was tried yet."""
        service = self._service
        if not self._thread.is_alive():
            return "the sync thread has ended"
        if service is None:
            return ""
        hold = service.hold
        if hold is not None:
            return hold.why
        if self._work is not None and self._work.state in ("held", "skipped", "failed"):
            return self._work.why
        return ""

    @property
    def pending(self) -> int:
        """Records that the server has not confirmed, as far as the run directory tells."""
        from syncer import status

        target, directory = self._target, self._directory
        known = status.of_server(directory, directory.name, target.url, target.organization)
        return status.pending_count(directory, known)

    def deliver(self, timeout_s: float) -> str:
        """Wait until the server has everything that is durable now; return why not, or ""."""
        asked_at = self._clock.monotonic()
        deadline = asked_at + timeout_s
        if self._service is not None:
            self._service.wake(self._directory, at_once=True)
        while True:
            work = self._work
            if work is not None and work.caught_up_at >= asked_at:
                return ""
            if self.trouble:
                return self.trouble
            now = self._clock.monotonic()
            answered_at = (self._service and self._service.answered_at) or asked_at
            if now >= deadline or now - max(asked_at, answered_at) >= QUIET_S:
                return f"{self.url} did not confirm it in time"
            self._wait(min(deadline - now, _POLL_S))

    def finish(self, budget_s: float) -> int:
        """Send what is left, within the budget, and end; return how many records wait."""
        deadline = self._clock.monotonic() + budget_s
        why = self.deliver(max(0.0, budget_s - LET_GO_S)) if budget_s > 0 else self.trouble
        if budget_s > 0 and not why:
            until = min(deadline - LET_GO_S, self._clock.monotonic() + PEERS_S)
            while not self._is_over() and self._clock.monotonic() < until and not self.trouble:
                self._wait(_POLL_S)
        self.reason = self.trouble or why
        self._is_stopped = True
        if self._service is not None:
            self._service.stop()
        self._thread.join(min(LET_GO_S, max(0.0, deadline - self._clock.monotonic())))
        pending = self.pending
        if pending and self.reason and self._thread.is_alive():
            self._leave_word()
        return pending

    def _leave_word(self) -> None:
        """Note beside the run what the thread, which still waits for a server, did not."""
        from syncer import status, trouble

        target, at = self._target, self._clock.wall()
        noted = trouble.Trouble(target.url, target.organization, self.reason, at)
        directory = self._directory
        trouble.write(directory, directory.name, noted, state_root=status.state_root())

    def _is_over(self) -> bool:
        return self._work is not None and self._work.is_over

    def _wait(self, seconds: float) -> None:
        with self._told:
            self._told.wait(seconds)

    # --- its own thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            from syncer.connection import Connection
            from syncer.discover import Discovery
            from syncer.service import Service

            with Connection(self._target, clock=self._clock) as connection:
                service = Service(
                    Discovery([self._directory], clock=self._clock),
                    connection.open_push,
                    connect=connection.connect,
                    open_pull=connection.open_pull,
                    note=connection.note,
                    watch=True,
                    clock=self._clock,
                    on_slice=self._note,
                )
                self._service = service
                if not self._is_stopped:
                    service.run()
        except Exception as error:  # Protects training.
            self._report("syncer", error)
        self._tell()

    def _note(self, work: Work) -> None:
        self._work = work
        push, pull = work.push, work.pull
        state = push.state if push is not None else None
        sent_at = state.at if state is not None else 0.0
        why = self.trouble or (push.silence if push is not None else "")
        asked_at = pull.asked_at if pull is not None else None
        self._say({"sent_at": sent_at or None, "asked_at": asked_at, "why": why})
        self._tell()

    def _tell(self) -> None:
        with self._told:
            self._told.notify_all()
