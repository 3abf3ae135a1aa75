"""Batches that wait: full ones, in order, all streams and processes in turn."""

from __future__ import annotations

from launchhelm.records import WriterId
from syncer.api import wire
from syncer.inflight import Batch, Outbox
from syncer.mapping import Sample
from syncer.naming import StreamKey

WRITER = WriterId(0, 1, "9f3a2c1d")


def key_of(name: str, writer: WriterId = WRITER) -> StreamKey:
    return StreamKey(writer, name, "number")


def points_of(key: StreamKey, first: int, last: int, size: int = 100) -> list[Sample]:
    return [Sample(key, seq, b"x" * size) for seq in range(first, last + 1)]


def spans(batches: list[Batch]) -> list[tuple[str, int, int]]:
    return [(batch.key.name, batch.first, batch.last) for batch in batches]


def test_points_that_come_bit_by_bit_leave_in_full_batches() -> None:
    outbox, key = Outbox(), key_of("loss")
    for first in range(0, 3000, 250):
        outbox.add(key, points_of(key, first, first + 249), 0)

    sent = [outbox.take() for _ in range(3)]

    assert [spans(batches) for batches in sent] == [
        [("loss", 0, 999)],
        [("loss", 1000, 1999)],
        [("loss", 2000, 2999)],
    ]
    assert outbox.points == 0 and outbox.take() == []


def test_a_batch_is_not_filled_up_over_a_hole_that_it_would_cover() -> None:
    outbox, key = Outbox(), key_of("loss")
    outbox.add(key, points_of(key, 10, 19), 5)
    outbox.add(key, points_of(key, 30, 39), 30)
    outbox.add(key, points_of(key, 40, 49), 40)

    first, second = outbox.take()[0], outbox.take()[0]

    assert (first.start, first.first, first.last) == (5, 10, 19)
    assert (second.start, second.first, second.last) == (30, 30, 49)


def test_what_is_put_back_leaves_before_what_came_later() -> None:
    outbox, key = Outbox(), key_of("loss")
    outbox.add(key, points_of(key, 0, 9), 0)
    (batch,) = outbox.take()
    outbox.add(key, points_of(key, 10, 19), 0)

    outbox.put_back(batch.halves())

    found = [spans(outbox.take())[0][1:] for _ in range(3)]
    assert found == [(0, 4), (5, 9), (10, 19)]


def test_every_stream_gets_its_turn_while_more_points_come() -> None:
    outbox = Outbox()
    keys = [key_of(f"metric/{number}") for number in range(20)]
    met: set[str] = set()
    for turn in range(5):
        for key in keys:
            outbox.add(key, points_of(key, 1000 * turn, 1000 * turn + 999), 0)
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
            outbox.add(key, points_of(key, 1000 * turn, 1000 * turn + 999), 0)
        met += {batch.key.writer.rank for batch in outbox.take()}

    assert sorted(met) == [0, 1, 2, 3]
