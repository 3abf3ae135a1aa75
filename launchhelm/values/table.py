"""Tables: typed columns, and rows of cells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

from launchhelm.values.base import MAX_NAME_CHARS, MAX_NUMBER, PendingBlob, RichValue, checked_text
from launchhelm.values.coerce import Lazy, coerce
from launchhelm.values.media import Medium, checked_item, copied

TYPES: Final = ("string", "number", "integer", "boolean", "media")
MAX_COLUMNS: Final = 64
MAX_ROWS: Final = 1000
MAX_CELL_CHARS: Final = 4096

Column = tuple[str, str]
"""Name and type."""


class Table(RichValue):
    """Up to 1000 rows of up to 64 typed columns. None is an empty cell of any type.

    A number that is not finite, or beyond 2^53, becomes an empty cell and counts in `left_out`.

    Args:
        columns: `(name, type)` or `{"name", "type"}`; types are TYPES, names are unique.
        rows: A sequence of cells for each row, one cell for each column.

    Raises:
        TypeError: Something is no sequence.
        ValueError: A name, type, cell or size that a table does not have.
    """

    renderer: ClassVar[str] = "table"

    def __init__(
        self,
        columns: Iterable[Sequence[str] | Mapping[str, str]],
        rows: Iterable[Sequence[Any]],  # Any: cells; compile_rows looks at each.
    ) -> None:
        self._columns = compile_columns(columns)
        self._rows, self._blobs, self.left_out = _compiled(self._columns, rows)

    @classmethod
    def of_records(cls, records: Iterable[Mapping[str, Any]]) -> Table:
        """Make a table of 1 to 1000 mappings; columns and their types are what they hold.

        Raises:
            ValueError: No record, no column, or a column that mixes types.
        """
        rows = list(records)
        return cls(*_inferred(rows))

    def value(self) -> dict[str, Any]:
        """Return `{"columns": [{"name", "type"}], "rows": [[cell, ...], ...]}`."""
        return {
            "columns": [{"name": name, "type": type_} for name, type_ in self._columns],
            "rows": [
                [copied(cell) if type(cell) is dict else cell for cell in row] for row in self._rows
            ],
        }

    def blobs(self) -> list[PendingBlob]:
        """Return the bytes of media in cells."""
        return list(self._blobs)


def compile_columns(columns: Iterable[Sequence[str] | Mapping[str, str]]) -> list[Column]:
    """Return name and type of each column.

    Raises:
        ValueError: Not 1 to 64 columns, a bad or repeated name, an unknown type.
    """
    compiled: list[Column] = []
    for column in columns:
        if isinstance(column, Mapping):
            name, type_ = column.get("name"), column.get("type")
        elif isinstance(column, Sequence) and not isinstance(column, str) and len(column) == 2:
            name, type_ = column
        else:
            raise ValueError(f"A column is (name, type), got {column!r}.")
        name = checked_text(name, "The name of a column", MAX_NAME_CHARS, at_least=1)
        if type_ not in TYPES:
            raise ValueError(f"The type of {name!r} must be one of {', '.join(TYPES)}.")
        compiled.append((name, str(type_)))
    if not 1 <= len(compiled) <= MAX_COLUMNS:
        raise ValueError(f"A table has 1 to {MAX_COLUMNS} columns, got {len(compiled)}.")
    if len({name for name, _ in compiled}) != len(compiled):
        raise ValueError("Two columns of a table have the same name.")
    return compiled


def compile_rows(
    columns: Sequence[Column], rows: Iterable[Sequence[Any]]
) -> tuple[list[list[Any]], list[PendingBlob]]:
    """Return rows of JSON cells, and the bytes of media among them.

    Raises:
        ValueError: More than 1000 rows, or a cell that its column does not take.
    """
    compiled, blobs, _ = _compiled(columns, rows)
    return compiled, blobs


def infer_columns(
    records: Iterable[Mapping[str, Any]],
) -> tuple[list[Column], list[list[Any]], list[PendingBlob]]:
    """Return columns, rows and bytes of records: columns sorted by name, missing cells empty.

    Raises:
        ValueError: As `Table.of_records`.
    """
    columns, rows = _inferred(list(records))
    return columns, *compile_rows(columns, rows)


def _inferred(records: Sequence[Mapping[str, Any]]) -> tuple[list[Column], list[list[Any]]]:
    if not records:
        raise ValueError("rows() needs at least one record.")
    if not all(isinstance(record, Mapping) for record in records):
        raise ValueError("A record is a mapping of column to cell.")
    names = {name for record in records for name in record}
    for name in names:
        checked_text(name, "The name of a column", MAX_NAME_CHARS, at_least=1)
    ordered = sorted(names)
    rows = [[_plain(record.get(name)) for name in ordered] for record in records]
    columns = [
        (name, _type_of(name, {_word(row[place]) for row in rows}))
        for place, name in enumerate(ordered)
    ]
    return compile_columns(columns), rows


def _type_of(name: str, words: set[str]) -> str:
    words.discard("")
    if words == {"integer", "number"}:
        return "number"
    if len(words) > 1:
        raise ValueError(f"The column {name!r} mixes {' and '.join(sorted(words))}.")
    return words.pop() if words else "string"


def _word(cell: Any) -> str:
    """Name the type of a plain cell, "" for an empty one."""
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "boolean"
    if isinstance(cell, int):
        return "integer"
    if isinstance(cell, float):
        return "number"
    return "string" if isinstance(cell, str) else "media"


def _plain(cell: Any) -> Any:
    """Return a cell as None, a plain scalar, or a medium or item as it came.

    Raises:
        ValueError: A table has no such cell.
    """
    if cell is None or isinstance(cell, Medium | Mapping):
        return cell
    try:
        exact = coerce(cell)
    except TypeError as error:
        raise ValueError(f"A table has no such cell: {error}.") from None
    return exact.resolve() if isinstance(exact, Lazy) else exact


def _compiled(
    columns: Sequence[Column], rows: Iterable[Sequence[Any]]
) -> tuple[list[list[Any]], list[PendingBlob], int]:
    compiled: list[list[Any]] = []
    blobs: list[PendingBlob] = []
    left_out = 0
    for row in rows:
        if not isinstance(row, Sequence) or isinstance(row, str | bytes):
            raise ValueError(f"A row is a sequence of cells, got {type(row).__name__}.")
        if len(row) != len(columns):
            raise ValueError(f"A row has {len(columns)} cells, one for each column: {len(row)}.")
        if len(compiled) == MAX_ROWS:
            raise ValueError(f"A table has at most {MAX_ROWS} rows; log the rest as another one.")
        cells = []
        for (name, type_), given in zip(columns, row, strict=True):
            cell = _plain(given)
            if isinstance(cell, Medium):
                blobs += cell.blobs()
            word = _word(cell)
            if word in ("integer", "number") and _fits(word, type_) and not _is_inside(cell):
                cell, left_out = None, left_out + 1
            cells.append(None if cell is None else _checked(cell, name, type_))
        compiled.append(cells)
    return compiled, blobs, left_out


def _checked(cell: Any, name: str, type_: str) -> Any:
    """Return a cell as its column has it."""
    word = _word(cell)
    if not _fits(word, type_):
        raise ValueError(f"The column {name!r} holds {type_} cells, got {cell!r:.80}.")
    if type_ == "media":
        return checked_item(cell)
    if type_ == "string":
        return checked_text(cell, f"A cell of {name!r}", MAX_CELL_CHARS)
    return cell


def _fits(word: str, type_: str) -> bool:
    return word == type_ or (word == "integer" and type_ == "number")


def _is_inside(number: float) -> bool:
    return -MAX_NUMBER <= number <= MAX_NUMBER  # False of NaN.
