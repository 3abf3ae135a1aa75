"""One journal line: a checksummed JSON record.

    {"c":"124f0472","q":17,"k":"m","t":1796022506.355,"s":120,"v":{"train/loss":0.1234,"lr":1e-4}}

The first 16 bytes are `{"c":"`, 8 lower-case hex digits and `",`; the digits are the CRC-32 (zlib)
of everything from byte 16 to the newline, which is not included.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from typing import Any, Final

from launchhelm.records import Record, WriterId

MAX_LINE_BYTES: Final = 1 << 20
_PREFIX: Final = b'{"c":"'
_SPECIAL: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_NAMES: Final = {math.inf: "Infinity", -math.inf: "-Infinity"}

dumps = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def seal_line(rest: bytes) -> bytes:
    """Put the checksum before `rest`, which is a JSON object without its opening brace."""
    return b'{"c":"%08x",%b\n' % (zlib.crc32(rest), rest)


def is_intact(line: bytes) -> bool:
    """Return whether a line (without its newline) has the form and the checksum of ours."""
    if len(line) < 17 or line[:6] != _PREFIX or line[14:16] != b'",':
        return False
    return b"%08x" % zlib.crc32(memoryview(line)[16:]) == line[6:14]


def open_line(line: bytes) -> dict[str, Any] | None:
    """Return the JSON object of a good line (without its newline), None for a bad one."""
    if not is_intact(line):
        return None
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def metric_values(body: Mapping[str, Any]) -> dict[str, Any]:
    """Make a metric body JSON: what JSON has not becomes {"$number": ...}."""
    return {
        name: special(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in body.items()
    }


def special(value: float) -> dict[str, str]:
    """Tag a number that JSON has not."""
    return {"$number": _NAMES.get(value, "NaN")}


def untag(value: Any) -> Any:
    """Undo `special`, for one metric value."""
    if isinstance(value, dict):
        return _SPECIAL.get(value.get("$number", ""), value)
    return value


def to_record(writer: WriterId, value: Mapping[str, Any]) -> Record | None:
    """Make a Record of a good line's object; None when it is not a record (an `open` line)."""
    seq = value.get("q")
    body = value.get("v")
    if not isinstance(seq, int) or not isinstance(body, dict):
        return None
    kind = str(value.get("k", ""))
    if kind in ("m", "sys"):
        body = {name: untag(item) for name, item in body.items()}
    return Record(
        writer=writer,
        seq=seq,
        kind=kind,
        at=float(value.get("t", 0.0)),
        step=value.get("s"),
        body=body,
        axes=value.get("a") or {},
    )
