"""A checkpoint of either SDK goes on in the other, and one of ours reaches a server unchanged."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import launchhelm.torch as lht
from tests.contract.official.checkpoint_parts import losses, parts
from tests.support.journals import records
from tests.support.official import ROOT, Driver, command, documents, outcome, why_missing
from tests.support.one_rank import commanded
from tests.support.v1_server import V1Server, v1_process

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_missing()), reason=why_missing()),
    pytest.mark.timeout(300),
]

SCHEDULE = "CosineAnnealingLR"


class Ours:
    """The same training with our SDK, in this process."""

    def __init__(self, root: Path) -> None:
        self.model, self.optimizer, self.scheduler = parts(SCHEDULE)
        self.trainer = lht.init("contract", name="our-checkpoints", state_dir=root)
        self.trainer.watch(self.model, self.optimizer, self.scheduler)
        self.level = self.trainer.tunable("level", 1)

    def train(self, steps: int) -> list[float]:
        def end(loss: float) -> None:
            self.trainer.step(loss=loss)

        return losses(self.model, self.optimizer, self.scheduler, steps, end)

    @property
    def rates(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]


def told(driver: Driver, **order: Any) -> dict[str, Any]:
    """Give the official side an order, and return what it says when that is done."""
    driver.tell(json.dumps(order))
    return dict(driver.said("done"))


def synced(server: V1Server, root: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "launchhelm", "--root", str(root), "sync"],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "LAUNCHHELM_URL": server.url,
            "LAUNCHHELM_API_KEY": server.key,
            "LAUNCHHELM_ORGANIZATION": server.organization,
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def test_each_sdk_goes_on_from_what_the_other_has_saved(tmp_path: Path) -> None:
    """To the last bit; and where a command scaled the schedule, at the rate that was in effect."""
    theirs, mine, root = tmp_path / "theirs.pt", tmp_path / "mine.pt", tmp_path / "runs"
    ours = Ours(root)
    with v1_process(tmp_path / "server") as server:
        driver = Driver(server, "checkpoint_run", SCHEDULE, directory=tmp_path / "cwd")
        try:
            official_run = driver.said("ready")["run_id"]

            told(driver, do="train", steps=5)
            told(driver, do="save", path=str(theirs))
            there = told(driver, do="train", steps=5)["losses"]
            assert ours.trainer.load_checkpoint(theirs) == {"note": "official"}
            assert ours.trainer.global_step == 5
            assert ours.train(5) == there

            ours.level.take(4)
            ours.trainer.save_checkpoint(mine, extra={"note": "ours"})
            here = ours.train(5)
            loaded = told(driver, do="load", path=str(mine))
            assert (loaded["step"], loaded["extra"]) == (10, {"note": "ours"})
            assert loaded["level"] == 4
            assert told(driver, do="train", steps=5)["losses"] == here

            # Ours was commanded: the official side knows no multipliers and goes on all the same.
            assert commanded(ours.trainer, "lr", {"scale": 0.5}).state == "applied"
            assert commanded(ours.trainer, "grad_clip", {"max_norm": 3.0}).state == "applied"
            ours.train(2)
            ours.trainer.save_checkpoint(mine)
            loaded = told(driver, do="load", path=str(mine))
            assert loaded["rates"] == pytest.approx(ours.rates)
            assert loaded["grad_clip"] == 3.0
            here = ours.train(5)
            there = told(driver, do="train", steps=5)
            assert there["losses"] == pytest.approx(here, rel=1e-5)
            assert there["rates"] == pytest.approx(ours.rates)

            # Theirs was commanded, which scaled the fields of the schedule.
            id_ = command(server, official_run, "lr", {"scale": 0.25})
            told(driver, do="command")
            assert outcome(server, id_)["execution"] == "applied"
            told(driver, do="save", path=str(theirs))
            there = told(driver, do="train", steps=5)
            ours.trainer.load_checkpoint(theirs)
            assert ours.train(5) == there["losses"]
            assert ours.rates == there["rates"]

            # And what our syncer brings to a server is what the official SDK gets from there.
            ours.trainer.save_checkpoint()
            ours.trainer.finish()
            synced(server, root)
            kept = records(ours.trainer.run.directory, "art")
            newest = ours.trainer.run.directory / "media" / kept[-1].body["sha256"]
            digest = hashlib.sha256(newest.read_bytes()).hexdigest()
            (run,) = (
                each
                for each in server.get("documents", kind="run")["items"]
                if each["spec"]["name"] == "our-checkpoints"
            )
            assert told(driver, do="fetch", run="our-checkpoints")["sha256"] == digest
            states = [each["spec"]["state"] for each in documents(server, "artifact", run["id"])]
            assert states == ["ready"] * len(kept)
        finally:
            driver.close()
