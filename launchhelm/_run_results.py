"""What the function of a command returned, as the JSON of the command's outcome."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from launchhelm.values.scalar import tagged


def as_result(value: object) -> tuple[Any, str]:
    """Return a result as plain JSON, and why it was dropped: "" when it was not. Never raises.

    None becomes {}. Scalars of NumPy and of torch become numbers, and what is not finite a tagged
    object as in `launchhelm.scalar`. A result that has anything else in it becomes {} as a whole:
    the function has done its work, whatever it returned.
    """
    if value is None:
        return {}, ""
    try:
        return json.loads(json.dumps(_plain(value))), ""
    except Exception as error:  # The value may be of any class of the script.
        return {}, f"Its result was dropped: {type(error).__name__}: {error}."[:300]


def _plain(value: Any) -> Any:  # Any: whatever a function returned.
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    # One that is spread over ranks (to_local) is no scalar here: reading it is a collective.
    if getattr(value, "ndim", None) == 0 and not hasattr(value, "to_local"):
        value = value.item()
    return tagged(float(value)) if isinstance(value, float) else value
