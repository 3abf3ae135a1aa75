"""The runs under a root: a cheap summary of each, and the way from a name to a run."""

from __future__ import annotations

import os
import pwd
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from launchhelm import _wording
from launchhelm._clock import SYSTEM_CLOCK, Clock
from launchhelm.errors import Conflict, NotFound, StorageError
from launchhelm.records import WriterId
from launchhelm.store import layout
from launchhelm.store.manifest import Manifest, load_manifest
from launchhelm.store.reader import Reader, list_segments
from launchhelm.views.copied import copied_attempt
from launchhelm.views.fold import Fold
from launchhelm.views.liveness import Age, Observer, age_by_files
from launchhelm.views.participants import Watch, newest_attempt, table
from launchhelm.views.state import RunState, run_state

LATEST: Final = "latest"
LOSSES: Final = ("train/loss", "loss", "train_loss")
"""Names of the metric that a list of runs shows as the loss; the first one that a run has."""

_SHOWN_CANDIDATES: Final = 8


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One line about a run, from run.json, one listing, and the newest file of each process.

    Args:
        step: The highest that a process shows.
        ranks_seen: Processes of the newest attempt that have a file.
        age: Since the coordinator's counter last moved.
        metrics: The coordinator's newest logged values, as far as its newest file has them.
        waiting: Commands in the inbox that nobody has taken.
        pending: These, and those that were taken and have no outcome yet.
        problem: Why it cannot be read, "" when it can.
    """

    directory: Path
    run_id: str
    name: str
    project: str
    created_at: float
    state: RunState
    step: int | None = None
    world_size: int | None = None
    ranks_seen: int = 0
    attempt: int = 0
    age: Age | None = None
    host: str = ""
    group: str = ""
    tags: tuple[str, ...] = ()
    config: dict[str, Any] = field(default_factory=dict)  # Any: the user's own values.
    metrics: dict[str, Any] = field(default_factory=dict)
    waiting: int = 0
    pending: int = 0
    problem: str = ""


def runs(
    root: Path,
    *,
    problems: list[str] | None = None,
    observer: Observer | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> list[RunSummary]:
    """Summarise every run directly under a root, newest first.

    Reads no series; costs about seven small operations per run, and three per further process of
    one that has not finished. Symbolic links are not followed, so that each run is listed once.

    Args:
        problems: Takes one sentence for each thing that cannot be read.
        observer: Keeps ages between calls; give the same one each time.

    Raises:
        NotFound: There is no such directory.
        StorageError: The root cannot be listed.
    """
    watch = observer or Observer(clock)
    found = [summarise(directory, watch) for directory in run_directories(root)]
    summaries = [summary for summary in found if summary is not None]
    if problems is not None:
        problems += [
            f"{summary.directory}: {summary.problem}" for summary in summaries if summary.problem
        ]
    return sorted(summaries, key=lambda summary: summary.run_id, reverse=True)


def run_directories(root: Path) -> Iterator[Path]:
    """Yield the directories under a root that may be runs.

    Raises:
        NotFound: There is no such directory.
        StorageError: The root cannot be listed.
    """
    try:
        with os.scandir(root) as entries:
            names = sorted(
                entry.name
                for entry in entries
                if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)
            )
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound(
            f"There is no directory {root}.",
            remedy="Name the root of your runs with --root or LAUNCHHELM_DIR.",
        ) from None
    except OSError as error:
        raise StorageError(f"{root} cannot be listed: {error.strerror}.") from error
    yield from (root / name for name in names)


def summarise(
    directory: Path, observer: Observer, watches: dict[WriterId, Watch] | None = None
) -> RunSummary | None:
    """Summarise one directory; None when it is no run (yet).

    Args:
        watches: Keeps what was read of its processes between calls; give the same one each time.
    """
    known = {} if watches is None else watches
    try:
        manifest = load_manifest(directory)
        listing = list_segments(directory)
    except FileNotFoundError:
        return None
    except (StorageError, OSError) as error:
        return _unreadable(directory, error)
    extra = manifest.extra
    attempt = newest_attempt(listing)
    writers = [writer for writer in listing if writer.attempt == attempt]
    for gone in known.keys() - set(writers):
        del known[gone]

    def looked(chosen: Sequence[WriterId]) -> list[Watch]:
        for writer in chosen:
            known.setdefault(writer, Watch(writer)).look(directory, listing[writer], observer)
        return [known[writer] for writer in chosen]

    first = looked([writer for writer in writers if writer.rank == 0])
    seen = len({writer.rank for writer in writers})
    world_size = next(
        (watch.opening["world"] for watch in first if watch.opening.get("world")),
        extra.get("world_size"),
    )
    is_copy = 0 < attempt <= copied_attempt(directory)
    rows = table(first, is_copy=is_copy)
    has_ended = any(row.end for row in rows)
    # Which rank failed or is late, and why, only the others may know.
    others = [writer for writer in writers if writer.rank and (has_ended or not is_copy)]
    if has_ended and all(row.end in ("", "finished") for row in rows):
        # Whoever ended well has sealed its files, or ran out of time to; only the others may
        # have died, and are looked at.
        others = [writer for writer in others if not _is_sealed(listing[writer])]
    if others:
        rows = table([*first, *looked(others)], is_copy=is_copy)
    started_at = next(
        (row.started_at for row in rows if row.started_at is not None), manifest.created_at
    )
    still_s = age_by_files(observer.clock, manifest.created_at, None)
    still = observer.observe(("listing", directory), len(listing), before_s=still_s)
    step = max((row.step for row in rows if row.step is not None), default=None)
    state = run_state(
        rows,
        world_size=world_size,
        seen=seen,
        started_at=started_at,
        created_at=manifest.created_at,
        now=observer.clock.wall(),
        still=still,
        no_step=observer.observe(("front", directory), (attempt, step)),
        is_copy=is_copy,
    )
    waiting, taken = (0, 0) if state.is_over else _commands(directory)
    front = [row for row in rows if row.rank == 0]
    return RunSummary(
        directory=directory,
        run_id=manifest.run_id,
        name=manifest.name,
        project=manifest.project,
        created_at=manifest.created_at,
        state=state,
        step=step,
        world_size=world_size,
        ranks_seen=seen,
        attempt=attempt,
        age=front[-1].age if front else still,
        host=front[-1].host if front else manifest.host,
        group=str(extra.get("group", "")),
        tags=tuple(extra.get("tags", ())),
        config=dict(manifest.config),
        metrics=first[-1].metrics if first else {},
        waiting=waiting,
        pending=waiting + taken,
        problem="; ".join(watch.problem for watch in first if watch.problem),
    )


def _is_sealed(files: Mapping[int, Collection[bool]]) -> bool:
    return True in files[max(files)]


def _commands(directory: Path) -> tuple[int, int]:
    """Count the commands that nobody has taken, and those taken; a taken file stays until its
    outcome is durable.
    """
    try:
        names = os.listdir(directory / layout.CONTROL)
    except OSError:
        return 0, 0
    commands = [command for name in names if (command := layout.parse_command(name)) is not None]
    waiting = sum(command.taken_by is None for command in commands)
    return waiting, len(commands) - waiting


def _unreadable(directory: Path, error: Exception) -> RunSummary:
    said = error.message if isinstance(error, StorageError) else str(error)
    return RunSummary(
        directory=directory,
        run_id=directory.name,
        name=directory.name,
        project="",
        created_at=0.0,
        state=RunState("unreadable", _wording.unreadable_text(said, owner_of(directory))),
        problem=said,
    )


def owner_of(directory: Path) -> str:
    """Name the owner of a directory, "" when it cannot be asked."""
    try:
        uid = directory.stat().st_uid
    except OSError:
        return ""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


# --- from a name to a run -------------------------------------------------------------------------


def find_run(root: Path | Sequence[Path], selector: str) -> Path:
    """Return the directory of the run that a person means.

    Args:
        root: One root or several, searched together.
        selector: A path, an id, a unique beginning of one, a title, or `latest`.

    Raises:
        NotFound: No run fits.
        Conflict: Several fit; the message lists them.
        StorageError: A root cannot be listed.
    """
    path = _as_path(selector)
    if path is not None:
        return path
    roots = [root] if isinstance(root, Path) else list(root)
    manifests = list(_manifests(roots))
    if selector == LATEST:
        if not manifests:
            raise _not_found("There is no run", roots, [])
        return max(manifests, key=lambda item: item[1].run_id)[0]
    tests = (
        lambda directory, run: selector in (run.run_id, directory.name),
        lambda directory, run: selector == run.name,
        lambda directory, run: run.run_id.startswith(selector.lower()),
    )
    for test in tests:
        fits = [(directory, run) for directory, run in manifests if test(directory, run)]
        if len(fits) == 1:
            return fits[0][0]
        if fits:
            raise _conflict(selector, fits)
    renamed = [item for item in manifests if _described_name(item[0]) == selector]
    if len(renamed) == 1:
        return renamed[0][0]
    if renamed:
        raise _conflict(selector, renamed)
    raise _not_found(f"There is no run {selector!r}", roots, [run for _, run in manifests])


def _described_name(directory: Path) -> str | None:
    """Return the title that a run was given later; costs more than its manifest."""
    fold = Fold(directory)
    for record in Reader(directory, kinds={"desc"}, ranks={0}).poll():
        fold.take(record)
    name = fold.described.values.get("name")
    return name if isinstance(name, str) else None


def _as_path(selector: str) -> Path | None:
    """Read a selector as the path of a run; names without a slash are paths only where one is."""
    path = Path(selector).expanduser()
    explicit = os.sep in selector or selector in (".", "..") or selector.startswith("~")
    try:
        is_run = not {layout.MANIFEST, layout.NODES}.isdisjoint(os.listdir(path))
    except PermissionError as error:
        raise StorageError(
            f"{path} cannot be read: {error.strerror} (owner {owner_of(path)})."
        ) from error
    except OSError:
        is_run = False
    if is_run:
        return path.absolute()
    if explicit:
        raise NotFound(
            f"There is no run directory at {path}.",
            remedy=f"A run directory has a {layout.MANIFEST}; `launchhelm ls` lists your runs.",
        )
    return None


def _manifests(roots: Sequence[Path]) -> Iterator[tuple[Path, Manifest]]:
    missing: list[NotFound] = []
    for root in roots:
        try:
            for directory in run_directories(root):
                try:
                    yield directory, load_manifest(directory)
                except (OSError, StorageError):
                    continue
        except NotFound as error:
            missing.append(error)
    if len(missing) == len(roots):
        raise missing[0]


def _conflict(selector: str, candidates: Sequence[tuple[Path, Manifest]]) -> Conflict:
    newest = sorted(candidates, key=lambda item: item[1].run_id, reverse=True)
    listed = ", ".join(f"{path} ({run.name})" for path, run in newest[:_SHOWN_CANDIDATES])
    more = len(newest) - _SHOWN_CANDIDATES
    ids = {run.run_id for _, run in newest}
    what, remedy = f"{len(newest)} runs", "Give more of the id, or the path."
    if len(ids) == 1:
        what = f"{len(newest)} copies of run {ids.pop()}"
        remedy = "Their id is the same: give the path."
    return Conflict(
        f"{selector!r} fits {what}: {listed}{f' and {more} more' if more > 0 else ''}.",
        remedy=remedy,
    )


def _not_found(said: str, roots: Sequence[Path], candidates: Sequence[Manifest]) -> NotFound:
    newest = sorted(candidates, key=lambda run: run.run_id, reverse=True)[:_SHOWN_CANDIDATES]
    listed = ", ".join(f"{run.name} ({run.run_id})" for run in newest)
    where = ", ".join(map(str, roots))
    return NotFound(
        f"{said} in {where}." + (f" The newest: {listed}." if listed else ""),
        remedy="`launchhelm ls` lists all; --root or LAUNCHHELM_DIR names another root.",
    )
