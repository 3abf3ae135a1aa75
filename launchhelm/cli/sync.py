"""`launchhelm sync`: send runs to a server, once or for good."""

from __future__ import annotations

import argparse
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from launchhelm import _wording, views
from launchhelm.cli import _server, _sync_project, _sync_report, selection
from launchhelm.cli._control_send import seconds_of
from launchhelm.cli._exit import UsageError
from launchhelm.cli.output import Output
from launchhelm.env import load_env
from launchhelm.errors import NotFound

if TYPE_CHECKING:
    from syncer.discover import Discovery
    from syncer.service import Service
    from syncer.settings import Target

DESCRIPTION = """Send runs to a LaunchHelm server: what is durable now, of finished and of running
jobs; with --watch, for good. Everything arrives once, however often and by whomever it is sent.
PATHS are roots, folders of runs, or runs; default: the configured root."""

PARTS: Final = ("metrics", "media", "console", "system", "controls")

_LET_GO_S: Final = 8.0
"""How long the batch in hand may take after a signal; it is sent again by the next syncer."""

_PAINT_S: Final = 0.2


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare what `sync` takes."""
    parser.add_argument(
        "paths", nargs="*", metavar="PATH", help="roots, folders of runs, or runs; also a run's id"
    )
    parser.add_argument("--watch", action="store_true", help="go on until stopped")
    parser.add_argument("--dry-run", action="store_true", help="say what would be sent; no network")
    parser.add_argument("--only", metavar="PART,...", help=f"of {', '.join(PARTS)}; default all")
    parser.add_argument(
        "--since",
        metavar="WHEN",
        help="leave out what was recorded before: 2026-11-30, 2026-11-30T14:00, or 12h, 2d ago",
    )
    parser.add_argument("--retry-skipped", action="store_true", help="ask again for skipped runs")
    _server.configure(
        parser,
        server="default LAUNCHHELM_URL, else the hosted",
        project="for all runs; default their own",
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Send, and say what became of each run."""
    only = _parts(arguments.only)
    since = _since(arguments.since)
    roots = roots_of(arguments, may_come=arguments.watch and not arguments.dry_run)
    load_env()
    from syncer.discover import Discovery

    discovery = Discovery(roots)
    if arguments.dry_run:
        target = None
        with suppress(UsageError):
            target = _server.target_of(arguments)
        return _sync_report.dry_run(discovery, target, output)
    target = _server.target_of(arguments)
    _server.require_http("Syncing")
    _server.warn_of_trust(arguments, output)
    if arguments.watch:
        for root in roots:
            if not root.exists():
                output.say(f"launchhelm: {root} is not there yet; waiting for it")
    return _sync(arguments, discovery, target, only, since, output)


def _sync(
    arguments: argparse.Namespace,
    discovery: Discovery,
    target: Target,
    only: frozenset[str],
    since: float | None,
    output: Output,
) -> int:
    from syncer.connection import Connection
    from syncer.discover import Wakeup
    from syncer.service import Service

    failed: list[BaseException] = []
    connection = Connection(target, only=only, since=since, retry_skipped=arguments.retry_skipped)
    service = Service(
        discovery,
        connection.open_push,
        connect=connection.connect,
        open_pull=connection.open_pull,
        watch=arguments.watch,
        settled=connection.settled,
        note=connection.note,
    )

    def work() -> None:
        try:
            with connection:
                service.run()
        except BaseException as error:  # Handed to the thread that waits.
            failed.append(error)

    wakeup = Wakeup(discovery.roots, service.wake) if arguments.watch else None
    with _signals(service) as stopped:
        # A daemon: a server that does not answer must not keep a stopped command from ending.
        thread = threading.Thread(target=work, name="launchhelm-sync", daemon=True)
        thread.start()
        _follow(thread, service, stopped, arguments.watch, output)
    if wakeup is not None:
        wakeup.close()
    if failed:
        raise failed[0]
    if arguments.project and not arguments.watch and service.gave_up is None:
        _sync_project.warn(service, target, connection.organization, output)
    return _sync_report.conclude(
        service,
        discovery,
        output,
        is_stopped=stopped.at is not None,
        is_watch=arguments.watch,
    )


def _follow(
    thread: threading.Thread,
    service: Service,
    stopped: _Stopped,
    is_watch: bool,
    output: Output,
) -> None:
    """Show progress until the thread has ended, or has been told to and does not."""
    from syncer.progress import Progress

    terminal = output.stderr.isatty()
    progress = Progress(service, terminal=terminal, watch=is_watch)
    news = _sync_report.News(output)
    deadline = float("inf")
    while thread.is_alive() and time.monotonic() < deadline:
        thread.join(_PAINT_S)
        line = progress.line()
        if line is not None:
            _repaint(output, line) if terminal else output.say(line)
        if is_watch:
            news.tell(service)
        if stopped.at is not None and deadline == float("inf"):
            deadline = stopped.at + _LET_GO_S
    if terminal:
        _repaint(output, "")


def _repaint(output: Output, text: str) -> None:
    """Show a line in place of the one before; "" takes it away."""
    width = shutil.get_terminal_size().columns - 1
    encoding = output.stderr.encoding or "ascii"
    shown = _wording.cut(text, width).encode(encoding, "replace").decode(encoding)
    output.stderr.write(f"\r\x1b[K{shown}")
    output.stderr.flush()


class _Stopped:
    """Whether a signal came, and when."""

    def __init__(self) -> None:
        self.number = 0
        self.at: float | None = None


@contextmanager
def _signals(service: Service) -> Iterator[_Stopped]:
    """Let SIGTERM and SIGINT end the work after the batch in hand; a second one ends at once."""
    stopped = _Stopped()
    before: dict[int, Any] = {}  # Any: what signal.signal returned.

    def handle(number: int, frame: FrameType | None) -> None:
        del frame
        if stopped.at is not None:
            raise KeyboardInterrupt
        stopped.number, stopped.at = number, time.monotonic()
        service.stop()

    if threading.current_thread() is threading.main_thread():
        for each in (signal.SIGTERM, signal.SIGINT):
            before[each] = signal.signal(each, handle)
    try:
        yield stopped
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def roots_of(arguments: argparse.Namespace, *, may_come: bool = False) -> list[Path]:
    """Return the directories to look in: the paths given, else the roots.

    Args:
        may_come: Whether a path that is not there yet will do.

    Raises:
        NotFound: There is neither a folder nor a run of that name.
    """
    roots = selection.roots(arguments)
    if not arguments.paths:
        return roots
    found = []
    for word in arguments.paths:
        path = Path(word).expanduser()
        if path.is_dir():
            found.append(path)
            continue
        try:
            found.append(views.find_run(roots, word))
        except NotFound as error:
            if not may_come or path.exists():
                message = f"There is no folder and no run {word!r}."
                raise NotFound(message, remedy=error.remedy) from error
            found.append(path)
    return found


def _parts(text: str | None) -> frozenset[str]:
    parts = frozenset(text.split(",")) if text is not None else frozenset()
    unknown = sorted(parts - set(PARTS))
    if unknown:
        raise UsageError(f"--only: there is no part {unknown[0]!r}; {', '.join(PARTS)}.")
    return parts


def _since(text: str | None) -> float | None:
    """Read a time or a duration as seconds since the epoch."""
    if text is None:
        return None
    try:
        return time.time() - seconds_of(text)
    except argparse.ArgumentTypeError:
        pass
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise UsageError(
            f"--since: {text!r} is neither a time nor a duration.",
            remedy="Write 2026-11-30, 2026-11-30T14:00, 12h or 2d.",
        ) from None
