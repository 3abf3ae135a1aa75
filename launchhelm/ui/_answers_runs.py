"""Answers about the list of runs, and the header of one."""

from __future__ import annotations

import getpass
from collections import Counter
from typing import Any, Final

from launchhelm import _wording, views
from launchhelm._wording import plain
from launchhelm.errors import ConfigError
from launchhelm.ui import serve
from launchhelm.ui.board import Board
from launchhelm.ui.glances import shown_metric
from launchhelm.ui.request import MAX_BODY_BYTES, Problem, Request
from launchhelm.views import filter as run_filter
from launchhelm.views.around import around_of, diverged_of, pace_of
from launchhelm.views.scene import findings_of

Json = dict[str, Any]  # Any: JSON.

MAX_ROWS: Final = 200
FIRST_ROWS_S: Final = 0.7
"""A list is answered after this time with what has been read so far."""

GLANCES_S: Final = 0.1
"""What a list spends on what its rows say beyond summaries; the rest comes with later looks."""

_BAD: Final = ("behind", "late", "silent", "missing")
_SECRET_FREE: Final = ("group", "tags", "notes")


def info(board: Board, mode: str, version: str) -> Json:
    """Say what this server is and shows."""
    return {
        "version": version,
        "roots": [plain(name) for name in board.names],
        "user": getpass.getuser() if mode == "directory" else "",
        "read_only": board.read_only,
        "thresholds": {"late_s": views.LATE_S, "silent_s": views.SILENT_S},
        "limits": {
            "body": MAX_BODY_BYTES,
            "connections": serve.MAX_CONNECTIONS,
            "rows": MAX_ROWS,
        },
        "mode": mode,
    }


# The list -----------------------------------------------------------------------------------


def rows(board: Board, request: Request) -> Json:
    """Return rows of the runs page."""
    try:
        keep = run_filter.parse(request.text("q"))
    except ConfigError as error:
        raise Problem(422, "bad_filter", error.message) from None
    found, expected = board.look(FIRST_ROWS_S)
    board.glances.look(found, GLANCES_S)
    every = [_row(run, board) for run in found]
    fits = [row for row in every if keep(row)]
    sort = request.text("sort")
    if sort:
        fits = _sorted(fits, sort.lstrip("-"), reverse=sort.startswith("-"))
    after, limit = request.text("after"), request.integer("limit", MAX_ROWS, 1, MAX_ROWS)
    start = 0
    if after:
        start = next((at + 1 for at, row in enumerate(fits) if row["id"] == after), len(fits))
    shown = fits[start : start + limit]
    is_more = start + limit < len(fits)
    return {
        "runs": [{key: row[key] for key in row if not key.startswith("_")} for row in shown],
        "after": shown[-1]["id"] if is_more else "",
        "total": len(fits),
        "counts": dict(Counter(row["state"] for row in every)),
        "unknown": sum(row["unknown"] for row in every),
        "unreadable": [
            {"path": plain(str(path)), "reason": plain(why)} for path, why in board.problems.items()
        ],
        "scanned": len(found),
        "expected": expected,
    }


class _Row(dict[str, Any]):
    """A row as it is answered; a filter also sees configuration and newest values."""

    hidden: Json

    def get(self, key: Any, default: Any = None) -> Any:
        """Return a field of either."""
        return super().get(key, self.hidden.get(key, default))


def _row(run: views.RunSummary, board: Board) -> _Row:
    name, glance = shown_metric(run), board.glances.of(run)
    path, owner = board.place_of(run.directory)
    row = _Row(
        {
            "id": board.address_of(run.directory, run.run_id),
            "name": plain(run.name),
            "project": plain(run.project),
            "group": plain(run.group),
            "tags": [plain(tag) for tag in run.tags],
            "state": run.state.word,
            "state_text": run.state.text,
            "step": run.step,
            "ranks": run.world_size or run.ranks_seen,
            "ranks_bad": glance.not_well if glance.not_well is not None else _missing(run),
            "started_at": run.created_at,
            "age_s": max(0.0, board.clock.wall() - run.created_at) if run.created_at else None,
            "last": None if not name else {"name": plain(name), "value": run.metrics[name]},
            "trend": glance.trend,
            "pending": [{"name": "", "text": _wording.waiting_text(run.pending)}]
            if run.pending
            else [],
            "unknown": glance.unknown,
            "sync": board.synced.get(run.run_id),
            "owner": plain(owner),
            "path": plain(path),
            "attempt": run.attempt,
        }
    )
    row.hidden = {
        "host": run.host,
        "created_at": run.created_at,
        "config": run.config,
        "metrics": run.metrics,
    }
    return row


