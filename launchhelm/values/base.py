"""What is logged beside scalars: one JSON value, how it is shown, and the bytes that it names.

A rich value is complete when it exists: what it was made of may change or go away afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Any, ClassVar, Final

RENDERERS: Final = ("text", "media", "table", "histogram")

MAX_CAPTION_CHARS: Final = 256
MAX_NAME_CHARS: Final = 256
MAX_NUMBER: Final = (1 << 53) - 1
"""What is beyond has no place in a rich value on a server, whose JSON readers would round it."""


@dataclass(frozen=True, slots=True)
class PendingBlob:
    """Bytes that a value names by `pending:<hash>` until a server has them.

    Args:
        hash: Their SHA-256 in hex.
    """

    hash: str
    media_type: str
    data: bytes

    @classmethod
    def of(cls, data: bytes, media_type: str) -> PendingBlob:
        """Make one of its bytes."""
        return cls(sha256(data).hexdigest(), media_type, data)


class RichValue:
    """One value of a rendered metric; what `Run.log` takes beside scalars.

    Attributes:
        renderer: How it is shown: one of RENDERERS.
        left_out: Numbers in it that JSON has not, which were left out of the value.
    """

    renderer: ClassVar[str] = ""
    left_out: int = 0

    def value(self) -> dict[str, Any]:
        """Return its JSON form, a new one each time."""
        raise NotImplementedError

    def blobs(self) -> list[PendingBlob]:
        """Return the bytes that its JSON form names."""
        return []


def checked_text(text: object, what: str, limit: int, *, at_least: int = 0) -> str:
    """Return a text of so many characters.

    Raises:
        ValueError: It is none, too long or too short, or no valid Unicode.
    """
    if not isinstance(text, str):
        raise ValueError(f"{what} must be a string, got {type(text).__name__}.")
    if not at_least <= len(text) <= limit:
        raise ValueError(f"{what} has {at_least} to {limit:,} characters, got {len(text):,}.")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what} has a lone surrogate, which is not valid Unicode.") from None
    return str.__str__(text)


def captioned(value: dict[str, Any], caption: object) -> dict[str, Any]:
    """Add a caption where there is one.

    Raises:
        ValueError: It does not have 1 to 256 characters.
    """
    if caption is not None:
        value["caption"] = checked_text(caption, "A caption", MAX_CAPTION_CHARS, at_least=1)
    return value
