"""How far a reader has read a run directory; belongs to the reader, never to the run."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from launchhelm.records import WriterId
from launchhelm.store.layout import parse_writer


@dataclass(slots=True)
class Progress:
    """How far one writer's files have been read.

    Args:
        wanted: The next record number.
        done: Segments up to this number hold nothing that is still wanted.
        offsets: Per journal segment above `done`, the byte just after its last good line read.
    """

    wanted: int = 0
    done: int = 0
    offsets: dict[int, int] = field(default_factory=dict)

    def finish(self, segment: int) -> None:
        """Note that segments up to this one hold nothing that is still wanted."""
        if segment > self.done:
            self.done = segment
            self.offsets = {n: offset for n, offset in self.offsets.items() if n > segment}


@dataclass(slots=True)
class Cursor:
    """The progress of every writer seen so far. `Cursor.parse(cursor.text())` equals `cursor`."""

    writers: dict[WriterId, Progress] = field(default_factory=dict)

    def of(self, writer: WriterId) -> Progress:
        """Return the progress of a writer, from its first record when it is new."""
        return self.writers.setdefault(writer, Progress())

    def text(self) -> str:
        """Write the cursor as one line of JSON."""
        writers = {
            str(writer): {
                "next": progress.wanted,
                "done": progress.done,
                "at": {str(number): offset for number, offset in sorted(progress.offsets.items())},
            }
            for writer, progress in sorted(self.writers.items(), key=lambda item: str(item[0]))
        }
        return json.dumps({"cursor": 1, "writers": writers}, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Read what `text` wrote.

        Raises:
            ValueError: It is not a cursor, or one of a newer version.
        """
        value = json.loads(text)
        if not isinstance(value, dict) or value.get("cursor") != 1:
            raise ValueError("this is not a cursor of version 1")
        try:
            return cls(dict(_entry(name, entry) for name, entry in value["writers"].items()))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"this cursor is damaged: {error!r}") from None


def _entry(name: str, entry: dict[str, Any]) -> tuple[WriterId, Progress]:
    writer = parse_writer(name)
    if writer is None:
        raise ValueError(f"{name!r} is not a writer")
    offsets = {int(number): int(offset) for number, offset in entry["at"].items()}
    return writer, Progress(int(entry["next"]), int(entry["done"]), offsets)
