"""Answers about the processes of a run: the table, what is wrong with it, and the strip."""

from __future__ import annotations

from typing import Any

from launchhelm import _wording, views
from launchhelm._wording import plain
from launchhelm.views.around import diverged_of, pace_of
from launchhelm.views.findings import Finding, Scene, findings, spread

Json = dict[str, Any]  # Any: JSON.

COLUMNS = (
    *("rank", "host", "local_rank", "pid", "state", "step", "behind", "phase", "phase_s"),
    *("beat_s", "step_ms", "wait_ms", "lost", "end", "reason", "controls"),
)


def scene_of(view: views.RunView) -> Scene:
    """Gather what the rules look at."""
    now = view.observer.clock.wall()
    front = view.observer.observe(("front", view.directory), (view.attempt, view.step))
    clocks: dict[str, float] = {}
    for row in view.participants:
        # Whoever has just written may only be ahead of us by what its clock is.
        if row.last_at is not None and row.age.seconds < views.BEAT_S:
            ahead = row.last_at - now
            clocks[row.host] = max(ahead, clocks.get(row.host, ahead))
    return Scene(
        rows=view.participants,
        missing=view.missing,
        started_s=max(0.0, now - view.started_at),
        stuck_s=front.seconds,
        pace_s=pace_of(view),
        diverged=diverged_of(view),
        clocks=clocks,
        is_over=view.state.is_over,
    )


def findings_of(view: views.RunView) -> list[Finding]:
    """Return what is wrong with the processes of a run."""
    return findings(scene_of(view))


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
