"""What the files say about syncing: no network, no lease, nothing is written.

Everything is read from the state that a syncer keeps beside a run, and from the ends of the run's
own files. It may be a little behind a syncer that is at work.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final  # Any: JSON values.

from launchhelm._settings import STATE_DIR
from launchhelm.errors import StorageError
from launchhelm.records import WriterId
from launchhelm.store import layout
from launchhelm.store.cursor import Cursor
from launchhelm.store.journal import lines_backwards, number_and_kind, opened, opening
from launchhelm.store.line import open_line
from launchhelm.store.reader import has_vanished, list_segments
from launchhelm.store.sealed import sealed_meta
from syncer import asking, trouble
from syncer.asking import Asked
from syncer.discover import is_growing
from syncer.lease import LEASE_S
from syncer.state import Journal, State, read_acked
from syncer.trouble import Trouble

ENDED: Final = "the run has ended"

EVERYTHING: Final = ""
"""The cursor of passes that send all parts of a run."""

_HEX: Final = re.compile(r"[0-9a-f]{16}", re.ASCII)
_STATE: Final = re.compile(r"state\.(\d{8,})\.(\d{5,})\.jsonl", re.ASCII)
_LEASE: Final = re.compile(r"lease\.(\d{8,})", re.ASCII)
_ABOVE_ALL: Final = 1 << 62
_HEAD_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class Remembered:
    """What a syncer knew of one run and one server when it last wrote it down.

    Args:
        server: Origin.
        organization: Its id.
        directory: Where the state is.
        state: All of it.
        doubt: Why it cannot be trusted, "" when it can.
    """

    server: str
    organization: str
    directory: Path
    state: State
    doubt: str = ""

    @property
    def verdict(self) -> str:
        """Why this server takes no more of the run, "" when it does."""
        return str((self.state.verdict or {}).get("why", ""))

    @property
    def cursor(self) -> Cursor:
        """Up to where everything is dealt with."""
        text = self.state.cursors.get(EVERYTHING)
        try:
            return Cursor.parse(text) if text and not self.doubt else Cursor()
        except ValueError:
            return Cursor()


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has the lease, as its file says.

    Args:
        epoch: Of its lease.
        count: Rises while it lives.
        age_s: Since the file was written, by the file's time; nobody decides by it.
    """

    host: str
    pid: int
    epoch: int
    count: int
    age_s: float

    @property
    def is_quiet(self) -> bool:
        """Whether it has not been heard of for as long as a lease holds."""
        return self.age_s > LEASE_S

    @property
    def text(self) -> str:
        """Say who, and whether it has gone quiet."""
        quiet = f", silent for {self.age_s:,.0f} s" if self.is_quiet else ""
        return f"{self.host}, process {self.pid}{quiet}"


def state_root() -> Path:
    """Return where states are of runs whose directory cannot be written."""
    return Path(STATE_DIR.read()).expanduser().absolute()


def remembered(run_directory: Path, run_id: str) -> list[Remembered]:
    """Return what is known about each server that the run was sent to, in order of their names."""
    roots = (run_directory / layout.SYNC, state_root() / run_id)
    found = [each for root in roots for path in _states(root) if (each := _read(path)) is not None]
    return sorted(found, key=lambda each: (each.server, each.organization))


def troubles(run_directory: Path, run_id: str) -> list[Trouble]:
    """Return why the run could not be opened for some servers; see trouble.py."""
    roots = (run_directory / layout.SYNC, state_root() / run_id)
    return trouble.read(path for root in roots for path in _states(root))


def of_server(
    run_directory: Path, run_id: str, url: str, organization: str = ""
) -> Remembered | None:
    """Return what is known about one server; without an organisation, the one used last."""
    fits = [
        each
        for each in remembered(run_directory, run_id)
        if each.server == url and organization.lower() in ("", each.organization.lower())
    ]
    return max(fits, key=lambda each: each.state.at, default=None)


def ends(run_directory: Path) -> dict[WriterId, int]:
    """Return for each writer the number after its last record; reads only the ends of files."""
    try:
        listing = list_segments(run_directory)
    except OSError:
        return {}
    return {writer: _end(run_directory, writer, files) for writer, files in listing.items()}


def pending_count(run_directory: Path, known: Remembered | None) -> int:
    """Count the records that are not dealt with; heartbeats and other small talk among them."""
    cursor = known.cursor if known is not None and not known.verdict else Cursor()
    done = {writer: progress.wanted for writer, progress in cursor.writers.items()}
    return sum(max(0, end - done.get(writer, 0)) for writer, end in ends(run_directory).items())


def is_partial(known: Remembered) -> bool:
    """Whether more is on the server than the cursor tells: parts of the run, or not yet all."""
    cursors = known.state.cursors
    return any(name != EVERYTHING for name in cursors) or (
        known.state.points > 0 and EVERYTHING not in cursors
    )


