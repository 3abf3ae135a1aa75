"""What the first bytes of a medium say that it is."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Final

_MAGIC: Final[Mapping[str, re.Pattern[bytes]]] = {
    "image/png": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "image/jpeg": re.compile(rb"\xff\xd8\xff"),
    "image/gif": re.compile(rb"GIF8[79]a"),
    "image/webp": re.compile(rb"RIFF....WEBP", re.DOTALL),
    "audio/wav": re.compile(rb"(?:RIFF|RF64)....WAVE", re.DOTALL),
    "video/mp4": re.compile(rb"....ftyp(?!avi[fs]|mif1|msf1)", re.DOTALL),
}
_warned: Final[set[tuple[str, str]]] = set()
_log = logging.getLogger("launchhelm")


def warn_of_another(data: bytes, media_type: str) -> None:
    """Say once for each pair that bytes begin as another type, or not as theirs does."""
    looks = next((name for name, magic in _MAGIC.items() if magic.match(data)), "")
    # A film may begin otherwise.
    is_odd = looks != media_type if looks else media_type in _MAGIC and media_type != "video/mp4"
    if is_odd and (media_type, looks) not in _warned:
        _warned.add((media_type, looks))
        _log.warning(
            "A medium of type %s %s; it is kept, and may not be shown. Give the media_type that "
            "it has, or the file its right suffix.",
            media_type,
            f"looks like {looks}" if looks else "does not begin as such files do",
        )
