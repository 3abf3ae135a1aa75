"""Which tables there are, and what of them is refused with the fix in the message."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from launchhelm import Image, Table
from launchhelm.rich import compile_columns, compile_rows, infer_columns, media_url
from syncer.api import wire

PNG = Image(b"x", media_type="image/png")
LINK = media_url("https://example.org/b.png", "image/png")
CELLS = {
    "string": st.text(max_size=20),
    "number": st.floats() | st.integers(-(2**60), 2**60),
    "integer": st.integers(-(2**60), 2**60) | st.just(10**400),
    "boolean": st.booleans(),
    "media": st.sampled_from([PNG, LINK]),
}


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[tuple[str, str]], list[list[Any]]]:
    names = draw(st.lists(st.text(min_size=1, max_size=9), min_size=1, max_size=5, unique=True))
    columns = [(name, draw(st.sampled_from(sorted(CELLS)))) for name in names]
    row = st.tuples(*(st.none() | CELLS[type_] for _, type_ in columns)).map(list)
    return columns, draw(st.lists(row, max_size=6))


@given(tables())
def test_a_table_is_what_every_server_takes(made: tuple[Any, Any]) -> None:
    columns, rows = made
    table = Table(columns, rows)
    value = table.value()
    wire.canonical(value)  # It has a canonical form: no NaN, nothing beyond 2^53.
    assert [tuple(it.values()) for it in value["columns"]] == columns
    odd = 0
    for row, cells in zip(rows, value["rows"], strict=True):
        for given_cell, cell in zip(row, cells, strict=True):
            if isinstance(given_cell, int | float) and not abs(given_cell) < 2**53:
                assert cell is None
                odd += 1
            elif given_cell is PNG:
                assert cell == PNG.item()
            else:
                assert cell == given_cell and type(cell) is type(given_cell)
    assert table.left_out == odd


@pytest.mark.parametrize("odd", [2**60, -(2**53), 10**400, 2.0**60, math.inf])
def test_a_number_that_no_json_reader_has_empties_its_cell_and_never_raises(odd: Any) -> None:
    for table in (
        Table.of_records([{"tokens": odd}, {"tokens": 1}]),
        Table([("tokens", "number")], [[odd], [1]]),
    ):
        assert table.value()["rows"] == [[None], [1]]
        assert table.left_out == 1


def test_what_value_returns_is_not_the_table_itself() -> None:
    table = Table([("a", "integer"), ("m", "media")], [[1, LINK]])
    before = table.value()
    table.value()["rows"][0][1]["source"]["url"]["href"] = "other"
    table.value()["columns"].clear()
    assert table.value() == before


@pytest.mark.parametrize(
    ("cells", "type_"),
    [
        ([1, 2, None], "integer"),
        ([1, 2.5], "number"),
        ([numpy.float32(1), torch.tensor(2.0), Decimal("0.5")], "number"),
        ([numpy.int64(3), torch.tensor(4)], "integer"),
        ([True, numpy.bool_(False)], "boolean"),
        (["a", None], "string"),
        ([None, None], "string"),
        ([PNG, LINK], "media"),
        ([math.nan], "number"),
    ],
)
def test_the_type_of_a_column_is_that_of_its_cells(cells: list[Any], type_: str) -> None:
    value = Table.of_records([{"a": cell} for cell in cells]).value()
    assert value["columns"] == [{"name": "a", "type": type_}]


def test_records_have_their_columns_sorted_and_what_is_missing_empty() -> None:
    columns, rows, blobs = infer_columns([{"b": 1, "a": PNG}, {"c": "x"}])
    assert columns == [("a", "media"), ("b", "integer"), ("c", "string")]
    assert rows == [[PNG.item(), 1, None], [None, None, "x"]]
    assert [blob.hash for blob in blobs] == [PNG.blobs()[0].hash]


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([], "at least one"),
        ([{}], "columns"),
        ([3], "mapping"),
        ([{"a": 1}, {"a": "x"}], "mixes integer and string"),
        ([{"a": True}, {"a": 1}], "mixes boolean and integer"),
        ([{1: 1}], "string"),
        ([{"": 1}], "name of a column"),
        ([{"a": [1]}], "no such cell"),
        ([{"a": object()}], "no such cell"),
        ([{"a": "\ud800"}], "surrogate"),
        ([{"a": "x" * 4097}], "4,096"),
        ([{"a": 1}] * 1001, "1000"),
        ([{f"c{number}": 1 for number in range(65)}], "64"),
    ],
)
def test_records_that_are_no_table_are_refused(records: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said.replace("(", r"\(").replace(")", r"\)")):
        Table.of_records(records)


@pytest.mark.parametrize(
    ("columns", "rows"),
    [
        ([], []),
        ([("a", "date")], []),
        ([("a", "number"), ("a", "string")], []),
        (["ab"], []),
        ([("a", "number")], [[1, 2]]),
        ([("a", "number")], ["x"]),
        ([("a", "number")], [{"a": 1}]),
        ([("a", "number")], [[True]]),
        ([("a", "integer")], [[1.0]]),
        ([("a", "string")], [[1]]),
        ([("a", "media")], [["x.png"]]),
        ([("a", "string")], [[PNG]]),
    ],
)
def test_columns_and_rows_that_do_not_fit_are_refused(columns: Any, rows: Any) -> None:
    with pytest.raises(ValueError):
        Table(columns, rows)


def test_the_parts_are_those_of_the_hosted_sdk() -> None:
    columns = compile_columns([("a", "number"), {"name": "b", "type": "media"}])
    assert columns == [("a", "number"), ("b", "media")]
    rows, blobs = compile_rows(columns, [[1, PNG]])
    assert rows == [[1, PNG.item()]] and len(blobs) == 1
    assert Table([("a", "number")], []).value()["rows"] == []
