"""What the file system under a run directory can do: read from the mount table, then tried."""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from launchhelm.errors import ConfigError
from launchhelm.store.layout import hidden_name

_MOUNTS: Final = Path("/proc/self/mounts")
# fmt: off
_NETWORK: Final = frozenset((
    "9p", "afs", "afpfs", "beegfs", "ceph", "cifs", "coda", "gfs2", "glusterfs", "gpfs",
    "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb2", "smb3",
    "smbfs", "virtiofs", "wekafs",
))
# fmt: on
_NO_LOCKS: Final = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL, errno.EIO)


def is_network(path: Path) -> bool:
    """Whether other hosts may see this directory, as far as the mount table says."""
    try:
        table = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
        wanted = os.path.realpath(path)
    except OSError:
        return False
    best, kind = "", ""
    for line in table.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = fields[1].replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
        inside = wanted == point or wanted.startswith(point.rstrip("/") + "/")
        # Of two mounts on one point, the later line is the one that is seen.
        if inside and len(point) >= len(best):
            best, kind = point, fields[2]
    return kind in _NETWORK or kind.startswith("fuse")


def self_test(run_directory: Path) -> list[str]:
    """Try what a run needs with one small scratch file: write, sync, rename, list, read, delete.

    Returns:
        One sentence for each thing that is missing but can be done without.

    Raises:
        ConfigError: The directory cannot hold a run.
    """
    name = "self-test"
    made = run_directory / hidden_name(name)
    renamed = run_directory / hidden_name(name)
    warnings: list[str] = []
    try:
        descriptor = os.open(made, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(descriptor, b"one\n", 0)
            os.fsync(descriptor)
            os.pwrite(descriptor, b"two\n", 4)
            os.fsync(descriptor)
            if not _locks(descriptor):
                warnings.append(
                    f"{run_directory} is on a file system without file locks. "
                    "Runs need none; other programs may fail to open its databases."
                )
        finally:
            os.close(descriptor)
        os.rename(made, renamed)
        with os.scandir(run_directory) as entries:
            listed = any(entry.name == renamed.name for entry in entries)
        if not listed or renamed.read_bytes() != b"one\ntwo\n":
            raise ConfigError(
                f"The file system of {run_directory} does not give back what was written to it.",
                remedy="Set LAUNCHHELM_DIR to a directory on a disk or a shared file system.",
            )
        os.unlink(renamed)
    except OSError as error:
        raise ConfigError(
            f"The directory {run_directory} cannot hold a run: {error.strerror or error}.",
            remedy="Make room or permissions there, or set LAUNCHHELM_DIR to another directory.",
        ) from error
    finally:
        for path in (made, renamed):
            # Either it never came to be, or its deletion is what failed.
            with suppress(OSError):
                os.unlink(path)
    return warnings


def _locks(descriptor: int) -> bool:
    """Whether record locks work on this file. They are tried only; nothing of ours uses them."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.lockf(descriptor, fcntl.LOCK_UN)
    except OSError as error:
        return error.errno not in _NO_LOCKS
    return True
