"""Answers about what curves did after a command: a comparison in time, not a proof of cause."""

from __future__ import annotations

import math
import re
from typing import Any, Final

from launchhelm import _wording, views
from launchhelm._wording import plain
from launchhelm.ui._answers_series import unexplained
from launchhelm.ui.board import OpenRun
from launchhelm.ui.request import Problem, Request
from launchhelm.views.effect import LEFT_OUT, SIDE, effect
from launchhelm.views.jumps import is_lr

Json = dict[str, Any]  # Any: JSON.

CLOSING: Final = "A comparison in time, not a proof of cause."
MAX_NAMES: Final = 8
MAX_JUMPS: Final = 4
_USUAL: Final = re.compile(r"loss|grad_norm|step_time", re.ASCII | re.I)

_LOOKS: Final = 5
_WIDER: Final = 6
"""Where points are rare, a look at fewer steps than hold enough of them is widened so often."""

_MAX_READ: Final = 4000
_JUMP_PX: Final = 900


def effects(run: OpenRun, request: Request) -> Json:
    """Compare metrics before and after one applied command."""
    view = run.view
    command = view.command(request.text("command"))
    if command is None:
        raise Problem(404, "no_such_command", "The run has no command of that id.")
    step = _step(command) if command.state == "applied" else None
    if step is None:
        raise Problem(409, "no_step", "It was not applied, or at no step that is known.")
    names = {plain(name): name for name in view.metrics()}
    asked = [name for name in request.texts("name") if name in names][:MAX_NAMES]
    found, seen = [], (step, step)
    for shown in asked or _usual(names):
        before, after, span = _around(view, names[shown], step)
        said = effect(before, after)
        if said is not None:
            seen = min(seen[0], span[0]), max(seen[1], span[1])
            change = {"by": said.by, "clear": said.is_clear, "missing": said.missing}
            found.append({"name": shown, "text": str(said), **change})
    return {
        "command": command.id,
        "step": step,
        "metrics": found,
        "beside": [*_beside(view, command.id, seen), *_jumped(run, seen)] if found else [],
        "text": CLOSING,
    }


def _usual(names: dict[str, str]) -> list[str]:
    """Return loss first, then gradient norm and step time."""
    order = ("loss", "grad_norm", "step_time")
    fits = [name for name in names if _USUAL.search(name)]
    return sorted(fits, key=lambda name: [word not in name.casefold() for word in order])[
        :MAX_NAMES
    ]


def _around(
    view: views.RunView, name: str, step: int
) -> tuple[list[float], list[float], tuple[int, int]]:
    """Return the values on both sides of a step, and the steps between which they lie."""
    rank = _first_rank(view, name)
    after = view.history(name, limit=SIDE + LEFT_OUT, step_from=step, rank=rank)
    steps = [point.step for point in after if point.step is not None]
    apart = max(1, (steps[-1] - steps[0]) // max(1, len(steps) - 1)) if steps else 1
    width, before = 2 * SIDE * apart, []
    for _ in range(_LOOKS):
        low = max(0, step - width)
        before = view.history(
            name, limit=_MAX_READ, step_from=low, step_to=max(0, step - 1), rank=rank
        )
        if len(before) >= SIDE or low == 0:
            break
        width *= _WIDER
    before = before[-SIDE:] if step > 0 else []
    every = [point.step for point in (*before, *after) if point.step is not None]
    span = (min(every, default=step), max(every, default=step))
    return _values(before), _values(after), span


def _values(points: list[views.Point]) -> list[float]:
    return [
        float(point.value)
        for point in points
        if isinstance(point.value, int | float) and math.isfinite(point.value)
    ]


def _beside(view: views.RunView, id_: str, span: tuple[int, int]) -> list[str]:
    """Say what else happened between these steps."""
    said = []
    for command in view.commands:
        at = _step(command)
        if command.id != id_ and at is not None and span[0] <= at <= span[1]:
            payload = _wording.payload_text(command.payload)
            what = f"{plain(command.name)} {payload}".rstrip()
            said.append(f"{what}: {command.state.replace('_', ' ')} at step {at:,}")
    for number, each in view.spans().items():
        if number > 1 and each.first is not None and span[0] <= each.first <= span[1]:
            said.append(f"attempt {number} began at step {each.first:,}")
    return said


def _jumped(run: OpenRun, span: tuple[int, int]) -> list[str]:
    """Say where learning rates jumped between these steps though nothing is known to have acted."""
    said = []
    for name in filter(is_lr, run.view.metrics()):
        rank = _first_rank(run.view, name)
        curve = run.curves.curve(name, low=span[0], high=span[1], px=_JUMP_PX, rank=rank)
        if curve is None:
            continue
        columns = (curve.thin.x, curve.thin.y)
        for jump in unexplained(run, name, columns, exact=curve.exact, rank=rank):
            change = _wording.change_text(jump.old, jump.new)
            said.append(f"{plain(name)} {change} at step {jump.x:,.0f}, which nothing explains")
    more = len(said) - MAX_JUMPS
    return said if more <= 0 else [*said[:MAX_JUMPS], f"{more} more jumps of learning rates"]


def _first_rank(view: views.RunView, name: str) -> int:
    ranks = (each.rank for each, kinds in view.kinds_by_writer().items() if name in kinds)
    return min(ranks, default=0)


def _step(command: views.CommandView) -> int | None:
    outcome = command.outcome
    text = str(outcome.applied_at.get("step")) if outcome is not None else ""
    return int(text) if re.fullmatch(r"-?\d{1,15}", text, re.ASCII) else None
