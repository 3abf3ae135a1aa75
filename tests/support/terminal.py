"""The command line in a pseudo-terminal: keys, Ctrl-C and all that is shown, as a person has it."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path


class Terminal:
    """A pseudo-terminal with `launchhelm VERB` in it.

    Args:
        words: The verb and what follows it.
    """

    def __init__(self, root: Path, columns: int, *words: str, locale: str = "C.UTF-8"):
        self._ours, theirs = pty.openpty()
        self.resize(columns)
        environment = {**os.environ, "LC_ALL": locale, "PYTHONUTF8": "0", "TERM": "xterm"}
        if locale == "C":
            environment |= {"PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
        for name in ("COLUMNS", "LINES"):
            environment.pop(name, None)
        verb, *rest = words
        self.process = subprocess.Popen(
            [sys.executable, "-m", "launchhelm", verb, "--root", str(root), *rest],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment,
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(theirs)
        self.seen = ""

    def resize(self, columns: int) -> None:
        """Give it 24 lines of so many columns."""
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def type(self, keys: str) -> None:
        """Press keys; `\\x03` is Ctrl-C."""
        os.write(self._ours, keys.encode())

    def until(self, condition: Callable[[str], bool], timeout_s: float = 30.0) -> str:
        """Read until what was shown satisfies a condition."""
        deadline = time.monotonic() + timeout_s
        while not condition(self.seen):
            assert time.monotonic() < deadline, self.seen[-2000:]
            ready, _, _ = select.select([self._ours], [], [], 0.2)
            if ready:
                try:
                    self.seen += os.read(self._ours, 65536).decode(errors="replace")
                except OSError:  # The other side has closed it.
                    assert condition(self.seen), self.seen[-2000:]
        return self.seen

    def close(self) -> None:
        """End what still runs in it."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._ours)


def _take_terminal() -> None:
    # In the background a shell has Ctrl-C ignored, and whoever it starts inherits that.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
