"""What the syncer remembers of one run and one server: a journal that only its holder appends to.

    <run>/sync/<16 hex of server and organisation>/        or, where that cannot be written,
    <state dir>/<run id>/<16 hex>/
        lease.00000003                      see lease.py
        state.00000003.00001.jsonl          of the holder of lease 3, its first file
        acked.json                          for people and `launchhelm ls`; decides nothing

Each line is one change, with the checksum of a journal line, durable before `write` returns. A new
holder starts a file of its own with everything that the newest file before it says. A torn last
line was never acted on. Any other damage, and a file that is a copy, make the state unknown; then
the server is asked what it has (see readback.py). Files are never renamed over each other, so that
no host can be handed an old one under the same name.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final  # Any: JSON values.

from launchhelm.store import layout
from launchhelm.store.line import dumps, open_line, seal_line
from launchhelm.store.manifest import write_durably
from syncer.coverage import Coverage
from syncer.shardlist import superseded

FORMAT: Final = 1
ACKED: Final = "acked.json"
COMPACT_BYTES: Final = 4 << 20
"""A file is replaced by a snapshot when it is this large and mostly history."""

MAX_ASIDE: Final = 1000
"""Values set aside that are remembered one by one; all are counted."""

_NAME = re.compile(r"state\.(\d{8,})\.(\d{5,})\.jsonl", re.ASCII)
_PER_LINE: Final = 1000
_READ_ONLY: Final = (errno.EROFS, errno.EACCES, errno.EPERM)


@dataclass(frozen=True, slots=True)
class Flight:
    """A batch on its way: all that is needed to make the same bytes again.

    Args:
        stream: Number of the stream in `State.streams`, which names its writer.
        first: Record number of its first point, `last` of its last.
        start: Once it is stored, all of the stream from `start` to `last` is dealt with.
        count: Points.
        epoch: Of the session under which they are sent.
        batch_id: The same for the same content.
        digest: Of its bytes; they are made again from the run directory or not at all.
    """

    stream: int
    first: int
    last: int
    start: int
    count: int
    epoch: str
    batch_id: str
    digest: str

    def wire(self) -> list[Any]:
        """Return it as it stands in a line."""
        return [getattr(self, name) for name in self.__slots__]


@dataclass(slots=True)
class Stream:
    """One stream of the run on the server.

    Args:
        key: `StreamKey.text`.
        id: Of its document; "" while there is none.
        revision: Of its document when it was first used.
        coverage: Record numbers that are dealt with.
    """

    key: str
    id: str = ""
    revision: str = ""
    coverage: Coverage = field(default_factory=Coverage)


@dataclass(frozen=True, slots=True)
class Aside:
    """A value that this server will not take, kept in the run directory alone."""

    key: str
    seq: int
    size: int
    why: str


@dataclass(slots=True)
class State:
    """Everything remembered. Changes only through `apply`."""

    run: str = ""
    project: str = ""
    token: str = ""
    token_next: str = ""
    generation: str = ""
    streams: list[Stream] = field(default_factory=list)
    number: dict[str, int] = field(default_factory=dict)
    participants: dict[str, str] = field(default_factory=dict)
    epochs: dict[str, str] = field(default_factory=dict)
    flights: dict[str, Flight] = field(default_factory=dict)
    cursors: dict[str, str] = field(default_factory=dict)
    artifacts: dict[str, str] = field(default_factory=dict)
    lost_artifacts: list[list[Any]] = field(default_factory=list)
    aside: list[Aside] = field(default_factory=list)
    aside_count: int = 0
    points: int = 0
    verdict: dict[str, Any] | None = None
    is_closed: bool = False
    reported: set[str] = field(default_factory=set)
    extensions: list[str] = field(default_factory=list)
    at: float = 0.0
    error: str = ""

    def stream(self, key: str) -> Stream | None:
        """Return the stream of a key, None while it has never been met."""
        number = self.number.get(key)
        return None if number is None else self.streams[number]

    def apply(self, change: Mapping[str, Any]) -> None:
        """Take in one change; the names in it are those of `_FIELDS`.

        Raises:
            KeyError, IndexError, TypeError, ValueError: It is not a change.
        """
        for name, value in change.items():
            if name in _FIELDS:
                _FIELDS[name](self, value)

    def snapshot(self) -> Iterator[dict[str, Any]]:
        """Yield changes that make an empty state equal to this one."""
        yield {
            "run": self.run,
            "project": self.project,
            "token": self.token,
            "next": self.token_next,
            "generation": self.generation,
            "participants": self.participants,
            "epochs": self.epochs,
            "cursors": self.cursors,
            "artifacts": self.artifacts,
            "lost_artifacts": self.lost_artifacts,
            "points": self.points,
            "verdict": self.verdict,
            "closed": self.is_closed,
            "extensions": self.extensions,
            "at": self.at,
            "error": self.error,
        }
        for begin in range(0, len(self.streams), _PER_LINE):
            some = range(begin, min(begin + _PER_LINE, len(self.streams)))
            yield {
                "streams": [
                    [stream.key, stream.id, stream.revision]
                    for stream in self.streams[begin : begin + _PER_LINE]
                ],
                "cover": [
                    [number, first, last]
                    for number in some
                    for first, last in self.streams[number].coverage
                ],
            }
        for begin in range(0, len(reported := sorted(self.reported)), _PER_LINE):
            yield {"reported": reported[begin : begin + _PER_LINE]}
        yield {"fly": [flight.wire() for flight in self.flights.values()]}
        asides = [[self.number[it.key], it.seq, it.size, it.why] for it in self.aside]
        yield {"aside": asides}
        yield {"aside_count": self.aside_count}

    # --- what a change may hold -------------------------------------------------------------------

    def _run(self, run: str) -> None:
        """Turn to a run document; all that was remembered belongs to the one before.

        Before the first one there is only what no server takes, which stays true.
        """
        if not self.run:
            self.run = run
        elif run != self.run:
            empty = State(run=run, at=self.at, error=self.error)
            for name in self.__slots__:
                setattr(self, name, getattr(empty, name))

    def _streams(self, entries: list[Any]) -> None:
        for key, id_, revision in entries:
            known = self.stream(key)
            if known is None:
                self.number[key] = len(self.streams)
                self.streams.append(Stream(key, id_, revision))
            else:
                known.id, known.revision = id_, revision

    def _cover(self, entries: list[Any]) -> None:
        for number, first, last in entries:
            self.streams[number].coverage.add(first, last)

    def _forget(self, numbers: list[int]) -> None:
        """Forget what is dealt with of some streams, and how far was read; it is told anew."""
        self.cursors.clear()
        for number in numbers:
            self.streams[number].coverage = Coverage()

    def _fly(self, entries: list[Any]) -> None:
        for entry in entries:
            flight = Flight(*entry)
            self.flights[flight.batch_id] = flight

    def _ack(self, batch_ids: list[str]) -> None:
        for batch_id in batch_ids:
            flight = self.flights.pop(batch_id, None)
            if flight is not None:
                self.streams[flight.stream].coverage.add(flight.start, flight.last)
                self.points += flight.count

    def _drop(self, batch_ids: list[str]) -> None:
        for batch_id in batch_ids:
            self.flights.pop(batch_id, None)

    def _aside(self, entries: list[Any]) -> None:
        for number, seq, size, why in entries:
            aside = Aside(self.streams[number].key, seq, size, why)
            if aside in self.aside:
                continue  # Read again, after what the server has was found out anew.
            self.aside_count += 1
            if len(self.aside) < MAX_ASIDE:
                self.aside.append(aside)

    def _artifacts(self, ids: dict[str, str]) -> None:
        self.artifacts.update(ids)
        for id_ in ids:
            for each in superseded(self.artifacts, id_):
                del self.artifacts[each]

    def _cursors(self, cursors: dict[str, str]) -> None:
        self.cursors.update(cursors)


def _setter(name: str) -> Any:  # Any: a function of a state and whatever the field holds.
    return lambda state, value: setattr(state, name, value)


_FIELDS: Final[dict[str, Any]] = {
    "run": State._run,
    "project": _setter("project"),
    "token": _setter("token"),
    "next": _setter("token_next"),
    "generation": _setter("generation"),
    "participants": lambda state, value: state.participants.update(value),
    "epochs": lambda state, value: state.epochs.update(value),
    "streams": State._streams,
    "forget": State._forget,
    "cover": State._cover,
    "fly": State._fly,
    "ack": State._ack,
    "drop": State._drop,
    "aside": State._aside,
    "aside_count": _setter("aside_count"),
    "cursors": State._cursors,
    "artifacts": State._artifacts,
    "lost_artifacts": lambda state, value: state.lost_artifacts.extend(value),
    "points": _setter("points"),
    "verdict": _setter("verdict"),
    "closed": _setter("is_closed"),
    "reported": lambda state, value: state.reported.update(value),
    "extensions": _setter("extensions"),
    "at": _setter("at"),
    "error": _setter("error"),
}


class Journal:
    """The state of one run and one server in the hands of one holder; belongs to one thread.

    Use `open_journal`. `doubt` says why the state cannot be trusted, "" when it can.
    """

    def __init__(self, directory: Path, epoch: int, identity: Mapping[str, str]) -> None:
        self.directory = directory
        self.state = State()
        self.doubt = ""
        self.name = ""
        self._epoch = epoch
        self._identity = dict(identity)
        self._part = 0
        self._descriptor = -1
        self._good = 0
        self._snapshot_bytes = 0
        self._later: list[bytes] = []

    def later(self, change: Mapping[str, Any]) -> None:
        """Apply a change now and make it durable with the next `write` or `flush`.

        For what may be lost: the end of a flight, which is only sent once more without it.
        """
        self._later.append(_line({"k": "set", **change}))
        self.state.apply(change)

    def write(self, change: Mapping[str, Any]) -> None:
        """Make a change durable, and all that waited; then apply it.

        Raises:
            OSError: The change is not applied; it may or may not be in the file.
        """
        self._append([*self._later, _line({"k": "set", **change})])
        self._later.clear()
        self.state.apply(change)
        if self._good > max(COMPACT_BYTES, 4 * self._snapshot_bytes):
            with contextlib.suppress(OSError):  # The longer file will do as well.
                self.begin()

    def flush(self) -> None:
        """Make durable what waited.

        Raises:
            OSError: It still waits.
        """
        if self._later:
            self._append(self._later)
            self._later.clear()

    def begin(self) -> None:
        """Start a file with all that is known, and remove what it replaces.

        Raises:
            OSError: Nothing changed.
        """
        part = self._part + 1
        name = state_name(self._epoch, part)
        hidden = self.directory / layout.hidden_name(name)
        descriptor = os.open(hidden, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o640)
        try:
            head = {
                "k": "open",
                "fmt": FORMAT,
                **self._identity,
                "ino": os.fstat(descriptor).st_ino,
            }
            data = b"".join(map(_line, ({"k": "set", **it} for it in self.state.snapshot())))
            data = _line(head) + data + _line({"k": "whole"})
            _write_at(descriptor, data, 0)
            os.rename(hidden, self.directory / name)
        except BaseException:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                os.unlink(hidden)
            raise
        _sync_directory(self.directory)
        self._close()
        self._descriptor, self._part, self.name = descriptor, part, name
        self._good = self._snapshot_bytes = len(data)
        self._later.clear()  # It is in the snapshot.
        for other in _files(self.directory):
            if other < (self._epoch, part):
                with contextlib.suppress(OSError):
                    os.unlink(self.directory / state_name(*other))

    def close(self) -> None:
        """Make durable what waited, if that can be done, and let go of the file."""
        with contextlib.suppress(OSError):
            self.flush()
        self._close()

    def _close(self) -> None:
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = -1

    def _append(self, lines: list[bytes]) -> None:
        data = b"".join(lines)
        # A write that failed half way left bytes behind; they must not follow what comes now.
        if os.fstat(self._descriptor).st_size > self._good:
            os.ftruncate(self._descriptor, self._good)
        _write_at(self._descriptor, data, self._good)
        self._good += len(data)

    def read(self) -> None:
        """Take in the newest file of an earlier holder; what cannot be trusted sets `doubt`.

        Raises:
            OSError: The directory or the file cannot be read.
        """
        earlier = [found for found in _files(self.directory) if found < (self._epoch, 0)]
        if not earlier:
            return
        name = state_name(*max(earlier))
        with open(self.directory / name, "rb") as file:
            inode = os.fstat(file.fileno()).st_ino
            lines = file.read().split(b"\n")
        try:
            self._take(lines, inode)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            self.state, self.doubt = State(), f"{name} is damaged: {error}"

    def _take(self, lines: list[bytes], inode: int) -> None:
        head = open_line(lines[0])
        if head is None or head.get("k") != "open" or head.get("fmt") != FORMAT:
            raise ValueError("it does not begin like one of ours")
        if any(head.get(name) != value for name, value in self._identity.items()):
            raise ValueError("it is of another run or server")
        values = [open_line(line) for line in lines[1:-1]]
        while values and values[-1] is None:
            values.pop()  # Torn while it was written: nobody acted on it.
        if None in values:
            raise ValueError("a line in it is bad")
        if not any(value is not None and value.get("k") == "whole" for value in values):
            raise ValueError("it was cut off")
        for value in values:
            if value is not None and value.get("k") == "set":
                self.state.apply(value)
        if head.get("ino") != inode:
            self.doubt = "the directory is a copy"


def open_journal(directory: Path, epoch: int, *, run_id: str, origin: str, org: str) -> Journal:
    """Take over the state of a run as the holder of a lease; durable on return.

    Call it after the lease was taken: an intent that the holder before wrote in time is then seen.

    Raises:
        OSError: It cannot be read or written.
    """
    journal = Journal(directory, epoch, {"run": run_id, "server": origin, "org": org})
    journal.read()
    journal.begin()
    return journal


def server_hex(origin: str, organization: str) -> str:
    """Name the folder of one server and organisation."""
    return hashlib.sha256(f"{origin}\n{organization}".encode()).hexdigest()[:16]


def find_place(
    run_directory: Path, run_id: str, origin: str, organization: str, *, state_root: Path
) -> Path:
    """Return the directory of the state, made where needed: in the run, else the user's own.

    Raises:
        OSError: Neither can be written.
    """
    name = server_hex(origin, organization)
    inside = run_directory / layout.SYNC / name
    try:
        inside.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError):
            mode = inside.parent.stat().st_mode & 0o7777
            if inside.stat().st_mode & 0o7777 != mode:
                inside.chmod(mode)
        probe = inside / layout.hidden_name("probe")
        os.close(os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        os.unlink(probe)
        return inside
    except OSError as error:
        if error.errno not in _READ_ONLY:
            raise
    outside = state_root / run_id / name
    outside.mkdir(parents=True, exist_ok=True, mode=0o700)
    return outside


def write_acked(directory: Path, said: Mapping[str, Any]) -> None:
    """Put `acked.json` in place; a failure is of no consequence."""
    text = json.dumps(said, indent=1, ensure_ascii=False).encode(errors="replace") + b"\n"
    with contextlib.suppress(OSError):
        write_durably(directory / ACKED, text)


def read_acked(directory: Path) -> dict[str, Any] | None:
    """Return what `acked.json` of a state directory says; None when there is none."""
    try:
        value = json.loads((directory / ACKED).read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def state_name(epoch: int, part: int) -> str:
    """Name a file of the state."""
    return f"state.{epoch:08d}.{part:05d}.jsonl"


def _files(directory: Path) -> list[tuple[int, int]]:
    found = map(_NAME.fullmatch, os.listdir(directory))
    return [(int(match[1]), int(match[2])) for match in found if match]


def _line(value: Mapping[str, Any]) -> bytes:
    return seal_line(dumps(value).encode(errors="surrogatepass")[1:])


def _write_at(descriptor: int, data: bytes, offset: int) -> None:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(descriptor, rest, offset)
        if written <= 0:
            raise OSError(errno.EIO, "the file system wrote nothing")
        offset += written
        rest = rest[written:]
    os.fsync(descriptor)


def _sync_directory(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
