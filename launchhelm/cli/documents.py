"""The JSON that the command line prints. Fields are documented in docs/cli.md and only ever added.

Times ending in `_at` are seconds since the epoch by the writer's clock; durations end in `_s`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from launchhelm import _wording, views
from launchhelm._wording import Around, outcome_text
from launchhelm.controls import fields, preview
from launchhelm.records import Command, Record

Document = dict[str, Any]  # Any: JSON.


def run_document(run: views.RunSummary) -> Document:
    """One row of `ls`."""
    return {
        "id": run.run_id,
        "name": run.name,
        "project": run.project,
        "state": run.state.word,
        "text": run.state.text,
        "step": run.step,
        "world_size": run.world_size,
        "ranks_seen": run.ranks_seen,
        "attempt": run.attempt,
        "beat_s": round(run.age.seconds, 3) if run.age is not None else None,
        "by_host_clock": run.state.by_host_clock,
        "waiting": run.waiting,
        "pending": run.pending,
        "created_at": run.created_at,
        "host": run.host,
        "group": run.group,
        "tags": list(run.tags),
        "config": run.config,
        "metrics": run.metrics,
        "problem": run.problem,
        "directory": str(run.directory),
    }


def header_document(run: views.RunView) -> Document:
    """Identity and state of one run."""
    manifest = run.manifest
    return {
        "id": manifest.run_id,
        "name": run.name,
        "project": manifest.project,
        "state": run.state.word,
        "text": run.state.text,
        "by_host_clock": run.state.by_host_clock,
        "step": run.step,
        "world_size": run.world_size,
        "attempt": run.attempt,
        "missing": run.missing,
        "created_at": manifest.created_at,
        "created_by": manifest.created_by,
        "host": manifest.host,
        "directory": str(run.directory),
    }


def process_document(process: views.ParticipantView) -> Document:
    """One row of the processes table."""
    return {
        "rank": process.rank,
        "host": process.host,
        "local_rank": process.local_rank,
        "pid": process.pid,
        "world_size": process.world_size,
        "attempt": process.attempt,
        "state": process.state,
        "step": process.step,
        "behind": process.lag,
        "phase": process.phase,
        "phase_s": process.phase_s,
        "beat_s": round(process.age.seconds, 3),
        "by_host_clock": process.age.by_host_clock,
        "step_time_ms": process.step_time_ms,
        "exchange_wait_ms": process.exchange_wait_ms,
        "lost": process.lost,
        "storage_errors": process.storage_errors,
        "faults": dict(process.faults),
        "end": process.end,
        "reason": process.reason,
    }


def attempt_documents(run: views.RunView) -> list[Document]:
    """Each launch of a run, and how its steps join those of the launches before it."""
    spans, front = run.spans(), None
    found = []
    for attempt in run.attempts:
        span = spans.get(attempt.number, views.Span())
        last = span.last if attempt.last_step is None else attempt.last_step
        found.append(
            {
                "attempt": attempt.number,
                "restart_count": attempt.restart_count,
                "started_at": attempt.started_at,
                "world_size": attempt.world_size,
                "ranks_seen": attempt.ranks_seen,
                "host": attempt.host,
                "launch": dict(attempt.launch),
                "resumed_from": attempt.resumed_from,
                "first_step": span.first,
                "last_step": last,
                "joins": _wording.joins_text(span.first, front),
                "end": attempt.end,
                "reason": attempt.reason,
            }
        )
        front = max((step for step in (front, last) if step is not None), default=None)
    return found


def metric_document(name: str, run: views.RunView) -> Document:
    """One metric with its newest value."""
    described = run.metric(name) or {}
    # The coordinator logs nearly everything; looking into every rank's files costs far more.
    point = run.latest(name, rank=0) or run.latest(name)
    return {
        "name": name,
        "kind": described.get("kind", ""),
        "unit": described.get("unit", ""),
        "axes": described.get("axes", []),
        "value": point.value if point is not None else None,
        "step": point.step if point is not None else None,
        "rank": point.rank if point is not None else None,
        "attempt": point.attempt if point is not None else None,
        "at": point.at if point is not None else None,
    }


def losses_document(run: views.RunView) -> Document:
    """What is missing, and what went wrong with ourselves."""
    losses = run.losses
    return {
        "records": losses.records,
        "storage_errors": losses.storage_errors,
        "faults": dict(losses.faults),
        "gaps": [
            {"writer": str(gap.writer), "first": gap.first, "last": gap.last, "why": gap.why}
            for gap in losses.gaps
        ],
    }


def control_document(
    capability: fields.Capability, values: Mapping[str, Any], frozen: Document | None = None
) -> Document:
    """One control: what it takes, its value now, and whether it is `frozen`."""
    name = str(capability.get("name", ""))
    return {
        "name": name,
        "value": values.get(name),
        "takes": fields.fields_text(capability),
        "input_schema": capability.get("input_schema"),
        "safe_points": list(capability.get("safe_points") or ()),
        "provider": capability.get("provider", ""),
        "frozen": frozen,
    }


def freeze_document(view: views.RunView) -> Document | None:
    """Since when no command acts, by whose order and why; None while they act."""
    held = views.freeze_of(view.commands)
    if held is None:
        return None
    return {"text": held.text, "by": held.by, "reason": held.reason, "since": held.since}


def command_document(command: views.CommandView, around: Around) -> Document:
    """One entry of the ledger."""
    outcome = command.outcome
    known: Mapping[str, Any] = outcome.body() if outcome is not None else {}
    return {
        "id": command.id,
        "name": command.name,
        "payload": command.payload,
        "reason": command.reason,
        "issued_by": command.issued_by,
        "owner": command.owner,
        "issued_at": command.issued_at,
        "first_step": command.first_step,
        "last_step": command.last_step,
        "state": command.state,
        "code": known.get("code", ""),
        "message": known.get("message", ""),
        "text": str(outcome_text(command, around)),
        "applied_at": known.get("applied_at", {}),
        "applied_on": known.get("applied_on"),
        "of": known.get("of"),
        "rolled_back": known.get("rolled_back"),
        "changes": known.get("changes", {}),
        "failures": known.get("failures", []),
        "result": known.get("result"),
        "effect": command.effect,
        "reverts": command.reverts,
        "replays": command.replays,
        "replay": None,
        "states": [
            {"state": each.state, "at": each.at, "step": each.step, "attempt": each.attempt}
            for each in command.states
        ],
    }


def check_document(
    command: Command, change: preview.Change | None, when: preview.When, warnings: Sequence[str]
) -> Document:
    """The answer of `control --check`."""
    changes = {} if change is None else {change.name: {"old": change.old, "new": change.new}}
    return {
        "sent": False,
        "state": "checked",
        "name": command.name,
        "payload": command.payload,
        "changes": changes,
        "step": when.step,
        "in_s": when.in_s,
        "processes": when.processes,
        "warnings": list(warnings),
    }


def record_document(record: Record) -> Document:
    """One line of `tail`: a record as it was written."""
    return {
        "writer": str(record.writer),
        "rank": record.writer.rank,
        "attempt": record.writer.attempt,
        "seq": record.seq,
        "kind": record.kind,
        "at": record.at,
        "step": record.step,
        "axes": dict(record.axes),
        "body": dict(record.body),
    }
