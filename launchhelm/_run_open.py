"""Which run does this process write: a new one, the one it is asked to resume, or the one that its
launcher restarted.

The coordinator decides here, once, and tells its peers by an invitation. A resume never touches
what is there: it takes the next attempt number and writes files of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from launchhelm import _run_launch as launches
from launchhelm import _run_metadata as metadata
from launchhelm import _settings
from launchhelm._clock import SYSTEM_CLOCK, Clock
from launchhelm._ids import new_run_id, project_id_for
from launchhelm.env import load_env
from launchhelm.errors import ConfigError, Conflict, NotFound, StorageError
from launchhelm.records import Participant
from launchhelm.store import layout
from launchhelm.store.line import untag
from launchhelm.store.manifest import (
    Attempt,
    Manifest,
    attempts,
    create_run,
    load_manifest,
    self_test,
    take_attempt,
)
from launchhelm.store.reader import Reader

OVERFLOWS: Final = ("block", "drop_new", "raise")
MAX_RUNS_LOOKED_AT: Final = 2000
"""A restarted job finds its run among so many of the newest."""

MAX_TITLES_READ: Final = 100
"""A title that no run was made with is looked for in the records of so many of the newest."""

MAX_METRICS_LOOKED_AT: Final = 200
"""Metrics of one run are mostly logged together; a few tell where all of them stood."""


@dataclass(frozen=True)
class Ask:
    """The arguments of `init`, checked. Every rank of a job makes one before any collective."""

    project: str
    name: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    group: str = ""
    tags: tuple[str, ...] = ()
    notes: str = ""
    overflow: str = "block"
    organization: str = ""
    project_id: str = ""
    root: Path = Path("runs")
    resume: str = ""
    sync: bool = False

    @classmethod
    def of(
        cls,
        project: str,
        *,
        name: str = "",
        config: Mapping[str, Any] | None = None,
        group: str = "",
        tags: Sequence[str] = (),
        notes: str = "",
        overflow: str = "block",
        organization: str = "",
        project_id: str = "",
        state_dir: str | os.PathLike[str] | None = None,
        resume: str = "",
        sync: bool = False,
    ) -> Ask:
        """Check the arguments and fill in what the environment and `.env` files say.

        Raises:
            TypeError: An argument of a wrong type.
            ValueError: An argument outside its limits.
            ConfigError: An id that is not a UUID.
        """
        load_env()
        if overflow not in OVERFLOWS:
            raise ValueError(f"overflow must be one of {', '.join(OVERFLOWS)}, got {overflow!r}.")
        limit = metadata.MAX_NAME_CHARS
        organization = metadata.check_uuid(organization, "organization")
        project_id = metadata.check_uuid(project_id, "project_id")
        hint = _settings.PROJECT.read()
        if state_dir is None:
            state_dir = _settings.DIRECTORY.read()
        return cls(
            project=metadata.check_text(project, "project", limit, may_be_empty=False),
            name=metadata.check_text(name, "name", limit),
            config=metadata.check_config(config),
            group=metadata.check_text(group, "group", limit),
            tags=metadata.check_tags(tags),
            notes=metadata.check_text(notes, "notes", metadata.MAX_NOTES_CHARS),
            overflow=overflow,
            organization=organization or _settings.ORGANIZATION.read(),
            project_id=project_id or (hint.lower() if metadata.is_uuid(hint) else ""),
            root=layout.default_root(os.fspath(state_dir)),
            resume=metadata.check_text(resume, "resume", limit),
            sync=bool(sync) or _settings.SYNC.read() == "1",
        )


@dataclass
class Past:
    """What earlier attempts left behind for this one."""

    state: dict[str, Any] = field(default_factory=dict)
    next_step: int = 0
    summary: dict[str, Any] = field(default_factory=dict)
    described: dict[str, Any] = field(default_factory=dict)
    definitions: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Opened:
    """A run directory, and this process's attempt of it."""

    directory: Path
    manifest: Manifest
    attempt: Attempt
    past: Past
    warnings: tuple[str, ...] = ()

    def invitation(self) -> dict[str, Any]:
        """Return what a peer needs to write into the same run, as JSON."""
        return {
            "directory": str(self.directory),
            "manifest": self.manifest.wire(),
            "attempt": self.attempt.wire(),
            "past": vars(self.past),
        }

    @classmethod
    def invited(cls, invitation: Mapping[str, Any]) -> Opened:
        """Read an invitation."""
        return cls(
            directory=Path(invitation["directory"]),
            manifest=Manifest.parse(invitation["manifest"]),
            attempt=Attempt.parse(invitation["attempt"]),
            past=Past(**invitation["past"]),
        )


