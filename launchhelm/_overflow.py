"""What a full buffer does to the record that does not fit: wait, give up the oldest, or refuse."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import sleep
from typing import Any, Final

from launchhelm._buffer import Buffer
from launchhelm.errors import BufferFull, ConfigError

PATIENCE_S: Final = 5.0
"""How long log() may wait in all, in one run, for storage that does not accept writes."""

_POLL_S: Final = 0.01


class Overflow:
    """The policy of one recorder; called on the thread that logs.

    Args:
        policy: "block" waits up to 5 s in all while storage accepts nothing, then gives up the
            oldest; "drop_new" refuses the new record; "raise" raises.
        buffer: The buffer that may be full.
        warn: Told whenever something was lost.
    """

    def __init__(self, policy: str, buffer: Buffer, warn: Callable[[], None]) -> None:
        if policy not in ("block", "drop_new", "raise"):
            raise ConfigError(
                f"overflow={policy!r} is not known.", remedy="Use 'block', 'drop_new' or 'raise'."
            )
        self._policy = policy
        self._buffer = buffer
        self._warn = warn
        self._patience_s = PATIENCE_S

    def put(
        self,
        kind: str,
        body: Mapping[str, Any],  # Any: see Record.
        step: int | None,
        axes: Mapping[str, str] | None,
        at: float,
    ) -> bool:
        """Add an entry that did not fit; return whether it is in the buffer now.

        Raises:
            BufferFull: The policy is "raise".
        """
        if self._policy == "raise":
            raise BufferFull
        if self._policy == "drop_new":
            return self._refuse()
        while not self._buffer.put(kind, body, step, axes, at):
            if self._patience_s > 0:
                # Waiting for a busy thread that takes entries is not counted, only for storage.
                taken = self._buffer.taken
                sleep(_POLL_S)
                if self._buffer.taken == taken:
                    self._patience_s -= _POLL_S
            elif self._buffer.give_up_oldest():
                self._warn()
            else:
                return self._refuse()
        return True

    def _refuse(self) -> bool:
        self._buffer.lost += 1
        self._warn()
        return False
