"""The state of one run in the hands of one holder of the lease, and the requests that it makes.

push.py tells why each point arrives once; the order of the steps below is what it rests on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final  # Any: changes of the state, JSON of answers.

from launchhelm._clock import Clock
from launchhelm.store.manifest import node_of
from syncer import inflight
from syncer.api import wire
from syncer.api.answers import ApiError
from syncer.api.client import Client
from syncer.artifacts import Artifacts
from syncer.capabilities import Capabilities
from syncer.facts import Facts
from syncer.fence import Fence
from syncer.idmap import IdMap
from syncer.inflight import MIN_REQUEST_BYTES, Batch, Outbox, Ready
from syncer.intake import Intake
from syncer.lease import Lease
from syncer.mapping import Refused
from syncer.meanwhile import meanwhile
from syncer.naming import StreamKey
from syncer.readback import ServerStream, survey
from syncer.sessions import Sessions
from syncer.state import Flight, Journal, State

CHECK_S: Final = 60.0
"""How often the token is looked at while points are sent."""

_LONG_BYTES: Final = 256 << 10
"""While a request of this size is on its way, the next ones are made."""
_ENOUGH: Final = 20_000
"""Points that wait; more are not read."""


class Lost(Exception):
    """The lease, or the right to go on with what we remember, is somebody else's."""


@dataclass(slots=True)
class Tally:
    """What was confirmed, and set aside, in one slice."""

    points: int = 0
    bytes: int = 0
    batches: int = 0
    refused: int = 0


