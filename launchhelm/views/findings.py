"""What is wrong with the processes of a run, which of them to look at, and why. Pure.

Every finding rests on what processes wrote themselves. None names a guilty GPU: we see processes,
and of those that wait for each other the one that does not wait is what the others wait for.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

from launchhelm import _wording
from launchhelm._wording import duration, plain, ranks_text, step_text
from launchhelm.views.participants import ParticipantView, is_waiting

STARTING_S: Final = 120.0
STUCK_S: Final = 30.0
STUCK_PACES: Final = 5.0
"""Nobody advanced: for this many steps' time, and at least this long."""

SLOW: Final = 1.15
CLOCK_S: Final = 5.0
_FEW: Final = 0.25
_SHOWN: Final = 3
_GONE: Final = frozenset({"ended", "silent", "missing"})


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong.

    Args:
        rule: A word of `RULES`.
        weight: bad, unknown or info.
        ranks: Whom it is about.
        text: What, and the evidence, in words.
        evidence: The numbers behind it.
        look_at: What to look at next, one line each.
    """

    rule: str
    weight: str
    ranks: tuple[int, ...]
    text: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    look_at: tuple[str, ...] = ()

    @property
    def mark(self) -> str:
        """The shape beside it."""
        return _MARKS.get(self.rule, "▼")


RULES: Final = (
    *("missing", "left", "host_silent", "silent", "late", "laggard", "exchange", "same_place"),
    *("slow", "slow_host", "diverged", "losing", "clock"),
)
_MARKS: Final = {
    "missing": "?",
    "left": "■",
    "host_silent": "✕",
    "silent": "✕",
    "late": "◐",
    "diverged": "?",
    "clock": "◐",
}


@dataclass(frozen=True, slots=True)
class Scene:
    """The processes of one attempt, and what is known around them.

    Args:
        missing: Ranks that the world size promises and that were never seen.
        started_s: How long ago the attempt began.
        stuck_s: How long the front has not moved.
        pace_s: Seconds per step; None when not reported.
        diverged: {control: {rank: value}} where ranks showed different values.
        clocks: Per host, seconds by which its clock was ahead of ours at its newest record.
        is_over: The run has ended.
    """

    rows: Sequence[ParticipantView]
    missing: Sequence[int] = ()
    started_s: float = 0.0
    stuck_s: float = 0.0
    pace_s: float | None = None
    diverged: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    clocks: Mapping[str, float] = field(default_factory=dict)
    is_over: bool = False

    @property
    def alive(self) -> list[ParticipantView]:
        """The processes from which something is heard."""
        return [row for row in self.rows if row.state not in _GONE]

    @property
    def is_stuck(self) -> bool:
        """Whether nobody has advanced for too long."""
        return self.stuck_s >= max(STUCK_S, STUCK_PACES * (self.pace_s or 0.0))


def findings(scene: Scene) -> list[Finding]:
    """Return everything that is wrong, the headline first."""
    found: list[Finding] = []
    if not scene.is_over:
        for rule in (_missing, _left, _silent, _late, _held_up, _slow):
            found += rule(scene)
    for each in (_diverged, _losing, _clock):
        found += each(scene)
    return found


def _missing(scene: Scene) -> list[Finding]:
    if not scene.missing or scene.started_s < STARTING_S:
        return []
    ranks = tuple(scene.missing)
    text = f"{_capital(ranks_text(ranks))} never seen, {duration(scene.started_s)} after the start."
    look = ("the launcher's output on the hosts of these ranks", "whether they see this directory")
    return [Finding("missing", "bad", ranks, text, {"started_s": scene.started_s}, look)]


def _left(scene: Scene) -> list[Finding]:
    ended = [row for row in scene.rows if row.end]
    if not ended or len(ended) == len(scene.rows):
        return []
    said = "; ".join(
        f"{_one(row)} ended{_ended_at(row)} ({plain(row.reason or row.end)})"
        for row in ended[:_SHOWN]
    )
    more = _more(len(ended))
    text = f"{_capital(said)}{more}. The others will hang at the next collective."
    ranks = tuple(row.rank for row in ended)
    look = tuple(f"the console of rank {rank}" for rank in ranks[:_SHOWN])
    return [Finding("left", "bad", ranks, text, {}, look)]


def _silent(scene: Scene) -> list[Finding]:
    silent = [row for row in scene.rows if row.state == "silent"]
    if not silent or len(silent) == len(scene.rows):
        return []
    by_host: dict[str, list[ParticipantView]] = defaultdict(list)
    for row in scene.rows:
        by_host[row.host].append(row)
    found: list[Finding] = []
    whole: set[int] = set()
    for host, rows in by_host.items():
        if len(rows) > 1 and len(by_host) > 1 and all(row.state == "silent" for row in rows):
            since = duration(min(row.age.seconds for row in rows))
            text = f"All {len(rows):,} ranks of {plain(host)} are silent for {since}."
            ranks = tuple(row.rank for row in rows)
            look = (f"the node {plain(host)}", f"the file system of the run on {plain(host)}")
            found.append(Finding("host_silent", "bad", ranks, text, {"host": host}, look))
            whole.update(ranks)
    rest = [row for row in silent if row.rank not in whole]
    if rest:
        ranks = tuple(row.rank for row in rest)
        text = (
            f"{_capital(ranks_text(ranks))} silent. {_unheard(rest)} The process is gone, stopped, "
            f"or cannot write.{_who_waits(scene, rest)}"
        )
        found.append(Finding("silent", "bad", ranks, text, {}, _dumps(rest)))
    return found


def _late(scene: Scene) -> list[Finding]:
    """Who is not heard of, long before it counts as silent, and who waits for it."""
    late = [row for row in scene.rows if row.state == "late"]
    if not late or len(late) == len(scene.alive):
        return []
    ranks = tuple(row.rank for row in late)
    text = f"{_unheard(late)}{_who_waits(scene, late)}"
    return [Finding("late", "unknown", ranks, text, {}, _dumps(late))]


def _held_up(scene: Scene) -> list[Finding]:
    """Who holds the run up, when nobody advances and all are heard of."""
    alive = scene.alive
    if any(row.state in ("late", "silent") for row in scene.rows):
        return []  # What it is at is not known, and it is named already.
    known = [row for row in alive if row.step is not None]
    if not scene.is_stuck or not known:
        return []
    front = max(row.step for row in known if row.step is not None)
    below = [row for row in known if row.step is not None and row.step < front]
    evidence = {"front": front, "stuck_s": scene.stuck_s}
    if below and len(below) <= max(1, _FEW * len(alive)):
        waiting = len(known) - len(below)
        verb = "holds" if len(below) == 1 else "hold"
        said = "; ".join(f"{_one(row)} is{_at(row.step)}, {_phase(row)}" for row in below[:_SHOWN])
        text = (
            f"{_capital(ranks_text([row.rank for row in below]))} {verb} the run up. "
            f"{_capital(said)}{_more(len(below))}. {_waits(waiting, front)}."
        )
        look = tuple(
            f"data loader and storage of rank {row.rank}" for row in below[:1] if not _waiting(row)
        )
        ranks = tuple(row.rank for row in below)
        return [Finding("laggard", "bad", ranks, text, evidence, look + _dumps(below))]
    late = [row for row in known if not _waiting(row)]
    if late and len(late) < len(known) and len(late) <= max(1, _FEW * len(alive)):
        said = "; ".join(f"{_one(row)} is{_at(row.step)}, {_phase(row)}" for row in late[:_SHOWN])
        text = (
            f"{_capital(ranks_text([row.rank for row in late]))} "
            f"{'has' if len(late) == 1 else 'have'} not come to the control exchange "
            f"for {duration(scene.stuck_s)}. {_capital(said)}{_more(len(late))}. "
            f"{_waits(len(known) - len(late), front)}."
        )
        ranks = tuple(row.rank for row in late)
        return [Finding("exchange", "bad", ranks, text, evidence, _dumps(late))]
    return [_same_place(scene, known, front, evidence)]


def _same_place(
    scene: Scene, known: Sequence[ParticipantView], front: int, evidence: Mapping[str, Any]
) -> Finding:
    phases = sorted({row.phase or "in an unknown phase" for row in known})
    is_handler = all(phase.startswith("in ") or phase == "paused" for phase in phases)
    text = (
        f"No rank has advanced for {duration(scene.stuck_s)}: all at step {front:,}, "
        f"{_wording.listed(phases)}."
    )
    ranks = tuple(row.rank for row in known)
    if is_handler:
        return Finding("same_place", "info", ranks, text, evidence)
    text += " It may be a collective of the training's own; who is missing in it is not seen here."
    return Finding("same_place", "unknown", ranks, text, evidence, _dumps(known))


def _slow(scene: Scene) -> list[Finding]:
    """Who works longer than the others, and waits less: the one that they wait for."""
    known = [
        row
        for row in scene.alive
        if row.step_time_ms is not None and row.exchange_wait_ms is not None
    ]
    if len(known) < 3 or scene.is_stuck:
        return []
    own = {row.rank: _own_ms(row) for row in known}
    middle = median(own.values())
    usual_wait = median(row.exchange_wait_ms or 0.0 for row in known)
    slow = [
        row
        for row in known
        if middle > 0
        and own[row.rank] > SLOW * middle
        and (row.exchange_wait_ms or 0.0) < usual_wait
    ]
    slow.sort(key=lambda row: own[row.rank], reverse=True)
    found: list[Finding] = []
    by_host: dict[str, list[ParticipantView]] = defaultdict(list)
    for row in known:
        by_host[row.host].append(row)
    named: set[int] = set()
    for host, rows in by_host.items():
        those = [row for row in slow if row.host == host]
        if len(by_host) > 1 and len(rows) > 1 and len(those) * 2 > len(rows):
            factor = median(own[row.rank] for row in those) / middle
            text = f"{plain(host)} is slow: its ranks work {factor:.2g} times as long as others."
            ranks = tuple(row.rank for row in those)
            look = (f"load, input and clock of {plain(host)}",)
            found.append(Finding("slow_host", "unknown", ranks, text, {"factor": factor}, look))
            named.update(ranks)
    for row in [row for row in slow if row.rank not in named][:_SHOWN]:
        factor = own[row.rank] / middle
        text = (
            f"{_capital(_one(row))} is slow: it works {factor:.2g} times as long per step as the "
            "others, which wait for it."
        )
        aim = (f"data loader and storage of rank {row.rank}", *_dumps([row]))
        found.append(Finding("slow", "unknown", (row.rank,), text, {"factor": factor}, aim))
    return found


def _diverged(scene: Scene) -> list[Finding]:
    found = []
    for name, by_rank in scene.diverged.items():
        ranks = tuple(sorted(int(rank) for rank in by_rank if str(rank).isdigit()))
        text = f"{_capital(_wording.diverged_text(name, by_rank))}."
        found.append(Finding("diverged", "bad", ranks, text, {name: dict(by_rank)}))
    return found


def _losing(scene: Scene) -> list[Finding]:
    losing = [row for row in scene.rows if row.lost or row.storage_errors]
    if not losing:
        return []
    lost = sum(row.lost for row in losing)
    errors = sum(row.storage_errors for row in losing)
    ranks = tuple(row.rank for row in losing)
    text = (
        f"{_capital(ranks_text(ranks))}: {lost:,} records given up, {errors:,} writes refused by "
        "storage."
    )
    look = ("space and permissions of the run directory on their hosts",)
    return [Finding("losing", "bad", ranks, text, {"lost": lost, "errors": errors}, look)]


def _clock(scene: Scene) -> list[Finding]:
    if len(scene.clocks) < 2:
        return []
    ahead = max(scene.clocks, key=lambda host: scene.clocks[host])
    behind = min(scene.clocks, key=lambda host: scene.clocks[host])
    apart = scene.clocks[ahead] - scene.clocks[behind]
    if apart <= CLOCK_S:
        return []
    text = (
        f"Clocks of hosts differ by up to {duration(apart)}: {plain(ahead)} is ahead of "
        f"{plain(behind)}. Nothing here is judged by them; mind it when you read logs."
    )
    return [Finding("clock", "info", (), text, {"apart_s": apart})]


# Words --------------------------------------------------------------------------------------


def _one(row: ParticipantView) -> str:
    local = f", local {row.local_rank}" if row.local_rank is not None else ""
    where = f" ({plain(row.host)}{local})" if row.host else ""
    return f"rank {row.rank}{where}"


def _at(step: int | None) -> str:
    return f" at step {step_text(step)}" if step is not None else " before its first step"


def _ended_at(row: ParticipantView) -> str:
    # Where a process was that left no end record, only its last record tells.
    return _at(row.step) if row.has_end_record else f", last heard of{_at(row.step)}"


def _unheard(rows: Sequence[ParticipantView]) -> str:
    """Say since when nothing is heard of processes, and what they were at then."""
    said = []
    for row in rows[:_SHOWN]:
        phase = "in training code" if row.phase == "training" else plain(row.phase)
        since = f"no heartbeat for {duration(row.age.seconds)}, last heard of{_at(row.step)}"
        said.append(f"{_one(row)}: {since}" + (f", {phase}" if phase else ""))
    return f"{_capital('; '.join(said))}{_more(len(rows))}."


def _who_waits(scene: Scene, unheard: Sequence[ParticipantView]) -> str:
    waiting = [row.rank for row in scene.alive if row not in unheard and _waiting(row)]
    if not waiting:
        # They may wait in a collective of the training's own, which is not seen here.
        return " No other rank gets further." if all(row.awaited for row in unheard) else ""
    verb, whom = "waits" if len(waiting) == 1 else "wait", "it" if len(unheard) == 1 else "them"
    return f" {_capital(ranks_text(waiting))} {verb} for {whom}."


def _phase(row: ParticipantView) -> str:
    if not row.phase:
        return "phase not reported"
    phase = "in training code" if row.phase == "training" else plain(row.phase)
    if row.phase_s is None:
        return phase
    return f"{phase} for {duration(row.phase_s + row.age.seconds)}"


def _waiting(row: ParticipantView) -> bool:
    return is_waiting(row.phase)


def _waits(count: int, front: int) -> str:
    noun, verb = ("rank", "is") if count == 1 else ("ranks", "are")
    return f"{count:,} {noun} {verb} at step {front:,}"


def _own_ms(row: ParticipantView) -> float:
    return max(0.0, (row.step_time_ms or 0.0) - (row.exchange_wait_ms or 0.0))


def _dumps(rows: Sequence[ParticipantView]) -> tuple[str, ...]:
    known = [row for row in rows if row.pid is not None][:_SHOWN]
    return tuple(f"on {plain(row.host)}: py-spy dump --pid {row.pid}" for row in known)


def _more(count: int) -> str:
    return f" and {count - _SHOWN:,} more" if count > _SHOWN else ""


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def spread(clocks: Mapping[str, float]) -> float:
    """Return by how much clocks differ, in seconds; 0 for fewer than two."""
    known = [value for value in clocks.values() if math.isfinite(value)]
    return max(known) - min(known) if len(known) > 1 else 0.0
