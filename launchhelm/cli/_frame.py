"""One look at a run as lines of text that fit a terminal: what `top` draws."""

from __future__ import annotations

import fnmatch
import textwrap
from collections.abc import Sequence
from typing import Final

from launchhelm import _wording, views
from launchhelm.cli._sections import (
    PROCESS_HEAD,
    PROCESS_RIGHT,
    RANK_TONES,
    RUN_TONES,
    command_line,
    off_text,
    process_cells,
)
from launchhelm.cli.output import Output, fitted, width
from launchhelm.views.around import around_of
from launchhelm.views.curves import Curve, Curves
from launchhelm.views.scene import findings_of

BLOCKS: Final = "▁▂▃▄▅▆▇█"
NOT_A_NUMBER: Final = "×"
"""Where a part holds no finite value, but others."""

_DEFAULT: Final = (views.LOSSES, ("optim/lr/group0",), ("perf/step_time_s",))
"""Of each, the first that the run has."""

_MOST_METRICS: Final = 8
_LAST_COMMANDS: Final = 3
_UNFOLDED: Final = 16
_NARROW: Final = 70
_NARROW_HEAD: Final = ("RANK", "STATE", "STEP", "PHASE")
_LONGEST_SPARK: Final = 60
_WORST_FIRST: Final = ("missing", "silent", "late", "behind", "busy", "starting", "ok", "ended")


def names_of(view: views.RunView, pattern: str | None) -> list[str]:
    """Return the metrics that are shown: those of the pattern, else loss, rate and step time."""
    known = view.metrics()
    if pattern is not None:
        return [name for name in known if fnmatch.fnmatchcase(name, pattern)][:_MOST_METRICS]
    firsts = (next((name for name in some if name in known), None) for some in _DEFAULT)
    return [name for name in firsts if name is not None]


def frame(
    view: views.RunView,
    curves: Curves,
    output: Output,
    *,
    pattern: str | None = None,
    columns: int = 100,
    lines: int | None = None,
    first: int = 0,
) -> list[str]:
    """Return the lines of one look.

    Args:
        columns: None of the lines is wider.
        lines: At most so many; None for as many as there are, a long table folded.
        first: Row of the table at which it begins.
    """
    head = [*_header(view, output, columns), *_off(view, output, columns)]
    head += _findings(view, output, columns)
    head += _metrics(view, curves, names_of(view, pattern), columns)
    head += _commands(view, columns)
    room = _UNFOLDED if lines is None else lines - len(head) - 2
    made = [*head, *_processes(view, output, columns, max(1, room), first)]
    return made if lines is None else made[:lines]


def spark(curve: Curve, columns: int) -> str:
    """Return a line of blocks, each the mean of its part of the steps."""
    columns = max(1, min(columns, curve.points))
    span = curve.high - curve.low or 1.0
    sums = [[0.0, 0.0] for _ in range(columns)]
    odd = [False] * columns

    def place(x: float) -> int:
        return min(columns - 1, int((x - curve.low) / span * columns))

    for x, y in zip(curve.thin.mean_x, curve.thin.mean_y, strict=True):
        cell = sums[place(x)]
        cell[0] += y
        cell[1] += 1
    for x, *_ in curve.thin.odd:
        odd[place(x)] = True
    means = [total / count for total, count in sums if count]
    low, high = min(means, default=0.0), max(means, default=0.0)
    rise = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    drawn = ""
    for (total, count), is_odd in zip(sums, odd, strict=True):
        if count:
            drawn += BLOCKS[round((total / count - low) * rise)]
        else:  # Between two points the line goes on.
            drawn += NOT_A_NUMBER if is_odd else drawn[-1:] or " "
    return drawn


def _header(view: views.RunView, output: Output, columns: int) -> list[str]:
    state = view.state
    parts = [_wording.plain(view.name), view.run_id[:8], state.text]
    if view.step is not None:
        parts.append(f"step {view.step:,}")
    pace_s = around_of(view).pace_s
    if pace_s is not None and state.word == "running":
        parts.append(f"{pace_s:.3g} s/step")
    return [output.paint(line, RUN_TONES.get(state.word, "")) for line in _wrapped(parts, columns)]


def _wrapped(parts: Sequence[str], columns: int) -> list[str]:
    """Join parts, breaking between them where the line is full."""
    lines: list[str] = []
    for part in parts:
        joined = f"{lines[-1]}  {part}" if lines else part
        if lines and width(joined) <= columns:
            lines[-1] = joined
        else:
            lines.append(fitted(part, columns))
    return lines


def _off(view: views.RunView, output: Output, columns: int) -> list[str]:
    said = textwrap.wrap(off_text(view), columns, subsequent_indent="  ")
    return [output.paint(line, "bad") for line in said]


def _findings(view: views.RunView, output: Output, columns: int) -> list[str]:
    found = findings_of(view)
    if not found:
        return []
    worst, tone = found[0], "bad" if found[0].weight == "bad" else "unknown"
    said = [f"{worst.mark} {_wording.plain(worst.text)}"]
    said += [f"look at: {_wording.plain(each)}" for each in worst.look_at[:1]]
    said += [f"and {len(found) - 1} more: launchhelm ui"] if len(found) > 1 else []
    return [
        output.paint(line, tone)
        for text in said
        for line in textwrap.wrap(text, columns, subsequent_indent="  ")
    ]


def _metrics(view: views.RunView, curves: Curves, names: Sequence[str], columns: int) -> list[str]:
    label = min(max((width(_wording.plain(name)) for name in names), default=0), columns // 3)
    long = min(_LONGEST_SPARK, columns - label - 14)
    lines = []
    for name in names:
        latest = view.latest(name)
        value = "-" if latest is None else _wording.value_text(latest.value)
        curve = curves.curve(name, px=max(16, long)) if long > 0 else None
        drawn = spark(curve, long) if curve is not None else ""
        shown = _wording.cut(_wording.plain(name), label)
        line = f"{shown}{' ' * (label - width(shown))}  {_wording.cut(value, 10):>10}  {drawn}"
        lines.append(fitted(line.rstrip(), columns))
    return lines


def _commands(view: views.RunView, columns: int) -> list[str]:
    return [fitted(command_line(each, view), columns) for each in view.commands[-_LAST_COMMANDS:]]


def _processes(
    view: views.RunView, output: Output, columns: int, room: int, first: int
) -> list[str]:
    rows = sorted(view.participants, key=lambda each: (_WORST_FIRST.index(each.state), each.rank))
    if not rows:
        return ["processes: none seen yet"]
    first = max(0, min(first, len(rows) - room))
    shown = rows[first : first + room]
    head = PROCESS_HEAD if columns >= _NARROW else _NARROW_HEAD
    chosen = [PROCESS_HEAD.index(name) for name in head]
    cells = [[process_cells(each)[index] for index in chosen] for each in shown]
    lines = [
        output.paint(fitted(line, columns), tone)
        for line, tone in zip(
            output.columns(head, cells, right=PROCESS_RIGHT),
            ["dim", *(RANK_TONES.get(each.state, "") for each in shown)],
            strict=True,
        )
    ]
    if len(shown) < len(rows):
        lines.append(f"rows {first + 1:,} to {first + len(shown):,} of {len(rows):,}")
    return lines
