"""The sums that a sealed segment keeps of its own points: what they find, and what they cannot."""

from __future__ import annotations

import math
import random
import sqlite3
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from launchhelm.store.segment import seal
from launchhelm.store.sums import altered
from launchhelm.store.writer import JournalWriter
from tests.support.storage import OPENING, WRITER

ODD = (math.nan, math.inf, "text", 1 << 80, None, {"a": 1})


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    """700 records of floats of every size, integers, booleans, and names of several classes."""
    drawn = random.Random(0)
    rows = []
    for step in range(700):
        mixed = (drawn.gauss(0, 1), step, step % 2 == 0, *ODD)[
            step % 3 if step < 400 else 3 + step % 6
        ]
        values = {"loss": drawn.gauss(0, 1) * 10 ** drawn.randint(-9, 9), "mixed": mixed}
        values |= {"count": step * 3, "flag": step % 5 == 0, "odd": ODD[step % 4]}
        rows.append((values, step if step % 7 else None))
    return sealed(tmp_path, rows)


def sealed(folder: Path, rows: Sequence[tuple[dict[str, Any], int | None]]) -> Path:
    """Write metric records, and seal them."""
    writer = JournalWriter(folder, WRITER, OPENING)
    for values, step in rows:
        writer.append("m", values, step=step)
    writer.append("ev", {"type": "message", "text": "done"})
    writer.flush()
    journal = writer.rotate()
    assert journal is not None
    return seal(journal)


def change(segment: Path, statement: str, values: Sequence[Any] = ()) -> None:
    """Change rows as a flipped bit would: the file stays a good database."""
    segment.chmod(0o600)
    connection = sqlite3.connect(segment)
    connection.execute("PRAGMA journal_mode = OFF")
    assert connection.execute(statement, values).rowcount > 0
    connection.commit()
    connection.close()


def test_what_was_sealed_agrees_with_its_sums(segment: Path) -> None:
    assert altered(segment) == []


@pytest.mark.parametrize("bit", [0, 20, 51, 55, 62, 63])
def test_a_flipped_bit_of_a_value_is_found(segment: Path, bit: int) -> None:
    connection = sqlite3.connect(segment)
    query = "SELECT p.value FROM point p JOIN series s ON p.id >> 20 = s.id WHERE s.name = 'loss'"
    largest = max((value for (value,) in connection.execute(query)), key=abs)
    connection.close()
    data = segment.read_bytes()
    packed = struct.pack(">d", largest)
    at = data.index(packed)
    changed = (int.from_bytes(packed) ^ 1 << bit).to_bytes(8)
    segment.chmod(0o600)
    segment.write_bytes(data[:at] + changed + data[at + 8 :])
    assert altered(segment) == ["loss"]


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("UPDATE point SET value = value + 1 WHERE id >> 20 = {count} AND id % 99 = 0", "count"),
        (
            "DELETE FROM point WHERE id = (SELECT max(id) FROM point WHERE id >> 20 = {loss})",
            "loss",
        ),
        ("UPDATE series SET class = 'str' WHERE name = 'loss'", "loss"),
        ("UPDATE series SET name = 'loss' WHERE name = 'count'", "loss"),
        ("DELETE FROM series WHERE name = 'flag'", "series {flag}"),
        ("UPDATE record SET step = 9 WHERE seq = 0", "loss"),
    ],
)
def test_points_names_and_steps_that_were_changed_are_found(
    segment: Path, statement: str, named: str
) -> None:
    connection = sqlite3.connect(segment)
    ids = dict(connection.execute("SELECT name, id FROM series ORDER BY id DESC").fetchall())
    connection.close()
    change(segment, statement.format(**ids))
    assert named.format(**ids) in altered(segment)


def test_texts_and_single_names_are_not_in_the_sums(segment: Path) -> None:
    change(segment, "UPDATE point SET value = 'test' WHERE value = 'text'")
    change(segment, "UPDATE series SET name = 'lost' WHERE name = 'loss'")
    assert altered(segment) == []


def test_sums_that_another_python_made_are_taken(tmp_path: Path) -> None:
    values = [0.1] * 10 + [1e16, 1.0, -1e16]
    segment = sealed(tmp_path, [({"loss": value}, step) for step, value in enumerate(values)])
    plain = 0.0
    for value in values:
        plain += value
    for total in (plain, 2.0, math.fsum(values)):
        change(segment, "UPDATE block SET sum = ?", [total])
        assert altered(segment) == []
    change(segment, "UPDATE block SET sum = ?", [3.0])
    assert altered(segment) == ["loss"]
