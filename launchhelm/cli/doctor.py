"""`launchhelm doctor`: what is wrong with a directory, its runs, this environment; what to do."""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Final

from launchhelm import __version__, _wording, views
from launchhelm.cli import _doctor_sync, _server, selection
from launchhelm.cli._exit import Exit
from launchhelm.cli.output import Output
from launchhelm.cli.sync import roots_of
from launchhelm.doctor import LEVELS, Finding, environment, permissions, runs, storage, worst
from launchhelm.env import load_env
from launchhelm.errors import NotFound
from launchhelm.views.runs import summarise

DESCRIPTION = """Say what is wrong with a directory, its file system, this environment and the runs
there, how that is known, and what to do. PATHS are roots, folders of runs, or runs; default: the
configured root. A run that is named is read whole. Hidden scratch files are made in roots and
removed again, and nothing else is written."""

_LOOKED_INTO: Final = 20
"""So many live runs are looked into beyond their summary."""

_TONES: Final = {"error": "bad", "warning": "waiting", "note": "dim"}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare what `doctor` takes."""
    parser.add_argument(
        "paths", nargs="*", metavar="PATH", help="roots, folders of runs, or runs; also a run's id"
    )
    parser.add_argument("--no-write", action="store_true", help="make no scratch file")
    parser.add_argument("--deep", action="store_true", help="read every run whole")
    parser.add_argument(
        "--online", action="store_true", help="also ask the server; --server does that too"
    )
    _server.configure(parser, server="ask this server")


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Make all checks and print what they found, the worst first."""
    load_env()
    began = time.monotonic()
    found: list[Finding] = []
    roots = _roots(arguments, found)
    found += [
        *environment.distribution(),
        *environment.packages(),
        *environment.network(),
        *environment.settings(),
    ]
    for root in roots:
        found += _of_directory(root, write=not arguments.no_write)
    run_count = _of_runs(roots, arguments, found)
    if arguments.online or arguments.server:
        found += _doctor_sync.server(arguments)
    found = list(dict.fromkeys(found))
    found.sort(key=lambda finding: -LEVELS.index(finding.level))
    _print(found, roots, run_count, time.monotonic() - began, output)
    return Exit.PROBLEMS_FOUND if worst(found) in ("warning", "error") else Exit.DONE


def _roots(arguments: argparse.Namespace, found: list[Finding]) -> list[Path]:
    """Return the directories to look at; a configured root may still have to be made.

    Raises:
        NotFound: A path that was given leads to no folder and no run.
    """
    if arguments.paths:
        return roots_of(arguments)
    roots = []
    for root in selection.roots(arguments):
        if root.is_dir() or root.exists():
            roots.append(root)
            continue
        if arguments.roots or arguments.roots_before:
            raise NotFound(f"There is no folder {root}.", remedy="Look at --root.")
        parent = next(each for each in root.parents if each.is_dir())
        happened = "There is no run yet; `init` makes this folder."
        found.append(Finding("root", "note", str(root), happened))
        found += storage.writable(parent) if not arguments.no_write else []
    return roots


def _of_directory(root: Path, *, write: bool) -> list[Finding]:
    if not root.is_dir():
        happened = "It is a file, and runs need a folder."
        return [Finding("root", "error", str(root), happened, "", "Set LAUNCHHELM_DIR elsewhere.")]
    found = [*permissions.of_root(root), *storage.room(root), *runs.leftovers(root)]
    if not write:
        return found
    refused = storage.writable(root)
    found += refused
    if worst(refused) != "error":
        found += [*storage.exclusive(root), *storage.replaces(root), *storage.clock(root)]
    return found


def _of_runs(roots: list[Path], arguments: argparse.Namespace, found: list[Finding]) -> int:
    """Look at all runs below the roots; return how many there are."""
    from syncer.discover import Discovery

    discovery = Discovery(roots)
    places = discovery.look()
    looked = [summarise(place.directory, views.Observer()) for place in places]
    summaries = [summary for summary in looked if summary is not None]
    found += [runs.unreadable(path, why) for path, why in discovery.waiting.items()]
    found += runs.glance(summaries, secret=_doctor_sync.key())
    found += permissions.of_runs(place.directory for place in places)
    found += _doctor_sync.leases(places)
    found += _doctor_sync.nobody_syncs(places, summaries)
    whole = {it.directory for it in places if arguments.deep or it.directory in discovery.roots}
    live = [it.directory for it in summaries if it.state.word in ("running", "starting")]
    for directory in dict.fromkeys([*whole, *live[:_LOOKED_INTO]]):
        found += runs.inspect(directory, deep=directory in whole)
    return len(places)


def _print(
    found: list[Finding], roots: list[Path], run_count: int, took_s: float, output: Output
) -> None:
    counts = {level: sum(it.level == level for it in found) for level in reversed(LEVELS)}
    if output.json:
        output.document(
            {
                "version": __version__,
                "host": os.uname().nodename,
                "roots": [str(root) for root in roots],
                "runs": run_count,
                "took_s": round(took_s, 3),
                "findings": [asdict(finding) for finding in found],
            }
        )
        return
    for finding in found:
        head = output.paint(f"{finding.level:<8}", _TONES[finding.level])
        output.line(f"{head} {_wording.plain(finding.about)}: {_wording.plain(finding.happened)}")
        if finding.evidence:
            output.line(f"         seen: {_wording.plain(finding.evidence)}")
        if finding.remedy:
            output.line(f"         do:   {_wording.plain(finding.remedy)}")
    said = ", ".join(f"{count} {level}s" for level, count in counts.items() if count)
    runs_text = "1 run" if run_count == 1 else f"{run_count:,} runs"
    output.say(f"Looked at {runs_text} in {took_s:.1f} s: {said or 'nothing is wrong'}.")
