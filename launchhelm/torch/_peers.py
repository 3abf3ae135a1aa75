"""What a rank knows of the others of its group: who they are, who left, and whom it waits for.

A killed peer closes its sockets: operations with it fail at once, others may still succeed, so a
broadcast may reach some ranks only; a `send` to a dead peer raises at once, which names it. A rank
that leaves or is stopped closes nothing. Hence the board, at which whoever waits looks once a
second, and the deadline.

Everything here runs on the thread that calls `init`, `step` or `finish`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

import torch

from launchhelm.torch._beats import Beat
from launchhelm.torch._board import Board
from launchhelm.torch._gloo import Group, Work, completes
from launchhelm.torch._messages import Cause

_SLOW_S: Final = 0.1
_FIRST_LOOK_S: Final = 0.25
_LOOK_S: Final = 1.0
_LONGEST_SLICE_S: Final = 0.25
"""So long Ctrl-C may wait."""
_GRACE_S: Final = 0.25
_PATIENCE_S: Final = 45.0
"""Three heartbeats: so long a rank in a handler may go without one, once the time is over."""
_MOST_ASKED: Final = 16
_PROBE_TAG: Final = 0x1A2C


class LinkLost(Exception):
    """An operation did not come about, and the group must not be used again."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause.text)
        self.cause = cause


