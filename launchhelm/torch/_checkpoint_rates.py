"""Commanded learning rates in a checkpoint: as the hosted SDK writes them, and exactly.

Here a multiplier lies over the schedule and torch's own fields stay as they are. The hosted SDK
scales those fields instead. So a file gets scaled fields, from which anybody goes on at the rate
that was in effect, and beside them, under our own key, what they were and the multipliers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from launchhelm.torch._controls import is_number, is_positive
from launchhelm.torch._schedulers import Rates

State = dict[str, Any]  # Any: state dicts of torch.

_OF_GROUP: Final = ("initial_lr", "max_lr", "min_lr")
_PER_GROUP: Final = ("base_lrs", "_last_lr", "max_lrs")
_SHARED: Final = "eta_min"
_INSIDE: Final = "_schedulers"


def written(rates: Rates | None, parts: State) -> tuple[State, State]:
    """Return what a file gets: the parts in hosted form, and what restores them exactly.

    Args:
        rates: None without the `lr` control.
        parts: `optimizer` and `scheduler` as they are; they are not changed.
    """
    if rates is None or not rates.has_schedule or "scheduler" not in parts:
        return parts, {}
    slots = rates.saved()
    factors = [float(slot["multiplier"]) for slot in slots]
    if all(factor == 1.0 for factor in factors) and not any(slot["held"] for slot in slots):
        return parts, {}
    optimizer, groups = dict(parts["optimizer"]), parts["optimizer"]["param_groups"]
    optimizer["param_groups"] = [
        {key: value * factor if key in _OF_GROUP else value for key, value in group.items()}
        for group, factor in zip(groups, factors, strict=True)
    ]
    exact = {
        "slots": slots,
        "scheduler": parts["scheduler"],
        "groups": [{key: group[key] for key in _OF_GROUP if key in group} for group in groups],
    }
    scheduler = _scaled(parts["scheduler"], factors)
    return {**parts, "optimizer": optimizer, "scheduler": scheduler}, exact


def problem(exact: Mapping[str, Any], groups: Sequence[Mapping[str, Any]]) -> str:
    """Say why what a file says under our key is nothing to go on from, "" when it is.

    Args:
        groups: Of the optimizer in the same file.
    """
    slots, own = exact.get("slots"), exact.get("groups")
    if not isinstance(slots, list) or not isinstance(own, list):
        return "its multipliers are no lists"
    if not len(slots) == len(own) == len(groups):
        return "its multipliers are not one per group"
    if not all(isinstance(each, Mapping) for each in (exact.get("scheduler"), *slots, *own)):
        return "its multipliers are no mappings"
    for slot in slots:
        multiplier, scheduled = slot.get("multiplier"), slot.get("scheduled")
        if not is_number(multiplier) or not is_positive(multiplier):
            return f"one of its multipliers is {str(multiplier)[:80]}"
        if not (scheduled is None or is_number(scheduled) or isinstance(scheduled, torch.Tensor)):
            return f"one of its rates is a {type(scheduled).__name__}"
    return ""


def exactly(rates: Rates | None, parts: State, exact: Mapping[str, Any]) -> State:
    """Return the parts of a file as they were, where somebody here holds the multipliers."""
    if not exact or rates is None or not rates.has_schedule:
        return parts
    optimizer = dict(parts["optimizer"])
    optimizer["param_groups"] = [
        {**group, **own}
        for group, own in zip(optimizer["param_groups"], exact["groups"], strict=True)
    ]
    return {**parts, "optimizer": optimizer, "scheduler": exact["scheduler"]}


def adopt(rates: Rates | None, exact: Mapping[str, Any]) -> None:
    """Go on with the multipliers of a file whose parts are loaded; without any, with none."""
    if rates is not None and exact:
        rates.resume(exact["slots"])
    elif rates is not None:
        rates.adopt([1.0] * rates.group_count)


def _scaled(scheduler: Mapping[str, Any], factors: Sequence[float]) -> State:
    """Scale the fields of a schedule, and of those inside it, as the hosted SDK does."""
    state = dict(scheduler)
    for key in _PER_GROUP:
        values = state.get(key)
        if isinstance(values, list | tuple) and len(values) == len(factors):
            state[key] = [value * factor for value, factor in zip(values, factors, strict=True)]
    # One floor for all groups: with different factors no number is right for each of them.
    if _SHARED in state and len(set(factors)) == 1:
        state[_SHARED] = state[_SHARED] * factors[0]
    if isinstance(state.get(_INSIDE), list):
        state[_INSIDE] = [_scaled(each, factors) for each in state[_INSIDE]]
    return state
