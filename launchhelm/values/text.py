"""A text, plain or Markdown."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from launchhelm.values.base import RichValue, captioned, checked_text

MAX_TEXT_CHARS: Final = 65_536
FORMATS: Final = ("plain", "markdown")


class Text(RichValue):
    """A text of at most 65,536 characters.

    Args:
        format: `plain` or `markdown`; None leaves it to whoever shows it.
        caption: 1 to 256 characters.

    Raises:
        ValueError: No text, too long, another format, a bad caption.
    """

    renderer: ClassVar[str] = "text"

    def __init__(self, text: str, *, format: str | None = None, caption: str | None = None) -> None:
        self._value: dict[str, Any] = {"text": checked_text(text, "A text", MAX_TEXT_CHARS)}
        if format is not None:
            if format not in FORMATS:
                raise ValueError(f"format must be {' or '.join(FORMATS)}, got {format!r}.")
            self._value["format"] = format
        captioned(self._value, caption)

    def value(self) -> dict[str, Any]:
        """Return `{"text", "format"?, "caption"?}`."""
        return dict(self._value)
