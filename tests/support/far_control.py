"""A server and a syncer on one host, which control a job on another by a folder that both see.

    python far_control.py FOLDER ROOT RUN SAID COUNT LIMIT_S

The same as a program, for a host that has no other way to be told: it leaves FOLDER/driven.json.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support import sync_command
from tests.support.commanding import Desk, wait
from tests.support.sync_command import SyncCommand
from tests.support.v1_server import PROJECT, v1_server

RESULT = "driven.json"


@dataclass
class Driven:
    """What came of it.

    Args:
        took: Seconds from `submit` to the end being visible, of each command.
        said: How each ended, and its result.
        steps: Of every point of `loss` that the server has, in order.
    """

    took: list[float]
    said: list[tuple[str, dict[str, list[float]] | None]]
    steps: list[int]

    def check(self, applied: list[float], *, median_s: float) -> None:
        """Check that all was applied once and in order, soon enough, and every point is there."""
        median = statistics.median(self.took)
        print(
            f"\nsubmitted to visible as applied, {len(self.took)} commands from another host: "
            f"median {median:.2f} s, most {max(self.took):.2f} s",
            end="",
        )
        wanted = [float(number) for number in range(len(self.took))]
        assert [tuple(each) for each in self.said] == [("applied", {"lr": [it]}) for it in wanted]
        assert applied == wanted
        assert self.steps and self.steps == list(range(len(self.steps)))
        assert median < median_s


def drive(folder: Path, root: Path, run: str, said: Path, count: int, limit_s: float) -> Driven:
    """Command a job of `commanding.training`, let it end, and wait until all of it has arrived.

    Args:
        folder: Of this host alone.
        root: Where this host sees the run.
        run: Its id.
        said: As of `training`; it lies outside the shared folder.
    """
    took, ends = [], []
    with v1_server(folder / "far") as server:
        sync = SyncCommand(folder, server.url, server.key, {"LAUNCHHELM_PROJECT": PROJECT})
        desk = Desk(server, run)
        with sync.watching(root):
            wait(lambda: list(desk.client.list_documents("capability")), "a control", limit_s)
            for number in range(count):
                began = time.monotonic()
                command = desk.submit("set_lr", {"lr": float(number)})
                ended = desk.ended(command, limit_s)
                took.append(time.monotonic() - began)
                ends.append((ended["execution"], ended["result"]))
            Path(f"{said}.end").touch()
            wait(
                lambda: sync_command.run_states(server) == {"commanded": "closed"},
                "its end",
                limit_s,
            )
        desk.close()
        found = sync_command.points(server, "loss")
        sync_command.assert_single(found)
        return Driven(took, ends, sync_command.steps(found))


if __name__ == "__main__":
    where = Path(sys.argv[1])
    driven = drive(
        where,
        Path(sys.argv[2]),
        sys.argv[3],
        Path(sys.argv[4]),
        int(sys.argv[5]),
        float(sys.argv[6]),
    )
    (where / f"{RESULT}.new").write_text(json.dumps(asdict(driven)))
    (where / f"{RESULT}.new").rename(where / RESULT)
