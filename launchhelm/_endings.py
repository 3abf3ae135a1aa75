"""How this process ends, told to whoever asked: at exit, after an uncaught exception, on a signal.

Callbacks run on the main thread and start no thread. A forked child inherits none of them.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from types import FrameType, TracebackType
from typing import Any, NoReturn, TypeAlias

Ending: TypeAlias = Callable[[str, str], object]
"""Called with a state (finished, error, interrupted, terminated) and a reason for people."""

_endings: list[Ending] = []
_seen: tuple[str, str] | None = None
_installed_in: int | None = None


def at_end(ending: Ending) -> None:
    """Call `ending` when the interpreter exits, the latest first."""
    _install()
    _endings.append(ending)


def forget(ending: Ending) -> None:
    """Do not call it any more; harmless when it is not known."""
    if ending in _endings:
        _endings.remove(ending)


def on_signals(
    ending: Ending, signals: Iterable[signal.Signals] = (signal.SIGTERM,)
) -> Callable[[], None]:
    """Call `ending` on a termination signal, then do what the signal did before.

    Call it on the main thread. Returns a function that puts the earlier handlers back.

    Raises:
        ValueError: Called on another thread.
    """
    require_main_thread()
    before: dict[int, Any] = {}  # Any: what signal.signal returned.

    def handle(number: int, frame: FrameType | None) -> None:
        ending("terminated", signal.Signals(number).name)
        previous = before[number]
        if callable(previous):
            previous(number, frame)
        elif previous != signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    for number in signals:
        before[int(number)] = signal.signal(number, handle)

    def restore() -> None:
        for number, previous in before.items():
            if signal.getsignal(number) is handle:
                signal.signal(number, previous)

    return restore


def require_main_thread() -> None:
    """Raise ValueError on any other thread."""
    if threading.current_thread() is not threading.main_thread():
        raise ValueError(
            "handle_signals needs the main thread: Python takes signal handlers nowhere else. "
            "Call init there, or leave handle_signals out."
        )


def describe(error: BaseException) -> tuple[str, str]:
    """Return the state and the reason of an exception that ends the process."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", "KeyboardInterrupt"
    if isinstance(error, SystemExit) and error.code in (None, 0):
        return "finished", ""
    if isinstance(error, SystemExit):
        return "error", f"SystemExit: {error.code}"
    return "error", f"{type(error).__name__}: {error}"[:1000]


def _install() -> None:
    """Hook into the ways out of this process, once; also in a child that asks for its own."""
    global _installed_in
    if _installed_in == os.getpid():
        return
    first = _installed_in is None
    _installed_in = os.getpid()
    if first:
        atexit.register(_run)
        os.register_at_fork(after_in_child=_after_fork)
        previous = sys.excepthook

        def hook(
            kind: type[BaseException], error: BaseException, traceback: TracebackType | None
        ) -> None:
            global _seen
            _seen = describe(error)
            previous(kind, error, traceback)

        sys.excepthook = hook
        leave = sys.exit

        def leaving(code: sys._ExitCode | None = None) -> NoReturn:
            # SystemExit passes no hook, so that a status is known only from whoever asked for it.
            global _seen
            if threading.current_thread() is threading.main_thread():
                # Whoever catches an error and then leaves, as torch's spawn does, leaves for it.
                handled = sys.exc_info()[1] if code not in (None, 0) else None
                _seen = describe(handled or SystemExit(code))
            leave(code)

        sys.exit = leaving
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        # Such a child leaves by os._exit, without atexit, when it was forked.
        sys.modules["multiprocessing.util"].Finalize(None, _run, exitpriority=0)


def _run() -> None:
    # multiprocessing runs this while the exception that ends the child is on its way.
    current = sys.exc_info()[1]
    state, reason = _seen or (describe(current) if current is not None else ("finished", ""))
    while _endings:
        _endings.pop()(state, reason)


def _after_fork() -> None:
    global _seen
    _endings.clear()
    _seen = None
