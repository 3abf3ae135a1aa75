"""Every page on runs as they are found on disks: its words, its keys, its width, its colours."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import launchhelm
from launchhelm.records import Command, Outcome
from tests.support.browser import DEADLINE_MS, Dashboard, axe, faults, looking
from tests.support.cli_runs import MadeRun

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

HOSTILE = "<img src=x onerror=alert(1)>\u202e"
TABS = ("", "/processes", "/controls", "/console", "/media", "/files", "/about")
RANKS = 32

pytestmark = pytest.mark.timeout(240)


class Found:
    """The runs under the root, and the dashboard that shows them."""

    def __init__(self, root: Path, scratch: Path) -> None:
        self.recorded = _recorded(root)
        self.training = _training(root).run_id
        self.root = root
        self.dashboard = Dashboard(root)

    def pages(self) -> list[str]:
        """Return the paths of all pages with content."""
        runs = [f"/run/{run}{tab}" for run in (self.recorded, self.training) for tab in TABS]
        return ["/", *runs, f"/compare?runs={self.recorded},{self.training}", "/sync"]


def _recorded(root: Path) -> str:
    """A finished run of one process, with one of everything that can be recorded."""
    run = launchhelm.init(
        "vision", name=f"vit {HOSTILE}", state_dir=root, config={"lr": 3e-4, HOSTILE: HOSTILE}
    )
    for step in range(0, 4000, 4):
        loss = 3 * math.exp(-step / 700)
        values = {"train/loss": math.nan if step in (1500, 1504) else loss, HOSTILE: loss}
        run.log({**values, "optim/lr/group0": 3e-4 * (1 - step / 4000)}, step=step)
    run.log({"samples": launchhelm.Text(HOSTILE)}, step=100)
    run.log({"weights": launchhelm.Histogram([0.0, 0.5, 0.5, 1.0])}, step=100)
    rows = [[HOSTILE, 1.0], ["b", 2.0]]
    run.log({"errors": launchhelm.Table([("what", "string"), ("n", "number")], rows)}, step=100)
    run.console(f"\x1b[31mred\x1b[0m {HOSTILE}")
    run.console("a warning", stream="stderr")
    run.finish()
    return run.run_id


def _training(root: Path) -> MadeRun:
    """A run of many processes with a command of each outcome."""
    made = MadeRun(root, "llm-7b", ranks=RANKS).train(step=400)
    for id_, payload, outcome in (
        (
            "cmd-applied",
            {"scale": 0.5},
            Outcome("", "applied", applied_at={"step": 200}, applied_on=RANKS, of=RANKS),
        ),
        (
            "cmd-rejected",
            {"lr": -1},
            Outcome(
                "", "rejected", code="local_validation", message="lr takes a number above 0, got -1"
            ),
        ),
        (
            "cmd-unknown",
            {"scale": 2},
            Outcome(
                "", "outcome_unknown", applied_at={"step": 300}, applied_on=RANKS - 1, of=RANKS
            ),
        ),
    ):
        made.conclude(Command(id_, "lr", payload, issued_by="alice"), outcome.but(command=id_))
    return made


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Found]:
    made = Found(tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("scratch"))
    with made.dashboard:
        yield made


def _go(page: Page, path: str) -> None:
    """Follow an address as a link does, and wait until the page has all that it shows."""
    page.evaluate(
        """async (path) => {
            history.pushState(null, "", path);
            dispatchEvent(new PopStateEvent("popstate"));
            const frame = () => new Promise(requestAnimationFrame);
            await frame().then(frame);
        }""",
        path,
    )
    _settled(page)


def _settled(page: Page) -> None:
    page.locator("h1").first.wait_for()
    page.locator("main .waiting").first.wait_for(state="detached")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_has_a_serious_fault_or_is_wider_than_a_telephone(
    found: Found,
    browser: Browser,
    tmp_path: Path,
    shoot: Callable[[Page, str], None],
    scheme: str,
) -> None:
    narrow = scheme == "dark"
    viewport = {"width": 360 if narrow else 1280, "height": 740}
    source = axe(tmp_path)
    bad: list[str] = []
    with looking(
        browser, base=found.dashboard.base, color_scheme=scheme, viewport=viewport
    ) as page:
        page.add_init_script(source)
        page.goto(found.dashboard.address)
        _settled(page)
        for path in found.pages():
            _go(page, path)
            bad += [f"{path}: {fault}" for fault in faults(page)]
            wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
            if wide > 0:
                bad.append(f"{path} is {wide} px wider than the window")
            name = path.replace(found.recorded, "recorded").replace(found.training, "training")
            shoot(page, f"{scheme}{re.sub(r'[^a-z]+', '-', name)}")
    assert not bad, "\n".join(bad)


def test_names_of_runs_metrics_and_files_are_text(found: Found, browser: Browser) -> None:
    with looking(browser, base=found.dashboard.base) as page:
        page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
        page.goto(found.dashboard.address)
        _settled(page)
        for path in found.pages():
            _go(page, path)
            assert page.locator("img[src=x]").count() == 0, path
        _go(page, f"/run/{found.recorded}/about")
        assert "<img src=x onerror=alert(1)>\\u202e" in page.locator("h1").inner_text()


def test_values_that_are_no_numbers_are_marked_and_said(found: Found, browser: Browser) -> None:
    from playwright.sync_api import expect

    with looking(browser, base=found.dashboard.base) as page:
        page.goto(found.dashboard.url(f"/run/{found.recorded}"))
        plot = page.locator('.plot[aria-label^="train/loss"]')
        expect(plot).to_have_attribute(
            "aria-label",
            re.compile("2 values are NaN or infinite, first at step 1,500"),
            timeout=DEADLINE_MS,
        )
        painted = page.locator("lh-chart").first.evaluate(
            """(chart) => {
                const { plot } = chart;
                const [left] = chart.oddGroups(plot, chart.data.series, () => true)[0];
                const x = Math.round(plot.valToPos(left, "x", true));
                const [r, g, b] = plot.ctx.getImageData(x, plot.bbox.top + 3, 1, 1).data;
                return [r, g, b];
            }"""
        )
        assert painted[0] > painted[1] + 60, f"no red mark at the top edge: {painted}"


def test_what_went_to_stderr_has_a_mark(found: Found, browser: Browser) -> None:
    from playwright.sync_api import expect

    with looking(browser, base=found.dashboard.base) as page:
        page.goto(found.dashboard.url(f"/run/{found.recorded}/console"))
        lines = page.locator(".log-line")
        expect(lines).to_have_count(2, timeout=DEADLINE_MS)
        expect(lines.nth(0).locator(".ansi-1")).to_have_text("red")
        expect(lines.nth(1)).to_contain_text("stderr")
        page.get_by_label("stream").select_option("out")
        expect(lines).to_have_count(1, timeout=DEADLINE_MS)


def test_everything_is_reached_by_keys(found: Found, browser: Browser) -> None:
    from playwright.sync_api import expect

    expect.set_options(timeout=DEADLINE_MS)
    with looking(browser, base=found.dashboard.base) as page:
        page.goto(found.dashboard.address)
        rows = page.locator("tr[data-row]")
        expect(rows).to_have_count(2)
        press = page.keyboard.press

        press("Tab")
        expect(page.locator("a.skip")).to_be_focused()
        press("j")
        press("x")
        press("j")
        press("x")
        press("c")
        expect(page.locator("h1")).to_have_text("Compare 2 runs")
        press("g")
        press("r")
        press("/")
        expect(page.locator("[data-search]")).to_be_focused()
        page.keyboard.type("llm")
        expect(rows).to_have_count(1)
        press("Tab")
        page.locator("h1").focus()
        press("j")
        press("Enter")
        expect(page.locator("h1")).to_have_text("llm-7b")
        for key, tab in (("2", "processes"), ("3", "controls"), ("1", "")):
            press(key)
            expect(page).to_have_url(re.compile(f"/{tab}$" if tab else rf"{found.training}$"))
        expect(page.locator("lh-timeline button")).to_have_count(2)
        press("]")
        expect(page.locator("lh-timeline button").first).to_be_focused()

        plot = page.locator(".plot").first
        expect(plot.locator("canvas")).to_be_visible()
        plot.focus()
        press("ArrowLeft")
        expect(page.locator(".readout").first).to_contain_text("step 400")
        press("+")
        expect(page).to_have_url(re.compile("from=.*to="))
        press("0")
        expect(page).not_to_have_url(re.compile("from="))
        press("t")
        expect(page.get_by_role("region", name="points of train/loss")).to_be_visible()
        page.locator("h1").focus()
        press("?")
        expect(page.get_by_role("dialog")).to_be_visible()
        press("Escape")
        expect(page.get_by_role("dialog")).not_to_be_visible()


def test_every_outcome_is_said_in_the_ledger_and_the_unknown_one_stays_on_top(
    found: Found, browser: Browser
) -> None:
    from playwright.sync_api import expect

    with looking(browser, base=found.dashboard.base) as page:
        page.goto(found.dashboard.url(f"/run/{found.training}/controls"))
        rows = page.locator("tr[data-command]")
        expect(rows).to_have_count(3, timeout=DEADLINE_MS)
        expect(rows.nth(0)).to_contain_text(f"{RANKS - 1} of {RANKS} processes reported success")
        assert rows.nth(0).get_attribute("data-tone") == "unknown"
        expect(page.locator("tr[data-command=cmd-applied]")).to_contain_text(
            f"on all {RANKS} processes"
        )
        expect(page.locator("tr[data-command=cmd-rejected]")).to_contain_text("nothing changed")
        page.get_by_role("button", name="mark as seen").click()
        expect(page.get_by_role("button", name="mark as seen")).to_have_count(0)


def test_nothing_is_sent_before_a_check_of_this_input(found: Found, browser: Browser) -> None:
    from playwright.sync_api import expect

    expect.set_options(timeout=DEADLINE_MS)
    with looking(browser, base=found.dashboard.base) as page:
        page.goto(found.dashboard.url(f"/run/{found.training}/controls"))
        page.get_by_role("button", name="change set_kl").click()
        send, value = page.get_by_role("button", name="Send"), page.get_by_label("value")
        expect(send).to_be_disabled()
        value.fill("0.9")
        expect(send).to_be_enabled()
        value.fill("7")
        expect(send).to_be_disabled()
        expect(page.locator(".problem").filter(has_text="at most 1")).to_be_visible()
        value.fill("0.25")
        expect(page.locator(".check")).to_contain_text("0.25")
        expect(send).to_be_enabled()


def test_without_a_token_one_field_says_what_to_paste(found: Found, browser: Browser) -> None:
    from playwright.sync_api import expect

    expect.set_options(timeout=DEADLINE_MS)
    with looking(browser, base=found.dashboard.base, allowed=("401",)) as page:
        page.goto(found.dashboard.base)
        expect(page.locator("h1")).to_have_text("This dashboard needs its token")
        expect(page.locator("main")).to_contain_text("launchhelm ui --list")
        page.get_by_label("Address or token").fill("wrong")
        page.keyboard.press("Enter")
        expect(page.locator("main [role=alert]")).to_be_visible()
        page.get_by_label("Address or token").fill(found.dashboard.address)
        page.keyboard.press("Enter")
        expect(page.locator("tr[data-row]")).to_have_count(2)
        assert found.dashboard.token not in page.url


def test_a_copy_an_empty_root_and_a_damaged_run_have_words_of_their_own(
    found: Found, browser: Browser, tmp_path: Path
) -> None:
    from playwright.sync_api import expect

    expect.set_options(timeout=DEADLINE_MS)
    root, nothing = tmp_path / "runs", tmp_path / "nothing"
    nothing.mkdir()
    shutil.copytree(found.root / found.training, root / found.training)
    damaged = MadeRun(root, "damaged")
    (damaged.path / "run.json").write_bytes(b"\x00\x01")
    with (
        Dashboard(root, "--read-only") as dashboard,
        looking(browser, base=dashboard.base, allowed=("404",)) as page,
    ):
        page.goto(dashboard.address)
        rows = page.locator("tr[data-row]")
        expect(rows.filter(has_text="llm-7b")).to_be_visible()
        expect(rows.filter(has_text=damaged.run_id)).to_contain_text("unreadable")
        _go(page, f"/run/{found.training}/controls")
        expect(page.locator("main")).to_contain_text("read-only")
        page.get_by_role("button", name="look set_kl").click()
        expect(page.get_by_label("value")).to_be_disabled()
        _go(page, "/run/nothing-here")
        expect(page.locator("h1")).to_have_text("This run cannot be shown")
        expect(page.locator("main [role=alert]")).to_contain_text("no run of that id")
    with Dashboard(nothing) as dashboard, looking(browser, base=dashboard.base) as page:
        page.goto(dashboard.address)
        expect(page.locator("main")).to_contain_text(f"No runs in {nothing}.")
        expect(page.locator("main pre")).to_contain_text("launchhelm.init")


def test_a_dashboard_that_ends_is_said_and_a_new_one_asks_for_its_address(
    browser: Browser, tmp_path: Path
) -> None:
    from playwright.sync_api import expect

    expect.set_options(timeout=DEADLINE_MS)
    root = tmp_path / "runs"
    MadeRun(root, "here").train()
    first = Dashboard(root)
    port = first.base.rpartition(":")[2]
    with looking(
        browser, base=first.base, allowed=("ERR_CONNECTION", "ERR_INCOMPLETE", "401")
    ) as page:
        page.goto(first.address)
        expect(page.locator("tr[data-row]")).to_have_count(1)
        first.stop()
        expect(page.locator(".connection")).to_contain_text("connecting again")
        expect(page.locator("tr[data-row]")).to_have_count(1)
        with Dashboard(root, "--port", port) as second:
            expect(page.locator("h1")).to_have_text("This dashboard needs its token")
            page.get_by_label("Address or token").fill(second.token)
            page.keyboard.press("Enter")
            expect(page.locator("tr[data-row]")).to_have_count(1)
            expect(page.locator(".connection")).to_have_text("live")


def test_forms_and_dialogs_are_as_reachable_as_pages(
    found: Found, browser: Browser, tmp_path: Path, shoot: Callable[[Page, str], None]
) -> None:
    """Of fields that exclude each other one is asked for, and a bold change is confirmed."""
    from playwright.sync_api import expect

    expect.set_options(timeout=DEADLINE_MS)
    bad: list[str] = []
    with looking(browser, base=found.dashboard.base) as page:
        page.add_init_script(axe(tmp_path))
        page.goto(found.dashboard.url(f"/run/{found.training}/controls"))
        page.get_by_role("button", name="change lr").click()
        value = page.get_by_role("textbox", name="scale")
        expect(value).to_be_focused()
        bad += faults(page)

        # What was typed for another choice is not sent.
        page.get_by_role("radio", name="lr").check()
        page.get_by_role("textbox", name="lr").fill("0.001")
        page.get_by_role("radio", name="scale").check()
        value.fill("20")
        with page.expect_request("**/commands/check") as asked:
            expect(page.locator(".check")).to_contain_text("factor")
        assert (asked.value.post_data_json or {})["input"] == {"scale": 20}

        page.get_by_role("button", name="Send").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("Send lr all the same?")
        bad += faults(page)
        shoot(page, "controls-confirm")
        page.keyboard.press("Escape")
        expect(dialog).not_to_be_visible()
        expect(page.get_by_role("button", name="Send")).to_be_enabled()
        assert page.locator("tr[data-command]").count() == 3

        page.get_by_role("button", name="replay…").click()
        dialog.get_by_role("combobox", name="run").select_option(found.recorded)
        expect(dialog).to_contain_text("There is no command to replay.")
        bad += faults(page)
        page.keyboard.press("Escape")
        expect(dialog).not_to_be_visible()

        page.locator("h1").focus()
        page.keyboard.press("?")
        expect(dialog).to_be_visible()
        bad += faults(page)
    assert not bad, "\n".join(bad)


def test_what_was_not_sent_says_why_until_it_is(found: Found, browser: Browser) -> None:
    """An answer that was lost leaves the form, and sending again is the same command."""
    from playwright.sync_api import Route, expect

    expect.set_options(timeout=DEADLINE_MS)
    ids = []

    def lose(route: Route) -> None:
        ids.append((route.request.post_data_json or {})["id"])
        route.abort()

    with looking(browser, base=found.dashboard.base, allowed=("ERR_FAILED",)) as page:
        page.goto(found.dashboard.url(f"/run/{found.training}/controls"))
        page.route(
            "**/commands", lambda route: lose(route) if _is_post(route) else route.fallback()
        )
        page.get_by_role("button", name="change lr").click()
        page.get_by_role("textbox", name="scale").fill("0.5")
        for _ in range(2):
            page.get_by_role("button", name="Send").click()
            dialog = page.get_by_role("dialog")
            with page.expect_event("requestfailed"):
                dialog.get_by_role("button", name="Send").click()
            expect(dialog).not_to_be_visible()
            expect(page.locator(".change [role=alert]")).to_contain_text("does not answer")
        assert len(ids) == 2 and len(set(ids)) == 1, ids


def _is_post(route: Any) -> bool:
    return str(route.request.method) == "POST"


def test_every_page_is_usable_at_twice_the_size(found: Found, browser: Browser) -> None:
    bad = []
    with looking(
        browser,
        base=found.dashboard.base,
        viewport={"width": 640, "height": 430},
        device_scale_factor=2,
    ) as page:
        page.goto(found.dashboard.address)
        for path in found.pages():
            _go(page, path)
            wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
            if wide > 0:
                bad.append(f"{path} is {wide} px wider than the window")
    assert not bad, "\n".join(bad)


def test_a_hidden_tab_closes_its_stream_and_catches_up(browser: Browser, tmp_path: Path) -> None:
    from playwright.sync_api import expect

    expect.set_options(timeout=DEADLINE_MS)
    root = tmp_path / "runs"
    run = MadeRun(root, "here").train(step=400)
    with Dashboard(root) as dashboard, looking(browser, base=dashboard.base) as page:
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(dashboard.url(f"/run/{run.run_id}"))
        expect(page.locator(".connection")).to_have_text("live")
        expect(page.locator(".facts")).to_contain_text("step 400")
        hide = """(hidden) => {
            Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
            document.dispatchEvent(new Event("visibilitychange"));
        }"""
        with page.expect_event("requestfailed", lambda request: "/stream" in request.url):
            page.evaluate(hide, True)
        expect(page.locator(".connection")).to_have_text("paused")
        page.wait_for_load_state("networkidle")
        asked.clear()
        run.journals[0].add("m", {"train/loss": 2.0}, step=410)
        run.journals[0].beat(410, 2)
        page.wait_for_timeout(3000)  # Longer than two looks of the server.
        assert asked == []
        page.evaluate(hide, False)
        expect(page.locator(".connection")).to_have_text("live")
        expect(page.locator(".facts")).to_contain_text("step 410")
        (stream,) = [url for url in asked if "/stream" in url]
        assert re.search(r"cursor=[0-9a-f]+\.\d+", stream)


def test_a_slow_rank_is_told_by_its_word_and_not_as_a_fault(
    browser: Browser, tmp_path: Path
) -> None:
    from playwright.sync_api import expect

    expect.set_options(timeout=DEADLINE_MS)
    root = tmp_path / "runs"
    run = MadeRun(root, "here", ranks=4).train(step=400)
    for counter in (2, 3):
        for rank, journal in enumerate(run.journals):
            waits = 0.0 if rank == 2 else 8.0
            journal.beat(400 + counter, counter, step_time_ms=20.0, exchange_wait_ms=waits)
    with Dashboard(root) as dashboard, looking(browser, base=dashboard.base) as page:
        page.goto(dashboard.url(f"/run/{run.run_id}"))
        finding = page.locator(".finding", has_text="is slow")
        expect(finding.locator(".mark.unknown")).to_be_visible()
        expect(finding.locator(".mark.bad")).to_have_count(0)
        expect(page.locator(".tabs a", has_text="Processes")).to_contain_text("slow")
