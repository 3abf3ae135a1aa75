"""A termination signal becomes one `stop` command for all ranks, on whichever of them it arrives.

The handler only notes the signal. At the next step the rank tells the coordinator through the
board, without a collective, and the coordinator commands the stop as if somebody had sent it.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from launchhelm import _endings
from launchhelm._ids import new_id
from launchhelm.records import Command
from launchhelm.torch._board import Board

SIGNALS: Final = (signal.SIGTERM, signal.SIGUSR1)
"""What schedulers send ahead of the end; a SIGINT is for the one process that gets it."""

_TOPIC: Final = "signals"


class StopSignals:
    """The termination signals of this process, and on the coordinator those of all ranks.

    Made on the main thread. What ran on these signals before runs after the note is taken.

    Args:
        rank: Group rank; 0 is the coordinator.
        board: None where there are no other ranks.
    """

    def __init__(self, rank: int, board: Board | None) -> None:
        _endings.require_main_thread()
        self.heard = ""
        """Which signal came and where, as far as this rank knows."""
        self._rank = rank
        self._board = board
        self._is_told = False
        # Any: what signal.signal returned.
        self._before: dict[int, Any] = {
            int(number): signal.signal(number, self._note) for number in SIGNALS
        }

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.heard = self.heard or f"{signal.Signals(number).name} on rank {self._rank}"
        previous: Callable[[int, FrameType | None], object] | Any = self._before.get(number)
        if callable(previous):
            previous(number, frame)

    def tell(self) -> None:
        """Pass on what this rank has heard. On the thread that trains, at each step."""
        if self.heard and not self._is_told and self._board is not None and self._rank != 0:
            self._is_told = True
            self._board.report(_TOPIC, {"rank": self._rank, "text": self.heard})

    def command(self) -> Command | None:
        """On the coordinator: return the stop that a signal asks for, once."""
        if self._is_told:
            return None
        if not self.heard and self._board is not None:
            _, entries = self._board.reports(_TOPIC)
            self.heard = str(entries[0]["text"]) if entries else ""
        if not self.heard:
            return None
        self._is_told = True
        return Command(new_id(), "stop", {}, issued_by=self.heard)

    def let_go(self) -> None:
        """Put the earlier handlers back."""
        for number, previous in self._before.items():
            if signal.getsignal(number) == self._note:
                signal.signal(number, previous)
        self._before = {}
