"""What charts show of several ranks and attempts, of commands, and of several runs side by side."""

from __future__ import annotations

import math
import re
import shutil
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from launchhelm.records import Command, Outcome
from launchhelm.store import media
from launchhelm.store.layout import DATA, SUMS
from launchhelm.store.manifest import Attempt, take_attempt
from tests.support.browser import DEADLINE_MS, Dashboard, looking
from tests.support.cli_runs import Journal, MadeRun

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

RANKS = 3
LR = "optim/lr/group0"

pytestmark = pytest.mark.timeout(240)

# What is drawn on canvases is kept, so that a test can read it.
WRITTEN = """
    window.written = [];
    const fillText = CanvasRenderingContext2D.prototype.fillText;
    CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
        window.written.push(text);
        return fillText.call(this, text, ...rest);
    };
"""


@dataclass(frozen=True)
class Shown:
    """The dashboard, and the ids of the runs that it shows."""

    dashboard: Dashboard
    resumed: str
    other: str


def _train(journal: Journal, first: int, last: int, rate: float = 0.01, tilt: float = 0.0) -> None:
    for step in range(first, last):
        loss = 2 + math.exp(-step / 80) + tilt + 0.2 * journal.writer.rank
        values = {"train/loss": loss}
        if not journal.writer.rank:
            values[LR] = rate * (0.3 if step >= 150 else 1.0)
        journal.add("m", values, step=step)


def _halved(run: MadeRun, id_: str, step: int) -> None:
    outcome = Outcome("", "applied", applied_at={"step": step}, applied_on=RANKS, of=RANKS)
    run.conclude(Command(id_, "lr", {"scale": 0.5}, issued_by="alice"), outcome, step=step)


def _png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        check = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = zlib.compress((b"\0" + b"\x10\x80\xf0" * width) * height)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def _resumed(root: Path) -> str:
    """Three ranks whose second attempt logged steps 100 to 120 again; lr jumps at 150."""
    run = MadeRun(root, "resumed", ranks=RANKS).train(1)
    for journal in run.journals:
        _train(journal, 2, 120, tilt=0.3)
        journal.add("close", {"state": "terminated", "close_run": False}, step=119)
    take_attempt(run.path, Attempt(0, 1, {}, 1_796_022_506.0, RANKS, "gpu-000"))
    run.journals = [Journal(run.path, rank, attempt=2, world=RANKS) for rank in range(RANKS)]
    for journal in run.journals:
        _train(journal, 100, 200)
        journal.beat(199)
    _halved(run, "halved-resumed", 180)
    stored = media.put(run.path, [_png(3, 2)])
    source = {"artifact": {"id": f"pending:{stored.sha256}", "sha256": stored.sha256}}
    items = [{"source": source, "media_type": "image/png", "caption": "two by three"}]
    body = {"name": "pictures", "renderer": "media", "value": {"items": items}}
    run.journals[0].add("rich", body, step=190)
    file = {"id": "file-1", "name": "weights.bin", "sha256": stored.sha256, "size": stored.size}
    run.journals[0].add("art", file, step=190)
    for step in (110, 190):
        value = {"text": f"words of step {step}"}
        body = {"name": "samples", "renderer": "text", "value": value}
        run.journals[0].add("rich", body, step=step)
    return run.run_id


def _other(root: Path) -> str:
    """One rank that begins at step 40."""
    run = MadeRun(root, "other", config={"lr": 0.02})
    _train(run.journals[0], 40, 160, rate=0.02, tilt=-0.5)
    _halved(run, "halved-other", 90)
    edges = [at / 4 for at in range(9)]
    for step in (50, 100, 150):
        value = {"edges": edges, "counts": [abs(at * 50 - step) for at in range(8)]}
        body = {"name": "weights", "renderer": "histogram", "value": value}
        run.journals[0].add("rich", body, step=step)
    run.end(step=159)
    return run.run_id


