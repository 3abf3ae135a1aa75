"""What a line cannot show, a filter that cannot be read, and a search without a hit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

import launchhelm
from tests.support.browser import DEADLINE_MS, Dashboard, looking

if TYPE_CHECKING:
    from playwright.sync_api import Browser

STEPS = 300

pytestmark = pytest.mark.timeout(240)


@dataclass(frozen=True)
class Found:
    dashboard: Dashboard
    run: str


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Found]:
    root = tmp_path_factory.mktemp("runs")
    for name in ("odd", "other"):
        run = launchhelm.init("charts", name=name, state_dir=root)
        for step in range(STEPS):
            sign = 1.0 if step % 2 else -1.0
            run.log({"allnan": math.nan, "signs": sign * (2 + step)}, step=step)
        run.finish()
        if name == "odd":
            id_ = run.run_id
    with Dashboard(root) as dashboard:
        yield Found(dashboard, id_)


def test_a_chart_of_nan_alone_is_as_wide_as_its_steps(found: Found, browser: Browser) -> None:
    from playwright.sync_api import expect

    with looking(browser, base=found.dashboard.base) as page:
        page.goto(found.dashboard.url(f"/run/{found.run}?metrics=allnan"))
        plot = page.locator('.plot[aria-label^="allnan: no finite values"]').first
        expect(plot).to_be_visible(timeout=DEADLINE_MS)
        drawn = page.locator("lh-chart", has=plot).evaluate(
            "({ plot }) => plot.scales.x.max - plot.scales.x.min"
        )
        assert drawn == STEPS - 1


def test_points_between_gaps_of_a_logarithmic_chart_are_dots(
    found: Found, browser: Browser
) -> None:
    from playwright.sync_api import expect

    with looking(browser, base=found.dashboard.base) as page:
        page.goto(found.dashboard.url(f"/run/{found.run}?metrics=signs&y=log"))
        plot = page.locator('.plot[aria-label^="signs: last"]').first
        expect(plot).to_be_visible(timeout=DEADLINE_MS)
        painted = page.locator("lh-chart", has=plot).evaluate(
            """({ plot }) => {
                const { left, top, width, height } = plot.bbox;
                const { data } = plot.ctx.getImageData(left, top, width, height);
                let found = 0;
                for (let at = 0; at < data.length; at += 4) {
                    const rgb = data.slice(at, at + 3);
                    const strong = Math.max(...rgb) - Math.min(...rgb);
                    if (data[at + 3] > 200 && strong > 60) found += 1;
                }
                return found;
            }"""
        )
        assert painted > 100, f"{painted} pixels have the colour of a line"


def test_a_filter_that_is_no_expression_is_said_to_be_none(found: Found, browser: Browser) -> None:
    from playwright.sync_api import expect

    with looking(browser, base=found.dashboard.base) as page:
        page.goto(found.dashboard.url(f"/run/{found.run}?metrics=%5B"))
        words = page.get_by_text("The filter is no valid expression.")
        expect(words).to_be_visible(timeout=DEADLINE_MS)


def test_a_search_without_a_hit_says_what_it_takes(found: Found, browser: Browser) -> None:
    from playwright.sync_api import expect

    with looking(browser, base=found.dashboard.base) as page:
        page.goto(found.dashboard.url("/?q=nothing"))
        expect(page.locator("main")).to_contain_text("state:running", timeout=DEADLINE_MS)
        expect(page.locator("main")).to_contain_text("0 runs shown of 0 that fit, 2 in all")
