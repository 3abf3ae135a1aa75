"""What the file system under a directory does when it is tried, and how much room it has."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from launchhelm import _wording
from launchhelm._clock import SYSTEM_CLOCK, Clock
from launchhelm.doctor.finding import Finding
from launchhelm.errors import ConfigError
from launchhelm.store.layout import hidden_name
from launchhelm.store.mount import self_test

SKEW_S: Final = 5.0
"""More than this between our clock and the file server's is worth a word."""

LOW_BYTES: Final = 1 << 30
NO_BYTES: Final = 64 << 20
"""The writer of one rank may hold as much in memory as it could not write."""

LOW_FILES: Final = 1000
NO_FILES: Final = 50

_ELSEWHERE: Final = "or set LAUNCHHELM_DIR to a directory on another file system"


def writable(directory: Path) -> list[Finding]:
    """Try what a run needs: write, sync, rename, list, read, delete. Locks are tried and noted."""
    try:
        warnings = self_test(directory)
    except ConfigError as error:
        return [_refused(directory, error)]
    return [
        Finding(
            "locks",
            "note",
            str(directory),
            "The file system has no file locks.",
            text,
            "Nothing has to be done for runs. Databases of other programs belong elsewhere.",
        )
        for text in warnings
    ]


def _refused(directory: Path, error: ConfigError) -> Finding:
    number = error.__cause__.errno if isinstance(error.__cause__, OSError) else None
    about, evidence = str(directory), error.message
    if number in (errno.ENOSPC, errno.EDQUOT):
        what = "quota is used up" if number == errno.EDQUOT else "file system is full"
        remedy = f"Remove what is not needed (launchhelm clean names old runs), {_ELSEWHERE}."
        return Finding(
            "full", "error", about, f"The {what}: nothing can be written.", evidence, remedy
        )
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        remedy = f"Ask its owner for write permission, {_ELSEWHERE}."
        if number == errno.EROFS:
            remedy = f"Have it mounted for writing, {_ELSEWHERE}."
        return Finding("writable", "error", about, "It cannot be written.", evidence, remedy)
    happened = "The file system does not do what a run needs."
    return Finding("writable", "error", about, happened, evidence, f"Repair it, {_ELSEWHERE}.")


def exclusive(directory: Path) -> list[Finding]:
    """See that a name can be made once only: attempts and leases are numbered by that."""
    try:
        with _scratch(directory) as path:
            made = [_made_again(path)]
            folder = directory / hidden_name("doctor")
            os.mkdir(folder, 0o700)
            try:
                os.mkdir(folder, 0o700)
                made.append("mkdir")
            except FileExistsError:
                pass
            finally:
                os.rmdir(folder)
    except OSError as error:
        return [_failed("exclusive", directory, error)]
    return [
        Finding(
            "exclusive",
            "error",
            str(directory),
            "The file system makes the same name twice.",
            f"A second {how} of a name that was there succeeded.",
            f"Two jobs could take one run here. Use another mount option, {_ELSEWHERE}.",
        )
        for how in made
        if how
    ]


def _made_again(path: Path) -> str:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return ""
    return "open with O_EXCL"


def replaces(directory: Path) -> list[Finding]:
    """See that a rename over a name that is there puts the new file in its place, at once."""
    try:
        with _scratch(directory, b"new") as new, _scratch(directory, b"old") as old:
            os.rename(new, old)
            there, gone = old.read_bytes() == b"new", new.name not in os.listdir(directory)
    except OSError as error:
        return [_failed("rename", directory, error)]
    if there and gone:
        return []
    seen = "the old name is still listed" if there else "the old content is still there"
    return [
        Finding(
            "rename",
            "error",
            str(directory),
            "A rename does not replace a file at once.",
            f"After it, {seen}.",
            f"Commands and manifests could be read in part. Repair it, {_ELSEWHERE}.",
        )
    ]


def clock(directory: Path, clock: Clock = SYSTEM_CLOCK) -> list[Finding]:
    """Compare our clock with the file server's, by the time of a file made just now."""
    try:
        before = clock.wall()
        with _scratch(directory) as path:
            modified_at = path.stat().st_mtime
        after = clock.wall()
    except OSError as error:
        return [_failed("clock", directory, error)]
    skew_s = max(modified_at - after, before - modified_at)
    if skew_s <= SKEW_S:
        return []
    way = "behind" if modified_at > after else "ahead of"
    return [
        Finding(
            "clock",
            "warning",
            str(directory),
            f"The clock of {os.uname().nodename} is {_wording.duration(skew_s)} {way} "
            "that of the file server.",
            f"A file made now has the time {modified_at:.0f}; here it is {after:.0f}.",
            "No decision rests on it, but times of different hosts will look wrong: start a time "
            "service (chronyd, systemd-timesyncd).",
        )
    ]


def room(directory: Path) -> list[Finding]:
    """Look how many bytes and files are left to us. A quota of one user is not seen here."""
    try:
        facts = os.statvfs(directory)
    except OSError as error:
        return [_failed("room", directory, error)]
    found = []
    free = facts.f_bavail * facts.f_frsize
    if free < LOW_BYTES:
        found.append(
            Finding(
                "room",
                "error" if free < NO_BYTES else "warning",
                str(directory),
                "The file system is nearly full.",
                f"{free / (1 << 20):,.0f} MiB are free.",
                f"Make room (launchhelm clean names old runs), {_ELSEWHERE}.",
            )
        )
    if facts.f_files and facts.f_favail < LOW_FILES:
        found.append(
            Finding(
                "files",
                "error" if facts.f_favail < NO_FILES else "warning",
                str(directory),
                "The file system has nearly no room for more files.",
                f"{facts.f_favail:,} of {facts.f_files:,} inodes are free.",
                f"A run needs 10, and 4 per rank and attempt. Remove files, {_ELSEWHERE}.",
            )
        )
    return found


def _failed(check: str, directory: Path, error: OSError) -> Finding:
    happened = "The file system does not let this be tried."
    said = f"{error.filename or directory}: {error.strerror or error}"
    return Finding(check, "error", str(directory), happened, said, f"Repair it, {_ELSEWHERE}.")


@contextmanager
def _scratch(directory: Path, content: bytes = b"") -> Iterator[Path]:
    """Make a hidden file; it is gone afterwards."""
    path = directory / hidden_name("doctor")
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        try:
            os.write(descriptor, content)
        finally:
            os.close(descriptor)
        yield path
    finally:
        with suppress(FileNotFoundError):
            os.unlink(path)
