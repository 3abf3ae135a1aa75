"""Journal lines: the checksum finds every damage, and values keep class and sign."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launchhelm.records import WriterId
from launchhelm.store.line import metric_values, open_line, seal_line, to_record

WRITER = WriterId(3, 2, "89abcdef")
VECTOR = (
    b'{"c":"124f0472","q":17,"k":"m","t":1796022506.355,"s":120,'
    b'"v":{"train/loss":0.1234,"lr":1e-4}}'
)
VALUES = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(st.characters(codec="utf-8")),
    st.sampled_from(["nan", "NaN", "Infinity", -0.0, 5e-324, 2**53 + 1]),
)


def same(one: Any, other: Any) -> bool:
    """Same class, same sign, same value."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        if math.isnan(one):
            return math.isnan(other)
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    return bool(one == other)


def test_the_line_of_the_format_text_is_good() -> None:
    record = to_record(WRITER, open_line(VECTOR) or {})
    assert record is not None
    assert (record.seq, record.kind, record.step) == (17, "m", 120)
    assert record.body == {"train/loss": 0.1234, "lr": 1e-4}


def test_the_checksum_of_the_format_text_is_what_is_written() -> None:
    assert seal_line(VECTOR[16:]) == VECTOR + b"\n"


def test_any_flipped_bit_is_found() -> None:
    for bit in range(len(VECTOR) * 8):
        damaged = bytearray(VECTOR)
        damaged[bit // 8] ^= 1 << bit % 8
        if damaged[bit // 8] != 0x0A:
            assert open_line(bytes(damaged)) is None, bit


def test_a_line_cut_anywhere_is_bad() -> None:
    for length in range(len(VECTOR)):
        assert open_line(VECTOR[:length]) is None


@pytest.mark.parametrize("length", [1, 16, 17, 100, 4096])
def test_a_run_of_nuls_is_bad(length: int) -> None:
    assert open_line(b"\0" * length) is None


def test_json_that_is_no_object_is_bad() -> None:
    assert open_line(seal_line(b"] ")[:-1]) is None


@given(st.dictionaries(st.text(st.characters(codec="utf-8"), min_size=1), VALUES, max_size=8))
def test_every_metric_value_comes_back_with_its_class_and_sign(body: dict[str, Any]) -> None:
    text = json.dumps(metric_values(body), allow_nan=False)
    line = seal_line(b'"q":0,"k":"m","t":1.0,"s":null,"v":%b}' % text.encode())
    record = to_record(WRITER, open_line(line[:-1]) or {})
    assert record is not None
    assert record.body.keys() == body.keys()
    assert all(same(record.body[name], value) for name, value in body.items())