def open_run(ask: Ask, participant: Participant, *, clock: Clock = SYSTEM_CLOCK) -> Opened:
    """Create, resume or re-enter a run; all of it is durable on return. Coordinator only.

    Raises:
        ConfigError: Another `launchhelm` is installed, or the root cannot be used.
        NotFound: The run to resume does not exist.
        Conflict: It is closed, or several have that title.
    """
    refuse_the_other_distribution()
    launch = launches.launch_key(ask.project, ask.name)
    found = _find(ask) if ask.resume else _restarted(ask, launch)
    attempt = Attempt(
        number=0,
        restart_count=launches.restart_count(launch),
        launch=launch,
        started_at=clock.wall(),
        world_size=participant.world_size,
        host=participant.host,
    )
    past = Past()
    if found is None:
        manifest = _manifest(ask, participant, launch, clock)
        directory = create_run(ask.root, manifest)
    else:
        directory, manifest = found
        past, is_closed = read_past(directory)
        if is_closed:
            raise Conflict(
                f"The run {manifest.name!r} ({manifest.run_id}) is closed.",
                kept="Nothing was changed.",
                remedy="Start a new run; next time end with finish(close_run=False) to resume.",
            )
        attempt = replace(
            attempt,
            resumed_from=max((earlier.number for earlier in attempts(directory)), default=None),
            labels={"next_step": str(past.next_step)},
        )
    warnings = self_test(directory)
    return Opened(directory, manifest, take_attempt(directory, attempt), past, tuple(warnings))


def refuse_the_other_distribution() -> None:
    """Refuse to work beside the official SDK, whose files have the same names as ours.

    Raises:
        ConfigError: A distribution called `launchhelm` is installed here.
    """
    from importlib import metadata as installed  # Costs 20 ms, and only init asks.

    try:
        other = installed.version("launchhelm")
    except installed.PackageNotFoundError:
        return
    raise ConfigError(
        f"The distribution launchhelm {other} is installed in this environment, and so is "
        "launchhelm-offline; both own the import name `launchhelm`.",
        remedy="Keep one of them: pip uninstall launchhelm, then reinstall launchhelm-offline.",
    )


def read_past(directory: Path) -> tuple[Past, bool]:
    """Read what earlier attempts left, and whether the run is closed.

    It is closed when the coordinator of the newest attempt finished it with close_run=True.
    """
    from launchhelm.views.fold import whole_body  # Runs that begin anew never need it.

    past = Past()
    newest_close: Mapping[str, Any] = {}
    newest_attempt = 0
    kept: Mapping[str, Any] | None = None
    kinds = ("keep", "sum", "desc", "def", "close")
    for record in Reader(directory, kinds=kinds, ranks=(0,)).poll():
        body = whole_body(directory, record.body)
        if record.writer.attempt > newest_attempt:
            newest_attempt, newest_close = record.writer.attempt, {}
        if record.kind == "close":
            newest_close = body
        elif record.kind == "keep":
            kept = body
        elif record.kind == "def":
            past.definitions[str(body.get("name"))] = dict(body)
        elif record.kind == "desc":
            past.described.update(body)
        else:
            past.summary.update({name: untag(value) for name, value in body.items()})
    past.summary = {name: value for name, value in past.summary.items() if value is not None}
    if any(attempt.number > newest_attempt for attempt in attempts(directory)):
        newest_close = {}
    if kept is not None:
        past.state = dict(kept.get("state") or {})
        past.next_step = int(kept.get("step") or 0)
    else:
        past.state, past.next_step = _newest_point(directory)
    is_closed = newest_close.get("state") == "finished" and newest_close.get("close_run", True)
    return past, bool(is_closed)


