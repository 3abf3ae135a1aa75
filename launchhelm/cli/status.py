"""`launchhelm status`: what of which run is on which server; reads files only."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any, Final

from launchhelm import _wording
from launchhelm.cli._exit import Exit
from launchhelm.cli._sync_report import unreadable_of
from launchhelm.cli.output import Output
from launchhelm.cli.sync import roots_of

if TYPE_CHECKING:
    from syncer.discover import Discovery, Place
    from syncer.state import Aside
    from syncer.status import Remembered

DESCRIPTION = """Say for each run and server how many records wait, when they were last sent, when
commands were last asked for, who does that, and what stands in the way. Needs no network."""

_VALUES: Final = 10
"""Values set aside that are shown one by one; `--json` has up to 1,000."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare what `status` takes."""
    parser.add_argument(
        "paths", nargs="*", metavar="PATH", help="roots, folders of runs, or runs; also a run's id"
    )
    parser.add_argument("--server", metavar="URL", help="what concerns this server only")


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Print one row per run and server."""
    from syncer.discover import Discovery

    discovery = Discovery(roots_of(arguments))
    rows = [row for place in discovery.look() for row in _rows(place, arguments.server)]
    if output.json:
        for row in rows:
            output.document(row)
    elif rows:
        _print(rows, output)
    unreadable = unreadable_of(discovery)
    for path, why in unreadable.items():
        output.say(f"cannot be read: {path}: {_wording.plain(why)}")
    if not rows and not unreadable:
        output.say(f"No runs in {', '.join(map(str, discovery.roots))}.")
        return Exit.NO_SUCH_RUN
    return Exit.IN_PART if unreadable else Exit.DONE


def page(discovery: Discovery) -> dict[str, Any]:
    """Return the same for a page: the servers, and a row per run and server."""
    rows = [row for place in discovery.look() for row in _rows(place, None)]
    servers: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row["server"] is not None:
            known = servers.setdefault(row["server"], {"origin": row["server"], "syncer": ""})
            known["syncer"] = known["syncer"] or _wording.plain(row["holder"])
    now = time.time()
    return {
        "servers": [{**each, "alive": bool(each["syncer"])} for each in servers.values()],
        "runs": [
            {
                "id": row["id"],
                "name": _wording.plain(row["name"]),
                "server": row["server"] or "",
                "state": row["state"],
                "behind_text": _pending(row) or _ago(row["synced_at"], now),
                "commands_text": _wording.plain(row["commands_why"])
                or f"asked for {_ago(row['commands_asked_at'], now)}",
                "problem": _wording.plain(row["why"]),
                "remedy": "launchhelm sync" if row["why"] or row["state"] != "synced" else "",
            }
            for row in rows
        ],
        "unreadable": [
            {"path": _wording.plain(str(path)), "reason": _wording.plain(why)}
            for path, why in unreadable_of(discovery).items()
        ],
    }


def _rows(place: Place, url: str | None) -> list[dict[str, Any]]:
    """Describe a run on each server that it was sent to, or could not be sent to."""
    from syncer import status

    wanted = url.rstrip("/") if url is not None else None
    rows = [
        _document(place, known)
        for known in status.remembered(place.directory, place.run_id)
        if wanted in (None, known.server)
    ]
    for trouble in status.troubles(place.directory, place.run_id):
        fits = [
            row
            for row in rows
            if row["server"] == trouble.server and trouble.organization in ("", row["organization"])
        ]
        for row in fits:
            if trouble.at > (row["synced_at"] or 0.0) and row["state"] != "skipped":
                row["why"] = trouble.why
        if not fits and wanted in (None, trouble.server):
            named = {"server": trouble.server, "organization": trouble.organization or None}
            rows.append({**_document(place, None), **named, "why": trouble.why})
    return rows or [_document(place, None)]


def _document(place: Place, known: Remembered | None) -> dict[str, Any]:
    from syncer import status

    document: dict[str, Any] = {
        "id": place.run_id,
        "name": place.name,
        "directory": str(place.directory),
        "server": None,
        "organization": None,
        "pending": status.pending_count(place.directory, known),
        "points": 0,
        "set_aside": 0,
        "values": [],
        "synced_at": None,
        "state": "never synced",
        "why": "",
        "holder": "",
        "commands_asked_at": None,
        "commands_why": "the run is on no server",
    }
    if known is None:
        return document
    holder = status.holder(known.directory)
    commands = status.commands_of(place.directory, known, holder)
    state = "synced"
    if document["pending"]:
        state = "partly synced" if status.is_partial(known) else "pending"
    if known.verdict:
        state = "skipped"
    return {
        **document,
        "server": known.server,
        "organization": known.organization,
        "points": known.state.points,
        "set_aside": known.state.aside_count,
        "values": [_value(aside) for aside in known.state.aside],
        "synced_at": status.confirmed_at(known) or None,
        "state": state,
        "why": known.verdict or known.doubt or known.state.error,
        "holder": holder.text if holder is not None else "",
        "commands_asked_at": commands.asked_at,
        "commands_why": commands.why,
    }


def _value(aside: Aside) -> dict[str, Any]:
    """Describe a value that the server does not take."""
    from syncer.naming import StreamKey

    key = StreamKey.parse(aside.key)
    return {
        "name": key.name,
        "writer": str(key.writer),
        "record": aside.seq,
        "size": aside.size,
        "why": aside.why,
    }


def _pending(row: dict[str, Any]) -> str:
    """Say how many records wait: of a run of which parts were sent, they are not counted apart."""
    at_most = "up to " if row["state"] == "partly synced" else ""
    return f"{at_most}{row['pending']:,}" if row["pending"] else ""


def _ago(at: float | None, now: float) -> str:
    return f"{_wording.duration(now - at)} ago" if at else "never"


def _print(rows: list[dict[str, Any]], output: Output) -> None:
    from syncer import status

    now = time.time()
    cells = [
        [
            _wording.plain(row["name"]),
            row["state"],
            _pending(row),
            _ago(row["synced_at"], now),
            _ago(row["commands_asked_at"], now),
            _wording.plain(row["server"] or "-"),
            _wording.plain(row["holder"]) or "-",
        ]
        for row in rows
    ]
    head = ["RUN", "STATE", "PENDING", "LAST SYNCED", "COMMANDS ASKED", "SERVER", "SYNCER"]
    output.table(head, cells, right=("PENDING",))
    for row in rows:
        if row["why"]:
            output.line(f"{_wording.plain(row['name'])}: {_wording.plain(row['why'])}")
        if row["commands_why"] not in ("", status.ENDED, row["why"]) and row["organization"]:
            why = _wording.plain(row["commands_why"])
            output.line(f"{_wording.plain(row['name'])}: commands: {why}")
        for value in row["values"][:_VALUES]:
            said = f"{value['name']!r}, record {value['record']} of {value['writer']}"
            why = f"{value['size']:,} bytes; {value['why']}"
            output.line(f"{_wording.plain(row['name'])}: set aside {_wording.plain(said)}: {why}")
        more = row["set_aside"] - _VALUES
        if more > 0:
            output.line(f"{_wording.plain(row['name'])}: {more:,} more values are set aside")
