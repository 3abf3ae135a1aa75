"""Checkpoints that a framework wrote, copied into the run by a thread beside the training.

`keep`, on the thread that trains, only opens the files. So the framework may delete them as soon
as it likes: what is open can still be read. A directory becomes one tar. What cannot be copied is
said in the run and left where the framework put it.

The end of the run waits for the copies, however it comes, for COPY_S at most. A copy is recorded
before that end or leaves nothing behind: who first takes the lock of the two decides.
"""

from __future__ import annotations

import logging
import os
import shutil
import stat
import tarfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from launchhelm.run import Run
from launchhelm.store import media

MAX_FILES: Final = 512
"""Of one checkpoint; each is an open file until it is copied."""
SPARE: Final = 3
"""A copy is made while the disk has room for so many: the next checkpoint must not miss it."""

COPY_S: Final = 7.0
"""What the end of a run waits for its copies."""
RECORDS_S: Final = 3.0
"""What of its time the end of a run needs for the records, after them."""

_CHUNK_BYTES: Final = 1 << 20
_log = logging.getLogger("launchhelm")


class Archive:
    """The checkpoints of one training. One copy is made at a time, in the order of `keep`.

    Each is recorded as an artifact whose id is a point of the metric `name`.
    """

    def __init__(self, run: Run, name: str) -> None:
        self._run = run
        self._name = name
        self._turn = threading.Lock()
        self._threads: dict[threading.Thread, Path] = {}
        self._recording = threading.Lock()
        """Held from where a copy is certain to be recorded until it is."""
        self._is_closed = False
        run.before_finish(self.close)

    def keep(self, path: Path, *, step: int) -> None:
        """Take a file or directory as it is now; its copy is made later. Never raises."""
        try:
            held = _Held(path)
        except OSError as error:
            self._say(path, f"it cannot be opened ({error.strerror or error})")
            return
        if len(held.files) > MAX_FILES:
            held.close()
            self._say(path, f"it has more than {MAX_FILES} files")
            return
        if held.size == 0:
            held.close()
            return
        thread = threading.Thread(
            target=self._copy, args=(held, step), name="launchhelm-archive", daemon=True
        )
        self._threads[thread] = path
        thread.start()

    def wait(self, timeout_s: float) -> None:
        """Wait until everything taken is copied, for so long at most."""
        deadline = time.monotonic() + timeout_s
        for thread in list(self._threads):
            thread.join(max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        """Wait for the copies while the run's end has time; give up the rest, and say so."""
        self.wait(min(COPY_S, self._run.finish_left_s - RECORDS_S))
        is_certain = self._recording.acquire(timeout=min(1.0, max(0.0, self._run.finish_left_s)))
        self._is_closed = True
        if is_certain:
            self._recording.release()
        for thread, path in self._threads.items():
            if thread.is_alive():
                self._say(path, "the run ended before that")

    def _copy(self, held: _Held, step: int) -> None:
        try:
            with self._turn:
                free = shutil.disk_usage(self._run.directory).free
                if free < SPARE * held.size:
                    self._say(held.path, f"only {free >> 20:,} MiB are free for the run")
                    return
                kind = "application/x-tar" if held.is_directory else "application/octet-stream"
                with ExitStack() as held_for_record:
                    stored = media.put(
                        self._run.directory,
                        self._unless_closed(held.chunks()),
                        before_rename=lambda: self._claim(held_for_record),
                    )
                    self._run.keep_stored(stored, step=step, name=self._name, media_type=kind)
        except _Closed:
            pass  # Said by close().
        except Exception as error:  # Protects the training: the thread ends, and says why.
            self._say(held.path, str(error) or type(error).__name__)
        finally:
            held.close()

    def _unless_closed(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            if self._is_closed:
                raise _Closed
            yield chunk

    def _claim(self, until_recorded: ExitStack) -> None:
        until_recorded.enter_context(self._recording)
        if self._is_closed:
            raise _Closed

    def _say(self, path: Path, why: str) -> None:
        text = f"{path} was not copied into the run: {why}. It is left where it is."
        _log.warning("launchhelm: %s", text)
        self._run.notice(text, about="checkpoints")


class _Closed(Exception):
    """The run ends while a copy is made."""


class _Held:
    """A file, or all files below a directory, open for reading.

    Raises:
        OSError: One of them cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_directory = path.is_dir()
        self.files: list[tuple[str, int, os.stat_result]] = []
        try:
            for each in sorted(path.rglob("*")) if self.is_directory else [path]:
                descriptor = os.open(each, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                found = os.fstat(descriptor)
                if stat.S_ISREG(found.st_mode) and len(self.files) <= MAX_FILES:
                    self.files.append((str(each.relative_to(path.parent)), descriptor, found))
                else:
                    os.close(descriptor)
        except OSError:
            self.close()
            raise
        self.size = sum(found.st_size for _, _, found in self.files)

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes of the file, or those of a tar of the directory.

        Raises:
            OSError: A file was changed since it was opened.
        """
        for name, descriptor, found in self.files:
            if self.is_directory:
                header = tarfile.TarInfo(name)
                header.size, header.mtime = found.st_size, int(found.st_mtime)
                yield header.tobuf()
            yield from _read(name, descriptor, found)
            if self.is_directory:
                yield bytes(-found.st_size % tarfile.BLOCKSIZE)
        if self.is_directory:
            yield bytes(2 * tarfile.BLOCKSIZE)

    def close(self) -> None:
        """Let go of the files."""
        while self.files:
            os.close(self.files.pop()[1])


def _read(name: str, descriptor: int, found: os.stat_result) -> Iterator[bytes]:
    position = 0
    while chunk := os.pread(descriptor, _CHUNK_BYTES, position):
        position += len(chunk)
        yield chunk
    now = os.fstat(descriptor)
    if position != found.st_size or now.st_mtime_ns != found.st_mtime_ns:
        raise OSError(f"{name} was changed while it was copied")
