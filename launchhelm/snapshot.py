"""A consistent copy of a run, also while its processes write, seal and die.

Why it is one: a process writes its records one after the other, and a file that a listing shows
beside a later one of the same process is complete. So the files of one listing, each cut behind its
last whole line, are a beginning of that process's records without a hole. What records point to
(media, large bodies, the file of an attempt) was durable before them, so it is copied after them.

The copy is made under a hidden name beside its place, read back, compared, and only then takes its
name. Whatever stops it, the hidden copy is gone on with by the next call for the same place. The
source is only read; no link in it is followed.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final  # Any: JSON of a record.

from launchhelm._clock import SYSTEM_CLOCK, Clock
from launchhelm.errors import ConfigError, StorageError
from launchhelm.store import layout, shards
from launchhelm.store.journal import whole_lines
from launchhelm.store.line import is_intact
from launchhelm.store.manifest import load_manifest, sync_directory, write_durably
from launchhelm.store.reader import LOST, PATIENCE_S, Reader, has_vanished
from launchhelm.views import open_run, whole
from launchhelm.views.fold import whole_body
from launchhelm.views.whole import files_of

_SKIPPED: Final = frozenset({layout.DATA, layout.CONTROL, layout.SYNC, layout.WHOLE, layout.SUMS})
"""Data is copied before the rest. Commands are meant for the run itself, a syncer's notes are of
its own directory, and what is derived can be made again.
"""

_CHUNK_BYTES: Final = 1 << 20
_TAIL_BYTES: Final = 64 << 10
_LISTINGS: Final = 8
_LOOK_AGAIN_S: Final = 0.5
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_GROWING: Final = (".json", ".jsonl")
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A copy that is complete.

    Args:
        files: How many it holds, its list of digests left out; `size_bytes`: their bytes.
        kept: Files that an earlier, interrupted call had copied.
        problems: What is damaged or missing in the run itself, or was left out, one sentence each.
    """

    run_id: str
    directory: Path
    files: int
    size_bytes: int
    kept: int
    problems: tuple[str, ...]


def take(
    source: Path,
    target: Path,
    *,
    with_media: bool = True,
    clock: Clock = SYSTEM_CLOCK,
    sleep: Callable[[float], None] = time.sleep,
    note: Callable[[int, int], object] = lambda files, size_bytes: None,
) -> Snapshot:
    """Copy a run directory; `target` appears whole, and is durable on return.

    Args:
        source: The run directory.
        target: The run directory of the copy: a name that is free, or an empty directory.
        with_media: Whether artifacts and media come along. Bodies of records always do.
        note: Told now and then how many files and bytes are there.

    Raises:
        ConfigError: The target cannot be one; nothing was written.
        NotFound: There is no run at the source.
        StorageError: The source cannot be read, or the target not written. What was copied waits
            under a hidden name beside the target.
    """
    view = open_run(source)
    source = Path(os.path.realpath(source))
    target = Path(os.path.realpath(target.parent)) / target.name
    staging = target.with_name(f".{target.name}.snapshot")
    _check_place(source, target, staging, view.run_id)
    copy = _Copy(source, staging, note)
    try:
        copy.begin()
        copy.data(0.0 if view.state.is_over else PATIENCE_S, clock, sleep)
        named = _named_media(staging, source)
        copy.others(frozenset() if with_media else named, with_checkpoints=with_media)
        copy.check(named if with_media else frozenset())
        if with_media:
            copy.check_shards()
        copy.end(target)
    except OSError as error:
        raise StorageError(
            f"{error.filename or staging}: {error.strerror or error}.",
            kept=f"The run was only read. What was copied, {len(copy.sums):,} files, is {staging}.",
            remedy="Make room or permissions; the same command goes on from there.",
        ) from error
    return Snapshot(
        view.run_id, target, len(copy.sums), copy.size_bytes, copy.kept, tuple(copy.problems)
    )


