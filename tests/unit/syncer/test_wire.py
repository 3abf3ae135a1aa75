"""The wire as bytes: exact on every value, linear on hostile text, fast on points."""

from __future__ import annotations

import itertools
import json
import math
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncer.api import wire
from syncer.api.wire import WireError

AT = "2026-01-01T00:00:00.000000Z"
STEP = (("step", "1"),)

safe_integers = st.integers(-wire.MAX_SAFE_INTEGER, wire.MAX_SAFE_INTEGER)
finite = st.floats(allow_nan=False, allow_infinity=False)
safe_floats = st.floats(-float(wire.MAX_SAFE_INTEGER), float(wire.MAX_SAFE_INTEGER))
texts = st.text(st.characters(exclude_categories=["Cs"]))
documents = st.recursive(
    st.none() | st.booleans() | safe_integers | safe_floats | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


def refused(call: Any) -> WireError:  # Any: a function without arguments.
    with pytest.raises(WireError) as raised:
        call()
    return raised.value


# Documents ----------------------------------------------------------------------------------------


@given(documents)
def test_every_acceptable_value_comes_back_from_its_wire_form(value: Any) -> None:
    assert repr(wire.parse(wire.encode(value))) == repr(value)


@given(documents)
def test_a_canonical_form_means_the_same_and_is_its_own(value: Any) -> None:
    form = wire.canonical(value)
    assert wire.parse(form) == value
    assert wire.canonical(wire.parse(form)) == form


@given(documents)
def test_the_order_of_keys_does_not_change_a_fingerprint(value: Any) -> None:
    def turned(part: Any) -> Any:
        if isinstance(part, dict):
            return {key: turned(part[key]) for key in reversed(part)}
        return [turned(child) for child in part] if isinstance(part, list) else part

    assert wire.fingerprint(turned(value)) == wire.fingerprint(value)


@given(st.integers(0, (1 << 64) - 1))
def test_every_binary64_is_taken_as_python_spells_it_or_refused_for_its_size(bits: int) -> None:
    (value,) = struct.unpack("<d", struct.pack("<Q", bits))
    if not math.isfinite(value):
        assert refused(lambda: wire.encode(value)).reason == "nonfinite_literal"
    elif abs(value) > wire.MAX_SAFE_INTEGER:
        assert refused(lambda: wire.parse(repr(value))).reason == "large_integer"
    else:
        assert wire.parse(wire.encode(value)) == value
        digits, _, power = wire.canonical(value).decode().partition("e")
        assert Decimal(digits).scaleb(int(power or 0)) == Decimal(repr(value))


@given(st.decimals(allow_nan=False, allow_infinity=False, places=None))
def test_a_literal_is_taken_only_if_a_binary64_is_equal_to_it(number: Decimal) -> None:
    text = str(number).replace("E", "e")
    try:
        value = wire.parse(text)
    except WireError:
        return
    assert Decimal(repr(value)) == number


@pytest.mark.parametrize(
    "value",
    [
        {1: 2},
        {1.5},
        b"bytes",
        object(),
        Decimal("1.5"),
        {"a": [float("inf")]},
        {"a": (float("nan"),)},
        1 << 53,
        -(1 << 53),
        10**400,
        1 << 1024,
        (1 << 1024) - 1,
        1e16,
        "\ud800",
        {"\udfff": 1},
    ],
)
def test_a_value_without_a_canonical_form_is_not_sent(value: Any) -> None:
    refused(lambda: wire.encode(value))
    refused(lambda: wire.canonical(value))
    refused(lambda: wire.fingerprint(value))


def test_a_value_that_holds_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert refused(lambda: wire.encode(loop)).reason == "complexity_limit"


def test_a_value_that_shares_its_parts_is_counted_as_what_is_sent() -> None:
    shared: Any = "x"
    for _ in range(30):
        shared = [shared] * 1000
    assert refused(lambda: wire.encode(shared)).reason == "complexity_limit"


def test_a_document_as_bytes_and_as_text_is_the_same() -> None:
    assert wire.parse('{"é":"😀"}') == wire.parse('{"é":"😀"}'.encode()) == {"é": "😀"}


@pytest.mark.parametrize("text", ["\ufeff1", "", " ", "\x00", "1 2", "nul", "{'a':1}", '{"a":1,}'])
def test_what_is_not_json_is_refused(text: str) -> None:
    assert refused(lambda: wire.parse(text)).reason == "invalid_json"


def test_text_that_has_no_utf8_is_refused() -> None:
    assert refused(lambda: wire.parse('"\ud800"')).reason == "invalid_utf8"
    assert refused(lambda: wire.parse(b'"\xed\xa0\x80"')).reason == "invalid_utf8"


def test_an_error_does_not_repeat_what_it_refuses() -> None:
    for text in ('{"secret": 1e999}', '{"secret": NaN}', '{"secret", }', '["secret"' * 100):
        assert "secret" not in str(refused(lambda text=text: wire.parse(text)))


HOSTILE: dict[str, Callable[[int], str]] = {
    "deep arrays": lambda size: "[" * size,
    "deep objects": lambda size: '{"a":' * (size // 5),
    "many values": lambda size: "[" + "0," * (size // 2) + "0]",
    "many empty objects": lambda size: "[" + "{}," * (size // 3) + "{}]",
    "a long integer": lambda size: "9" * size,
    "a long fraction": lambda size: "0." + "3" * size,
    "a long exponent": lambda size: "1e" + "9" * size,
    "many long numbers": lambda size: "[" + ("9" * 64 + ",") * (size // 65) + "0]",
    "the same key": lambda size: "{" + '"a":0,' * (size // 6) + '"a":0}',
    "many keys": lambda size: "{" + ",".join(f'"{i}":0' for i in range(size // 9)) + "}",
    "escapes": lambda size: '"' + "\\u2028" * (size // 6) + '"',
    "surrogates": lambda size: '"' + "\\ud800" * (size // 6) + '"',
    "an open string": lambda size: '"' + "x" * size,
    "white space": lambda size: " " * size,
    "backslashes": lambda size: '"' + "\\" * size,
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_text_costs_no_more_than_its_length(what: str) -> None:
    """A whole megabyte is dealt with in the time of a large honest document."""
    text = HOSTILE[what](wire.MAX_DOCUMENT_BYTES - 100).encode()
    started = time.perf_counter()
    with suppress(WireError):
        wire.canonical(wire.parse(text))
    assert time.perf_counter() - started < 5


def test_a_document_over_the_limit_is_not_even_read() -> None:
    error = refused(lambda: wire.parse(b"[" * 100_000_000))
    assert error.reason == "size_limit" and error.size == 100_000_000


def test_a_server_may_take_larger_documents_and_any_finite_number() -> None:
    text = "[" + ",".join(["12345678901234567890", "1e300", "0.1234567890123456789"] * 20_000) + "]"
    refused(lambda: wire.parse(text))
    read = wire.parse(text, max_bytes=4 << 20, max_values=100_000, exact=False)
    assert read[:3] == [12345678901234567890, 1e300, 0.1234567890123456789]
    for wild in ("1e309", "-1e400", "9" * 401, "NaN", "Infinity", "1" * 5000):
        refused(lambda wild=wild: wire.parse(wild, exact=False))


# Numbers, coordinates, times ----------------------------------------------------------------------


@given(finite)
def test_every_float_is_sent_with_its_value(value: float) -> None:
    sent = wire.number(value)
    wire.encode(sent)
    if isinstance(sent, dict):
        assert sent["$number"] == "integer" and int(sent["value"]) == value
    else:
        assert repr(sent) == repr(value)


@given(st.integers())
def test_every_integer_is_sent_with_all_its_digits(value: int) -> None:
    sent = wire.number(value)
    wire.encode(sent)
    assert int(sent["value"] if isinstance(sent, dict) else sent) == value


def test_values_that_are_no_plain_numbers_have_their_own_forms() -> None:
    assert wire.number(math.nan) == {"$number": "nonfinite", "value": "nan"}
    assert wire.number(math.inf) == {"$number": "nonfinite", "value": "inf"}
    assert wire.number(-math.inf) == {"$number": "nonfinite", "value": "-inf"}
    assert wire.number(1e22) == {"$number": "integer", "value": "1" + "0" * 22}
    assert wire.number(float(1 << 53)) == {"$number": "integer", "value": "9007199254740992"}
    assert wire.number(float((1 << 53) - 1)) == float((1 << 53) - 1)
    assert wire.number(True) is True and wire.number("nan") == "nan"
    assert refused(lambda: wire.number(10**5000)).reason == "digits"


@given(finite)
def test_a_coordinate_is_plain_decimal_and_equal_to_its_number(value: float) -> None:
    text = wire.coordinate(value)
    assert wire.DECIMAL.fullmatch(text)
    assert Decimal(text) == Decimal(repr(value))


@pytest.mark.parametrize("value", ["1e3", ".5", "01", "+1", "", "1\n", "١", math.nan, True, None])
def test_what_is_no_coordinate_is_refused(value: Any) -> None:
    refused(lambda: wire.coordinate(value))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "1970-01-01T00:00:00.000000Z"),
        (1767225600, "2026-01-01T00:00:00.000000Z"),
        (1767225600.5, "2026-01-01T00:00:00.500000Z"),
        (0.9999999, "1970-01-01T00:00:01.000000Z"),
        (-0.000001, "1969-12-31T23:59:59.999999Z"),
        (-62135596800.0, "0001-01-01T00:00:00.000000Z"),
    ],
)
def test_a_time_has_six_digits_and_the_sign_of_utc(seconds: float, text: str) -> None:
    assert wire.timestamp(seconds) == text


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -math.inf, 1e300, -1e12, 1e12])
def test_a_time_that_no_calendar_has_is_refused(seconds: float) -> None:
    assert refused(lambda: wire.timestamp(seconds)).reason == "timestamp"


@given(st.lists(st.floats(0, 4e9), min_size=2, max_size=20))
def test_times_sort_as_their_texts_do(moments: list[float]) -> None:
    texts = [wire.timestamp(moment) for moment in sorted(moments)]
    assert texts == sorted(texts)


# Points, batches, requests ------------------------------------------------------------------------


@given(
    safe_floats | safe_integers | texts | st.booleans() | st.none() | documents,
    st.integers(0, 1 << 62),
)
def test_a_point_is_the_document_that_a_dict_would_have_been(value: Any, sequence: int) -> None:
    made = wire.point(AT, (("step", "-3"), ("line", "0.50")), value, sequence)
    members = {
        "observed_at": AT,
        "coordinates": [{"axis": "step", "value": "-3"}, {"axis": "line", "value": "0.50"}],
        "value": value,
        "sequence": str(sequence),
    }
    assert made == wire.encode(members)


@given(safe_floats | safe_integers, st.integers(0, 1 << 62))
def test_a_number_in_the_frame_of_its_record_is_its_point(
    value: int | float, sequence: int
) -> None:
    before, after = wire.frame(AT, STEP, sequence)
    assert b"%b%a%b" % (before, value, after) == wire.point(AT, STEP, value, sequence)


@pytest.mark.parametrize("value", [1e16, math.nan, 1 << 60, "\ud800", {"a": 1e300}, object()])
def test_a_point_that_no_server_takes_is_refused(value: Any) -> None:
    refused(lambda: wire.point(AT, STEP, value, 0))


@pytest.mark.parametrize(
    "coordinates",
    [
        [("Step", "1")],
        [("step\n", "1")],
        [('a"', "1")],
        [("step", "1e3")],
        [("step", "1\n")],
        [("step", "")],
        [("step", "1" * 129)],
        [(f"a{index}", "1") for index in range(33)],
    ],
)
def test_a_point_at_an_impossible_place_is_refused(coordinates: list[tuple[str, str]]) -> None:
    refused(lambda: wire.point(AT, coordinates, 1, 0))


def test_a_point_may_have_the_size_of_the_limit_and_not_one_byte_more() -> None:
    empty = len(wire.unbound_point(AT, STEP, ""))
    room = wire.MAX_UNBOUND_POINT_BYTES - empty
    assert len(wire.point(AT, STEP, "x" * room, 7)) <= wire.MAX_POINT_BYTES
    error = refused(lambda: wire.point(AT, STEP, "x" * (room + 1), 7))
    assert error.reason == "size_limit" and error.size == wire.MAX_UNBOUND_POINT_BYTES + 1


def test_a_value_in_a_point_lies_one_level_deeper() -> None:
    def nested(levels: int) -> Any:
        value: Any = 1
        for _ in range(levels):
            value = [value]
        return value

    made = wire.point(AT, STEP, nested(31), 0)
    wire.canonical(wire.parse(made))
    refused(lambda: wire.point(AT, STEP, nested(32), 0))


@settings(max_examples=50)
@given(
    st.lists(st.sampled_from([1, 50, 10_000, 300_000, wire.MAX_POINT_BYTES - 200]), max_size=30),
    st.integers(0, 2500),
)
def test_all_points_go_into_batches_and_all_batches_into_requests(
    sizes: list[int], small: int
) -> None:
    points = [wire.bind(b'{"v":"%b"}' % (b"x" * size), seq) for seq, size in enumerate(sizes)]
    points += [wire.bind(b"{}", len(sizes) + index) for index in range(small)]
    parts = list(wire.partition(points))
    assert list(itertools.chain(*parts)) == points
    batches = [wire.batch(str(index), "s", "1", "1", "p", part) for index, part in enumerate(parts)]
    sent = []
    rest = batches
    while rest:
        count = wire.fitting(rest)
        assert count >= 1
        body = wire.request(rest[:count])
        assert len(body) <= wire.MAX_REQUEST_BYTES or count == 1
        assert len(body) < 1_048_700
        sent += json.loads(body)["batches"]
        rest = rest[count:]
    assert [len(batch["points"]) for batch in sent] == [len(part) for part in parts]


def test_more_than_a_request_may_hold_is_refused() -> None:
    small = wire.batch("b", "s", "1", "1", "p", [])
    assert wire.fitting([small] * 300) == wire.MAX_BATCHES == 256
    wire.request([small] * 256)
    refused(lambda: wire.request([small] * 257))
    refused(lambda: wire.batch("b", "s", "1", "1", "p", [b"{}"] * 1001))
    refused(lambda: wire.batch("b", "s", "1", "1", "p", [b"x" * 500_000] * 3))
    assert wire.fitting([]) == 0 and json.loads(wire.request([]))["batches"] == []


def test_the_names_in_a_batch_cannot_break_out_of_it() -> None:
    odd = 'a","points":[],"x":"'
    assert json.loads(wire.batch(odd, odd, odd, odd, odd, []))["stream_id"] == odd


def test_points_are_made_fast_enough_for_a_large_run() -> None:
    """The floor is far below what is measured, so that a busy machine does not fail it."""
    count = 20_000
    started = time.perf_counter()
    for record in range(count // 10):
        at, place = wire.timestamp(1.7e9 + record), (("step", str(record)),)
        for index in range(10):
            wire.point(at, place, 0.1 + index, record)
    assert count / (time.perf_counter() - started) > 20_000


# Receipts -----------------------------------------------------------------------------------------


def receipt(batch_id: str = "b", **members: Any) -> dict[str, Any]:
    usual = {"batch_id": batch_id, "status": "accepted", "durability": "query_visible"}
    return {**usual, **members}


@pytest.mark.parametrize(
    "answer",
    [
        None,
        [],
        {},
        {"receipts": None},
        {"receipts": {}},
        {"receipts": []},
        {"receipts": [None]},
        {"receipts": [receipt(batch_id=7)]},  # type: ignore[arg-type]  # What a server may say.
        {"receipts": [receipt(batch_id=["b"])]},  # type: ignore[arg-type]  # The same.
        {"receipts": [receipt(stream_id="other")]},
        {"receipts": [receipt(status=None)]},
        {"receipts": [receipt(durability=None)]},
    ],
)
def test_an_answer_that_proves_nothing_is_not_believed(answer: Any) -> None:
    with pytest.raises(wire.InvalidReceipt) as raised:
        wire.receipts(answer, {"b": "s"})
    assert raised.value.before == ()


def test_a_rejection_says_why_even_where_the_server_is_sloppy() -> None:
    sloppy = receipt(status="rejected", code=7, message=None, retryable="yes")
    (told,) = wire.receipts({"receipts": [sloppy]}, {"b": "s"})
    assert told == wire.Receipt("b", "rejected", "rejected", "", False)
    assert not told.stored
