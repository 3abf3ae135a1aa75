"""Batches that wait: full ones, in order, all streams and processes in turn."""

from __future__ import annotations

from launchhelm.records import WriterId
from syncer.api import wire
from syncer.inflight import Batch, Outbox, encode
from syncer.naming import StreamKey
from syncer.state import State

WRITER = WriterId(0, 1, "9f3a2c1d")


def key_of(name: str, writer: WriterId = WRITER) -> StreamKey:
    return StreamKey(writer, name, "number")


def add(outbox: Outbox, key: StreamKey, first: int, last: int, start: int = 0) -> None:
    seqs = range(first, last + 1)
    outbox.add(key, seqs, [b"x" * 100 for _ in seqs], start)


def spans(batches: list[Batch]) -> list[tuple[str, int, int]]:
    return [(batch.key.name, batch.first, batch.last) for batch in batches]


def test_points_that_come_bit_by_bit_leave_in_full_batches() -> None:
    outbox, key = Outbox(), key_of("loss")
    for first in range(0, 3000, 250):
        add(outbox, key, first, first + 249)

    sent = [outbox.take() for _ in range(3)]

    assert [spans(batches) for batches in sent] == [
        [("loss", 0, 999)],
        [("loss", 1000, 1999)],
        [("loss", 2000, 2999)],
    ]
    assert outbox.points == 0 and outbox.take() == []


def test_a_batch_is_not_filled_up_over_a_hole_that_it_would_cover() -> None:
    outbox, key = Outbox(), key_of("loss")
    add(outbox, key, 10, 19, 5)
    add(outbox, key, 30, 39, 30)
    add(outbox, key, 40, 49, 40)

    first, second = outbox.take()[0], outbox.take()[0]

    assert (first.start, first.first, first.last) == (5, 10, 19)
    assert (second.start, second.first, second.last) == (30, 30, 49)


def test_what_is_put_back_leaves_before_what_came_later() -> None:
    outbox, key = Outbox(), key_of("loss")
    add(outbox, key, 0, 9)
    (batch,) = outbox.take()
    add(outbox, key, 10, 19)

    outbox.put_back(batch.halves())

    found = [spans(outbox.take())[0][1:] for _ in range(3)]
    assert found == [(0, 4), (5, 9), (10, 19)]


def test_every_stream_gets_its_turn_while_more_points_come() -> None:
    outbox = Outbox()
    keys = [key_of(f"metric/{number}") for number in range(20)]
    met: set[str] = set()
    for turn in range(5):
        for key in keys:
            add(outbox, key, 1000 * turn, 1000 * turn + 999)
        taken = outbox.take()
        assert sum(batch.size for batch in taken) <= wire.MAX_REQUEST_BYTES
        met |= {batch.key.name for batch in taken}

    assert len(met) == 20


def test_every_process_gets_its_turn_while_more_points_come() -> None:
    outbox = Outbox()
    keys = [key_of("loss", WriterId(rank, 1, "9f3a2c1d")) for rank in range(4)]
    met: list[int] = []
    for turn in range(4):
        for key in keys:
            add(outbox, key, 1000 * turn, 1000 * turn + 999)
        met += {batch.key.writer.rank for batch in outbox.take()}

    assert sorted(met) == [0, 1, 2, 3]


def test_only_batches_that_leave_as_they_are_can_be_encoded_ahead() -> None:
    outbox = Outbox()
    add(outbox, key_of("full"), 0, 1499)
    add(outbox, key_of("growing"), 0, 998)

    ahead = list(outbox.full())

    assert spans(ahead) == [("full", 0, 999)]
    add(outbox, key_of("growing"), 999, 1500)
    assert spans(outbox.take()) == [("full", 0, 999), ("growing", 0, 999)]
    outbox.put_back(ahead)
    outbox.too_large(ahead[0].size)
    assert list(outbox.full()) == []


def test_what_was_encoded_ahead_is_used_for_the_same_arguments_only() -> None:
    state, key = State(), key_of("loss")
    state.apply({"streams": [[key.text, "s", "1"]], "participants": {str(WRITER): "p"}})
    batch = Batch(key, [3, 4], [b"{}", b"{}"], 0)

    first = encode(batch, state, "server", "1")
    again, other = encode(batch, state, "server", "1"), encode(batch, state, "server", "2")
    fresh = encode(Batch(key, [3, 4], [b"{}", b"{}"], 0), state, "server", "2")

    assert again.data is first.data
    assert (other.data, other.flight) == (fresh.data, fresh.flight) != (first.data, first.flight)
