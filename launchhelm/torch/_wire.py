"""Packets and rows as bytes, of one size each, and the bodies of commands as JSON."""

from __future__ import annotations

import struct
from typing import Final

from launchhelm.torch._messages import INLINE_BYTES, Kind, Packet, Row, Status

MAX_BODY_BYTES: Final = 64 << 10
MAX_TEXT_BYTES: Final = 256

_MAGIC: Final = 0x4C4A
_KINDS: Final = {int(kind): kind for kind in Kind}
_PACKET: Final = struct.Struct(f"<9q{INLINE_BYTES}s")
_ROW: Final = struct.Struct(f"<qqqqqq{MAX_TEXT_BYTES}s")
PACKET_BYTES: Final = _PACKET.size
ROW_BYTES: Final = _ROW.size


def pack(packet: Packet, body: bytes = b"") -> bytes:
    """Return a packet, with the body if it has one that is short enough."""
    return _PACKET.pack(
        _MAGIC, packet.serial, packet.kind, packet.next_due, packet.command, packet.size,
        packet.apply_call, packet.step, len(body), body,
    )  # fmt: skip


def unpack(data: bytes) -> tuple[Packet, bytes] | None:
    """Return a packet and the body in it; None for what another version sent."""
    magic, serial, kind, due, command, size, apply_call, step, length, body = _PACKET.unpack(data)
    if magic != _MAGIC or kind not in _KINDS:
        return None
    return Packet(serial, _KINDS[kind], due, command, size, apply_call, step), body[:length]


def pack_row(row: Row) -> bytes:
    """Return a row; its text is cut to MAX_TEXT_BYTES."""
    # Cut in UTF-8, then drop what was cut in half.
    text = row.text.encode(errors="replace")[:MAX_TEXT_BYTES].decode(errors="ignore").encode()
    return _ROW.pack(row.status, row.call, row.step, row.digest, row.more, len(text), text)


def unpack_row(data: bytes) -> Row:
    """Return the row again."""
    status, call, step, digest, more, size, text = _ROW.unpack(data)
    return Row(Status(status), call, step, digest, text[:size].decode(), bool(more))
