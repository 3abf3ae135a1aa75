"""A person and a live run of four processes: watch it, change it, and find the one that stands."""

from __future__ import annotations

import getpass
import json
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from launchhelm import views
from launchhelm.records import Command, Outcome
from tests.support.browser import DEADLINE_MS, Dashboard, looking
from tests.support.cli_runs import MadeRun
from tests.support.journals import final_outcomes, only_run
from tests.support.ranks import Ranks

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

SIZE = 4
STOPPED = 2
DEADLINE_S = 240.0

pytestmark = pytest.mark.timeout(DEADLINE_S)


def train(rank: int, size: int, tell: Callable[[str], None], root: str) -> None:
    """Train until killed."""
    import torch

    import launchhelm.torch as lht
    from launchhelm._recorder import Recorder

    Recorder.__init__.__kwdefaults__["heartbeat_s"] = 1.0  # A test cannot wait for 15 s.
    parameter = torch.nn.Parameter(torch.tensor([4.0]))
    optimizer = torch.optim.SGD([parameter], lr=0.01)
    tr = lht.init("live", name="live-4", state_dir=root, config={"lr": 0.01, "ranks": size})
    tr.watch(None, optimizer)  # type: ignore[arg-type]
    while True:
        # Along the batches it is noisy, so that curves look like curves.
        loss = 0.1 * parameter.square().sum() * (1 + 0.1 * torch.randn(())) + 0.3
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        shown = float("nan") if tr.global_step == 7 else loss.item()
        tr.step(loss=shown)
        if tr.global_step == 20:
            tell("training")
        time.sleep(0.02)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Ranks, Path]]:
    """A run of four processes that goes on until the end of the module."""
    root = tmp_path_factory.mktemp("runs")
    with Ranks(train, SIZE, root=str(root), deadline_s=DEADLINE_S) as ranks:
        for rank in range(SIZE):
            ranks.wait_for(rank, "training")
        yield ranks, root


def test_a_run_is_watched_changed_from_its_form_and_its_stopped_rank_is_named(
    job: tuple[Ranks, Path],
    browser: Browser,
    tmp_path: Path,
    shoot: Callable[[Page, str], None],
) -> None:
    from playwright.sync_api import expect

    expect.set_options(timeout=DEADLINE_MS)
    ranks, root = job
    with (
        Dashboard(root, stuck_s=3.0) as dashboard,
        looking(browser, base=dashboard.base) as page,
    ):
        _name_no_machine(page, root)
        page.goto(dashboard.address)
        expect(page.get_by_role("heading", name="Runs", level=1)).to_be_visible()
        assert dashboard.token not in page.url
        page.get_by_role("link", name="live-4").click()

        # The curve grows, and what is no number is marked.
        chart = page.locator('.plot[aria-label^="train/loss: last"]')
        expect(chart).to_be_visible()
        before = _last_step(chart.get_attribute("aria-label") or "")
        expect(
            page.locator(
                f'.plot[aria-label*="train/loss: last"]:not([aria-label*="step {before:,},"])'
            )
        ).to_be_visible()
        assert _last_step(chart.get_attribute("aria-label") or "") > before
        expect(chart).to_have_attribute(
            "aria-label", re.compile(r"1 value is NaN or infinite, first at step \d")
        )

        # Halve the learning rate.
        page.keyboard.press("3")
        page.get_by_role("button", name="change lr").click()
        send = page.get_by_role("button", name="Send")
        expect(send).to_be_disabled()
        page.get_by_role("textbox", name="scale").fill("0.5")
        expect(page.locator(".check")).to_contain_text("0.01 -> 0.005")
        page.get_by_label("why").fill("the loss is noisy")
        _both(page, shoot, "controls-form")
        send.click()
        row = page.locator("tr[data-command]").first
        expect(row).to_contain_text(re.compile(r"Applied at step [\d,]+ on all 4 processes"))
        _both(page, shoot, "controls-ledger")
        applied = int(re.search(r"Applied at step ([\d,]+)", row.inner_text())[1].replace(",", ""))  # type: ignore[index]
        assert applied > before

        # Its marker, on the charts at that step.
        page.keyboard.press("1")
        marker = page.locator("lh-timeline button")
        expect(marker).to_have_attribute(
            "aria-label", re.compile(r"▲ lr scale=0\.5: Applied at .* on all 4")
        )
        assert _marked(page) == [applied]
        _both(page, shoot, "charts-live")

        # One process is stopped; it is named, with the step where it stands.
        page.keyboard.press("2")
        expect(page.locator("tr[data-row]")).to_have_count(SIZE)
        ranks.kill(STOPPED, signal.SIGSTOP)
        finding = page.locator(".findings li[data-weight=bad]").first
        expect(finding).to_contain_text(re.compile(rf"^\W*Rank {STOPPED}\b"))
        expect(finding).to_contain_text(re.compile(r"at step [\d,]+"))
        expect(page.locator(".finding").first).to_contain_text(f"ank {STOPPED}")
        _both(page, shoot, "processes-stopped-rank")
        ranks.kill(STOPPED, signal.SIGCONT)
    (outcomes,) = final_outcomes(only_run(root)).values()
    assert [(one.state, one.applied_on, one.of, one.reason) for one in outcomes] == [
        ("applied", SIZE, SIZE, "the loss is noisy")
    ]


