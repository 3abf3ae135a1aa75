"""This rank's links to the others of one trainer: two gloo groups and a board in the store.

Facts of torch 2.13 that shaped this module, each found by a small test:

- Asynchronous operations of a gloo group pair by the order in which each rank issues them, however
  late a peer comes; `is_completed` may be polled, and then `wait` returns or raises at once.
- The group's destructor joins its threads, which sit in operations that nobody will complete: a
  process would hang at exit until its peer is gone. So a group is made without `new_group` (torch
  then neither destroys it nor forgets it with `destroy_process_group`), and is never destructed:
  process exit ends its threads. Finishing before, after or without `destroy_process_group` is fine.
- A killed peer closes its sockets: operations with it fail at once, others may still succeed, so a
  broadcast may reach some ranks only. A `send` to a dead peer raises at once, which names it.
- A rank that leaves or is stopped closes nothing; hence the board and the deadline.
- Whoever drops the last reference to an operation also drops its tensors, for which it needs the
  GIL. When that is gloo's own thread, and Python shuts down while it waits for the GIL, the process
  aborts. So an operation is kept well past its end, and one that never ends is kept for good.
- What runs twice a second finds its code and data cold: `torch.tensor` of eight integers then takes
  3 to 6 ms, an operation on memory that is there already about one. So packets are kept.

Everything here runs on the thread that calls `init`, `step` or `finish`.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import socket
import time
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, Protocol

import torch
import torch.distributed as dist

from launchhelm.errors import Unavailable
from launchhelm.torch._beats import Beat
from launchhelm.torch._board import Board, Meeting, Met, Store, default_store, prefixed
from launchhelm.torch._messages import (
    Cause,
)

PACKET_INTEGERS: Final = 8
_FIRST_LOOK_S: Final = 0.25
_LOOK_S: Final = 1.0
_GRACE_S: Final = 0.25
_SLOW_S: Final = 0.1
_SLEEP_S: Final = (20e-6, 0.002)
_GLOO_MARGIN_S: Final = 60.0
_PATIENCE_S: Final = 45.0
"""Three heartbeats: so long a rank in a handler may go without one, once the time is over."""
_MOST_ASKED: Final = 16
_HANDLER_LIMIT: Final = timedelta(days=30)
_PROBE_TAG: Final = 0x1A2C
_MAX_JSON_BYTES: Final = 16 << 20
_KEPT_OPERATIONS: Final = 8

_made: dict[tuple[int, ...], int] = {}
"""How many trainers this process made for each set of ranks. All ranks count alike."""

_recent: deque[Work] = deque()
"""The last operations of this process, each with one reference too many."""


class Work(Protocol):
    """An operation under way."""

    def is_completed(self) -> bool: ...
    def wait(self) -> object: ...


class Group(Protocol):
    """What we use of `ProcessGroupGloo`. Operations are asynchronous."""

    def broadcast(self, tensor: torch.Tensor, root: int, timeout: timedelta) -> Work: ...
    def allgather(
        self, outputs: list[torch.Tensor], tensor: torch.Tensor, timeout: timedelta
    ) -> Work: ...
    def allreduce(self, tensor: torch.Tensor, op: object, timeout: timedelta) -> Work: ...
    def send(self, tensors: list[torch.Tensor], to: int, tag: int) -> Work: ...


class _Packet:
    """Memory for one packet, as Python's integers and as the tensor that gloo takes."""

    def __init__(self) -> None:
        self.integers = array("q", bytes(8 * PACKET_INTEGERS))
        self.tensor = torch.frombuffer(self.integers, dtype=torch.int64)


