"""The data directory of a server: opened, filled at first, locked while served, copied.

DIR/launchhelm.sqlite3    everything but the bytes of artifacts
DIR/artifacts/            those
DIR/serve.lock            held by the one process that serves
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from launchhelm._clock import SYSTEM_CLOCK, Clock
from launchhelm._ids import new_id
from launchhelm.errors import Conflict, NotFound, StorageError
from syncer.server import accounts, documents
from syncer.server.accounts import EVERY_ACTION, Grant, Organization
from syncer.server.database import Database
from syncer.server.state import Limits, Server

DATABASE: Final = "launchhelm.sqlite3"
LOCK: Final = "serve.lock"
DEFAULT_ORGANIZATION: Final = "local"


@dataclass(frozen=True)
class Made:
    """What `initialise` left behind.

    Args:
        project_id: "" when no project was asked for.
        token: The new key, "" when everything was there already.
    """

    organization_id: str
    organization: str
    project_id: str
    project: str
    token: str


def open_server(data: Path, *, clock: Clock = SYSTEM_CLOCK, limits: Limits | None = None) -> Server:
    """Open a data directory, made when absent and readable for its owner only.

    Raises:
        StorageError: It cannot be used, or a newer version wrote it.
    """
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        (data / DATABASE).touch(mode=0o600)
    except OSError as error:
        raise StorageError(
            f"The data directory {data} cannot be used: {error.strerror}."
        ) from error
    database = Database(data / DATABASE, clock)
    with database.write() as connection:
        secret = accounts.secret(connection)
        generation = accounts.generation(connection)
    server = Server(database, clock, data, secret, generation, limits=limits or Limits())
    server.artifacts.mkdir(mode=0o700, exist_ok=True)
    return server


def exists(data: Path) -> bool:
    """Say whether a data directory was ever opened."""
    return (data / DATABASE).exists()


def is_empty(server: Server) -> bool:
    """Say whether nobody could have a key yet."""
    with server.database.read() as connection:
        return not accounts.organizations(connection)


def initialise(server: Server, organization: str = DEFAULT_ORGANIZATION, project: str = "") -> Made:
    """Make an organisation, a project in it if one is named, and a key for the innermost of them.

    What is there already stays, and gets no second key.
    """
    now = server.clock.wall()
    with server.database.write() as connection:
        known = {each.name: each.id for each in accounts.organizations(connection)}
        organization_id = known.get(organization, "")
        fresh = not organization_id
        if fresh:
            organization_id = accounts.create_organization(connection, organization, now)
        project_id = ""
        if project:
            found = documents.project_named(connection, organization_id, project)
            fresh = fresh or not found
            project_id = found or documents.create_project(
                connection, organization_id, project, now
            )
        token = ""
        if fresh:
            _, token = accounts.create_key(
                connection,
                name=project or organization,
                organization_id=organization_id,
                grants=[Grant(project_id, "", frozenset({EVERY_ACTION}))],
                now=now,
            )
    return Made(organization_id, organization, project_id, project, token)


def choose_organization(server: Server, name: str = "") -> Organization:
    """Return the organisation of a name or id; without one, the only one.

    Raises:
        NotFound: There is none, or none of that name.
        Conflict: There are several and none was named.
    """
    with server.database.read() as connection:
        every = accounts.organizations(connection)
    if not every:
        raise NotFound(
            f"There is no organisation in {server.data}.",
            remedy=f"Make one: launchhelm serve init --data {server.data}",
        )
    if not name:
        if len(every) > 1:
            names = ", ".join(each.name for each in every)
            raise Conflict(f"There are several organisations: {names}.", remedy="Name one.")
        return every[0]
    for each in every:
        if name in (each.name, each.id):
            return each
    raise NotFound(f"There is no organisation {name} in {server.data}.")


@contextlib.contextmanager
def serving(data: Path) -> Iterator[None]:
    """Hold the directory for one serving process: claims are woken within a process only.

    Raises:
        Conflict: Another process serves it.
    """
    descriptor = os.open(data / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(f"Another process serves {data} already.") from None
        yield
    finally:
        os.close(descriptor)


def backup(server: Server, target: Path) -> int:
    """Copy a data directory, in use or not, and return the number of artifact files.

    The database is copied first, as of one moment; files are only ever added, so whatever it
    names is there for the second part. Until it is complete the copy has another name.

    Raises:
        Conflict: The target exists.
        StorageError: It cannot be written.
    """
    if target.exists():
        raise Conflict(f"{target} exists; a backup is never written over anything.")
    unfinished = target.with_name(f"{target.name}.{new_id()[:8]}.part")
    try:
        unfinished.mkdir(mode=0o700, parents=True)
        server.database.backup(unfinished / DATABASE, accounts.forget_generation)
        copied = _copy_files(server.artifacts, unfinished / server.artifacts.name)
        _sync(unfinished / DATABASE)
        _sync(unfinished)
        unfinished.rename(target)
        _sync(target.parent)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise StorageError(
            f"The backup could not be written to {target}: {error.strerror or error}.",
            kept="The data directory was only read.",
        ) from error
    return copied


def _copy_files(source: Path, target: Path) -> int:
    target.mkdir(mode=0o700)
    copied = 0
    for folder, _, names in os.walk(source):
        into = target / Path(folder).relative_to(source)
        into.mkdir(mode=0o700, exist_ok=True)
        for name in names:
            # A part of an upload may be gone by now; nothing that is complete refers to it.
            with contextlib.suppress(FileNotFoundError):
                shutil.copy2(Path(folder) / name, into / name)
                _sync(into / name)
                copied += 1
    return copied


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