@dataclass(slots=True)
class Delivery:
    """Everything that a holder works with; gone with the lease. One thread.

    Methods raise ApiError for what the server does, OSError where the state cannot be written (then
    memory is ahead of what is durable, and the delivery must be dropped), Lost.
    """

    directory: Path
    server: str
    client: Client
    clock: Clock
    lease: Lease
    epoch: int
    journal: Journal
    outbox: Outbox
    facts: Facts
    ids: IdMap
    sessions: Sessions
    capabilities: Capabilities
    artifacts: Artifacts
    intake: Intake
    told: Callable[[], object] = lambda: None
    may_read_ahead: bool = True
    tally: Tally = field(default_factory=Tally)
    ready: list[Ready] = field(default_factory=list)
    _fence: Fence | None = None
    _read_back: dict[str, ServerStream] = field(default_factory=dict)
    _checked_at: float = 0.0
    _contradicted: set[str] = field(default_factory=set)
    _portion: int = wire.MAX_BATCHES

    @property
    def state(self) -> State:
        """What is remembered."""
        return self.journal.state

    @property
    def pending(self) -> int:
        """Points that are known to wait."""
        return self.outbox.points + sum(it.flight.count for it in self.ready)

    @property
    def cursor(self) -> str | None:
        """How far all is dealt with, as the text of a cursor; None while something waits."""
        return None if self.pending else self.intake.cursor

    @property
    def held(self) -> str:
        """Which streams are left as they are, and why; "" when none is."""
        if not self.intake.held:
            return ""
        key, why = next(iter(self.intake.held.items()))
        others = f" and {len(self.intake.held) - 1} more" if len(self.intake.held) > 1 else ""
        return f"{key.name!r} of rank {key.writer.rank}{others} is not sent: {why}."

    @property
    def problems(self) -> list[str]:
        """What of the run cannot be read, or sent, now, one sentence each."""
        stuck = self.artifacts.stopped
        return [*self.intake.problems, *([f"an artifact is not sent: {stuck}"] if stuck else [])]

    # --- what to send -----------------------------------------------------------------------------

    def fill(self, deadline: float) -> bool:
        """Make the next request ready; True when nothing waits and nothing more can be read."""
        if self._fence is None and self.state.flights:
            self.enter()
        while not self.ready:
            batches = self.outbox.take()
            if batches and self._fence is None:
                self.outbox.put_back(batches)
                self.enter()
            elif batches:
                try:
                    self.ready = self._promise(batches)
                except BaseException:
                    self.outbox.put_back(batches)
                    raise
            else:
                has_more = self._read()
                if not has_more and not self.outbox.points:
                    return True
                if self.clock.monotonic() >= deadline:
                    return False
        return False

    def _read(self) -> bool:
        has_more = self.intake.read()
        self._set_aside()
        return has_more

    def _work_ahead(self) -> bool:
        """Read and encode what comes after a request that is on its way."""
        if self.may_read_ahead and self.outbox.points < _ENOUGH and self._read():
            return True
        state = self.state
        for batch in self.outbox.full():
            writer = str(batch.key.writer)
            if self._has_id(batch.key) and writer in state.participants and writer in state.epochs:
                inflight.encode(batch, state, self.server, state.epochs[writer])
        return False

    def enter(self) -> None:
        """Find the run on the server, and make sure that we know what it has of it."""
        run = self.ids.run()
        if self.state.run != run:
            self.journal.write({"run": run, "project": self.ids.project_id()})
            self.artifacts.known.clear()
            self.intake.rewind()
        fence = Fence(self.client, self.journal, run, node_of(self.directory))
        if fence.holds() and not self.journal.doubt:
            self._recall()
        else:
            self._survey(None)
            self.journal.doubt = ""
        if not fence.renew():
            raise Lost("Another syncer has begun to send this run from elsewhere.")
        self._fence, self._checked_at = fence, self.clock.monotonic()

    def _recall(self) -> None:
        """Make the batches ready again that were on their way when the last holder ended."""
        self.ready, failed = inflight.remake(self.directory, self.state, self.intake.points)
        if not failed:
            return
        # The server knows whether they arrived.
        self._survey({self._key(flight) for flight, _ in failed}, with_flights=False)
        gone: list[str] = []
        for flight, readable in failed:
            is_there = flight.last in self.state.streams[flight.stream].coverage
            if is_there or readable == flight.count:
                gone.append(flight.batch_id)  # What is not there goes under another id.
            else:
                self.intake.held[self._key(flight)] = (
                    f"records {flight.first} to {flight.last} were on their way and cannot be "
                    "read any more"
                )
        self.journal.write({"drop": gone})
        self.intake.rewind()

    def _survey(self, keys: Collection[StreamKey] | None, *, with_flights: bool = True) -> None:
        """Learn what the server has, of the run or of some streams, and go on after that.

        Args:
            keys: The streams; None means all.
            with_flights: Whether what is on its way in them is settled by it.
        """
        run = self.ids.run()
        found = survey(
            self.client,
            self.directory,
            project_id=self.ids.project_id(),
            run_id=run,
            only=keys,
            tick=self.lease.renew,
            # Before the fence stands, nothing is sent; so what was read stays as it is.
            read=self._read_back if self._fence is None else None,
        )
        self._read_back.clear()
        state = self.state
        number = dict(state.number)
        for text in found.coverage:
            number.setdefault(text, len(number))
        asked = state.number if keys is None else [it.text for it in keys if it.text in number]
        change: dict[str, Any] = {
            "forget": [number[text] for text in asked],
            "streams": [[text, "", ""] for text in found.coverage if text not in state.number],
            "cover": [
                [number[text], first, last]
                for text, coverage in found.coverage.items()
                for first, last in coverage
            ],
            "epochs": found.epochs,
            "participants": {str(writer): id_ for writer, id_ in found.participants.items()},
        }
        change["forget"] = [it for it in change["forget"] if it < len(state.streams)]
        if with_flights:
            settled = set(change["forget"])
            change["drop"] = [it.batch_id for it in state.flights.values() if it.stream in settled]
            self.ready = [it for it in self.ready if it.flight.stream not in settled]
        self.journal.write(change)
        self.ids.seed(participants=found.participants)
        self.intake.rewind()

    def _key(self, flight: Flight) -> StreamKey:
        return StreamKey.parse(self.state.streams[flight.stream].key)

    def _promise(self, batches: Sequence[Batch]) -> list[Ready]:
        """Make the intent of a request durable: all that is needed to make its bytes again."""
        state, writer = self.state, batches[0].key.writer
        change: dict[str, Any] = {}
        unknown = [batch.key for batch in batches if not self._has_id(batch.key)]
        if unknown:
            change["streams"] = [[key.text, *it] for key, it in self._stream_ids(unknown)]
        if str(writer) not in state.participants:
            change["participants"] = {str(writer): self.ids.participant(writer)}
        if str(writer) not in state.epochs:
            change["epochs"] = {str(writer): self.sessions.epoch(writer)}
        if change:
            self.journal.later(change)
        epoch = state.epochs[str(writer)]
        ready = [inflight.encode(batch, state, self.server, epoch) for batch in batches]
        self.journal.write({"fly": [it.flight.wire() for it in ready]})
        return ready

    def _stream_ids(self, keys: Sequence[StreamKey]) -> Iterator[tuple[StreamKey, tuple[str, str]]]:
        """Yield id and revision of each stream, created in as many requests as the server needs."""
        start = 0
        while start < len(keys):
            some = keys[start : start + self._portion]
            try:
                yield from self.ids.streams(some).items()
            except ApiError as error:
                if error.status != 413 or len(some) == 1:
                    raise
                self._portion = len(some) // 2
                continue
            start += len(some)

    def _has_id(self, key: StreamKey) -> bool:
        stream = self.state.stream(key.text)
        return stream is not None and bool(stream.id)

    def _set_aside(self) -> None:
        """Write down values that no server takes."""
        refused = self.intake.take_refused()
        if not refused:
            return
        state = self.state
        number = dict(state.number)
        for it in refused:
            number.setdefault(it.key.text, len(number))
        places = [(number[it.key.text], it) for it in refused]
        self.journal.later(
            {
                "streams": [[text, "", ""] for text in list(number)[len(state.streams) :]],
                "cover": [[place, self._start(it), it.seq] for place, it in places],
                "aside": [[place, it.seq, it.size, it.why] for place, it in places],
            }
        )
        self.tally.refused += len(refused)

    def _start(self, refused: Refused) -> int:
        """From where on a stream is dealt with up to a value that is set aside."""
        waits = self.outbox.has(refused.key) or any(
            it.batch.key == refused.key for it in self.ready
        )
        is_alone = self.intake.is_whole and not waits
        return 0 if is_alone else refused.seq

    # --- a request --------------------------------------------------------------------------------

    def send(self) -> None:
        """Send some of what is ready, and note what became of it."""
        request = self._one_request()
        self._check_fence()
        # Nothing stands between this listing and the request: the proof needs it so.
        if not self.lease.still_mine(self.journal.name):
            raise Lost("Another syncer has taken over.")
        body = wire.request([it.data for it in request])
        try:
            if len(body) < _LONG_BYTES:
                answer = self._ingest(request[0], body)
            else:
                answer = meanwhile(partial(self._ingest, request[0], body), self._work_ahead)
            streams = {it.flight.batch_id: it.stream_id for it in request}
            receipts = wire.receipts(answer, streams)
        except ApiError as error:
            if error.status != 413 or len(body) <= MIN_REQUEST_BYTES:
                raise
            self._too_large(request, body, error)
        except wire.InvalidReceipt as error:
            raise ApiError("invalid_receipt", str(error), retryable=True) from error
        else:
            self._take(receipts, {it.flight.batch_id: it for it in request})

    def _one_request(self) -> list[Ready]:
        """Choose the first of what is ready: of one participant, and not too large together."""
        chosen: list[Ready] = []
        size = 0
        for it in self.ready:
            if it.batch.key.writer == self.ready[0].batch.key.writer:
                size += len(it.data) + 1
                is_full = size > self.outbox.max_bytes - inflight.HEAD_BYTES
                if chosen and (is_full or len(chosen) == wire.MAX_BATCHES):
                    break
                chosen.append(it)
        return chosen

    def _check_fence(self) -> None:
        now = self.clock.monotonic()
        if self._fence is not None and now - self._checked_at >= CHECK_S:
            if not self._fence.holds():
                raise Lost("Another syncer sends this run from another place.")
            self._checked_at = now

    def _ingest(
        self, first: Ready, body: bytes, on_sent: Callable[[], object] = lambda: None
    ) -> dict[str, Any]:
        writer = first.batch.key.writer
        token = self.sessions.token(writer)
        try:
            return self.client.ingest(body, token=token, on_sent=on_sent)
        except ApiError as error:
            if error.status not in (401, 403) or not self.sessions.drop_token(writer):
                raise
            return self.client.ingest(body, token=self.sessions.token(writer))

    def _take(self, receipts: Sequence[wire.Receipt], sent: dict[str, Ready]) -> None:
        stored = [it.batch_id for it in receipts if it.stored]
        self.journal.later({"ack": stored, "at": self.clock.wall(), "error": ""})
        self.tally.points += sum(sent[it].flight.count for it in stored)
        self.tally.bytes += sum(len(sent[it].data) for it in stored)
        self.tally.batches += len(stored)
        contradicted: list[Ready] = []
        later: ApiError | None = None
        settled = set(stored)
        for receipt in receipts:
            ready = sent[receipt.batch_id]
            if receipt.stored:
                continue
            if receipt.retryable:
                later = ApiError(receipt.code, receipt.message, retryable=True)
            elif receipt.code == "conflict" and receipt.batch_id not in self._contradicted:
                contradicted.append(ready)
            else:
                settled.add(receipt.batch_id)
                if receipt.code == "validation":
                    self._split(ready, receipt.message)
                else:
                    self.intake.held[ready.batch.key] = f"{receipt.message} ({receipt.code})"
                    self.outbox.drop(ready.batch.key)
        self.ready = [it for it in self.ready if it.flight.batch_id not in settled]
        if contradicted:
            # The server has something else under our id. What it has counts.
            self._survey({it.batch.key for it in contradicted})
            self._contradicted.update(it.flight.batch_id for it in contradicted)
        if stored:
            self.told()
        if later is not None:
            raise later

    # --- what a server does not take --------------------------------------------------------------

    def _split(self, ready: Ready, message: str) -> None:
        """Halve a batch that holds something the server rejects, down to one point."""
        if len(ready.batch.points) > 1:
            self.journal.later({"drop": [ready.flight.batch_id]})
            self.outbox.put_back(ready.batch.halves())
        else:
            self._leave_out(ready, f"rejected by the server: {message}")

    def _too_large(self, request: Sequence[Ready], body: bytes, error: ApiError) -> None:
        """Make smaller requests; of one batch alone, smaller batches, down to one point.

        A refused request may have come through at an earlier try, or a gateway may have spoken
        after the server. So batches are taken apart only after a look at what is there.
        """
        self.outbox.too_large(len(body))
        if len(request) > 1:
            return
        ready = request[0]
        self._survey({ready.batch.key})
        is_there = ready.flight.last in self.state.streams[ready.flight.stream].coverage
        if ready.flight.count == 1 and not is_there:
            self._leave_out(ready, f"too large for the server: {error.message}")

    def _leave_out(self, ready: Ready, why: str) -> None:
        """Set one point aside for good; it stays in the run directory."""
        number, batch = ready.flight.stream, ready.batch
        self.journal.write(
            {
                "drop": [ready.flight.batch_id],
                "aside": [[number, batch.first, len(batch.points[0]), why]],
                "cover": [[number, ready.flight.start, batch.first]],
            }
        )
        self.tally.refused += 1

    def send_artifacts(self, limit_s: float) -> None:
        """Send some of what artifacts wait."""
        if self._fence is None:
            self.enter()  # What is remembered of artifacts belongs to one run of the server.
        before = self.artifacts.sent_bytes
        try:
            for aside in self.artifacts.step(limit_s):
                self.tally.refused += 1
                self.journal.write({"lost_artifacts": [[aside.id, aside.size, aside.why]]})
        finally:
            self.tally.bytes += self.artifacts.sent_bytes - before
