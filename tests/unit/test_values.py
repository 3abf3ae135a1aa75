"""What a metric accepts, and that it comes back with its class, its digits and its sign."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from launchhelm import views
from launchhelm.values import Lazy, coerce, kind_of, name_problem
from tests.support.runs import running


class Answer(enum.IntEnum):
    YES = 1


class Named(str, enum.Enum):  # noqa: UP042 - The older way prints as Named.NAME.
    NAME = "name"


class Fractional(float):
    pass


FLOATS = (math.nan, math.inf, -math.inf, -0.0, 0.1)
WHOLE = (0, 1, -1, 2**53 + 1, -(2**63))
SMALL = (0, 1, 2, 7, 100)

# How each input type is made, of which values; 30 types of 5 values.
FLOAT_TYPES: dict[str, Callable[[float], Any]] = {
    "float": float,
    "float subclass": Fractional,
    "numpy.float16": np.float16,
    "numpy.float32": np.float32,
    "numpy.float64": np.float64,
    "numpy.longdouble": np.longdouble,
    "numpy 0-d array": np.array,
    "numpy 1-element array": lambda value: np.array([value]),
    "torch.float16": lambda value: torch.tensor(value, dtype=torch.float16),
    "torch.bfloat16": lambda value: torch.tensor(value, dtype=torch.bfloat16),
    "torch.float32": lambda value: torch.tensor(value, dtype=torch.float32),
    "torch.float64": lambda value: torch.tensor(value, dtype=torch.float64),
    "torch with grad": lambda value: torch.tensor(value, requires_grad=True) * 1,
    "torch parameter": lambda value: torch.nn.Parameter(torch.tensor(value)),
    "Decimal": Decimal,
}
INT_TYPES: dict[str, tuple[Callable[[int], Any], tuple[int, ...]]] = {
    "int": (int, WHOLE),
    "large int": (lambda value: value * 10**30 + 1, WHOLE),
    "numpy.int8": (np.int8, SMALL),
    "numpy.int16": (np.int16, SMALL),
    "numpy.int32": (np.int32, SMALL),
    "numpy.int64": (np.int64, WHOLE),
    "numpy.uint8": (np.uint8, SMALL),
    "numpy.uint64": (np.uint64, (0, 1, 2, 2**53 + 1, 2**64 - 1)),
    "torch.uint8": (lambda value: torch.tensor(value, dtype=torch.uint8), SMALL),
    "torch.int16": (lambda value: torch.tensor(value, dtype=torch.int16), SMALL),
    "torch.int32": (lambda value: torch.tensor(value, dtype=torch.int32), SMALL),
    "torch.int64": (lambda value: torch.tensor(value, dtype=torch.int64), WHOLE),
}
OTHERS: dict[str, tuple[Any, Any]] = {
    "bool": (True, True),
    "numpy.bool": (np.bool_(False), False),
    "torch.bool": (torch.tensor(True), True),
    "int enumeration": (Answer.YES, 1),
    "text enumeration": (Named.NAME, "name"),
    "Fraction": (Fraction(1, 8), 0.125),
    "str": ("nan", "nan"),
    "numpy.str": (np.str_("é"), "é"),
}


def cases() -> dict[str, tuple[Any, Any]]:
    """Return name -> (given, expected) of the whole table."""
    table: dict[str, tuple[Any, Any]] = dict(OTHERS)
    for name, make in FLOAT_TYPES.items():
        for value in FLOATS:
            made = make(value)
            exact = made.item() if hasattr(made, "item") else made
            table[f"{name} {value!r}"] = (made, float(exact))
    for name, (make_int, values) in INT_TYPES.items():
        for whole in values:
            made = make_int(whole)
            table[f"{name} {whole}"] = (made, int(made))
    return table


def is_same(got: object, expected: object) -> bool:
    """Whether class, value and sign are equal; NaN equals NaN."""
    if type(got) is not type(expected):
        return False
    if isinstance(got, float) and isinstance(expected, float):
        if math.isnan(expected):
            return math.isnan(got)
        return got == expected and math.copysign(1, got) == math.copysign(1, expected)
    return got == expected


def test_every_kind_of_number_comes_back_with_class_and_sign(tmp_path: Path) -> None:
    table = cases()
    with running(tmp_path) as run:
        for name, (given, _) in table.items():
            assert run.log({name: given}, step=0), name
        run.flush(delivered=False)
        journal = views.open_run(run.directory)
        live = {name: journal.latest(name) for name in table}
        run.finish()
    sealed = views.open_run(run.directory)
    assert not list((run.directory / "data").glob("*.jsonl"))
    for name, (_, expected) in table.items():
        for point in (live[name], sealed.latest(name)):
            assert point is not None, name
            assert is_same(point.value, expected), (name, point.value, expected)


@pytest.mark.parametrize(
    "odd",
    [
        None,
        1 + 2j,
        np.complex64(1),
        torch.tensor(1j),
        [1.0],
        {"a": 1},
        object(),
        np.zeros(3),
        torch.zeros(2, 2),
        np.datetime64("2026-01-01"),
        np.array([object()]),
        torch.empty((), device="meta"),
        Decimal("sNaN"),
        Decimal("1e400"),
        1 << 5000,
        "\ud800",
        Fraction(10**400, 1),
    ],
    ids=lambda odd: type(odd).__name__,
)
def test_what_is_not_one_value_is_refused_with_a_reason(odd: object) -> None:
    with pytest.raises(TypeError):
        coerce(odd)


def test_a_value_on_a_device_is_fetched_later_and_keeps_no_graph() -> None:
    class Device:
        type = "cuda"

    class OnDevice:
        """As much of a tensor as is looked at."""

        dtype = torch.float32
        device = Device()
        fetched = False

        def numel(self) -> int:
            return 1

        def detach(self) -> OnDevice:
            return self

        def clone(self) -> OnDevice:
            return OnDevice()

        def item(self) -> float:
            OnDevice.fetched = True
            return 0.5

    value = coerce(OnDevice())
    assert isinstance(value, Lazy)
    assert kind_of(value) == "number"
    assert not OnDevice.fetched
    assert value.resolve() == 0.5


@given(st.text(min_size=1).filter(lambda text: "\0" not in text))
def test_any_text_of_up_to_1024_bytes_is_a_name(text: str) -> None:
    try:
        fits = len(text.encode()) <= 1024
    except UnicodeEncodeError:
        fits = False
    assert (name_problem(text) == "") == fits


@pytest.mark.parametrize("bad", ["", "a\0b", "\ud800", "é" * 513])
def test_a_name_that_cannot_be_written_is_refused_with_a_reason(bad: str) -> None:
    assert name_problem(bad)
