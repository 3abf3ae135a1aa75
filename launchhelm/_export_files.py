"""The forms of an exported table: CSV, JSON lines, Parquet; and files that are whole or not there.

Every form tells values apart that programs confuse: an integer keeps all its digits, -0.0 its sign,
NaN and infinities are themselves, a text is never taken for a number.
"""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol  # Any: a cell, or a pyarrow object.

from launchhelm import _optional
from launchhelm.errors import StorageError
from launchhelm.export import Column, Row
from launchhelm.store import layout
from launchhelm.store.body import plain
from launchhelm.store.line import dumps
from launchhelm.store.manifest import sync_directory

FORMATS: Final = ("csv", "jsonl", "parquet")
_MAX_EXACT: Final = 1 << 53
_CELLS_PER_GROUP: Final = 80_000
"""Of a row group, which is what stays in memory."""


class Form(Protocol):
    """Takes rows and writes them in one of FORMATS."""

    def write(self, row: Row) -> None:
        """Take one row."""
        ...

    def close(self) -> None:
        """Write what belongs at the end; the file stays open."""
        ...


def form_of(format: str, file: BinaryIO, columns: Sequence[Column]) -> Form:
    """Begin a file in one of FORMATS.

    Raises:
        ImportError: Parquet needs a package that is missing; the text says what to install.
    """
    forms: dict[str, Callable[[BinaryIO, Sequence[Column]], Form]] = {
        "csv": _Csv,
        "jsonl": _JsonLines,
        "parquet": _Parquet,
    }
    return forms[format](file, columns)


@contextmanager
def piped(file: BinaryIO) -> Iterator[BinaryIO]:
    """Write to a stream that is open already; all is written on return.

    Raises:
        BrokenPipeError: Nobody reads it any more.
        StorageError: It could not be written.
    """
    try:
        yield file
        file.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise StorageError(
            f"stdout cannot be written: {error.strerror or error}.",
            kept="The run was only read.",
            remedy="Make room where stdout leads, or name a place with --out.",
        ) from error


@contextmanager
def placed(path: Path) -> Iterator[BinaryIO]:
    """Open a file that takes its name only when it is complete, and replaces another one then.

    Links are followed; a device or a pipe is written as it is.

    Raises:
        StorageError: It could not be written. Nothing of it is left, and what was there before is.
    """
    try:
        # Before the link is followed: /dev/stdout leads to a pipe that has no name.
        if path.exists() and not path.is_file():
            with open(path, "wb") as file:
                yield file
            return
        path = Path(os.path.realpath(path))
        hidden = path.parent / layout.hidden_name(path.name)
        try:
            with open(hidden, "xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.rename(hidden, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(hidden)
            raise
        sync_directory(path.parent)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written: {error.strerror or error}.",
            kept="The run was only read; no unfinished file is left behind.",
            remedy="Make room or permissions there, or name another place with --out.",
        ) from error


class _Csv:
    """RFC 4180 in UTF-8 with a line of names; an empty cell is one without a value."""

    def __init__(self, file: BinaryIO, columns: Sequence[Column]) -> None:
        self._cells = [_CSV[column.kind] for column in columns]
        self._write = csv.writer(_Encoded(file)).writerow
        self._write([column.name for column in columns])

    def write(self, row: Row) -> None:
        self._write(
            [
                "" if cell is None else text(cell)
                for text, cell in zip(self._cells, row, strict=True)
            ]
        )

    def close(self) -> None:
        pass


class _Encoded:
    """What the csv module writes to: text becomes UTF-8; half a character, an escape."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        return self._file.write(text.encode("utf-8", "backslashreplace"))


class _JsonLines:
    """An object for each row, in ASCII; a cell without a value is left out."""

    def __init__(self, file: BinaryIO, columns: Sequence[Column]) -> None:
        self._file = file
        self._names = [column.name for column in columns]

    def write(self, row: Row) -> None:
        cells = {
            name: cell for name, cell in zip(self._names, row, strict=True) if cell is not None
        }
        try:
            line = _ASCII.encode(cells)
        except ValueError:  # A number that JSON has not.
            line = _ASCII.encode(plain(cells))
        self._file.write(line.encode("ascii") + b"\n")

    def close(self) -> None:
        pass


class _Parquet:
    """Columns of one type each. A `value` column is two: the number, and the exact text.

    The text stands where the number does not say all: for texts, and for integers beyond 2^53.
    """

    def __init__(self, file: BinaryIO, columns: Sequence[Column]) -> None:
        self._arrow: Any = _optional.require("pyarrow")
        self._columns = columns
        self._rows: list[Row] = []
        self._schema = self._arrow.schema(
            [field for each in columns for field in self._fields(each)]
        )
        parquet: Any = _optional.require("pyarrow.parquet")
        self._writer = parquet.ParquetWriter(file, self._schema, compression="zstd")

    def write(self, row: Row) -> None:
        self._rows.append(row)
        if len(self._rows) * len(row) >= _CELLS_PER_GROUP:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def _fields(self, column: Column) -> list[tuple[str, Any]]:
        arrow = self._arrow
        if column.kind == "value":
            text = f"{column.name}_text"
            return [(column.name, arrow.float64()), (text, arrow.string())]
        types = {"int": arrow.int64, "float": arrow.float64, "bool": arrow.bool_}
        return [(column.name, types.get(column.kind, arrow.string)())]

    def _flush(self) -> None:
        if not self._rows:
            return
        cells: list[list[Any]] = []
        for column, values in zip(self._columns, zip(*self._rows, strict=True), strict=True):
            if column.kind == "value":
                cells.append([_number(value) for value in values])
                cells.append([_exact_text(value) for value in values])
            else:
                convert = _PARQUET.get(column.kind, _same)
                cells.append([None if value is None else convert(value) for value in values])
        self._rows = []
        try:
            batch = self._arrow.record_batch(cells, schema=self._schema)
        except OverflowError as error:
            raise StorageError(
                "A step or a count has more than 64 bits; Parquet cannot hold it.",
                kept="The run was only read.",
                remedy="Export as csv or jsonl, which hold every digit.",
            ) from error
        self._writer.write_batch(batch)


# --- cells ----------------------------------------------------------------------------------------


_ASCII: Final = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


def _value_text(value: Any) -> str:
    """Write a value of a metric so that, with its class, it can be read back exactly."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        if math.isfinite(value):
            return repr(value)
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value if isinstance(value, str) else str(value)


def _json_text(value: Any) -> str:
    return dumps(plain(value))


def _number(value: Any) -> float | None:
    """Return the nearest float of a number; None for a text, and beyond all floats."""
    if value is None or isinstance(value, str):
        return None
    with suppress(OverflowError):
        return float(value)
    return None


def _exact_text(value: Any) -> str | None:
    if isinstance(value, str):
        return _whole(value)
    is_large = isinstance(value, int) and not -_MAX_EXACT <= value <= _MAX_EXACT
    return str(value) if is_large else None


def _whole(text: Any) -> str:
    """Return a text that UTF-8 can hold; half a character becomes an escape."""
    return str(text).encode("utf-8", "backslashreplace").decode()


def _same(value: Any) -> Any:
    return value


_CSV: Final[dict[str, Callable[[Any], str]]] = {
    "int": str,
    "float": _value_text,
    "bool": _value_text,
    "text": str,
    "value": _value_text,
    "json": _json_text,
}
_PARQUET: Final[dict[str, Callable[[Any], Any]]] = {
    "text": _whole,
    "json": lambda value: _whole(_json_text(value)),
}
