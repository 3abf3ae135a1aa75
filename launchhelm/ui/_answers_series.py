"""Answers about metrics: what there is, and curves as few points."""

from __future__ import annotations

import math
from typing import Any, Final, cast

from launchhelm import views
from launchhelm._wording import plain
from launchhelm.ui.board import OpenRun
from launchhelm.ui.request import Problem, Request
from launchhelm.views.curves import Axis, Curve, X
from launchhelm.views.jumps import Columns, Jump, is_lr, jumps, jumps_of_thinned
from launchhelm.views.thin import PER_BUCKET, Buckets, Thin, smooth

Json = dict[str, Any]  # Any: JSON.

MAX_SERIES: Final = 24
MAX_MEAN_RANKS: Final = 64
"""Of more ranks, so many at equal distances make the mean."""

MAX_OLDER: Final = 4
"""Older attempts that are shown beside the newest."""

MAX_TEXTS: Final = 1000
MAX_AXIS_POINTS: Final = 200_000
"""Along an axis of the user's own every point is read."""

_DEFAULT_PX: Final = 900
_MAX_PX: Final = 4000
_DIGITS: Final = 8
"""Of thinned values; of exact ones all."""


def metrics(run: OpenRun, request: Request) -> Json:
    """Return the metrics of a run, each with its newest value."""
    view, wanted = run.view, request.text("q").casefold()
    writers: dict[str, set[int]] = {}
    for writer, kinds in view.kinds_by_writer().items():
        for name in kinds:
            writers.setdefault(name, set()).add(writer.rank)
    found = []
    for name in view.metrics():
        described = view.metric(name) if wanted in name.casefold() else None
        if described is None or described["kind"] == "object" or name == "console":
            continue
        ranks = sorted(writers.get(name, ()))
        rank = ranks[0] if ranks else 0
        point = view.latest(name, rank=rank)
        found.append(
            {
                "name": plain(name),
                "kind": described["kind"],
                "unit": plain(described["unit"]),
                "axes": described["axes"],
                "group": plain(name.partition("/")[0]) if "/" in name else "",
                "count": None,
                "last": _shown(point.value) if point is not None else None,
                "last_step": point.step if point is not None else None,
                "ranks": ranks,
            }
        )
    return {"metrics": found}


def series(run: OpenRun, request: Request) -> Json:
    """Return thinned columns of some metrics."""
    view = run.view
    asked = request.texts("name")
    if not 1 <= len(asked) <= MAX_SERIES:
        raise Problem(400, "bad_query", f"name is given 1 to {MAX_SERIES} times.")
    x = request.text("x") or "step"
    low, high = request.number("from"), request.number("to")
    if low is not None and high is not None and low > high:
        raise Problem(400, "bad_query", "from is above to.")
    px = request.integer("px", _DEFAULT_PX, 16, _MAX_PX)
    weight = request.number("smooth") or 0.0
    if not 0 <= weight < 1:
        raise Problem(400, "bad_query", "smooth is from 0 up to, and without, 1.")
    attempt, older = _attempt(request), request.text("attempt") == "all"
    names = {plain(name): name for name in view.metrics()}
    found: list[Json] = []
    for shown in asked:
        name = names.get(shown)
        if name is None or len(found) >= MAX_SERIES:
            continue
        if request.text("rank") == "mean" and len(_ranks_with(view, name)) > 1:
            if x != "step":
                raise Problem(400, "bad_query", "The mean of ranks is along the steps.")
            found += _mean(run, shown, name, (low, high), px, weight, attempt)
            continue
        ranks = _ranks(view, name, request)
        for rank in ranks[: MAX_SERIES - len(found)]:
            made = _one(run, name, x, low, high, px, weight, attempt, rank)
            if made is not None:
                found.append({"name": shown, "rank": rank, "attempt": attempt or "newest", **made})
                if x == "step" and made["x"] and is_lr(name):
                    found[-1]["jumps"] = [
                        {"x": _place(jump.x, True), "old": jump.old, "new": jump.new}
                        for jump in unexplained(
                            run,
                            name,
                            (made["x"], made["y"]),
                            exact=made["exact"],
                            rank=rank,
                            attempt=attempt,
                        )
                    ]
        if older and request.text("rank") != "all" and x in X:
            found += _older(run, shown, name, x, (low, high), px, ranks[0] if ranks else 0)
    ends = [each["_ends"] for each in found if "_ends" in each]
    for each in found:
        each.pop("_ends", None)
    return {
        "x": x,
        "from": low if low is not None else min((end[0] for end in ends), default=None),
        "to": high if high is not None else max((end[1] for end in ends), default=None),
        "px": px,
        "series": found,
    }


