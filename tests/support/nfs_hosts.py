"""Two kernels with an NFS mount each, and the server: tests/rig/two-host-nfs.sh as an object."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[1] / "rig" / "two-host-nfs.sh"


def missing() -> str:
    """Say what the rig lacks here, "" when it can run."""
    if os.geteuid() != 0:
        return "the NFS rig needs root"
    for tool in ("linux.uml", "uml_switch", "rpc.nfsd", "mkfs.ext4", "gcc"):
        if shutil.which(tool, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is None:
            return f"the NFS rig needs {tool}; `make rig` installs it"
    return ""


class NfsHosts:
    """Guests `a` and `b` share `shared` by NFS; `srv` serves it. Paths are the same in all.

    Args:
        directory: An empty folder for the rig's state, on this machine's own disk.
        version: Of NFS: 3, 4.0, 4.1 or 4.2.
        mount_options: More mount options, such as "nolock".
    """

    def __init__(self, directory: Path, *, version: str = "4.2", mount_options: str = "") -> None:
        self.shared = directory / "shared"
        self._environment = {
            **os.environ,
            "RIG": str(directory),
            "IMG": f"/dev/shm/{directory.name}-{os.getpid()}.img",
            "VERS": version,
            "MOPTS": mount_options,
        }
        self._script("up")

    def run(self, guest: str, command: str) -> str:
        """Run a command in a guest and return what it printed."""
        return self._script("run", guest, command)

    def start(self, guest: str, command: str) -> str:
        """Start a command in a guest; return its ticket."""
        return self._script("bg", guest, command).strip()

    def collect(self, ticket: str) -> str:
        """Wait until what was started has ended, and return what it printed."""
        return self._script("wait", ticket)

    def crash(self, guest: str) -> None:
        """Cut a guest's power."""
        self._script("crash", guest)

    def boot(self, guest: str) -> None:
        """Start it again and wait until it is there."""
        self._script("boot", guest)

    def down(self) -> None:
        """Stop everything."""
        self._script("down")

    def _script(self, *arguments: str) -> str:
        # To a file: the guests inherit it, and a pipe would stay open as long as they live.
        log = Path(self._environment["RIG"]) / "script.log"
        with open(log, "wb") as output:
            done = subprocess.run(
                [str(SCRIPT), *arguments],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=180,
            )
        text = log.read_text(errors="replace")
        assert done.returncode == 0 or arguments[0] in ("down", "crash"), text
        return text
