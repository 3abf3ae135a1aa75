"""The terminal as a page: drawn in place, read by single keys, and put back whatever happens."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any, Final

from launchhelm.cli.output import Output

_ENTER: Final = "\x1b[?1049h\x1b[?25l"
_LEAVE: Final = "\x1b[?25h\x1b[?1049l"
_HOME: Final = "\x1b[H"
_TO_END_OF_LINE: Final = "\x1b[K"
_TO_END_OF_PAGE: Final = "\x1b[J"
_KEYS: Final = {"\x1b[A": "k", "\x1b[B": "j", "\x1bOA": "k", "\x1bOB": "j"}
_KEY_BYTES: Final = 64
_ENDING: Final = (signal.SIGTERM, signal.SIGHUP)


class Screen:
    """The alternate page of a terminal; a context, so that every way out puts it back.

    A signal that ends the program leaves through the context as SystemExit.
    """

    def __init__(self, output: Output) -> None:
        self._output = output
        self._wake, self._woken = os.pipe()
        os.set_blocking(self._woken, False)
        self._before: dict[int, Any] = {}  # Any: what `signal` takes as a handler.
        self._mode: list[Any] | None = None
        self._typed: list[str] = []

    def __enter__(self) -> Screen:
        for number in (*_ENDING, signal.SIGWINCH, signal.SIGTSTP):
            self._before[number] = signal.signal(number, self._signalled)
        self._enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: object, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError, termios.error):  # The terminal may be gone.
            self._leave()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._wake)
        os.close(self._woken)

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        return shutil.get_terminal_size()

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines, of which none may be wider than the terminal, and nothing else."""
        out = self._output
        out.stdout.write(_HOME)
        for line in lines:
            out.line(line + _TO_END_OF_LINE)
        out.stdout.write(_TO_END_OF_PAGE)
        out.flush()

    def key(self, timeout_s: float) -> str:
        """Wait for a key and return it; "" when the time is over or the size has changed."""
        keyboard = [sys.stdin.fileno()] if self._mode is not None else []
        if self._typed:
            return self._typed.pop(0)
        ready, _, _ = select.select([self._wake, *keyboard], [], [], timeout_s)
        if self._wake in ready:
            os.read(self._wake, _KEY_BYTES)
            return ""
        if not ready:
            return ""
        typed = os.read(sys.stdin.fileno(), _KEY_BYTES)
        if not typed:
            return "q"  # Nothing where something is ready: the terminal was closed.
        keys = re.findall(r"\x1b[\[O].|.", typed.decode(errors="replace"), re.DOTALL)
        self._typed = [_KEYS.get(each, each) for each in keys]
        return self._typed.pop(0)

    def _enter(self) -> None:
        if sys.stdin.isatty():
            self._mode = termios.tcgetattr(sys.stdin)
            tty.setcbreak(sys.stdin)
        self._output.stdout.write(_ENTER)
        self._output.flush()

    def _leave(self) -> None:
        if self._mode is not None:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._mode)
        self._output.stdout.write(_LEAVE)
        self._output.flush()

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        if number in _ENDING:
            raise SystemExit(128 + number)
        if number == signal.SIGTSTP:
            self._leave()
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)  # Goes on below when the shell brings us back.
            signal.signal(number, self._signalled)
            self._enter()
        with contextlib.suppress(BlockingIOError):  # Somebody is woken already.
            os.write(self._woken, b"\0")