class LinkLost(Exception):
    """An operation did not come about, and the group must not be used again."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause.text)
        self.cause = cause


def make_links(
    process_group: dist.ProcessGroup | None = None,
    *,
    timeout_s: float = 1800.0,
    agree_s: float = 60.0,
    required: bool = False,
) -> Links | None:
    """Connect the ranks of a group for control. Collective over `process_group`.

    Args:
        process_group: Whose ranks; default all. Its backend does not matter.
        timeout_s: Seconds to wait for a silent rank in any later operation.
        agree_s: Seconds until all ranks must have come here, and again to make the groups.
        required: Raise on all ranks alike instead of returning links that are off.

    Returns:
        None without torch.distributed or with one rank. Else links; where the groups could not be
        made, `on` is False on every rank and `why` says the same reason.

    Raises:
        Unavailable: The groups could not be made and `required` is set; on every rank.
        ValueError: This process is not in the group.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return None
    size = dist.get_world_size(process_group)
    rank = dist.get_rank(process_group)
    if rank < 0:
        raise ValueError("this process is not a member of process_group")
    if size == 1:
        return None
    members = tuple(dist.get_process_group_ranks(process_group))
    number = _made[members] = _made.get(members, 0) + 1
    digest = hashlib.sha256(repr(members).encode()).hexdigest()[:12]
    links = Links(rank, size, default_store(), f"launchhelm/{digest}/{number}", timeout_s)
    links.connect(agree_s)
    if required and not links.on:
        raise Unavailable(
            f"Control is required, but its group could not be made: {links.why}.",
            kept="No rank has started training.",
            remedy="Fix the connection between the hosts, or do not require control.",
        )
    return links