def test_the_commands_of_another_run_are_planned_sent_once_and_applied_at_their_steps(
    job: tuple[Ranks, Path], browser: Browser, shoot: Callable[[Page, str], None]
) -> None:
    from playwright.sync_api import expect

    expect.set_options(timeout=DEADLINE_MS)
    _, root = job
    live = only_run(root)
    old = MadeRun(root, "earlier")
    for id_, name, payload, step in (
        ("halved", "lr", {"scale": 0.5}, 100),
        ("gone", "set_gone", {"value": 1}, 200),
    ):
        outcome = Outcome(id_, "applied", applied_at={"step": step}, applied_on=1, of=1)
        old.conclude(Command(id_, name, payload, reason="as before"), outcome)
    with (
        Dashboard(root) as dashboard,
        looking(browser, base=dashboard.base, allowed=("422",)) as page,
    ):
        _name_no_machine(page, root)
        page.goto(dashboard.url(f"/run/{live.name}/controls"))
        page.get_by_role("button", name="replay…").click()
        dialog = page.get_by_role("dialog")
        send = dialog.get_by_role("button", name="Send")
        expect(send).to_be_disabled()

        # A ledger that is none is said; one of lines is planned like a run.
        dialog.get_by_role("radio", name="an exported ledger").check()
        dialog.get_by_role("textbox", name="or its lines").fill("no ledger")
        expect(dialog.get_by_role("alert")).to_contain_text("line 1 is no command")
        line = {"id": "c", "name": "lr", "state": "applied", "applied_step": 1}
        text = json.dumps({**line, "input": {"scale": 0.5}})
        dialog.get_by_role("textbox", name="or its lines").fill(text)
        expect(dialog.locator("tr[data-replays=c]")).to_contain_text("left out: this run is at")

        dialog.get_by_role("radio", name="a run of this dashboard").check()
        dialog.get_by_role("textbox", name="find").fill("earlier")
        dialog.get_by_role("combobox", name="run").select_option(old.run_id)
        planned = (views.open_run(live).step or 0) + 600
        dialog.get_by_role("textbox", name="offset").fill(str(planned - 100))
        expect(dialog).to_contain_text("1 command to send, 1 left out")
        row = dialog.locator(f"tr[data-replays='{old.run_id}/halved']")
        expect(row).to_contain_text(f"{planned:,}")
        gone = dialog.locator(f"tr[data-replays='{old.run_id}/gone']")
        expect(gone).to_contain_text("left out: this run has no such control")
        _both(page, shoot, "controls-replay")
        assert not [one for one in views.open_run(live).commands if one.replays]

        send.click()
        expect(dialog).not_to_be_visible()
        sent = page.locator("tr[data-command]").first
        expect(sent).to_contain_text(f"Applied at step {planned:,} on all {SIZE} processes")
        sent.get_by_role("button", name="details").click()
        expect(page.locator("tr.details")).to_contain_text(f"{old.run_id}/halved")

        page.get_by_role("button", name="replay…").click()
        dialog.get_by_role("combobox", name="run").select_option(old.run_id)
        dialog.get_by_role("textbox", name="offset").fill("100000")
        expect(row).to_contain_text("it was replayed already")
        expect(send).to_be_disabled()


def _name_no_machine(page: Page, root: Path) -> None:
    """Show a neutral place, host and user, for pictures that are published."""
    host, user = json.dumps(socket.gethostname())[1:-1], getpass.getuser()
    names = (
        (re.escape(json.dumps(str(root))[1:-1]), "./runs"),
        (rf"\b{re.escape(host)}\b", "gpu-000"),
        (rf'("(?:owner|issued_by|user)": ?"){re.escape(user)}"', r'\1alice"'),
    )

    def neutral(route: Route) -> None:
        if route.request.method == "POST":
            return route.fallback()
        answer = route.fetch()
        text = answer.text()
        for pattern, shown in names:
            text = re.sub(pattern, shown, text)
        return route.fulfill(response=answer, body=text)

    page.route(re.compile(r"/api/1/(info|runs)\b"), neutral)


def _both(page: Page, shoot: Callable[[Page, str], None], name: str) -> None:
    """Keep a picture in light and in dark."""
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 50)))")
        shoot(page, f"{name}-{scheme}")
    page.emulate_media(color_scheme="light")


def _last_step(words: str) -> int:
    found = re.search(r"last \S+ at step ([\d,]+),", words)
    assert found, words
    return int(found[1].replace(",", ""))


def _marked(page: Page) -> list[int]:
    """Return the steps at which the chart of the loss has markers."""
    found: list[int] = page.eval_on_selector(
        "lh-chart", "(chart) => chart.data.markers.map((one) => one.x)"
    )
    return found
