"""The official SDK's client commands a job of ours, through our server and our syncer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.agreement import Given, check
from tests.support.jobs import NOTING_JOB, end_of_job, started_job, torchrun
from tests.support.off_network import off_network, why_not
from tests.support.official import Driver, why_missing
from tests.support.orders import PARTIAL_FAILURE, Order, orders
from tests.support.sync_command import SyncCommand
from tests.support.v1_server import PROJECT, v1_process

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(why_missing()), reason=why_missing()),
]

RANKS = 2
LIMIT_S = 200.0
NAMES = ("erase", "lr", "set_gain", "write")


class Controller:
    """The official client in a process of its own, which does what it is told."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def give(
        self,
        name: str,
        given: Any,
        *,
        decide: tuple[str, ...] = (),
        state: str = "",
        valid_s: float = 3600.0,
    ) -> dict[str, Any]:
        """Submit a command, decide about it, and return what the client then knows."""
        order = {
            "name": name,
            "given": given,
            "decide": decide,
            "state": state,
            "valid_s": valid_s,
        }
        self._driver.tell(json.dumps(order))
        facts: dict[str, Any] = self._driver.said_any(timeout_s=LIMIT_S)
        return facts

    def obey(self, order: Order) -> list[Given]:
        """Give an order and approve it where that is asked for; it must end as it must."""
        facts = self.give(
            order.name, order.given, decide=("approve",) if order.name == "erase" else ()
        )
        if order.end == "refused":
            assert facts == {"event": "refused", "code": "validation"}, order
            return []
        assert facts["before"] == ("pending_approval" if order.name == "erase" else "queued")
        told = facts["command"]
        assert (told["execution"], told["failure_code"]) == (order.end, order.code), (order, told)
        return [Given(order, told)]


def test_what_its_client_submits_approves_and_cancels_is_what_becomes_of_a_job_of_ours(
    tmp_path: Path,
) -> None:
    """At last a command that fails on one of two ranks."""
    if why := why_not():
        pytest.skip(f"a job cannot be kept off the network here: {why}")
    root, notes = tmp_path / "runs", tmp_path / "notes"
    root.mkdir()
    notes.mkdir()
    given: list[Given] = []
    with v1_process(tmp_path / "far") as server:
        sync = SyncCommand(tmp_path, server.url, server.key, {"LAUNCHHELM_PROJECT": PROJECT})
        job = off_network(torchrun(RANKS, NOTING_JOB, root, notes, server.url))
        driver = Driver(server, "commanding_job", server.project, directory=tmp_path / "cwd")
        try:
            with started_job(job, tmp_path) as process, sync.watching(root):
                assert set(NAMES) <= set(driver.said("offered", timeout_s=LIMIT_S)["names"])
                controller = Controller(driver)
                for order in orders(NAMES, 8, seed=1):
                    given += controller.obey(order)

                dropped = controller.give("erase", {}, decide=("cancel",))
                assert dropped["command"]["execution"] == "cancelled"
                conflict = {"event": "refused", "code": "conflict"}
                assert controller.give("erase", {}, decide=("cancel", "approve")) == conflict
                assert controller.give("lr", {"scale": 0.5}, state="0") == conflict
                late = controller.give("erase", {}, valid_s=1.0)["command"]
                assert (late["execution"], late["failure_code"]) == ("rejected", "expired")

                given += controller.obey(PARTIAL_FAILURE)
                ended = end_of_job(process)
            driver.tell("")
            driver.said("left")
            driver.ends()
        finally:
            driver.close()
    assert ended.code == 0, ended.said
    (run,) = root.iterdir()
    check(run, notes, given)
