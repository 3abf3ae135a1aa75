"""The fast way into the server makes what the careful one makes, or leaves the request to it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncer.api import wire
from syncer.server import batch, normal
from syncer.server.quarantine import Shape

UUIDS = st.uuids().map(str)
SHAPES = st.builds(
    Shape,
    st.sampled_from(["number", "string", ""]),
    st.sampled_from([frozenset({"step"}), frozenset({"step", "record"}), frozenset()]),
)
FLOATS = st.floats(allow_nan=False, allow_infinity=False).filter(lambda it: abs(it) < 2**53)
NUMBERS = FLOATS | st.integers(-(2**53) + 1, 2**53 - 1)
TIMES = st.floats(-62_000_000_000, 9_000_000_000).map(wire.timestamp)
INSERTED = st.sampled_from([*'{}[]":,\\-+.eE0123456789 \n', "\x00", "é", '"value":1,', "null"])


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """A request as our own syncer writes it."""
    batches = []
    for _ in range(draw(st.integers(1, 3))):
        axis = draw(st.sampled_from(["step", "record", "tokens.seen"]))
        points = [
            wire.point(
                draw(TIMES),
                [(axis, str(draw(st.integers(0, 10**18 - 1))))],
                draw(NUMBERS),
                draw(st.integers(0, 10**18 - 1)),
            )
            for _ in range(draw(st.integers(1, 4)))
        ]
        epoch = str(draw(st.integers(0, 10**18 - 1)))
        batches.append(wire.batch(draw(UUIDS), draw(UUIDS), "1", epoch, draw(UUIDS), points))
    return wire.request(batches)


@given(requests(), SHAPES)
def test_what_our_syncer_sends_is_read_as_the_careful_parser_reads_it(
    body: bytes, shape: Shape
) -> None:
    found = normal.read(body)
    assert found is not None and all(isinstance(it, batch.Batch) for it in found), body
    check(body, shape)


@given(requests(), SHAPES, st.data())
def test_whatever_is_changed_in_a_request_it_is_read_alike_or_not_at_all(
    body: bytes, shape: Shape, data: st.DataObject
) -> None:
    text = body.decode()
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        until = at + data.draw(st.sampled_from([0, 0, 1, 1, 2, 30]))
        text = text[:at] + data.draw(INSERTED | st.just("")) + text[until:]
    check(text.encode(), shape)


def check(body: bytes, shape: Shape) -> None:
    """See that the fast way gives the same heads and rows, wherever it takes a request."""
    found = normal.read(body)
    if found is None:
        return
    content = batch.decode(body)
    assert list(content) == ["protocol", "batches"] and content["protocol"] == "1.0"
    for ours, parsed in zip(found, content["batches"], strict=True):
        if not isinstance(ours, batch.Batch):
            assert repr(ours) == repr(parsed)  # Which tells 1 from 1.0, and knows an order.
            continue
        careful = batch.read(parsed)
        assert head(ours) == head(careful)
        assert ours.content == parsed
        rows, expected = batch.rows(ours, 7, shape), batch.rows(careful, 7, shape)
        assert list(map(type, rows)) == list(map(type, expected))
        assert meaning(rows) == meaning(expected)


def head(it: batch.Batch) -> tuple[Any, ...]:
    """Return all of a batch but its points and their digest."""
    ids = it.id, it.key, it.spelled, it.stream_id, it.participant_id
    return (*ids, it.revision, it.epoch, it.count)


def meaning(rows: list[Any]) -> list[Any]:
    """Return rows with the values of their bodies; repr tells 1 from 1.0 and 0.0 from -0.0."""
    return [repr(json.loads(it)) if type(it) is str else it for it in rows]


POINT = (
    '{"observed_at":"2026-01-01T00:00:00.000000Z","coordinates":[{"axis":"step","value":"1"}],'
    '"value":0.5,"sequence":"1"}'
)
ID = "00000000-0000-4000-8000-000000000001"


def request(points: str) -> bytes:
    """Return a request of one batch."""
    return (
        f'{{"protocol":"1.0","batches":[{{"protocol":"1.0","batch_id":"{ID}","stream_id":"{ID}",'
        f'"stream_revision":"1","epoch":"1","participant_id":"{ID}","points":[{points}]}}]}}'
    ).encode()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("0.5", "-0"),
        ("0.5", "00.5"),
        ("0.5", ".5"),
        ("0.5", "5."),
        ("0.5", "+0.5"),
        ("0.5", "NaN"),
        ("0.5", "1e999"),
        ("0.5", "0.5e308"),
        ("0.5", "true"),
        ("0.5", '"0.5"'),
        ("0.5", "12345678901234567890"),
        ("0.5", '0.5,"value":1'),
        ("0.5", '{"$number":"nonfinite","value":"nan"}'),
        ('"value":"1"', '"value":"01"'),
        ('"value":"1"', '"value":"1","value":"2"'),
        ('"sequence":"1"', '"sequence":"1234567890123456789"'),
        ('"sequence":"1"', '"sequence":"1","sequence":"2"'),
        ('"sequence":"1"', '"sequence":"1","extra":null'),
        ('"axis":"step"', '"axis":"\\u0073tep"'),
        ('"axis":"step"', '"axis":"Step"'),
        ("2026-01-01", "2026-13-01"),
        ("00.000000Z", "00.0000000"),
        (POINT, ""),
        (POINT, f"{POINT},"),
        (POINT, f"{POINT} ,{POINT}"),
        (POINT, f"{POINT}{POINT}"),
        (POINT, f"{POINT},{POINT.replace('step', 'epoch')}"),
        (POINT, ",".join([POINT] * 1001)),
        ("]}]}", "]}]}\n"),
        ("]}]}", "]},]}"),
        ("]}]}", ']}],"more":1}'),
    ],
)
def test_everything_unusual_is_left_to_the_careful_parser(one: str, other: str) -> None:
    usual = request(POINT)
    assert one in usual.decode()
    assert isinstance(batches_of(usual)[0], batch.Batch)
    assert not any(
        isinstance(it, batch.Batch)
        for it in batches_of(usual.decode().replace(one, other).encode())
    )


def test_a_batch_of_another_form_costs_its_neighbours_nothing() -> None:
    usual, text = request(POINT).decode(), request(POINT.replace("0.5", '"é\\n"')).decode()
    both = usual.removesuffix("]}") + "," + text.removeprefix(normal._OPENING)

    first, second = batches_of(both.encode())

    assert isinstance(first, batch.Batch)
    assert second == json.loads(text)["batches"][0]


def batches_of(body: bytes) -> list[Any]:
    """Return what is read of a request; [] where all is left to the careful parser."""
    return list(normal.read(body) or [])


def test_a_batch_is_the_same_when_it_comes_again_and_another_when_a_byte_differs() -> None:
    points = (POINT, POINT, POINT.replace("0.5", "0.25"))
    first, again, other = (batches_of(request(it))[0].digest for it in points)
    assert first == again != other
