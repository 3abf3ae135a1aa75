"""run.json and attempts/: who a run is, and each launch of it. Written once, never changed."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from launchhelm.errors import ConfigError, Conflict, StorageError
from launchhelm.records import FORMAT
from launchhelm.store import layout
from launchhelm.store.body import plain
from launchhelm.store.mount import self_test

__all__ = [
    "Attempt",
    "Manifest",
    "attempts",
    "create_run",
    "load_manifest",
    "self_test",
    "sync_directory",
    "take_attempt",
    "write_durably",
]

_ATTEMPT_TRIES: Final = 1000
_MANIFEST_LIMIT_BYTES: Final = 64 << 20


@dataclass(frozen=True)
class Manifest:
    """The identity of a run.

    Args:
        run_id: UUIDv7, also the name of the directory.
        name: Title for people.
        project: Name of the project.
        project_id: Its id.
        created_at: Wall clock of the creator, seconds since the epoch.
        created_by: Login name of the creator.
        host: Host of the creator.
        config: Hyperparameters as given.
        format: Major version of the directory's format.
        extra: Every other field of run.json: world_size, group, tags, notes, git, launch, ...
    """

    run_id: str
    name: str
    project: str
    project_id: str
    created_at: float
    created_by: str
    host: str
    config: Mapping[str, Any] = field(default_factory=dict)  # Any: the user's own values.
    format: int = FORMAT
    extra: Mapping[str, Any] = field(default_factory=dict)

    def wire(self) -> dict[str, Any]:
        """Return the content of run.json."""
        own = {name: getattr(self, name) for name in _MANIFEST_FIELDS}
        return {"format": self.format, **own, **self.extra}

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> Manifest:
        """Read the content of run.json; fields that we do not know are kept in `extra`."""
        known = {name: value[name] for name in _MANIFEST_FIELDS if name in value}
        missing = {"run_id", "name", "project", "project_id"} - known.keys()
        if missing or not isinstance(known.get("config", {}), dict):
            raise ValueError(f"run.json lacks {', '.join(sorted(missing)) or 'a config'}")
        defaults = {"created_at": 0.0, "created_by": "", "host": ""}
        extra = {name: item for name, item in value.items() if name not in {*known, "format"}}
        return cls(**{**defaults, **known}, format=int(value["format"]), extra=extra)


_MANIFEST_FIELDS: Final = (
    "run_id",
    "name",
    "project",
    "project_id",
    "created_at",
    "created_by",
    "host",
    "config",
)


@dataclass(frozen=True)
class Attempt:
    """One launch of a run.

    Args:
        number: From 1; 0 asks `take_attempt` for the next free one.
        restart_count: As the launcher counts.
        launch: The launch key, see docs/run-directory.md.
        started_at: Wall clock of the coordinator, seconds since the epoch.
        world_size: Processes of this attempt.
        host: Host of the coordinator.
        labels: Free text by name.
        resumed_from: Number of the attempt that this one goes on from.
    """

    number: int
    restart_count: int
    launch: Mapping[str, str]
    started_at: float
    world_size: int
    host: str
    labels: Mapping[str, str] = field(default_factory=dict)
    resumed_from: int | None = None

    def wire(self) -> dict[str, Any]:
        """Return the content of the attempt's file."""
        return {"format": FORMAT, **{name: getattr(self, name) for name in _ATTEMPT_FIELDS}}

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> Attempt:
        """Read the content of an attempt's file; fields that we do not know are ignored."""
        return cls(**{name: value[name] for name in _ATTEMPT_FIELDS if name in value})


_ATTEMPT_FIELDS: Final = tuple(Attempt.__dataclass_fields__)


def create_run(root: Path, manifest: Manifest) -> Path:
    """Make the directory of a new run and write its manifest; both are durable on return.

    The directories are for the owner alone, unless the root passes on its group (setgid).

    Raises:
        Conflict: A run of that id exists.
        ConfigError: The root cannot be written.
    """
    root = root.absolute()
    directory = root / manifest.run_id
    try:
        if root.exists() and not root.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "it is a file")
        root.mkdir(parents=True, exist_ok=True)
        mode = 0o2770 if root.stat().st_mode & stat.S_ISGID else 0o700
        _make_directory(directory, mode)
        for name in (layout.DATA, layout.CONTROL, layout.ATTEMPTS, layout.SYNC):
            _make_directory(directory / name, mode)
        write_durably(directory / layout.MANIFEST, _json(manifest.wire()))
        sync_directory(root)
    except FileExistsError as error:
        raise Conflict(
            f"A run with the id {manifest.run_id} exists in {root}.",
            remedy="Leave the id out to get a new one, or resume that run.",
        ) from error
    except OSError as error:
        raise ConfigError(
            f"No run can be made in {root}: {error.strerror or error}.",
            remedy="Make room or permissions there, or set LAUNCHHELM_DIR to another directory.",
        ) from error
    return directory


