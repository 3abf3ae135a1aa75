"""This rank's links to the others of one trainer: two gloo groups and a board in the store.

The exchange group belongs to `_exchange` alone, in the order of its protocol. The data group is for
everything else that is collective, and for the results of long handlers. Both are made together, by
an agreement through the store.

Everything here runs on the thread that calls `init`, `step` or `finish`.
"""

from __future__ import annotations

import hashlib
import json
import socket
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist

from launchhelm._settings import GLOO_SOCKET_IFNAME
from launchhelm.errors import Unavailable
from launchhelm.torch._board import Board, Meeting, Met, Store, default_store, prefixed
from launchhelm.torch._gloo import Group, Memory, Table, Work, kept, make_group
from launchhelm.torch._messages import Cause
from launchhelm.torch._peers import LinkLost, Peers, first_line
from launchhelm.torch._wire import PACKET_BYTES, ROW_BYTES

_GLOO_MARGIN_S: Final = 60.0
_HANDLER_LIMIT: Final = timedelta(days=30)
_MAX_JSON_BYTES: Final = 16 << 20

_NOWHERE: Final = "not resolvable"
_LOOPBACK: Final = ("127.", "interface lo", _NOWHERE)
"""How an address begins at which gloo listens on loopback."""
_MOST_SHOWN: Final = 8

_made: dict[tuple[int, ...], int] = {}
"""How many trainers this process made for each set of ranks. All ranks count alike."""


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