def _attempt(request: Request) -> int | None:
    text = request.text("attempt") or "newest"
    if text in ("newest", "all"):
        return None
    if not (text.isascii() and text.isdigit()):
        raise Problem(400, "bad_query", "attempt is newest, all, or a number.")
    return int(text)


def _ranks(view: views.RunView, name: str, request: Request) -> list[int]:
    text = request.text("rank")
    if text and text not in ("all", "mean"):
        return [request.integer("rank", 0, 0, 1 << 30)]
    ranks = _ranks_with(view, name)
    return ranks if text == "all" else ranks[:1]


def _ranks_with(view: views.RunView, name: str) -> list[int]:
    return sorted({each.rank for each, kinds in view.kinds_by_writer().items() if name in kinds})


Range = tuple[float | None, float | None]


def _mean(
    run: OpenRun,
    shown: str,
    name: str,
    between: Range,
    px: int,
    weight: float,
    attempt: int | None,
) -> list[Json]:
    """Return the mean of all ranks with the band between the lowest and the highest."""
    ranks = _ranks_with(run.view, name)
    some = ranks[:: -(-len(ranks) // MAX_MEAN_RANKS) or 1]
    low, high = between
    made = run.curves.spread(name, some, low=low, high=high, px=px, attempt=attempt)
    if made is None:
        return []
    line, count, least, most = made
    x = _places(line.x, integral=True)
    mean = [_rounded(value) for value in line.mean]
    answer: Json = {
        "name": shown,
        "rank": "mean",
        "attempt": attempt or "newest",
        "ranks": count,
        "of": len(ranks),
        "points": len(x),
        "exact": False,
        "x": x,
        "y": mean,
        "band": {
            "low": [_rounded(value) for value in line.low],
            "high": [_rounded(value) for value in line.high],
            "ranks": line.lines,
        },
        "odd": [_odd(*each, integral=True) for each in line.odd],
        "_ends": (_place(least, True), _place(most, True)),
    }
    if weight:
        answer["smooth"] = {"x": x, "y": [_rounded(value) for value in smooth(mean, weight)]}
    return [answer]


def _older(
    run: OpenRun, shown: str, name: str, x: str, between: Range, px: int, rank: int
) -> list[Json]:
    """Return what older attempts logged at steps that a newer one has logged again."""
    spans = run.view.spans()
    found = []
    for number in sorted(spans)[-1 - MAX_OLDER : -1]:
        low, high = between
        if x == "step":
            starts = [each.first for later, each in spans.items() if later > number]
            start = min((each for each in starts if each is not None), default=None)
            if start is None or (high is not None and high < start):
                continue
            low = start if low is None else max(low, start)
        made = _one(run, name, x, low, high, px, 0.0, number, rank)
        if made is not None and made["x"]:
            found.append({"name": shown, "rank": rank, "attempt": number, **made})
    return found


def unexplained(
    run: OpenRun,
    name: str,
    columns: Columns,
    *,
    exact: bool,
    rank: int,
    attempt: int | None = None,
) -> list[Jump]:
    """Return where a learning rate jumped though no command acted and no attempt began.

    Args:
        columns: Its points, by steps.
        exact: These are all points there are.
    """
    x, y = columns

    def closer(low: float, high: float) -> tuple[list[float], list[float]]:
        curve = run.curves.curve(name, low=low, high=high, px=_MAX_PX, attempt=attempt, rank=rank)
        return (curve.thin.x, curve.thin.y) if curve is not None and curve.exact else ([], [])

    found = jumps(x, y) if exact else jumps_of_thinned(x, y, closer)
    reasons = _acted(run.view) if found else []
    return [jump for jump in found if not any(jump.since <= step <= jump.x for step in reasons)]


def _acted(view: views.RunView) -> list[float]:
    """Return the steps at which commands acted or may have acted, and attempts began."""
    steps: list[object] = [each.first for each in view.spans().values()]
    for command in view.commands:
        if command.outcome is not None and command.state in ("applied", "outcome_unknown"):
            steps.append(command.outcome.applied_at.get("step"))
    return [number for step in steps if (number := _number(str(step))) is not None]


def _one(
    run: OpenRun,
    name: str,
    x: str,
    low: float | None,
    high: float | None,
    px: int,
    weight: float,
    attempt: int | None,
    rank: int,
) -> Json | None:
    if x in X:
        curve = run.curves.curve(
            name,
            x=cast(Axis, x),
            low=low,
            high=high,
            px=px,
            attempt=attempt,
            rank=rank,
            origin=run.view.manifest.created_at,
        )
    else:
        curve = _along(run.view, name, x, low, high, px, rank)
    if x == "step" and (curve is None or not (curve.thin.x or curve.thin.odd)):
        said = _texts(run.view, name, low, high, rank)
        if said is not None:
            return said
    if curve is None:
        return None
    thin, integral = curve.thin, x == "step"
    made: Json = {
        "points": curve.points,
        "exact": curve.exact,
        "x": _places(thin.x, integral=integral),
        "y": thin.y if curve.exact else [_rounded(value) for value in thin.y],
        "odd": [_odd(*each, integral=integral) for each in thin.odd],
        "_ends": (_place(curve.low, integral), _place(curve.high, integral)),
    }
    if weight:
        means = [_rounded(value) for value in smooth(thin.mean_y, weight)]
        made["smooth"] = {"x": _places(thin.mean_x, integral=integral), "y": means}
    return made


def _odd(x: float, nan: int, inf: int, minus: int, *, integral: bool) -> Json:
    counts = {"nan": nan, "inf": inf, "ninf": minus}
    return {"x": _place(x, integral), **{name: count for name, count in counts.items() if count}}


def _along(
    view: views.RunView,
    name: str,
    axis: str,
    low: float | None,
    high: float | None,
    px: int,
    rank: int,
) -> Curve | None:
    """Return a metric along an axis of the user's own, whose every point is read."""
    xs: list[float] = []
    ys: list[float] = []
    for point in view.points(name, rank=rank):
        place, value = _number(point.axes.get(axis)), point.value
        if place is None or not isinstance(value, int | float) or not math.isfinite(value):
            continue
        if (low is None or place >= low) and (high is None or place <= high):
            xs.append(place)
            ys.append(float(value))
        if len(xs) > MAX_AXIS_POINTS:
            raise Problem(422, "too_many", f"More than {MAX_AXIS_POINTS:,} points; zoom in.")
    if not xs:
        return None
    order = sorted(range(len(xs)), key=xs.__getitem__)
    xs, ys = [xs[i] for i in order], [ys[i] for i in order]
    least, most = (xs[0] if low is None else low), (xs[-1] if high is None else high)
    if len(xs) <= PER_BUCKET * px:
        return Curve(least, most, len(xs), True, 0.0, Thin(xs, ys, xs, ys))
    buckets = Buckets(least, most, px)
    buckets.points(xs, ys)
    return Curve(least, most, len(xs), False, buckets.width, buckets.thin())


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _texts(
    view: views.RunView, name: str, low: float | None, high: float | None, rank: int
) -> Json | None:
    """Return a metric whose values are words."""
    bounds = (
        None if low is None else math.ceil(low),
        None if high is None else math.floor(high),
    )
    found = view.history(name, limit=MAX_TEXTS, step_from=bounds[0], step_to=bounds[1], rank=rank)
    said = [each for each in found if isinstance(each.value, str) and each.step is not None]
    if not said:
        return None
    x, y = [each.step for each in said], [plain(str(each.value)) for each in said]
    return {"kind": "string", "points": len(said), "exact": True, "x": x, "y": y, "odd": []}


def _shown(value: object) -> object:
    return plain(value) if isinstance(value, str) else value


def _places(xs: list[float], *, integral: bool) -> list[float]:
    return [_place(x, integral) for x in xs]


def _place(x: float, integral: bool) -> float:
    return int(x) if integral and x == int(x) else round(x, 3)


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
