"""What a command's function may return, and what its outcome shows of it."""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch

from launchhelm._run_results import as_result


@pytest.mark.parametrize(
    ("value", "json"),
    [
        (None, {}),
        ({"a": [1, 2.5, True, None, "x"]}, {"a": [1, 2.5, True, None, "x"]}),
        (MappingProxyType({1: (2,)}), {"1": [2]}),
        (torch.tensor(0.5, requires_grad=True), 0.5),
        (
            {"acc": np.float32(0.5), "n": np.int64(3), "ok": np.bool_(True)},
            {"acc": 0.5, "n": 3, "ok": True},
        ),
        (np.array(2), 2),
        (
            [math.nan, -math.inf],
            [{"$number": "nonfinite", "value": "nan"}, {"$number": "nonfinite", "value": "-inf"}],
        ),
    ],
)
def test_what_can_be_json_becomes_json(value: object, json: object) -> None:
    assert as_result(value) == (json, "")


class Raising:
    ndim = 0

    def item(self) -> Any:
        raise RuntimeError("no value")


around: list[Any] = []
around.append(around)


@pytest.mark.parametrize(
    "value", [object(), {1}, torch.ones(2), torch.tensor(1j), {(1, 2): 3}, Raising(), around]
)
def test_what_cannot_is_dropped_with_a_word(value: object) -> None:
    result, note = as_result(value)
    assert result == {} and note.startswith("Its result was dropped: ")
