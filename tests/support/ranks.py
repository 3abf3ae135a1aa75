"""Start N real processes joined by gloo on 127.0.0.1, watch them, and collect how they ended.

    def body(rank, size, tell, steps):            # a module-level function of the test's file
        ...
        tell("half way")                          # a marker that the test can wait for
        return {"lr": 0.1}                        # JSON; comes back as Ended.value

    ended = run_ranks(body, 4, steps=100)         # asserts that every rank ended with status 0
    with Ranks(body, 4, steps=100) as ranks:      # or by hand
        ranks.wait_for(1, "half way")
        ranks.kill(1)
        ended = ranks.wait()

Importing torch costs seconds, so one server process imports it once and forks every rank from
there. A rank ends like a script: it falls off the end of its main module and the interpreter shuts
down in full, so exit status and stderr say what a user would see. No rank can outlive its deadline:
it has an alarm set, and prints all its stacks shortly before.
"""

from __future__ import annotations

import atexit
import faulthandler
import importlib
import importlib.util
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 60.0

SHARDING = ("torch.distributed.fsdp", "torch._dynamo", "launchhelm.torch")
"""What ranks with a sharded model import."""

_MARK = "TESTS_SUPPORT_RANKS"


@dataclass(frozen=True)
class Ended:
    """How one rank ended.

    Args:
        rank: Its global rank.
        code: Exit status, or minus the signal that killed it.
        value: What the body returned, None when it did not come so far.
        stdout: All it printed.
        stderr: All it complained about.
    """

    rank: int
    code: int
    value: Any  # Any: JSON of the test's own making.
    stdout: str
    stderr: str


class Tell:
    """A rank's way to say that it has come somewhere, and to see how many others have."""

    def __init__(self, directory: Path, rank: int) -> None:
        self._directory = directory
        self._rank = rank

    def __call__(self, word: str) -> None:
        (self._directory / f"{self._rank}.told.{word}").touch()

    def told(self, word: str, count: int) -> bool:
        """Whether that many ranks have told this word."""
        return len(list(self._directory.glob(f"*.told.{word}"))) >= count


class Ranks:
    """N running ranks of one body; a context manager that leaves none behind.

    Args:
        body: Module-level function `body(rank, size, tell, **arguments)`.
        size: World size.
        deadline_s: Seconds after which a rank is killed by its own alarm.
        group: Whether to call `init_process_group("gloo")` before the body.
        environment: Extra environment variables, the same for all ranks.
        imports: Modules that take long to import; the server does that once.
        arguments: Passed to the body; JSON.
    """

    def __init__(
        self,
        body: Callable[..., Any],
        size: int,
        *,
        deadline_s: float = DEADLINE_S,
        group: bool = True,
        environment: Mapping[str, str] | None = None,
        imports: Sequence[str] = (),
        **arguments: Any,
    ) -> None:
        # A body's file is executed in every rank; starting ranks there would never end.
        assert _MARK not in os.environ, "a rank cannot start ranks: guard the script's main part"
        self.size = size
        self._deadline = time.monotonic() + deadline_s + 10.0
        self._scratch = tempfile.TemporaryDirectory(prefix="ranks-")
        self.directory = Path(self._scratch.name)
        self.pids: list[int] = _server().start(
            {
                "file": body.__code__.co_filename,
                "function": body.__qualname__,
                "size": size,
                "directory": str(self.directory),
                "arguments": arguments,
                "deadline_s": deadline_s,
                "group": group,
                "environment": dict(environment or {}),
                "imports": list(imports),
                "port": _free_port(),
            }
        )

    def wait_for(self, rank: int, word: str) -> None:
        """Wait until that rank told that word; AssertionError when it ends first or is late."""
        marker = self.directory / f"{rank}.told.{word}"
        while not marker.exists():
            if self._status(rank) is not None and not marker.exists():
                raise AssertionError(f"rank {rank} ended before {word!r}: {self.ended(rank)}")
            self._pause(f"rank {rank} to tell {word!r}")

    def kill(self, rank: int, number: int = signal.SIGKILL) -> None:
        """Send a signal to one rank that still runs."""
        if self._status(rank) is None:
            os.kill(self.pids[rank], number)

    def wait(self, *which: int) -> list[Ended]:
        """Wait until these ranks (default: all) have ended."""
        chosen = which or tuple(range(self.size))
        while any(self._status(rank) is None for rank in chosen):
            self._pause(f"ranks {chosen} to end")
        return [self.ended(rank) for rank in chosen]

    def ended(self, rank: int) -> Ended:
        """Tell how a rank ended; it must have."""
        code = self._status(rank)
        assert code is not None, f"rank {rank} still runs"
        value = self.directory / f"{rank}.value"
        return Ended(
            rank=rank,
            code=code,
            value=json.loads(value.read_text()) if value.exists() else None,
            stdout=(self.directory / f"{rank}.out").read_text(errors="replace"),
            stderr=(self.directory / f"{rank}.err").read_text(errors="replace"),
        )

    def _status(self, rank: int) -> int | None:
        try:
            return int((self.directory / f"{rank}.status").read_text())
        except FileNotFoundError:
            return None

    def _pause(self, what: str) -> None:
        if time.monotonic() > self._deadline:
            raise AssertionError(f"waited too long for {what}")
        time.sleep(0.01)

    def __enter__(self) -> Ranks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        for rank in range(self.size):
            self.kill(rank)
        try:
            self.wait()
        finally:
            self._scratch.cleanup()


