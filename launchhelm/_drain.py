"""From the buffer to the journal and on to sealed segments: retries, losses, tickets.

Only the recorder's thread calls `Drain`. A complete journal is sealed by a short-lived thread of
its own, one at a time, so that sealing never delays a flush.
"""

from __future__ import annotations

import threading
from collections import deque
from pathlib import Path
from typing import Final

from launchhelm._buffer import Buffer, Entry, Ticket
from launchhelm._clock import Clock
from launchhelm._faults import Faults
from launchhelm.store.segment import seal
from launchhelm.store.writer import JournalWriter

BARRIER: Final = ""
"""Kind of an entry that only carries a ticket."""

_RETRY_S: Final = (1.0, 2.0, 4.0, 8.0, 10.0)
_BATCH_RECORDS: Final = 512
_FLUSH_BYTES: Final = 4 << 20


class Drain:
    """Empties a buffer into a journal, for as long as storage takes it.

    Args:
        buffer: Where the records wait. What storage does not take now stays there, or, once it has
            its number, in the journal's memory.
        journal: Where they go.
        faults: Told about what goes wrong.
        clock: Time.
    """

    def __init__(
        self, buffer: Buffer, journal: JournalWriter, faults: Faults, clock: Clock
    ) -> None:
        self.retry_at: float | None = None
        self.last_error: str | None = None
        self._buffer = buffer
        self._journal = journal
        self._faults = faults
        self._clock = clock
        self._failures = 0
        self._reported = 0
        self._tickets: list[Ticket] = []
        self._sealer: threading.Thread | None = None
        self._to_seal: deque[Path] = deque()

    def open(self) -> None:
        """Start the first segment, durable on return; raises OSError."""
        self._journal.start()

    @property
    def pending(self) -> int:
        """Records that have their number and are not durable yet."""
        return self._journal.next_seq - self._journal.durable_seq

    def check(self) -> None:
        """Start a new segment where somebody has deleted the one that is being written."""
        if self._journal.leave_if_deleted():
            self._faults.warn(
                "deleted",
                f"A journal in {self._journal.directory} was deleted while it was being written. "
                "What it held is lost. What comes now goes to a new one. Training goes on.",
            )

    def run(self) -> bool:
        """Make what is in the buffer now durable; return whether there was anything.

        A failure keeps everything and sets `retry_at`.
        """
        waiting = len(self._buffer)
        wrote = bool(waiting or self._journal.pending_bytes)
        try:
            self._report_losses()
            while waiting > 0:
                taken = self._buffer.take(min(waiting, _BATCH_RECORDS), self._encode)
                waiting = waiting - taken if taken else 0
                if self._journal.pending_bytes >= _FLUSH_BYTES:
                    self._flush()
            self._flush()
        except OSError as error:
            self._failed(error)
        return wrote

    def finish(self) -> None:
        """Seal all that is complete, on this thread; call it once, after the last `run`."""
        journal = self._journal.rotate()
        if self._sealer is not None:
            self._sealer.join()
        if journal is not None:
            self._to_seal.append(journal)
        self._seal_all()

    def _encode(self, entry: Entry) -> None:
        """Give one entry its number and line. Only an OSError leaves it in the buffer."""
        try:
            if entry.kind != BARRIER:
                self._journal.append(
                    entry.kind, entry.body, step=entry.step, axes=entry.axes, at=entry.at
                )
        except OSError:
            raise
        except Exception as error:  # Protects the records behind this one.
            self._faults.report("encoder", error)
            self._buffer.lost += 1
            self._give_up(1, "not encodable")
        if entry.ticket is not None:
            self._tickets.append(entry.ticket)

    def _report_losses(self) -> None:
        lost = self._buffer.lost - self._reported
        if lost:
            self._give_up(lost, "buffer full")
        odd = self._journal.odd
        if odd:
            self._faults.counts.update(odd)
            odd.clear()
            self._faults.warn("odd", "A metric value that is no number or text was left out.")

    def _give_up(self, count: int, why: str) -> None:
        """Use the numbers of lost records up, and say so in their place."""
        self._reported += count
        first, last = self._journal.skip(count)
        self._journal.append("gap", {"first": first, "last": last, "why": why})

    def _flush(self) -> None:
        if self._journal.pending_bytes:
            self._journal.flush()
        tickets, self._tickets = self._tickets, []
        for ticket in tickets:
            ticket.resolve()
        if self._failures:
            self._recovered()
        if self._journal.is_full:
            self._rotate()

    def _failed(self, error: OSError) -> None:
        self.last_error = error.strerror or str(error)
        self._faults.counts["storage"] += 1
        wait_s = _RETRY_S[min(self._failures, len(_RETRY_S) - 1)]
        self._failures += 1
        self.retry_at = self._clock.monotonic() + wait_s
        self._faults.warn(
            f"storage {error.errno}",
            f"{self._journal.directory} does not accept writes: {self.last_error}. Records are "
            "kept in memory and tried again. Training goes on.",
        )

    def _recovered(self) -> None:
        error, count = self.last_error or "", self._failures
        self._failures, self.retry_at, self.last_error = 0, None, None
        self._faults.note("storage", error, count)

    def _rotate(self) -> None:
        journal = self._journal.rotate()
        if journal is not None:
            self._to_seal.append(journal)
        if self._to_seal and (self._sealer is None or not self._sealer.is_alive()):
            self._sealer = threading.Thread(
                target=self._seal_all, name="launchhelm-sealer", daemon=True
            )
            self._sealer.start()

    def _seal_all(self) -> None:
        """Seal what is complete; a journal that cannot be sealed stays, and is tried next time."""
        for _ in range(len(self._to_seal)):
            journal = self._to_seal.popleft()
            try:
                seal(journal, clock=self._clock)
            except FileNotFoundError:
                self._faults.counts["seal"] += 1
                self._faults.warn("deleted", f"{journal} was deleted; what it held is lost.")
            except Exception as error:  # Protects the thread: the journal is complete as it is.
                self._faults.report("seal", error)
                self._to_seal.append(journal)
