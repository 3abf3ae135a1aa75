"""`launchhelm ls`: the runs of a root, newest first."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from typing import Any, Final

from launchhelm import _wording, views
from launchhelm.cli import documents, selection
from launchhelm.cli._exit import Exit, UsageError
from launchhelm.cli.output import Output
from launchhelm.errors import ConfigError
from launchhelm.views import filter as run_filter

DESCRIPTION = """List runs. FILTER: words match title, id and tags; state: host: tag: project:
group: before: after: match fields; name=value (= != < <= > >= ~) compares config and fields; -term
negates."""

_ROWS_ON_A_TERMINAL: Final = 50
_SHORTEST_ID: Final = 8

_COLUMNS: Final[Mapping[str, str]] = {
    "run": "name",
    "id": "id",
    "project": "project",
    "state": "text",
    "step": "step",
    "ranks": "world_size",
    "attempt": "attempt",
    "age": "created_at",
    "host": "host",
    "loss": "metrics",
    "pending": "pending",
    "group": "group",
    "tags": "tags",
    "directory": "directory",
}
"""Column of the table -> field of the document, which is also what --sort compares."""

_DEFAULT_COLUMNS: Final = ("run", "id", "state", "step", "ranks", "loss", "age", "pending")
_RIGHT: Final = ("STEP", "RANKS", "ATTEMPT", "LOSS", "AGE", "PENDING")

_TONES: Final = {
    "failed": "bad",
    "unreadable": "bad",
    "no news": "unknown",
    "running": "good",
    "starting": "waiting",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare what `ls` takes."""
    parser.add_argument("filter", nargs="*", metavar="FILTER", help="terms that all must hold")
    parser.add_argument(
        "--sort", metavar="COLUMN", default="age", help="order; default age, youngest first"
    )
    parser.add_argument("--reverse", action="store_true", help="the other way round")
    parser.add_argument(
        "--columns",
        metavar="A,B",
        help=f"of {', '.join(_COLUMNS)}; default {','.join(_DEFAULT_COLUMNS)}",
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help=f"on a terminal: all runs, not the first {_ROWS_ON_A_TERMINAL}",
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Print one row per run."""
    columns = _columns(arguments.columns)
    key, reverse = _sort_key(arguments.sort, arguments.reverse)
    try:
        keep = run_filter.parse(" ".join(arguments.filter))
    except ConfigError as error:
        raise UsageError(error.message) from None
    problems: list[str] = []
    roots = selection.roots(arguments)
    rows = []
    for root in roots:
        rows += [documents.run_document(each) for each in views.runs(root, problems=problems)]
    rows = _sorted([row for row in rows if keep(row)], key, reverse)
    for problem in problems:
        output.say(f"launchhelm: {_wording.plain(str(problem))}")
    if output.json:
        for row in rows:
            output.document(row)
    else:
        _print(rows, columns, arguments, output)
    if not rows and not output.json:
        looked = ", ".join(map(str, roots))
        output.say(
            f"No runs in {looked}." if not arguments.filter else f"None of that in {looked}."
        )
    partly = bool(problems) or any(row["state"] == "unreadable" for row in rows)
    return Exit.IN_PART if partly else Exit.DONE


def _print(
    rows: list[documents.Document],
    columns: list[str],
    arguments: argparse.Namespace,
    output: Output,
) -> None:
    shown = rows
    if output.terminal and not arguments.all:
        shown = rows[:_ROWS_ON_A_TERMINAL]
    if not shown:
        return
    now = time.time()
    short = _prefixes([str(row["id"]) for row in rows])
    cells = [
        [short[str(row["id"])] if column == "id" else _cell(row, column, now) for column in columns]
        for row in shown
    ]
    head = [column.upper() for column in columns]
    tones = [_TONES.get(str(row["state"]), "") for row in shown]
    output.table(head, cells, right=_RIGHT, tones=tones)
    if len(shown) < len(rows):
        output.say(f"{len(shown)} of {len(rows):,} runs; --all shows the rest")


def _prefixes(ids: list[str]) -> dict[str, str]:
    """Cut ids to the shortest beginnings of one length that still tell all of them apart."""
    length, count = _SHORTEST_ID, len(set(ids))
    while len({each[:length] for each in ids}) < count:
        length += 1
    return {each: each[:length] for each in ids}


def _cell(row: documents.Document, column: str, now: float) -> str:
    value: Any = row.get(_COLUMNS[column])
    if column == "step":
        return _wording.step_text(value)
    if column == "loss":
        loss = _loss(row)
        return "-" if loss is None else _wording.value_text(loss)
    if column == "pending":
        return f"◆ {value}" if value else ""
    if column == "age":
        return _wording.duration(now - value) if value else "-"
    if column == "tags":
        return _wording.listed(value or (), empty="-")
    return "-" if value is None or value == "" else _wording.plain(str(value))


def _loss(row: documents.Document) -> Any:
    metrics = row["metrics"] or {}
    return next((metrics[name] for name in views.LOSSES if name in metrics), None)


def _columns(text: str | None) -> list[str]:
    names = list(_DEFAULT_COLUMNS) if text is None else text.split(",")
    for name in names:
        if name not in _COLUMNS:
            raise UsageError(f"--columns: there is no column {name!r}; {', '.join(_COLUMNS)}.")
    return names


def _sort_key(name: str, reverse: bool) -> tuple[str, bool]:
    if name not in _COLUMNS:
        raise UsageError(f"--sort: there is no column {name!r}; {', '.join(_COLUMNS)}.")
    # Age grows as the time of creation falls: youngest first needs it reversed.
    return _COLUMNS[name], reverse != (name == "age")


def _sorted(rows: list[documents.Document], key: str, reverse: bool) -> list[documents.Document]:
    """Sort stably by one field; rows that do not know it come last either way."""

    def value(row: documents.Document) -> Any:
        return _loss(row) if key == "metrics" else row.get(key)

    known = [row for row in rows if value(row) not in (None, "")]
    unknown = [row for row in rows if value(row) in (None, "")]
    numbers = all(isinstance(value(row), int | float) for row in known)
    known.sort(key=lambda row: value(row) if numbers else str(value(row)), reverse=reverse)
    return known + unknown
