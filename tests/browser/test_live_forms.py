"""A person at the forms of a live run whose schedule moves the rate at every step."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.browser import DEADLINE_MS, Dashboard, looking
from tests.support.ranks import Ranks

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SIZE = 2
DEADLINE_S = 180.0

pytestmark = pytest.mark.timeout(DEADLINE_S)


def train(rank: int, size: int, tell: Callable[[str], None], root: str) -> None:
    """Train with a cosine schedule until killed."""
    import torch

    import launchhelm.torch as lht

    parameter = torch.nn.Parameter(torch.tensor([4.0]))
    optimizer = torch.optim.SGD([parameter], lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100_000)
    tr = lht.init("live", name="scheduled", state_dir=root)
    tr.watch(torch.nn.ParameterList([parameter]), optimizer, scheduler)
    while True:
        loss = parameter.square().sum()
        optimizer.zero_grad()
        loss.backward()
        tr.clip_grad_norm_()
        optimizer.step()
        scheduler.step()
        tr.step(loss=loss)
        if tr.global_step == 20:
            tell("training")
        time.sleep(0.02)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A root with a run of two processes that goes on until the end of the module."""
    root = tmp_path_factory.mktemp("runs")
    with Ranks(train, SIZE, root=str(root), deadline_s=DEADLINE_S) as ranks:
        for rank in range(SIZE):
            ranks.wait_for(rank, "training")
        yield root


@pytest.fixture
def page(root: Path, browser: Browser) -> Iterator[Page]:
    """The page of its controls."""
    from playwright.sync_api import expect

    expect.set_options(timeout=DEADLINE_MS)
    with (
        Dashboard(root) as dashboard,
        # What is refused is an answer, and a browser says it.
        looking(browser, base=dashboard.base, allowed=(r"status of 409",)) as page,
    ):
        page.goto(dashboard.address)
        page.get_by_role("link", name="scheduled").click()
        page.keyboard.press("3")
        expect(page.get_by_role("button", name="change lr")).to_be_visible()
        yield page


def sent(page: Page) -> str:
    """Send what the form holds and return the outcome as the ledger has it."""
    from playwright.sync_api import expect

    before = page.url
    page.get_by_role("button", name="Send").click()
    page.wait_for_url(lambda url: url != before and "cmd=" in url)
    command = page.url.rpartition("cmd=")[2]
    outcome = page.locator(f"tr[data-command='{command}'] .outcome")
    expect(outcome).to_contain_text(re.compile("Applied|Rejected|Expired|unknown"))
    return outcome.inner_text()


def test_a_rate_that_a_schedule_moves_is_changed_however_long_the_person_reads(page: Page) -> None:
    """What guards it is who else has changed it, not a value that is old at the next step."""
    from playwright.sync_api import expect

    page.get_by_role("button", name="change lr").click()
    page.get_by_role("textbox", name="scale").fill("0.5")
    check = page.locator(".check")
    expect(check).to_contain_text("-> ")
    foreseen = check.inner_text()
    expect(check).not_to_have_text(foreseen)  # It is renewed.
    assert sent(page).startswith("Applied"), page.locator(".ledger").inner_text()


def test_a_rate_that_somebody_else_has_changed_since_is_not_sent(page: Page, root: Path) -> None:
    from playwright.sync_api import expect

    with page.context.expect_page() as opened:
        page.evaluate("window.open(location.href)")
    other = opened.value
    for each in (page, other):
        each.get_by_role("button", name="change lr").click()
        each.get_by_role("textbox", name="scale").fill("0.5")
        expect(each.locator(".check")).to_contain_text("-> ")
    # The first page hears nothing of it: its check stays as it is, for want of an answer.
    page.route("**/check", lambda route: None)
    assert sent(other).startswith("Applied")
    page.get_by_role("button", name="Send").click()
    expect(page.locator("form.change")).to_contain_text("Changed meanwhile")


def test_a_limit_of_clipping_is_set_and_never_taken_away_by_an_empty_field(page: Page) -> None:
    from playwright.sync_api import expect

    page.get_by_role("button", name="change grad_clip").click()
    send, limit = page.get_by_role("button", name="Send"), page.get_by_role("textbox")
    expect(page.locator("form.change")).to_contain_text("a number above 0, or null for off")
    expect(page.locator(".check")).to_contain_text("as soon as the form is filled in")
    expect(send).to_be_disabled()
    limit.first.fill("0.5")
    expect(page.locator(".check")).to_contain_text("none -> 0.5")
    assert "none -> 0.5" in sent(page)
    page.get_by_role("button", name="change grad_clip").click()
    limit.first.fill("null")
    expect(page.locator(".check")).to_contain_text("0.5 -> none")
    assert "0.5 -> none" in sent(page)


def test_a_ping_carries_what_is_typed_as_json(page: Page) -> None:
    from playwright.sync_api import expect

    page.get_by_role("button", name="change ping").click()
    echo = page.locator("#field-echo")
    echo.fill("[1,")
    expect(page.locator("#field-echo-problem")).to_contain_text("is to be JSON")
    echo.fill('[1, "two"]')
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
    assert "two" in sent(page)


def test_a_step_that_is_not_given_or_too_large_sends_nothing(page: Page) -> None:
    from playwright.sync_api import expect

    page.get_by_role("button", name="change lr").click()
    scale, send = page.get_by_role("textbox", name="scale"), page.get_by_role("button", name="Send")
    scale.fill("1e400")
    expect(page.locator("#field-scale-problem")).to_have_text("is too large for a number")
    scale.fill("0.5")
    expect(send).to_be_enabled()
    page.get_by_label("at a step").check()
    expect(page.locator("form.change")).to_contain_text("is needed: the step to act at")
    expect(send).to_be_disabled()
    page.get_by_label("from").fill("99999999999999999999")
    expect(page.locator("form.change")).to_contain_text("is to be a step")
    expect(send).to_be_disabled()


def test_controls_are_frozen_and_thawed_by_the_button(page: Page) -> None:
    from playwright.sync_api import expect

    page.get_by_role("button", name="freeze", exact=True).click()
    expect(page.locator(".ledger .banner")).to_contain_text("Frozen")
    page.get_by_role("button", name="unfreeze", exact=True).click()
    expect(page.locator(".ledger .banner")).to_have_count(0)