def _newest_point(directory: Path) -> tuple[dict[str, Any], int]:
    """Return the coordinates of the newest point, and the step after the highest one."""
    from launchhelm import views  # Loads SQLite, which only a resume without kept state needs.

    view = views.open_run(directory)
    names = view.metrics()[:MAX_METRICS_LOOKED_AT]
    latest = [point for point in map(view.latest, names) if point is not None]
    if not latest:
        return {}, 0
    newest = max(latest, key=lambda point: point.at)
    highest = [
        point.step
        for name in names
        for point in view.history(name, limit=1)
        if point.step is not None
    ]
    return newest.coordinates, max(0, max(highest, default=-1) + 1)


def _find(ask: Ask) -> tuple[Path, Manifest]:
    """Find the run to resume, by id or by exact title within the project."""
    runs = [found for found in _runs(ask.root) if found[1].project == ask.project]
    matches = [found for found in runs if found[1].run_id == ask.resume]
    if not matches:
        named = [found for found in runs if found[1].name == ask.resume]
        # Titles that describe() gave later are in the records, which take longer to read.
        matches = [
            found for found in named or runs[:MAX_TITLES_READ] if _title(*found) == ask.resume
        ]
    if len(matches) > 1:
        ids = ", ".join(manifest.run_id for _, manifest in matches[:5])
        raise Conflict(
            f"{len(matches)} runs of {ask.project!r} are called {ask.resume!r}: {ids}.",
            remedy="Give the id of the one to resume.",
        )
    if not matches:
        raise NotFound(
            f"No run {ask.resume!r} of the project {ask.project!r} is in {ask.root}.",
            remedy="Look with `launchhelm ls`; LAUNCHHELM_DIR or state_dir= names another root.",
        )
    return matches[0]


def _restarted(ask: Ask, launch: Mapping[str, str]) -> tuple[Path, Manifest] | None:
    """Find the run of which this process is a restart, None when it is a first start."""
    ways = launches.restarts(launch)
    if not ways:
        return None
    for directory, manifest in _runs(ask.root):
        known = manifest.extra.get("launch")
        if not isinstance(known, Mapping) or known.get("key") != launch["key"]:
            continue
        newest = max(attempts(directory), key=lambda attempt: attempt.number, default=None)
        if newest is None or not any(launches.follows(launch, newest.launch, way) for way in ways):
            continue
        return None if read_past(directory)[1] else (directory, manifest)
    return None


def _runs(root: Path) -> Iterator[tuple[Path, Manifest]]:
    """Yield the newest runs under a root, newest first; what is not a readable run is skipped."""
    try:
        with os.scandir(root) as entries:
            names = [entry.name for entry in entries if not entry.name.startswith(".")]
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"{root} cannot be read: {error.strerror or error}.") from error
    for name in sorted(names, reverse=True)[:MAX_RUNS_LOOKED_AT]:
        try:
            yield root / name, load_manifest(root / name)
        except (OSError, StorageError):
            continue


def _title(directory: Path, manifest: Manifest) -> str:
    """Return a run's title, which describe() may have changed since run.json was written."""
    title = manifest.name
    for record in Reader(directory, kinds=("desc",), ranks=(0,)).poll():
        title = str(record.body.get("name") or title)
    return title


def _manifest(
    ask: Ask, participant: Participant, launch: Mapping[str, str], clock: Clock
) -> Manifest:
    run_id = new_run_id(clock)
    extra = {
        "world_size": participant.world_size,
        "group": ask.group,
        "tags": list(ask.tags),
        "notes": ask.notes,
        "git": metadata.git_commit(),
        "python": metadata.python_version(),
        "argv": metadata.command_line(),
        "organization": ask.organization,
        "url": _without_user(_settings.URL.read()),
        "launch": dict(launch),
    }
    return Manifest(
        run_id=run_id,
        name=ask.name or f"run-{run_id[-12:]}",
        project=ask.project,
        project_id=ask.project_id or project_id_for(ask.organization, ask.project),
        created_at=clock.wall(),
        created_by=metadata.login_name(),
        host=participant.host,
        config=metadata.masked(ask.config),
        extra={name: value for name, value in extra.items() if value not in ("", [])},
    )


def _without_user(url: str) -> str:
    """Return a URL without the credentials that some put before its host."""
    scheme, mark, rest = url.partition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}" if mark else ""
