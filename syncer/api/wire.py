"""What goes over the wire, as bytes: pure, exact, and fast where a million points go through."""

from __future__ import annotations

from syncer.api.document import WireError, canonical, encode, fingerprint, parse, string
from syncer.api.limits import *  # noqa: F403 - Every limit, under its own name.
from syncer.api.receipts import InvalidReceipt, Receipt, receipts
from syncer.api.telemetry import (
    DECIMAL,
    NAME,
    batch,
    bind,
    coordinate,
    fitting,
    frame,
    number,
    partition,
    point,
    request,
    timestamp,
    unbound_point,
)

__all__ = [
    "DECIMAL",
    "NAME",
    "InvalidReceipt",
    "Receipt",
    "WireError",
    "batch",
    "bind",
    "canonical",
    "coordinate",
    "encode",
    "fingerprint",
    "fitting",
    "frame",
    "number",
    "parse",
    "partition",
    "point",
    "receipts",
    "request",
    "string",
    "timestamp",
    "unbound_point",
]