class _Copy:
    """The hidden copy while it is made.

    Attributes:
        sums: The digest of each file that is there, by its path below the run directory.
        size_bytes: Of all of them.
    """

    def __init__(self, source: Path, staging: Path, note: Callable[[int, int], object]) -> None:
        self.problems: dict[str, None] = {}
        self.sums: dict[str, str] = {}
        self.size_bytes = 0
        self.kept = 0
        self._source = source
        self._staging = staging
        self._note = note
        self._sizes: dict[str, int] = {}
        self._mode = 0o700

    # --- what is copied, in this order ------------------------------------------------------------

    def begin(self) -> None:
        """Make the folder of the copy, or go on in it; say in it which run it is of."""
        parent = self._staging.parent
        parent.mkdir(parents=True, exist_ok=True)
        if parent.stat().st_mode & stat.S_ISGID:
            self._mode = 0o2770
        for name in ("", layout.DATA, layout.CONTROL, layout.ATTEMPTS, layout.SYNC):
            self._folder(name)
        with _opened(self._source, _FOLDER) as folder:
            if layout.MANIFEST in os.listdir(folder):
                self._file(folder, layout.MANIFEST, layout.MANIFEST)

    def data(self, patience_s: float, clock: Clock, sleep: Callable[[float], None]) -> None:
        """Copy the records of all processes, as one listing shows them.

        Args:
            patience_s: For how long a damaged line may be one that is being written again.
        """
        until = clock.monotonic() + patience_s
        while (torn := self._data_once()) and clock.monotonic() < until:
            sleep(_LOOK_AGAIN_S)
        self._note_problems(f"{name} has a damaged line, copied as it is" for name in torn)

    def _data_once(self) -> list[str]:
        """Copy what one listing shows; return the journals in which a line is not whole."""
        torn, names = [], set()
        data = self._source / layout.DATA
        with _opened(data, _FOLDER) as folder:
            # One listing alone may miss a file that takes another name while it is made.
            found = {*os.listdir(folder), *os.listdir(data)}
            for listed in sorted(filter(layout.parse_segment, found)):
                name = listed
                try:
                    is_torn = self._segment(folder, name)
                except OSError as error:
                    # It was sealed meanwhile. What is sealed holds all that the journal held.
                    name = listed.removesuffix(".jsonl") + ".db"
                    if not has_vanished(error) or name == listed or name not in os.listdir(data):
                        raise
                    is_torn = self._segment(folder, name)
                names.add(f"{layout.DATA}/{name}")
                if is_torn:
                    torn.append(name)
        for path in self.sums.keys() - names - {layout.MANIFEST}:
            del self.sums[path]
            self.size_bytes -= self._sizes.pop(path)
        self._forget_others(layout.DATA)
        return torn

    def _segment(self, folder: int, name: str) -> bool:
        """Copy one file of data/; return whether it is a journal with a line that is not whole."""
        path = f"{layout.DATA}/{name}"
        if name.endswith(".db"):
            self._file(folder, name, path)
            return False
        if not self._file(folder, name, path, end=_end_of_lines):
            return False
        with _opened(self._staging / path, _READ) as descriptor:
            lines = whole_lines(descriptor, 0, self._sizes[path])
            return not all(is_intact(line) for _, _, line in lines)

    def others(self, left_out: frozenset[str], *, with_checkpoints: bool) -> None:
        """Copy everything else, except media whose digest is in `left_out`.

        Args:
            with_checkpoints: Whether shards come along, and checkpoints not known to be good yet.
        """
        for root, folders, names, folder in os.fwalk(self._source, onerror=_raise):
            below = os.path.relpath(root, self._source)
            prefix = "" if below == "." else f"{below}/"
            skipped = _SKIPPED if not prefix else left_out if below == layout.MEDIA else frozenset()
            if not prefix and not with_checkpoints:
                skipped |= {layout.CHECKPOINTS}
            folders[:] = [name for name in folders if name[0] != "." and name not in skipped]
            for name in folders:
                if stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode):
                    self._folder(prefix + name)
                else:
                    self._note_problems([f"{prefix}{name} is a link; it was left out"])
            for name in names:
                # A checkpoint that is not ready yet has a hidden name, and a record that names it.
                is_unready = below == layout.MEDIA and name.startswith(layout.UNREADY)
                is_index = name == shards.INDEX and prefix.startswith(f"{layout.CHECKPOINTS}/")
                is_ours = is_index or (is_unready and with_checkpoints)
                if name in skipped or (name[0] == "." and not is_ours):
                    continue
                # A name that is gone by now was no part of any record: those stay.
                with suppress(FileNotFoundError):
                    self._file(folder, name, prefix + name)
        self._forget_others("")

    def check(self, named: frozenset[str]) -> None:
        """Make all durable, read it back, and say what is missing or damaged in the run itself."""
        for path, expected in self.sums.items():
            with _opened(self._staging / path, _READ) as descriptor:
                os.fsync(descriptor)
                # What is read back shall come from the disk.
                with suppress(OSError):
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                if _digest(descriptor, self._sizes[path]) != expected:
                    where = str(self._staging / path)
                    raise OSError(errno.EIO, "It does not read back as it was written", where)
            folder, _, name = path.rpartition("/")
            if folder == layout.MEDIA and name != expected and name[0] != ".":
                self._note_problems([f"{path} is damaged in the run itself"])
        absent = sorted(digest for digest in named if f"{layout.MEDIA}/{digest}" not in self.sums)
        self._note_problems(f"{layout.MEDIA}/{digest} is not in the run" for digest in absent)
        reader = Reader(self._staging, kinds=("close",), patience_s=0.0)
        for _ in range(_LISTINGS):
            reader.poll()
        lost = [gap for gap in reader.gaps if gap.why in LOST]
        self._note_problems(
            [
                *reader.problems,
                *(f"{gap.writer}: records {gap.first} to {gap.last} are missing" for gap in lost),
            ]
        )

    def check_shards(self) -> None:
        """Say which parts of checkpoints the run has no more."""
        reader = Reader(self._staging, kinds=("art",), patience_s=0.0)
        records = [record for _ in range(_LISTINGS) for record in reader.poll()]
        self._note_problems(
            whole.missing_parts(self._staging, [it for each in records for it in files_of(each)])
        )

    def end(self, target: Path) -> None:
        """Give the copy its name."""
        lines = "".join(_sum_line(path, self.sums[path]) for path in sorted(self.sums))
        write_durably(self._staging / layout.SUMS, lines.encode(errors="surrogateescape"))
        for root, _, _ in os.walk(self._staging):
            sync_directory(Path(root))
        os.rename(self._staging, target)
        sync_directory(target.parent)

    # --- one file ---------------------------------------------------------------------------------

    def _file(
        self, folder: int, name: str, path: str, *, end: Callable[[int, int], int] | None = None
    ) -> bool:
        """Copy a file unless the same bytes are there; return whether it is one.

        Args:
            folder: Descriptor of the folder in which `name` stands.
            path: Below the run directory.
            end: Tells up to where a file that may grow is copied.
        """
        try:
            descriptor = os.open(name, _READ, dir_fd=folder)
        except OSError as error:
            if error.errno == errno.ELOOP:
                self._note_problems([f"{path} is a link; it was left out"])
                return False
            error.filename = str(self._source / path)
            raise
        try:
            facts = os.fstat(descriptor)
            if not stat.S_ISREG(facts.st_mode):
                self._note_problems([f"{path} is no file; it was left out"])
                return False
            size = end(descriptor, facts.st_size) if end else facts.st_size
            if end is None and self._sizes.get(path) == size:
                return True
            found = self._found(path, descriptor, size)
            self.kept += bool(found) and path not in self.sums
            self.sums[path] = found or self._written(path, descriptor, size)
            self.size_bytes += size - self._sizes.get(path, 0)
            self._sizes[path] = size
        finally:
            os.close(descriptor)
        self._note(len(self.sums), self.size_bytes)
        return True

    def _found(self, path: str, source: int, size: int) -> str:
        """Return the digest of what is there already, "" when it is not the same."""
        with suppress(FileNotFoundError), _opened(self._staging / path, _READ) as descriptor:
            if os.fstat(descriptor).st_size == size:
                digest = _digest(descriptor, size)
                return digest if digest == _digest(source, size) else ""
        return ""

    def _written(self, path: str, source: int, size: int) -> str:
        """Copy bytes and return their digest, as they were read. `check` makes them durable."""
        place = self._staging / path
        with suppress(FileNotFoundError):
            os.unlink(place)
        digest = hashlib.sha256()
        copied = 0
        with _opened(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC) as descriptor:
            for chunk in _chunks(source, size):
                digest.update(chunk)
                rest = memoryview(chunk)
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
                copied += len(chunk)
                self._note(len(self.sums), self.size_bytes + copied)
            os.fchmod(descriptor, 0o640 if path.endswith(_GROWING) else 0o440)
        return digest.hexdigest()

    def _folder(self, path: str) -> None:
        folder = self._staging / path
        with suppress(FileExistsError):
            folder.mkdir(mode=self._mode & 0o777)
            folder.chmod(self._mode)

    def _forget_others(self, below: str) -> None:
        """Remove what an earlier call copied and the run has no more."""
        for root, _, names in os.walk(self._staging / below):
            for name in names:
                path = os.path.relpath(os.path.join(root, name), self._staging)
                if path not in self.sums:
                    os.unlink(self._staging / path)

    def _note_problems(self, problems: Iterable[str]) -> None:
        self.problems.update(dict.fromkeys(problems))


