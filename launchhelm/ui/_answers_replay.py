"""Answers about the ledger of another run: what of it this one would be given, and giving it.

The plan is made again before anything is written, so a command is given as the ledger has it and
not as a browser's numbers would.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from launchhelm import _wording, views
from launchhelm._wording import plain
from launchhelm.records import Command
from launchhelm.ui._answers_commands import (
    ID,
    bad,
    guard_document,
    require_confirmed,
    require_rights,
)
from launchhelm.ui._answers_runs import rights
from launchhelm.ui.board import NOTHING_SENT, Board
from launchhelm.ui.request import Problem
from launchhelm.views.guards import Guard, guards
from launchhelm.views.plan import command_for, plan_of, refusal_of
from launchhelm.views.replay import (
    MAX_STEP,
    Choice,
    Entry,
    NotALedger,
    Told,
    UnknownControls,
    replay_of,
    told_by,
    told_in,
)

Json = dict[str, Any]  # Any: JSON.

MAX_ROWS: Final = 500
MAX_GIVEN: Final = 50
"""So many commands are written by one request; the page sends a longer plan in parts."""

MAX_NAMES: Final = 100


@dataclass(frozen=True)
class _Planned:
    """An entry of the plan with the command that it becomes, None when it is left out."""

    entry: Entry
    command: Command | None


def ledger(board: Board, body: Json) -> list[Told]:
    """Return the commands that are to be replayed: a run's of this board, or those of a text.

    Opens the other run and leaves it, since a thread holds one run at a time.

    Raises:
        Problem: 404, 409 or 422.
    """
    if board.no_replay():
        raise Problem(409, "no_replay", board.no_replay(), kept=NOTHING_SENT)
    other, text = body.get("run"), body.get("ledger")
    if isinstance(other, str) and text is None:
        with board.open(other) as run:
            return told_by(run.view)
    if isinstance(text, str) and other is None:
        try:
            return told_in(text)
        except NotALedger as error:
            raise bad(
                {"ledger": f"{error}; export one in a dashboard, or by `control OTHER log --json`."}
            ) from None
    raise bad({"run": "the id of a run, or ledger the text of an exported one"})


def plan(board: Board, view: views.RunView, told: Iterable[Told], body: Json) -> Json:
    """Say which commands would be given, at which steps, and what is left out. Writes nothing."""
    refusal = refusal_of(view)
    planned = [] if refusal else _planned(view, told, body)
    wanted = [each.command for each in planned if each.command is not None]
    return {
        "refusal": refusal,
        "rows": [_row(each) for each in planned],
        "wanted": len(wanted),
        "left_out": len(planned) - len(wanted),
        "guards": [guard_document(each) for each in _guards(view, wanted)],
        "rights": rights(board, view),
        "at_once": MAX_GIVEN,
    }


def give(board: Board, view: views.RunView, told: Iterable[Told], body: Json) -> Json:
    """Put commands of the plan into the inbox, each once for its id; say of each what became of it.

    Raises:
        Problem: 403, 409 or 422; nothing was written.
    """
    require_rights(board, view)
    ids = _ids(body)
    known = {source: view.command(board.known_as(id_)) for source, id_ in ids.items()}
    refusal = refusal_of(view)
    if refusal and None in known.values():
        raise Problem(409, "refused", refusal, kept=NOTHING_SENT)
    planned = {}
    for each in _planned(view, told, body):
        # A source that is listed twice has a second entry, which is left out.
        if each.entry.source not in planned or each.command is not None:
            planned[each.entry.source] = each
    answers: dict[str, Json] = {}
    waiting: list[tuple[str, Command]] = []
    for source, id_ in ids.items():
        there, entry = known[source], planned.get(source)
        if there is not None:
            # Sent again, after an answer that was lost.
            is_same = there.replays == source
            answers[source] = _given(there.id, "" if is_same else "that id is another command's")
        elif entry is None:
            answers[source] = _given(id_, "the ledger has no such command")
        elif entry.command is None:
            answers[source] = _given(id_, plain(entry.entry.why))
        else:
            waiting.append((source, replace(entry.command, id=id_)))
    require_confirmed(_guards(view, [each for _, each in waiting]), body.get("confirmed"))
    for source, command in waiting:
        try:
            answers[source] = _given(board.send(view, command), "")
        except Problem as problem:
            answers[source] = _given(command.id, problem.document["happened"])
    rows = [{"replays": source, **answers[source]} for source in ids]
    return {"rows": rows, "written": sum(row["written"] for row in rows)}


def _given(id_: str, why: str) -> Json:
    return {"id": id_, "written": not why, "why": why}


def _planned(view: views.RunView, told: Iterable[Told], body: Json) -> list[_Planned]:
    try:
        entries = replay_of(view, told, _choice(body))
    except UnknownControls as error:
        raise bad({error.option: plain(f"{error}. {error.known}")}) from None
    if len(entries) > MAX_ROWS:
        said = f"these are {len(entries):,} commands, and {MAX_ROWS} are shown; name some controls"
        raise bad({"only": said})
    reason = body.get("reason")
    return [_made(each, reason if isinstance(reason, str) else "") for each in entries]


def _made(entry: Entry, reason: str) -> _Planned:
    if entry.why:
        return _Planned(entry, None)
    try:
        command = command_for(
            entry.name,
            entry.payload,
            first_step=entry.step,
            reason=reason or entry.reason,
            replays=entry.source,
        )
    except ValueError as error:
        return _Planned(replace(entry, why=str(error)), None)
    return _Planned(entry, command)


def _choice(body: Json) -> Choice:
    problems = {}
    offset, scale = body.get("offset", 0), body.get("scale_steps", 1)
    if isinstance(offset, bool) or not isinstance(offset, int) or abs(offset) >= MAX_STEP:
        problems["offset"] = "a whole number of steps"
    is_number = isinstance(scale, int | float) and not isinstance(scale, bool)
    # A whole number may be larger than any float, and then nothing can be multiplied by it.
    if not is_number or not 0 < scale < MAX_STEP or not math.isfinite(scale):
        problems["scale_steps"] = "a number above 0"
    names = {}
    for field in ("only", "except"):
        names[field] = body.get(field, [])
        if not (
            isinstance(names[field], list)
            and len(names[field]) <= MAX_NAMES
            and all(isinstance(each, str) for each in names[field])
        ):
            problems[field] = f"a list of at most {MAX_NAMES} controls"
    if problems:
        raise bad(problems)
    return Choice(offset, float(scale), frozenset(names["only"]), frozenset(names["except"]))


def _ids(body: Json) -> dict[str, str]:
    ids = body.get("ids")
    if not isinstance(ids, dict) or not 1 <= len(ids) <= MAX_GIVEN:
        raise bad({"ids": f"an id for each of 1 to {MAX_GIVEN} commands"})
    for id_ in ids.values():
        if not isinstance(id_, str) or ID.fullmatch(id_) is None:
            raise bad({"ids": "8 to 128 letters, digits, - and _ each"})
    if len(set(ids.values())) != len(ids):
        raise bad({"ids": "each command has an id of its own"})
    return ids


def _guards(view: views.RunView, commands: Iterable[Command]) -> list[Guard]:
    """Return the reasons to confirm, each once."""
    found: dict[Guard, None] = {}
    for command in commands:
        found |= dict.fromkeys(guards(view, plan_of(view, command)))
    return list(found)


def _row(planned: _Planned) -> Json:
    entry = planned.entry
    return {
        "replays": entry.source,
        "name": plain(entry.name),
        "text": _wording.payload_text(entry.payload),
        "input": entry.payload,
        "step": entry.step,
        "why": plain(entry.why),
    }
