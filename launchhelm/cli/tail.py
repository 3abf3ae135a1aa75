"""`launchhelm tail`: the newest metrics, events, commands or console lines, and what follows."""

from __future__ import annotations

import argparse
import fnmatch
import re
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from launchhelm import _wording, views
from launchhelm._wording import outcome_text
from launchhelm.cli import documents, selection
from launchhelm.cli._exit import Exit, UsageError
from launchhelm.cli._follow import Follower
from launchhelm.cli._sections import off_text
from launchhelm.cli.output import Output
from launchhelm.records import Record
from launchhelm.views.around import around_of

DESCRIPTION = """Print the newest lines of a run and, with -f, go on with what comes, across sealed
segments and new attempts. Without a choice: metrics of rank 0."""

_DEFAULT_LINES: Final = 10
_POLL_S: Final = 0.25
_NAMED_METRICS: Final = 12
_QUIET_S: Final = 30.0
"""After so long without a line, stderr says why."""

_KINDS: Final = {
    "metrics": frozenset({"m", "sys"}),
    "console": frozenset({"con"}),
    "events": frozenset({"ev", "close", "gap"}),
}
_UNTIL: Final = re.compile(r"step\s*>=\s*(\d[\d,_]*)|finished")

Formatter = Callable[[Record], str]


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare what `tail` takes."""
    parser.add_argument("run", nargs="?", default="latest", metavar="RUN", help=selection.RUN_HELP)
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--metrics", metavar="PATTERN", help="metrics whose name fits, as in the shell"
    )
    what.add_argument("--console", action="store_true", help="captured output")
    what.add_argument("--events", action="store_true", help="starts, messages, faults, ends")
    what.add_argument("--commands", action="store_true", help="commands and their outcomes")
    parser.add_argument(
        "--rank", metavar="N,...", help="of these ranks, or `all`; default 0, for events all"
    )
    parser.add_argument(
        "-n", type=int, default=_DEFAULT_LINES, metavar="N", help="lines to begin with; default 10"
    )
    parser.add_argument("-f", "--follow", action="store_true", help="go on with what comes")
    parser.add_argument(
        "--until",
        metavar="WHEN",
        help='follow until "step>=20000" or finished; exit 3 when the run ends before',
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Print lines until there are no more, or until told to stop."""
    if arguments.n < 0:
        raise UsageError("-n takes a number of lines, 0 or more.")
    reached = _condition(arguments.until)
    what = _what(arguments)
    ranks = _ranks(arguments.rank, what)
    view = selection.select(arguments)
    source: Source
    if what == "commands":
        source = _Commands(view)
        said = off_text(view)
        if said:
            output.say(said)
    else:
        source = _Records(view, what, ranks, arguments.metrics or "*")
    lines = source.last(arguments.n)
    for line, document in lines:
        _print(line, document, output)
    if not lines and arguments.n:
        for sentence in _why_nothing(view, what, ranks, arguments.metrics):
            output.say(sentence)
    if arguments.follow or arguments.until:
        return _follow(view, source, reached, output)
    for problem in source.problems():
        output.say(f"launchhelm: {_wording.plain(problem)}")
    return Exit.IN_PART if source.problems() else Exit.DONE


Line = tuple[str, documents.Document]


class Source:
    """Lines as text and as JSON: the last ones, then the new ones."""

    def last(self, count: int) -> Sequence[Line]:
        """Return the last lines so far; called once, first."""
        raise NotImplementedError

    def new(self) -> Iterable[Line]:
        """Return what came since the last call."""
        raise NotImplementedError

    def problems(self) -> list[str]:
        """Say what cannot be read."""
        return []


class _Records(Source):
    """Records of some kinds and ranks, as they were written."""

    def __init__(
        self, view: views.RunView, what: str, ranks: frozenset[int] | None, pattern: str
    ) -> None:
        self._follower = Follower(view, kinds=_KINDS[what], ranks=ranks)
        self._pattern = pattern if what == "metrics" else None
        self._format = _FORMATS[what]
        self._named = ranks is None or len(ranks) > 1

    def last(self, count: int) -> list[Line]:
        """Return the last lines that fit."""
        return [self._line(record) for record in self._follower.last(count, self._chosen)]

    def new(self) -> list[Line]:
        """Return the new lines that fit."""
        chosen = (self._chosen(record) for record in self._follower.new())
        return [self._line(record) for record in chosen if record is not None]

    def problems(self) -> list[str]:
        """Say what cannot be read."""
        return self._follower.problems

    def _chosen(self, record: Record) -> Record | None:
        """Keep the metrics that were asked for; None when none is left."""
        if self._pattern is None or self._pattern == "*":
            return record
        body = {
            name: value
            for name, value in record.body.items()
            if fnmatch.fnmatchcase(name, self._pattern)
        }
        if not body:
            return None
        return Record(
            record.writer, record.seq, record.kind, record.at, record.step, body, record.axes
        )

    def _line(self, record: Record) -> Line:
        rank = f"rank {record.writer.rank}  " if self._named else ""
        return rank + self._format(record), documents.record_document(record)


