"""`launchhelm sync`: send runs to a server, once or for good."""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from launchhelm import _optional, _wording, views
from launchhelm.cli import selection
from launchhelm.cli._control_send import seconds_of
from launchhelm.cli._exit import Exit, UsageError
from launchhelm.cli.output import Output
from launchhelm.env import load_env
from launchhelm.errors import ConfigError

if TYPE_CHECKING:
    from syncer.discover import Discovery
    from syncer.service import Service, Work
    from syncer.settings import Target

DESCRIPTION = """Send runs to a LaunchHelm server: what is durable now, of finished and of running
jobs; with --watch, for good. Everything arrives once, however often and by whomever it is sent.
PATHS are roots, folders of runs, or runs; default: the configured root."""

PARTS: Final = ("metrics", "media", "console", "system", "controls")

_LET_GO_S: Final = 8.0
"""How long the batch in hand may take after a signal; it is sent again by the next syncer."""

_PAINT_S: Final = 0.2
_WATCH_LINE_S: Final = 10.0

_EXITS: Final = {
    "key": Exit.NOT_PERMITTED,
    "unreachable": Exit.STILL_WAITING,
    "busy": Exit.STILL_WAITING,
    "config": Exit.USAGE,
}


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
    server = parser.add_argument_group("server")
    server.add_argument("--server", metavar="URL", help="default LAUNCHHELM_URL, else the hosted")
    server.add_argument("--project", metavar="NAME_OR_ID", help="for all runs; default their own")
    server.add_argument("--organization", metavar="ID", help="needed if the key sees several")
    server.add_argument("--key-file", metavar="FILE", help="holds the key; read again when refused")
    server.add_argument("--ca-bundle", metavar="FILE", help="PEM file of authorities to trust")
    server.add_argument(
        "--insecure-skip-verify", action="store_true", help="believe any server; never a default"
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Send, and say what became of each run."""
    only = _parts(arguments.only)
    since = _since(arguments.since)
    roots = roots_of(arguments)
    load_env()
    from syncer.discover import Discovery

    discovery = Discovery(roots)
    if arguments.dry_run:
        return _dry_run(arguments, discovery, output)
    target = _target(arguments)
    if importlib.util.find_spec("httpx") is None:
        raise ConfigError(f"{_optional.missing('httpx')}.", remedy="Syncing needs it.")
    if arguments.insecure_skip_verify:
        output.say("launchhelm: the server's certificate is not checked (--insecure-skip-verify)")
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
        watch=arguments.watch,
        settled=connection.settled,
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
    return _conclude(service, discovery, stopped, arguments.watch, output)


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
    progress = Progress(service, terminal=terminal)
    shown = _Shown(output)
    deadline = float("inf")
    while thread.is_alive() and time.monotonic() < deadline:
        thread.join(_PAINT_S)
        line = progress.line()
        if line is not None:
            _repaint(output, line) if terminal else output.say(line)
        if is_watch:
            shown.news(service)
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


class _Shown:
    """What a service has sent since it was last said; one line per run at most every 10 s."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._at = time.monotonic()
        self._points: dict[Path, int] = {}
        self._said: dict[Path, str] = {}

    def news(self, service: Service) -> None:
        """Say which runs have moved or stopped."""
        now = time.monotonic()
        if now - self._at < _WATCH_LINE_S:
            return
        self._at = now
        for directory, work in list(service.work.items()):
            points = work.points - self._points.get(directory, 0)
            state = f"{work.state} {work.why}" if work.why else ""
            if not points and state == self._said.get(directory, ""):
                continue
            self._points[directory], self._said[directory] = work.points, state
            if self._output.json:
                self._output.document(_document(work))
                self._output.flush()
            else:
                why = f"; {work.state}: {work.why}" if work.why else ""
                name = _wording.plain(work.place.name)
                self._output.line(_wording.plain(f"{name}: {points:,} points sent{why}"))
                self._output.flush()


def _conclude(
    service: Service,
    discovery: Discovery,
    stopped: _Stopped,
    is_watch: bool,
    output: Output,
) -> int:
    """Print what became of each run, and choose the exit code."""
    works = list(service.work.values())
    unreadable = {**discovery.waiting, **discovery.problems}
    if output.json:
        for work in works:
            output.document(_document(work))
    elif works:
        _table(works, output)
    for work in works:
        if work.state in ("skipped", "failed", "held"):
            output.say(f"skipped {work.place.directory}: {_wording.plain(work.why)}")
        if work.refused:
            output.say(
                f"{work.place.directory}: {work.refused:,} values were set aside, which the "
                "server does not take; they stay in the run directory (launchhelm status)"
            )
    for path, why in unreadable.items():
        output.say(f"skipped {path}: {_wording.plain(why)}")
    hold = service.gave_up
    if hold is not None:
        output.say(f"launchhelm: {_wording.plain(hold.why)}")
        output.say("  Everything stays in the run directories; the same command goes on from here.")
        return _EXITS[hold.kind]
    if not works and not unreadable:
        looked = ", ".join(map(str, discovery.roots))
        output.say(f"No runs in {looked}.")
        return Exit.NO_SUCH_RUN
    if stopped.at is not None:
        return Exit.DONE if is_watch else Exit.INTERRUPTED
    whole = all(work.state == "sent" and not work.refused for work in works)
    return Exit.DONE if whole and not unreadable else Exit.IN_PART


def _table(works: Sequence[Work], output: Output) -> None:
    from syncer.progress import size_text

    moved = [work for work in works if work.points or work.batches or work.state != "sent"]
    rows = [
        [
            _wording.plain(work.place.name),
            work.state,
            f"{work.points:,}",
            size_text(work.bytes),
            f"{work.pending:,}" if work.pending else "",
        ]
        for work in moved
    ]
    if rows:
        output.table(
            ["RUN", "STATE", "POINTS", "SIZE", "PENDING"],
            rows,
            right=("POINTS", "SIZE", "PENDING"),
        )
    count, points = len(works), sum(work.points for work in works)
    runs = "run" if count == 1 else "runs"
    still = len(works) - len(moved)
    more = f", {still:,} of them had nothing new" if still else ""
    output.line(f"{count:,} {runs}{more}; {points:,} points sent")


def _document(work: Work) -> dict[str, Any]:
    return {
        "id": work.place.run_id,
        "name": work.place.name,
        "directory": str(work.place.directory),
        "state": work.state,
        "why": work.why,
        "points": work.points,
        "bytes": work.bytes,
        "batches": work.batches,
        "set_aside": work.refused,
        "pending": work.pending,
    }


def _dry_run(arguments: argparse.Namespace, discovery: Discovery, output: Output) -> int:
    """Say how many records of each run a pass would look at; opens no socket, needs no key."""
    from syncer import status

    target: Target | None = None
    with suppress(UsageError):
        target = _target(arguments)
    places = discovery.look()
    rows = []
    for place in places:
        known = None
        if target is not None:
            url, organization = target.url, target.organization
            known = status.of_server(place.directory, place.run_id, url, organization)
        count = status.pending_count(place.directory, known)
        why = known.verdict if known else ""
        document = {
            "id": place.run_id,
            "name": place.name,
            "directory": str(place.directory),
            "state": "skipped" if why else "pending" if count else "sent",
            "why": why,
            "pending": count,
        }
        if output.json:
            output.document(document)
        rows.append([_wording.plain(place.name), str(document["state"]), f"{count:,}", why])
    if rows and not output.json:
        output.table(["RUN", "STATE", "RECORDS", "WHY"], rows, right=("RECORDS",))
    for path, reason in discovery.waiting.items():
        output.say(f"cannot be read: {path}: {_wording.plain(reason)}")
    if not rows and not discovery.waiting:
        output.say(f"No runs in {', '.join(map(str, discovery.roots))}.")
        return Exit.NO_SUCH_RUN
    return Exit.IN_PART if discovery.waiting else Exit.DONE


# --- arguments ------------------------------------------------------------------------------------


def _target(arguments: argparse.Namespace) -> Target:
    from syncer.settings import Target

    try:
        return Target.of(
            url=arguments.server or "",
            key_file=arguments.key_file or "",
            organization=arguments.organization or "",
            project=arguments.project or "",
            ca_bundle=arguments.ca_bundle or "",
            verify=not arguments.insecure_skip_verify,
        )
    except ConfigError as error:
        raise UsageError(error.message, kept=error.kept, remedy=error.remedy) from error


def roots_of(arguments: argparse.Namespace) -> list[Path]:
    """Return the directories to look in: the paths given, else the roots."""
    roots = selection.roots(arguments)
    if not arguments.paths:
        return roots
    found = []
    for word in arguments.paths:
        path = Path(word).expanduser()
        found.append(path if path.is_dir() else views.find_run(roots, word))
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
