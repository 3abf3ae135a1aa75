"""`launchhelm clean`: remove old runs of which nothing would be lost."""

from __future__ import annotations

import argparse
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from launchhelm import _wording, views
from launchhelm.cli._control_send import seconds_of
from launchhelm.cli._exit import Exit
from launchhelm.cli.output import Output
from launchhelm.cli.sync import roots_of
from launchhelm.errors import LaunchHelmError
from launchhelm.store import layout
from launchhelm.views import whole

if TYPE_CHECKING:
    from syncer.discover import Place
    from syncer.status import Remembered

DESCRIPTION = """Remove runs whose last heartbeat is old and whose records are all on every server
that they were sent to. Says what it would remove and removes nothing unless --delete is given.
PATHS are roots, folders of runs, or runs; default: the configured root."""

NO_END_S: Final = 86_400.0
"""A process that left no end may live behind a partition: it must have been silent for a day."""

_REMOVED: Final = ".removed-"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a run may be removed, and why, in a few words.

    Args:
        state: Word of the run's state.
        silent_s: Since the newest sign of life in its files; None when they cannot be read.
    """

    removable: bool
    why: str
    state: str = "unreadable"
    silent_s: float | None = None


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare what `clean` takes."""
    parser.add_argument(
        "paths", nargs="*", metavar="PATH", help="roots, folders of runs, or runs; also a run's id"
    )
    parser.add_argument(
        "--age",
        metavar="TIME",
        type=seconds_of,
        default="30d",
        help="how long there must have been no heartbeat: 12h, 30d; default 30d",
    )
    parser.add_argument("--delete", action="store_true", help="remove them; else only say which")
    parser.add_argument(
        "--unsynced", action="store_true", help="also runs that were never sent to any server"
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Judge every run, and remove those that may be removed when told to."""
    from syncer.discover import Discovery

    discovery = Discovery(roots_of(arguments))
    rows = []
    failed = bool(discovery.waiting)
    for place in discovery.look():
        verdict = judge(place, age_s=arguments.age, unsynced=arguments.unsynced)
        problem = ""
        if verdict.removable and arguments.delete:
            problem = _removed(place.directory)
            failed = failed or bool(problem)
        rows.append(_document(place, verdict, arguments.delete, problem))
    if arguments.delete:
        for left in _left_behind(discovery.roots):
            shutil.rmtree(left, ignore_errors=True)
    _print(rows, arguments, output)
    for path, why in discovery.waiting.items():
        output.say(f"left alone: {path}: {_wording.plain(why)}")
    if not rows and not discovery.waiting:
        output.say(f"No runs in {', '.join(map(str, discovery.roots))}.")
        return Exit.NO_SUCH_RUN
    return Exit.IN_PART if failed or discovery.waiting else Exit.DONE


# --- the judgement --------------------------------------------------------------------------------


def judge(place: Place, *, age_s: float, unsynced: bool = False) -> Verdict:
    """Decide whether a run may be removed. Reads its files and nothing else; never raises for them.

    Args:
        age_s: For how long there must have been no heartbeat.
        unsynced: Whether a run may go that was never sent anywhere.
    """
    try:
        view = views.open_run(place.directory)
        silent_s = _silent_s(view)
    except (LaunchHelmError, OSError) as error:
        return Verdict(False, f"cannot be read: {error}")
    state, ranks = view.state.word, view.participants
    ago = f"last heartbeat {_wording.duration(silent_s)} ago"
    if view.problems:
        why = f"in doubt: {view.problems[0]}"
    elif silent_s < age_s:
        why = ago
    elif silent_s < NO_END_S and not (
        view.state.is_over and all(it.end for it in ranks) and not whole.without_end(view)
    ):
        why = f"{ago}, and not every process left an end"
    elif damage := _damage(view):
        why = f"damaged: {damage[0]}"
    else:
        kept = _kept_for_servers(place, unsynced)
        return Verdict(not kept, kept or ago, state, silent_s)
    return Verdict(False, why, state, silent_s)


def _damage(view: views.RunView) -> list[str]:
    """Say what of a run is not there that must be."""
    return [*whole.absent_texts(view, is_over=True), *whole.missing_files(view.directory)]


def _silent_s(view: views.RunView) -> float:
    """Return how long the newest sign of life is ago: of a file, a record, or a launch.

    The writers' clocks and the file server's may be wrong; what says the youngest counts.

    Raises:
        OSError: The files cannot be listed.
    """
    data = view.directory / layout.DATA
    signs = [entry.stat().st_mtime for entry in os.scandir(data)]
    signs += [row.last_at for row in view.participants if row.last_at is not None]
    signs += [it.started_at for it in view.attempts if it.started_at is not None]
    return max(0.0, time.time() - max(signs, default=view.manifest.created_at))


def _kept_for_servers(place: Place, unsynced: bool) -> str:
    """Say what of a run would be lost, "" when nothing would."""
    from syncer import status

    known = status.remembered(place.directory, place.run_id)
    if not known:
        return "" if unsynced else "never sent to a server (--unsynced removes it all the same)"
    return _only_here(place.directory) or next(
        (why for each in known if (why := _missing_there(place, each))), ""
    )


def _only_here(directory: Path) -> str:
    """Name what no syncer sends to any server, "" when there is nothing of that."""
    foreign = sorted(
        name for name in os.listdir(directory) if name[0] != "." and name not in layout.NAMES
    )
    if foreign:
        return f"{foreign[0]} in it is no part of a run, and on no server"
    with suppress(FileNotFoundError):
        for name in os.listdir(directory / layout.MEDIA):
            if name.startswith(layout.UNREADY):
                return "a checkpoint in it was never made ready, and is on no server"
    return ""


def _missing_there(place: Place, known: Remembered) -> str:
    from syncer import shardlist, status

    if status.holder(known.directory) is not None:
        return f"a syncer has it in hand for {known.server}"
    if known.doubt:
        return f"not certain what {known.server} has: {known.doubt}"
    if known.state.aside_count or known.state.lost_artifacts:
        return f"{known.server} does not take some of its values; they are only here"
    if known.state.flights or not status.has_nothing_new(place.directory, known):
        count = status.pending_count(place.directory, known)
        return (
            f"{count:,} records are not on {known.server}"
            if count
            else (f"not all of it is on {known.server}")
        )
    if shards := shardlist.only_here(place.directory, known.state.artifacts):
        return f"{shards} in it holds what is not on {known.server}"
    return ""


# --- the removal ----------------------------------------------------------------------------------


def _removed(directory: Path) -> str:
    """Remove a run directory; return why it could not be, or "".

    It gets a hidden name first, so that nobody ever meets half a run.
    """
    hidden = directory.with_name(f"{_REMOVED}{directory.name}")
    if not all(os.access(path, os.W_OK) for path in (directory, directory / layout.DATA)):
        return f"{directory} is read-only"
    try:
        os.rename(directory, hidden)
        shutil.rmtree(hidden)
    except OSError as error:
        return f"{error.filename or directory}: {error.strerror or error}"
    return ""


def _left_behind(roots: list[Path]) -> Iterator[Path]:
    """Yield what an earlier call began to remove and did not finish."""
    for root in roots:
        if root.is_dir():
            yield from root.glob(f"{_REMOVED}*")


# --- what is said ---------------------------------------------------------------------------------


def _document(place: Place, verdict: Verdict, deletes: bool, problem: str) -> dict[str, Any]:
    action = "keep"
    if verdict.removable:
        action = "failed" if problem else "removed" if deletes else "remove"
    return {
        "id": place.run_id,
        "name": place.name,
        "directory": str(place.directory),
        "state": verdict.state,
        "silent_s": verdict.silent_s,
        "action": action,
        "why": problem or verdict.why,
    }


def _print(rows: list[dict[str, Any]], arguments: argparse.Namespace, output: Output) -> None:
    if output.json:
        for row in rows:
            output.document(row)
        return
    if rows:
        cells = [
            [_wording.plain(row["name"]), row["state"], row["action"], _wording.plain(row["why"])]
            for row in rows
        ]
        output.table(["RUN", "STATE", "ACTION", "WHY"], cells)
    count = sum(row["action"] == "remove" for row in rows)
    if count and not arguments.delete:
        runs = "1 run" if count == 1 else f"{count:,} runs"
        output.say(f"{runs} may be removed; the same command with --delete does it.")
