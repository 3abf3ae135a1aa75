"""How a value is given back to the control that shows it: the input of a command that sets it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

PER_GROUP: Final = ("lr", "weight_decay")
"""Controls with one value per parameter group, and `group=` to choose one."""

_EACH: Final = {"lr": "lrs", "weight_decay": "values"}
"""The field that sets every group by itself."""

_FIELD: Final = {"lr": "lr", "weight_decay": "value", "grad_clip": "max_norm", "dropout": "p"}

_RELATIVE: Final = frozenset({"scale", "scales", "group", "keep_ratios", "skip_zero"})
"""Fields with which what a control holds afterwards depends on what it held before."""


def sets_all(payload: Mapping[str, Any]) -> bool:
    """Whether what a control holds after this input is the same whatever it held before."""
    return not _RELATIVE & payload.keys()


def payload_of(name: str, value: Any, group: int | None = None) -> dict[str, Any] | None:
    """Return the input that sets a control to a value that it showed, None when there is none.

    Args:
        name: Of the control; a tunable's begins with `set_`.
        value: Of one group where there are groups. Any: JSON.
        group: The only one to set; None: all.
    """
    if name == "grad_clip" and value is None:
        return {}
    if name == "dropout" and not isinstance(value, int | float):
        return None  # Places with different values are shown as one text.
    if name not in _FIELD and not name.startswith("set_"):
        return None
    chosen = {} if group is None else {"group": group}
    return {_FIELD.get(name, "value"): value, **chosen}


def values_payload(name: str, wanted: Sequence[Any], now: Sequence[Any]) -> dict[str, Any] | None:
    """Return the one input that sets every group to a value, None when there is none.

    Args:
        wanted: One value per group.
        now: Those of now; a group that has what is wanted is left alone where possible.
    """
    moved = [group for group, value in enumerate(wanted) if value != now[group]]
    if name == "lr" and not all(wanted[group] for group in moved):
        return None  # No rate can be set to 0.
    if len(set(wanted)) == 1:
        return payload_of(name, wanted[0])
    if len(moved) == 1:
        return payload_of(name, wanted[moved[0]], moved[0])
    if name not in _EACH or (name == "lr" and not all(wanted)):
        return None
    return {_EACH[name]: list(wanted)}


def factors_payload(factors: Sequence[float]) -> dict[str, Any]:
    """Return the one input that scales every group of `lr`; a factor of 1 leaves a group alone."""
    scaled = [group for group, factor in enumerate(factors) if factor != 1.0]
    if len(set(factors)) == 1:
        return {"scale": factors[0]}
    if len(scaled) == 1:
        return {"scale": factors[scaled[0]], "group": scaled[0]}
    return {"scales": list(factors)}
