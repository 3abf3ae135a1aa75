"""What the command line prints: data on stdout, words on stderr, in any locale, into any pipe."""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, Final, TextIO

from launchhelm import _wording
from launchhelm._settings import NO_COLOR
from launchhelm._strict import dump

_NAME_WIDTH: Final = 40
"""Longest cell on a terminal; without one nothing is cut."""

_COLORS: Final = {"good": "32", "bad": "31", "unknown": "35", "waiting": "36", "dim": "2"}

_ASCII: Final = {
    ord(mark): plain
    for mark, plain in {
        "…": "...",
        "▣": "#",
        "▼": "v",
        "◐": "o",
        "✕": "x",
        "■": "=",
        "◆": "*",
        "▲": "^",
        "·": "-",
        "∞": "inf",
        "×": "x",
        **dict(zip("▁▂▃▄▅▆▇█", "_.-~=+*#", strict=True)),
    }.items()
}
"""Our own marks where the terminal has only ASCII; names are escaped instead."""


class Output:
    """The two streams of one command.

    Args:
        stdout: Data.
        stderr: Words: progress, previews, problems.
        json: Print documents instead of tables.
        color: `auto`, `always` or `never`.
    """

    def __init__(
        self, stdout: TextIO, stderr: TextIO, *, json: bool = False, color: str = "auto"
    ) -> None:
        self.json = json
        self.stdout = stdout
        self.stderr = stderr
        self.terminal = stdout.isatty()
        self._color = color == "always" or (
            color == "auto" and self.terminal and not NO_COLOR.read()
        )

    def line(self, text: str = "") -> None:
        """Print one line of data."""
        self._write(self.stdout, text)

    def say(self, text: str) -> None:
        """Print one line of words, at once."""
        self._write(self.stderr, text)
        self.stderr.flush()

    def is_one_place(self) -> bool:
        """Whether data and words come together: a terminal, or `2>&1`."""
        try:
            places = [os.fstat(each.fileno()) for each in (self.stdout, self.stderr)]
        except (OSError, ValueError):
            return False
        return os.path.samestat(*places)

    def document(self, value: Mapping[str, Any]) -> None:
        """Print one JSON document on one line; escaped, so that every locale can carry it."""
        self.stdout.write(dump(value) + "\n")

    def flush(self) -> None:
        """Hand everything to the operating system, for whoever follows."""
        self.stdout.flush()

    def paint(self, text: str, tone: str) -> str:
        """Colour a text where colour is wanted; the words alone always say the same."""
        code = _COLORS.get(tone)
        return f"\x1b[{code}m{text}\x1b[0m" if self._color and code and text else text

    def sentence(self, sentence: _wording.Sentence) -> str:
        """Render a sentence with its head painted."""
        return self.paint(sentence.head, sentence.tone) + sentence.rest

    def table(
        self,
        head: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        right: Sequence[str] = (),
        tones: Sequence[str] = (),
    ) -> None:
        """Print rows under a head.

        Args:
            right: Columns that are aligned to the right.
            tones: One per row, the colour of the whole line; the words say the same.
        """
        lines = self.columns(head, rows, right=right)
        for line, tone in zip(lines, ["dim", *(tones or [""] * len(rows))], strict=True):
            self.line(self.paint(line, tone))

    def columns(
        self, head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()
    ) -> list[str]:
        """Return the lines of a table, its head first."""
        lines = [list(head), *([self._cell(cell) for cell in row] for row in rows)]
        widths = [max(width(line[index]) for line in lines) for index in range(len(head))]
        made = []
        for line in lines:
            cells = []
            for name, cell, wide in zip(head, line, widths, strict=True):
                space = " " * (wide - width(cell))
                cells.append(space + cell if name in right else cell + space)
            made.append("  ".join(cells).rstrip())
        return made

    def _cell(self, text: str) -> str:
        return _wording.cut(text, _NAME_WIDTH) if self.terminal else text

    def _write(self, stream: TextIO, text: str) -> None:
        encoding = stream.encoding or "ascii"
        try:
            text.encode(encoding)
        except UnicodeEncodeError:
            text = text.translate(_ASCII).encode(encoding, "backslashreplace").decode(encoding)
        stream.write(text + "\n")


def width(text: str) -> int:
    """Count the columns that a terminal gives to a text."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(each) else 2 if unicodedata.east_asian_width(each) in "WF" else 1
        for each in text
    )


def fitted(text: str, columns: int) -> str:
    """Cut a line at the end of the terminal; with three dots, which are as wide in ASCII."""
    if width(text) <= columns:
        return text
    while text and width(text) > columns - 3:
        text = text[:-1]
    return text + "..."


def quiet_after_closed_pipe() -> None:
    """Send what is left to nowhere, so that `| head` ends without a complaint at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