def _copied(root: Path, scratch: Path) -> None:
    """A copy of a run, with an outcome that nobody knows."""
    run = MadeRun(scratch, "copied").train()
    run.conclude(Command("lost", "lr", {"scale": 2}), Outcome("", "outcome_unknown"))
    there = shutil.copytree(run.path, root / run.path.name)
    (journal,) = (there / DATA).iterdir()
    (there / SUMS).write_text(f"{'0' * 64}  {DATA}/{journal.name}\n")


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    root = tmp_path_factory.mktemp("runs")
    resumed, other = _resumed(root), _other(root)
    _copied(root, tmp_path_factory.mktemp("scratch"))
    with Dashboard(root) as dashboard:
        yield Shown(dashboard, resumed, other)


def _choice(page: Page, label: str) -> Locator:
    return page.get_by_role("combobox", name=re.compile(f"^{label}"))


def test_ranks_come_together_as_a_mean_with_its_band_or_one_by_one(
    shown: Shown, browser: Browser, shoot: Callable[[Page, str], None]
) -> None:
    from playwright.sync_api import expect

    expect.set_options(timeout=DEADLINE_MS)
    with looking(browser, base=shown.dashboard.base) as page:
        page.goto(shown.dashboard.url(f"/run/{shown.resumed}"))
        plot = page.locator('.plot[aria-label^="train/loss: last"]')
        expect(plot).not_to_have_attribute("aria-label", re.compile("mean"))
        _choice(page, "ranks").select_option("mean")
        expect(plot).to_have_attribute("aria-label", re.compile("mean of 3 ranks, from lowest"))
        card = page.locator("article", has=page.get_by_role("heading", name="train/loss"))
        expect(card).to_contain_text("mean of 3 ranks")
        # The band is filled: between the ranks, where no line is, there is another colour.
        painted = card.locator("lh-chart").evaluate(
            """(chart) => {
                const { plot } = chart;
                const place = (value, axis) => Math.round(plot.valToPos(value, axis, true));
                const mean = chart.data.series.at(-1);
                const y = mean.y[mean.x.indexOf(60)];
                const [above, inside] = [place(y + 0.3, "y"), place(y + 0.1, "y")];
                const { data } = plot.ctx.getImageData(place(60, "x"), above, 1, inside - above);
                return [[...data.slice(0, 4)], [...data.slice(-4)]];
            }"""
        )
        assert painted[0] != painted[1], f"no band: {painted}"
        card.get_by_role("button", name="table of train/loss").click()
        heads = card.locator("th[scope=col]")
        expect(heads).to_have_text(["step", "mean", "lowest", "highest", "ranks"])
        shoot(page, "charts-mean-of-ranks")
        _choice(page, "ranks").select_option("all")
        expect(plot).not_to_have_attribute("aria-label", re.compile("mean"))
        labels = card.locator("lh-chart").evaluate(
            "(chart) => chart.data.series.map((one) => one.label)"
        )
        assert labels == ["rank 0", "rank 1", "rank 2"]


def test_a_restart_has_a_named_line_and_what_was_repeated_is_faint(
    shown: Shown, browser: Browser, shoot: Callable[[Page, str], None]
) -> None:
    from playwright.sync_api import expect

    with looking(browser, base=shown.dashboard.base) as page:
        page.add_init_script(WRITTEN)
        page.goto(shown.dashboard.url(f"/run/{shown.resumed}"))
        plot = page.locator('.plot[aria-label^="train/loss: last"]')
        said = re.compile("attempt 2 from step 100")
        expect(plot).to_have_attribute("aria-label", said, timeout=DEADLINE_MS)
        assert "attempt 2 from step 100" in page.evaluate("window.written")
        series = page.locator("lh-chart").first.evaluate(
            """(chart) => chart.data.series.map(
                ({ label, faint, x }) => [label, faint, x[0], x.at(-1)]
            )"""
        )
        assert series == [["train/loss", False, 1, 199], ["attempt 1", True, 100, 119]]
        shoot(page, "charts-attempts")
        # One attempt alone has neither.
        _choice(page, "attempt").select_option("1")
        expect(plot).not_to_have_attribute("aria-label", said, timeout=DEADLINE_MS)


