"""What `launchhelm sync` says: news of a service, what became of each run, and the exit code."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from launchhelm import _wording
from launchhelm.cli._exit import Exit
from launchhelm.cli.output import Output

if TYPE_CHECKING:
    from syncer.discover import Discovery
    from syncer.service import Service
    from syncer.settings import Target
    from syncer.work import Work

_WATCH_LINE_S: Final = 10.0

_EXITS: Final = {
    "key": Exit.NOT_PERMITTED,
    "unreachable": Exit.STILL_WAITING,
    "busy": Exit.STILL_WAITING,
    "config": Exit.USAGE,
}


class News:
    """What a service has sent since it was last said; one line per run at most every 10 s."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._at = time.monotonic()
        self._points: dict[Path, int] = {}
        self._said: dict[Path, str] = {}

    def tell(self, service: Service) -> None:
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
                self._output.document(document(work))
                self._output.flush()
            else:
                why = f"; {work.state}: {work.why}" if work.why else ""
                name = _wording.plain(work.place.name)
                self._output.line(_wording.plain(f"{name}: {points:,} points sent{why}"))
                self._output.flush()


def conclude(
    service: Service,
    discovery: Discovery,
    output: Output,
    *,
    is_stopped: bool,
    is_watch: bool,
) -> int:
    """Print what became of each run, and choose the exit code."""
    works = list(service.work.values())
    unreadable = {**unreadable_of(discovery), **discovery.problems}
    if output.json:
        for work in works:
            output.document(document(work))
    elif works:
        _table(works, output)
    for work in works:
        if work.state in ("skipped", "failed", "held"):
            output.say(f"skipped {work.place.directory}: {_wording.plain(work.why)}")
        if work.refused:
            output.say(
                f"{work.place.directory}: {work.refused:,} values were set aside, which the "
                f"server does not take{_first_aside(work)}; they stay in the run directory "
                "(launchhelm status)"
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
    if is_stopped:
        return Exit.DONE if is_watch else Exit.INTERRUPTED
    whole = all(work.state == "sent" and not work.refused for work in works)
    return Exit.DONE if whole and not unreadable else Exit.IN_PART


def _first_aside(work: Work) -> str:
    """Name the first of the values that were set aside now, and why."""
    from syncer import status
    from syncer.naming import StreamKey

    known = status.remembered(work.place.directory, work.place.run_id)
    newest = max(known, key=lambda it: it.state.at, default=None)
    if newest is None or not newest.state.aside:
        return ""
    asides, before = newest.state.aside, newest.state.aside_count - work.refused
    aside = asides[before] if 0 <= before < len(asides) else asides[0]
    return _wording.plain(f", the first of them {StreamKey.parse(aside.key).name!r}: {aside.why}")


def unreadable_of(discovery: Discovery) -> dict[Path, str]:
    """Return what looks like a run and cannot be read, and why; a root that is absent does not."""
    absent = {root for root in discovery.roots if not root.exists()}
    return {path: why for path, why in discovery.waiting.items() if path not in absent}


def _table(works: Sequence[Work], output: Output) -> None:
    moved = [
        work for work in works if work.points or work.batches or work.files or work.state != "sent"
    ]
    rows = [
        [
            _wording.plain(work.place.name),
            work.state,
            f"{work.points:,}",
            _wording.size_text(work.bytes),
            f"{work.files:,}" if work.files else "",
            f"{work.pending:,}" if work.pending else "",
        ]
        for work in moved
    ]
    if rows:
        output.table(
            ["RUN", "STATE", "POINTS", "SIZE", "FILES", "PENDING"],
            rows,
            right=("POINTS", "SIZE", "FILES", "PENDING"),
        )
    count, points = len(works), sum(work.points for work in works)
    runs = "run" if count == 1 else "runs"
    still = len(works) - len(moved)
    more = f", {still:,} of them had nothing new" if still else ""
    files = sum(work.files for work in works)
    artifacts = f" and {files:,} {'file' if files == 1 else 'files'}" if files else ""
    output.line(f"{count:,} {runs}{more}; {points:,} points{artifacts} sent")


def document(work: Work) -> dict[str, Any]:
    """Return what --json prints of a run."""
    return {
        "id": work.place.run_id,
        "name": work.place.name,
        "directory": str(work.place.directory),
        "state": work.state,
        "why": work.why,
        "points": work.points,
        "bytes": work.bytes,
        "batches": work.batches,
        "files": work.files,
        "set_aside": work.refused,
        "pending": work.pending,
    }


def dry_run(discovery: Discovery, target: Target | None, output: Output) -> int:
    """Say how many records of each run a pass would look at; opens no socket, needs no key."""
    from syncer import status

    places = discovery.look()
    rows = []
    for place in places:
        known = None
        if target is not None:
            url, organization = target.url, target.organization
            known = status.of_server(place.directory, place.run_id, url, organization)
        count = status.pending_count(place.directory, known)
        why = known.verdict if known else ""
        said = {
            "id": place.run_id,
            "name": place.name,
            "directory": str(place.directory),
            "state": "skipped" if why else "pending" if count else "sent",
            "why": why,
            "pending": count,
        }
        if output.json:
            output.document(said)
        rows.append([_wording.plain(place.name), str(said["state"]), f"{count:,}", why])
    if rows and not output.json:
        output.table(["RUN", "STATE", "RECORDS", "WHY"], rows, right=("RECORDS",))
    unreadable = unreadable_of(discovery)
    for path, reason in unreadable.items():
        output.say(f"cannot be read: {path}: {_wording.plain(reason)}")
    if not rows and not unreadable:
        output.say(f"No runs in {', '.join(map(str, discovery.roots))}.")
        return Exit.NO_SUCH_RUN
    return Exit.IN_PART if unreadable else Exit.DONE
