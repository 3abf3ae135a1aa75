"""`launchhelm serve init`, `keys` and `backup`: what works on a data directory, served or not."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final  # Any: documents of the command line.

from launchhelm import _wording
from launchhelm.cli._exit import Exit
from launchhelm.cli.output import Output
from launchhelm.errors import Conflict, NotFound
from syncer.server import accounts, caller, data, documents
from syncer.server.accounts import EVERY_ACTION, Grant, Key
from syncer.server.state import Server

_SHORT: Final = 8
_HEAD: Final = ("KEY", "NAME", "RIGHTS", "CREATED", "ENDS", "STATE")


def initialise(arguments: argparse.Namespace, output: Output) -> int:
    """Make organisation, project and key, and print the key, once."""
    server = data.open_server(Path(arguments.data))
    try:
        made = data.initialise(
            server, arguments.organization or data.DEFAULT_ORGANIZATION, arguments.project
        )
    finally:
        server.database.close()
    if output.json:
        output.document({**asdict(made), "data": arguments.data})
    else:
        tell_made(made, output, output.line)
    if not made.token:
        output.say("All of that was there already. Another key: launchhelm serve keys create")
    return Exit.DONE


def tell_made(made: data.Made, output: Output, line: Callable[[str], None]) -> None:
    """Say what to put into the environment of clients."""
    line(f"LAUNCHHELM_ORGANIZATION={made.organization_id}")
    if made.project_id:
        line(f"LAUNCHHELM_PROJECT={made.project_id}")
    if made.token:
        line(f"LAUNCHHELM_API_KEY={made.token}")
        output.say("The key is shown this once; only its digest is kept.")


def act(action: str, words: Sequence[str], arguments: argparse.Namespace, output: Output) -> int:
    """List, make, end or renew keys of an existing data directory."""
    server = _existing(arguments)
    try:
        if action == "list":
            return _list(server, arguments, output)
        if action == "create":
            return _create(server, arguments, output)
        with server.database.read() as connection:
            key = _chosen(accounts.keys(connection), words[0])
        return (_revoke if action == "revoke" else _rotate)(server, key, output)
    finally:
        server.database.close()


def backup(arguments: argparse.Namespace, output: Output, target: Path) -> int:
    """Copy the data directory to one that does not exist yet."""
    server = _existing(arguments)
    try:
        files = data.backup(server, target)
    finally:
        server.database.close()
    if output.json:
        output.document({"backup": str(target), "files": files})
    else:
        output.line(f"Copied the database and {files} artifact files to {target}.")
    return Exit.DONE


def _list(server: Server, arguments: argparse.Namespace, output: Output) -> int:
    now = server.clock.wall()
    with server.database.read() as connection:
        keys = [
            key
            for key in accounts.keys(connection)
            if arguments.all or (key.valid(now) and not key.maker_id)
        ]
        rows = [_document(key, connection, now) for key in keys]
    if output.json:
        for row in rows:
            output.document(row)
        return Exit.DONE
    if rows:
        cells = [
            [
                row["id"][:_SHORT],
                _wording.plain(row["name"]),
                _wording.plain(row["rights"]),
                _day(row["created_at"]),
                _day(row["expires_at"]),
                row["state"],
            ]
            for row in rows
        ]
        output.table(_HEAD, cells)
    else:
        output.say("There is no key. Make one: launchhelm serve keys create")
    return Exit.DONE


def _create(server: Server, arguments: argparse.Namespace, output: Output) -> int:
    organization = data.choose_organization(server, arguments.organization)
    now = server.clock.wall()
    actions = caller.READING if arguments.read_only else frozenset({EVERY_ACTION})
    with server.database.write() as connection:
        project_id = ""
        if arguments.project:
            project_id = documents.project_named(
                connection, organization.id, arguments.project
            ) or documents.create_project(connection, organization.id, arguments.project, now)
        key_id, token = accounts.create_key(
            connection,
            name=arguments.name or arguments.project or organization.name,
            organization_id=organization.id,
            grants=[Grant(project_id, "", actions)],
            now=now,
        )
    made = data.Made(organization.id, organization.name, project_id, arguments.project, token)
    if output.json:
        output.document({"id": key_id, **asdict(made)})
    else:
        tell_made(made, output, output.line)
    return Exit.DONE


def _revoke(server: Server, key: Key, output: Output) -> int:
    with server.database.write() as connection:
        ended = accounts.revoke_key(connection, key.id, server.clock.wall())
    if output.json:
        output.document({"id": key.id, "ended": ended})
    elif not ended:
        output.line(f"{key.id} had ended already.")
    else:
        more = f", and {ended - 1} that it had made for participants" if ended > 1 else ""
        output.line(f"Ended {key.id} ({_wording.plain(key.name)}){more}.")
    return Exit.DONE


def _rotate(server: Server, key: Key, output: Output) -> int:
    if key.revoked_at is not None:
        raise Conflict(f"The key {key.id} was revoked.", remedy="Make another one.")
    with server.database.write() as connection:
        token = accounts.rotate_key(connection, key.id)
    if output.json:
        output.document({"id": key.id, "token": token})
    else:
        output.line(f"LAUNCHHELM_API_KEY={token}")
        output.say("The old one has ended; keys that it made for participants have not.")
    return Exit.DONE


def _existing(arguments: argparse.Namespace) -> Server:
    directory = Path(arguments.data)
    if not data.exists(directory):
        raise NotFound(
            f"{directory} is no data directory of a server.",
            remedy="Name it with --data, or make it: launchhelm serve init",
        )
    return data.open_server(directory)


def _chosen(keys: Sequence[Key], wanted: str) -> Key:
    found = [key for key in keys if key.id.startswith(wanted.lower())]
    if len(found) != 1:
        if not found:
            raise NotFound(f"There is no key {wanted}.", remedy="See: launchhelm serve keys list")
        ids = ", ".join(key.id for key in found)
        raise Conflict(f"Several keys begin with {wanted}: {ids}.")
    return found[0]


def _document(key: Key, connection: Any, now: float) -> dict[str, Any]:
    organization = accounts.organization(connection, key.organization_id)
    return {
        "id": key.id,
        "name": key.name,
        "organization": organization.name if organization else key.organization_id,
        "rights": "; ".join(_rights(grant, connection) for grant in key.grants),
        "participant_id": key.participant_id,
        "created_at": key.created_at,
        "expires_at": key.expires_at,
        "revoked_at": key.revoked_at,
        "state": _state(key, now),
    }


def _rights(grant: Grant, connection: Any) -> str:
    if EVERY_ACTION in grant.actions:
        what = "all"
    elif grant.actions <= caller.READING:
        what = "read"
    else:
        what = f"{len(grant.actions)} actions"
    if grant.run_id:
        return f"{what} in run {grant.run_id}"
    if not grant.project_id:
        return f"{what} in every project"
    project = documents.get(connection, grant.project_id)
    name = project["spec"].get("name") if project else grant.project_id
    return f"{what} in project {name}"


def _state(key: Key, now: float) -> str:
    if key.revoked_at is not None:
        return "revoked"
    return "valid" if key.valid(now) else "expired"


def _day(seconds: float | None) -> str:
    return "-" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")
