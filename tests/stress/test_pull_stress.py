"""Syncers, ranks and servers killed at random while commands of a server are under way."""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from syncer.server import lifecycle
from tests.support.commanding import Desk, is_final, training, wait
from tests.support.pull_storm import Storm
from tests.support.sync_command import SyncCommand, lease_of
from tests.support.v1_server import PROJECT, v1_server

pytestmark = [pytest.mark.stress, pytest.mark.timeout(7200)]

KILLS = int(os.environ.get("LAUNCHHELM_TEST_KILLS", "50"))
SEED = int(os.environ.get("LAUNCHHELM_TEST_SEED", "1"))


def test_no_command_is_applied_twice_or_lost_however_often_the_syncer_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "LEASE_S", 4.0)
    root = tmp_path / "runs"
    root.mkdir()
    chance = random.Random(1)
    given: list[dict[str, Any]] = []
    is_over = threading.Event()
    with (
        v1_server(tmp_path / "far") as server,
        training(root, tmp_path / "said") as job,
    ):
        desk = Desk(server, job.directory.name)
        sync = SyncCommand(tmp_path, server.url, server.key, {"LAUNCHHELM_PROJECT": PROJECT})
        sync.change = lease_of(0.3)

        def give() -> None:
            """Give one command after the other, each when the one before has ended."""
            while not is_over.is_set():
                given.append(desk.submit("set_lr", {"lr": float(len(given))}))
                desk.ended(given[-1], 600.0)

        giver = threading.Thread(target=give, daemon=True)
        giver.start()
        for _ in range(KILLS):
            with sync.watching(root) as syncer:
                wait(progress(given), "a command to be under way", 120.0)
                is_over.wait(chance.uniform(0.0, 0.7))
                syncer.kill()
        is_over.set()
        with sync.watching(root):
            giver.join(600.0)
            wait(lambda: all(is_final(desk.get(it)) for it in given), "every final outcome")
            job.end()
        assert sync.once(root).code == 0
        ends = [desk.get(it) for it in given]
        outcomes = job.outcomes()
        applied = Counter(job.applied)
        desk.close()
    said = Counter((it["execution"], it["failure_code"]) for it in ends)
    print(f"{KILLS} kills, {len(given)} commands: {dict(said)}")
    assert max(applied.values()) == 1
    for number, end in enumerate(ends):
        local = [it.state for it in outcomes.get(end["id"], [])]
        if end["execution"] == "applied":
            assert applied[float(number)] == 1 and local == ["applied"]
        else:
            assert end["execution"] == "rejected", end
            assert applied[float(number)] == 0 and local == []


@pytest.mark.parametrize(
    ("thread", "service", "kills"),
    [
        (False, True, {"syncer": KILLS, "rank 0": KILLS, "any rank": KILLS, "server": KILLS}),
        (True, False, {"rank 0": KILLS, "any rank": KILLS, "server": KILLS}),
        (
            True,
            True,
            {
                "holder": KILLS,
                "any rank": KILLS // 5,
                "server": KILLS // 5,
                "service cleanly": KILLS // 5,
                "sleeping service": KILLS // 5,
            },
        ),
    ],
    ids=["service", "thread", "handed-over"],
)
def test_kills_leave_every_command_with_one_outcome_on_which_ranks_run_and_server_agree(
    tmp_path: Path, thread: bool, service: bool, kills: dict[str, int]
) -> None:
    with Storm(tmp_path, seed=SEED, thread=thread, service=service, ranks=3) as storm:
        storm.rage(kills)
        counts = storm.check()
    print(f"seed {SEED}:", *(f"{count:6} {what}" for what, count in counts.items()), sep="\n")
    assert counts["ended: applied"] >= KILLS


def test_a_job_that_torchrun_restarts_keeps_its_commands_apart(tmp_path: Path) -> None:
    with Storm(tmp_path, seed=SEED, torchrun=True) as storm:
        storm.rage({"rank 0": 3, "any rank": 2, "syncer": 2, "server": 1})
        counts = storm.check()
    print(f"seed {SEED}:", *(f"{count:6} {what}" for what, count in counts.items()), sep="\n")
    assert counts["attempts"] == 6


def progress(given: list[dict[str, Any]]) -> Callable[[], bool]:
    """Return what says whether there are more than now."""
    had = len(given)
    return lambda: len(given) > had
