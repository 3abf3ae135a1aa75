"""The names that things of a run have on a server, and the labels by which we find them again."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from launchhelm.records import WriterId
from launchhelm.store.layout import parse_writer
from syncer.api.wire import MAX_LABEL, MAX_NAME

_DIGEST_CHARS: Final = 16

RUN_LABEL: Final = "launchhelm.offline.run"
WRITER_LABEL: Final = "launchhelm.offline.writer"
STREAM_LABEL: Final = "launchhelm.offline.stream"
CAPABILITY_LABEL: Final = "launchhelm.offline.capability"
NAME_LABEL: Final = "launchhelm.offline.name"
"""The whole name, where the document's own had to be shortened."""

PROJECT_LABEL: Final = "launchhelm.offline.project"

CONSOLE: Final = "console"
CONTROLS: Final = "launchhelm/controls"
EVENTS: Final = "launchhelm/events"


@dataclass(frozen=True)
class StreamKey:
    """What makes a stream: points that agree in all of this belong to one.

    Args:
        writer: Who wrote the points.
        name: Of the metric, whole.
        type: number, string, boolean or object.
        axes: Their names in order; `step` first, or `record` where points have no step.
        renderer: Of rich values, else "".
    """

    writer: WriterId
    name: str
    type: str
    axes: tuple[str, ...] = ("step",)
    renderer: str = ""

    @cached_property
    def text(self) -> str:
        """The key as one text, always the same; `StreamKey.parse` reads it."""
        axes = ",".join(self.axes) or "-"
        return f"{self.writer} {self.type} {self.renderer or '-'} {axes} {self.name}"

    @cached_property
    def label(self) -> str:
        """The text, shortened with a digest where it is too long for a label."""
        return shortened(self.text, MAX_LABEL)

    @classmethod
    def parse(cls, text: str) -> StreamKey:
        """Read what `text` wrote.

        Raises:
            ValueError: It is no such text.
        """
        parts = text.split(" ", 4)
        writer = parse_writer(parts[0])
        if writer is None or len(parts) != 5:
            raise ValueError(f"{text[:80]!r} is not a stream")
        _, type_, renderer, axes, name = parts
        return cls(
            writer,
            name,
            type_,
            tuple(axes.split(",")) if axes != "-" else (),
            renderer if renderer != "-" else "",
        )

    @cached_property
    def _hash(self) -> int:
        return hash(self.text)

    def __hash__(self) -> int:
        # Points are sorted into streams one by one, so this is asked once a point.
        return self._hash


def shortened(text: str, limit: int = MAX_NAME) -> str:
    """Return a text of at most `limit` characters: long ones are cut and end in `~` and a digest.

    The digest is of the whole text, so different long names stay different.
    """
    if len(text) <= limit:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_CHARS]
    return f"{text[: limit - _DIGEST_CHARS - 1]}~{digest}"
