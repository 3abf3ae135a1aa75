"""What the ranks tell each other by the store about a command when the exchange is lost.

    word/7        the coordinator's word on command 7: `never` announced, or `announced`
    report/7/<r>  whether rank r had applied it, "1" or "0"

No collective, and no wait without a limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Final

from launchhelm.torch._messages import NEVER, Settle, Settled
from launchhelm.torch._peers import Peers

WORD_LIMIT_S: Final = 5.0
"""How long a peer in doubt waits for the coordinator's word."""
REPORT_LIMIT_S: Final = 3.0
LEAVE_LIMIT_S: Final = 2.0
_PAUSE_S: Final = 0.02


def settle(peers: Peers, action: Settle, gone: Collection[int]) -> Settled:
    """Tell what this rank knows of a command, and learn what it can.

    Args:
        peers: The others.
        action: What this rank knows.
        gone: The ranks that report nothing any more, as far as known.
    """
    board, number = peers.board, action.command
    word, report = f"word/{number}", f"report/{number}"
    if action.never:
        board.put(word, "never")
        return Settled(True)
    if action.before < NEVER:
        return Settled(_within(LEAVE_LIMIT_S, lambda: peers.left_before(action.before)))
    if peers.rank == 0:
        board.put(word, "announced")
        reports = {0: "1" if action.applied else "0"}
        missing = set(range(1, peers.size)) - set(gone)

        def all_reported() -> bool:
            for rank in sorted(missing - set(reports)):
                said = board.read(f"{report}/{rank}")
                if said is not None:
                    reports[rank] = said
            return missing <= set(reports) or not board.alive

        _within(REPORT_LIMIT_S, all_reported)
        return Settled(False, applied_on=list(reports.values()).count("1"))
    board.put(f"{report}/{peers.rank}", "1" if action.applied else "0")
    if not action.wait:
        return Settled(False)
    said: list[str] = []

    def is_said() -> bool:
        said.append(board.read(word) or "")
        return bool(said[-1]) or not board.alive

    _within(WORD_LIMIT_S, is_said)
    return Settled(said[-1] == "never")


def _within(limit_s: float, condition: Callable[[], bool]) -> bool:
    """Poll a condition of the board until it holds or the time is over."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_PAUSE_S)
    return True
