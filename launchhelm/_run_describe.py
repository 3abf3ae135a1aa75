"""The describing half of a Run: what its metrics mean, how it went, what a resume needs."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from launchhelm import _run_metadata as metadata
from launchhelm._faults import Faults
from launchhelm._run_metrics import REDUCTIONS, Metrics, as_dict
from launchhelm.controls.schema import as_json
from launchhelm.records import MetricValue
from launchhelm.store.line import special
from launchhelm.values import check_axis, coerce, name_problem
from launchhelm.values.coerce import KINDS, Lazy

if TYPE_CHECKING:
    from launchhelm._recorder import Recorder
    from launchhelm._run_inert import NoRecorder

KEEP_WAIT_S: Final = 10.0
MAX_UNIT_CHARS: Final = 64


class Describes:
    """What is said about a run beside its points."""

    recorder: Recorder | NoRecorder
    summary_values: dict[str, Any]
    _definitions: dict[str, dict[str, Any]]
    _faults: Faults
    _is_over: bool
    _lock: threading.RLock
    _metrics: Metrics
    _next_step: int
    kept_state: dict[str, Any]
    _set_by_hand: set[str]

    def define(
        self, name: str, kind: str = "number", *axes: str, unit: str = "", summary: str = ""
    ) -> None:
        """Declare a metric: its kind, further axes, unit, and the reduction kept at the end.

        Raises:
            TypeError: A name or unit that is not a string, or another kind than the metric has.
            ValueError: An unknown kind or reduction, a bad name, axis or unit.
        """
        if not isinstance(name, str):
            raise TypeError(f"The name of a metric must be a string, got {type(name).__name__}.")
        problem = name_problem(name)
        if problem:
            raise ValueError(f"A metric cannot have {problem}.")
        if kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}.")
        unit = metadata.check_text(unit, "unit", MAX_UNIT_CHARS)
        if summary and (summary not in REDUCTIONS or kind != "number"):
            raise ValueError(f"summary must be one of {', '.join(REDUCTIONS)}, of a number.")
        known = self._metrics.kind(name)
        if known not in (None, kind):
            raise TypeError(f"The metric {name!r} holds {known}s; it cannot become {kind}.")
        checked = ["step", *(check_axis(axis) for axis in axes if axis != "step")]
        if len(set(checked)) != len(checked):
            raise ValueError("An axis is given twice.")
        earlier = self._definitions.get(name, {})
        body = {
            "name": name,
            "kind": kind,
            "axes": checked,
            # What is stored stays: a unit is fixed once it is given.
            "unit": earlier.get("unit") or unit,
            "summary": summary or earlier.get("summary", ""),
        }
        self._definitions[name] = body
        self._metrics.define({**earlier, **body})
        self._append("def", body)

    def summary(self, metrics: Mapping[str, object]) -> None:
        """Set end-of-run values; None removes one, and gives way to its reduction again.

        Raises:
            TypeError: A name that is not a string, or a value that is not a scalar.
            ValueError: A bad name.
        """
        values: dict[str, MetricValue] = {}
        removed: list[str] = []
        for name, value in as_dict(metrics).items():
            metadata.check_text(name, "The name of a summary value", metadata.MAX_NAME_CHARS)
            if value is None:
                removed.append(name)
                continue
            exact = coerce(value)
            values[name] = exact.resolve() if isinstance(exact, Lazy) else exact
        with self._lock:
            self.summary_values.update(values)
            self._set_by_hand.update(values)
            for name in removed:
                self.summary_values.pop(name, None)
                self._set_by_hand.discard(name)
        body: dict[str, Any] = {name: _json_value(value) for name, value in values.items()}
        self._append("sum", {**body, **dict.fromkeys(removed)})

    def describe(
        self,
        *,
        group: str | None = None,
        tags: Sequence[str] | None = None,
        notes: str | None = None,
        name: str | None = None,
    ) -> None:
        """Change what the run says about itself; omitted fields stay, empty ones are removed.

        Raises:
            TypeError, ValueError: As for the same arguments of `init`; the title cannot be empty.
        """
        changed: dict[str, Any] = {}
        limit = metadata.MAX_NAME_CHARS
        if group is not None:
            changed["group"] = metadata.check_text(group, "group", limit)
        if tags is not None:
            changed["tags"] = metadata.check_tags(tags)
        if notes is not None:
            changed["notes"] = metadata.check_text(notes, "notes", metadata.MAX_NOTES_CHARS)
        if name is not None:
            changed["name"] = metadata.check_text(name, "name", limit, may_be_empty=False)
        if changed:
            for field, value in changed.items():
                setattr(self, field, value)
            self._append("desc", changed)

    def keep(self, state: Mapping[str, Any]) -> None:
        """Keep state for a resume, together with the step counter; durable on return.

        Raises:
            TypeError, ValueError: It is not a JSON object.
        """
        if not isinstance(state, Mapping):
            raise TypeError(f"keep takes a mapping, got {type(state).__name__}.")
        self._keep(dict(state))

    def keep_beside(self, state: Mapping[str, Any]) -> None:
        """Keep state beside what is kept already, from any thread; raises as `keep` does."""
        self._keep(dict(state), beside=True)

    def _keep(self, state: dict[str, Any], *, beside: bool = False) -> None:
        with self._lock:  # Nobody's newer state may be written over by an older one.
            kept = {**self.kept_state, **state} if beside else state
            body = {"step": self._next_step, "state": as_json(kept)}
            self.kept_state = kept
            if self._is_over:
                self._append("keep", body)
                return
            ticket = self.recorder.append_urgent("keep", body)
        if not ticket.wait(KEEP_WAIT_S):
            self._faults.warn(
                "keep", "State was kept in memory only: storage accepts no writes yet."
            )

    def _reduce(self) -> None:
        """Record the reductions asked for, where `summary` has not said something else."""
        for name, reduction in self._metrics.reductions().items():
            # The state is what a later attempt goes on from.
            self._append("def", {**self._definitions[name], "state": reduction.state()})
            if name not in self._set_by_hand:
                self.summary_values[name] = reduction.value
                self._append("sum", {name: reduction.value})

    def _append(self, kind: str, body: Mapping[str, Any], *, step: int | None = None) -> None:
        raise NotImplementedError


def _json_value(value: MetricValue) -> Any:  # Any: a tagged object, or the value.
    if isinstance(value, float) and not math.isfinite(value):
        return special(value)
    return value