class _Commands(Source):
    """The ledger: a line whenever a command has changed its state."""

    def __init__(self, view: views.RunView) -> None:
        self._view = view
        self._seen: dict[str, str] = {}

    def last(self, count: int) -> list[Line]:
        """Return the last commands in their present state."""
        lines = list(self._changed())
        return lines[-count:] if count else []

    def new(self) -> list[Line]:
        """Return the commands whose state has changed."""
        return list(self._changed())

    def _changed(self) -> Iterable[Line]:
        for command in self._view.commands:
            if self._seen.get(command.id) == command.state:
                continue
            self._seen[command.id] = command.state
            around = around_of(self._view, command=command)
            said = (
                f"{_wording.plain(command.name)} {_wording.payload_text(command.payload)}".strip()
            )
            text = f"{said}  {outcome_text(command, around)}  {command.id}"
            yield text, documents.command_document(command, around)


def _follow(
    view: views.RunView, source: Source, reached: Callable[[views.RunView], bool], output: Output
) -> int:
    quiet_since = time.monotonic()
    while True:
        met, ended = reached(view), view.state.is_over
        # What was written before the condition held is printed before leaving.
        for line, document in source.new():
            _print(line, document, output)
            quiet_since = time.monotonic()
        output.flush()
        if met:
            return Exit.DONE
        if ended and reached is not _never:
            output.say(f"{view.state.text} before that")
            return Exit.IN_PART
        if time.monotonic() - quiet_since >= _QUIET_S:
            quiet_since = time.monotonic()
            output.say(f"waiting: {view.state.text}")
        time.sleep(_POLL_S)
        view.refresh()


def _print(line: str, document: documents.Document, output: Output) -> None:
    if output.json:
        output.document(document)
    else:
        output.line(line)


def _why_nothing(
    view: views.RunView, what: str, ranks: frozenset[int] | None, pattern: str | None
) -> list[str]:
    """Name the ranks and metrics there are, where those asked for are not among them."""
    seen = sorted({each.rank for each in view.participants})
    if what == "commands" or not seen:
        return []
    unseen = sorted((ranks or frozenset()).difference(seen))
    if unseen:
        there = _wording.ranks_text(seen)
        return [f"{_wording.ranks_text(unseen)}: not seen in this run; there is {there}"]
    if pattern is None:
        return []
    names = view.metrics()
    if any(fnmatch.fnmatchcase(name, pattern) for name in names):
        whose = "these ranks" if ranks is None or len(ranks) > 1 else f"rank {min(ranks)}"
        return [f"no line of {whose} has a metric {pattern!r}; --rank all looks at all"]
    more = len(names) - _NAMED_METRICS
    there = _wording.listed(names[:_NAMED_METRICS]) + (f" and {more} more" if more > 0 else "")
    return [f"no metric fits {pattern!r}; there is {there}"]


def _never(view: views.RunView) -> bool:
    del view
    return False


def _condition(text: str | None) -> Callable[[views.RunView], bool]:
    if text is None:
        return _never
    match = _UNTIL.fullmatch(text.strip())
    if match is None:
        raise UsageError(f'--until takes "step>=20000" or finished, got {text!r}.')
    if match[1] is None:
        return lambda view: view.state.word == "finished"
    target = int(match[1].replace(",", "").replace("_", ""))
    return lambda view: view.step is not None and view.step >= target


def _what(arguments: argparse.Namespace) -> str:
    for name in ("console", "events", "commands"):
        if getattr(arguments, name):
            return name
    return "metrics"


def _ranks(text: str | None, what: str) -> frozenset[int] | None:
    if text == "all" or (text is None and what == "events"):
        return None
    try:
        return frozenset(int(each) for each in (text or "0").split(","))
    except ValueError:
        raise UsageError(f"--rank takes numbers such as 0,3 or all, got {text!r}.") from None


def _metric_line(record: Record) -> str:
    values = "  ".join(
        f"{_wording.plain(name)} {_wording.value_text(value)}"
        for name, value in record.body.items()
    )
    axes = "".join(f"  {_wording.plain(name)} {value}" for name, value in record.axes.items())
    return f"step {_wording.step_text(record.step)}{axes}  {values}"


def _event_line(record: Record) -> str:
    body: dict[str, Any] = dict(record.body)
    what = str(body.pop("type", record.kind))
    said = "  ".join(
        f"{_wording.plain(name)} {_wording.value_text(value)}" for name, value in body.items()
    )
    clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.at))
    return (
        f"{clock}  step {_wording.step_text(record.step)}  {_wording.plain(what)}  {said}".rstrip()
    )


def _console_line(record: Record) -> str:
    mark = "! " if record.body.get("stream") in ("stderr", 1) else ""
    return mark + _wording.plain(str(record.body.get("text", "")))


_FORMATS: Final = {"metrics": _metric_line, "events": _event_line, "console": _console_line}