def run_ranks(body: Callable[..., Any], size: int, **options: Any) -> list[Ended]:
    """Run all ranks to their end and assert that each ended with status 0."""
    with Ranks(body, size, **options) as ranks:
        ended = ranks.wait()
    bad = [one for one in ended if one.code != 0]
    assert not bad, "\n".join(f"rank {one.rank}: status {one.code}\n{one.stderr}" for one in bad)
    return ended


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class _Server:
    """The process that has torch imported, seen from the test."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.ranks"],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        atexit.register(self.close)

    def start(self, job: Mapping[str, Any]) -> list[int]:
        """Fork the ranks of one job and return their process ids."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        pids: list[int] = json.loads(self._process.stdout.readline())
        return pids

    def close(self) -> None:
        """End the server; it kills what it forked."""
        if self._process.stdin is not None and self._process.stdout is not None:
            self._process.stdin.close()
            self._process.wait(timeout=20)
            self._process.stdout.close()


_the_server: _Server | None = None


def _server() -> _Server:
    global _the_server
    if _the_server is None:
        _the_server = _Server()
    return _the_server


# From here on: the code of the server and, after the fork, of a rank.


def _serve() -> tuple[Mapping[str, Any], int] | None:
    """Fork what stdin asks for. Returns (job, rank) in a new rank, None at the end of stdin."""
    import torch.distributed  # noqa: F401  The point of this process.

    running: dict[int, Path] = {}
    while True:
        ready, _, _ = select.select([0], [], [], 0.02)
        for pid in list(running):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                path = running.pop(pid)
                path.with_suffix(".part").write_text(str(os.waitstatus_to_exitcode(status)))
                path.with_suffix(".part").rename(path)
        if not ready:
            continue
        line = _read_line()
        if not line:
            for pid in running:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            return None
        job = json.loads(line)
        for name in job["imports"]:
            importlib.import_module(name)
        pids: list[int] = []
        for rank in range(job["size"]):
            pid = os.fork()
            if pid == 0:
                return job, rank
            running[pid] = Path(job["directory"]) / f"{rank}.status"
            pids.append(pid)
        print(json.dumps(pids), flush=True)


def _read_line() -> bytes:
    """Read one line without buffering ahead, so that select() keeps telling the truth."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            return b""
        line += byte
    return line


def _become(job: Mapping[str, Any], rank: int) -> None:
    """Run the body as this rank. Whatever it raises ends the process as it would end a script."""
    directory = Path(job["directory"])
    for number, path in ((0, Path(os.devnull)), (1, directory / f"{rank}.out")):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), number)
    os.dup2(os.open(directory / f"{rank}.err", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), 2)
    signal.setitimer(signal.ITIMER_REAL, job["deadline_s"])
    faulthandler.dump_traceback_later(max(0.5, job["deadline_s"] - 1.0))
    os.environ.update(
        {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(job["size"]),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(job["port"]),
            "GLOO_SOCKET_IFNAME": "lo",
            _MARK: "1",
            **job["environment"],
        }
    )
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    if job["group"]:
        dist.init_process_group("gloo", timeout=timedelta(seconds=60))

    specification = importlib.util.spec_from_file_location("body", job["file"])
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["body"] = module
    specification.loader.exec_module(module)
    value = getattr(module, job["function"])(
        rank, job["size"], Tell(directory, rank), **job["arguments"]
    )
    (directory / f"{rank}.value").write_text(json.dumps(value))


if __name__ == "__main__":
    chosen = _serve()
    if chosen is not None:
        _become(*chosen)