class Peers:
    """The ranks of one trainer as this one sees them.

    Attributes:
        rank: Group rank; 0 is the coordinator.
        size: Ranks of the group.
        hosts: Host name of each rank.
        board: What they say without a collective.
        timeout_s: Seconds to wait for a silent rank.
        seen: The last step of each rank that its packets and rows told, where any did.
        where: Tells (call, step) of this rank, for messages; set by the exchange.
        beats: Returns the last heartbeats of some ranks, where there is a run to read them from.
        on_slow: Called once in a wait that passes 0.1 s, and `on_done` when that wait is over.
    """

    def __init__(self, rank: int, size: int, board: Board, timeout_s: float) -> None:
        self.rank = rank
        self.size = size
        self.hosts: tuple[str, ...] = ()
        self.seen: dict[int, int] = {}
        self.board = board
        self.timeout_s = timeout_s
        self.where: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self.beats: Callable[[Sequence[int]], Mapping[int, Beat]] = _no_beats
        self.on_slow: Callable[[], None] = _nothing
        self.on_done: Callable[[], None] = _nothing
        self._losses: list[dict[str, Any]] = []
        self._probes_by: Group | None = None
        self._heard_at = time.monotonic()
        self._says_it_waits = False

    def name_of(self, rank: int) -> str:
        """Return the rank with its host, as messages name it."""
        host = self.hosts[rank] if rank < len(self.hosts) else ""
        return f"{rank} on {host}" if host else str(rank)

    # What ranks tell each other of leaving and losing.

    def leave(self, step: int, call: int, reason: str) -> None:
        """Tell the others that this rank takes no further part. No collective."""
        host = self.hosts[self.rank] if self.hosts else ""
        self.board.say(
            {"what": "left", "rank": self.rank, "host": host, "step": step, "call": call,
             "reason": reason}
        )  # fmt: skip

    def left_before(self, call: int) -> bool:
        """Whether every other rank has announced that it left before this call."""
        self._look()
        left = self._left()
        others = set(range(self.size)) - {self.rank}
        return all(rank in left and left[rank]["call"] < call for rank in others)

    def publish(self, what: str, cause: Cause) -> None:
        """Tell the others that a group ("exchange" or "data") is lost, unless they say so."""
        # Only who has not heard of it tells it: with a thousand ranks one entry must do.
        entry = {
            "what": what, "rank": self.rank, "kind": cause.kind, "ranks": list(cause.ranks),
            "text": cause.text,
        }  # fmt: skip
        if not any(each["what"] == what for each in self._losses):
            self._losses.append(entry)
            self.board.say(entry)

    def _look(self) -> None:
        self._losses += (entry for entry in self.board.news() if entry["rank"] != self.rank)

    def _left(self) -> dict[int, dict[str, Any]]:
        return {entry["rank"]: entry for entry in self._losses if entry["what"] == "left"}

    # Waiting for an operation.

    def wait(self, *works: Work, about: str, handler: str = "") -> None:
        """Wait for operations of one group; the last of them is the last to complete.

        Args:
            works: Begun by this rank, in this order.
            about: The group: "exchange" or "data".
            handler: The phase of ranks whose part takes as long as their handler does. The timeout
                then counts only once such a rank no longer beats.

        Raises:
            LinkLost: It did not come about, and why.
        """
        start = time.monotonic()
        give_up_at = start + self.timeout_s
        # A command that is lost is told as a loss of the exchange, in whichever group its rows are.
        groups = {"data", "exchange"} if handler else {about}
        heard: dict[int, int] = {}
        look_at, slow = start + _FIRST_LOOK_S, False
        last, slice_s = works[-1], _SLOW_S
        try:
            while not completes(last, min(slice_s, give_up_at - time.monotonic())):
                for work in works[:-1]:
                    if work.is_completed():
                        work.wait()  # Raises if it failed; then the last one may never end.
                now, slice_s = time.monotonic(), _LONGEST_SLICE_S
                if not slow:
                    slow = True
                    self.on_slow()
                if now >= look_at:
                    self._look_around(last, groups)
                    look_at = now + _LOOK_S
                if now > give_up_at:
                    self._look()
                    cause = self._known_cause(groups)
                    if cause or not handler or not self._all_beat(heard, handler):
                        raise LinkLost(cause or self._late(now - start))
                    give_up_at = time.monotonic() + _PATIENCE_S
            for work in works:
                work.wait()
            self._still_meant(groups)
        except RuntimeError as error:
            raise LinkLost(self._failed(error, groups)) from error
        finally:
            if slow:
                self.on_done()
        # Only now: one whose wait was in vain still counts as waiting for those who judge it late.
        if self._says_it_waits:
            self._says_it_waits = False
            self.board.put(f"at/{self.rank}", "")

    def _look_around(self, work: Work, groups: AbstractSet[str]) -> None:
        """While waiting: say so, and see whether there is anybody left to wait for."""
        self._look()
        cause = self._known_cause(groups)
        # Its data may be on the way while a rank leaves.
        if cause is not None and not completes(work, _GRACE_S):
            raise LinkLost(cause)
        self._says_it_waits = True
        self.board.put(f"at/{self.rank}", json.dumps(self.where()))

    def _still_meant(self, groups: AbstractSet[str]) -> None:
        """Refuse what came when the others have given it up, as after a stop of this process.

        Where the store is gone with rank 0, nobody can say that they have not.
        """
        now = time.monotonic()
        was_long, self._heard_at = now - self._heard_at > self.timeout_s / 2, now
        if was_long:
            self._look()
            for entry in self._losses:
                if entry["what"] in groups:
                    raise LinkLost(Cause(entry["kind"], tuple(entry["ranks"]), entry["text"]))
            if not self.board.alive:
                text = f"the process of rank {self.name_of(0)} is gone"
                raise LinkLost(Cause("dead", (0,), text))

    # Why it is in vain.

    def _known_cause(self, groups: AbstractSet[str]) -> Cause | None:
        """Return why an operation cannot come about, None when it still may.

        A rank that left or died is missed by both groups; all else is the loss of one of them.
        """
        for entry in self._losses:
            # What came first is the cause: ranks also leave because the exchange broke.
            if entry["what"] == "left":
                left = self._left()
                return Cause("left", tuple(sorted(left)), _sentence_left(left))
            if entry["what"] in groups or entry["kind"] in ("dead", "left"):
                return Cause(entry["kind"], tuple(entry["ranks"]), entry["text"])
        return None

    def _failed(self, error: RuntimeError, groups: AbstractSet[str]) -> Cause:
        """Name who is gone after an operation failed."""
        self._look()
        cause = self._known_cause(groups)
        if cause is not None and cause.ranks:
            return cause
        # The sockets of a killed process close one after the other.
        for _ in range(10):
            dead = self._dead()
            if dead:
                names = ", ".join(f"rank {self._last_seen(rank)}" for rank in dead)
                what = f"process of {names} is" if len(dead) == 1 else f"processes of {names} are"
                return Cause("dead", tuple(dead), f"the {what} gone")
            time.sleep(0.05)
        return cause or Cause("broken", (), f"the connection broke: {first_line(error)}")

    def _last_seen(self, rank: int) -> str:
        step = self.seen.get(rank)
        return self.name_of(rank) + ("" if step is None else f" (last exchange at step {step})")

    def _dead(self) -> list[int]:
        dead: list[int] = []
        if self._probes_by is None:
            return dead
        for rank in range(self.size):
            if rank != self.rank:
                try:
                    # Nobody receives this; to a living rank it stays a notice of a few bytes.
                    self._probes_by.send([torch.zeros(1, dtype=torch.uint8)], rank, _PROBE_TAG)
                except RuntimeError:
                    dead.append(rank)
        return dead

    def _silent(self) -> list[int]:
        """Return the ranks that do not wait for others themselves, here or at an earlier call."""
        waiting = [rank for rank in range(self.size) if self.board.read(f"at/{rank}")]
        return [rank for rank in range(self.size) if rank not in (self.rank, *waiting)]

    def _all_beat(self, heard: dict[int, int], phase: str) -> bool:
        """Whether all whom this wait is for are in that phase, and alive since the last look."""
        silent = self._silent()[:_MOST_ASKED]
        beats = self.beats(silent)
        for rank in silent:
            beat = beats.get(rank)
            # A first look may find the heartbeat from before the handler; later ones may not.
            if beat is None or (
                rank in heard and (beat.number <= heard[rank] or beat.phase != phase)
            ):
                return False
            heard[rank] = beat.number
        return bool(silent)

    def _late(self, waited_s: float) -> Cause:
        """Name whom this wait was for, with the last word of each."""
        call, step = self.where()
        silent = self._silent()
        beats = self.beats(silent[:_MOST_ASKED]) if silent else {}
        names = [
            f"{self.name_of(rank)} (last heard of {beats[rank]})" if rank in beats
            else self.name_of(rank)
            for rank in silent[:_MOST_ASKED]
        ]  # fmt: skip
        more = len(silent) - len(names)
        said = ", ".join(names) if names else "of unknown number"
        said += f" and {more} more" * (more > 0)
        text = f"rank {said} did not come to step {step} (call {call}) in {waited_s:.3g} s"
        return Cause("timeout", tuple(silent), text)


def first_line(error: BaseException) -> str:
    """Return what an error says, without the stack of C++ that torch may append."""
    return str(error).strip().split("\n", 1)[0][:200]


def _sentence_left(left: Mapping[int, Mapping[str, Any]]) -> str:
    return "; ".join(
        f"rank {rank}{' on ' + entry['host'] if entry['host'] else ''} left after step "
        f"{entry['step']} ({entry['reason']})"
        for rank, entry in sorted(left.items())[:8]
    )


def _nothing() -> None:
    return None


def _no_beats(_: Sequence[int]) -> dict[int, Beat]:
    return {}
