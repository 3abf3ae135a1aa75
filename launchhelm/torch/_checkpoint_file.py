"""Writing one file whole or not at all: where that may be, and what is said when it fails."""

from __future__ import annotations

import os
import shutil
import stat
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import torch

from launchhelm.store import layout

_PROBE_BYTES: Final = 1 << 20


def target_of(path: str | os.PathLike[str]) -> Path:
    """Return the file that a path stands for, links followed.

    Raises:
        ValueError: It names no file, or something that is there and is no regular file.
        OSError: Its directory is not there or cannot be looked into.
    """
    if not os.fspath(path):
        raise ValueError('path="" names no file; give the name of a file, or no path at all')
    with suppress(FileNotFoundError):
        mode = os.stat(path).st_mode  # Before links are followed by name: a pipe has none.
        if not stat.S_ISREG(mode):
            raise ValueError(f"{os.fspath(path)} is {_what(mode)}, no file; give that of a file")
    target = Path(os.path.realpath(path))
    os.stat(target.parent)
    return target


def copy_whole(file: Path, to: Path) -> None:
    """Copy a file so that it appears whole, or not at all."""
    hidden = to.with_name(layout.hidden_name(to.name))
    try:
        shutil.copyfile(file, hidden)
        os.replace(hidden, to)
    except BaseException:
        discard(hidden)
        raise


def save_whole(payload: dict[str, Any], path: Path) -> None:
    """Save with torch to a name that is not there yet.

    Not to one that is: ext4 begins to write a file out, while its writer waits, when one that was
    there and was emptied is closed.

    Raises:
        OSError: It could not be written; its room is free again, and nothing holds it open.
        Exception: What is in the payload refuses to be saved, with the same effect.
    """
    with freed_on_failure(path.parent, lambda: [path]):
        torch.save(payload, path)


@contextmanager
def freed_on_failure(place: Path, files: Callable[[], Iterable[Path]]) -> Iterator[None]:
    """Where torch fails to write into some files, remove them and say why, which it does not.

    Args:
        place: What is named as the place that takes no more.
        files: Returns those that are there.

    Raises:
        OSError: One of them takes no more, or is not there.
        BaseException: All else that comes through.
    """
    try:
        yield
    except BaseException as error:
        written = list(files())
        why = _why(error, written)
        for path in written:
            with suppress(OSError):
                os.truncate(path, 0)  # Frees its room, also where somebody holds it open.
            discard(path)
        _let_go(error)
        if why is not None:
            raise OSError(why.errno, why.strerror, str(place)) from error
        raise


def discard(path: Path) -> None:
    """Remove a file that nobody needs, if it is there."""
    with suppress(OSError):
        os.unlink(path)


def _why(error: BaseException, files: Iterable[Path]) -> OSError | None:
    """Return what the disk says, where an error does not, or not of which place."""
    if isinstance(error, OSError) and error.errno is not None and error.filename is None:
        return error
    said = map(_refusal, files) if isinstance(error, RuntimeError) else ()
    return next((each for each in said if each is not None), None)


def _refusal(path: Path) -> OSError | None:
    """Return why a file takes no more, which torch does not say; None when it takes more."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            left = _PROBE_BYTES
            while left:
                left -= os.write(descriptor, bytes(left))
        finally:
            os.close(descriptor)
    except OSError as error:
        return error
    return None


def _let_go(error: BaseException | None) -> None:
    """Clear the frames that an error holds: torch's writer in them has its file open."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__


def _what(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a device")
