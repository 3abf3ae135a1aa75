"""A reader on another host: takes every record, counts what should not happen.

    python reader.py RUN_DIRECTORY FOLDER

It polls until a file named `stop` is listed in FOLDER and nothing new has come for 5 s, then leaves
its tally in FOLDER/tally.json.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from launchhelm.records import Record
from launchhelm.store.reader import Reader


@dataclass
class Tally:
    """What a reader saw.

    Args:
        steps: Per writer, the steps of its metric records in the order in which they came.
        doubled: Record numbers that came more than once.
        errors: Exceptions that escaped from the reader; there must be none.
        gaps: Holes that the reader reported.
        polls: How often it looked.
    """

    steps: dict[str, list[int]] = field(default_factory=dict)
    doubled: int = 0
    errors: list[str] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    polls: int = 0
    _seen: set[tuple[str, int]] = field(default_factory=set)

    def take(self, records: Sequence[Record]) -> None:
        """Count records, each of which should be new."""
        for record in records:
            key = (str(record.writer), record.seq)
            self.doubled += key in self._seen
            self._seen.add(key)
            if record.kind == "m":
                assert record.body["loss"] == 1 / (record.body["n"] + 1), record
                self.steps.setdefault(key[0], []).append(record.body["n"])

    def poll(self, reader: Reader) -> int:
        """Poll once; return how many records came."""
        self.polls += 1
        try:
            records = reader.poll()
        except Exception:  # The thing under test: a reader never raises for what it finds.
            self.errors.append(traceback.format_exc())
            return 0
        self.take(records)
        self.gaps = [str(gap) for gap in reader.gaps]
        return len(records)

    def assert_kept(self, promised: Mapping[str, int]) -> None:
        """Nothing promised is missing, nothing came twice, each writer's steps are a prefix."""
        assert self.errors == []
        assert self.doubled == 0
        for writer, steps in self.steps.items():
            assert steps == list(range(len(steps))), f"{writer}: not a gap-free prefix"
        short = {w: (n, len(self.steps.get(w, ()))) for w, n in promised.items()}
        assert {w: pair for w, pair in short.items() if pair[1] < pair[0]} == {}


def promised(path: Path) -> dict[str, int]:
    """Return per writer how many records were promised."""
    counts: dict[str, int] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        writer, _, count = line.partition(" ")
        counts[writer] = int(count)
    return counts


def main() -> None:
    """Read until told to stop."""
    run_directory, folder = Path(sys.argv[1]), Path(sys.argv[2])
    reader, tally = Reader(run_directory), Tally()
    quiet_since = time.monotonic()
    while True:
        if tally.poll(reader):
            quiet_since = time.monotonic()
        if "stop" in os.listdir(folder) and time.monotonic() - quiet_since > 5:
            break
        time.sleep(0.1)
    value = asdict(tally)
    del value["_seen"]
    (folder / ".tally").write_text(json.dumps(value))
    os.rename(folder / ".tally", folder / "tally.json")


if __name__ == "__main__":
    main()