def confirmed_at(known: Remembered) -> float:
    """Return when the server last confirmed something, by wall time; 0 when it never did.

    After the state was lost nothing is sent again; then it is when all was found to be there.
    """
    if known.state.at:
        return known.state.at
    said = read_acked(known.directory) or {}
    at = said.get("at") if said.get("done") is True else 0.0
    return float(at) if isinstance(at, int | float) else 0.0


def commands_of(run_directory: Path, known: Remembered, held: Holder | None) -> Asked:
    """Return when commands were last asked for, and why none would have an effect now.

    Args:
        held: Who has the lease.
    """
    asked = asking.read(known.directory) or Asked(None, "", 0)
    if known.state.is_closed or not is_growing(run_directory):
        why = ENDED
    elif known.verdict:
        why = known.verdict
    elif held is None:
        why = "no syncer is at work on the run"
    elif held.is_quiet:
        why = f"the syncer on host {held.text}"
    elif asked.epoch != held.epoch:
        why = "the syncer at work has not asked yet; only `launchhelm sync --watch` does"
    else:
        why = asked.why
    return Asked(asked.asked_at, why, asked.epoch)


def has_nothing_new(run_directory: Path, known: Remembered) -> bool:
    """Whether no file of the run holds anything after what was dealt with; opens none of them."""
    try:
        listing = list_segments(run_directory)
        cursor = known.cursor
        for writer, files in listing.items():
            progress = cursor.writers.get(writer)
            if progress is None:
                return False
            for number, forms in files.items():
                if number <= progress.done:
                    continue
                if True in forms or number not in progress.offsets:
                    return False
                name = str(layout.SegmentName(writer, number, sealed=False))
                if os.stat(run_directory / layout.DATA / name).st_size > progress.offsets[number]:
                    return False
    except OSError:
        return False
    return True


def holder(directory: Path) -> Holder | None:
    """Return who has the lease of a state directory; None when it is free."""
    try:
        numbers = [int(match[1]) for match in map(_LEASE.fullmatch, os.listdir(directory)) if match]
        if not numbers:
            return None
        path = directory / f"lease.{max(numbers):08d}"
        said = open_line(path.read_bytes().rstrip(b" \n")) or {}
        written_at = path.stat().st_mtime
    except OSError:
        return None
    if said.get("free") is True or not said:
        return None
    pid = said.get("pid")
    return Holder(
        host=str(said.get("host", "")),
        pid=pid if isinstance(pid, int) else 0,
        epoch=max(numbers),
        count=int(said["n"]) if str(said.get("n")).isdigit() else 0,
        age_s=max(0.0, time.time() - written_at),
    )


# --- reading --------------------------------------------------------------------------------------


def _states(root: Path) -> Iterator[Path]:
    try:
        names = sorted(os.listdir(root))
    except OSError:
        return
    yield from (root / name for name in names if _HEX.fullmatch(name))


def _read(directory: Path) -> Remembered | None:
    """Read the newest state; None when there is none, or it has just been replaced."""
    try:
        names = [name for name in os.listdir(directory) if _STATE.fullmatch(name)]
        if not names:
            return None
        newest = max(names, key=_numbers)
        with open(directory / newest, "rb") as file:
            head = open_line(file.readline(_HEAD_BYTES).rstrip(b"\n")) or {}
        identity: dict[str, Any] = {name: head.get(name, "") for name in ("run", "server", "org")}
        journal = Journal(directory, _ABOVE_ALL, identity)
        journal.read()
    except OSError:
        return None
    return Remembered(
        server=str(identity["server"]),
        organization=str(identity["org"]),
        directory=directory,
        state=journal.state,
        doubt=journal.doubt,
    )


def _numbers(name: str) -> tuple[int, int]:
    match = _STATE.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _end(run_directory: Path, writer: WriterId, files: dict[int, set[bool]]) -> int:
    """Return the number after the last record of one writer, 0 when nothing can be read."""
    for number in sorted(files, reverse=True):
        is_sealed = True in files[number]
        path = run_directory / layout.DATA / str(layout.SegmentName(writer, number, is_sealed))
        try:
            end = sealed_meta(path).last + 1 if is_sealed else _journal_end(path)
        except StorageError:
            continue
        except OSError as error:
            if has_vanished(error) and not is_sealed:
                end = _after_sealing(path)
            else:
                continue
        if end:
            return end
    return 0


def _journal_end(path: Path) -> int:
    with opened(path) as (descriptor, size):
        for line in lines_backwards(descriptor, size):
            known = number_and_kind(line)
            if known is not None:
                return known[0] + 1
        first = (opening(descriptor) or {}).get("q0")
    return first if isinstance(first, int) else 0


def _after_sealing(journal: Path) -> int:
    try:
        return sealed_meta(journal.with_suffix(".db")).last + 1
    except (OSError, StorageError):
        return 0
