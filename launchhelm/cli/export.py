"""`launchhelm export`: a run as tables for other programs."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any, BinaryIO, Final  # Any: JSON.

from launchhelm import _wording
from launchhelm import export as exports
from launchhelm._export_files import FORMATS, form_of, piped, placed
from launchhelm.cli import selection
from launchhelm.cli._exit import Exit, UsageError
from launchhelm.cli.output import Output, quiet_after_closed_pipe
from launchhelm.errors import StorageError

DESCRIPTION = """Write a run as tables for other programs: its metrics, or what --tables names.
Values stand there exactly as logged, of every attempt; a file appears when it is whole."""

STDOUT: Final = "-"
_EVERY: Final = "all"
_PROGRESS_S: Final = 10.0


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare what `export` takes."""
    parser.add_argument("run", nargs="?", default="latest", metavar="RUN", help=selection.RUN_HELP)
    parser.add_argument(
        "--format", choices=FORMATS, help="default by the ending of --out, else csv"
    )
    parser.add_argument(
        "--out",
        default=STDOUT,
        metavar="PATH",
        help="a file, or an existing directory for a file per table; default - for stdout",
    )
    parser.add_argument(
        "--tables",
        default=exports.METRICS,
        metavar="NAME,...",
        help=f"of {', '.join(exports.TABLES)}, or all; default {exports.METRICS}",
    )
    parser.add_argument(
        "--metrics", default="*", metavar="PATTERN", help="metrics whose name fits, as in the shell"
    )
    parser.add_argument("--rank", metavar="N,...", help="of these ranks; default all")
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument(
        "--long", action="store_true", help="a row for each value of a metric; the default"
    )
    shape.add_argument(
        "--wide", action="store_true", help="a row for each step, a column for each metric"
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Write the tables, and say on stderr what was written."""
    names = _tables(arguments.tables)
    ranks = _ranks(arguments.rank)
    out = Path(arguments.out)
    into_directory = arguments.out != STDOUT and out.is_dir()
    format = _format(arguments, out, into_directory, output.json)
    if len(names) > 1 and not into_directory:
        raise UsageError("Several tables need an existing directory: --out DIR.")
    if format == "parquet" and arguments.out == STDOUT:
        raise UsageError("Parquet goes to a file: --out FILE.parquet.")
    view = selection.select(arguments)
    export = exports.Export(view, pattern=arguments.metrics, ranks=ranks)
    for name in names:
        path = out / f"{name}.{format}" if into_directory else out
        table = export.table(name, wide=arguments.wide and name == exports.METRICS)
        if arguments.out == STDOUT:
            _write_out(table, format, output)
            continue
        with placed(path) as file:
            rows = _write(table, format, file, output)
        _report(name, path, rows, output)
    if names != ["run"]:
        pattern = arguments.metrics if exports.METRICS in names else "*"
        for sentence in exports.unmatched(view, ranks, pattern):
            output.say(f"launchhelm: {sentence}")
    for problem in export.problems:
        output.say(f"launchhelm: {_wording.plain(problem)}")
    return Exit.IN_PART if export.problems else Exit.DONE


def _write(table: exports.Table, format: str, file: BinaryIO, output: Output) -> int:
    """Write a table and return the number of its rows; a word every few seconds."""
    try:
        form = form_of(format, file, table.columns)
    except ImportError as error:
        raise UsageError(f"{error}.", remedy="csv and jsonl need no package.") from error
    said_at = time.monotonic()
    count = 0
    for count, row in enumerate(table.rows, start=1):
        form.write(row)
        if not count % 10_000 and time.monotonic() - said_at > _PROGRESS_S:
            said_at = time.monotonic()
            output.say(f"{table.name}: {count:,} rows so far")
    form.close()
    return count


def _write_out(table: exports.Table, format: str, output: Output) -> None:
    try:
        with piped(output.stdout.buffer) as file:
            _write(table, format, file, output)
    except StorageError:
        quiet_after_closed_pipe()  # What stays in the buffer would be tried again at exit.
        raise


def _report(name: str, path: Path, rows: int, output: Output) -> None:
    document: dict[str, Any] = {
        "table": name,
        "file": str(path),
        "rows": rows,
        "bytes": os.stat(path).st_size,
    }
    if output.json:
        output.document(document)
    else:
        output.say(f"{_wording.plain(str(path))}: {rows:,} rows of {name}")


def _format(arguments: argparse.Namespace, out: Path, into_directory: bool, json: bool) -> str:
    if json and arguments.out == STDOUT:
        if arguments.format not in (None, "jsonl"):
            raise UsageError("--json on stdout is --format jsonl.")
        return "jsonl"
    ending = out.suffix.lower().removeprefix(".")
    by_name = ending if ending in FORMATS and not into_directory else "csv"
    return str(arguments.format or by_name)


def _tables(text: str) -> list[str]:
    if text == _EVERY:
        return list(exports.TABLES)
    names = list(dict.fromkeys(text.split(",")))
    unknown = [name for name in names if name not in exports.TABLES]
    if unknown:
        raise UsageError(
            f"There is no table {unknown[0]!r}; there is {', '.join(exports.TABLES)}, or all."
        )
    return names


def _ranks(text: str | None) -> frozenset[int] | None:
    try:
        return frozenset(map(int, text.split(","))) if text not in (None, _EVERY) else None
    except ValueError:
        raise UsageError(f"--rank takes numbers such as 0,3 or all, got {text!r}.") from None