def test_only_a_jump_of_the_learning_rate_that_nothing_explains_is_marked(
    shown: Shown, browser: Browser
) -> None:
    from playwright.sync_api import expect

    with looking(browser, base=shown.dashboard.base) as page:
        page.goto(shown.dashboard.url(f"/run/{shown.resumed}"))
        plot = page.locator(f'.plot[aria-label^="{LR}: last"]')
        expect(plot).to_have_attribute(
            "aria-label",
            re.compile("jumps at step 150 from 0.01 to 0.003, no command or restart there"),
            timeout=DEADLINE_MS,
        )
        jumps = page.locator("lh-chart").evaluate_all(
            "(charts) => charts.flatMap((one) => one.data?.series.flatMap(({ jumps }) => jumps))"
        )
        assert [jump["x"] for jump in jumps] == [150]


def test_runs_are_aligned_as_they_are_at_their_starts_or_at_a_command_of_each(
    shown: Shown, browser: Browser, shoot: Callable[[Page, str], None]
) -> None:
    from playwright.sync_api import expect

    expect.set_options(timeout=DEADLINE_MS)
    with looking(browser, base=shown.dashboard.base) as page:
        page.goto(shown.dashboard.url(f"/compare?runs={shown.resumed},{shown.other}"))
        plot = page.locator('.plot[aria-label*="A resumed: last"]').first
        expect(plot).to_have_attribute("aria-label", re.compile("B other: last .* at step 159"))
        lanes = page.locator(".lane")
        expect(lanes).to_have_count(2)
        expect(lanes.nth(0).locator("lh-timeline button")).to_have_attribute(
            "aria-label", re.compile("▲ lr scale=0.5: Applied at step 180 on all 3")
        )
        last = page.locator("table.values tr", has_text="train/loss").locator("td")
        expect(last.nth(0)).not_to_contain_text("−")
        expect(last.nth(1)).to_contain_text("−0.4", use_inner_text=True)
        shoot(page, "compare")

        _choice(page, "baseline").select_option(label="B other")
        expect(last.nth(0)).to_contain_text("+0.4", use_inner_text=True)
        expect(page.locator("td.differs")).to_have_text(["0.01"])

        _choice(page, "align").select_option("start")
        expect(plot).to_have_attribute("aria-label", re.compile("B other: last .* at step 119"))
        _choice(page, "align").select_option("command")
        expect(plot).to_have_attribute(
            "aria-label", re.compile("resumed: last .* at step 19,.*B other: last .* at step 69")
        )
        assert _firsts(page) == [-179, -50]
        shoot(page, "compare-at-a-command")

        # A view of steps around the command is an address; each run answers its own steps.
        page.goto(page.url + "&from=-5&to=5")
        expect(plot).to_have_attribute(
            "aria-label", re.compile("resumed: last .* at step 5,.*B other: last .* at step 5,")
        )
        assert _firsts(page) == [-5, -5]


def test_rows_of_runs_have_a_trend_exceptions_and_what_is_on_a_server(
    shown: Shown, browser: Browser, shoot: Callable[[Page, str], None]
) -> None:
    from playwright.sync_api import expect

    expect.set_options(timeout=DEADLINE_MS)
    with looking(browser, base=shown.dashboard.base) as page:
        page.goto(shown.dashboard.url("/"))
        row = page.locator("tr[data-row]", has_text="other")
        trend = row.get_by_role("img")
        expect(trend).to_have_text(re.compile("^[▁-█]{8}$"))
        expect(trend).to_have_attribute(
            "aria-label", re.compile(r"^from 2\.\d+ to 1\.6\d+, lowest")
        )
        expect(row.locator('td[data-head="Sync"]')).to_have_text("off")
        expect(page.locator('tr[data-row] [data-state="copy"]')).to_contain_text("□")
        expect(page.locator("main")).to_contain_text("1 unknown outcome")
        shoot(page, "runs")


