"""Sortable ids, made offline.

`run_id` is a UUIDv7 (RFC 9562, 5.7): 48 bits of milliseconds, then 74 random bits, so that names
sort by age. The random part alone keeps runs apart when their clocks agree to the millisecond.
"""

from __future__ import annotations

import os
import uuid

from launchhelm._clock import SYSTEM_CLOCK, Clock


def new_run_id(clock: Clock = SYSTEM_CLOCK) -> str:
    """Make a UUIDv7 from the clock and the operating system's random bits."""
    milliseconds = int(clock.wall() * 1000) & ((1 << 48) - 1)
    random_bits = int.from_bytes(os.urandom(10), "big")
    value = milliseconds << 80 | 0x7 << 76 | (random_bits >> 62 & 0xFFF) << 64
    value |= 0b10 << 62 | random_bits & ((1 << 62) - 1)
    return str(uuid.UUID(int=value))


def new_id() -> str:
    """Make a random UUID (version 4)."""
    return str(uuid.UUID(bytes=os.urandom(16), version=4))


def project_id_for(organization: str, project: str) -> str:
    """Derive the project's id, the same on every host that does not know a server's id."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"launchhelm:{organization}/{project}"))


def new_token() -> str:
    """Make the 8 random hex digits of a writer's name."""
    return os.urandom(4).hex()
