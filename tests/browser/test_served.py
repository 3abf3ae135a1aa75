"""A person with a key at the dashboard of a server, and a job far away that does what they say."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.browser import DEADLINE_MS, looking
from tests.support.commanding import Desk, Training, training
from tests.support.sync_command import SyncCommand
from tests.support.v1_server import V1Server, v1_process

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.timeout(240.0)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[V1Server, Training]]:
    """A server, and a job that a syncer beside it connects."""
    folder = tmp_path_factory.mktemp("served")
    root = folder / "runs"
    with v1_process(folder / "far") as server:
        sync = SyncCommand(folder, server.url, server.key)
        with training(root, folder / "said", step_s=0.02) as job, sync.watching(root):
            desk = Desk(server, job.directory.name)
            desk.capability("set_lr")
            desk.session(desk.leader())
            desk.close()
            yield server, job


def test_a_key_opens_the_runs_a_curve_grows_and_a_command_is_applied_far_away(
    job: tuple[V1Server, Training], browser: Browser, shoot: Callable[[Page, str], None]
) -> None:
    from playwright.sync_api import expect

    expect.set_options(timeout=DEADLINE_MS)
    server, far = job
    base = f"{server.url}/ui"
    refused = r"status of 401"
    with looking(browser, base=base, allowed=(refused,)) as page:
        page.goto(f"{base}/")
        expect(page.get_by_role("heading", name="This dashboard needs an API key")).to_be_visible()
        page.get_by_label("API key").fill("lhk_00000000000000000000000000000000_nobody")
        page.get_by_role("button", name="Open").click()
        expect(page.get_by_role("alert")).to_contain_text("The key is unknown")
        page.get_by_label("API key").fill(server.key)
        page.get_by_role("button", name="Open").click()
        expect(page.get_by_role("heading", name="Runs", level=1)).to_be_visible()
        shoot(page, "served-runs")
        page.get_by_role("link", name="commanded").click()
        expect(page.locator("canvas").first).to_be_visible()
        step = page.locator(".facts")
        before = step.inner_text()
        expect(step).not_to_have_text(before)
        chart = page.locator('.plot[aria-label^="loss: last"]')
        label = chart.get_attribute("aria-label") or ""
        expect(chart).not_to_have_attribute("aria-label", label)
        shoot(page, "served-charts")

        page.keyboard.press("3")
        page.get_by_role("button", name="change set_lr").click()
        page.locator("input[name=lr]").fill("0.25")
        page.get_by_label("why").fill("from far away")
        shoot(page, "served-form")
        page.get_by_role("button", name="Send").click()
        row = page.locator("tr[data-command]").first
        expect(row).to_contain_text(re.compile(r"Applied at step [\d,]+"))
        applied = int(re.search(r"Applied at step ([\d,]+)", row.inner_text())[1].replace(",", ""))  # type: ignore[index]
        shoot(page, "served-ledger")
        page.keyboard.press("1")
        expect(page.locator("lh-timeline button")).to_have_attribute(
            "aria-label", re.compile(r"set_lr lr=0\.25: Applied")
        )
        marked = page.eval_on_selector(
            "lh-chart", "(chart) => chart.data.markers.map((one) => one.x)"
        )
        assert marked == [applied]

        page.keyboard.press("2")
        expect(page.locator("tr[data-row]")).to_have_count(1)
        shoot(page, "served-processes")
        page.get_by_role("link", name="Sync").click()
        expect(page.get_by_text("Syncing is not told here.")).to_be_visible()
    assert far.applied == [0.25]
    ((outcome,),) = far.outcomes().values()
    assert (outcome.state, outcome.reason) == ("applied", "from far away")
