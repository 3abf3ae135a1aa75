"""How a value is given back to the control that shows it: the input of a command that sets it."""

from __future__ import annotations

from typing import Any, Final

PER_GROUP: Final = ("lr", "weight_decay")
"""Controls with one value per parameter group, and `group=` to choose one."""

_FIELD: Final = {"lr": "lr", "weight_decay": "value", "grad_clip": "max_norm", "dropout": "p"}


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