def test_histograms_are_curves_over_steps_with_the_newest_strong(
    shown: Shown, browser: Browser, shoot: Callable[[Page, str], None]
) -> None:
    from playwright.sync_api import expect

    with looking(browser, base=shown.dashboard.base) as page:
        page.goto(shown.dashboard.url(f"/run/{shown.other}/media"))
        plot = page.locator(".plot")
        expect(plot).to_have_attribute(
            "aria-label", re.compile("weights: distributions at 3 steps"), timeout=DEADLINE_MS
        )
        lines = page.locator("lh-chart").evaluate(
            "(chart) => chart.data.series.map(({ label, faint }) => [label, faint])"
        )
        assert lines == [["step 50", True], ["step 100", True], ["step 150", False]]
        page.get_by_text("steps as table").click()
        rows = page.get_by_role("region", name="distributions over steps").locator("tbody tr")
        expect(rows).to_have_count(3)
        shoot(page, "media-histograms")
        page.keyboard.press("ArrowLeft")
        expect(plot).to_have_attribute("aria-label", re.compile("distributions at 2 steps"))


def test_of_a_long_table_only_the_rows_near_the_screen_exist(
    browser: Browser, tmp_path: Path
) -> None:
    from playwright.sync_api import expect

    expect.set_options(timeout=DEADLINE_MS)
    run = MadeRun(tmp_path, "large", ranks=512).train()
    with Dashboard(tmp_path) as dashboard, looking(browser, base=dashboard.base) as page:
        page.goto(dashboard.url(f"/run/{run.run_id}/processes?only=all"))
        rows = page.locator("tr[data-row]")
        expect(rows.first).to_have_attribute("data-row", "0")
        assert rows.count() < 120
        page.locator("lh-strip canvas").wait_for()  # It comes above the table, and moves it.
        height = page.evaluate("document.documentElement.scrollHeight")
        assert height > 512 * 28
        page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
        last = page.locator('tr[data-row="511"]')
        expect(last).to_be_in_viewport()
        expect(last).to_have_attribute("aria-rowindex", "513")
        expect(page.locator('tr[data-row="0"]')).to_have_count(0)
        assert rows.count() < 120
        assert abs(page.evaluate("document.documentElement.scrollHeight") - height) < 40
        # Keys go on from row to row, also to those that did not exist.
        last.focus()
        for number in range(510, 450, -1):
            page.keyboard.press("k")
            expect(page.locator(f'tr[data-row="{number}"]')).to_be_focused()
        page.get_by_role("button", name="Rank").click()
        page.evaluate("scrollTo(0, 0)")
        expect(rows.first).to_have_attribute("data-row", "511")


def test_a_picture_is_shown_by_its_bytes(shown: Shown, browser: Browser) -> None:
    from playwright.sync_api import expect

    with looking(browser, base=shown.dashboard.base) as page:
        page.goto(shown.dashboard.url(f"/run/{shown.resumed}/media?name=pictures"))
        picture = page.get_by_role("img", name="two by three")
        expect(picture).to_have_js_property("naturalWidth", 3, timeout=DEADLINE_MS)
        expect(picture).to_have_js_property("naturalHeight", 2)
        page.get_by_role("link", name="Files").click()
        with page.expect_download() as saved:
            page.get_by_role("button", name="save weights.bin").click()
        assert saved.value.path().read_bytes() == _png(3, 2)


def test_media_of_several_runs_stand_side_by_side(shown: Shown, browser: Browser) -> None:
    from playwright.sync_api import expect

    expect.set_options(timeout=DEADLINE_MS)
    with looking(browser, base=shown.dashboard.base) as page:
        page.goto(shown.dashboard.url(f"/compare?runs={shown.resumed},{shown.other}"))
        page.get_by_role("heading", name="Media").click()
        mine = page.get_by_role("region", name="Media of resumed")
        others = page.get_by_role("region", name="Media of other")
        expect(mine).to_contain_text("words of step 190")
        expect(others.locator(".plot")).to_have_attribute("aria-label", re.compile("at 3 steps"))
        _choice(page, "up to step").select_option("110")
        expect(mine).to_contain_text("words of step 110")
        expect(others.locator(".plot")).to_have_attribute("aria-label", re.compile("at 2 steps"))
        _choice(page, "name").select_option("samples")
        expect(others).to_contain_text("nothing up to this step")


def _firsts(page: Page) -> list[int]:
    """Return where the curves of the first chart begin."""
    found: list[int] = page.locator("lh-chart").first.evaluate(
        "(chart) => chart.data.series.map(({ x }) => x[0])"
    )
    return found