class Links:
    """This rank's connections to the others of one trainer, and what they agreed on at the start.

    Attributes:
        rank: Group rank; 0 is the coordinator.
        size: Ranks of the group.
        hosts: Host name of each rank.
        on: Whether the groups could be made; the same on all ranks.
        why: The reason when not.
        where: Tells (call, step) of this rank, for messages; set by the exchange.
        beats: Returns the last heartbeats of some ranks, where there is a run to read them from.
        on_slow: Called once in a wait that passes 0.1 s, and `on_done` when that wait is over.
    """

    def __init__(self, rank: int, size: int, store: Store, prefix: str, timeout_s: float) -> None:
        self.rank = rank
        self.size = size
        host = socket.gethostname()
        self._store = store
        self._prefix = prefix
        self._meeting = Meeting(
            prefixed(prefix, store), rank, size, {"host": host, "address": _resolve(host)}
        )
        self._met: Met | None = None
        # Until the ranks have met, a board that nobody else looks at.
        self.board = Board(store, f"{prefix}/{self._meeting.token}")
        self.timeout_s = timeout_s
        self.hosts: tuple[str, ...] = ()
        self.on = False
        self.why = ""
        self.where: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self.beats: Callable[[Sequence[int]], Mapping[int, Beat]] = _no_beats
        self.on_slow: Callable[[], None] = _nothing
        self.on_done: Callable[[], None] = _nothing
        self._losses: list[dict[str, Any]] = []
        self._exchange: Group | None = None
        self._data: Group | None = None
        self._data_lost: Cause | None = None
        self._issued: list[tuple[_Packet, Work]] = []
        self._spare = [_Packet()]
        self._told = 0
        self._heard_at = time.monotonic()
        self._says_it_waits = False

    # The start.

    def connect(self, agree_s: float) -> None:
        """Agree through the store that all are here, make both groups, and agree on that too.

        Both decisions are the first writer's word, so a rank that has waited too long and a
        coordinator that comes late cannot decide differently.
        """
        try:
            self.why = self._meet(agree_s) or self._agree_on_groups(agree_s)
        except RuntimeError as error:
            self.why = f"the store of the process group failed: {_first_line(error)}"
        self.on = not self.why

    def _meet(self, agree_s: float) -> str:
        meeting = self._meeting
        if self.rank == 0:
            return self._enter(meeting.lead(agree_s))
        met = meeting.join(agree_s + 5.0)
        if met is None:
            why = meeting.give_up(
                f"rank 0 did not say within {agree_s:g} s that all ranks are there"
            )
            met = None if why else meeting.join(5.0)
            if met is None:
                return why or "rank 0 is gone"
        return self._enter(met)

    def _enter(self, met: Met) -> str:
        self._met = met
        self.board = Board(self._store, f"{self._prefix}/{met.nonce}")
        if not met.word:
            self.hosts = tuple(str(fact["host"]) for fact in met.facts)
        return met.word

    def _agree_on_groups(self, agree_s: float) -> str:
        assert self._met is not None
        board, ranks = self.board, range(self.size)
        error = self._make_groups(agree_s)
        board.put(f"made/{self.rank}", error)
        word = ""
        if self.rank == 0:
            keys = [f"made/{rank}" for rank in ranks]
            missing = [] if board.wait(keys, agree_s + 5.0) else self._missing(keys)
            errors = {rank: board.read(f"made/{rank}") for rank in ranks if rank not in missing}
            word = _judge_groups(missing, errors, self._met.facts)
        elif not board.wait(["groups"], 2 * agree_s + 10.0):
            word = "rank 0 did not say whether all groups were made"
        word = board.decide("groups", word)
        return "" if word == "on" else word

    def _missing(self, keys: Sequence[str]) -> list[int]:
        return [rank for rank, key in enumerate(keys) if self.board.read(key) is None]

    def _make_groups(self, agree_s: float) -> str:
        try:
            self._exchange = _make_group(self.board, "exchange", self.rank, self.size, agree_s)
            self._data = _make_group(self.board, "data", self.rank, self.size, agree_s)
        except Exception as error:  # The agreement protects the training from any failure here.
            return f"{type(error).__name__}: {_first_line(error)}"
        return ""

    def broadcast_json(self, value: Any = None, *, timeout_s: float = 600.0) -> Any:
        """Pass a JSON value of the coordinator to every rank and return it. Collective.

        It goes through the store, so it works with control off, and ranks never wait for a file.

        Raises:
            Unavailable: The coordinator said nothing in time, or its store is gone.
        """
        self._told += 1
        key = f"told/{self._told}"
        deadline = time.monotonic() + timeout_s
        try:
            if self._met is None:
                # This rank went on without control before rank 0 came, if it comes at all.
                met = self._meeting.join(timeout_s, off=self.why)
                if met is None:
                    raise Unavailable(
                        f"Rank 0 said nothing to this rank for {timeout_s:g} s.",
                        kept=f"Before: {self.why}.",
                        remedy="Let all ranks call init at about the same time.",
                    )
                self._enter(met)
            if self.rank == 0:
                self.board.store.set(key, json.dumps(value))
                return value
            if self.board.wait([key], deadline - time.monotonic()):
                return json.loads(self.board.store.get(key))
        except RuntimeError as error:
            raise Unavailable(f"Rank 0 is gone: {_first_line(error)}.") from error
        raise Unavailable(f"Rank 0 said nothing for {timeout_s:g} s.")

    # The exchange group. Only the exchange calls these, in the order of its protocol.

    def issue(self, integers: Sequence[int]) -> None:
        """Coordinator: broadcast a packet without waiting."""
        assert self._exchange is not None and len(integers) == PACKET_INTEGERS
        packet = self._spare.pop() if self._spare else _Packet()
        packet.integers[:] = array("q", integers)
        work = _kept(self._exchange.broadcast(packet.tensor, 0, self._limit))
        self._issued.append((packet, work))

    def receive(self) -> list[int]:
        """Wait for the packet that is due: the issued one, or on a peer the coordinator's."""
        assert self._exchange is not None
        if self._issued:
            packet, work = self._issued.pop(0)
        else:
            packet = self._spare.pop() if self._spare else _Packet()
            work = _kept(self._exchange.broadcast(packet.tensor, 0, self._limit))
        self._wait(work)
        # Only after the wait: gloo may still write into the memory of one that was lost.
        self._spare.append(packet)
        return packet.integers.tolist()

    def share(self, body: bytes | None, size: int) -> bytes:
        """Broadcast `size` bytes of the coordinator."""
        assert self._exchange is not None
        tensor = torch.zeros(-(-size // 8) * 8, dtype=torch.uint8)
        if body is not None:
            tensor[:size] = torch.frombuffer(bytearray(body), dtype=torch.uint8)
        self._wait(_kept(self._exchange.broadcast(tensor, 0, self._limit)))
        return tensor[:size].numpy().tobytes()

    def gather(self, row: bytes, *, handler: str = "") -> list[bytes]:
        """Exchange one row of a fixed size with every rank; rows in rank order.

        Args:
            row: Of this rank.
            handler: The phase of ranks whose row takes as long as their handler does. Then the
                data group is used, and the timeout counts only once such a rank no longer beats.
        """
        group = self._data if handler else self._exchange
        if group is None:
            assert self._data_lost is not None
            raise LinkLost(self._data_lost)
        own = torch.frombuffer(bytearray(row), dtype=torch.uint8)
        rows = [torch.empty_like(own) for _ in range(self.size)]
        limit = _HANDLER_LIMIT if handler else self._limit
        self._wait(_kept(group.allgather(rows, own, limit)), data=bool(handler), handler=handler)
        return [other.numpy().tobytes() for other in rows]

    # The data group, which log_reduced and long handlers use.

    def all_reduce(self, tensor: torch.Tensor, op: str = "sum") -> torch.Tensor:
        """Reduce in place (`sum`, `min`, `max`) over all ranks. Collective.

        Raises:
            Unavailable: The groups could not be made, or a rank left, died or was too late.
        """
        operation = {"sum": dist.ReduceOp.SUM, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX}
        group = self._usable_data("log_reduced")
        self._wait_data(group.allreduce(tensor, operation[op], self._limit), "log_reduced")
        return tensor

    def gather_json(self, value: Any) -> list[Any]:
        """Collect one JSON value of every rank on every rank. Collective.

        Raises:
            Unavailable: As in `all_reduce`.
            ValueError: The value is larger than 16 MiB.
        """
        body = json.dumps(value).encode()
        if len(body) > _MAX_JSON_BYTES:
            raise ValueError("a gathered value may have at most 16 MiB")
        group = self._usable_data("gather")
        sizes = [torch.empty(1, dtype=torch.int64) for _ in range(self.size)]
        own_size = torch.tensor([len(body)], dtype=torch.int64)
        self._wait_data(group.allgather(sizes, own_size, self._limit), "gather")
        longest = max(int(size) for size in sizes)
        own = torch.zeros(longest, dtype=torch.uint8)
        own[: len(body)] = torch.frombuffer(bytearray(body), dtype=torch.uint8)
        rows = [torch.empty_like(own) for _ in range(self.size)]
        self._wait_data(group.allgather(rows, own, self._limit), "gather")
        return [
            json.loads(row[: int(size)].numpy().tobytes())
            for row, size in zip(rows, sizes, strict=True)
        ]

    def share_bytes(self, body: bytes) -> bytes:
        """Pass bytes of the coordinator to every rank. Collective; raises as `all_reduce` does."""
        size = torch.tensor([len(body)], dtype=torch.int64)
        self.share_tensor(size)
        own = torch.frombuffer(bytearray(body), dtype=torch.uint8) if self.rank == 0 else None
        whole = torch.empty(int(size), dtype=torch.uint8) if own is None else own
        self.share_tensor(whole)
        return whole.numpy().tobytes()

    def share_tensor(self, tensor: torch.Tensor) -> None:
        """Overwrite a tensor on the CPU with the coordinator's. Collective; raises likewise."""
        group = self._usable_data("broadcast")
        self._wait_data(group.broadcast(tensor, 0, self._limit), "broadcast")

    def _usable_data(self, call: str) -> Group:
        if self._data_lost is not None:
            raise Unavailable(f"{call} has no more use: {self._data_lost.text}.")
        if self._data is None:
            raise Unavailable(f"{call} needs a group that could not be made: {self.why}.")
        return self._data

    def _wait_data(self, work: Work, call: str) -> None:
        try:
            self._wait(_kept(work), data=True)
        except LinkLost as lost:
            self._lose_data(lost.cause)
            raise Unavailable(f"{call} at step {self.where()[1]}: {lost.cause.text}.") from lost
        except BaseException as error:
            # Ctrl-C: the operation stays behind, so nothing may follow it.
            text = f"{type(error).__name__} on rank {self.name_of(self.rank)} in {call}"
            self._lose_data(Cause("broken", (self.rank,), text))
            raise

    def _lose_data(self, cause: Cause) -> None:
        """Use the data group no more, and let the ranks that wait in it know why.

        Nothing is retried on a group once one operation on it was lost: the ranks may be in
        different operations from then on.
        """
        self._data, self._data_lost = None, cause
        self._publish("data", cause)

    # Leaving, and losing.

    def leave(self, step: int, call: int, reason: str) -> None:
        """Tell the others that this rank takes no further part. No collective."""
        host = self.hosts[self.rank] if self.hosts else ""
        self.board.say(
            {"what": "left", "rank": self.rank, "host": host, "step": step, "call": call,
             "reason": reason}
        )  # fmt: skip

    def break_off(self, cause: Cause) -> None:
        """Use the exchange group no more, and let the ranks that wait in it know why."""
        self.drop()
        self._publish("exchange", cause)

    def _publish(self, what: str, cause: Cause) -> None:
        # Only who has not heard of it tells it: with a thousand ranks one entry must do.
        entry = {
            "what": what, "rank": self.rank, "kind": cause.kind, "ranks": list(cause.ranks),
            "text": cause.text,
        }  # fmt: skip
        if not any(each["what"] == what for each in self._losses):
            self._losses.append(entry)
            self.board.say(entry)

    def drop(self) -> None:
        """Forget what was issued; it dies with its group."""
        self._issued.clear()
        self.on = False

    def left_before(self, call: int) -> bool:
        """Whether every other rank has announced that it left before this call."""
        self._look()
        left = self._left()
        others = set(range(self.size)) - {self.rank}
        return all(rank in left and left[rank]["call"] < call for rank in others)

    @property
    def _limit(self) -> timedelta:
        # Our own deadline comes first: gloo's message names an address, ours the ranks.
        return timedelta(seconds=self.timeout_s + _GLOO_MARGIN_S)

    def _wait(self, work: Work, *, data: bool = False, handler: str = "") -> None:
        """Wait in slices for an operation. Raises LinkLost."""
        start = time.monotonic()
        give_up_at = start + self.timeout_s
        # A command that is lost is told as a loss of the exchange, in whichever group its rows are.
        about = {"data", "exchange"} if handler else {"data"} if data else {"exchange"}
        heard: dict[int, int] = {}
        look_at, slow = start + _FIRST_LOOK_S, False
        pause_s, longest_s = _SLEEP_S
        try:
            while not work.is_completed():
                now = time.monotonic()
                if not slow and now - start > _SLOW_S:
                    slow = True
                    self.on_slow()
                if now >= look_at:
                    self._look_around(work, about)
                    look_at = now + _LOOK_S
                if now > give_up_at:
                    self._look()
                    cause = self._known_cause(about)
                    if cause or not handler or not self._all_beat(heard, handler):
                        raise LinkLost(cause or self._late(now - start))
                    give_up_at = time.monotonic() + _PATIENCE_S
                time.sleep(pause_s)
                pause_s = min(pause_s * 1.5, longest_s)
            work.wait()
            self._still_meant(about)
        except RuntimeError as error:
            raise LinkLost(self._failed(error, about)) from error
        finally:
            if slow:
                self.on_done()
        # Only now: one whose wait was in vain still counts as waiting for those who judge it late.
        if self._says_it_waits:
            self._says_it_waits = False
            self.board.put(f"at/{self.rank}", "")

    def _look_around(self, work: Work, about: set[str]) -> None:
        """While waiting: say so, and see whether there is anybody left to wait for."""
        self._look()
        cause = self._known_cause(about)
        if cause is not None and not _completes(work, _GRACE_S):
            raise LinkLost(cause)
        self._says_it_waits = True
        self.board.put(f"at/{self.rank}", json.dumps(self.where()))

    def _still_meant(self, about: set[str]) -> None:
        """Refuse what came when the others have given it up, as after a stop of this process.

        Where the store is gone with rank 0, nobody can say that they have not.
        """
        now = time.monotonic()
        was_long, self._heard_at = now - self._heard_at > self.timeout_s / 2, now
        if was_long:
            self._look()
            for entry in self._losses:
                if entry["what"] in about:
                    raise LinkLost(Cause(entry["kind"], tuple(entry["ranks"]), entry["text"]))
            if not self.board.alive:
                text = f"the process of rank {self.name_of(0)} is gone"
                raise LinkLost(Cause("dead", (0,), text))

    def _look(self) -> None:
        self._losses += (entry for entry in self.board.news() if entry["rank"] != self.rank)

    def _left(self) -> dict[int, dict[str, Any]]:
        return {entry["rank"]: entry for entry in self._losses if entry["what"] == "left"}

    def _known_cause(self, about: set[str]) -> Cause | None:
        """Return why an operation cannot come about, None when it still may.

        A rank that left or died is missed by both groups; all else is the loss of one of them.
        """
        for entry in self._losses:
            # What came first is the cause: ranks also leave because the exchange broke.
            if entry["what"] == "left":
                left = self._left()
                return Cause("left", tuple(sorted(left)), _sentence_left(left))
            if entry["what"] in about or entry["kind"] in ("dead", "left"):
                return Cause(entry["kind"], tuple(entry["ranks"]), entry["text"])
        return None

    def _failed(self, error: RuntimeError, about: set[str]) -> Cause:
        """Name who is gone after an operation failed."""
        self._look()
        cause = self._known_cause(about)
        if cause is not None and cause.ranks:
            return cause
        # The sockets of a killed process close one after the other.
        for _ in range(10):
            dead = self._dead()
            if dead:
                names = _list([self.name_of(rank) for rank in dead])
                return Cause("dead", tuple(dead), f"the process of rank {names} is gone")
            time.sleep(0.05)
        return cause or Cause("broken", (), f"the connection broke: {_first_line(error)}")

    def _dead(self) -> list[int]:
        group = self._data or self._exchange
        if group is None:
            return []
        dead = []
        for rank in range(self.size):
            if rank != self.rank:
                try:
                    # Nobody receives this; to a living rank it stays a notice of a few bytes.
                    group.send([torch.zeros(1, dtype=torch.uint8)], rank, _PROBE_TAG)
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
        said = (_list(names) if names else "of unknown number") + (f" and {more} more" * (more > 0))
        text = f"rank {said} did not come to step {step} (call {call}) in {waited_s:.3g} s"
        return Cause("timeout", tuple(silent), text)

    def name_of(self, rank: int) -> str:
        """Return the rank with its host, as messages name it."""
        host = self.hosts[rank] if rank < len(self.hosts) else ""
        return f"{rank} on {host}" if host else str(rank)


def _make_group(board: Board, name: str, rank: int, size: int, limit_s: float) -> Group:
    store = prefixed(name, board.store)
    # Its methods are bound at run time; mypy sees an empty class.
    group: Group = dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=limit_s))  # type: ignore[assignment, arg-type]
    _immortal(group)
    return group


