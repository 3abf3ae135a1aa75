"""Whether the parts of a checkpoint in shards are all there, told without torch.

Its index (`.metadata`) and the file that names its directory are pickles. They are read by an
unpickler for which every class is a blank: nothing in them runs.
"""

from __future__ import annotations

import errno
import os
import pickle
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final  # Any: whatever a pickle holds.

from launchhelm.store import layout, media

INDEX: Final = ".metadata"

LIST_FORMAT: Final = "launchhelm.offline.shards/1"
"""Of the list of shards that goes to a server with them."""

LIST_LABEL: Final = "launchhelm.offline.shards"
"""In the provenance of a checkpoint on a server: the id of that list."""

_OURS: Final = "launchhelm.offline"
_PARTS: Final = "parts"
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


class _Blank:
    """Stands for an object of any class: takes what it is given, does nothing."""

    def __new__(cls, *_: Any, **__: Any) -> _Blank:
        return super().__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __call__(self, *_: Any, **__: Any) -> _Blank:
        return self

    def __setitem__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)


class _Blind(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return _Blank

    def persistent_load(self, pid: Any) -> Any:
        return _Blank()


def parts_of(checkpoint: Path) -> str:
    """Return the name of the directory in checkpoints/ that a checkpoint's file needs, or ""."""
    import zipfile  # Not before one is looked for: every verb that opens a run would load it.

    try:
        with zipfile.ZipFile(checkpoint) as archive:
            entry = next(it for it in archive.infolist() if it.filename.endswith("/data.pkl"))
            if entry.compress_type != zipfile.ZIP_STORED:
                return ""  # Not torch's, and there is no telling how large it becomes.
            with archive.open(entry) as file:
                ours = _read(file).get(_OURS)
        return Path(str(ours[_PARTS])).name
    except Exception:  # No checkpoint, a damaged one, or one that is whole in its file.
        return ""


def parts_named(run_directory: Path, record: Mapping[str, Any]) -> str:
    """Return `parts_of` the checkpoint of an `art` record; its file is read if that does not say.

    Raises:
        StorageError: The record names no file.
    """
    said = record.get("parts")
    if isinstance(said, str):
        return Path(said).name
    return parts_of(media.path_of(run_directory, str(record.get("sha256"))))


def missing(run_directory: Path, name: str) -> list[str]:
    """Say what of one directory in checkpoints/ is not there, or shorter than its index says."""
    directory = run_directory / layout.CHECKPOINTS / name
    try:
        ends = needed(run_directory, name)
    except ValueError as error:
        return [str(error)]
    said = []
    for part, end in ends.items():
        try:
            size = os.stat(directory / part).st_size
        except OSError as error:
            said.append(f"{layout.CHECKPOINTS}/{name}/{part}: {error.strerror or error}")
            continue
        if size < end:
            said.append(f"{layout.CHECKPOINTS}/{name}/{part}: {size:,} of {end:,} bytes")
    return said


def needed(run_directory: Path, name: str) -> dict[str, int]:
    """Return the parts that the index of one directory in checkpoints/ names, by name, and how long
    each must be at least. The index is not among them.

    Raises:
        ValueError: There is no index, or a damaged one; the text says which.
    """
    where = f"{layout.CHECKPOINTS}/{name}/{INDEX}"
    try:
        with open(run_directory / where, "rb") as file:
            return dict(sorted(_ends(_read(file)).items()))
    except OSError as error:
        raise ValueError(f"{where}: {error.strerror or error}") from None
    except Exception as error:  # A damaged pickle raises nearly anything.
        raise ValueError(f"{where} is damaged: {type(error).__name__}") from None


@contextmanager
def opened(run_directory: Path, name: str, part: str) -> Iterator[int]:
    """Open one file of a directory in checkpoints/ to be read, and follow no link on the way.

    Nothing says what its bytes must be; so it must not be another's file.

    Raises:
        OSError: It cannot be opened, or is no ordinary file.
    """
    folder = os.open(run_directory / layout.CHECKPOINTS, _FOLDER)
    try:
        inner = os.open(name, _FOLDER, dir_fd=folder)
        try:
            descriptor = os.open(part, _FILE, dir_fd=inner)
        finally:
            os.close(inner)
    finally:
        os.close(folder)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Not an ordinary file", part)
        yield descriptor
    finally:
        os.close(descriptor)


def finished(run_directory: Path) -> Iterator[str]:
    """Yield the directories of checkpoints/ that have an index, which is written last."""
    try:
        names = sorted(os.listdir(run_directory / layout.CHECKPOINTS))
    except OSError:
        return
    for name in names:
        if os.path.lexists(run_directory / layout.CHECKPOINTS / name / INDEX):
            yield name


def _read(file: IO[bytes]) -> Any:
    return _Blind(file).load()


def _ends(index: Any) -> dict[str, int]:
    """Return how long each part must be at least."""
    ends: dict[str, int] = {}
    for each in index.storage_data.values():
        part = Path(str(each.relative_path)).name
        if part in ("", "..") or b"\0" in os.fsencode(part):
            raise ValueError(f"{part!r} is no name of a file")
        ends[part] = max(ends.get(part, 0), int(each.offset) + int(each.length))
    return ends
