"""Answers about the processes of a run: the table, what is wrong with it, and the strip."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from launchhelm import _wording, views
from launchhelm._wording import plain
from launchhelm.store.cursor import Cursor
from launchhelm.ui.request import Request
from launchhelm.views.findings import findings, spread
from launchhelm.views.scene import scene_of
from launchhelm.views.strip import MEASURES, MISSING, SILENT, UNITS, Beat, strip

if TYPE_CHECKING:
    from launchhelm.ui.board import OpenRun

Json = dict[str, Any]  # Any: JSON.

COLUMNS = (
    *("rank", "host", "local_rank", "pid", "state", "step", "behind", "phase", "phase_s"),
    *("beat_s", "step_ms", "wait_ms", "lost", "end", "reason", "controls"),
)


def processes(view: views.RunView, watched_s: float) -> Json:
    """Return the processes table with its findings."""
    scene = scene_of(view)
    differs: dict[int, list[str]] = {}
    for name, by_rank in scene.diverged.items():
        values = list(by_rank.values())
        for rank, value in by_rank.items():
            if str(rank).isdigit() and values.count(value) * 2 <= len(values):
                said = f"{plain(name)} {_wording.values_text(value)}"
                differs.setdefault(int(rank), []).append(said)
    rows = [_row(row, differs.get(row.rank)) for row in view.participants]
    rows += [_missing(rank) for rank in view.missing]
    rows.sort(key=lambda row: row[0])
    reported = {
        "phase_s": any(row.phase_s is not None for row in view.participants),
        "step_ms": any(row.step_time_ms is not None for row in view.participants),
        "wait_ms": any(row.exchange_wait_ms is not None for row in view.participants),
    }
    return {
        "attempt": view.attempt,
        "world_size": view.world_size,
        "watched_s": watched_s,
        "by_host_clock": view.state.by_host_clock,
        "awaited_s": views.AWAITED_S,
        "late_s": views.LATE_S,
        "silent_s": views.SILENT_S,
        "front": view.step,
        "pace_s": scene.pace_s,
        "clocks_s": spread(scene.clocks),
        "state_text": view.state.text,
        "marks": dict(_wording.RANK_MARKS),
        "not_reported": [name for name, there in reported.items() if not there],
        "findings": [
            {
                "rule": each.rule,
                "weight": each.weight,
                "mark": each.mark,
                "ranks": list(each.ranks),
                "text": each.text,
                "evidence": dict(each.evidence),
                "look_at": list(each.look_at),
            }
            for each in findings(scene)
        ],
        "columns": list(COLUMNS),
        "rows": rows,
    }


def _row(row: views.ParticipantView, differs: list[str] | None) -> list[Any]:
    return [
        row.rank,
        plain(row.host),
        row.local_rank,
        row.pid,
        row.state,
        row.step,
        row.lag,
        plain(row.phase),
        row.phase_s,
        round(row.age.seconds, 1),
        row.step_time_ms,
        row.exchange_wait_ms,
        row.lost,
        row.end,
        plain(row.reason),
        ", ".join(differs) if differs else "same",
    ]


def _missing(rank: int) -> list[Any]:
    return [rank, "", None, None, "missing", *[None] * 2, "", *[None] * 4, 0, "", "", ""]


# The strip ----------------------------------------------------------------------------------

MAX_COLUMNS = 240
MAX_STRIP_ROWS = 4096


class Beats:
    """The heartbeats of all ranks of the newest attempt, read on from where the last look ended."""

    def __init__(self) -> None:
        self._cursor = Cursor()
        self.of: dict[int, list[Beat]] = {}
        self._attempt = 0

    def read(self, view: views.RunView) -> None:
        """Take in what is new."""
        if view.attempt != self._attempt:
            self.of, self._attempt = {}, view.attempt
        reader = view.reader(self._cursor, kinds=("hb",))
        while records := reader.poll(limit=10_000):
            for record in records:
                if record.writer.attempt != self._attempt or record.step is None:
                    continue
                body = record.body
                beat = Beat(
                    record.step,
                    _float(body.get("mono")),
                    _float(body.get("exchange_wait_ms")),
                    _float(body.get("step_time_ms")),
                )
                self.of.setdefault(record.writer.rank, []).append(beat)
        self._cursor = reader.cursor


def skew(run: OpenRun, request: Request) -> Json:
    """Return the strip of one measure."""
    view, beats = run.view, run.beats
    beats.read(view)
    waits = any(each.wait_ms is not None for row in beats.of.values() for each in row[-1:])
    measure = request.choice("measure", MEASURES, "late" if waits else "step")
    low, high = request.number("from"), request.number("to")
    made = strip(
        beats.of,
        measure,
        columns=request.integer("columns", MAX_COLUMNS, 1, MAX_COLUMNS),
        rows=request.integer("rows", MAX_STRIP_ROWS, 1, MAX_STRIP_ROWS),
        low=None if low is None else int(low),
        high=None if high is None else int(high),
        silent=[row.rank for row in view.participants if row.state == "silent"],
        ranks=sorted({*(row.rank for row in view.participants), *view.missing}),
    )
    return {
        "measure": measure,
        "measures": list(MEASURES),
        "unit": UNITS[measure],
        "from": made.low,
        "to": made.high,
        "columns": made.columns,
        "rows": made.rows,
        "order": made.order,
        "scale": {"min": 0, "max": made.scale, "missing": MISSING, "silent": SILENT},
        "cells": made.text(),
        "worst": [
            {"rank": rank, "from": first, "to": last, "value": value}
            for rank, first, last, value in made.worst
        ],
    }


def _float(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
