"""A termination signal becomes one `stop` command for all ranks, on whichever of them it arrives.

The handler only notes the signal, and lets the recorder's thread write it down at once: whatever
the loop is doing, and even if the process is killed before it comes to its end. At the next step
the rank tells the coordinator through the board, without a collective, and the coordinator
commands the stop as if somebody had sent it.
"""

from __future__ import annotations

import atexit
import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from launchhelm import _endings
from launchhelm._ids import new_id
from launchhelm._recorder import Recorder
from launchhelm._run_inert import NoRecorder
from launchhelm.records import Command
from launchhelm.torch._board import Board

SIGNALS: Final = (signal.SIGTERM, signal.SIGUSR1)
"""What schedulers send ahead of the end; a SIGINT is for the one process that gets it."""

_TOPIC: Final = "signals"


class StopSignals:
    """The termination signals of this process, and on the coordinator those of all ranks.

    Made on the main thread, before the ranks meet, so that a signal during `init` counts as well.
    What ran on these signals before runs after the note is taken.

    Args:
        saves: Whether the ranks save a checkpoint before they stop.
    """

    def __init__(self, *, saves: bool = False) -> None:
        _endings.require_main_thread()
        self.saves = saves
        self._signal = ""
        self._elsewhere = ""
        self._rank = 0
        self._board: Board | None = None
        self._recorder: Recorder | NoRecorder | None = None
        self._is_stopping: Callable[[], bool] = lambda: False
        self._is_told = False
        # Any: what signal.signal returned.
        self._before: dict[int, Any] = {
            int(number): signal.signal(number, self._note) for number in SIGNALS
        }

    @property
    def heard(self) -> str:
        """Which signal came and where, as far as this rank knows; "" for none."""
        here = f"{self._signal} on rank {self._rank}" if self._signal else ""
        return here or self._elsewhere

    def begin(
        self,
        rank: int,
        board: Board | None,
        recorder: Recorder | NoRecorder,
        is_stopping: Callable[[], bool],
    ) -> None:
        """Let others know of what has come and will come.

        Args:
            rank: Group rank; 0 is the coordinator.
            board: None where there are no other ranks.
            recorder: Of this rank's run.
            is_stopping: Whether this loop has been told to stop.
        """
        self._rank, self._board, self._recorder = rank, board, recorder
        self._is_stopping = is_stopping
        self._announce()

    def _note(self, number: int, frame: FrameType | None) -> None:
        previous: Any = self._before.get(number)
        if self._recorder is not None and self._recorder.is_closed and self.let_go():
            # Nothing is left to protect, and nobody asked for an end before: it may end this.
            if previous == signal.SIG_DFL:
                os.kill(os.getpid(), number)
        else:
            self._signal = self._signal or signal.Signals(number).name
            self._announce()
        if callable(previous):
            previous(number, frame)

    def _announce(self) -> None:
        """Have it written down. Runs in the handler: no lock is taken here."""
        if self._signal and self._recorder is not None:
            self._recorder.announce(self.heard)

    def tell(self) -> None:
        """Pass on what this rank has heard. On the thread that trains, at each step."""
        if self._signal and not self._is_told and self._board is not None and self._rank != 0:
            self._is_told = True
            self._board.report(_TOPIC, {"rank": self._rank, "text": self.heard})

    def command(self) -> Command | None:
        """On the coordinator: return the stop that a signal asks for, once."""
        if self._is_told:
            return None
        if not self.heard and self._board is not None:
            _, entries = self._board.reports(_TOPIC)
            self._elsewhere = str(entries[0]["text"]) if entries else ""
        if not self.heard:
            return None
        self._is_told = True
        if self._recorder is not None:
            self._recorder.announce(self.heard)
        payload = {"checkpoint": True} if self.saves else {}
        return Command(new_id(), "stop", payload, issued_by=self.heard)

    def let_go(self) -> bool:
        """Put the earlier handlers back; return whether that was done.

        Not in a loop that was told to stop: signals reach the ranks of a job seconds apart, and
        the last of them must not kill a rank that has ended well.
        """
        if self._is_stopping():
            atexit.register(self._ignore)
            return False
        self._put_back(self._before)
        return True

    def _ignore(self) -> None:
        # The interpreter takes its handlers away long before the process is gone.
        self._put_back(
            {
                number: signal.SIG_IGN if previous == signal.SIG_DFL else previous
                for number, previous in self._before.items()
            }
        )

    def _put_back(self, handlers: dict[int, Any]) -> None:
        for number, handler in handlers.items():
            if signal.getsignal(number) == self._note:
                signal.signal(number, handler)
        self._before = {}
