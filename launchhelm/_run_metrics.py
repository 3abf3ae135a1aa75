"""The metrics of one process: their kinds, what of a call is kept, and reductions asked for.

Called on whatever thread logs. Nothing here raises for a value: an odd one is coerced, or left out,
counted and warned of once per name.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Container, Mapping
from typing import Any, Final

from launchhelm.records import MetricValue
from launchhelm.values import Lazy, coerce, kind_of, name_problem

MAX_KNOWN: Final = 100_000
"""A script that makes up names without end is recorded, but its kinds are not remembered."""

MAX_WARNINGS: Final = 20
INT64: Final = 1 << 63

REDUCTIONS: Final = ("min", "max", "mean")


class Metrics:
    """What this process knows of its metrics.

    Args:
        odd: Called with (name, why) the first time something of a metric is left out.
    """

    def __init__(self, odd: Callable[[str, str], object]) -> None:
        self.plain: set[str] = set()
        """Names whose ints, floats and booleans need no look: valid, and without a reduction."""
        self.left_out: Counter[str] = Counter()
        self._odd = odd
        self._kinds: dict[str, str] = {}
        self._reductions: dict[str, Reduction] = {}

    def kind(self, name: str) -> str | None:
        """Return the kind of a metric's first value, None when it is not known yet."""
        return self._kinds.get(name)

    def learn(self, name: str, kind: str) -> None:
        """Fix the kind of a metric."""
        if len(self._kinds) < MAX_KNOWN:
            self._kinds[name] = kind
            if name not in self._reductions:
                self.plain.add(name)

    def define(self, definition: Mapping[str, Any]) -> None:
        """Take in a `def` body: the kind, and the reduction with what it has seen so far."""
        name, how = str(definition["name"]), str(definition.get("summary", ""))
        if how in REDUCTIONS and name not in self._reductions:
            self._reductions[name] = Reduction(how, definition.get("state"))
            self.plain.discard(name)
        self.learn(name, str(definition.get("kind", "number")))

    def reductions(self) -> dict[str, Reduction]:
        """Return the reductions that have seen a value."""
        return {name: kept for name, kept in self._reductions.items() if kept.count}

    def admit(
        self, metrics: Mapping[str, object], rich: Container[object] = ()
    ) -> tuple[dict[str, MetricValue | Lazy], bool]:
        """Return what can be recorded of one call, and whether that is all of it.

        Args:
            metrics: As given.
            rich: Names of those that are recorded otherwise.

        Raises:
            TypeError: A name is not a string.
        """
        for name in metrics:
            if not isinstance(name, str):
                raise TypeError(
                    f"The name of a metric must be a string, got {name!r} "
                    f"({type(name).__name__}); use str()."
                )
        admitted: dict[str, MetricValue | Lazy] = {}
        is_whole = True
        for name, value in metrics.items():
            if name in rich:
                continue
            try:
                kept = self._admit(str.__str__(name), value)
            except Exception as error:  # Protects training from any object that may be in here.
                self.leave_out(name, f"{type(value).__name__}: {error}")
                is_whole = False
                continue
            admitted[str.__str__(name)] = kept
        return admitted, is_whole

    def _admit(self, name: str, value: object) -> MetricValue | Lazy:
        kind = self._kinds.get(name)
        if kind is None:
            problem = name_problem(name)
            if problem:
                raise TypeError(f"a metric cannot have {problem}")
        exact = coerce(value)
        if kind is None:
            self.learn(name, kind_of(exact))
        # A later value of another kind is kept with its own class: nothing is lost on disk.
        reduction = self._reductions.get(name)
        if isinstance(exact, Lazy):
            if reduction is not None:
                exact.then(reduction.take)
        elif reduction is not None:
            reduction.take(exact)
        return exact

    def leave_out(self, name: str, why: str) -> None:
        """Count a value that is not recorded, and tell of the first one."""
        if len(self.left_out) < MAX_KNOWN or name in self.left_out:
            self.left_out[name] += 1
        if self.left_out[name] == 1 and len(self.left_out) <= MAX_WARNINGS:
            self._odd(name, why)


class Reduction:
    """A running minimum, maximum or mean; non-finite values are skipped.

    Args:
        how: One of REDUCTIONS.
        state: What `state` returned in an earlier attempt.
    """

    def __init__(self, how: str, state: Mapping[str, Any] | None = None) -> None:
        self.how = how
        self._lock = threading.Lock()
        same = state is not None and state.get("kind") == how
        self.count = int(state.get("n", 0)) if same and state is not None else 0
        self._total = float(state.get("sum", 0.0)) if same and state is not None else 0.0
        self._extreme: int | float | None = state.get("value") if same and state else None

    def take(self, value: MetricValue) -> None:
        """Take in one value."""
        if isinstance(value, bool | str) or not math.isfinite(value):
            return
        with self._lock:
            self.count += 1
            self._total += value
            if self._extreme is None:
                self._extreme = value
            elif self.how == "min":
                self._extreme = min(self._extreme, value)
            else:
                self._extreme = max(self._extreme, value)

    @property
    def value(self) -> int | float:
        """The reduction of everything so far."""
        if self.how == "mean":
            return self._total / self.count
        assert self._extreme is not None
        return self._extreme

    def state(self) -> dict[str, Any]:
        """Return what a later attempt goes on from."""
        return {"kind": self.how, "n": self.count, "sum": self._total, "value": self._extreme}


def as_dict(metrics: object) -> dict[Any, Any]:
    """Return a mapping as a dict. Any: its keys and values are checked by the caller."""
    if isinstance(metrics, dict):
        return metrics
    if not isinstance(metrics, Mapping):
        raise TypeError(
            f"Metrics must be a mapping of name to value, got {type(metrics).__name__}."
        )
    return dict(metrics)