# --- places -----------------------------------------------------------------------------------


def _check_place(source: Path, target: Path, staging: Path, run_id: str) -> None:
    if target.is_relative_to(source) or source.is_relative_to(target):
        raise ConfigError(
            f"{target} and the run {source} lie in one another.",
            remedy="Name a place outside the run directory.",
        )
    try:
        is_free = not os.path.lexists(target) or (
            stat.S_ISDIR(os.lstat(target).st_mode) and not os.listdir(target)
        )
    except OSError:
        is_free = False
    if not is_free:
        raise ConfigError(
            f"{target} exists; a copy is never written over anything.",
            remedy="Name a place that is free.",
        )
    with suppress(FileNotFoundError):
        other = load_manifest(staging).run_id
        if other != run_id:
            raise ConfigError(
                f"{staging} is an unfinished copy of another run, {other}.",
                remedy="Finish or remove that one, or name another place.",
            )


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


# --- bytes ------------------------------------------------------------------------------------


def _chunks(descriptor: int, size: int) -> Iterator[bytes]:
    position = 0
    while position < size:
        chunk = os.pread(descriptor, min(_CHUNK_BYTES, size - position), position)
        if not chunk:
            raise OSError(errno.ESTALE, "A file became shorter while it was copied")
        position += len(chunk)
        yield chunk


