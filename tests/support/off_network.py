"""Run a command in a network of its own, in which there is nothing but loopback.

    subprocess.run(off_network([sys.executable, "train.py"]))

The kernel holds every process of the command to it, in whatever language: the loopback of this
namespace is another one than ours, so not even a server on this machine can be reached. Root can
leave the network; anybody else can in a user namespace, as Debian allows by default. Files,
processes and the user stay what they are.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_PR_SET_DUMPABLE = 4
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1


def off_network(command: Sequence[str]) -> list[str]:
    """Return the command that runs this one without a network."""
    return [sys.executable, "-P", str(Path(__file__).resolve()), *command]


def why_not() -> str:
    """Return "" when this machine lets us leave its network, else why it does not."""
    done = subprocess.run(off_network(["true"]), capture_output=True, text=True)
    return done.stderr.strip().rpartition("\n")[2]


def leave() -> None:
    """Take this process, which has one thread, into a network namespace of its own.

    Raises:
        OSError: This kernel or container allows none.
    """
    user, group = os.geteuid(), os.getegid()
    # Who has just become another user may not write to its own /proc/self otherwise.
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
    try:
        _unshare(_CLONE_NEWNET)
    except PermissionError:
        _unshare(_CLONE_NEWNET | _CLONE_NEWUSER)
        # Everybody stays who they are, so that the owners of files say the same on both sides.
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as door:
        fcntl.ioctl(door, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))


def _unshare(flags: int) -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(flags):
        number = ctypes.get_errno()
        raise OSError(number, f"unshare: {os.strerror(number)}")


if __name__ == "__main__":
    leave()
    os.execvp(sys.argv[1], sys.argv[1:])
