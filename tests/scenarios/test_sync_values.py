"""Any value and any name, from a training to a server and back, as strict JSON on the wire."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from launchhelm.cli import Exit
from syncer.naming import NAME_LABEL
from tests.support.runs import running
from tests.support.scripted_server import ScriptedServer
from tests.support.sync_command import SyncCommand, assert_single, points
from tests.support.v1_server import PROJECT, V1Server, v1_server

FLOATS = (0.0, -0.0, 1.5, -1e-300, 5e-324, 1.7976931348623157e308, math.nan, math.inf, -math.inf)
INTEGERS = (0, -1, 2**53 - 1, 2**53 + 1, -(2**63), 2**63 - 1)
OTHERS = (True, False, "NaN", "", "ünïcode \U0001f525", "a\nb\t\x1b[31m", "-0.0")

LETTERS = "abc/ @:()%#?\"'\\&=+~.\t\n\u00e9e\u0301\u202e\u05d0\u0627\u4e2d\U0001f525\x7f\ufeff"
ODD_NAMES = (
    "train/loss",
    "lr@group 0 (decay: 1e-2)",
    "100%?#&=+",
    "quotes \" ' \\",
    "e\u0301 is not \u00e9",
    "\u05d0\u05d1\u05d2 \u202e right to left",
    "\U0001f525\U0001f1e9\U0001f1ea",
    "..",
    "/",
    " ",
    "long " + "x" * 1_019,
    "longer " + "\u4e2d" * 339,
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[V1Server]:
    with v1_server(tmp_path / "srv") as it:
        yield it


@pytest.fixture
def far(server: V1Server) -> Iterator[ScriptedServer]:
    with ScriptedServer(server.url) as it:
        yield it


@pytest.fixture
def sync(tmp_path: Path, server: V1Server, far: ScriptedServer) -> SyncCommand:
    return SyncCommand(tmp_path, far.url, server.key)


def back(value: Any) -> Any:
    """Read a value of the wire."""
    if not isinstance(value, dict):
        return value
    text = value["value"]
    return int(text) if value["$number"] == "integer" else float(text)


def same(one: Any, other: Any) -> bool:
    """Whether two values have one class, sign and every digit."""
    if isinstance(one, float) and isinstance(other, float | int) and not isinstance(other, bool):
        is_same = math.isnan(one) and math.isnan(other) if one != one else one == other
        return is_same and math.copysign(1, one) == math.copysign(1, other)
    return type(one) is type(other) and one == other


def test_every_value_that_a_training_can_log_is_read_back_from_the_server(
    tmp_path: Path, server: V1Server, far: ScriptedServer, sync: SyncCommand
) -> None:
    logged: dict[str, list[Any]] = {}
    sources: dict[str, list[Any]] = {
        "float": [*FLOATS],
        "integer": [*INTEGERS],
        "other": [*OTHERS],
        "numpy/float64": [np.float64(it) for it in FLOATS],
        "numpy/float32": [np.float32(it) for it in (0.1, -0.0, math.nan, math.inf)],
        "numpy/float16": [np.float16(it) for it in (0.1, -0.0, math.nan, -math.inf)],
        "numpy/array": [np.array(it) for it in FLOATS],
        "numpy/int": [np.int64(-(2**63)), np.uint64(2**63 - 1), np.int8(-3)],
        "decimal": [Decimal("0.1"), Decimal("-0"), Decimal("NaN")],
    }
    with running(tmp_path / "runs", project=PROJECT, name="values") as run:
        for name, values in sources.items():
            for step, value in enumerate(values):
                assert run.log({name: value}, step=step), (name, value)
            logged[name] = [_plain(value) for value in values]
    assert sync.once(tmp_path / "runs").code == Exit.DONE

    found = points(server)
    assert_single(found)
    for name, values in logged.items():
        got = {it.step: back(it.value) for it in found if it.name == name}
        assert len(got) == len(values), name
        for step, value in enumerate(values):
            assert same(value, got[step]), f"{name}: {value!r} came back as {got[step]!r}"
    assert all(asked.json is not None for asked in far.seen if asked.body), "strict JSON"


def _plain(value: Any) -> Any:
    """Return what a value is logged as."""
    if isinstance(value, Decimal):
        return float(value)
    return value.item() if isinstance(value, np.generic | np.ndarray) else value


def test_values_that_are_no_numbers_cost_no_other_value_of_their_batch(
    tmp_path: Path, server: V1Server, far: ScriptedServer, sync: SyncCommand
) -> None:
    with running(tmp_path / "runs", project=PROJECT, name="gaps") as run:
        for step in range(500):
            run.log({"loss": math.nan if step % 10 == 9 else step / 4, "other": step}, step=step)
    assert sync.once(tmp_path / "runs").code == Exit.DONE
    found = {it.step: back(it.value) for it in points(server, "loss")}
    assert all(math.isnan(found[step]) for step in range(9, 500, 10))
    assert all(found[step] == step / 4 for step in range(500) if step % 10 != 9)
    assert len(points(server, "other")) == 500
    for asked in far.seen:
        assert not asked.body or asked.json is not None
        assert b"NaN" not in asked.body and b"Infinity" not in asked.body


def test_any_name_arrives_at_the_server_unchanged_or_whole_beside_its_short_form(
    tmp_path: Path, server: V1Server, sync: SyncCommand
) -> None:
    chance = random.Random(68)
    drawn = {"".join(chance.choices(LETTERS, k=chance.randint(1, 60))) for _ in range(60)}
    names = sorted({*ODD_NAMES, *drawn})
    refused = ["", "a\0b", "lone \ud800", "too long " + "x" * 1_024]
    with running(tmp_path / "runs", project=PROJECT, name="names") as run:
        for step, name in enumerate(names):
            assert run.log({name: float(step)}, step=step)
        for name in refused:
            run.log({name: 1.0, "kept": 1.0})
    assert sync.once(tmp_path / "runs").code == Exit.DONE

    with server.client() as client:
        specs = {it["id"]: it["spec"] for it in client.list_documents("stream")}
        found = {
            spec["labels"].get(NAME_LABEL, spec["name"]): [
                back(it["value"]) for it in client.all_points(id_)
            ]
            for id_, spec in specs.items()
            if not spec["name"].startswith("launchhelm/")
        }
    assert all(len(spec["name"]) <= 256 for spec in specs.values())
    assert found.pop("kept") == [1.0] * len(refused)
    assert found == {name: [float(step)] for step, name in enumerate(names)}