def _immortal(thing: object) -> None:
    """Add one reference too many, so that its C++ side is never destructed (see above)."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _kept(work: Work) -> Work:
    """Keep an operation until several later ones have begun, and for good unless it completed."""
    _immortal(work)
    _recent.append(work)
    if len(_recent) > _KEPT_OPERATIONS:
        oldest = _recent.popleft()
        if oldest.is_completed():
            ctypes.pythonapi.Py_DecRef(ctypes.py_object(oldest))
    return work


def _judge_groups(
    missing: Sequence[int], errors: dict[int, str | None], facts: Sequence[Mapping[str, Any]]
) -> str:
    """Decide whether control is on; else say why, and which addresses the ranks advertised."""
    failed = {rank: text for rank, text in errors.items() if text}
    if not failed and not missing:
        return "on"
    parts = [f"rank {rank}: {text}" for rank, text in failed.items()]
    if missing:
        parts.append(f"rank {_list(missing)} did not finish making the groups")
    addresses = {f"{fact.get('host')} ({fact.get('address')})" for fact in facts}
    hosts = {fact.get("host") for fact in facts}
    loopback = [fact for fact in facts if str(fact.get("address", "")).startswith("127.")]
    if len(hosts) > 1 and loopback:
        parts.append("a host name resolves to loopback; set GLOO_SOCKET_IFNAME to the interface")
    shown = sorted(addresses)
    more = f" and {len(shown) - 8} more" if len(shown) > 8 else ""
    return "; ".join((*parts[:8], f"addresses: {', '.join(shown[:8])}{more}"))


def _completes(work: Work, limit_s: float) -> bool:
    """Whether an operation still completes: its data may be on the way while a rank leaves."""
    deadline = time.monotonic() + limit_s
    while not work.is_completed():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True


def _sentence_left(left: dict[int, dict[str, Any]]) -> str:
    return "; ".join(
        f"rank {rank}{' on ' + entry['host'] if entry['host'] else ''} left after step "
        f"{entry['step']} ({entry['reason']})"
        for rank, entry in sorted(left.items())[:8]
    )


def _resolve(host: str) -> str:
    try:
        return socket.gethostbyname(host)
    except OSError:
        return "not resolvable"


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0][:200]


def _list(items: Sequence[object]) -> str:
    return ", ".join(str(item) for item in items)


def _nothing() -> None:
    return None


def _no_beats(_: Sequence[int]) -> dict[int, Beat]:
    return {}