def _digest(descriptor: int, size: int) -> str:
    digest = hashlib.sha256()
    for chunk in _chunks(descriptor, size):
        digest.update(chunk)
    return digest.hexdigest()


def _end_of_lines(descriptor: int, size: int) -> int:
    """Return the offset behind the last whole line of a journal."""
    position = size
    while position > 0:
        start = max(0, position - _TAIL_BYTES)
        newline = os.pread(descriptor, position - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        position = start
    return 0


def _sum_line(path: str, digest: str) -> str:
    escaped = path.replace("\\", "\\\\").replace("\n", "\\n")
    return f"{'' if escaped == path else chr(92)}{digest}  {escaped}\n"


# --- media ------------------------------------------------------------------------------------


def _named_media(copy: Path, source: Path) -> frozenset[str]:
    """Return the digests of the artifacts and media that records of the copy name."""
    found: set[str] = set()
    reader = Reader(copy, kinds=("art", "rich"), patience_s=0.0)
    for _ in range(_LISTINGS):
        for record in reader.poll():
            found.update(_digests(whole_body(source, record.body)))
    return frozenset(found)


def _digests(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        digest = value.get("sha256")
        if isinstance(digest, str):
            yield digest
        value = value.values()
    elif not isinstance(value, list):
        return
    for item in value:
        yield from _digests(item)


def _raise(error: OSError) -> None:
    raise error