class Links(Peers):
    """This rank's connections to the others of one trainer, and what they agreed on at the start.

    Attributes:
        on: Whether the groups could be made and are used; at the start the same on all ranks.
        why: The reason when they could not be made.
    """

    def __init__(self, rank: int, size: int, store: Store, prefix: str, timeout_s: float) -> None:
        host = socket.gethostname()
        self._store = store
        self._prefix = prefix
        self._meeting = Meeting(
            prefixed(prefix, store), rank, size, {"host": host, "address": _address(host)}
        )
        self._met: Met | None = None
        # Until the ranks have met, a board that nobody else looks at.
        super().__init__(rank, size, Board(store, f"{prefix}/{self._meeting.token}"), timeout_s)
        self.on = False
        self.why = ""
        self._exchange: Group | None = None
        self._data: Group | None = None
        self._data_lost: Cause | None = None
        self._issued: list[tuple[Memory, Work]] = []
        self._packets = [Memory(PACKET_BYTES), Memory(PACKET_BYTES)]
        self._table = Table(size, ROW_BYTES)
        self._told = 0

    # The start.

    def connect(self, agree_s: float) -> None:
        """Agree through the store that all are here, make both groups, and agree on that too.

        Both decisions are the first writer's word, so a rank that has waited too long and a
        coordinator that comes late cannot decide differently.
        """
        try:
            self.why = self._meet(agree_s) or self._agree_on_groups(agree_s)
        except RuntimeError as error:
            self.why = f"the store of the process group failed: {first_line(error)}"
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
            store = self.board.store
            self._exchange = make_group(store, "exchange", self.rank, self.size, agree_s)
            self._data = self._probes_by = make_group(store, "data", self.rank, self.size, agree_s)
        except Exception as error:  # The agreement protects the training from any failure here.
            return f"{type(error).__name__}: {first_line(error)}"
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
            raise Unavailable(f"Rank 0 is gone: {first_line(error)}.") from error
        raise Unavailable(f"Rank 0 said nothing for {timeout_s:g} s.")

    # The exchange group. Only the exchange calls these, in the order of its protocol.

    def issue(self, packet: bytes) -> None:
        """Coordinator: broadcast a packet without waiting."""
        self._begin(packet)

    def expect(self) -> None:
        """Another rank: begin to receive a packet without waiting."""
        self._begin(None)

    def _begin(self, packet: bytes | None) -> None:
        assert self._exchange is not None
        memory = self._packets.pop() if self._packets else Memory(PACKET_BYTES)
        if packet is not None:
            memory.bytes[:] = packet
        work = kept(self._exchange.broadcast(memory.tensor, 0, self._limit))
        self._issued.append((memory, work))

    def receive(self) -> bytes:
        """Wait for the packet that is due."""
        memory, work = self._issued.pop(0)
        self.wait(work, about="exchange")
        # Only after the wait: gloo may still write into the memory of one that was lost.
        self._packets.append(memory)
        return bytes(memory.bytes)

    def share(self, body: bytes | None, size: int) -> bytes:
        """Broadcast `size` bytes of the coordinator."""
        assert self._exchange is not None
        memory = Memory(-(-size // 8) * 8)
        if body is not None:
            memory.bytes[:size] = body
        self.wait(kept(self._exchange.broadcast(memory.tensor, 0, self._limit)), about="exchange")
        return bytes(memory.bytes[:size])

    def gather(self, row: bytes, *, handler: str = "") -> list[bytes]:
        """Exchange one row of ROW_BYTES with every rank; rows in rank order.

        All send theirs to the coordinator, which broadcasts all: in a ring, as gloo's all-gather
        has it, a row would go through every rank.

        Args:
            row: Of this rank.
            handler: The phase of ranks whose row takes as long as their handler does. Then the
                data group is used, and the timeout counts only once such a rank no longer beats.
        """
        group, about = (self._data, "data") if handler else (self._exchange, "exchange")
        if group is None:
            assert self._data_lost is not None
            raise LinkLost(self._data_lost)
        table, limit = self._table, _HANDLER_LIMIT if handler else self._limit
        table.own.bytes[:] = row
        is_first = self.rank == 0
        sent = kept(group.gather(table.rows if is_first else [], table.own.tensor, 0, limit))
        if is_first:
            self.wait(sent, about=about, handler=handler)
        back = kept(group.broadcast(table.whole.tensor, 0, limit))
        self.wait(*(() if is_first else (sent,)), back, about=about, handler=handler)
        return table.read()

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

    def collect(self, body: bytes) -> list[bytes]:
        """Return the bytes of every rank on the coordinator, [] elsewhere. Collective.

        Raises:
            Unavailable: As in `all_reduce`.
        """
        group, longest = self._usable_data("collect"), torch.tensor([len(body)])
        self._wait_data(group.allreduce(longest, dist.ReduceOp.MAX, self._limit), "collect")
        size = len(body).to_bytes(8, "little")
        own = torch.frombuffer(bytearray(size + body.ljust(int(longest), b"\0")), dtype=torch.uint8)
        rows = [torch.empty_like(own) for _ in range(self.size)] if self.rank == 0 else []
        self._wait_data(group.gather(rows, own, 0, self._limit), "collect")
        found = [row.numpy().tobytes() for row in rows]
        return [row[8 : 8 + int.from_bytes(row[:8], "little")] for row in found]

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
        # The operation is kept a while, and with it what it was given. A view would keep its base.
        alias = tensor.data
        self._wait_data(group.broadcast(alias, 0, self._limit), "broadcast")
        alias.data = tensor.new_empty(0)

    def _usable_data(self, call: str) -> Group:
        if self._data_lost is not None:
            raise Unavailable(f"{call} has no more use: {self._data_lost.text}.")
        if self._data is None:
            raise Unavailable(f"{call} needs a group that could not be made: {self.why}.")
        return self._data

    def _wait_data(self, work: Work, call: str) -> None:
        try:
            self.wait(kept(work), about="data")
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
        self._data, self._data_lost, self._probes_by = None, cause, self._exchange
        self.publish("data", cause)

    # Losing.

    def break_off(self, cause: Cause) -> None:
        """Use the exchange group no more, and let the ranks that wait in it know why."""
        self.drop()
        self.publish("exchange", cause)

    def drop(self) -> None:
        """Forget what was issued; it dies with its group."""
        self._issued.clear()
        self.on = False

    @property
    def _limit(self) -> timedelta:
        # Our own deadline comes first: gloo's message names an address, ours the ranks.
        return timedelta(seconds=self.timeout_s + _GLOO_MARGIN_S)


def _judge_groups(
    missing: Sequence[int], errors: dict[int, str | None], facts: Sequence[Mapping[str, Any]]
) -> str:
    """Decide whether control is on; else say why, and which addresses the ranks advertised."""
    failed = [f"rank {rank}: {text}" for rank, text in errors.items() if text]
    if not failed and not missing:
        return "on"
    parts = failed[:_MOST_SHOWN]
    if len(failed) > _MOST_SHOWN:
        parts.append(f"{len(failed) - _MOST_SHOWN} more ranks failed")
    if missing:
        parts.append(f"rank {_list(missing)} did not finish making the groups")
    addresses = {str(fact.get("host")): str(fact.get("address")) for fact in facts}
    deaf = [host for host, address in addresses.items() if address.startswith(_LOOPBACK)]
    if len(addresses) > 1 and deaf:
        parts.append(
            f"on {_list(deaf[:_MOST_SHOWN])} gloo listens on loopback, where no other host reaches "
            "it; set GLOO_SOCKET_IFNAME to the interface that they share"
        )
    shown = [f"{host} ({address})" for host, address in addresses.items()][:_MOST_SHOWN]
    more = f" and {len(addresses) - len(shown)} more" * (len(addresses) > len(shown))
    return "; ".join((*parts, f"addresses: {', '.join(shown)}{more}"))


def _address(host: str) -> str:
    """Return where gloo listens on this host, as far as that can be told before it does."""
    interface = GLOO_SOCKET_IFNAME.read()
    if interface:
        return f"interface {interface}"
    try:
        return socket.gethostbyname(host)
    except OSError:
        return _NOWHERE


def _list(items: Sequence[object]) -> str:
    return ", ".join(str(item) for item in items)
