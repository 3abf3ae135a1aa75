"""Which numbers a float32 can hold: optimizers keep their rates in one."""

from __future__ import annotations

from typing import Final

SMALLEST: Final = 2.0**-149
LARGEST: Final = (2.0 - 2.0**-23) * 2.0**127


def in_float32(number: float) -> bool:
    """Whether a positive number is neither too large for a float32 nor 0 in it."""
    return SMALLEST <= number <= LARGEST
