"""Answers about console lines, by number, with a search that ends in time."""

from __future__ import annotations

import re
import time
from array import array
from typing import TYPE_CHECKING, Any, Final

from launchhelm._wording import plain
from launchhelm.records import Record
from launchhelm.store.cursor import Cursor
from launchhelm.ui.request import Request

if TYPE_CHECKING:
    from launchhelm.ui.board import OpenRun

Json = dict[str, Any]  # Any: JSON.

MAX_LINES: Final = 2000
MAX_HITS: Final = 1000
MAX_KEPT: Final = 200_000
"""Lines of one run that are kept in memory, the newest."""

SEARCH_S: Final = 1.0
STDERR: Final = 1
"""What a console record calls it; stdout is 0."""

_SLICE: Final = 5000
_COLOUR: Final = re.compile(r"(\x1b\[[0-9;]{0,32}m)")


class Console:
    """The console lines of a run, read on from where the last look ended."""

    def __init__(self) -> None:
        self._cursor = Cursor()
        self._lines: list[tuple[int, str, float, str]] = []
        self._first = 0
        self.ranks: set[int] = set()

    def read(self, run: OpenRun) -> None:
        """Take in what is new."""
        reader = run.view.reader(self._cursor, kinds=("con",))
        while records := reader.poll(limit=_SLICE):
            self._take(records)
        self._cursor = reader.cursor
        extra = len(self._lines) - MAX_KEPT
        if extra > 0:
            del self._lines[:extra]
            self._first += extra

    def _take(self, records: list[Record]) -> None:
        for record in records:
            stream = "stderr" if record.body.get("stream") == STDERR else "stdout"
            text = _shown(str(record.body.get("text", "")))
            self.ranks.add(record.writer.rank)
            self._lines.append((record.writer.rank, stream, record.at, text))

    def select(self, ranks: set[int] | None, stream: str) -> array[int]:
        """Return which lines are meant, as places in what is kept."""
        return array(
            "q",
            (
                at
                for at, line in enumerate(self._lines)
                if (ranks is None or line[0] in ranks) and stream in ("", line[1])
            ),
        )

    def line(self, at: int, number: int) -> Json:
        """Return one line as it is answered."""
        rank, stream, moment, text = self._lines[at]
        return {"n": number, "rank": rank, "stream": stream, "at": moment, "text": text}

    def text(self, at: int) -> str:
        """Return the text of one line."""
        return self._lines[at][3]

    @property
    def forgotten(self) -> int:
        """How many lines are not kept any more."""
        return self._first


def console(run: OpenRun, request: Request) -> Json:
    """Return lines by number: of one rank, or of several in order of arrival."""
    run.console.read(run)
    text = request.text("rank")
    ranks = None if text in ("", "all") else {int(r) for r in text.split(",") if r.isdigit()}
    chosen = run.console.select(ranks, _stream(request))
    count = request.integer("count", MAX_LINES, 1, MAX_LINES)
    start = request.integer("from", max(0, len(chosen) - count), 0, max(0, len(chosen)))
    hits, stopped = _find(run.console, chosen, request.text("find"))
    return {
        "lines": [
            run.console.line(chosen[number], number)
            for number in range(start, min(start + count, len(chosen)))
        ],
        "total": len(chosen),
        "ranks": sorted(run.console.ranks),
        "forgotten": run.console.forgotten,
        "hits": hits,
        "stopped_early": stopped,
    }


def _stream(request: Request) -> str:
    word = request.choice("stream", ("all", "out", "err", "stdout", "stderr"), "all")
    return {"all": "", "out": "stdout", "err": "stderr"}.get(word, word)


def _find(lines: Console, chosen: array[int], text: str) -> tuple[list[int], bool]:
    if not text:
        return [], False
    wanted, until = text.casefold(), time.monotonic() + SEARCH_S
    hits: list[int] = []
    for number in range(len(chosen) - 1, -1, -1):
        if wanted in lines.text(chosen[number]).casefold():
            hits.append(number)
        if len(hits) >= MAX_HITS or (not number % 1000 and time.monotonic() > until):
            return hits[::-1], number > 0
    return hits[::-1], False


def _shown(text: str) -> str:
    """Escape a line but for its colours, which the page has its own for."""
    if "\x1b" not in text:
        return plain(text)
    parts = _COLOUR.split(text)
    return "".join(part if at % 2 else plain(part) for at, part in enumerate(parts))
