"""Two hosts that share a folder: the FUSE rig of tests/rig, as a Python object."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

RIG = Path(__file__).resolve().parents[1] / "rig"
SCRIPT = RIG / "two-host-mounts.sh"

ENOSPC, EIO, ESTALE, EDQUOT = 28, 5, 116, 122


def missing() -> str:
    """Say what the rig lacks here, "" when it can run."""
    if os.geteuid() != 0:
        return "the two-host rig needs root"
    if not os.path.exists("/dev/fuse"):
        return "the two-host rig needs /dev/fuse, which this kernel or container does not give"
    for tool in ("gcc", "pkg-config", "fusermount3", "mountpoint"):
        if shutil.which(tool) is None:
            return f"the two-host rig needs {tool} (Debian: fuse3 libfuse3-dev pkg-config gcc)"
    if subprocess.run(["pkg-config", "--exists", "fuse3"]).returncode:
        return "the two-host rig needs libfuse3-dev"
    return ""


class TwoHosts:
    """Host A writes, host B reads; both see one folder, each through caches of its own.

    Args:
        directory: An empty folder for the rig; `a` and `b` in it are the mounts.
        program: A built `hostfs2`, copied instead of compiled again.
        lock: "local": locks work within one host. "none": they fail.
        negative_s: Seconds for which host B believes that a missing name stays missing.
    """

    def __init__(
        self, directory: Path, *, program: Path, lock: str = "local", negative_s: float = 3
    ) -> None:
        self._directory = directory
        self.a = directory / "A"
        self.b = directory / "B"
        shutil.copy(program, directory / "hostfs2")
        self._script("up", LOCK=lock, NEG=str(negative_s))

    def fault(self, rules: str) -> None:
        """Make operations of host A fail: lines of `OPERATION ERRNO [PERCENT [PART-OF-PATH]]`."""
        self._script("fault", "A", rules)

    def heal(self) -> None:
        """End all faults."""
        self._script("fault", "A", "")

    def crash(self) -> None:
        """Cut host A's power: what it had not sent to the server is gone; it boots again."""
        self._script("crash")

    def down(self) -> None:
        """Unmount both."""
        self._script("down")

    def _script(self, command: str, *arguments: str, **variables: str) -> None:
        done = subprocess.run(
            [str(SCRIPT), command, str(self._directory), *arguments],
            env={**os.environ, **variables},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=60,
        )
        # The mounts' daemons keep stderr open only until they are in the background.
        assert done.returncode == 0, done.stderr.decode()


def build(into: Path) -> Path:
    """Compile hostfs2 once per test session."""
    flags = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "fuse3"], check=True, capture_output=True, text=True
    ).stdout.split()
    program = into / "hostfs2"
    source = RIG / "hostfs2.c"
    subprocess.run(["gcc", "-O2", "-o", str(program), str(source), *flags], check=True)
    return program