def _missing(run: views.RunSummary) -> int:
    missing = max(0, (run.world_size or 0) - run.ranks_seen)
    return missing if run.state.word == "running" else 0


def _sorted(found: list[_Row], key: str, *, reverse: bool) -> list[_Row]:
    """Sort stably by a column; rows that do not know it come last either way."""

    def value(row: _Row) -> Any:
        if key == "last":
            return row["last"]["value"] if row["last"] else None
        return row.get(key)

    def is_known(row: _Row) -> bool:
        return value(row) not in (None, "", [])

    known = [row for row in found if is_known(row)]
    numbers = all(isinstance(value(row), int | float) for row in known)
    known.sort(key=lambda row: value(row) if numbers else str(value(row)), reverse=reverse)
    return known + [row for row in found if not is_known(row)]


# One run ------------------------------------------------------------------------------------


def run(board: Board, view: views.RunView) -> Json:
    """Return the header of a run and what the About page shows."""
    manifest = view.manifest
    commands = view.commands
    unknown = [each for each in commands if each.state == "outcome_unknown"]
    bad = sum(row.state in _BAD for row in view.participants) + len(view.missing)
    extra = manifest.extra
    path, owner = board.place_of(view.directory)
    return {
        "id": board.address_of(view.directory, view.run_id),
        "name": plain(view.name),
        "project": plain(view.project),
        "group": plain(view.group),
        "tags": [plain(tag) for tag in view.tags],
        "notes": view.notes,
        "config": view.config,
        "summary": view.summary,
        "git": extra.get("git"),
        "host": plain(manifest.host),
        "python": extra.get("python"),
        "argv": extra.get("argv"),
        "created_at": manifest.created_at,
        "path": plain(path),
        "owner": plain(owner),
        "state": view.state.word,
        "state_text": view.state.text,
        "by_host_clock": view.state.by_host_clock,
        "step": view.step,
        "step_time_s": pace_of(view),
        "world_size": view.world_size,
        "attempt": view.attempt,
        "attempts": _attempts(view),
        "headline": _headline(view, unknown),
        "banners": _banners(board, view),
        "rights": rights(board, view),
        "losses": _losses(view),
        "tabs": {
            "processes": bad,
            "controls_unknown": len(unknown),
            "controls_waiting": sum(each.is_pending for each in commands),
        },
    }


def rights(board: Board, view: views.RunView) -> Json:
    """Say whether this user may control the run from here, and why not."""
    reason = board.refusal(view)
    return {"can_control": not reason, "reason": reason}


def _attempts(view: views.RunView) -> list[Json]:
    found: list[Json] = []
    front: int | None = None
    spans = view.spans()
    for attempt in view.attempts:
        first = spans[attempt.number].first if attempt.number in spans else None
        last = attempt.last_step
        found.append(
            {
                "number": attempt.number,
                "started_at": attempt.started_at,
                "world_size": attempt.world_size,
                "resumed_from": attempt.resumed_from,
                "first_step": first,
                "last_step": last,
                "host": plain(attempt.host),
                "end": attempt.end,
                "reason": plain(attempt.reason),
                "text": _wording.joins_text(first, front),
            }
        )
        front = max((step for step in (front, last) if step is not None), default=None)
    return found


def _headline(view: views.RunView, unknown: list[views.CommandView]) -> list[Json]:
    said = [
        {
            "mark": finding.mark,
            "text": finding.text,
            "tab": "processes",
            "rule": finding.rule,
            "weight": finding.weight,
        }
        for finding in findings_of(view)
    ]
    for command in unknown:
        sentence = _wording.outcome_text(command, around_of(view, command=command))
        what = f"{plain(command.name)} {_wording.payload_text(command.payload)}".rstrip()
        said.append({"mark": sentence.mark, "text": f"{what}: {sentence}", "tab": "controls"})
    return said


def _banners(board: Board, view: views.RunView) -> list[Json]:
    said = [("bad", each, "") for each in view.losses.texts()]
    said += [("bad", plain(each), "") for each in view.problems]
    said += [("bad", _wording.diverged_text(*each), "") for each in diverged_of(view).items()]
    if view.state.word == "no news":
        remedy = "Either " + ", or ".join(_wording.NO_NEWS_EXPLANATIONS) + "."
        said.append(("unknown", view.state.text, remedy))
    reason = rights(board, view)["reason"]
    if reason:
        said.append(("info", reason, "Looking works all the same."))
    return [{"level": level, "text": text, "remedy": remedy} for level, text, remedy in said]


def _losses(view: views.RunView) -> Json:
    losses = view.losses
    return {
        "records": losses.records,
        "storage_errors": losses.storage_errors,
        "faults": dict(losses.faults),
        "gaps": sum(gap.last - gap.first + 1 for gap in losses.gaps),
    }