def load_manifest(run_directory: Path) -> Manifest:
    """Read run.json, or what a host without it wrote down in its place.

    Raises:
        FileNotFoundError: There is neither (yet).
        StorageError: It is damaged, unreadable or of a newer format.
    """
    path = run_directory / layout.MANIFEST
    try:
        value = _load(path)
    except FileNotFoundError:
        path = _of_node(run_directory)
        value = _load(path)
    version = value.get("format")
    if isinstance(version, int) and version > FORMAT:
        raise StorageError(
            f"{path} has format {version}, newer than {FORMAT}.",
            kept="Nothing was changed.",
            remedy="Use a newer launchhelm-offline for this run.",
        )
    try:
        return Manifest.parse(value)
    except (KeyError, TypeError, ValueError) as error:
        raise StorageError(f"{path} is damaged: {error}.", kept="Nothing was changed.") from error


def node_of(run_directory: Path) -> str:
    """Name the host whose part of a run this is; "" where run.json shows that it is the whole."""
    try:
        names = os.listdir(run_directory)
    except OSError:
        return ""
    return "" if layout.MANIFEST in names else _of_node(run_directory).stem


def _of_node(run_directory: Path) -> Path:
    """Find what a host wrote that does not see run.json: its storage is not shared."""
    nodes = run_directory / layout.NODES
    names = sorted(name for name in os.listdir(nodes) if layout.is_node(name))
    if not names:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(nodes))
    return nodes / names[0]


def take_attempt(run_directory: Path, attempt: Attempt) -> Attempt:
    """Write the attempt under the next free number, which no other process can get as well.

    Raises:
        ConfigError: The directory cannot be written.
    """
    directory = run_directory / layout.ATTEMPTS
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        numbers = [layout.parse_attempt(name) or 0 for name in os.listdir(directory)]
        first = max(numbers, default=0) + 1
        for number in range(first, first + _ATTEMPT_TRIES):
            taken = replace(attempt, number=number)
            try:
                _write_new(directory / layout.attempt_name(number), _json(taken.wire()), 0o640)
            except FileExistsError:
                continue
            sync_directory(directory)
            return taken
    except OSError as error:
        raise ConfigError(
            f"{run_directory} cannot be written: {error.strerror or error}.",
            remedy="Make room or permissions there.",
        ) from error
    raise ConfigError(f"{directory} has no free attempt number near {first}.")


def attempts(run_directory: Path) -> list[Attempt]:
    """Read all attempts in order; one that is being written right now is left out."""
    try:
        names = os.listdir(run_directory / layout.ATTEMPTS)
    except FileNotFoundError:
        return []
    found = []
    for name in sorted(name for name in names if layout.parse_attempt(name) is not None):
        try:
            found.append(Attempt.parse(_load(run_directory / layout.ATTEMPTS / name)))
        except (FileNotFoundError, StorageError, TypeError):
            continue
    return sorted(found, key=lambda attempt: attempt.number)


def write_durably(path: Path, data: bytes, *, mode: int = 0o640) -> None:
    """Put a whole file in place: hidden beside its place, synced, then renamed.

    Raises:
        OSError: The file is not there, or the one that was there before still is.
    """
    hidden = path.parent / layout.hidden_name(path.name)
    try:
        _write_new(hidden, data, mode)
        os.rename(hidden, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(hidden)
        raise
    sync_directory(path.parent)


def _write_new(path: Path, data: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fchmod(descriptor, mode)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_directory(path: Path, mode: int) -> None:
    path.mkdir(mode=mode & 0o777)
    path.chmod(mode)


def sync_directory(path: Path) -> None:
    """Make names in a directory durable, where the file system can."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)


def _load(path: Path) -> Mapping[str, Any]:
    try:
        with open(path, "rb") as file:
            value = json.loads(file.read(_MANIFEST_LIMIT_BYTES))
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise StorageError(
            f"{path} cannot be read: {error}.", kept="Nothing was changed."
        ) from error
    if not isinstance(value, dict):
        raise StorageError(f"{path} holds no JSON object.", kept="Nothing was changed.")
    return value


def _json(value: Mapping[str, Any]) -> bytes:
    text = json.dumps(plain(value), ensure_ascii=False, allow_nan=False, indent=1)
    return text.encode(errors="replace") + b"\n"
