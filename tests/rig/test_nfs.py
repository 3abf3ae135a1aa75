"""The promises of the quick rig again, on real NFS clients and a real NFS server: `make rig`."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.rig.reader import Tally, promised
from tests.support import nfs_hosts as rig
from tests.support.commanding import TRAIN
from tests.support.far_control import RESULT, Driven
from tests.support.nfs_hosts import NfsHosts

pytestmark = pytest.mark.rig

DEADLINE_S = 400.0
HERE = Path(__file__).resolve().parent
PROGRAM = f"OMP_NUM_THREADS=1 exec {sys.executable}"


@pytest.fixture(params=["4.2", "3"], scope="module")
def nfs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NfsHosts]:
    """The rig with NFS 4.2, then with NFS 3 where locks are local to each host."""
    if why := rig.missing():
        pytest.skip(why)
    options = "nolock" if request.param == "3" else ""
    directory = tmp_path_factory.mktemp(f"nfs{request.param.replace('.', '')}-")
    hosts = NfsHosts(directory, version=request.param, mount_options=options)
    yield hosts
    hosts.down()


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {DEADLINE_S:.0f} s until {what}"
        time.sleep(0.05)


def end_writers(nfs: NfsHosts, folder: Path, count: int, end: Callable[[], None]) -> None:
    """End `count` writers on host a at random moments while host b reads."""
    root = nfs.shared / folder.name
    code = f"import sys; sys.path.insert(0, {str(HERE.parents[1])!r}); from pathlib import Path\n"
    code += "from tests.rig.writer import new_run\n"
    script = folder / "new.py"
    script.write_text(code + f"print(new_run(Path({str(root)!r})))")
    run = root / nfs.run("a", f"{PROGRAM} {script}").split()[-1]
    nfs.start("b", f"{PROGRAM} {HERE / 'reader.py'} {run} {folder}")

    promises = folder / "promises"
    moment = random.Random(11)
    for attempt in range(1, count + 1):
        before = len(promised(promises))
        nfs.start(
            "a", f"echo $$ >{folder}/pid; {PROGRAM} {HERE / 'writer.py'} {run} {promises} {attempt}"
        )
        wait_until(lambda n=before: len(promised(promises)) > n, "the writer promises")
        time.sleep(moment.uniform(0, 0.5))  # The moment is the point: nothing to wait for.
        end()
    (folder / "stop").touch()
    wait_until((folder / "tally.json").exists, "the reader has read all")
    value = json.loads((folder / "tally.json").read_text())
    tally = Tally(**value)
    kept = promised(promises)
    print(
        f"\n{count} ends: {sum(kept.values()):,} records promised by {len(kept)} writers, "
        f"{sum(map(len, tally.steps.values())):,} read in {tally.polls} polls, "
        f"{tally.doubled} doubled, {len(tally.errors)} errors, {len(tally.gaps)} gaps"
    )
    tally.assert_kept(kept)
    assert len(kept) == count


def test_a_killed_writer_on_nfs_loses_nothing_that_flush_promised(
    nfs: NfsHosts, tmp_path: Path
) -> None:
    def kill() -> None:
        nfs.run("a", f"kill -9 $(cat {tmp_path}/pid)")

    end_writers(nfs, tmp_path, int(os.environ.get("RIG_KILLS", "25")), kill)


def test_a_power_cut_of_an_nfs_client_loses_nothing_that_flush_promised(
    nfs: NfsHosts, tmp_path: Path
) -> None:
    def cut_power() -> None:
        nfs.crash("a")
        nfs.boot("a")

    end_writers(nfs, tmp_path, int(os.environ.get("RIG_CUTS", "7")), cut_power)


def test_a_power_cut_of_the_nfs_server_loses_nothing_that_flush_promised(
    nfs: NfsHosts, tmp_path: Path
) -> None:
    """The server comes back with its disk; the writer lives on, then is killed."""

    def cut_server() -> None:
        nfs.crash("srv")
        nfs.boot("srv")
        promises = tmp_path / "promises"
        before = sum(promised(promises).values())
        wait_until(lambda: sum(promised(promises).values()) > before, "the writer goes on")
        nfs.run("a", f"kill -9 $(cat {tmp_path}/pid)")

    end_writers(nfs, tmp_path, int(os.environ.get("RIG_SERVER_CUTS", "3")), cut_server)


def test_commands_of_a_server_reach_a_job_on_another_nfs_client(
    nfs: NfsHosts, tmp_path: Path
) -> None:
    """Host a trains; server, syncer and whoever gives commands are on host b."""
    root, said = nfs.shared / f"{tmp_path.name}-runs", tmp_path / "said"
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    said.touch()
    surroundings = f"PYTHONPATH={HERE.parents[1]} {PROGRAM}"
    nfs.run("a", f"mkdir {root}")
    job = nfs.start("a", f"{surroundings} {script} {root} {said} 0.05")
    find = f"until ls {root}/*/run.json 2>/dev/null; do sleep 0.1; done"
    run = Path(nfs.run("a", find).split()[-1]).parent.name
    count = os.environ.get("RIG_COMMANDS", "20")
    program = HERE.parent / "support" / "far_control.py"
    words = f"{tmp_path} {root} {run} {said} {count} {DEADLINE_S}"
    control = nfs.start("b", f"{surroundings} {program} {words}")
    wait_until(Path(f"{control}.rc").exists, "all of it has arrived")
    nfs.collect(control)
    nfs.collect(job)
    driven = Driven(**json.loads((tmp_path / RESULT).read_text()))
    driven.check([json.loads(line) for line in said.read_text().splitlines()], median_s=5.0)
